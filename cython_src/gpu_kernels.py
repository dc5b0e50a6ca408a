"""CUDA forms of the kernels: their sources, and how a loop is launched.

Nothing here needs a GPU or CuPy. A form has the name, operands, attributes and bounds of the kernel it stands for
(kernel_table.py) and computes a range of a loop's blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .errors import UsageError

SOURCE_FOLDER = Path(__file__).parent / "cuda"
SOURCE_FILES = ("conv.cu", "conv_forms.cu", "pool.cu", "fc.cu", "softmax.cu", "step.cu", "bench.cu")
# Denormals are flushed, as the CPU models do; expf, logf and division stay accurate.
COMPILE_OPTIONS = ("-std=c++17", "--ftz=true", "--prec-div=true", "--prec-sqrt=true", "--fmad=true")
MINIMUM_ARCHITECTURE = 70  # kernel parameters are __grid_constant__

# As in common.cuh.
THREADS = 128
MAX_OPERANDS, MAX_INTEGERS, MAX_REALS = 16, 32, 4
ARGS_DTYPE = np.dtype(
    [
        ("operand", "<u8", MAX_OPERANDS),
        ("bounds", "<u8"),
        ("counter", "<u8"),
        ("failure", "<u8"),
        ("replay", "<i8"),
        ("integers", "<i4", MAX_INTEGERS),
        ("reals", "<f4", MAX_REALS),
        ("bounds_width", "<i4"),
        ("first_block", "<i4"),
        ("first_task", "<i4"),
        ("iteration_stride", "<i4"),
        ("iteration_offset", "<i4"),
        ("reserved", "<i4"),
    ]
)
MAX_GRID_ROWS = 65535  # blocks of one launch
TAPS = 25
CHANNELS_AT_ONCE = 16
CONVOLUTION_TILES = (4, 2)  # output channels of a thread
# Threads below which a convolution takes fewer channels a thread rather than leave multiprocessors empty: four warps
# on each of 128. A guess until it is measured; results do not depend on it.
THREADS_WANTED = 128 * 128
MAX_TILES = 4096  # of a block in kernels whose threads stride through their elements
CONVOLUTION_FORMS = ("tiled", "if", "pad", "if_reduction", "pad_reduction")


@dataclass(frozen=True)
class Launch:
    """How a loop is launched: the grid has `tiles` CUDA blocks for each block of the plan.

    Parameters
    ----------
    symbol : str
        Name of the CUDA function.
    tiles : int
    shared_bytes : int
    """

    symbol: str
    tiles: int
    shared_bytes: int = 0


def source() -> str:
    """All CUDA sources as one translation unit, without includes of any kind."""
    return "\n".join((SOURCE_FOLDER / name).read_text() for name in ("common.cuh", *SOURCE_FILES))


def _strided(items) -> int:
    return max(1, min(MAX_TILES, math.ceil(int(np.max(items)) / THREADS)))


def _extents(bounds: np.ndarray, *columns: int) -> np.ndarray:
    """Product of the lengths of a block's ranges; a range starts at each of the given columns."""
    return np.prod([bounds[:, c + 1].astype(np.int64) - bounds[:, c] for c in columns], axis=0)


def _convolution(symbol: str, scale: int) -> Callable[[Mapping, np.ndarray], Launch]:
    def launch(attributes: Mapping, bounds: np.ndarray) -> Launch:
        windows = np.ceil((bounds[:, 5] - bounds[:, 4]) * scale / 2) * math.ceil(attributes["in_width"] / 2)
        items = (bounds[:, 1] - bounds[:, 0]) * windows * attributes["in_lanes"]
        channels = bounds[:, 3] - bounds[:, 2]
        for count in CONVOLUTION_TILES:
            tiles = np.ceil(items / THREADS) * np.ceil(channels / count)
            if not (channels % count).any() and tiles.sum() * THREADS >= THREADS_WANTED:
                break
        weights = min(CHANNELS_AT_ONCE, attributes["in_channels"]) * TAPS * count
        return Launch(f"{symbol}_{count}", int(tiles.max()), 4 * weights)

    return launch


def _convolution_form(symbol: str, reduction: bool) -> Callable[[Mapping, np.ndarray], Launch]:
    def launch(attributes: Mapping, bounds: np.ndarray) -> Launch:
        items = _extents(bounds, 0, 2, 4) * attributes["in_width"] * attributes["in_lanes"]
        if reduction:
            return Launch(symbol, int(min(items.max(), MAX_TILES)), 4 * THREADS)
        return Launch(symbol, _strided(items))

    return launch


def _elementwise(symbol: str, width: str) -> Callable[[Mapping, np.ndarray], Launch]:
    def launch(attributes: Mapping, bounds: np.ndarray) -> Launch:
        return Launch(symbol, _strided(_extents(bounds, 0, 2, 4) * attributes[f"{width}_width"] * attributes["in_lanes"]))

    return launch


def _fc_data(symbol: str) -> Callable[[Mapping, np.ndarray], Launch]:
    return lambda attributes, bounds: Launch(
        symbol, _strided(_extents(bounds, 0) * attributes["features"] * attributes["lanes"])
    )


