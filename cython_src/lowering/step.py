"""The order of a step: units forward, the loss, units backward with what is recomputed, updates."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from .gradients import before_activation, set_gradient
from .state import Lowering
from .units import Unit
from .updates import append_updates


def forward(low: Lowering, unit: Unit, recomputed: bool = False) -> None:
    """Append the loops of a unit; `recomputed`: into buffers of their own. Features alone are small, and kept."""
    if recomputed and len(low.shapes[unit.target]) == 1:
        return
    low.layout.loops[type(unit.layer)].forward(low, unit, recomputed)
    if not recomputed and unit.applied:
        low.aliases[unit.target] = low.maps[unit.target].natural()


def backward(low: Lowering, unit: Unit) -> None:
    """Append the loops that send a unit's gradient back. Its own gradient is complete: all readers came before."""
    low.unfinished.discard(unit.target)
    if low.learns[unit.target]:
        low.layout.loops[type(unit.layer)].backward(low, unit, before_activation(low, unit))


def segments(low: Lowering, units: Sequence[Unit]) -> list[Sequence[Unit]]:
    """Cut units where a single tensor leads from one part to the next: such a tensor is kept, the others of a part
    are recomputed before its backward pass. About as many parts as units in a part; without recomputation,
    and in the last part, every unit is a part of its own."""
    if not low.options.recompute:
        return [[unit] for unit in units]
    last_reader = {name: i for i, unit in enumerate(units) for name in (*unit.inputs, unit.shortcut)}
    open_until, cuts = last_reader["input"], []
    for i, unit in enumerate(units):
        if open_until <= i and len(low.shapes[unit.target]) > 1 and unit.applied:
            cuts.append(i + 1)
        open_until = max(open_until, last_reader.get(unit.target, i))
    wanted = math.isqrt(len(units))
    chosen: list[int] = []
    for cut in cuts:
        if cut - (chosen[-1] if chosen else 0) >= wanted:
            chosen.append(cut)
    result = [units[start:stop] for start, stop in itertools.pairwise((0, *chosen))]
    return [*result, *([unit] for unit in units[chosen[-1] if chosen else 0 :])]


def append_step(low: Lowering) -> None:
    """Append the loops of one step."""
    ends = low.layout.ends
    labels = ends.load(low)
    *units, head = low.units
    for unit in units:
        forward(low, unit)
    if low.options.phase == "forward":
        ends.answer(low, head.layer)
    elif low.options.phase == "evaluate":
        ends.loss(low, labels, head.layer, "forward")
    else:
        gradient = ends.loss(low, labels, head.layer, "backward")
        set_gradient(low, low.logits, gradient)
        low.aliases[f"{low.logits}.grad"] = gradient.natural()
        low.unfinished = {unit.target for unit in units}
        for segment in reversed(segments(low, units)):
            if any(low.learns[unit.target] for unit in segment):
                for unit in segment[:-1]:
                    forward(low, unit, recomputed=True)
            for unit in reversed(segment):
                backward(low, unit)
        append_updates(low)
