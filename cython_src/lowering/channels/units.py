"""Layers that are joined into one unit, because a loop of its own would only move bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...networks.layers import Add, BatchNorm, Convolution, Dropout, Layer, NetworkSpec, ReLU, ReLU6

ACTIVATIONS = {ReLU: 1, ReLU6: 2}


def _can_add(convolution: Convolution, add: Add, layers: Mapping, consumers: Mapping[str, list[Layer]]) -> bool:
    """Whether a convolution can add a shortcut to its result: then the two maps must be alike, without halo."""
    shortcut = next(name for name in add.inputs if name != convolution.name or add.inputs[0] == add.inputs[1])
    readers = [*consumers[shortcut], *consumers.get(add.name, ())]
    for reader in consumers.get(add.name, ()):
        if isinstance(reader, ReLU | ReLU6):
            readers += consumers.get(reader.name, ())
    needs_halo = any(isinstance(r, Dropout) or (isinstance(r, Convolution) and r.padding) for r in readers)
    return layers[shortcut] is not None and convolution.groups == 1 and not needs_halo


@dataclass
class Unit:
    """A layer with what is joined to it.

    Attributes
    ----------
    layer : Layer
        The one that gives its name to loops and parameters.
    sources : tuple of str
        Tensors it reads; a tensor has the name of the last layer of the unit that writes it.
    target : str
    activation : int
        0 none, 1 ReLU, 2 ReLU6.
    shortcut : str
        What a norm or a convolution adds.
    shortcut_norm : str
        The norm of the shortcut that is applied on the fly; `shortcut` is then what that norm reads.
    applied : bool
        Of a norm: whether it writes a map; false where it is applied by the unit that reads its result.
    statistics : str
        The norm for which a convolution sums.
    normalises : bool
        Of a depthwise convolution: it applies the norm that makes its source, which then writes no map.
    joins_backward : bool
        Of a depthwise convolution: its backward pass includes that of the norm that reads it.
    """

    layer: Layer
    sources: tuple[str, ...]
    target: str
    activation: int = 0
    shortcut: str = ""
    shortcut_norm: str = ""
    applied: bool = True
    statistics: str = ""
    normalises: bool = False
    joins_backward: bool = False

    @property
    def inputs(self) -> tuple[str, ...]:
        """Tensors to which it sends a gradient."""
        shortcut = self.shortcut_norm or self.shortcut
        return (*self.sources, shortcut) if shortcut else self.sources


def join_layers(spec: NetworkSpec, fusion: frozenset[str]) -> list[Unit]:
    """Units in the order of their last layers."""
    inputs = spec.inputs()
    consumers: dict[str, list[Layer]] = {}
    for layer in spec.layers:
        for name in inputs[layer.name]:
            consumers.setdefault(name, []).append(layer)
    position = {layer.name: i for i, layer in enumerate(spec.layers)}
    layers = {layer.name: layer for layer in spec.layers} | {"input": None}
    taken: set[str] = set()
    unapplied: set[str] = set()
    units: list[Unit] = []
    for layer in spec.layers:
        if layer.name in taken:
            continue
        unit = Unit(layer, inputs[layer.name], layer.name)
        if layer.name in unapplied:
            unit.applied = False
            units.append(unit)
            continue

        def following(kinds, unit=unit) -> Layer | None:
            after = consumers.get(unit.target, [])
            return after[0] if len(after) == 1 and isinstance(after[0], kinds) else None

        add = following(Add) if isinstance(layer, BatchNorm | Convolution) and "residual" in fusion else None
        if add and isinstance(layer, Convolution) and not _can_add(layer, add, layers, consumers):
            add = None
        if add and add.name not in taken and add.inputs[0] != add.inputs[1]:
            unit.shortcut = next(name for name in add.inputs if name != unit.target)
            other = layers[unit.shortcut]
            alone = isinstance(layer, BatchNorm) and len(consumers[unit.shortcut]) == 1
            if isinstance(other, BatchNorm) and alone:
                unit.shortcut_norm, unit.shortcut = unit.shortcut, inputs[unit.shortcut][0]
                unapplied.add(other.name)
            unit.target = add.name
            taken.add(add.name)
        joins = isinstance(layer, BatchNorm | Add | Convolution)
        if joins and "activation" in fusion and (activation := following((ReLU, ReLU6))):
            unit.activation = ACTIVATIONS[type(activation)]
            unit.target = activation.name
            taken.add(activation.name)
        if isinstance(layer, Convolution) and not unit.activation and "statistics" in fusion:
            norms = [after for after in consumers.get(unit.target, []) if isinstance(after, BatchNorm)]
            unit.statistics = norms[0].name if norms else ""
        units.append(unit)
    return sorted(units, key=lambda unit: position[unit.target])
