"""CUDA forms of the kernels: their sources, and how a loop is launched.

Nothing here needs a GPU or CuPy. A form has the name, operands, attributes and bounds of the kernel it stands for
(cython_src/kernels/interface/kernel_spec.py) and computes a range of a loop's blocks.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping
from functools import cache
from pathlib import Path

import numpy as np

from ..errors import UsageError, check_choice
from ..kernels import kernel_table
from ..kernels.bench.bench import task_bench_kernel
from ..kernels.convolution import algorithms
from ..kernels.interface import arguments
from ..kernels.simd.instruction_sets import LANES
from .blas import Products
from .grids import (
    MAX_TILES,
    PRODUCT_STEP,
    PRODUCT_TILES,
    STRIP_CHANNELS,
    THREADS,
    THREADS_WANTED,
    Launch,
    extents,
    strided,
)
from .token_launches import TOKEN_AFTER, TOKEN_BESIDE_PRODUCTS, TOKEN_LAUNCHES

SOURCE_FOLDER = Path(__file__).parent.parent
SOURCE_FILES = (
    "gpu/counter.cu",
    "kernels/attention/attention.cu",
    "kernels/bench/bench.cu",
    "kernels/convolution/lanes.cu",
    "kernels/convolution/lanes_algorithms.cu",
    "kernels/convolution/channels.cu",
    "kernels/convolution/channels_winograd.cu",
    "kernels/dense/dense.cu",
    "kernels/dense/flatten.cu",
    "kernels/depthwise/channels.cu",
    "kernels/elementwise/channels.cu",
    "kernels/elementwise/lanes.cu",
    "kernels/elementwise/tokens.cu",
    "kernels/embedding/embedding.cu",
    "kernels/linear/linear.cu",
    "kernels/load/load.cu",
    "kernels/load/tokens.cu",
    "kernels/loss/softmax.cu",
    "kernels/loss/vocabulary.cu",
    "kernels/norm/channels.cu",
    "kernels/norm/tokens.cu",
    "kernels/optimizer/optimizer.cu",
    "kernels/pooling/channels.cu",
    "kernels/pooling/lanes.cu",
)
# Denormals are flushed, as the CPU models do; expf, logf and division stay accurate.
COMPILE_OPTIONS = ("-std=c++17", "--ftz=true", "--prec-div=true", "--prec-sqrt=true", "--fmad=true")
ARGUMENTS = "kernels/interface/arguments.cuh"  # stands for what `_arguments` writes
MINIMUM_ARCHITECTURE = 70  # kernel parameters are __grid_constant__

MAX_OPERANDS, MAX_REALS, MAX_INTEGERS = 16, 4, 32
# As in kernels/interface/block_kernel.cuh, and what a kernel's spec names.
ARGS_DTYPE = np.dtype(
    [
        ("bounds", "<u8"),
        ("counter", "<u8"),
        ("failure", "<u8"),
        ("replay", "<i8"),
        ("bounds_width", "<i4"),
        ("first_block", "<i4"),
        ("first_task", "<i4"),
        ("iteration_stride", "<i4"),
        ("iteration_offset", "<i4"),
        ("reserved", "<i4"),
        ("operand", "<u8", MAX_OPERANDS),
        ("reals", "<f8", MAX_REALS),
        ("integers", "<i4", MAX_INTEGERS),
    ]
)
MAX_GRID_ROWS = 65535  # blocks of one launch
TAPS = 25
CHANNELS_AT_ONCE = 16
CONVOLUTION_TILES = (4, 2)  # output channels of a thread
GRADIENT_TILES = ((8, 8), (4, 4))  # of a weight gradient of the layout "channels", as PRODUCT_TILES
WINOGRAD_CHANNELS = (32, 16)  # of a CUDA block
GPU_ALGORITHMS = ("direct", "winograd2")  # of the layout "channels"
CONVOLUTION_FORMS = ("tiled", "if", "pad", "if_reduction", "pad_reduction")


def _arguments() -> list[str]:
    """Return declarations of the kernels' arguments, `<kernel>_args`."""
    limits = MAX_OPERANDS, MAX_REALS, MAX_INTEGERS
    shared = arguments.STRUCTS | arguments.BOXES
    structs = [f"struct {name} {{ int {', '.join(fields)}; }};" for name, fields in shared.items()]
    return structs + [
        arguments.cuda_struct(kernel_table.get(name), limits) for name in (*names(), task_bench_kernel(1))
    ]


