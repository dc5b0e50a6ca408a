"""The order of a step: units forward, the loss, units backward with what is computed again, updates."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from ...errors import UsageError
from ...networks.layers import (
    Add,
    AveragePool,
    BatchNorm,
    Convolution,
    Dropout,
    FullyConnected,
    GlobalPool,
    MaxPool,
    NetworkSpec,
    ReLU,
    ReLU6,
    Softmax,
)
from ...plan.model import PlanBuilder
from .convolutions import convolution, convolution_backward
from .dense import fully_connected, fully_connected_backward
from .elementwise import activation, activation_backward, add, dropout, dropout_backward
from .ends import load, loss, softmax
from .gradients import masked, pass_on, set_gradient
from .norms import norm, norm_backward
from .pooling import global_pool, global_pool_backward, pool, pool_backward
from .state import ChannelOptions, Lowering
from .units import Unit
from .updates import append_updates


def forward(low: Lowering, unit: Unit, again: bool = False) -> None:
    """Loops of a unit; `again`: of its recomputation, into buffers of their own. What has no pixels is small and kept."""
    if again and len(low.shapes[unit.target]) == 1:
        return
    match unit.layer:
        case Convolution():
            convolution(low, unit, again)
        case BatchNorm():
            norm(low, unit, again)
        case Add():
            add(low, unit, again)
        case ReLU() | ReLU6():
            activation(low, unit, again)
        case MaxPool() | AveragePool():
            pool(low, unit, again)
        case GlobalPool():
            global_pool(low, unit)
        case Dropout():
            dropout(low, unit, again)
        case FullyConnected():
            fully_connected(low, unit)
    if not again and unit.applied:
        low.aliases[unit.target] = low.maps[unit.target].natural()


def backward(low: Lowering, unit: Unit) -> None:
    """Loops that send a unit's gradient back. Its own gradient is complete: all readers came before."""
    low.unfinished.discard(unit.target)
    if not low.learns[unit.target]:
        return
    gradient = low.gradients[unit.target]
    match unit.layer:
        case Convolution():
            convolution_backward(low, unit, gradient)
        case BatchNorm():
            norm_backward(low, unit, gradient)
        case Add():
            gradient = masked(low, unit, gradient)
            for name in unit.sources:
                pass_on(low, unit, name, gradient)
        case ReLU() | ReLU6():
            activation_backward(low, unit, gradient)
        case MaxPool() | AveragePool():
            pool_backward(low, unit, gradient)
        case GlobalPool():
            global_pool_backward(low, unit, gradient)
        case Dropout():
            dropout_backward(low, unit, gradient)
        case FullyConnected():
            fully_connected_backward(low, unit, gradient)


def segments(low: Lowering, units: Sequence[Unit]) -> list[Sequence[Unit]]:
    """Cut units where a single tensor leads from one part to the next: such a tensor is kept, the others of a part
    are computed again before its backward pass. About as many parts as units in a part; without recomputation,
    and in the last part, every unit is a part of its own."""
    if not low.options.recompute:
        return [[unit] for unit in units]
    last_reader = {name: i for i, unit in enumerate(units) for name in (*unit.inputs, unit.shortcut)}
    open_until, cuts = last_reader["input"], []
    for i, unit in enumerate(units):
        if open_until <= i and len(low.shapes[unit.target]) == 3 and unit.applied:
            cuts.append(i + 1)
        open_until = max(open_until, last_reader.get(unit.target, i))
    wanted = math.isqrt(len(units))
    chosen: list[int] = []
    for cut in cuts:
        if cut - (chosen[-1] if chosen else 0) >= wanted:
            chosen.append(cut)
    result = [units[start:stop] for start, stop in itertools.pairwise((0, *chosen))]
    return [*result, *([unit] for unit in units[chosen[-1] if chosen else 0 :])]


def lower_channels(spec: NetworkSpec, options: ChannelOptions, builder: PlanBuilder) -> None:
    """Append the loops of one step to a builder, and set its attribute "aliases"."""
    low = Lowering(spec, options, builder)
    if not isinstance(spec.layers[-1], Softmax) or len(low.shapes[low.units[-1].sources[0]]) != 1:
        raise UsageError(
            f"a network must end with Softmax after a layer without pixels, {spec.name!r} does not; add FullyConnected "
            f"or GlobalPool, and Softmax"
        )
    labels = load(low)
    *units, head = low.units
    for unit in units:
        forward(low, unit)
    logits = low.maps[head.sources[0]]
    if options.phase == "forward":
        softmax(low, logits, head)
    elif options.phase == "evaluate":
        loss(low, logits, labels, head, "forward")
    else:
        gradient = loss(low, logits, labels, head, "backward")
        set_gradient(low, head.sources[0], gradient)
        low.aliases[f"{head.sources[0]}.grad"] = gradient.natural()
        low.unfinished = {unit.target for unit in units}
        for segment in reversed(segments(low, units)):
            if any(low.learns[unit.target] for unit in segment):
                for unit in segment[:-1]:
                    forward(low, unit, again=True)
            for unit in reversed(segment):
                backward(low, unit)
        append_updates(low)
    builder.attributes["aliases"] = low.aliases
