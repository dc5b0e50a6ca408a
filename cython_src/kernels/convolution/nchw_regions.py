"""What the kernels of convolutions with images or pixels in the lanes touch, and what that costs."""

from ...plan.model import read, update, write
from ..interface.kernel_spec import size, touches
from ..maps.nchw import KERNEL, operand_map, scaled

TAPS = KERNEL * KERNEL
FORMS = ("conv", "winograd")


def _kernels(what):
    return [f"{form}_{what}" for form in FORMS]


def _forward_cost(a, b, shapes):
    scale, pixels = 2 if "index" in shapes else 1, a["in_lanes"] * size(b["g"], b["y"])
    width, channels = a["out_width"] * scale, size(b["c"])
    flops = 2.0 * TAPS * a["in_channels"] * channels * scale * width * pixels
    moved = a["in_channels"] * scale * width + channels * a["out_width"] * (1.25 if scale == 2 else 1)
    return flops, 4.0 * pixels * moved


def _data_cost(a, b, shapes):
    width = a["out_width"] // (2 if "index" in shapes else 1)
    pixels, channels = a["in_lanes"] * width * size(b["g"], b["y"]), size(b["c"])
    moved = a["in_channels"] + channels * (4.25 if "index" in shapes else 1)
    return 2.0 * TAPS * a["in_channels"] * channels * pixels, 4.0 * pixels * moved


@touches(*_kernels("forward"), *_kernels("relu_pool"), cost=_forward_cost)
@touches(*_kernels("backward_data"), *_kernels("backward_data_unpool"), cost=_data_cost)
def convolve(a, b, shapes):
    """Both directions; with an index rows are those of the smaller map, of two rows of the larger one."""
    is_forward, rows = "input" in shapes, (b["y"], scaled(b["y"], 2 if "index" in shapes else 1))
    first = "input" if is_forward else "gradient"
    source, target = operand_map(first, "in", a, shapes), operand_map("output", "out", a, shapes)
    yield read(first, b["g"], (0, source.channels), source.read_rows(*rows[is_forward]))
    if "transformed" in shapes:
        yield read("transformed", (0, shapes["transformed"][0]), (0, source.channels), b["c"])
    else:
        yield read("weight", b["c"]) if is_forward else read("weight")
    if is_forward:
        yield read("bias", b["c"])
    yield write("output", b["g"], b["c"], target.written_rows(*rows[not is_forward]))
    if "index" in shapes:
        yield (write if is_forward else read)("index", b["g"], b["c"], b["y"])


def _weights_cost(a, b, shapes):
    rows = size(b["y"]) if "y0" in b else a["dy_height"]
    images = a["dy_lanes"] * size(b["g"]) * size(b["c"]) / a["dy_channels"]
    pixels = images * rows * a["dy_width"]
    flops = 2.0 * TAPS * a["in_channels"] * a["dy_channels"] * pixels
    return flops, 4.0 * (a["dy_channels"] + a["in_channels"]) * pixels


def _partial(a, b):
    return (update if a["accumulate"] else write)("output", (b["partial"], b["partial"] + 1), b["c"])


@touches("conv_backward_weights", cost=_weights_cost)
def weight_gradient(a, b, shapes):
    return read("gradient", b["g"], b["c"]), read("input", b["g"]), _partial(a, b)


@touches("winograd_backward_weights", cost=_weights_cost)
def winograd_weight_gradient(a, b, shapes):
    gradient, source = operand_map("gradient", "dy", a, shapes), operand_map("input", "in", a, shapes)
    yield read("gradient", b["g"], b["c"], gradient.interior_rows(*b["y"]))
    yield read("input", b["g"], (0, source.channels), source.read_rows(*b["y"]))
    yield _partial(a, b)


def _transform_cost(a, b, shapes):
    return 0.0, 4.0 * (TAPS + shapes["transformed"][0]) * a["outputs"] * size(b["c"])


@touches("winograd_weights", cost=_transform_cost)
def transform(a, b, shapes):
    """Some channels of what is convolved: of the result of the layer where the weights are flipped."""
    yield read("weight", b["c"]) if a["flip"] else read("weight", (0, a["outputs"]), b["c"])
    yield write("transformed", (0, shapes["transformed"][0]), b["c"])
