"""What the kernels of depthwise convolutions touch, and what that costs."""

from ...plan.model import read, write
from ..convolution import regions as convolution
from ..interface.kernel_spec import size, touches
from ..maps.nhwc import operand_map

touches("nhwc_depthwise_forward", "nhwc_norm_depthwise", cost=convolution.forward_cost)(convolution.forward)
touches("nhwc_depthwise_backward_data", cost=convolution.data_cost)(convolution.data_gradient)
touches("nhwc_depthwise_backward_weights", cost=convolution.weights_cost)(convolution.weight_gradient)


def _norm_backward_cost(a, b, shapes):
    result, source = operand_map("result", "out", a, shapes), operand_map("input", "in", a, shapes)
    flops = 4.0 * a["kernel"] ** 2 * result.height * result.width * size(b["n"], b["c"])
    pixels = result.height * result.width + source.height * source.width
    return flops, 8.0 * source.pitch * pixels * size(b["n"], b["c"]) / source.channels


@touches("nhwc_depthwise_norm_backward", cost=_norm_backward_cost)
def depthwise_norm_backward(a, b, shapes):
    n, c, partial = b["n"], b["c"], (b["partial"], b["partial"] + 1)
    maps = {operand: operand_map(operand, "out", a, shapes) for operand in ("gradient", "result")}
    maps |= {operand: operand_map(operand, "in", a, shapes) for operand in ("input", "output")}
    channels = maps["input"].channel_box(*c)
    for operand in shapes:
        if operand in maps:
            yield maps[operand].write(n, None, c) if operand == "output" else maps[operand].read(n, None, c)
        elif operand == "weight":
            yield read(operand, c)
        elif operand == "weight_partials":
            yield write(operand, partial, c)
        elif operand == "statistics":
            yield write(operand, partial, (0, 2), channels)
        else:
            yield read(operand, (0, 3), channels) if operand == "coefficients" else read(operand, channels)
