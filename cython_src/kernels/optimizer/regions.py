"""What the optimizers' kernels touch, and what that costs."""

import math

from ...plan.model import read, update, write
from ..interface.kernel_spec import size, touches


def _rows(a, b):
    """Range of the leading axis of a parameter."""
    return tuple(element // a["row_length"] for element in b["e"])


def _summed(a, rows, shapes):
    """The sum of partial gradients, or the gradient alone, which may be the only partial one."""
    whole = math.prod(shapes["gradient"]) == shapes["gradient"][0] * a["row_length"]
    box = (rows,) if whole else ((0, 1), rows)
    if "partials" not in shapes:
        return [read("gradient", *box)]
    return [read("partials", (0, a["num_partials"]), rows), write("gradient", *box)]


def _step_cost(a, b, shapes):
    moved = a["num_partials"] + 1 if "partials" in shapes else 1
    states = sum(operand in shapes for operand in ("velocity", "first_moment", "second_moment"))
    elements = size(b["e"]) + (size(_rows(a, b)) if "bias" in shapes else 0)
    return 0.0, 4.0 * (moved + 2 + 2 * states) * elements


@touches("optimizer_sgd", "optimizer_adam", cost=_step_cost)
def step(a, b, shapes):
    rows = _rows(a, b)
    yield from _summed(a, rows, shapes)
    for operand in shapes:
        if operand in ("learning_rates", "scale"):
            yield read(operand)
        elif operand == "bias_gradient":
            yield write(operand, rows)
        elif operand not in ("partials", "gradient"):
            yield update(operand, rows)


@touches("gradient_sum", cost=lambda a, b, shapes: (0.0, 4.0 * (a["num_partials"] + 1) * size(b["e"])))
def gradient_sum(a, b, shapes):
    return [*_summed(a, _rows(a, b), shapes), write("squares", (b["partial"], b["partial"] + 1))]


@touches("gradient_scale", cost=lambda a, b, shapes: (0.0, 4.0 * a["num_squares"]))
def gradient_scale(a, b, shapes):
    kinds = {"squares": read, "scale": write, "norm_log": update}
    return [kinds[operand](operand) for operand in shapes]
