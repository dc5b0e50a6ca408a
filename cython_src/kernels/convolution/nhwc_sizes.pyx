"""Limits of convolutions of the layout "nhwc", MAX_KERNEL and MAX_CHANNELS, and panels of weights, for Python."""

from libc.stdint cimport int32_t
from convolution_c cimport MAX_CHANNELS as CHANNELS_IN_C, MAX_KERNEL as KERNEL_IN_C, panel_inputs
from simd_c cimport LANES

import numpy as np

MAX_KERNEL, MAX_CHANNELS = KERNEL_IN_C, CHANNELS_IN_C


def inputs_of_panels(int written, int read, int groups):
    """Return the first channel that is read for each panel of the map that is written, and how many follow, for all: K.

    A panel sums over the channels of the groups that its own belong to; weights between groups are zero.
    """
    cdef int32_t[::1] starts = np.empty((written + LANES - 1) // LANES, np.int32)
    cdef int count = panel_inputs(written, read, groups, &starts[0])
    return np.asarray(starts).tolist(), count
