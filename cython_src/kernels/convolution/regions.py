"""What the kernels of convolutions with the channels in the lanes touch, and what that costs.

Operations are those of the direct form, whatever the algorithm.
"""

import math
from dataclasses import replace

from ...plan.model import read, update, write
from ..interface.kernel_spec import size, touches
from ..maps.nhwc import STATISTICS_ROWS, Window, operand_map
from ..simd.instruction_sets import LANES
from . import algorithms


def _weights(a, shapes):
    """Number of weights; those of depthwise kernels lie as they are, others packed."""
    if "weight" in shapes:
        return math.prod(shapes["weight"])
    return a["in_channels"] * a["out_channels"] // a["groups"] * a["kernel"] ** 2


def _read_weights(shapes, channels):
    if "weight" in shapes:
        return read("weight", channels)
    return read("packed", (channels[0] // LANES, -(-channels[1] // LANES)))


def forward_cost(a, b, shapes):
    source, target = operand_map("input", "in", a, shapes), operand_map("output", "out", a, shapes)
    part = size(b["n"], b["y"]) / target.height
    channels = size(b["c"]) / target.channels
    # Each block of some channels reads all those of the input, but not where channels are convolved alone.
    moved = part * source.pitch * source.height * source.width * (channels if "weight" in shapes else 1.0)
    moved += part * channels * (1 + ("residual" in shapes)) * target.pitch * target.height * target.width
    moved += part * channels * _weights(a, shapes) / target.batch
    products = a["kernel"] ** 2 * (1 if "weight" in shapes else a["in_channels"] // a["groups"])
    return 2.0 * products * size(b["n"], b["y"], b["c"]) * target.width, 4.0 * moved


@touches("nhwc_conv_forward", cost=forward_cost)
def forward(a, b, shapes):
    source, target = operand_map("input", "in", a, shapes), operand_map("output", "out", a, shapes)
    n, y, c = b["n"], b["y"], b["c"]
    yield source.read_window(n, Window.of(a), y, c if "weight" in shapes else None)
    yield from (target.write(n, y, c), _read_weights(shapes, c))
    if "bias" in shapes:
        yield read("bias", c)
    if "residual" in shapes:
        yield replace(target, name="residual").read(n, y, c)
    for vector in ("input_scale", "input_shift"):
        if vector in shapes:
            yield read(vector, source.channel_box(*c))
    if "statistics" in shapes:
        yield write("statistics", (b["partial"], b["partial"] + 1), (0, STATISTICS_ROWS), target.channel_box(*c))


def data_cost(a, b, shapes):
    gradient, target = operand_map("gradient", "in", a, shapes), operand_map("output", "out", a, shapes)
    share = size(b["n"], b["y"], b["c"]) / (target.height * target.channels)  # of an image
    channels = 1 if "weight" in shapes else a["out_channels"] // a["groups"]
    flops = 2.0 * channels * a["kernel"] ** 2 * gradient.channels * gradient.height * gradient.width
    moved = gradient.pitch * gradient.height * gradient.width + _weights(a, shapes) / target.batch
    moved += (1 + a["accumulate"]) * target.pitch * target.height * target.width
    return flops * share, 4.0 * moved * share


@touches("nhwc_conv_backward_data", cost=data_cost)
def data_gradient(a, b, shapes):
    gradient, target = operand_map("gradient", "in", a, shapes), operand_map("output", "out", a, shapes)
    n, y, c = b["n"], b["y"], b["c"]
    first, last = Window.of(a).gradient_rows(y)
    first, last = max(first, -gradient.halo), min(last, gradient.height + gradient.halo)
    if first < last:  # else no window holds these rows of the input
        yield gradient.read(n, (first, last), c if "weight" in shapes else None)
        yield _read_weights(shapes, c)
    yield target.write(n, y, c, a["accumulate"])


def _ends(a, shapes):
    """Gradient and input of a weight gradient, and whether channels are convolved alone."""
    depthwise = "gradient_channels" in a
    gradient = operand_map("gradient", "gradient" if depthwise else "dy", a, shapes)
    return gradient, operand_map("input", "in", a, shapes), depthwise


def weights_cost(a, b, shapes):
    """Of a block's piece of the weights: its share of both maps, and the piece once."""
    gradient, source, depthwise = _ends(a, shapes)
    row = shapes["output"][2]
    if depthwise:
        piece = size(b["c"]) / gradient.channels
    else:
        piece = size(b["o"], b["i"]) / (gradient.channels * source.channels)
    maps = sum(m.pitch * m.height * m.width for m in (gradient, source)) * size(b["n"])
    flops = 2.0 * row * gradient.channels * gradient.height * gradient.width * size(b["n"])
    return flops * piece, 4.0 * piece * (maps + gradient.channels * row)


@touches("nhwc_conv_backward_weights", cost=weights_cost)
def weight_gradient(a, b, shapes):
    gradient, source, depthwise = _ends(a, shapes)
    written, partial = (update if a["accumulate"] else write), (b["partial"], b["partial"] + 1)
    outputs, elements, read_channels = b["c" if depthwise else "o"], (0, shapes["output"][2]), None
    if depthwise:
        read_channels = outputs
    elif a["groups"] == 1:
        read_channels, elements = b["i"], tuple(i * a["kernel"] ** 2 for i in b["i"])
    yield gradient.read(b["n"], None, outputs)
    yield written("output", partial, outputs, elements)
    yield source.read_window(b["n"], Window.of(a), (0, gradient.height), read_channels)
    if "bias_output" in shapes and (depthwise or b["i0"] == 0):
        yield written("bias_output", partial, outputs)


def _pack_cost(a, b, shapes):
    return 0.0, 8.0 * math.prod(shapes["weight"]) * size(b["o"]) / shapes["packed"][0]


@touches("nhwc_conv_pack", cost=_pack_cost)
def pack(a, b, shapes):
    box = algorithms.weight_box(a["direction"], b["o"], shapes["weight"], a["groups"])
    return read("weight", *box), write("packed", b["o"])
