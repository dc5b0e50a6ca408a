"""What the pooling kernels touch, and what that costs."""

from ...plan.model import read, write
from ..interface.kernel_spec import size, touches
from ..maps import nchw
from ..maps.nhwc import Window, operand_map


def _ends(a, shapes):
    first = "gradient" if "gradient" in shapes else "input"
    return operand_map(first, "in", a, shapes), operand_map("output", "out", a, shapes)


def _windows_cost(a, b, shapes):
    source, target = _ends(a, shapes)
    large, small = (target, source) if "gradient" in shapes else (source, target)
    pixels = large.height * large.width + 1.25 * small.height * small.width
    return 0.0, 4.0 * pixels * target.pitch * size(b["n"], b["y"]) / target.height


@touches("nhwc_pool", cost=_windows_cost)
def pool(a, b, shapes):
    """Rows of the interior that windows read; the kernels treat the border themselves."""
    source, target = _ends(a, shapes)
    first, last = Window.of(a).input_rows(b["y"])
    yield source.read(b["n"], (max(first, 0), min(last, source.height)))
    yield target.write(b["n"], b["y"])
    if "index" in shapes:
        yield write("index", b["n"], b["y"])


@touches("nhwc_pool_backward", cost=_windows_cost)
def pool_backward(a, b, shapes):
    gradient, target = _ends(a, shapes)
    first, last = Window.of(a).gradient_rows(b["y"])
    rows = max(first, 0), min(last, gradient.height)
    yield target.write(b["n"], b["y"], accumulate=a["accumulate"])
    if rows[0] < rows[1]:
        yield gradient.read(b["n"], rows)
        if "index" in shapes:
            yield read("index", b["n"], rows)


def _global_cost(a, b, shapes):
    source = operand_map("input", "in", a, shapes)
    return 0.0, 4.0 * source.height * source.width * source.pitch * size(b["n"])


@touches("nhwc_global_pool", cost=_global_cost)
def global_pool(a, b, shapes):
    return operand_map("input", "in", a, shapes).read(b["n"]), write("output", b["n"])


def _global_backward_cost(a, b, shapes):
    target = operand_map("output", "out", a, shapes)
    return 0.0, 4.0 * target.width * target.pitch * size(b["n"], b["y"])


@touches("nhwc_global_pool_backward", cost=_global_backward_cost)
def global_pool_backward(a, b, shapes):
    target = operand_map("output", "out", a, shapes)
    return read("gradient", b["n"]), target.write(b["n"], b["y"], accumulate=a["accumulate"])


def _nchw_cost(a, b, shapes):
    """Of a pixel of the small map five are moved."""
    width = min(a["in_width"], a["out_width"])
    return 0.0, 20.0 * width * a["in_lanes"] * size(b["g"], b["c"], b["y"])


@touches("pool_forward", cost=_nchw_cost)
def nchw_pool(a, b, shapes):
    source, target = nchw.operand_map("input", "in", a, shapes), nchw.operand_map("output", "out", a, shapes)
    yield read("input", b["g"], b["c"], source.interior_rows(*nchw.scaled(b["y"], 2)))
    yield write("output", b["g"], b["c"], target.written_rows(*b["y"]))
    yield write("index", b["g"], b["c"], b["y"])


@touches("pool_backward", cost=_nchw_cost)
def nchw_pool_backward(a, b, shapes):
    source, target = nchw.operand_map("gradient", "in", a, shapes), nchw.operand_map("output", "out", a, shapes)
    yield read("gradient", b["g"], b["c"], source.interior_rows(*b["y"]))
    yield read("index", b["g"], b["c"], b["y"])
    yield write("output", b["g"], b["c"], target.written_rows(*nchw.scaled(b["y"], 2)))
