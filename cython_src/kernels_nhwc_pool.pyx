"""Maximum, average and global average pooling, forward and backward, with the channels in the vector lanes.

The maximum keeps which element of its window it was (ky kernel + kx, the first of equals). What lies outside the map
never is a maximum, and counts as zero in an average, which always divides by kernel^2 (PyTorch's default). Backward
passes gather: each element of the gradient adds up what the windows it lies in send it, row by row, in order.
"""

import numpy as np

from .kernel_table import KernelSpec, register
from .nhwc_arrays import BOX, channel_end, inside, nhwc_attributes, scatter_windows, windows, write_block


def _rows(array, attributes, prefix, bounds):
    """All interior rows of a block's images and channels."""
    everything = {name: bounds[name] for name in ("n0", "n1", "c0", "c1")}
    return inside(array, attributes, prefix, everything)


def _window(attributes):
    return attributes["kernel"], attributes["stride"], attributes["padding"]


def _max_reference(operands, attributes, bounds, iteration):
    x = _rows(operands["input"], attributes, "in", bounds)
    y0, y1 = bounds["y0"], bounds["y1"]
    taps = windows(x, *_window(attributes), y0, y1, attributes["out_width"], -np.inf)
    values = np.stack([part for _, part in taps])
    index = values.argmax(axis=0)
    write_block(operands["output"], attributes, "out", bounds, np.take_along_axis(values, index[None], axis=0)[0])
    c = slice(bounds["c0"], channel_end(bounds["c1"], attributes["out_pitch"]))
    operands["index"][bounds["n0"] : bounds["n1"], y0:y1, :, c] = index


def _backward(operands, attributes, bounds, contribution):
    """Add up contribution(tap), the output's gradients as they go to the tap's element."""
    shape = _rows(operands["output"], attributes, "out", bounds).shape
    total = scatter_windows(contribution, shape, *_window(attributes), operands["output"].dtype)
    write_block(operands["output"], attributes, "out", bounds, total[:, bounds["y0"] : bounds["y1"]],
                accumulate=attributes["accumulate"])


def _max_backward_reference(operands, attributes, bounds, iteration):
    dy = _rows(operands["gradient"], attributes, "in", bounds)
    c = slice(bounds["c0"], channel_end(bounds["c1"], attributes["in_pitch"]))
    index = operands["index"][bounds["n0"] : bounds["n1"], :, :, c]
    _backward(operands, attributes, bounds, lambda tap: np.where(index == tap, dy, 0))


def _average_reference(operands, attributes, bounds, iteration):
    x = _rows(operands["input"], attributes, "in", bounds)
    taps = windows(x, *_window(attributes), bounds["y0"], bounds["y1"], attributes["out_width"])
    total = sum(part for _, part in taps)
    write_block(operands["output"], attributes, "out", bounds, total / attributes["kernel"] ** 2)


def _average_backward_reference(operands, attributes, bounds, iteration):
    dy = _rows(operands["gradient"], attributes, "in", bounds) / attributes["kernel"] ** 2
    _backward(operands, attributes, bounds, lambda tap: dy)


def _global_reference(operands, attributes, bounds, iteration):
    everything = {name: bounds[name] for name in ("n0", "n1")}
    mean = inside(operands["input"], attributes, "in", everything).mean(axis=(1, 2))
    c = slice(bounds["c0"], bounds["c1"])
    operands["output"][bounds["n0"] : bounds["n1"], c, 0] = mean[:, c]


def _global_backward_reference(operands, attributes, bounds, iteration):
    n, c = slice(bounds["n0"], bounds["n1"]), slice(bounds["c0"], bounds["c1"])
    height, width = attributes["out_height"], attributes["out_width"]
    g = operands["gradient"][n, c, 0] / (height * width)
    padding = channel_end(bounds["c1"], attributes["out_pitch"]) - bounds["c1"]
    g = np.pad(g, ((0, 0), (0, padding)))[:, None, None, :]
    g = np.broadcast_to(g, (g.shape[0], bounds["y1"] - bounds["y0"], width, g.shape[3]))
    write_block(operands["output"], attributes, "out", bounds, g, accumulate=attributes["accumulate"])


MAPS = nhwc_attributes("in") + nhwc_attributes("out")
WINDOW = ("kernel", "stride", "padding")
# index: uint8, (batch, output height, output width, pitch). Backward bounds are rows of the input's gradient.
register(KernelSpec("nhwc_max_pool", ("input", "output", "index"), MAPS + WINDOW, (), BOX, _max_reference))
register(KernelSpec("nhwc_max_pool_backward", ("gradient", "index", "output"), MAPS + WINDOW + ("accumulate",), (),
                    BOX, _max_backward_reference))
register(KernelSpec("nhwc_average_pool", ("input", "output"), MAPS + WINDOW, (), BOX, _average_reference))
register(KernelSpec("nhwc_average_pool_backward", ("gradient", "output"), MAPS + WINDOW + ("accumulate",), (), BOX,
                    _average_backward_reference))
# The pooled side is (batch, channels, 1), what the fully connected layer takes with lanes = 1.
register(KernelSpec("nhwc_global_pool", ("input", "output"), nhwc_attributes("in"), (), ("n0", "n1", "c0", "c1"),
                    _global_reference))
register(KernelSpec("nhwc_global_pool_backward", ("gradient", "output"), nhwc_attributes("out") + ("accumulate",), (),
                    BOX, _global_backward_reference))
