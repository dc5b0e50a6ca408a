"""CUDA forms of the kernels: their sources, and how a loop is launched.

Nothing here needs a GPU or CuPy. A form has the name, operands, attributes and bounds of the kernel it stands for
(cython_src/kernels/interface/kernel_spec.py) and computes a range of a loop's blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from ..errors import UsageError
from ..kernels import kernel_table
from ..kernels.convolution import algorithms
from ..kernels.interface import arguments
from ..kernels.simd.instruction_sets import LANES
from .blas import Products
from .grids import (
    MAX_TILES,
    NORM_CHANNELS,
    PART_COUNTER,
    PRODUCT_STEP,
    PRODUCT_TILES,
    STRIP_CHANNELS,
    THREADS,
    THREADS_WANTED,
    TILE_SIZES,
    Grid,
    Launch,
    extents,
    guess,
    per_block,
    per_item,
    per_strip,
    product,
    strided,
    tiled,
)
from .token_launches import TOKEN_AFTER, TOKEN_BESIDE_PRODUCTS, TOKEN_LAUNCHES

SOURCE_FOLDER = Path(__file__).parent.parent
SOURCE_FILES = tuple(sorted(str(file.relative_to(SOURCE_FOLDER)) for file in SOURCE_FOLDER.rglob("*.cu")))
# Denormals are flushed, as the CPU models do; expf, logf and division stay accurate.
COMPILE_OPTIONS = ("-std=c++17", "--ftz=true", "--prec-div=true", "--prec-sqrt=true", "--fmad=true")
MINIMUM_ARCHITECTURE = 70  # kernel parameters are __grid_constant__

MAX_OPERANDS, MAX_REALS, MAX_INTEGERS = 16, 4, 32
# As in kernels/interface/block_kernel.cuh, and what a kernel's spec names.
ARGS_DTYPE = np.dtype(
    [
        ("bounds", "<u8"),
        ("counter", "<u8"),
        ("failure", "<u8"),
        ("scratch", "<u8"),
        ("replay", "<i8"),
        ("bounds_width", "<i4"),
        ("first_block", "<i4"),
        ("first_task", "<i4"),
        ("iteration_stride", "<i4"),
        ("iteration_offset", "<i4"),
        ("parts", "<i4"),
        ("tile", "<i4"),
        ("tiles", "<i4"),
        ("operand", "<u8", MAX_OPERANDS),
        ("reals", "<f8", MAX_REALS),
        ("integers", "<i4", MAX_INTEGERS),
    ]
)
MAX_GRID_ROWS = 65535  # blocks of one launch
TAPS = 25
CHANNELS_AT_ONCE = 16
# Output channels of a thread, and threads among which input channels are divided.
CONVOLUTION_TILES = ((4, 1), (4, 4), (2, 4))
# CUDA blocks that a device has at a time, sixteen on each of 128 multiprocessors: more would load what belongs to
# channels more often.
RESIDENT = 2048
PACKED_AT_ONCE = 72  # as in kernels/convolution/nhwc.cu
FORWARD_EDGE, FORWARD_PIXELS = 8, 384  # as in kernels/depthwise/nhwc.cu
# Taps whose gradients a thread adds up; the tile in shared memory. As in kernels/depthwise/nhwc.cu.
DEPTHWISE_TAPS, DEPTHWISE_TILE_BYTES = 9, 4 * STRIP_CHANNELS * (16 + 2) * (32 + 2)
FORMS_OF_A_PORT = ("if", "pad")  # of the kernel conv_forward alone, in nchw16_algorithms.cu
# Products of TF32 in place of one of float32, by value of the option "products"; others compute in float32.
ARITHMETIC = {"tf32": 1, "3xtf32": 3}
TENSOR_CORES = 80  # the architecture that has TF32


def _arguments() -> list[str]:
    """Return declarations of the kernels' arguments, `<kernel>_args`."""
    limits = MAX_OPERANDS, MAX_REALS, MAX_INTEGERS
    shared = arguments.STRUCTS | arguments.BOXES
    structs = [f"struct {name} {{ int {', '.join(fields)}; }};" for name, fields in shared.items()]
    return structs + [arguments.cuda_struct(kernel_table.get(name), limits) for name in names()]