@cache
def source(*files: str) -> str:
    """Some of `SOURCE_FILES` as one translation unit, in which each file that they include stands once."""
    lines: list[str] = []
    done: set[str] = set()

    def add(file: str) -> None:
        if file in done:
            return
        done.add(file)
        for line in (SOURCE_FOLDER / file).read_text().splitlines():
            if included := re.match(r'#include "cython_src/(.+?)"', line):
                if included[1] == ARGUMENTS:
                    lines.extend(_arguments())
                else:
                    add(included[1])
            else:
                lines.append(line)

    for file in files:
        add(file)
    return "\n".join(lines)


def _convolution(symbol: str, scale: int) -> Callable[[Mapping, np.ndarray], Launch]:
    def launch(attributes: Mapping, bounds: np.ndarray) -> Launch:
        width = attributes["in_width"] + 2 * attributes["in_halo"] - 4
        windows = np.ceil((bounds[:, 5] - bounds[:, 4]) * scale / 2) * math.ceil(width / 2)
        items = (bounds[:, 1] - bounds[:, 0]) * windows * attributes["in_lanes"]
        channels = bounds[:, 3] - bounds[:, 2]
        for count in CONVOLUTION_TILES:
            tiles = np.ceil(items / THREADS) * np.ceil(channels / count)
            if not (channels % count).any() and tiles.sum() * THREADS >= THREADS_WANTED:
                break
        weights = min(CHANNELS_AT_ONCE, attributes["in_channels"]) * TAPS * count
        return Launch(f"{symbol}_{count}", int(tiles.max()), 4 * weights)

    return launch


def _convolution_launch(symbol: str, reduction: bool) -> Callable[[Mapping, np.ndarray], Launch]:
    def launch(attributes: Mapping, bounds: np.ndarray) -> Launch:
        items = extents(bounds, 0, 2, 4) * attributes["out_width"] * attributes["in_lanes"]
        if reduction:
            return Launch(symbol, int(min(items.max(), MAX_TILES)), 4 * THREADS)
        return Launch(symbol, strided(items))

    return launch


def _elementwise(symbol: str, width: str) -> Callable[[Mapping, np.ndarray], Launch]:
    def launch(attributes: Mapping, bounds: np.ndarray) -> Launch:
        return Launch(symbol, strided(extents(bounds, 0, 2, 4) * attributes[f"{width}_width"] * attributes["in_lanes"]))

    return launch


def _fc_data(symbol: str) -> Callable[[Mapping, np.ndarray], Launch]:
    return lambda attributes, bounds: Launch(
        symbol, strided(extents(bounds, 0) * attributes["features"] * attributes["lanes"])
    )


def _load_images(attributes: Mapping, bounds: np.ndarray) -> Launch:
    plane = math.prod(attributes[f"out_{name}"] for name in ("channels", "rows", "pitch", "lanes"))
    return Launch("load_images", strided(extents(bounds, 0) * plane))


def _softmax_loss(attributes: Mapping, bounds: np.ndarray) -> Launch:
    groups = THREADS // attributes["lanes"]
    return Launch("softmax_loss", math.ceil(int(extents(bounds, 0).max()) / groups), 8 * THREADS)


