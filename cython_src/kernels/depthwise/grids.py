"""How depthwise convolutions are launched on a GPU."""

import math

import numpy as np

from ...errors import UsageError
from ..interface.grids import NORM_CHANNELS, STRIP_CHANNELS, Launch, launched, per_strip, tiled
from ..maps.grids import channel_end, per_channel
from ..norm.grids import STATISTICS

# Rows and columns of a tile of the result, or half as many until its inputs find room in shared memory, 48 KiB.
FORWARD_EDGE, FORWARD_PIXELS = 8, 384
TAPS_AT_ONCE = 9  # whose gradients a thread adds up: those of a window of 3 x 3
# Of the result's gradient in shared memory, without those around them that windows of 3 x 3 also read.
TILE_ROWS, TILE_COLUMNS = 16, 32
SIZES = ("FORWARD_EDGE", "FORWARD_PIXELS", "TAPS_AT_ONCE", "TILE_ROWS", "TILE_COLUMNS")


def forward(symbol, a, b):
    """A CUDA block for each tile and NORM_CHANNELS channels."""
    kernel, edge = a["kernel"], FORWARD_EDGE
    while edge > 1 and ((edge - 1) * a["stride"] + kernel) ** 2 > FORWARD_PIXELS:
        edge //= 2
    pixels = ((edge - 1) * a["stride"] + kernel) ** 2
    if pixels > FORWARD_PIXELS:
        raise UsageError(
            f"the window of a depthwise convolution must have a kernel of at most {math.isqrt(FORWARD_PIXELS)} on a "
            f"GPU, got {kernel}; use the CPU"
        )
    strips = np.ceil((channel_end(b, 5, a["out_pitch"]) - b[:, 4]) / NORM_CHANNELS)
    images, rows = b[:, 1] - b[:, 0], b[:, 3] - b[:, 2]
    tiles = images * np.ceil(rows / edge) * math.ceil(a["out_width"] / edge) * strips
    return Launch(f"{symbol}_3" if kernel == 3 else symbol, tiled(tiles), 4 * NORM_CHANNELS * pixels)


def norm_backward(symbol, a, b):
    """A CUDA block for each STRIP_CHANNELS channels and TAPS_AT_ONCE taps."""
    kernel, stride = a["kernel"], a["stride"]
    strips = math.ceil((channel_end(b, 3, a["in_pitch"]) - b[:, 2]).max() / STRIP_CHANNELS)
    form = f"{symbol}_{stride}" if kernel == 3 and stride <= 2 else symbol
    tile_bytes = 4 * STRIP_CHANNELS * (TILE_ROWS + 2) * (TILE_COLUMNS + 2)
    return Launch(form, strips * math.ceil(kernel**2 / TAPS_AT_ONCE), tile_bytes)


_TAPS_AND_BIAS = per_strip(lambda a, b: b[:, 5] - b[:, 4], times=lambda a: a["kernel"] ** 2 + 1)
launched("nhwc_depthwise_forward", "nhwc_norm_depthwise", grid=forward, after=STATISTICS)
launched("nhwc_depthwise_backward_data", grid=per_channel)
launched("nhwc_depthwise_backward_weights", grid=_TAPS_AND_BIAS)
launched("nhwc_depthwise_norm_backward", grid=norm_backward)
