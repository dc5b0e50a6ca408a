"""How CUDA grids are sized: what the launches of all kernels have in common."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import UsageError

# As in kernels/interface/block_kernel.cuh.
THREADS = 128
STRIP_CHANNELS = 8  # channels of a CUDA block that sums over rows or pixels
NORM_CHANNELS = 32  # of one that sums for a batch norm
MAX_TILES = 4096  # of a block in kernels whose threads stride through their elements
# Threads below which a product is cut further, rather than leave multiprocessors empty: three CUDA blocks on each of
# 132. A guess until it is measured.
THREADS_WANTED = 50_000
# First its sums are cut, into parts that several CUDA blocks add up, of no fewer terms than these: to copy factors then
# takes three times as long as to write and read the parts. Smaller tiles come next; they change no result. A guess too.
PART_TERMS = 256
# Numbers of a tile that each of 16 x 8 threads computes, rows (pixels or tokens, or outputs of a weight gradient) by
# columns (channels or features, or taps and input channels), the largest first.
PRODUCT_TILES = ((8, 8), (4, 4), (4, 2))
PRODUCT_STEP, PRODUCT_STAGES = 16, 3  # numbers of a sum that are copied together, and steps in shared memory at a time
PRODUCT_GAP = 8  # numbers behind a row of shared memory, so that a warp's reads along both axes meet all banks
# Variables of the environment that replace guesses, for tests and tools/gpu_day.sh alone.
GUESSES = ("FORKTASK_GPU_FILLING", "FORKTASK_GPU_THREADS_WANTED", "FORKTASK_GPU_PART_TERMS")
PART_COUNTER = 4  # numbers of scratch memory before the parts of a tile's sums: how many are there, and padding


def guess(name: str, value: int) -> int:
    """Return a guess, or what its variable, one of `GUESSES`, says. Raises `UsageError`: it says no whole number."""
    text = os.environ.get(name)
    if text is None:
        return value
    if not text.isdecimal() or not 1 <= int(text) < 2**63:
        raise UsageError(f"{name} must be a whole number in [1, 2^63), got {text!r}; unset it")
    return int(text)


@dataclass(frozen=True)
class Launch:
    """How a loop is launched: the grid has `tiles` CUDA blocks for each block of the plan.

    Parameters
    ----------
    symbol : str
        Name of the CUDA function.
    parts : int
        CUDA blocks that share a tile of a product.
    scratch_bytes : int
        Of memory for each block of the plan, zero at first, that launches of the same loop may share.
    """

    symbol: str
    tiles: int
    shared_bytes: int = 0
    parts: int = 1
    scratch_bytes: int = 0


# Says how a CUDA function of this name is launched, by a loop's attributes and bounds.
Grid = Callable[[str, Mapping, np.ndarray], Launch]
Count = Callable[[Mapping, np.ndarray], Any]  # of each block


def per_item(count: Count) -> Grid:
    """A thread per item of a block."""
    return lambda symbol, attributes, bounds: Launch(symbol, strided(count(attributes, bounds)))


def per_block(count: Count, shared_bytes: int = 4 * THREADS) -> Grid:
    """A CUDA block per result of a block."""
    return lambda symbol, attributes, bounds: Launch(symbol, int(np.max(count(attributes, bounds))), shared_bytes)


def per_strip(
    channels: Count, times: Callable[[Mapping], int] = lambda attributes: 1, width: int = STRIP_CHANNELS
) -> Grid:
    """A CUDA block for each `width` channels, `times` over."""
    return lambda symbol, attributes, bounds: Launch(
        symbol, math.ceil(int(np.max(channels(attributes, bounds))) / width) * times(attributes), 4 * THREADS
    )


def strided(items) -> int:
    """CUDA blocks for the items of the largest block, a thread for each."""
    if np.max(items) >= 2**31:
        raise UsageError("a block on a GPU must have fewer than 2^31 numbers; use a finer granularity")
    return max(1, min(MAX_TILES, math.ceil(int(np.max(items)) / THREADS)))


# What kernels/linear/tiles.cuh has to know of this; kernels exist for each of the tiles.
TILE_SIZES = (
    f"#define STEP {PRODUCT_STEP}",
    f"#define STAGES {PRODUCT_STAGES}",
    f"#define GAP {PRODUCT_GAP}",
    f"#define COUNTER {PART_COUNTER}",
    "#define FOR_TILES(KERNELS) " + " ".join(f"KERNELS({rows}, {columns})" for rows, columns in PRODUCT_TILES),
)


def step_bytes(tile: tuple[int, int]) -> int:
    """Shared memory of a product's steps: the most that Tile::FLOATS in kernels/linear/tiles.cuh can be."""
    return 4 * PRODUCT_STAGES * PRODUCT_STEP * (16 * tile[0] + 8 * tile[1] + 2 * PRODUCT_GAP)


def product(
    symbol: str,
    terms: int,
    tiles_of: Callable[[tuple[int, int]], Any],
    more_bytes: Callable[[tuple[int, int]], int] = lambda tile: 0,
    most_parts: int = MAX_TILES,
) -> Launch:
    """A CUDA block for each part of each tile of a product: of the largest tiles of which there are enough.

    Parameters
    ----------
    terms : int
        Of each sum.
    tiles_of : callable
        Tiles of each block for tiles of a size, or None where it does not suit.
    more_bytes : callable
        Of shared memory, besides the product's steps.
    most_parts : int
        Into which a sum can be cut.
    """
    wanted = guess("FORKTASK_GPU_THREADS_WANTED", THREADS_WANTED)
    most_parts = min(most_parts, terms // guess("FORKTASK_GPU_PART_TERMS", PART_TERMS))
    for tile in PRODUCT_TILES:
        tiles = tiles_of(tile)
        if tiles is None:
            continue
        blocks = max(1, np.sum(tiles))
        parts = max(1, min(most_parts, math.ceil(wanted / THREADS / blocks)))
        if blocks * parts * THREADS >= wanted:
            break
    scratch = tiled(tiles) * 4 * (PART_COUNTER + parts * THREADS * tile[0] * tile[1]) if parts > 1 else 0
    name = f"{symbol}_{tile[0]}x{tile[1]}"
    return Launch(name, tiled(tiles) * parts, step_bytes(tile) + more_bytes(tile), parts, scratch)


def tiled(tiles) -> int:
    """CUDA blocks for the tiles of the largest block: at least one, as CUDA wants."""
    return max(1, math.ceil(np.max(tiles)))


def extents(bounds: np.ndarray, *columns: int) -> np.ndarray:
    """Product of the lengths of a block's ranges; a range starts at each of the given columns."""
    return np.prod([bounds[:, c + 1].astype(np.int64) - bounds[:, c] for c in columns], axis=0)
