"""Loops of the layouts "lanes" and "flat" that treat each pixel, or each window of a pooling, alone."""

from __future__ import annotations

from collections.abc import Mapping

from ....networks.layers import Convolution
from ....plan.builder import block_grid
from ....plan.model import read, write
from ...gradients import gradient_map
from ...state import Lowering, loop_name, phase_of
from ...units import Unit
from .blocks import channel_ranges, group_ranges, row_ranges
from .maps import FeatureMap


def pixelwise(
    low: Lowering, name: str, kernel: str, unit: Unit, phase: str, maps: Mapping[str, FeatureMap], index: str = ""
) -> None:
    """Append a loop over groups, channels and rows of the smallest map.

    Parameters
    ----------
    maps : mapping
        Operand -> map; the first is the source, "output" is written.
    index : str
        Buffer of a pooling's index, which the loop writes in the forward pass of a pooling, else reads.
    """
    source, target = next(iter(maps.values())), maps["output"]
    cut = min(maps.values(), key=lambda m: m.height)
    scales = {operand: m.height // cut.height for operand, m in maps.items()}
    moved = sum((m.height // cut.height) ** 2 for m in (source, target))
    blocks = []
    for g, c, y in block_grid(group_ranges(low), channel_ranges(low, cut.channels), row_ranges(low, cut.height, 2)):
        accesses = []
        for operand, m in maps.items():
            rows = y[0] * scales[operand], y[1] * scales[operand]
            if operand == "output":
                accesses.append(write(m.name, g, c, m.written_rows(*rows)))
            else:
                accesses.append(read(m.name, g, c, m.interior_rows(*rows)))
        if index:
            accesses.append((write if kernel == "pool_forward" else read)(index, g, c, y))
        size = (c[1] - c[0]) * (y[1] - y[0]) * cut.width * low.samples_in(g)
        blocks.append((box_bounds(g, c, y), accesses, 0.0, 4.0 * size * moved))
    operands = {operand: m.name for operand, m in maps.items()} | ({"index": index} if index else {})
    attributes = source.attributes("in") | target.attributes("out")
    for operand, m in maps.items():
        if m not in (source, target):
            attributes |= m.attributes(operand)
    low.loop(name, kernel, operands, blocks, unit.layer.name, phase, **attributes)


def box_bounds(groups: tuple[int, int], channels: tuple[int, int], rows: tuple[int, int]) -> dict[str, int]:
    """Return the bounds of a block by name."""
    names = ("g0", "g1", "c0", "c1", "y0", "y1")
    return dict(zip(names, (*groups, *channels, *rows), strict=True))


def index_buffer(low: Lowering, unit: Unit) -> str:
    """Declare the buffer that says which element of its window each maximum of a pooling was."""
    shape = (low.groups, *low.shapes[unit.target], low.layout.lanes)
    return low.builder.buffer(f"{unit.target}.index", shape, "uint8")


def index_before(low: Lowering, unit: Unit) -> str:
    """Return the index of the pooling in the unit before this one, if its gradient must be spread."""
    before = low.producer.get(unit.sources[0])
    return f"{before.target}.index" if before and isinstance(before.layer, Convolution) and before.pooling else ""


def pool(low: Lowering, unit: Unit, again: bool) -> None:
    """Append a pooling that no convolution includes."""
    maps = {"input": low.maps[unit.sources[0]], "output": low.output_map(unit, again)}
    index = index_buffer(low, unit)
    pixelwise(low, loop_name(unit, again), "pool_forward", unit, phase_of(again), maps, index)


def pool_backward(low: Lowering, unit: Unit, gradient: FeatureMap) -> None:
    """Append its gradient, spread by the index."""
    maps = {"gradient": gradient, "output": gradient_map(low, unit.sources[0])[0]}
    name = f"{unit.layer.name}.gradient"
    pixelwise(low, name, "pool_backward", unit, "backward", maps, f"{unit.target}.index")
