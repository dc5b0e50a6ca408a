"""How CUDA grids are sized: what the launches of all kernels have in common."""

from __future__ import annotations

import math
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
# Threads below which a product takes smaller tiles rather than leave multiprocessors empty: three CUDA blocks on each
# of 132. A guess until it is measured; results do not depend on it.
THREADS_WANTED = 50_000
# Numbers of a tile that each of 16 x 8 threads computes, rows (pixels or tokens, or outputs of a weight gradient) by
# columns (channels or features, or taps and input channels), the largest first.
PRODUCT_TILES = ((8, 8), (4, 4), (4, 2))
PRODUCT_STEP = 16  # of a sum that lie in shared memory together


@dataclass(frozen=True)
class Launch:
    """How a loop is launched: the grid has `tiles` CUDA blocks for each block of the plan.

    Parameters
    ----------
    symbol : str
        Name of the CUDA function.
    """

    symbol: str
    tiles: int
    shared_bytes: int = 0


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


def step_bytes(tile: tuple[int, int]) -> int:
    """Shared memory of two steps of a product, as STEP_FLOATS in kernels/linear/tiles.cuh."""
    return 2 * 4 * PRODUCT_STEP * (16 * tile[0] + 8 + 8 * tile[1] + 8)


def tiled(tiles) -> int:
    """CUDA blocks for the tiles of the largest block: at least one, as CUDA wants."""
    return max(1, math.ceil(np.max(tiles)))


def extents(bounds: np.ndarray, *columns: int) -> np.ndarray:
    """Product of the lengths of a block's ranges; a range starts at each of the given columns."""
    return np.prod([bounds[:, c + 1].astype(np.int64) - bounds[:, c] for c in columns], axis=0)
