"""What kernels touch that treat each element alone, and what that costs."""

from ...plan.model import read, write
from ..interface.kernel_spec import size, touches
from ..maps import nchw, nhwc

WRITTEN = ("output", "branch")  # operands; all other maps are read


def pixels_cost(a, b, shapes, maps=None):
    """Bytes of the maps of a block, padding channels included."""
    maps = len(shapes) if maps is None else maps
    return 0.0, 4.0 * a["in_width"] * a["in_pitch"] * maps * size(b["n"], b["y"])


@touches("nhwc_activation", "nhwc_activation_backward", "nhwc_add", "nhwc_dropout", cost=pixels_cost)
def pixels(a, b, shapes, maps=None):
    """Rows of maps that differ in their halos alone; `maps`: those of the operands that are maps."""
    for operand in shapes if maps is None else maps:
        m = nhwc.operand_map(operand, "in", a, shapes)
        if operand not in WRITTEN:
            yield m.read(b["n"], b["y"])
        else:
            adds = a["accumulate_branch"] if operand == "branch" else a.get("accumulate") or "previous" in shapes
            yield m.write(b["n"], b["y"], accumulate=adds)


def _nchw_cost(a, b, shapes):
    return 0.0, 8.0 * a["out_width"] * a["out_lanes"] * size(b["g"], b["c"], b["y"])


@touches("relu_forward", "relu_backward", cost=_nchw_cost)
def nchw_pixels(a, b, shapes):
    prefixes = {"input": "in", "gradient": "in", "output": "out"}
    for operand in shapes:
        m = nchw.operand_map(operand, prefixes.get(operand, operand), a, shapes)
        if operand == "output":
            yield write(operand, b["g"], b["c"], m.written_rows(*b["y"]))
        else:
            yield read(operand, b["g"], b["c"], m.interior_rows(*b["y"]))


@touches("rows_add", "rows_activation", "rows_activation_backward")
def rows(a, b, shapes):
    for operand in shapes:
        yield (write if operand == "output" else read)(operand, b["r"])
