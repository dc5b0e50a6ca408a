"""Geometry of a convolution in the layout "channels", from its kernel's attributes: maps, panels of weights, tiles.

Shared by the kernels that pack weights, convolve forward and backward, and sum weight gradients.
"""

from libc.string cimport memcpy, memset

from convolution_c cimport *

from ..maps.channels cimport pixel, row_size

ctypedef ChannelsConvolutionLoops Loops
ctypedef ChannelsWinogradLoops WinogradLoops

cdef enum Algorithm:
    DIRECT
    WINOGRAD2
    WINOGRAD4


cdef struct Convolution:
    ChannelsMap source, target
    int kernel, stride, padding, dilation, groups, algorithm, option
    int side  # outputs in a row of a Winograd tile, or 0
    bint transposed  # data gradient: `stride` is between outputs


cdef inline int winograd_side(int algorithm) noexcept nogil:
    """Return the outputs in a row of a Winograd tile; 0 for other algorithms."""
    return 2 if algorithm == WINOGRAD2 else 4 if algorithm == WINOGRAD4 else 0


cdef inline Convolution convolution_of(ChannelsMap source, ChannelsMap target, Geometry g, int option,
                                       bint transposed) noexcept nogil:
    cdef Convolution c = Convolution(source, target, g.kernel, g.stride, g.padding, g.dilation, g.groups, g.algorithm,
                                     option, winograd_side(g.algorithm), transposed)
    if transposed:  # of the equivalent convolution with reversed taps
        c.padding = (c.kernel - 1) * c.dilation - c.padding
    return c


cdef inline int divide(int a, int b) noexcept nogil:
    """Divide, rounding down; b is positive."""
    return a // b if a >= 0 else -((b - 1 - a) // b)


cdef inline int panel_inputs(int written, int read, int groups, int32_t *starts) noexcept nogil:
    """Find the first input channel of each panel, unless `starts` is NULL; returns how many channels follow."""
    cdef int p, first, last, count = 0, panels = (written + LANES - 1) // LANES
    cdef int part = written // groups, inputs = read // groups
    for p in range(panels):
        first = LANES * p // part
        last = (min(written, LANES * (p + 1)) - 1) // part
        count = max(count, (last + 1 - first) * inputs)
    count = max(4, count)
    for p in range(panels if starts != NULL else 0):
        # Not past the last channel: what lies there may be no channel at all.
        starts[p] = max(0, min(LANES * p // part * inputs, read - count))
    return count


cdef inline void read_tile(const ChannelsMap *m, const float *x, int n, int y, int x_, int rows, int columns, int side,
                           int channels, float *patch, const float **at, Py_ssize_t *row,
                           Py_ssize_t *step) noexcept nogil:
    """Where a tile's side x side inputs lie: in the map, or, if only the first of them are to be read, in a copy
    with zeros beyond. (y, x_) may lie in the halo."""
    cdef const float *p = x + pixel(m, n, y, x_)
    cdef int i, j
    if rows >= side and columns >= side:
        at[0] = p
        row[0] = row_size(m)
        step[0] = m.pitch
        return
    for i in range(side):
        for j in range(side):
            if i < rows and j < columns:
                memcpy(patch + (i * side + j) * channels, p + i * row_size(m) + <Py_ssize_t> j * m.pitch,
                       channels * sizeof(float))
            else:
                memset(patch + (i * side + j) * channels, 0, channels * sizeof(float))
    at[0] = patch
    row[0] = side * channels
    step[0] = channels
