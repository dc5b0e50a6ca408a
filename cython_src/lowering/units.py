"""Layers that are joined into one unit, because a loop of its own would only move bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..kernels.interface.arguments import ACTIVATIONS
from ..networks.layers import Add, BatchNorm, Conv2d, Layer, LayerNorm, MaxPool, Network, NoNorm


def activation_code(layer: Layer) -> int:
    """Return the code by which kernels know the activation that a layer is; 0: none."""
    return ACTIVATIONS.index(layer.activation)


@dataclass
class Unit:
    """A layer with what is joined to it."""

    layer: Layer  # the one that gives its name to loops and parameters
    sources: tuple[str, ...]  # tensors it reads; a tensor has the name of the last layer of the unit that writes it
    target: str
    activation: int = 0  # its code, see `activation_code`
    pooling: MaxPool | None = None  # of a convolution, after its activation
    shortcut: str = ""  # what a norm, a convolution or a linear layer adds
    shortcut_norm: str = ""  # norm of the shortcut that is applied on the fly; `shortcut` is then what that norm reads
    applied: bool = True  # writes its result; not where a norm's reader applies it, or a norm alone reads a sum
    statistics: str = ""  # the norm for which a convolution sums
    normalises: bool = False  # depthwise: applies the norm that makes its source, which then writes no map
    joins_backward: bool = False  # depthwise: its backward pass includes that of the norm that reads it
    joins_norm: bool = False  # a sum: the norm of tokens that is the first to read it computes it

    @property
    def inputs(self) -> tuple[str, ...]:
        """Tensors to which it sends a gradient."""
        shortcut = self.shortcut_norm or self.shortcut
        return (*self.sources, shortcut) if shortcut else self.sources


# Whether one loop computes these layers, one after the other, where the mapping says which layers read each.
CanJoin = Callable[[Sequence[Layer], Mapping[str, Sequence[Layer]]], bool]


def readers_of(units: Sequence[Unit]) -> dict[str, list[Unit]]:
    """Return the units that read each tensor, in their order."""
    readers: dict[str, list[Unit]] = {}
    for unit in units:
        for name in unit.inputs:
            readers.setdefault(name, []).append(unit)
    return readers


def units_of(
    spec: Network, fusion: frozenset[str], training: bool, can_join: CanJoin, sums_weights: Callable[[Layer], bool]
) -> list[Unit]:
    """Return the units of a network in the order of their last layers; `sums_weights`: whether one loop can send back
    both gradients of a layer, that of its weights as a sum."""
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

    def following(name: str, kinds) -> Layer | None:
        """The only reader of a tensor, if it is of these kinds."""
        after = consumers.get(name, [])
        return after[0] if len(after) == 1 and isinstance(after[0], kinds) else None

    for layer in spec.layers:
        if layer.name in taken:
            continue
        unit = Unit(layer, inputs[layer.name], layer.name)
        if layer.name in unapplied:
            unit.applied = False
            units.append(unit)
            continue
        add = following(layer.name, Add) if "residual" in fusion else None
        if add and add.name not in taken and add.inputs[0] != add.inputs[1] and can_join((layer, add), consumers):
            unit.shortcut = next(name for name in add.inputs if name != unit.target)
            other = layers[unit.shortcut]
            alone = isinstance(layer, BatchNorm) and len(consumers[unit.shortcut]) == 1
            if isinstance(other, BatchNorm) and alone:
                unit.shortcut_norm, unit.shortcut = unit.shortcut, inputs[unit.shortcut][0]
                unapplied.add(other.name)
            unit.target = add.name
            taken.add(add.name)
        activation = following(unit.target, Layer)
        activation = activation if activation and activation_code(activation) else None
        pool = following(activation.name, MaxPool) if activation and "pooling" in fusion else None
        if pool and not unit.shortcut and can_join((layer, activation, pool), consumers):
            unit.pooling = pool
        elif not activation or "activation" not in fusion or not can_join((layer, activation), consumers):
            activation = None
        if activation:
            unit.activation = activation_code(activation)
            unit.target = unit.pooling.name if unit.pooling else activation.name
            taken |= {activation.name, unit.target}
        if isinstance(layer, Conv2d) and not unit.activation and "statistics" in fusion:
            norms = [after for after in consumers.get(unit.target, []) if isinstance(after, BatchNorm)]
            unit.statistics = norms[0].name if norms else ""
        if isinstance(layer, Add) and not unit.activation and "norm" in fusion:
            unit.joins_norm = isinstance(consumers[unit.target][0], LayerNorm | NoNorm)
            unit.applied = not unit.joins_norm or training or len(consumers[unit.target]) > 1
        units.append(unit)
    units.sort(key=lambda unit: position[unit.target])
    depthwise = {
        layer.name for layer, before, _ in spec.shapes() if isinstance(layer, Conv2d) and layer.is_depthwise(before)
    }
    readers, producer = readers_of(units), {unit.target: unit for unit in units}
    for unit in units:
        if unit.layer.name in depthwise and readers[unit.sources[0]] == [unit]:
            before, after = producer.get(unit.sources[0]), readers.get(unit.target, [])
            unit.joins_backward = (
                "depthwise" in fusion and training and _joins(unit, after) and sums_weights(unit.layer)
            )
            if before and isinstance(before.layer, BatchNorm) and not before.shortcut and "normalise" in fusion:
                unit.normalises = unit.joins_backward or not training
                before.applied = not unit.normalises
    return units


def _joins(unit: Unit, after: Sequence[Unit]) -> bool:
    """Return whether the backward pass of a depthwise convolution can include that of what reads it, one norm."""
    plain = not unit.layer.bias and not unit.activation
    return (
        plain
        and len(after) == 1
        and isinstance(after[0].layer, BatchNorm)
        and after[0].applied
        and not after[0].shortcut
    )
