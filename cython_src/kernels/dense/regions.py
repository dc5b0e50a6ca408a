"""What the kernels of fully connected layers touch, and what that costs."""

from ...plan.model import read, update, write
from ..interface.kernel_spec import size, touches
from ..maps.nhwc import operand_map
from ..pooling import regions as pooling


def _cost(moved):
    """Cost of a kernel that moves so many floats of a sample: f(features, outputs, shapes)."""

    def cost(a, b, shapes):
        samples = a["lanes"] * size(b["g"])
        features, outputs = a["features"], a["outputs"]
        return 2.0 * features * outputs * samples, 4.0 * moved(features, outputs, shapes) * samples

    return cost


@touches("fc_forward", cost=_cost(lambda features, outputs, shapes: features + outputs))
@touches("fc_backward_data", cost=_cost(lambda features, _, shapes: features * (5.25 if "index" in shapes else 1)))
def fully_connected(a, b, shapes):
    for operand in shapes:
        if operand in ("weight", "bias"):
            yield read(operand)
        else:
            yield (write if operand == "output" else read)(operand, b["g"])


@touches("fc_backward_weights", cost=_cost(lambda features, _, shapes: features))
def weight_gradient(a, b, shapes):
    yield from (read("gradient", b["g"]), read("input", b["g"]))
    yield (update if a["accumulate"] else write)("output", (b["partial"], b["partial"] + 1))


def _flatten_cost(a, b, shapes):
    source = operand_map("input", "in", a, shapes)
    return 0.0, 8.0 * source.channels * source.height * source.width * size(b["n"])


def _flatten_backward_cost(a, b, shapes):
    return 0.0, 4.0 * a["out_channels"] * a["out_width"] * (2 + a["accumulate"]) * size(b["n"], b["y"])


touches("nhwc_flatten", cost=_flatten_cost)(pooling.global_pool)
touches("nhwc_flatten_backward", cost=_flatten_backward_cost)(pooling.global_pool_backward)
