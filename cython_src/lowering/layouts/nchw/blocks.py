"""How loops of the layouts "nchw16" and "nchw" are cut into blocks."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ....errors import UsageError
from ....kernels.convolution.nchw_convolution import TILE as WINOGRAD_TILE
from ....plan.builder import block_bounds, ranges
from ...state import PARTS_ON_DEVICE, Lowering

# Blocks of a loop that the default granularity aims at, for eight threads. Blocks of few channels read
# their input again: at batch 64, sixteen blocks made the serial step 2 to 3 % slower than uncut channels. More only
# where groups of images are enough by themselves.
FEW_BLOCKS = 8
BLOCKS_OF_IMAGES = 32
CHANNEL_TILES = (5, 4)  # output channels that the inner loops take at a time


def group_ranges(low: Lowering, sums: bool = False) -> list[tuple[int, int]]:
    """Return the groups of each block, of a loop with partial sums or another."""
    lanes, per_block = low.layout.lanes, low.options.cut.images
    if per_block % lanes:
        raise UsageError(
            f"images of a block must be a multiple of {lanes} in layout {low.layout.name!r}, got {per_block}; use a "
            f"multiple, or layout 'auto' or 'nchw'"
        )
    if not per_block:
        number = low.options.cut.wanted(FEW_BLOCKS)
        number = max(number, BLOCKS_OF_IMAGES) if lanes > 1 else number
        if low.options.cut.device:
            number = PARTS_ON_DEVICE if sums else 1
        per_block = lanes * math.ceil(low.groups / number)
    return ranges(low.groups, per_block // lanes)


def channel_ranges(low: Lowering, channels: int) -> list[tuple[int, int]]:
    """Return the channels of each block."""
    if low.options.cut.channels:
        return ranges(channels, low.options.cut.channels)
    if low.options.cut.is_auto:
        tile = next((t for t in CHANNEL_TILES if channels % t == 0), channels)
        return ranges(channels, tile * max(1, channels // tile // _pieces_wanted(low)))
    return [(0, channels)]


def row_ranges(low: Lowering, height: int, scale: int = 1) -> list[tuple[int, int]]:
    """Return the rows of each block; `scale` rows of the convolution are one of the map that is cut."""
    if not low.options.cut.rows:
        return [(0, height)]
    return ranges(height, max(1, low.options.cut.rows // scale))


def winograd_ranges(low: Lowering, channels: int, height: int) -> tuple[list, list]:
    """Return channels and rows (of the convolution's result) of blocks in Winograd form, by cost: rows first, since
    blocks of fewer channels transform the same input again."""
    pieces = _pieces_wanted(low)
    tiles = math.ceil(height / WINOGRAD_TILE)
    rows = ranges(height, WINOGRAD_TILE * math.ceil(tiles / min(pieces, tiles)))
    return ranges(channels, math.ceil(channels / math.ceil(pieces / len(rows)))), rows


def convolution_blocks(low: Lowering, form: str, channels: int, height: int, scale: int) -> Iterator[dict[str, int]]:
    """Return the bounds of the blocks of a convolution; `scale` rows of its result are one of the map that is cut,
    which has `height`."""
    if form == "winograd" and low.options.cut.is_auto:
        parts, rows = winograd_ranges(low, channels, height * scale)
        rows = [(y0 // scale, y1 // scale) for y0, y1 in rows]
    else:
        parts, rows = channel_ranges(low, channels), row_ranges(low, height, scale)
    return block_bounds(g=group_ranges(low), c=parts, y=rows)


def _pieces_wanted(low: Lowering) -> int:
    """Blocks that each range of groups should be cut into."""
    return math.ceil(low.options.cut.wanted(FEW_BLOCKS) / len(group_ranges(low)))
