"""How CUDA grids are sized: what the launches of all kernels have in common.

`grids.py` of a room says how its kernels are `launched`; others have no CUDA form. Its `SIZES` are names of constants
that CUDA code knows too: it includes kernels/<room>/grid_sizes.cuh, which `gpu.launches` writes.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...errors import UsageError

THREADS = 128  # of a CUDA block, in every kernel
STRIP_CHANNELS = 8  # channels of a CUDA block that sums over rows or pixels: a sector of 32 bytes of each
NORM_CHANNELS = 32  # of one that sums for a batch norm: a line of 128 bytes of each, a warp's load
COUNTER = 4  # numbers of scratch memory before the parts of a tile's sums: how many are there, and padding
SIZES = ("THREADS", "STRIP_CHANNELS", "NORM_CHANNELS", "COUNTER")
MAX_TILES = 4096  # of a block in kernels whose threads stride through their elements
# Threads below which a product is cut further, rather than leave multiprocessors empty: three CUDA blocks on each of
# 132. A guess until it is measured.
THREADS_WANTED = 50_000
# Variables of the environment that replace guesses, for tests and tools/gpu_day.sh alone.
GUESSES = ("FORKTASK_GPU_FILLING", "FORKTASK_GPU_THREADS_WANTED", "FORKTASK_GPU_PART_TERMS")


def guess(name: str, value: int) -> int:
    """Return a guess, or what its variable, one of `GUESSES`, says. Raises `UsageError`: it says no whole number."""
    text = os.environ.get(name)
    if text is None:
        return value
    if not text.isdecimal() or not 1 <= int(text) < 2**63:
        raise UsageError(f"{name} must be a whole number in [1, 2^63), got {text!r}; unset it")
    return int(text)


def blocks_wanted() -> float:
    """Return how many CUDA blocks have THREADS_WANTED threads, or as many as its variable says."""
    return guess("FORKTASK_GPU_THREADS_WANTED", THREADS_WANTED) / THREADS


@dataclass(frozen=True)
class Launch:
    """How a loop is launched: the grid has `tiles` CUDA blocks for each block of the plan."""

    symbol: str  # name of the CUDA function
    tiles: int
    shared_bytes: int = 0
    parts: int = 1  # CUDA blocks that share a tile of a product
    scratch_bytes: int = 0  # for each block of the plan, zero at first; launches of the same loop may share them


# Says how a CUDA function of this name is launched, by a loop's attributes and bounds.
Grid = Callable[[str, Mapping, np.ndarray], Launch]
Count = Callable[[Mapping, np.ndarray], Any]  # of each block


@dataclass(frozen=True)
class CudaForm:
    """How a kernel is launched: the CUDA function of its name, and others."""

    grid: Grid
    together: bool = False  # the function can run several loops in a launch, as <name>_many; it uses no plan's input
    # What is launched after it where an optional operand is given, by the operand, in this order.
    after: Mapping[str, tuple[str, Grid]] = field(default_factory=dict)
    # What is left to do after cuBLAS's products of a loop, unless the last function says that it is nothing.
    beside_products: tuple[str, Grid, Callable[[Mapping, Collection[str]], bool]] | None = None
    algorithms: Mapping[str, Grid] = field(default_factory=dict)  # functions <name>_<algorithm>, for others than direct
    lanes_divide_threads: bool = False  # the attribute "lanes" must


CUDA_FORMS: dict[str, CudaForm] = {}  # by kernel; `kernel_table.import_grids` fills it


def launched(*kernels: str, **form: Any) -> None:
    """Say how kernels are launched, by the fields of their `CudaForm`."""
    CUDA_FORMS.update(dict.fromkeys(kernels, CudaForm(**form)))


def per_item(count: Count) -> Grid:
    """A thread per item of a block."""
    return lambda symbol, a, b: Launch(symbol, strided(count(a, b)))


def per_block(count: Count, shared_bytes: int = 4 * THREADS) -> Grid:
    """A CUDA block per result of a block."""
    return lambda symbol, a, b: Launch(symbol, int(np.max(count(a, b))), shared_bytes)


def per_strip(channels: Count, times: Callable[[Mapping], int] = lambda a: 1, width: int = STRIP_CHANNELS) -> Grid:
    """A CUDA block for each `width` channels, `times` over."""
    return lambda symbol, a, b: Launch(symbol, math.ceil(int(np.max(channels(a, b))) / width) * times(a), 4 * THREADS)


def per_row(symbol: str, attributes: Mapping, bounds: np.ndarray) -> Launch:
    """A CUDA block for each row."""
    return Launch(symbol, min(MAX_TILES, tiled(extents(bounds, 0))), 4 * THREADS)


def strided(items) -> int:
    """CUDA blocks for the items of the largest block, a thread for each."""
    if np.max(items) >= 2**31:
        raise UsageError("a block on a GPU must have fewer than 2^31 numbers; use a finer granularity")
    return max(1, min(MAX_TILES, math.ceil(int(np.max(items)) / THREADS)))


def tiled(tiles) -> int:
    """CUDA blocks for the tiles of the largest block: at least one, as CUDA wants."""
    return max(1, math.ceil(np.max(tiles)))


def joined(symbol: str, tiles, shared_bytes: int, parts: int, numbers: int) -> Launch:
    """CUDA blocks that have parts of the sums of tiles of so many numbers, and join them by join_parts()."""
    scratch_bytes = 4 * tiled(tiles) * (COUNTER + parts * numbers) if parts > 1 else 0
    return Launch(symbol, tiled(tiles) * parts, shared_bytes, parts, scratch_bytes)


def extents(bounds: np.ndarray, *columns: int) -> np.ndarray:
    """Product of the lengths of a block's ranges; a range starts at each of the given columns."""
    return np.prod([bounds[:, c + 1].astype(np.int64) - bounds[:, c] for c in columns], axis=0)
