"""Maps with pixels as the vectors of features that fully connected layers read."""

from __future__ import annotations

import math

from ...dense import data_gradient
from ...gradients import gradient_map, sent_back
from ...state import Lowering, group_bounds
from ...units import Unit
from .maps import Vector
from .pixels import image_blocks, pixel_blocks


def flattened(low: Lowering, unit: Unit) -> Vector:
    """Return what a fully connected layer reads; a map with pixels is copied in the order channel, row, column."""
    source = low.maps[unit.sources[0]]
    if isinstance(source, Vector):
        return source
    name = f"{unit.sources[0]}.flat"
    if name not in low.maps:
        flat = low.maps[name] = low.keep(_vector(low, unit, name))
        blocks = []
        for n in image_blocks(low):
            size = 8.0 * flat.channels * (n[1] - n[0])
            blocks.append((group_bounds(n), (source.read(n), flat.write(n)), 0.0, size))
        operands, attributes = {"input": source.name, "output": name}, source.attributes("in")
        low.loop(name, "channels_flatten", operands, blocks, unit.layer.name, "forward", **attributes)
    return low.maps[name]


def _vector(low: Lowering, unit: Unit, name: str) -> Vector:
    return Vector(name, low.batch, math.prod(low.shapes[unit.sources[0]]), 1, 1)


def send_flattened(low: Lowering, unit: Unit, gradient: Vector) -> None:
    """Append the data gradient of a fully connected layer, and its way back to a map with pixels."""
    tensor = unit.sources[0]
    if isinstance(low.maps[tensor], Vector):
        with sent_back(low, unit, tensor) as target:
            data_gradient(low, unit, gradient, target)
        return
    flat = low.keep(_vector(low, unit, f"{unit.layer.name}.flat_gradient"), "gradient")
    data_gradient(low, unit, gradient, flat)
    target, accumulate = gradient_map(low, tensor)
    blocks = []
    size = 4.0 * flat.channels / target.height * (2 + accumulate)
    for n, y, bounds in pixel_blocks(low, target):
        accesses = flat.read(n), target.write(n, y, accumulate=accumulate)
        blocks.append((bounds, accesses, 0.0, size * (n[1] - n[0]) * (y[1] - y[0])))
    low.loop(
        f"{unit.layer.name}.flat_gradient",
        "channels_flatten_backward",
        {"gradient": flat.name, "output": target.name},
        blocks,
        unit.layer.name,
        "backward",
        **target.attributes("out"),
        accumulate=int(accumulate),
    )
