"""Loops of the layouts "nchw16" and "nchw" that treat each pixel, or each window of a pooling, alone."""

from __future__ import annotations

from collections.abc import Mapping

from ....kernels.maps.nchw import NchwMap
from ....networks.layers import Conv2d, MaxPool
from ....plan.builder import block_bounds
from ...gradients import gradient_map
from ...state import Loops, Lowering, repeated
from ...units import Unit
from .blocks import channel_ranges, group_ranges, row_ranges


def pixelwise(low: Lowering, unit: Unit, what: str, kernel: str, operands: Mapping[str, str | NchwMap]) -> None:
    """Append a loop over groups, channels and rows of the smallest map."""
    cut = min((m for m in operands.values() if not isinstance(m, str)), key=lambda m: m.height)
    cuts = {"g": group_ranges(low), "c": channel_ranges(low, cut.channels), "y": row_ranges(low, cut.height, 2)}
    low.append(unit, what, kernel, operands, block_bounds(**cuts))


def index_buffer(low: Lowering, unit: Unit) -> str:
    """Declare the buffer that says which element of its window each maximum of a pooling was."""
    shape = (low.groups, *low.shapes[unit.target], low.layout.lanes)
    return low.builder.buffer(f"{unit.target}.index", shape, "uint8")


def index_before(low: Lowering, unit: Unit) -> str:
    """Return the index of the pooling in the unit before this one, if its gradient must be spread."""
    before = low.producer.get(unit.sources[0])
    return f"{before.target}.index" if before and isinstance(before.layer, Conv2d) and before.pooling else ""


def pool(low: Lowering, unit: Unit, recomputed: bool) -> None:
    """Append a pooling that no convolution includes."""
    operands = {"input": low.maps[unit.sources[0]], "output": low.output_map(unit, recomputed)}
    operands["index"] = index_buffer(low, unit)
    pixelwise(low, unit, repeated(recomputed), "pool_forward", operands)


def pool_backward(low: Lowering, unit: Unit, gradient: NchwMap) -> None:
    """Append its gradient, spread by the index."""
    operands = {"gradient": gradient, "index": f"{unit.target}.index"}
    operands["output"] = gradient_map(low, unit.sources[0])[0]
    pixelwise(low, unit, "gradient", "pool_backward", operands)


LOOPS = {MaxPool: Loops(pool, pool_backward)}
