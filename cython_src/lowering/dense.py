"""Fully connected layers."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ..plan.model import read, update, write
from .state import ImageMap, Lowering, group_bounds
from .units import Unit


def shape_of(low: Lowering, unit: Unit) -> dict[str, int]:
    """Attributes of all kernels of a fully connected layer."""
    features = math.prod(low.shapes[unit.sources[0]])
    return {"features": features, "outputs": unit.layer.out_features, "lanes": low.layout.lanes}


def fully_connected(low: Lowering, unit: Unit, again: bool) -> None:
    """Append the layer, with the activation that is joined to it."""
    name = unit.layer.name
    source, target = low.layout.features(low, unit), low.output_map(unit, again)
    weight, bias = low.parameter(f"{name}.weight"), low.parameter(f"{name}.bias")
    shape = shape_of(low, unit)
    flops, size = 2.0 * shape["features"] * shape["outputs"], 4.0 * (shape["features"] + shape["outputs"])
    blocks = []
    for g in low.layout.sample_blocks(low):
        accesses = source.read(g), read(weight), read(bias), target.write(g)
        blocks.append((group_bounds(g), accesses, flops * low.samples_in(g), size * low.samples_in(g)))
    kernel = "fc_relu_forward" if unit.activation else "fc_forward"
    operands = {"input": source.name, "weight": weight, "bias": bias, "output": target.name}
    low.loop(name, kernel, operands, blocks, name, "forward", **shape)


def fully_connected_backward(low: Lowering, unit: Unit, gradient: ImageMap) -> None:
    """Append data gradient and weight gradient."""
    if low.learns[unit.sources[0]]:
        low.layout.send_features(low, unit, gradient)
    if low.trained(unit):
        weight_gradient(low, unit, gradient)


def data_gradient(
    low: Lowering,
    unit: Unit,
    gradient: ImageMap,
    target: ImageMap,
    ending: str = "",
    masks: Mapping[str, str] | None = None,
    moved: float = 1.0,
    **attributes: int,
) -> None:
    """Append the data gradient.

    Parameters
    ----------
    ending : str
        Of the kernel's name, for what it does besides.
    masks : mapping
        Further operand -> buffer, of which a block reads its groups.
    moved : float
        Floats that are moved for each feature.
    """
    name, masks = unit.layer.name, masks or {}
    weight, shape = f"{name}.weight", shape_of(low, unit)
    flops, size = 2.0 * shape["features"] * shape["outputs"], 4.0 * shape["features"] * moved
    blocks = []
    for g in low.layout.sample_blocks(low):
        accesses = gradient.read(g), read(weight), *(read(buffer, g) for buffer in masks.values()), target.write(g)
        blocks.append((group_bounds(g), accesses, flops * low.samples_in(g), size * low.samples_in(g)))
    operands = {"gradient": gradient.name, "weight": weight, "output": target.name, **masks}
    kernel = f"fc_backward_data{ending}"
    low.loop(f"{name}.data_gradient", kernel, operands, blocks, name, "backward", **shape, **attributes)


def weight_gradient(low: Lowering, unit: Unit, gradient: ImageMap) -> None:
    """Append partial weight gradients, or a chain of loops that add to one; the last column is the bias gradient."""
    name, chain = unit.layer.name, low.options.chain
    source, shape = low.layout.features(low, unit), shape_of(low, unit)
    flops, size = 2.0 * shape["features"] * shape["outputs"], 4.0 * shape["features"]
    groups = low.layout.sample_blocks(low) if chain else low.layout.weight_blocks(low)
    count = 1 if chain else len(groups)
    stored = (count, shape["outputs"], shape["features"] + 1)
    partials = low.builder.buffer(f"{name}.partials", stored, role="gradient", carried=chain)
    for kind in ("weight", "bias"):
        low.partials[f"{name}.{kind}"] = partials, count
    for link, part in enumerate([[g] for g in groups] if chain else [groups]):
        blocks = []
        for number, g in enumerate(part):
            output = (update if link else write)(partials, (number, number + 1))
            bounds = {**group_bounds(g), "partial": number}
            samples = low.samples_in(g)
            blocks.append((bounds, (gradient.read(g), source.read(g), output), flops * samples, size * samples))
        low.loop(
            f"{name}.weight_gradient" + (f".{link}" if chain else ""),
            "fc_backward_weights",
            {"gradient": gradient.name, "input": source.name, "output": partials},
            blocks,
            name,
            "backward",
            **shape,
            accumulate=int(link > 0),
        )
