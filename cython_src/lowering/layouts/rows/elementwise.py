"""Loops that treat each token alone: sums and activations."""

from __future__ import annotations

from collections.abc import Mapping

from ....networks.layers import GELU, ReLU
from ....plan.builder import block_bounds
from ...gradients import sent_back
from ...state import Loops, Lowering, loop_name, phase_of
from ...units import Unit
from .blocks import row_blocks
from .maps import TokenMap


def rowwise(low: Lowering, name: str, kernel: str, unit: Unit, phase: str, maps: Mapping[str, TokenMap]) -> None:
    """Append a loop over the rows of matrices of one shape; `maps`: operand -> map, "output" is written."""
    target = maps["output"]
    bounds = block_bounds(r=row_blocks(low, target))
    low.loop(name, kernel, maps, bounds, unit.layer.name, phase, features=target.features)


def relu(low: Lowering, unit: Unit, again: bool) -> None:
    """Append a ReLU that no linear layer includes."""
    maps = {"input": low.maps[unit.sources[0]], "output": low.output_map(unit, again)}
    rowwise(low, loop_name(unit, again), "rows_relu_forward", unit, phase_of(again), maps)


def relu_backward(low: Lowering, unit: Unit, gradient: TokenMap) -> None:
    """Append its gradient."""
    with sent_back(low, unit, unit.sources[0]) as target:
        maps = {"gradient": gradient, "activations": low.maps[unit.target], "output": target}
        rowwise(low, f"{unit.layer.name}.gradient", "rows_relu_backward", unit, "backward", maps)


def gelu(low: Lowering, unit: Unit, again: bool) -> None:
    """Append a GELU that no linear layer includes."""
    maps = {"input": low.maps[unit.sources[0]], "output": low.output_map(unit, again)}
    rowwise(low, loop_name(unit, again), "gelu_forward", unit, phase_of(again), maps)


def gelu_backward(low: Lowering, unit: Unit, gradient: TokenMap) -> None:
    """Append its gradient."""
    with sent_back(low, unit, unit.sources[0]) as target:
        maps = {"gradient": gradient, "before": low.maps[unit.sources[0]], "output": target}
        rowwise(low, f"{unit.layer.name}.gradient", "gelu_backward", unit, "backward", maps)


LOOPS = {ReLU: Loops(relu, relu_backward), GELU: Loops(gelu, gelu_backward)}
