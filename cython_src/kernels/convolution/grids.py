"""How convolutions are launched on a GPU."""

import math
from functools import partial

import numpy as np

from ..interface.grids import MAX_TILES, THREADS, Launch, blocks_wanted, extents, joined, launched, per_strip, tiled
from ..linear.grids import STEP, product
from ..maps.grids import PER_LANE, channel_end, per_channel, sizes
from ..norm.grids import STATISTICS
from ..simd.instruction_sets import LANES
from . import algorithms
from .specs import FORMS_OF_A_PORT

TAPS = 25
CHANNELS_AT_ONCE = 16  # input channels whose weights lie in shared memory together
CONVOLUTION_TILES = (4, 2)  # output channels of a thread
# The same, and threads among which input channels are divided, in the order in which they are tried.
CONVOLUTION_FORMS = ((4, 1), (4, 4), (2, 4))
PACKED_AT_ONCE = 72  # taps and inputs of a panel that a CUDA block takes: eight inputs of a window of 3 x 3
SIZES = ("TAPS", "CHANNELS_AT_ONCE", "CONVOLUTION_TILES", "PACKED_AT_ONCE")


def convolution(symbol, a, b, scale=1):
    width = a["in_width"] + 2 * a["in_halo"] - 4
    windows = np.ceil((b[:, 5] - b[:, 4]) * scale / 2) * math.ceil(width / 2)
    items = (b[:, 1] - b[:, 0]) * windows * a["in_lanes"]
    channels, inputs, wanted = b[:, 3] - b[:, 2], a["in_channels"], blocks_wanted()
    for count, most_parts in CONVOLUTION_FORMS:
        parts = most_parts if inputs >= most_parts else 1
        tiles = np.ceil(items * parts / THREADS) * np.ceil(channels / count)
        if not (channels % count).any() and tiles.sum() >= wanted:
            break
    numbers = max(min(CHANNELS_AT_ONCE, inputs) * TAPS, 4 * THREADS)  # weights, then sums
    return Launch(f"{symbol}_{count}", int(tiles.max()), 4 * numbers * count, parts)


def weight_gradient(symbol, a, b):
    """A CUDA block for each part of the sums of an input channel and two output channels."""
    tiles = np.ceil(extents(b, 3) / 2) * a["in_channels"]
    rows = math.ceil(extents(b, 1).max() * sizes(a, "dy", "height", "lanes") / THREADS)  # of a thread
    parts = math.ceil(rows / math.ceil(rows / math.ceil(blocks_wanted() / max(1, tiles.sum()))))
    return joined(symbol, tiles, 4 * (TAPS + 1) * (THREADS + 1), parts, THREADS * 2)


def nhwc_convolution(symbol, a, b):
    phase = a["stride"] if symbol.endswith("data") else 1
    height = -(-(b[:, 3] - b[:, 2]) // phase)
    pixels = (b[:, 1] - b[:, 0]).astype(np.int64) * height * -(-a["out_width"] // phase)
    ends = channel_end(b, 5, a["out_pitch"])
    channels, groups = ends - b[:, 4], a["groups"]
    shape = a["out_channels"], a["in_channels"] // groups
    starts, depth = algorithms.panel_inputs(algorithms.FORWARD, shape, groups)
    return product(
        symbol,
        depth * a["kernel"] ** 2 // phase**2,
        lambda rows, columns: phase**2 * np.ceil(pixels / rows) * np.ceil(channels / columns),
        lambda rows, columns: 2 * channels.min() > columns and _panels_agree(starts, b, ends, columns),
        lambda rows, columns: 8 * 2 * rows,
        math.ceil(depth / STEP),
    )


def _panels_agree(starts, b, ends, channels):
    """Whether all panels of a tile of `channels` read the same input channels, for every block. `starts`: the
    first that each panel reads."""
    wide = channels // LANES
    return all(
        len({*starts[p : min(p + wide, -(-end // LANES))]}) <= 1
        for first, end in zip(b[:, 4].tolist(), ends.tolist(), strict=True)
        for p in range(first // LANES, -(-end // LANES), wide)
    )


def nhwc_weight_gradient(symbol, a, b):
    groups, taps = a["groups"], a["kernel"] ** 2
    outs, inputs = a["dy_channels"] // groups, a["in_channels"] // groups
    width = taps * (np.full(len(b), inputs) if groups > 1 else b[:, 5] - b[:, 4])

    def tiles_of(rows, columns):
        high = np.ceil((b[:, 3] - b[:, 2]) / rows)
        if groups > 1:
            high = ((b[:, 3] - 1) // outs - b[:, 2] // outs + 1) * math.ceil(outs / rows)
        return high * np.ceil(width / columns)

    return product(
        symbol,
        int(extents(b, 0).min()) * sizes(a, "dy", "height", "width"),
        tiles_of,
        lambda rows, columns: 2 * outs > rows and 2 * width.max() > columns,  # else half of it is empty
        lambda rows, columns: 8 * (4 * THREADS + columns),
    )


def nhwc_pack(symbol, a, b):
    shape = a["out_channels"], a["in_channels"] // a["groups"]
    _, depth = algorithms.panel_inputs(a["direction"], shape, a["groups"])
    taps = a["kernel"] ** 2
    inputs = max(1, PACKED_AT_ONCE // taps)
    tiles = min(MAX_TILES, tiled(extents(b, 0) * math.ceil(depth / inputs)))
    return Launch(symbol, tiles, 4 * (LANES + 1) * inputs * taps)


_BIAS_GRADIENT = "nhwc_conv_bias_gradient", per_strip(lambda a, b: extents(b, 2))
_AFTER_FORWARD = {"residual": ("nhwc_conv_residual", per_channel), **STATISTICS}
launched("conv_forward", grid=convolution, algorithms=dict.fromkeys(FORMS_OF_A_PORT, PER_LANE["out"]))
launched("conv_relu_pool", grid=partial(convolution, scale=2))
launched("conv_backward_data", "conv_backward_data_unpool", grid=convolution)
launched("conv_backward_weights", grid=weight_gradient)
launched("nhwc_conv_pack", grid=nhwc_pack, together=True)
launched("nhwc_conv_forward", grid=nhwc_convolution, after=_AFTER_FORWARD)
launched("nhwc_conv_backward_data", grid=nhwc_convolution)
launched("nhwc_conv_backward_weights", grid=nhwc_weight_gradient, after={"bias_output": _BIAS_GRADIENT})