# Files that stand for what is written here.
WRITTEN: dict[str, Callable[[], list[str]]] = {
    "kernels/interface/arguments.cuh": _arguments,
    "kernels/interface/activation_codes.cuh": lambda: [arguments.activation_codes()],
    "kernels/linear/tile_sizes.cuh": lambda: [*TILE_SIZES],
}


@cache
def source(*files: str, products: str = "") -> str:
    """Some of `SOURCE_FILES` as one translation unit, in which each file that they include stands once. `products`: a
    key of `ARITHMETIC`; else they are of float32."""
    lines = [f"#define TF32_PRODUCTS {ARITHMETIC[products]}"] if products else []
    done: set[str] = set()

    def add(file: str) -> None:
        if file in done:
            return
        done.add(file)
        if file in WRITTEN:
            lines.extend(WRITTEN[file]())
            return
        for line in (SOURCE_FOLDER / file).read_text().splitlines():
            if line.startswith('#include "cython_src/'):
                add(line.split('"')[1].removeprefix("cython_src/"))
            else:
                lines.append(line)

    for file in files:
        add(file)
    return "\n".join(lines)


def _convolution(scale: int) -> Grid:
    def launch(symbol: str, attributes: Mapping, bounds: np.ndarray) -> Launch:
        width = attributes["in_width"] + 2 * attributes["in_halo"] - 4
        windows = np.ceil((bounds[:, 5] - bounds[:, 4]) * scale / 2) * math.ceil(width / 2)
        items = (bounds[:, 1] - bounds[:, 0]) * windows * attributes["in_lanes"]
        channels, inputs = bounds[:, 3] - bounds[:, 2], attributes["in_channels"]
        wanted = guess("FORKTASK_GPU_THREADS_WANTED", THREADS_WANTED)
        for count, most_parts in CONVOLUTION_TILES:
            parts = most_parts if inputs >= most_parts else 1
            tiles = np.ceil(items * parts / THREADS) * np.ceil(channels / count)
            if not (channels % count).any() and tiles.sum() * THREADS >= wanted:
                break
        numbers = max(min(CHANNELS_AT_ONCE, inputs) * TAPS, 4 * THREADS)  # weights, then sums
        return Launch(f"{symbol}_{count}", int(tiles.max()), 4 * numbers * count, parts)

    return launch


def _weight_gradient(symbol: str, attributes: Mapping, bounds: np.ndarray) -> Launch:
    """A CUDA block for each part of the sums of an input channel and two output channels."""
    tiles = np.ceil(extents(bounds, 3) / 2) * attributes["in_channels"]
    rows = math.ceil(extents(bounds, 1).max() * _sizes(attributes, "dy", "height", "lanes") / THREADS)  # of a thread
    wanted = guess("FORKTASK_GPU_THREADS_WANTED", THREADS_WANTED) / THREADS / max(1, tiles.sum())
    parts = math.ceil(rows / math.ceil(rows / math.ceil(wanted)))
    scratch = tiled(tiles) * 4 * (PART_COUNTER + parts * THREADS * 2) if parts > 1 else 0
    return Launch(symbol, tiled(tiles) * parts, 4 * (TAPS + 1) * (THREADS + 1), parts, scratch)


def _softmax_loss(symbol: str, attributes: Mapping, bounds: np.ndarray) -> Launch:
    groups = THREADS // attributes["lanes"]
    return Launch(symbol, math.ceil(int(extents(bounds, 0).max()) / groups), 8 * THREADS)


