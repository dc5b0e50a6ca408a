"""Fully connected layers."""

from __future__ import annotations

import math

from ..networks.layers import Linear
from .state import Loops, Lowering, TensorMap
from .units import Unit


def shape_of(low: Lowering, unit: Unit) -> dict[str, int]:
    """Attributes of all kernels of a fully connected layer."""
    features = math.prod(low.shapes[unit.sources[0]])
    return {"features": features, "outputs": unit.layer.out_features, "lanes": low.layout.lanes}


def fully_connected(low: Lowering, unit: Unit, recomputed: bool) -> None:
    """Append the layer, with the activation that is joined to it."""
    name = unit.layer.name
    operands = {"input": low.layout.features(low, unit)}
    operands |= {kind: low.parameter(f"{name}.{kind}") for kind in ("weight", "bias")}
    operands["output"] = low.output_map(unit, recomputed)
    shape = {**shape_of(low, unit), "activation": unit.activation}
    low.append(unit, "", "fc_forward", operands, low.sample_bounds(), **shape)


def fully_connected_backward(low: Lowering, unit: Unit, gradient: TensorMap) -> None:
    """Append data gradient and weight gradient."""
    if low.learns[unit.sources[0]]:
        low.layout.send_features(low, unit, gradient)
    if low.trained(unit.layer):
        weight_gradient(low, unit, gradient)


def data_gradient(
    low: Lowering, unit: Unit, gradient: TensorMap, target: TensorMap, **masks: str | TensorMap | None
) -> None:
    """Append the data gradient; `masks`: what sends it past a ReLU or a pooling, by operand."""
    operands = {"gradient": gradient, "weight": f"{unit.layer.name}.weight", "output": target, **masks}
    low.append(unit, "data_gradient", "fc_backward_data", operands, low.sample_bounds(), **shape_of(low, unit))


def weight_gradient(low: Lowering, unit: Unit, gradient: TensorMap) -> None:
    """Append partial weight gradients, or a chain of loops that add to one; the last column is the bias gradient."""
    name, chain, shape = unit.layer.name, low.options.chain, shape_of(low, unit)
    parts = [[block] for block in low.sample_bounds(None if chain else low.layout.weight_blocks(low))]
    count = 1 if chain else len(parts)
    stored = (count, shape["outputs"], shape["features"] + 1)
    partials = low.builder.buffer(f"{name}.partials", stored, role="gradient", carried=chain)
    for kind in ("weight", "bias"):
        low.partials[f"{name}.{kind}"] = partials, count
    operands = {"gradient": gradient, "input": low.layout.features(low, unit), "output": partials}
    low.weight_loops(unit, name, "fc_backward_weights", operands, parts, **shape)


LOOPS = {Linear: Loops(fully_connected, fully_connected_backward, masks=True)}
