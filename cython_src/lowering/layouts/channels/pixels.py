"""Loops without windows: each pixel is treated alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ....plan.builder import block_grid, ranges
from ....plan.model import Access, write
from ...state import Lowering
from ...units import Unit
from . import block_sizes
from .maps import FeatureMap


def image_blocks(low: Lowering) -> list[tuple[int, int]]:
    """Return the images of a block that has all rows."""
    return ranges(low.batch, block_sizes.pixel_blocks(low.options.cut, low.batch, 1)[0])


def pixel_blocks(
    low: Lowering, feature_map: FeatureMap
) -> list[tuple[tuple[int, int], tuple[int, int], dict[str, int]]]:
    """Return images, rows, and bounds with the number of each block."""
    images, rows = block_sizes.pixel_blocks(low.options.cut, low.batch, feature_map.height)
    blocks = []
    for number, (n, y) in enumerate(block_grid(ranges(low.batch, images), ranges(feature_map.height, rows))):
        bounds = {"n0": n[0], "n1": n[1], "y0": y[0], "y1": y[1], "c0": 0, "c1": feature_map.channels}
        blocks.append((n, y, {**bounds, "partial": number}))
    return blocks


def pixelwise(
    low: Lowering,
    name: str,
    kernel: str,
    unit: Unit,
    phase: str,
    cut: FeatureMap,
    operands: Mapping[str, str],
    maps: Mapping[str, FeatureMap],
    constant: Sequence[Access] = (),
    accumulated: Sequence[str] = (),
    partials: str = "",
    **attributes: float,
) -> None:
    """Append a loop that treats each pixel alone.

    Parameters
    ----------
    maps : mapping
        Operand -> map; those called output or branch are written, or added to where `accumulated` names them.
    constant : sequence of Access
        What every block reads.
    """
    blocks = []
    size = 4.0 * cut.height * cut.width * cut.pitch * len(maps)
    for n, y, bounds in pixel_blocks(low, cut):
        accesses = list(constant)
        for operand, m in maps.items():
            if operand in ("output", "branch"):
                accesses.append(m.write(n, y, accumulate=operand in accumulated))
            else:
                accesses.append(m.read(n, y))
        if partials:
            accesses.append(write(partials, (bounds["partial"], bounds["partial"] + 1)))
        share = (n[1] - n[0]) * (y[1] - y[0]) / cut.height
        blocks.append((bounds, accesses, 0.0, size * share))
    low.loop(name, kernel, operands, blocks, unit.layer.name, phase, **attributes)
