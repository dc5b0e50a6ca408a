"""Limits of convolutions of the layout "nhwc", MAX_KERNEL and MAX_CHANNELS, and panels of weights, for Python."""

import numpy as np


def inputs_of_panels(int written, int read, int groups):
    """Return the first channel that is read for each panel of the map that is written, and how many follow, for all: K.

    A panel sums over the channels of the groups that its own belong to; weights between groups are zero.
    """
    cdef int32_t[::1] starts = np.empty((written + LANES - 1) // LANES, np.int32)
    cdef int count = panel_inputs(written, read, groups, &starts[0])
    return np.asarray(starts).tolist(), count
