"""What becomes of the rows that a convolution with images in the lanes has computed, whatever its algorithm."""

from libc.string cimport memcpy

from pooling_c cimport *

from ..maps.lanes cimport offset


cdef enum Epilogue:
    STORE
    POOL  # pooled, 2 x 2, after ReLU
    UNPOOL  # spread by the index of an earlier pooling


cdef inline Epilogue epilogue_of(const float *bias, const uint8_t *index) noexcept nogil:
    """Without a bias it is a data gradient."""
    return STORE if index == NULL else UNPOOL if bias == NULL else POOL


cdef inline void finish_rows(
    const LanesPoolingLoops *pooling, Epilogue epilogue, const Map *target, float *out, uint8_t *index, int group,
    int channel, int y, int x, int rows, int columns, const float *results, Py_ssize_t results_row,
) noexcept nogil:
    """Write rows [y, y + rows) and columns [x, x + columns) of the convolution's result to the map `target`.

    `index` counts pixels of the smaller map: the target of a pooling, the source of an unpooling. y and x are even
    where pooled.
    """
    cdef int r, lanes = target.lanes
    cdef Py_ssize_t plane = <Py_ssize_t> group * target.channels + channel, at
    if epilogue == POOL:
        for r in range(0, rows, 2):
            at = (plane * target.height + (y + r) // 2) * target.width + x // 2
            pooling.pool_row(
                results + r * results_row, results + (r + 1) * results_row, columns // 2, lanes, 1,
                out + offset(target, group, channel, (y + r) // 2) + x // 2 * lanes, index + at * lanes)
    elif epilogue == UNPOOL:
        for r in range(rows):
            at = (plane * (target.height // 2) + y + r) * (target.width // 2) + x
            pooling.unpool_row(
                results + r * results_row, index + at * lanes, columns, lanes,
                out + offset(target, group, channel, 2 * (y + r)) + 2 * x * lanes,
                out + offset(target, group, channel, 2 * (y + r) + 1) + 2 * x * lanes)
    else:
        for r in range(rows):
            memcpy(out + offset(target, group, channel, y + r) + x * lanes, results + r * results_row,
                   <Py_ssize_t> columns * lanes * sizeof(float))
