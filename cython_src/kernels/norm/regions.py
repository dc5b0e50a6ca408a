"""What the kernels of norms touch, and what that costs."""

from ...plan.model import read, update, write
from ..elementwise.regions import pixels, pixels_cost
from ..interface.kernel_spec import size, touches

MAPS = ("gradient", "input", "activations", "residual", "output", "branch")
PER_CHANNEL = ("mean", "inv_std", "scale", "shift", "residual_scale", "residual_shift", "coefficients")


def _maps(shapes):
    return [operand for operand in MAPS if operand in shapes]


@touches(
    *("nhwc_norm_statistics", "nhwc_norm_apply"),
    *("nhwc_norm_backward_statistics", "nhwc_norm_backward_apply"),
    cost=lambda a, b, shapes: pixels_cost(a, b, shapes, len(_maps(shapes))),
)
def norm_pixels(a, b, shapes):
    """Rows of the maps, and numbers of each channel; an output that is added to is the operand "previous" too."""
    for operand in PER_CHANNEL:
        if operand in shapes:
            yield read(operand)
    yield from pixels(a, b, shapes, _maps(shapes))
    if "partials" in shapes:
        yield write("partials", (b["partial"], b["partial"] + 1))


def _finish_cost(a, b, shapes):
    """The partial sums of two numbers a channel; of the running statistics all six vectors."""
    pitch = shapes["scale" if "scale" in shapes else "coefficients"][-1]
    return 0.0, 8.0 * a["num_partials"] * pitch if "partials" in shapes else 24.0 * pitch


@touches("nhwc_norm_finish", "nhwc_norm_evaluate", "nhwc_norm_backward_finish", cost=_finish_cost)
def norm_finish(a, b, shapes):
    changed = update if "partials" in shapes else read
    for operand in shapes:
        if operand in ("running_mean", "running_var"):
            yield changed(operand)
        else:
            read_only = operand in ("partials", "weight", "bias") or (operand == "inv_std" and "coefficients" in shapes)
            yield (read if read_only else write)(operand)


def _token_norm_cost(a, b, shapes):
    """Those matrices that are maps, not the sums of their rows."""
    maps = sum(operand in shapes for operand in ("gradient", "input", "residual", "sum", "output"))
    return 0.0, 4.0 * a["features"] * maps * size(b["r"])


@touches("layernorm_forward", "layernorm_backward", cost=_token_norm_cost)
def token_norm(a, b, shapes):
    written = ("output", "sum", *(() if "gradient" in shapes else ("statistics",)))
    for operand in shapes:
        if operand in ("weight", "bias"):
            yield read(operand)
        elif operand.endswith("_partials"):
            yield write(operand, (b["partial"], b["partial"] + 1))
        else:
            yield (write if operand in written else read)(operand, b["r"])