def _load_images(attributes: Mapping, bounds: np.ndarray) -> Launch:
    plane = math.prod(attributes[f"out_{name}"] for name in ("channels", "rows", "pitch", "lanes"))
    return Launch("load_images", _strided(_extents(bounds, 0) * plane))


def _softmax_loss(attributes: Mapping, bounds: np.ndarray) -> Launch:
    groups = THREADS // attributes["lanes"]
    return Launch("softmax_loss", math.ceil(int(_extents(bounds, 0).max()) / groups), 8 * THREADS)


_LAUNCHES: dict[str, Callable[[Mapping, np.ndarray], Launch]] = {
    "load_images": _load_images,
    "conv_forward": _convolution("conv_forward", 1),
    "conv_relu_pool": _convolution("conv_relu_pool", 2),
    "conv_backward_data": _convolution("conv_backward_data", 1),
    "conv_backward_data_unpool": _convolution("conv_backward_data_unpool", 1),
    "conv_backward_weights": lambda attributes, bounds: Launch(
        "conv_backward_weights",
        int(_extents(bounds, 3).max()) * attributes["in_channels"],
        4 * (TAPS + 1) * (THREADS + 1),
    ),
    "pool_forward": _elementwise("pool_forward", "out"),
    "pool_backward": _elementwise("pool_backward", "in"),
    "relu_forward": _elementwise("relu_forward", "in"),
    "relu_backward": _elementwise("relu_backward", "in"),
    "fc_forward": lambda attributes, bounds: Launch(
        "fc_forward", int(_extents(bounds, 0).max()) * attributes["outputs"], 4 * THREADS
    ),
    "fc_backward_data": _fc_data("fc_backward_data"),
    "fc_backward_data_unpool": _fc_data("fc_backward_data_unpool"),
    "fc_backward_weights": lambda attributes, bounds: Launch(
        "fc_backward_weights", _strided(attributes["outputs"] * (attributes["features"] + 1))
    ),
    "softmax": lambda attributes, bounds: Launch("softmax", _strided(_extents(bounds, 0) * attributes["lanes"])),
    "softmax_loss": _softmax_loss,
    "loss_sum": lambda attributes, bounds: Launch("loss_sum", 1, 8 * THREADS),
    "sgd": lambda attributes, bounds: Launch("sgd", _strided(_extents(bounds, 0) * (attributes["inputs"] + 1))),
    "hash_chain": lambda attributes, bounds: Launch("hash_chain", 1),
    "replica": lambda attributes, bounds: Launch("replica", 1),
}

# A kernel's attribute and the largest value for which its CUDA form is right: divisors of THREADS.
_LANES_OF_THREADS = ("fc_forward", "softmax_loss")
TASK_BENCH_MEMORY = 2


def names() -> tuple[str, ...]:
    """Kernels that have a CUDA form; besides these, `task_bench_N` for any N."""
    return tuple(_LAUNCHES)


def launch_of(kernel: str, attributes: Mapping, bounds: np.ndarray, convolution: str = "tiled") -> Launch:
    """How to launch a loop.

    Parameters
    ----------
    kernel : str
    attributes : mapping of str to number
        The loop's.
    bounds : int32, shape (num_blocks, bounds_width)
    convolution : {"tiled", "if", "pad", "if_reduction", "pad_reduction"}
        Form of the kernel `conv_forward` (a convolution that is fused with nothing).

    Raises
    ------
    UsageError
        Unknown form, or a kernel or size without a CUDA form.
    """
    if convolution not in CONVOLUTION_FORMS:
        raise UsageError(f"convolution must be one of {', '.join(CONVOLUTION_FORMS)}; got {convolution!r}")
    if kernel.startswith("task_bench_"):
        if attributes["kernel"] == TASK_BENCH_MEMORY:
            raise UsageError("kernel 'memory' of Task Bench has no CUDA form; use compute, load_imbalance or busy_wait")
        return Launch("task_bench", 1)
    if kernel not in _LAUNCHES:
        raise UsageError(f"kernel {kernel!r} has no CUDA form; those that have one are {', '.join(_LAUNCHES)}")
    if kernel in _LANES_OF_THREADS and THREADS % attributes["lanes"]:
        raise UsageError(f"lanes of {kernel!r} must divide {THREADS}, got {attributes['lanes']}; use 1 or 16")
    if kernel == "conv_forward" and convolution != "tiled":
        return _convolution_form(f"conv_forward_{convolution}", "reduction" in convolution)(attributes, bounds)
    return _LAUNCHES[kernel](attributes, bounds)


def symbols() -> tuple[str, ...]:
    """All CUDA functions, in the order of the sources."""
    counted = ("conv_forward", "conv_relu_pool", "conv_backward_data", "conv_backward_data_unpool")
    return (
        *(f"{name}_{count}" for count in sorted(CONVOLUTION_TILES) for name in counted),
        "conv_backward_weights",
        *(f"conv_forward_{form}" for form in CONVOLUTION_FORMS[1:]),
        *(name for name in _LAUNCHES if name not in (*counted, "conv_backward_weights")),
        "task_bench",
        "advance_counter",
    )