def _channel_end(bounds: np.ndarray, column: int, pitch: int) -> np.ndarray:
    """One past the last physical channel of each block."""
    return np.minimum(-(-bounds[:, column] // LANES) * LANES, pitch)


def _per_channel(symbol: str, step: int = 1) -> Callable[[Mapping, np.ndarray], Launch]:
    """A thread for `step` channels of each pixel that is written, bounds BOX."""

    def launch(attributes: Mapping, bounds: np.ndarray) -> Launch:
        prefix = "out" if "out_pitch" in attributes else "in"
        channels = _channel_end(bounds, 5, attributes[f"{prefix}_pitch"]) - bounds[:, 4]
        return Launch(symbol, strided(extents(bounds, 0, 2) * attributes[f"{prefix}_width"] * channels / step))

    return launch


def _per_strip(symbol: str) -> Callable[[Mapping, np.ndarray], Launch]:
    """A CUDA block for each STRIP_CHANNELS channels of the pitch."""
    return lambda attributes, bounds: Launch(symbol, math.ceil(attributes["in_pitch"] / STRIP_CHANNELS), 4 * THREADS)


def _per_vector_element(symbol: str) -> Callable[[Mapping, np.ndarray], Launch]:
    """A thread for each channel of a vector."""
    return lambda attributes, bounds: Launch(symbol, strided(extents(bounds, 0) + LANES))


def _per_parameter(symbol: str) -> Callable[[Mapping, np.ndarray], Launch]:
    return lambda attributes, bounds: Launch(symbol, strided(extents(bounds, 0)))


def _statistics(attributes: Mapping, bounds: np.ndarray) -> Launch:
    """The second launch of a convolution that is followed by a norm: statistics of its result."""
    if attributes["activation"]:
        raise UsageError("a convolution with statistics must have no activation on a GPU; lower the plan anew")
    channels = _channel_end(bounds, 5, attributes["out_pitch"]) - bounds[:, 4]
    return Launch("channels_conv_statistics", math.ceil(int(channels.max()) / STRIP_CHANNELS), 4 * THREADS)


def _product_bytes(tile: tuple[int, int], longs: int) -> int:
    """Shared memory of a tile of a matrix product, and `longs` offsets."""
    rows, columns = 16 * tile[0], 8 * tile[1]
    return 4 * PRODUCT_STEP * (rows + 4 + columns) + 8 * longs


def _channels_convolution(symbol: str, data: bool) -> Callable[[Mapping, np.ndarray], Launch]:
    def launch(attributes: Mapping, bounds: np.ndarray) -> Launch:
        if _is_winograd(symbol, attributes):
            return _winograd(symbol, attributes, bounds)
        phase = attributes["stride"] if data else 1
        rows = -(-(bounds[:, 3] - bounds[:, 2]) // phase)
        pixels = (bounds[:, 1] - bounds[:, 0]).astype(np.int64) * rows * -(-attributes["out_width"] // phase)
        ends = _channel_end(bounds, 5, attributes["out_pitch"])
        for tile in PRODUCT_TILES:
            pixel_tiles = np.ceil(pixels / (16 * tile[0]))
            channel_tiles = np.ceil((ends - bounds[:, 4]) / (8 * tile[1]))
            tiles = phase * phase * pixel_tiles * channel_tiles
            whole = _panels_agree(attributes, bounds, ends, 8 * tile[1])
            empty = (ends - bounds[:, 4]).min() <= 4 * tile[1] and tile is not PRODUCT_TILES[-1]
            if whole and not empty and tiles.sum() * THREADS >= THREADS_WANTED:
                break
        return Launch(f"{symbol}_{tile[0]}x{tile[1]}", int(tiles.max()), _product_bytes(tile, 2 * 16 * tile[0]))

    return launch


def _panels_agree(attributes: Mapping, bounds: np.ndarray, ends: np.ndarray, channels: int) -> bool:
    """Whether all panels of a tile of so many channels read the same input channels, for every block."""
    groups = attributes["groups"]
    starts, _ = algorithms.panel_inputs(
        algorithms.FORWARD, (attributes["out_channels"], attributes["in_channels"] // groups), groups
    )
    wide = channels // LANES
    return all(
        len({*starts[p : min(p + wide, -(-end // LANES))]}) <= 1
        for first, end in zip(bounds[:, 4].tolist(), ends.tolist(), strict=True)
        for p in range(first // LANES, -(-end // LANES), wide)
    )


def _winograd(symbol: str, attributes: Mapping, bounds: np.ndarray) -> Launch:
    ends = _channel_end(bounds, 5, attributes["out_pitch"])
    outs = next(n for n in WINOGRAD_CHANNELS if n == LANES or _panels_agree(attributes, bounds, ends, n))
    tiles = (bounds[:, 1] - bounds[:, 0]).astype(np.int64) * -(-(bounds[:, 3] - bounds[:, 2]) // 2)
    tiles = tiles * -(-attributes["out_width"] // 2)
    blocks = np.ceil(tiles / (512 // outs)) * np.ceil((ends - bounds[:, 4]) / outs)
    shared_bytes = 4 * (16 * 512 + 3 * (512 // outs))
    return Launch(f"{symbol.replace('conv', 'winograd')}_{outs}", int(blocks.max()), shared_bytes)


def _channels_weight_gradient(attributes: Mapping, bounds: np.ndarray) -> Launch:
    """Direct, whatever the algorithm's tiles are for the other passes: its operands are the same."""
    symbol = "channels_conv_backward_weights"
    _is_winograd(symbol, attributes)
    groups, taps = attributes["groups"], attributes["kernel"] ** 2
    outs, inputs = attributes["dy_channels"] // groups, attributes["in_channels"] // groups
    inputs = np.full(len(bounds), inputs) if groups > 1 else bounds[:, 5] - bounds[:, 4]
    for tile in GRADIENT_TILES:
        if groups > 1:
            of_block = (bounds[:, 3] - 1) // outs - bounds[:, 2] // outs + 1
            row_tiles = of_block * math.ceil(outs / (16 * tile[0]))
        else:
            row_tiles = np.ceil((bounds[:, 3] - bounds[:, 2]) / (16 * tile[0]))
        tiles = row_tiles * np.ceil(taps * inputs / (8 * tile[1]))
        if outs > 8 * tile[0] and tiles.sum() * THREADS >= THREADS_WANTED:
            break
    return Launch(
        f"{symbol}_{tile[0]}x{tile[1]}", int(tiles.max()), _product_bytes(tile, 4 * PRODUCT_STEP + 8 * tile[1])
    )


def _is_winograd(symbol: str, attributes: Mapping) -> bool:
    """Whether a convolution is of Winograd's form F(2x2, 3x3) or direct; others are refused."""
    name = algorithms.ALGORITHMS[attributes["algorithm"]]
    if name not in GPU_ALGORITHMS:
        raise UsageError(
            f"algorithm {name!r} of kernel {symbol!r} has no CUDA form; lower the plan with conv 'direct' or "
            f"'winograd2'"
        )
    return name == "winograd2"


def _channels_pack(attributes: Mapping, bounds: np.ndarray) -> Launch:
    shape = attributes["out_channels"], attributes["in_channels"] // attributes["groups"]
    _, depth = algorithms.panel_inputs(attributes["direction"], shape, attributes["groups"])
    if _is_winograd("channels_conv_pack", attributes):
        return Launch("channels_winograd_pack", strided(extents(bounds, 0) * depth * LANES))
    return Launch("channels_conv_pack", strided(extents(bounds, 0) * attributes["kernel"] ** 2 * depth * LANES))


def _channels_dropout(attributes: Mapping, bounds: np.ndarray) -> Launch:
    counters = math.ceil(attributes["in_width"] * attributes["in_pitch"] / 64) * 16
    return Launch("channels_dropout", strided(extents(bounds, 0, 2) * counters))


def _channels_flatten(attributes: Mapping, bounds: np.ndarray) -> Launch:
    features = math.prod(attributes[f"in_{name}"] for name in ("channels", "height", "width"))
    return Launch("channels_flatten", strided(extents(bounds, 0) * features))


def _channels_load_images(attributes: Mapping, bounds: np.ndarray) -> Launch:
    plane = math.prod(attributes[f"out_{name}"] for name in ("height", "width", "pitch"))
    return Launch("channels_load_images", strided(extents(bounds, 0) * plane))


_LAUNCHES: dict[str, Callable[[Mapping, np.ndarray], Launch]] = {
    "load_images": _load_images,
    "conv_forward": _convolution("conv_forward", 1),
    "conv_relu_pool": _convolution("conv_relu_pool", 2),
    "conv_backward_data": _convolution("conv_backward_data", 1),
    "conv_backward_data_unpool": _convolution("conv_backward_data_unpool", 1),
    "conv_backward_weights": lambda attributes, bounds: Launch(
        "conv_backward_weights",
        int(extents(bounds, 3).max()) * attributes["in_channels"],
        4 * (TAPS + 1) * (THREADS + 1),
    ),
    "pool_forward": _elementwise("pool_forward", "out"),
    "pool_backward": _elementwise("pool_backward", "in"),
    "relu_forward": _elementwise("relu_forward", "in"),
    "relu_backward": _elementwise("relu_backward", "in"),
    "fc_forward": lambda attributes, bounds: Launch(
        "fc_forward", int(extents(bounds, 0).max()) * attributes["outputs"], 4 * THREADS
    ),
    "fc_backward_data": _fc_data("fc_backward_data"),
    "fc_backward_data_unpool": _fc_data("fc_backward_data_unpool"),
    "fc_backward_data_halo": _fc_data("fc_backward_data_halo"),
    "fc_backward_weights": lambda attributes, bounds: Launch(
        "fc_backward_weights", strided(attributes["outputs"] * (attributes["features"] + 1))
    ),
    "softmax": lambda attributes, bounds: Launch("softmax", strided(extents(bounds, 0) * attributes["lanes"])),
    "softmax_loss": _softmax_loss,
    "loss_sum": lambda attributes, bounds: Launch("loss_sum", 1, 8 * THREADS),
    "sgd": lambda attributes, bounds: Launch("sgd", strided(extents(bounds, 0) * (attributes["inputs"] + 1))),
    "fc_relu_forward": lambda attributes, bounds: Launch(
        "fc_relu_forward", int(extents(bounds, 0).max()) * attributes["outputs"], 4 * THREADS
    ),
    "fc_backward_data_relu": _fc_data("fc_backward_data_relu"),
    "channels_load_images": _channels_load_images,
    "channels_conv_pack": _channels_pack,
    "channels_conv_forward": _channels_convolution("channels_conv_forward", False),
    "channels_conv_backward_data": _channels_convolution("channels_conv_backward_data", True),
    "channels_conv_backward_weights": _channels_weight_gradient,
    "channels_depthwise_forward": _per_channel("channels_depthwise_forward"),
    "channels_depthwise_backward_data": _per_channel("channels_depthwise_backward_data"),
    "channels_depthwise_backward_weights": lambda attributes, bounds: Launch(
        "channels_depthwise_backward_weights",
        math.ceil(int((bounds[:, 5] - bounds[:, 4]).max()) / STRIP_CHANNELS) * (attributes["kernel"] ** 2 + 1),
        4 * THREADS,
    ),
    "channels_norm_depthwise": _per_channel("channels_norm_depthwise"),
    "channels_depthwise_norm_backward": lambda attributes, bounds: Launch(
        "channels_depthwise_norm_backward",
        strided(
            extents(bounds, 0)
            * (_channel_end(bounds, 3, attributes["in_pitch"]) - bounds[:, 2])
            * attributes["in_height"]
            * attributes["in_width"]
        ),
    ),
    "channels_norm_statistics": _per_strip("channels_norm_statistics"),
    "channels_norm_finish": _per_vector_element("channels_norm_finish"),
    "channels_norm_evaluate": _per_vector_element("channels_norm_evaluate"),
    "channels_norm_apply": _per_channel("channels_norm_apply", 4),
    "channels_norm_backward_statistics": _per_strip("channels_norm_backward_statistics"),
    "channels_norm_backward_finish": _per_vector_element("channels_norm_backward_finish"),
    "channels_norm_backward_apply": _per_channel("channels_norm_backward_apply", 4),
    "channels_activation": _per_channel("channels_activation", 4),
    "channels_activation_backward": _per_channel("channels_activation_backward", 4),
    "channels_add": _per_channel("channels_add", 4),
    "channels_dropout": _channels_dropout,
    "channels_max_pool": _per_channel("channels_max_pool"),
    "channels_max_pool_backward": _per_channel("channels_max_pool_backward"),
    "channels_average_pool": _per_channel("channels_average_pool"),
    "channels_average_pool_backward": _per_channel("channels_average_pool_backward"),
    "channels_global_pool": lambda attributes, bounds: Launch("channels_global_pool", strided(extents(bounds, 0, 2))),
    "channels_global_pool_backward": _per_channel("channels_global_pool_backward"),
    "channels_flatten": _channels_flatten,
    "channels_flatten_backward": _per_channel("channels_flatten_backward"),
    "optimizer_sgd": _per_parameter("optimizer_sgd"),
    "optimizer_adam": _per_parameter("optimizer_adam"),
    "gradient_sum": lambda attributes, bounds: Launch("gradient_sum", 1, 4 * THREADS),
    "gradient_scale": lambda attributes, bounds: Launch("gradient_scale", 1),
    "hash_chain": lambda attributes, bounds: Launch("hash_chain", 1),
    "replica": lambda attributes, bounds: Launch("replica", 1),
    **TOKEN_LAUNCHES,
}

# What a kernel that has an optional operand launches after itself where the operand is given, in this order.
_AFTER: dict[tuple[str, str], Callable[[Mapping, np.ndarray], Launch]] = {
    ("channels_conv_forward", "residual"): _per_channel("channels_conv_residual"),
    ("channels_conv_forward", "statistics"): _statistics,
    ("channels_depthwise_forward", "statistics"): _statistics,
    ("channels_norm_depthwise", "statistics"): _statistics,
    ("channels_depthwise_norm_backward", "weight_partials"): lambda attributes, bounds: Launch(
        "channels_depthwise_norm_weights",
        math.ceil(int((bounds[:, 3] - bounds[:, 2]).max()) / STRIP_CHANNELS) * attributes["kernel"] ** 2,
        4 * THREADS,
    ),
    ("channels_depthwise_norm_backward", "statistics"): lambda attributes, bounds: Launch(
        "channels_depthwise_norm_sums",
        math.ceil(int((_channel_end(bounds, 3, attributes["in_pitch"]) - bounds[:, 2]).max()) / STRIP_CHANNELS),
        4 * THREADS,
    ),
    ("channels_conv_backward_weights", "bias_output"): lambda attributes, bounds: Launch(
        "channels_conv_bias_gradient", math.ceil(int(extents(bounds, 2).max()) / STRIP_CHANNELS), 4 * THREADS
    ),
    **TOKEN_AFTER,
}


def _bias_and_activation(attributes: Mapping, bounds: np.ndarray, operands: Collection[str]) -> Launch | None:
    return (
        _per_channel("channels_conv_bias")(attributes, bounds)
        if "bias" in operands or attributes["activation"]
        else None
    )


def _fc_bias(symbol: str) -> Callable[[Mapping, np.ndarray, Collection[str]], Launch]:
    return lambda attributes, bounds, operands: Launch(
        symbol, strided(extents(bounds, 0) * attributes["outputs"] * attributes["lanes"])
    )


# What is left to do after a loop's matrix products.
_BESIDE_PRODUCTS: dict[str, Callable[[Mapping, np.ndarray, Collection[str]], Launch | None]] = {
    "channels_conv_forward": _bias_and_activation,
    "fc_forward": _fc_bias("fc_bias"),
    "fc_relu_forward": _fc_bias("fc_bias_relu"),
    "fc_backward_weights": lambda attributes, bounds, operands: Launch(
        "fc_bias_gradient", strided(attributes["outputs"])
    ),
    **TOKEN_BESIDE_PRODUCTS,
}

# Kernels whose lanes must divide THREADS.
_LANES_OF_THREADS = ("fc_forward", "fc_relu_forward", "softmax_loss")
TASK_BENCH_MEMORY = 2


def names() -> tuple[str, ...]:
    """Kernels that have a CUDA form; besides these, `task_bench_N` for any N."""
    return tuple(_LAUNCHES)


def launches_of(
    kernel: str,
    attributes: Mapping,
    bounds: np.ndarray,
    operands: Collection[str] = (),
    convolution: str = "tiled",
    products: Products | None = None,
) -> tuple[Launch | Products, ...]:
    """How to launch a loop: one after the other, all with the same arguments.

    Parameters
    ----------
    kernel : str
    attributes : mapping of str to number
        The loop's.
    bounds : int32, shape (num_blocks, bounds_width)
    operands : collection of str
        The operands that the loop gives, of which some are optional.
    convolution : {"tiled", "if", "pad", "if_reduction", "pad_reduction"}
        Form of the kernel `conv_forward` (a convolution that is fused with nothing).
    products : Products, optional
        What cuBLAS does of it; `blas.products_of`.

    Raises
    ------
    UsageError
        Unknown form, or a kernel or size without a CUDA form.
    """
    check_choice("convolution", convolution, CONVOLUTION_FORMS)
    if kernel.startswith("task_bench_"):
        if attributes["kernel"] == TASK_BENCH_MEMORY:
            raise UsageError("kernel 'memory' of Task Bench has no CUDA form; use compute, load_imbalance or busy_wait")
        return (Launch("task_bench", 1),)
    if kernel not in _LAUNCHES:
        raise UsageError(
            f"kernel {kernel!r} has no CUDA form{_REMEDIES.get(kernel.partition('_')[0], '')}; use the CPU"
        )
    if kernel.startswith("conv_") and attributes.get("algorithm"):
        raise UsageError(
            f"algorithm {algorithms.LANES_FORMS[attributes['algorithm']]!r} of kernel {kernel!r} has no CUDA form; lower "
            f"the plan with conv 'direct'"
        )
    if kernel in _LANES_OF_THREADS and THREADS % attributes["lanes"]:
        raise UsageError(f"lanes of {kernel!r} must divide {THREADS}, got {attributes['lanes']}; use 1 or 16")
    if kernel == "conv_forward" and convolution != "tiled":
        return (_convolution_launch(f"conv_forward_{convolution}", "reduction" in convolution)(attributes, bounds),)
    after = [launch for (name, operand), launch in _AFTER.items() if name == kernel and operand in operands]
    launches = tuple(launch(attributes, bounds) for launch in (_LAUNCHES[kernel], *after))
    if products is None:
        return launches
    beside = _BESIDE_PRODUCTS.get(kernel)
    epilogue = beside(attributes, bounds, operands) if beside else None
    return (products, *([epilogue] if epilogue else []), *launches[1:])


# What helps instead of a kernel without a CUDA form, by the beginning of its name.
_REMEDIES = {"winograd": "; lower the plan with conv 'direct'"}


@cache
def symbols() -> dict[str, str]:
    """All CUDA functions: the file that each stands in."""
    result = {}
    for file in SOURCE_FILES:
        text = (SOURCE_FOLDER / file).read_text()
        result |= dict.fromkeys(re.findall(r"^KERNEL(?:_OF)?\((\w+)[,)]", text, re.M), file)
        # Forms by the size of a tile: a macro that is used with sizes.
        for macro, parameters, body in re.findall(r"^#define (\w+)\(([\w, ]+)\) *\\\n((?:.*\\\n)*.*)", text, re.M):
            for sizes in re.findall(rf"^{macro}\(([\d, ]+)\)$", text, re.M):
                values = dict(zip(parameters.split(", "), sizes.split(", "), strict=True))
                for name in re.findall(r"KERNEL_OF\(([\w#]+),", body):
                    result["".join(values.get(part, part) for part in name.split("##"))] = file
    return result
