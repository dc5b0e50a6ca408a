"""Depthwise convolution with the channels in the vector lanes: forward, data gradient, weight gradient.

y[n, i, j, c] = bias[c] + sum over (ky, kx) of w[c, ky, kx] x[n, stride i - padding + ky, stride j - padding + kx, c];
what lies outside the map is zero, whether or not the map has a halo. Weights are PyTorch's (channels, 1, kernel,
kernel), for any kernel size and stride.
"""

import numpy as np

from .kernel_table import KernelSpec, register
from .nhwc_arrays import (
    BOX, activate, block_statistics, channel_end, inside, nhwc_attributes, scatter_windows, windows, write_block)


def _rows(array, attributes, prefix, bounds):
    """All interior rows of a block's images and channels."""
    everything = {name: bounds[name] for name in ("n0", "n1", "c0", "c1")}
    return inside(array, attributes, prefix, everything)


def _window(attributes):
    return attributes["kernel"], attributes["stride"], attributes["padding"]


def _padded(vector, bounds, pitch):
    """A block's part of something of shape (channels, ...), zeros for padding channels, channels last."""
    part = vector.reshape(len(vector), -1)[bounds["c0"] : bounds["c1"]].T
    return np.pad(part, ((0, 0), (0, channel_end(bounds["c1"], pitch) - bounds["c1"])))


def _forward_reference(operands, attributes, bounds, iteration):
    x = _rows(operands["input"], attributes, "in", bounds)
    pitch = attributes["out_pitch"]
    weight = _padded(operands["weight"], bounds, pitch)
    y = np.zeros(())
    for tap, part in windows(x, *_window(attributes), bounds["y0"], bounds["y1"], attributes["out_width"]):
        y = y + weight[tap] * part
    if "bias" in operands:
        y = y + _padded(operands["bias"], bounds, pitch)[0]
    if "statistics" in operands:
        c = slice(bounds["c0"], channel_end(bounds["c1"], pitch))
        operands["statistics"][bounds["partial"], :, c] = block_statistics(y)
    write_block(operands["output"], attributes, "out", bounds, activate(y, attributes["activation"]))


def _backward_data_reference(operands, attributes, bounds, iteration):
    dy = _rows(operands["gradient"], attributes, "in", bounds)
    weight = _padded(operands["weight"], bounds, attributes["in_pitch"])
    shape = _rows(operands["output"], attributes, "out", bounds).shape
    dx = scatter_windows(lambda tap: weight[tap] * dy, shape, *_window(attributes), operands["output"].dtype)
    write_block(operands["output"], attributes, "out", bounds, dx[:, bounds["y0"] : bounds["y1"]],
                accumulate=attributes["accumulate"])


def _backward_weights_reference(operands, attributes, bounds, iteration):
    x = _rows(operands["input"], attributes, "in", bounds)
    dy = inside(operands["gradient"], attributes, "gradient", bounds)
    c, count = slice(bounds["c0"], bounds["c1"]), bounds["c1"] - bounds["c0"]
    results = [("output", np.stack([
        (dy * part).sum(axis=(0, 1, 2))[:count]
        for _, part in windows(x, *_window(attributes), bounds["y0"], bounds["y1"], attributes["gradient_width"])
    ], axis=-1))]
    if "bias_output" in operands:
        results.append(("bias_output", dy.sum(axis=(0, 1, 2))[:count]))
    for name, values in results:
        target = operands[name][bounds["partial"], c]
        target[...] = target + values if attributes["accumulate"] else values


WINDOW = ("kernel", "stride", "padding")
MAPS = nhwc_attributes("in") + nhwc_attributes("out") + WINDOW
# statistics: those of the block before the activation, as nhwc_norm_statistics writes them, in its `partial`.
register(KernelSpec("nhwc_depthwise_forward", ("input", "weight", "bias?", "output", "statistics?"),
                    MAPS + ("activation",), (), BOX + ("partial",), _forward_reference))
# bounds: rows of the input's gradient.
register(KernelSpec("nhwc_depthwise_backward_data", ("gradient", "weight", "output"), MAPS + ("accumulate",), (), BOX,
                    _backward_data_reference))
# output: (num_partials, channels, kernel^2), bias_output: (num_partials, channels). bounds: rows of dy.
register(KernelSpec("nhwc_depthwise_backward_weights", ("gradient", "input", "output", "bias_output?"),
                    nhwc_attributes("gradient") + nhwc_attributes("in") + WINDOW + ("accumulate",), (),
                    BOX + ("partial",), _backward_weights_reference))
