"""Maps with pixels as the vectors of features that fully connected layers read."""

from __future__ import annotations

import math

from ....kernels.maps.nhwc import Vector
from ...dense import data_gradient
from ...gradients import gradient_map, sent_back
from ...state import Lowering
from ...units import Unit
from .block_sizes import pixel_blocks


def flattened(low: Lowering, unit: Unit) -> Vector:
    """Return what a fully connected layer reads; a map with pixels is copied in the order channel, row, column."""
    source = low.maps[unit.sources[0]]
    if isinstance(source, Vector):
        return source
    name = f"{unit.sources[0]}.flat"
    is_new = name not in low.builder.buffers
    flat = low.keep(_vector(low, unit, name))
    if is_new:
        operands = {"input": source, "output": flat}
        low.loop(name, "nhwc_flatten", operands, low.sample_bounds(), unit.layer.name, "forward")
    return flat


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
    operands, bounds = {"gradient": flat, "output": target}, pixel_blocks(low, target)
    low.append(unit, "flat_gradient", "nhwc_flatten_backward", operands, bounds, accumulate=int(accumulate))
