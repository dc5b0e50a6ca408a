"""What the kernels of linear layers touch, and what that costs."""

from ...plan.model import read, update, write
from ..interface.kernel_spec import size, touches


def _box(rows, columns, pitch, offset=0):
    """Region of a matrix: whole rows if it has all columns."""
    start, stop = columns
    return (rows,) if stop - start == pitch else (rows, (start + offset, stop + offset))


def _product_cost(b, inner, columns, maps):
    """Cost of a product of matrices whose result is moved as often as there are maps like it."""
    rows, columns = size(b["r"]), size(columns)
    return 2.0 * inner * rows * columns, 4.0 * (rows * inner + columns * inner + rows * columns * maps)


def _forward_cost(a, b, shapes):
    maps = 1 + ("residual" in shapes) + ("before" in shapes)
    return _product_cost(b, a["inputs"] + a["further_inputs"], b["c"], maps)


@touches("linear_forward", cost=_forward_cost)
def linear(a, b, shapes):
    output = _box(b["r"], b["c"], a["output_pitch"], a["output_offset"])
    yield from (read("input", b["r"]), write("output", *output))
    for operand in ("weight", "bias", "further_weight"):
        if operand in shapes:
            yield read(operand, b["c"])
    if "residual" in shapes:
        yield read("residual", *_box(b["r"], b["c"], shapes["residual"][1]))
    if "before" in shapes:
        yield write("before", *output)


def _data_cost(a, b, shapes):
    return _product_cost(b, a["outputs"], b["c"], 1 + a["accumulate"] + ("before" in shapes))


@touches("linear_backward_data", cost=_data_cost)
def data_gradient(a, b, shapes):
    output = _box(b["r"], b["c"], a["output_pitch"] or a["inputs"], a["output_offset"])
    yield read("gradient", *_box(b["r"], (0, a["outputs"]), a["gradient_pitch"], a["gradient_offset"]))
    yield read("weight", (0, a["outputs"]), b["c"])
    yield (update if a["accumulate"] else write)("output", *output)
    if "before" in shapes:
        yield read("before", *output)


def _weights_cost(a, b, shapes):
    rows, columns, inputs = size(b["r"]), size(b["o"]), a["inputs"]
    moved = rows * (inputs + columns) + columns * inputs * (1 + a["accumulate"])
    return 2.0 * inputs * rows * columns, 4.0 * moved


@touches("linear_backward_weights", cost=_weights_cost)
def weight_gradient(a, b, shapes):
    yield read("gradient", *_box(b["r"], b["o"], a["gradient_pitch"], a["gradient_offset"]))
    yield read("input", *_box(b["r"], (0, a["inputs"]), a["input_pitch"] or a["inputs"], a["input_offset"]))
    for operand in ("weights", "bias"):
        if operand in shapes:
            yield (update if a["accumulate"] else write)(operand, (b["partial"], b["partial"] + 1), b["o"])