def _channel_end(bounds: np.ndarray, column: int, pitch: int) -> np.ndarray:
    """One past the last physical channel of each block."""
    return np.minimum(-(-bounds[:, column] // LANES) * LANES, pitch)


def _per_channel(step: int = 1) -> Grid:
    """A thread for `step` channels of some pixels that are written, bounds BOX, as `for_channels` of
    kernels/maps/nhwc.cuh."""

    def launch(symbol: str, attributes: Mapping, bounds: np.ndarray) -> Launch:
        prefix = "out" if "out_pitch" in attributes else "in"
        channels = _channel_end(bounds, 5, attributes[f"{prefix}_pitch"]) - bounds[:, 4]
        strips = np.ceil(channels / NORM_CHANNELS)
        pixels = extents(bounds, 0, 2) * attributes[f"{prefix}_width"]
        groups = np.ceil(pixels / (THREADS * step // np.minimum(NORM_CHANNELS, channels)))
        return Launch(symbol, tiled(strips * np.minimum(groups, np.maximum(1, RESIDENT // strips))))

    return launch


_PER_PIXEL = _per_channel()
_PER_FOUR = _per_channel(4)
# A CUDA block for each NORM_CHANNELS channels of the pitch.
_PER_STRIP = per_strip(lambda a, b: a["in_pitch"], width=NORM_CHANNELS)
_PER_PARAMETER = per_item(lambda a, b: extents(b, 0))


def _statistics(symbol: str, attributes: Mapping, bounds: np.ndarray) -> Launch:
    """The second launch of a convolution that is followed by a norm: statistics of its result."""
    if attributes["activation"]:
        raise UsageError("a convolution with statistics must have no activation on a GPU; lower the plan anew")
    channels = per_strip(lambda a, b: _channel_end(b, 5, a["out_pitch"]) - b[:, 4], width=NORM_CHANNELS)
    return channels(symbol, attributes, bounds)


def _depthwise_forward(symbol: str, attributes: Mapping, bounds: np.ndarray) -> Launch:
    """A CUDA block for each tile and NORM_CHANNELS channels."""
    kernel, stride, edge = attributes["kernel"], attributes["stride"], FORWARD_EDGE
    while edge > 1 and ((edge - 1) * stride + kernel) ** 2 > FORWARD_PIXELS:
        edge //= 2
    pixels = ((edge - 1) * stride + kernel) ** 2
    if pixels > FORWARD_PIXELS:
        raise UsageError(
            f"the window of a depthwise convolution must have a kernel of at most {math.isqrt(FORWARD_PIXELS)} on a "
            f"GPU, got {kernel}; use the CPU"
        )
    strips = np.ceil((_channel_end(bounds, 5, attributes["out_pitch"]) - bounds[:, 4]) / NORM_CHANNELS)
    images, rows = bounds[:, 1] - bounds[:, 0], bounds[:, 3] - bounds[:, 2]
    tiles = images * np.ceil(rows / edge) * math.ceil(attributes["out_width"] / edge) * strips
    form = f"{symbol}_3" if kernel == 3 else symbol
    return Launch(form, tiled(tiles), 4 * NORM_CHANNELS * pixels)


def _depthwise_norm_backward(symbol: str, attributes: Mapping, bounds: np.ndarray) -> Launch:
    """A CUDA block for each STRIP_CHANNELS channels and DEPTHWISE_TAPS taps."""
    kernel, stride = attributes["kernel"], attributes["stride"]
    strips = math.ceil((_channel_end(bounds, 3, attributes["in_pitch"]) - bounds[:, 2]).max() / STRIP_CHANNELS)
    form = f"{symbol}_{stride}" if kernel == 3 and stride <= 2 else symbol
    return Launch(form, strips * math.ceil(kernel**2 / DEPTHWISE_TAPS), DEPTHWISE_TILE_BYTES)


def _nhwc_convolution(symbol: str, attributes: Mapping, bounds: np.ndarray) -> Launch:
    phase = attributes["stride"] if symbol.endswith("data") else 1
    rows = -(-(bounds[:, 3] - bounds[:, 2]) // phase)
    pixels = (bounds[:, 1] - bounds[:, 0]).astype(np.int64) * rows * -(-attributes["out_width"] // phase)
    ends = _channel_end(bounds, 5, attributes["out_pitch"])
    groups = attributes["groups"]
    shape = attributes["out_channels"], attributes["in_channels"] // groups
    starts, depth = algorithms.panel_inputs(algorithms.FORWARD, shape, groups)

    def tiles_of(tile: tuple[int, int]) -> np.ndarray | None:
        empty = (ends - bounds[:, 4]).min() <= 4 * tile[1]
        if tile is not PRODUCT_TILES[-1] and (empty or not _panels_agree(starts, bounds, ends, 8 * tile[1])):
            return None
        return phase**2 * np.ceil(pixels / (16 * tile[0])) * np.ceil((ends - bounds[:, 4]) / (8 * tile[1]))

    terms = depth * attributes["kernel"] ** 2 // phase**2
    return product(symbol, terms, tiles_of, lambda tile: 8 * 2 * 16 * tile[0], math.ceil(depth / PRODUCT_STEP))


def _panels_agree(starts: Sequence[int], bounds: np.ndarray, ends: np.ndarray, channels: int) -> bool:
    """Whether all panels of a tile of `channels` read the same input channels, for every block. `starts`: the
    first that each panel reads."""
    wide = channels // LANES
    return all(
        len({*starts[p : min(p + wide, -(-end // LANES))]}) <= 1
        for first, end in zip(bounds[:, 4].tolist(), ends.tolist(), strict=True)
        for p in range(first // LANES, -(-end // LANES), wide)
    )


def _nhwc_weight_gradient(symbol: str, attributes: Mapping, bounds: np.ndarray) -> Launch:
    groups, taps = attributes["groups"], attributes["kernel"] ** 2
    outs, inputs = attributes["dy_channels"] // groups, attributes["in_channels"] // groups
    inputs = np.full(len(bounds), inputs) if groups > 1 else bounds[:, 5] - bounds[:, 4]

    def tiles_of(tile: tuple[int, int]) -> np.ndarray | None:
        empty = outs <= 8 * tile[0] or (taps * inputs).max() <= 4 * tile[1]  # half of it would be
        if empty and tile is not PRODUCT_TILES[-1]:
            return None
        rows = np.ceil((bounds[:, 3] - bounds[:, 2]) / (16 * tile[0]))
        if groups > 1:
            rows = ((bounds[:, 3] - 1) // outs - bounds[:, 2] // outs + 1) * math.ceil(outs / (16 * tile[0]))
        return rows * np.ceil(taps * inputs / (8 * tile[1]))

    pixels = int(extents(bounds, 0).min()) * _sizes(attributes, "dy", "height", "width")
    return product(symbol, pixels, tiles_of, lambda tile: 8 * (4 * PRODUCT_STEP + 8 * tile[1]))


def _nhwc_pack(symbol: str, attributes: Mapping, bounds: np.ndarray) -> Launch:
    shape = attributes["out_channels"], attributes["in_channels"] // attributes["groups"]
    _, depth = algorithms.panel_inputs(attributes["direction"], shape, attributes["groups"])
    taps = attributes["kernel"] ** 2
    inputs = max(1, PACKED_AT_ONCE // taps)
    tiles = extents(bounds, 0) * math.ceil(depth / inputs)
    return Launch(symbol, min(MAX_TILES, tiled(tiles)), 4 * (LANES + 1) * inputs * taps)


def _sizes(attributes: Mapping, prefix: str, *names: str) -> int:
    return math.prod(attributes[f"{prefix}_{name}"] for name in names)


# A thread for each number of a row of a map in the layout "nchw16".
_PER_LANE = {
    prefix: per_item(lambda a, b, width=f"{prefix}_width": extents(b, 0, 2, 4) * a[width] * a["in_lanes"])
    for prefix in ("in", "out")
}
_LAUNCHES: dict[str, Grid] = {
    "load_images": per_item(lambda a, b: extents(b, 0) * _sizes(a, "out", "channels", "rows", "pitch", "lanes")),
    "conv_forward": _convolution(1),
    "conv_relu_pool": _convolution(2),
    "conv_backward_data": _convolution(1),
    "conv_backward_data_unpool": _convolution(1),
    "conv_backward_weights": _weight_gradient,
    "pool_forward": _PER_LANE["out"],
    **dict.fromkeys(("pool_backward", "relu_forward", "relu_backward"), _PER_LANE["in"]),
    "fc_forward": per_block(lambda a, b: extents(b, 0) * a["outputs"]),
    "fc_backward_data": per_item(lambda a, b: extents(b, 0) * a["features"] * a["lanes"]),
    "fc_backward_weights": per_strip(lambda a, b: a["outputs"] * (a["features"] + 1), width=32),  # NUMBERS
    "softmax": per_item(lambda a, b: extents(b, 0) * a["lanes"]),
    "softmax_loss": _softmax_loss,
    "loss_sum": per_block(lambda a, b: 1),
    "nhwc_load_images": per_item(lambda a, b: extents(b, 0) * _sizes(a, "out", "height", "width", "pitch")),
    "nhwc_conv_pack": _nhwc_pack,
    "nhwc_conv_forward": _nhwc_convolution,
    "nhwc_conv_backward_data": _nhwc_convolution,
    "nhwc_conv_backward_weights": _nhwc_weight_gradient,
    "nhwc_depthwise_backward_weights": per_strip(lambda a, b: b[:, 5] - b[:, 4], times=lambda a: a["kernel"] ** 2 + 1),
    "nhwc_depthwise_norm_backward": _depthwise_norm_backward,
    **dict.fromkeys(("nhwc_norm_statistics", "nhwc_norm_backward_statistics"), _PER_STRIP),
    "nhwc_norm_evaluate": per_item(lambda a, b: extents(b, 0) + LANES),
    **dict.fromkeys(("nhwc_norm_finish", "nhwc_norm_backward_finish"), per_strip(lambda a, b: extents(b, 0) + LANES)),
    **{f"nhwc_norm_{what}": _PER_FOUR for what in ("apply", "backward_apply")},
    **{f"nhwc_{what}": _PER_FOUR for what in ("activation", "activation_backward", "add")},
    **dict.fromkeys(("nhwc_depthwise_forward", "nhwc_norm_depthwise"), _depthwise_forward),
    "nhwc_depthwise_backward_data": _PER_PIXEL,
    **{f"nhwc_{what}": _PER_PIXEL for what in ("pool", "pool_backward")},
    **{f"nhwc_{what}": _PER_PIXEL for what in ("global_pool_backward", "flatten_backward")},
    "nhwc_dropout": per_item(lambda a, b: extents(b, 0, 2) * math.ceil(_sizes(a, "in", "width", "pitch") / 64) * 16),
    "nhwc_global_pool": per_item(lambda a, b: extents(b, 0, 2)),
    "nhwc_flatten": per_item(lambda a, b: extents(b, 0) * _sizes(a, "in", "channels", "height", "width")),
    **dict.fromkeys(("optimizer_sgd", "optimizer_adam"), _PER_PARAMETER),
    "gradient_sum": per_block(lambda a, b: 1),
    "gradient_scale": per_block(lambda a, b: 1, shared_bytes=8 * THREADS),
    "replica": per_block(lambda a, b: 1, shared_bytes=0),
    **TOKEN_LAUNCHES,
}

# Functions that can run several loops in a launch, as <name>_many; none uses a plan's input.
TOGETHER = ("optimizer_sgd", "optimizer_adam", "gradient_sum", "nhwc_conv_pack", "nhwc_norm_evaluate")

# What a kernel that has an optional operand launches after itself where the operand is given, in this order.
_AFTER: dict[tuple[str, str], tuple[str, Grid]] = {
    ("nhwc_conv_forward", "residual"): ("nhwc_conv_residual", _PER_PIXEL),
    **{
        (f"nhwc_{kernel}", "statistics"): ("nhwc_conv_statistics", _statistics)
        for kernel in ("conv_forward", "depthwise_forward", "norm_depthwise")
    },
    ("nhwc_conv_backward_weights", "bias_output"): ("nhwc_conv_bias_gradient", per_strip(lambda a, b: extents(b, 2))),
    **TOKEN_AFTER,
}

# What is left to do after a loop's matrix products, unless the last function says that it is nothing.
_BESIDE_PRODUCTS: dict[str, tuple[str, Grid, Callable[[Mapping, Collection[str]], bool]]] = {
    "fc_forward": ("fc_bias", per_item(lambda a, b: extents(b, 0) * a["outputs"] * a["lanes"]), lambda a, given: True),
    "fc_backward_weights": ("fc_bias_gradient", per_item(lambda a, b: a["outputs"]), lambda a, given: True),
    **TOKEN_BESIDE_PRODUCTS,
}

# Kernels whose lanes must divide THREADS.
_LANES_OF_THREADS = ("fc_forward", "softmax_loss")


def names() -> tuple[str, ...]:
    """Kernels that have a CUDA form."""
    return tuple(_LAUNCHES)


def launches_of(
    kernel: str,
    attributes: Mapping,
    bounds: np.ndarray,
    operands: Collection[str] = (),
    products: Products | None = None,
    arithmetic: str = "",
) -> tuple[Launch | Products, ...]:
    """How to launch a loop: one after the other, all with the same arguments.

    Parameters
    ----------
    attributes : mapping of str to number
        The loop's.
    bounds : int32, shape (num_blocks, bounds_width)
    operands : collection of str
        The operands that the loop gives, of which some are optional.
    products : Products, optional
        What cuBLAS does of it; `blas.products_of`.
    arithmetic : str, optional
        Value of the option "products". The symbol of a kernel that multiplies in TF32 ends with it, after "@".

    Raises
    ------
    UsageError
        A kernel, algorithm or size without a CUDA form.
    """
    if kernel not in _LAUNCHES:
        raise UsageError(
            f"kernel {kernel!r} has no CUDA form{_REMEDIES.get(kernel.partition('_')[0], '')}; use the CPU"
        )
    forms = kernel_table.get(kernel).algorithms
    if len(forms) > 1 and attributes.get("algorithm"):
        name = forms[attributes["algorithm"]]
        if kernel == "conv_forward" and name in FORMS_OF_A_PORT:
            items = extents(bounds, 0, 2, 4) * attributes["out_width"] * attributes["in_lanes"]
            return (Launch(f"{kernel}_{name}", strided(items)),)
        alone = ", or with phase 'forward' and fusion 'none'" if name in FORMS_OF_A_PORT else ""
        raise UsageError(
            f"algorithm {name!r} of kernel {kernel!r} has no CUDA form; lower the plan with conv 'direct'{alone}"
        )
    if kernel in _LANES_OF_THREADS and THREADS % attributes["lanes"]:
        raise UsageError(f"lanes of {kernel!r} must divide {THREADS}, got {attributes['lanes']}; use 1 or 16")
    after = [
        launch(symbol, attributes, bounds)
        for (name, operand), (symbol, launch) in _AFTER.items()
        if name == kernel and operand in operands
    ]
    if products is None:
        how = _LAUNCHES[kernel](kernel, attributes, bounds)
        if arithmetic in ARITHMETIC and file_of(how.symbol) in multiplying():
            how = replace(how, symbol=f"{how.symbol}@{arithmetic}")
        return (how, *after)
    symbol, launch, needed = _BESIDE_PRODUCTS.get(kernel, ("", None, lambda a, given: False))
    beside = [launch(symbol, attributes, bounds)] if needed(attributes, operands) else []
    return (products, *beside, *after)


# What helps instead of a kernel without a CUDA form, by the beginning of its name.
_REMEDIES = {"winograd": "; lower the plan with conv 'direct'"}


@cache
def multiplying() -> tuple[str, ...]:
    """Source files whose kernels multiply in tiles."""
    return tuple(file for file in SOURCE_FILES if "struct Tile" in source(file))


@cache
def _texts() -> dict[str, str]:
    return {file: (SOURCE_FOLDER / file).read_text() for file in SOURCE_FILES}


@cache
def file_of(symbol: str) -> str:
    """The source file of a CUDA function; forms by the size of a tile (`<name>_<size>`) are instances of a macro."""
    many = f"KERNEL_MANY({symbol.removesuffix('_many')})"
    heads = f"KERNEL({symbol})", f"KERNEL_OF({symbol},", many, f"KERNEL_OF({symbol.rpartition('_')[0]}_##"
    return next(file for head in heads for file, text in _texts().items() if head in text)
