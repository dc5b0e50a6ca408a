"""Layers that treat each element alone: sums, activations, dropout."""

from __future__ import annotations

from ..networks.layers import Add, Dropout
from .gradients import pass_on, sent_back, sent_to
from .state import Loops, Lowering, TensorMap, repeated
from .units import Unit, activation_code


def add(low: Lowering, unit: Unit, recomputed: bool) -> None:
    """Append the sum of two tensors."""
    first, second = (low.maps[name] for name in unit.sources)
    maps = {"first": first, "second": second, "output": low.output_map(unit, recomputed)}
    low.layout.elementwise(low, unit, repeated(recomputed), "add", maps, activation=unit.activation)


def add_backward(low: Lowering, unit: Unit, gradient: TensorMap) -> None:
    """Hand the gradient to both inputs."""
    for name in unit.sources:
        pass_on(low, unit, name, gradient)


def activation(low: Lowering, unit: Unit, recomputed: bool) -> None:
    """Append an activation that no other unit includes."""
    maps = {"input": low.maps[unit.sources[0]], "output": low.output_map(unit, recomputed)}
    code = activation_code(unit.layer)
    low.layout.elementwise(low, unit, repeated(recomputed), "activation", maps, activation=code)


def activation_backward(low: Lowering, unit: Unit, gradient: TensorMap) -> None:
    """Append the gradient where the activation lets it pass."""
    with sent_to(low, unit, unit.sources[0], gradient) as (target, accumulate):
        maps = {"gradient": gradient, "activations": low.maps[unit.target], "output": target}
        own = {"activation": activation_code(unit.layer), "accumulate": int(accumulate)}
        low.layout.elementwise(low, unit, "gradient", "activation_backward", maps, **own)


def dropout(low: Lowering, unit: Unit, recomputed: bool) -> None:
    """Append dropout; in other phases than training networks have none."""
    _dropout_loop(low, unit, repeated(recomputed), low.maps[unit.sources[0]], low.output_map(unit, recomputed))


def dropout_backward(low: Lowering, unit: Unit, gradient: TensorMap) -> None:
    """Append the same loop over the gradient."""
    with sent_back(low, unit, unit.sources[0]) as target:
        _dropout_loop(low, unit, "gradient", gradient, target)


def _dropout_loop(low: Lowering, unit: Unit, what: str, source: TensorMap, target: TensorMap) -> None:
    """Append the kernel of both directions: its random numbers are a function of place and iteration."""
    maps = {"input": source, "output": target}
    own = {"seed": low.options.dropout_seed, "layer": low.units.index(unit), "rate": unit.layer.rate}
    low.layout.elementwise(low, unit, what, "dropout", maps, **own)


ACTIVATION = Loops(activation, activation_backward)
LOOPS = {Add: Loops(add, add_backward), Dropout: Loops(dropout, dropout_backward)}
