"""How loops of the layout "nhwc" are cut into blocks: what the user asked for, else the cheapest by a cost model.

The model: a block moves its slice of the weights, the input it reads and the output it writes. The sum over blocks is
to be small, while there are enough blocks for the threads that may come, and blocks are not so short that starting
them counts. Nothing depends on the number of threads.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator

from ....errors import UsageError
from ....kernels.maps.nhwc import NhwcMap, Window
from ....kernels.simd.instruction_sets import LANES
from ....plan.builder import block_bounds, ranges
from ...options import BLOCKS_WANTED, Granularity
from ...state import PARTS_ON_DEVICE, Lowering

WINOGRAD_BLOCKS_WANTED = 8  # a block transforms all input channels of its tiles, and reads its weights at all points
SHORTEST_FLOPS = 1e6  # about ten microseconds of one core
BLOCK_BYTES = 16384  # what starting a block costs, in bytes moved
DEVICE_TILES = 400  # of a weight gradient that fill a GPU: three for each of 132 multiprocessors
TILE_NUMBERS = 64 * 32  # of such a tile
WEIGHT_PIECES = (16, 32)  # output and input channels of a piece of a weight gradient, at least
TRANSFORMED_BYTES = 1.5  # of a map that Winograd transforms, in bytes of partial sums; measured 1.3 to 2


def _halvings(total: int, least: int, multiple: int = 1) -> list[int]:
    """Sizes of pieces: all of it, about half, a quarter, ... down to `least`."""
    sizes = []
    for pieces in (1, 2, 4, 8, 16, 32, 64, 128):
        size = -(-math.ceil(total / pieces) // multiple) * multiple
        if size < least:
            break
        sizes.append(min(size, total))
    return list(dict.fromkeys(sizes)) or [total]


def _cheapest(
    totals: tuple[int, int, int], sizes: Iterable[list[int]], number: int, moved: Callable[[int, int, int], float]
) -> tuple[int, int, int]:
    """Return the sizes of a block, along each axis one of some, by which a loop moves the fewest bytes: `moved` of the
    numbers of pieces. There are at least `number` blocks where some sizes allow it."""

    def cost(block: tuple[int, ...]) -> tuple[int, float, int]:
        counts = [math.ceil(total / size) for total, size in zip(totals, block, strict=True)]
        count = math.prod(counts)
        return max(0, number - count), moved(*counts) + BLOCK_BYTES * count, count

    return min(itertools.product(*sizes), key=cost)


def _wanted(cut: Granularity, flops: float, blocks: int = BLOCKS_WANTED) -> int:
    return max(1, min(cut.wanted(blocks), int(flops / SHORTEST_FLOPS)))


def _pixel_cuts(cut: Granularity, batch: int, height: int, sums: bool = False) -> tuple[int, int]:
    """Images and rows of a block of a loop that treats each pixel alone, or sums over them."""
    of_device = cut.device and sums
    if not (cut.is_auto or of_device):
        return cut.images or batch, min(cut.rows or height, height)
    wanted = PARTS_ON_DEVICE if of_device else cut.wanted()
    images = math.ceil(batch / wanted)
    pieces = min(height, math.ceil(wanted / 2 / batch))
    return images, math.ceil(height / pieces)


def image_blocks(low: Lowering) -> list[tuple[int, int]]:
    """Return the images of a block that has all rows."""
    return ranges(low.batch, _pixel_cuts(low.options.cut, low.batch, 1)[0])


def pixel_blocks(low: Lowering, feature_map: NhwcMap, sums: bool = False) -> Iterator[dict[str, int]]:
    """Yield the bounds of blocks of images and rows of a map, with their numbers, of a loop with partial `sums` or
    another."""
    images, rows = _pixel_cuts(low.options.cut, low.batch, feature_map.height, sums)
    cuts = {"n": ranges(low.batch, images), "y": ranges(feature_map.height, rows), "c": [(0, feature_map.channels)]}
    for number, block in enumerate(block_bounds(**cuts)):
        yield {**block, "partial": number}


def image_channel_blocks(cut: Granularity, batch: int, channels: int, flops: float) -> tuple[int, int]:
    """Images and channels of a block of a loop that treats each channel alone, but needs all rows, and has sums."""
    if cut.device:
        return math.ceil(batch / PARTS_ON_DEVICE), channels
    if not cut.is_auto:
        return cut.images or batch, min(cut.channels or channels, channels)
    number = _wanted(cut, flops)
    images = math.ceil(batch / number)
    pieces = math.ceil(number / 2 / batch)
    return images, min(channels, math.ceil(channels / pieces / LANES) * LANES)


def output_blocks(
    cut: Granularity,
    window: Window,
    in_height: int,
    source: NhwcMap,
    target: NhwcMap,
    weight_bytes: float,
    flops: float,
    winograd_side: int,
) -> tuple[int, int, int]:
    """Images, rows and channels of a block of a loop that reads `source` and writes `target`, of a convolution whose
    input has `in_height` rows; `weight_bytes`: of all weights; `flops`: of the whole loop; `winograd_side`: outputs in
    a row of a Winograd tile, or 0: its weights have more numbers, and so have its inputs, written and read again."""
    batch, height, channels = target.batch, target.height, target.channels
    in_row_bytes, out_row_bytes = 4.0 * source.pitch * source.width, 4.0 * target.pitch * target.width
    if not cut.is_auto:
        wanted = cut.channels or channels
        if wanted < channels and wanted % LANES:
            raise UsageError(
                f"channels of a block must be a multiple of {LANES} in layout 'nhwc', got {cut.channels}; use one"
            )
        return cut.images or batch, min(cut.rows or height, height), min(wanted, channels)

    wanted_blocks, of_weights, of_inputs = BLOCKS_WANTED, 1.0, 1.0
    if winograd_side:
        points = (winograd_side + 2) ** 2
        wanted_blocks, of_weights, of_inputs = WINOGRAD_BLOCKS_WANTED, points / 9, 2 * points / winograd_side**2

    def moved(of_batch: int, of_rows: int, of_channels: int) -> float:
        halo = (window.reach - window.stride) * (of_rows - 1)
        inputs = of_inputs * in_row_bytes * (in_height + halo) * batch * of_channels
        # Of equal cuts the one with the most rows: pixels of whole images follow on.
        return of_weights * weight_bytes * of_batch * of_rows + inputs + out_row_bytes * height * batch + of_rows

    sizes = _halvings(batch, 1), _halvings(height, 4), _halvings(channels, 2 * LANES, LANES)
    return _cheapest((batch, height, channels), sizes, _wanted(cut, flops, wanted_blocks), moved)


def weight_blocks(
    cut: Granularity,
    batch: int,
    out_channels: int,
    in_channels: int,
    weight_bytes: float,
    gradient_bytes: float,
    input_bytes: float,
    flops: float,
    cut_outputs: bool = True,
    cut_inputs: bool = True,
    winograd: bool = False,
) -> tuple[int, int, int]:
    """Images, output and input channels of a block of a weight gradient.

    Each range of images has partial sums of its own, which the update adds up: twice more bytes for each. Output
    channels read the input again, input channels the gradient. `weight_bytes`: of all weights; the others of an image.
    """
    if cut.device:
        tiles = max(1, weight_bytes / 4 / TILE_NUMBERS)
        return math.ceil(batch / min(PARTS_ON_DEVICE, math.ceil(DEVICE_TILES / tiles))), out_channels, in_channels
    if not cut.is_auto:
        part = cut.channels if cut_outputs and 0 < cut.channels < out_channels else out_channels
        return cut.images or batch, part, in_channels

    wanted, of_maps = (WINOGRAD_BLOCKS_WANTED, TRANSFORMED_BYTES) if winograd else (BLOCKS_WANTED, 1.0)

    def moved(of_batch: int, of_outputs: int, of_inputs: int) -> float:
        maps = batch * (gradient_bytes * of_inputs + input_bytes * of_outputs)
        return 2 * weight_bytes * of_batch + of_maps * maps

    channels = (out_channels, in_channels)
    pieces = (
        _halvings(n, least, LANES) if cut_it else [n]
        for n, least, cut_it in zip(channels, WEIGHT_PIECES, (cut_outputs, cut_inputs), strict=True)
    )
    return _cheapest((batch, *channels), (_halvings(batch, 1), *pieces), _wanted(cut, flops, wanted), moved)
