"""Activations that no linear layer includes."""

from __future__ import annotations

from ....networks.layers import GELU, ReLU, Sigmoid
from ...elementwise import activation
from ...gradients import sent_back
from ...state import Loops, Lowering
from ...units import Unit, activation_code
from .maps import TokenMap


def activation_backward(low: Lowering, unit: Unit, gradient: TokenMap) -> None:
    """Append the gradient, by the argument of a GELU or the result of another."""
    values = low.maps[unit.sources[0] if isinstance(unit.layer, GELU) else unit.target]
    with sent_back(low, unit, unit.sources[0]) as target:
        maps = {"gradient": gradient, "values": values, "output": target}
        code = activation_code(unit.layer)
        low.layout.elementwise(low, unit, "gradient", "activation_backward", maps, activation=code)


LOOPS = dict.fromkeys((ReLU, GELU, Sigmoid), Loops(activation, activation_backward))
