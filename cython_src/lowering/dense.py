"""Fully connected layers."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ..networks.layers import FullyConnected
from .state import Loops, Lowering, TensorMap
from .units import Unit


def shape_of(low: Lowering, unit: Unit) -> dict[str, int]:
    """Attributes of all kernels of a fully connected layer."""
    features = math.prod(low.shapes[unit.sources[0]])
    return {"features": features, "outputs": unit.layer.out_features, "lanes": low.layout.lanes}


def fully_connected(low: Lowering, unit: Unit, again: bool) -> None:
    """Append the layer, with the activation that is joined to it."""
    name = unit.layer.name
    operands = {"input": low.layout.features(low, unit)}
    operands |= {kind: low.parameter(f"{name}.{kind}") for kind in ("weight", "bias")}
    operands["output"] = low.output_map(unit, again)
    kernel = "fc_relu_forward" if unit.activation else "fc_forward"
    low.loop(name, kernel, operands, low.sample_bounds(), name, "forward", **shape_of(low, unit))


def fully_connected_backward(low: Lowering, unit: Unit, gradient: TensorMap) -> None:
    """Append data gradient and weight gradient."""
    if low.learns[unit.sources[0]]:
        low.layout.send_features(low, unit, gradient)
    if low.trained(unit):
        weight_gradient(low, unit, gradient)


def data_gradient(
    low: Lowering,
    unit: Unit,
    gradient: TensorMap,
    target: TensorMap,
    ending: str = "",
    masks: Mapping[str, str | TensorMap] | None = None,
) -> None:
    """Append the data gradient.

    Parameters
    ----------
    ending : str
        Of the kernel's name, for what it does besides.
    masks : mapping
        Further operands.
    """
    name = unit.layer.name
    operands = {"gradient": gradient, "weight": f"{name}.weight", "output": target, **(masks or {})}
    kernel, shape = f"fc_backward_data{ending}", shape_of(low, unit)
    low.loop(f"{name}.data_gradient", kernel, operands, low.sample_bounds(), name, "backward", **shape)


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


LOOPS = {FullyConnected: Loops(fully_connected, fully_connected_backward)}
