"""How loops over the elements of maps are launched on a GPU."""

import math
from functools import partial

import numpy as np

from ..interface.grids import NORM_CHANNELS, THREADS, Launch, extents, per_item, tiled
from ..simd.instruction_sets import LANES

# CUDA blocks that a device has at a time, sixteen on each of 128 multiprocessors: more would load what belongs to
# channels more often.
RESIDENT = 2048


def sizes(a, prefix, *names):
    """Return the product of some attributes of a map."""
    return math.prod(a[f"{prefix}_{name}"] for name in names)


def channel_end(b, column, pitch):
    """One past the last physical channel of each block."""
    return np.minimum(-(-b[:, column] // LANES) * LANES, pitch)


def per_channel(symbol, a, b, step=1):
    """A thread for `step` channels of some pixels that are written, bounds BOX, as `for_channels` of nhwc.cuh."""
    prefix = "out" if "out_pitch" in a else "in"
    channels = channel_end(b, 5, a[f"{prefix}_pitch"]) - b[:, 4]
    strips = np.ceil(channels / NORM_CHANNELS)
    groups = np.ceil(extents(b, 0, 2) * a[f"{prefix}_width"] / (THREADS * step // np.minimum(NORM_CHANNELS, channels)))
    return Launch(symbol, tiled(strips * np.minimum(groups, np.maximum(1, RESIDENT // strips))))


per_four = partial(per_channel, step=4)
# A thread for each number of a row of a map in the layout "nchw16".
PER_LANE = {
    "in": per_item(lambda a, b: extents(b, 0, 2, 4) * a["in_width"] * a["in_lanes"]),
    "out": per_item(lambda a, b: extents(b, 0, 2, 4) * a["out_width"] * a["in_lanes"]),
}
