"""Pixels of one image on their way from a decoder into a step: scaled to a size, standardised, flipped and moved.

Nothing here holds Python's interpreter lock while it works on pixels.
"""

from libc.stdlib cimport free
from libc.string cimport memset

from load_c cimport *

from posix.stdlib cimport posix_memalign


from functools import lru_cache

import numpy as np

from ..simd.instruction_sets import choose, micro_kernels_address


DOWN_BITS, ACROSS_BITS = 12, 11  # of weights after the point, see load_loops.h

ctypedef fused Value:
    uint8_t
    float


@lru_cache(64)
def scaling_weights(size, start, length, count, bits):
    """Weights by which `count` positions are made from the part [start, start + length) of `size` positions.

    Each is the mean under a triangle that reaches to the centres of its neighbours, or by one old position where these
    are further apart: the bilinear filter of Pillow. Weights are multiples of 2**-bits and add up to 1.

    Returns
    -------
    first : int32, shape (count,)
    weights : float32, shape (count, taps)
        `taps` is a multiple of 4; weights beyond the last position are 0.
    """
    step = length / count
    reach = max(step, 1.0)
    centres = start + (np.arange(count) + 0.5) * step - 0.5
    first = np.maximum(np.floor(centres - reach).astype(int) + 1, 0)
    taps = int((np.minimum(np.ceil(centres + reach).astype(int), size) - first).max())
    first = np.minimum(first, size - taps)
    positions = first[:, None] + np.arange(-(-taps // TAPS_STEP) * TAPS_STEP)
    weights = np.maximum(1 - np.abs(positions - centres[:, None]) / reach, 0) * (positions < size)
    weights = np.rint(weights / weights.sum(axis=1, keepdims=True) * 2**bits)
    weights[np.arange(count), weights.argmax(axis=1)] += 2**bits - weights.sum(axis=1)
    return first.astype(np.int32), (weights / 2**bits).astype(np.float32)


cdef ScaledAxis scaled_axis(const int32_t[::1] first, const float[:, ::1] weights):
    return ScaledAxis(&first[0], &weights[0, 0], <int> weights.shape[0], <int> weights.shape[1])


def scale(const uint8_t[:, :, ::1] pixels, rows, columns, int height, int width, instruction_set=None):
    """Scale a part of an image.

    Parameters
    ----------
    pixels : uint8, shape (old height, old width, 3)
    rows, columns : tuple of (float, float)
        First position and length of the part.
    height, width : int
    instruction_set : str, optional
        All give the same pixels.

    Returns
    -------
    uint8, shape (3, height, width)
    """
    cdef const LoadLoops *loops = load_loops(
        <const MicroKernels *> <uintptr_t> micro_kernels_address(choose(instruction_set)))
    out = np.empty((3, height, width), np.uint8)
    cdef uint8_t[:, :, ::1] to = out
    first_down, weights_down = scaling_weights(pixels.shape[0], *rows, height, DOWN_BITS)
    first_across, weights_across = scaling_weights(pixels.shape[1], *columns, width, ACROSS_BITS)
    cdef ScaledAxis down = scaled_axis(first_down, weights_down), across = scaled_axis(first_across, weights_across)
    cdef void *turned
    cdef size_t column = LANES * sizeof(float)
    if posix_memalign(&turned, column, (3 * (pixels.shape[1] + TAPS_STEP) + LANES) * column) != 0:
        raise MemoryError
    with nogil:
        loops.scale(&pixels[0, 0, 0], <int> pixels.shape[0], <int> pixels.shape[1], &down, &across,
                    <float *> turned, &to[0, 0, 0])
        free(turned)
    return out


def put(const Value[:, :, ::1] pixels, const float[:, ::1] tables, bint flipped, int down, int right,
        float[:, :, ::1] out):
    """Write an image, flipped and then moved, to a network's input; zeros come in at the edges.

    Parameters
    ----------
    pixels : uint8 or float32, shape (channels, height, width)
    tables : float32, shape (channels, 256), or None
        Value of each level of each channel, for bytes.
    flipped : bool
        Exchange left and right.
    down, right : int
        Rows and columns by which the image moves.
    out : float32, shape (channels, height, width)
    """
    cdef Py_ssize_t channels = pixels.shape[0], height = pixels.shape[1], width = pixels.shape[2], c, y, x, at
    cdef Py_ssize_t step = -1 if flipped else 1
    cdef Py_ssize_t first = min(max(right, 0), width), last = max(width + min(right, 0), first)
    cdef const float *table = NULL
    cdef const Value *line
    cdef float *to
    if (out.shape[0], out.shape[1], out.shape[2]) != (channels, height, width):
        raise ValueError("pixels and out must have one shape")
    if Value is uint8_t:
        if tables is None or tables.shape[0] != channels or tables.shape[1] != 256:
            raise ValueError("bytes need a table of 256 values for each channel")
    elif tables is not None:
        raise ValueError("only bytes have a table of values")
    with nogil:
        for c in range(channels):
            if Value is uint8_t:
                table = &tables[c, 0]
            for y in range(height):
                to = &out[c, y, 0]
                at = y - down
                if at < 0 or at >= height:
                    memset(to, 0, width * sizeof(float))
                    continue
                memset(to, 0, first * sizeof(float))
                memset(to + last, 0, (width - last) * sizeof(float))
                line = &pixels[c, at, 0] + (width - 1 + right if flipped else -right)
                for x in range(first, last):
                    if Value is uint8_t:
                        to[x] = table[line[x * step]]
                    else:
                        to[x] = line[x * step]
