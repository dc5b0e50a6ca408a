"""Convolution with 5 x 5 kernels and stride 1: forward (alone, or with ReLU and pooling), data
gradient (alone, or with the backward pass of the pooling and ReLU before it) and weight gradient.

Y[o, y, x] = b[o] + sum over c, ky, kx of W[o, c, ky, kx] * X[c, y + ky - p, x + kx - p]

The padding p is the halo of X; the data gradient's dY has a halo of 4 - p. The layout "nchw" has padding 2 alone.

Parameters are read in PyTorch's layout, (out, in, 5, 5), one number at a time, so nothing is packed. The data
gradient is the same inner loop with the roles of the channels exchanged and the taps reversed.

Algorithms that the direct one is compared with, by the attribute "algorithm", a position in specs.NCHW16_FORMS;
forward pass and data gradient sum in the direct algorithm's order, so they have its bits.

if           bounds tested at each tap, one output pixel at a time
if_blocked   the same with a tile of outputs in registers
pad          the input copied between zeros first, then one output pixel at a time
pad_blocked  the same with the direct algorithm's tiles

Winograd's algorithm (nchw16_winograd_loops.h) has tiles of 4 x 4 results, 64 products instead of 400 for each pair of
channels. The weights are transformed by a loop of its own once a step. Strips of up to four tiles go through input
transform, products and output transform while they are in the cache, then to the same epilogues as the direct
algorithm. Tiles at the edge of a map or of a block take what is not there as zeros and leave what is not asked for.
Sums run over the input channels in order: as in the direct algorithm, results do not depend on how a loop was cut into
blocks. Rounding errors are larger than those of the direct algorithm, about five times on average.
"""

from libc.string cimport memcpy, memset

from convolution_c cimport *
from pooling_c cimport *

from ..maps.nchw cimport clear_halo, offset, plane_size

import numpy as np

from ..interface.kernel_spec import implement, longest
from ..maps.nchw import box, clear_box_halo, interior, pooling_windows, unpool
from .specs import KERNELS


# --- what becomes of the rows that were computed, whatever the algorithm ----------------------------------------------


cdef enum Epilogue:
    STORE
    POOL  # pooled, 2 x 2, after ReLU
    UNPOOL  # spread by the index of an earlier pooling


cdef inline Epilogue epilogue_of(const float *bias, const uint8_t *index) noexcept nogil:
    """Without a bias it is a data gradient."""
    return STORE if index == NULL else UNPOOL if bias == NULL else POOL


cdef inline void finish_rows(
    const NchwPoolingLoops *pooling, Epilogue epilogue, const Map *target, float *out, uint8_t *index, int group,
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


# --- direct, and what it is compared with ----------------------------------------------------------------------------


cdef void copy_padded(const Map *m, const float *x, int group, int y, int rows, float *out) noexcept nogil:
    """Rows [y, y + rows) of all channels with zeros around the interior; row 0 is the interior's first."""
    cdef int c, r, border = m.halo * LANES, inside = m.width * LANES
    for c in range(m.channels):
        for r in range(y, y + rows):
            if 0 <= r < m.height:
                memset(out, 0, border * sizeof(float))
                memcpy(out + border, x + offset(m, group, c, r), inside * sizeof(float))
                memset(out + border + inside, 0, border * sizeof(float))
            else:
                memset(out, 0, (inside + 2 * border) * sizeof(float))
            out += inside + 2 * border


cdef inline Extent extent_of(const Map *m, int row) noexcept nogil:
    """What exists of a map's inputs, counted from physical row `row` on."""
    return Extent(max(0, m.halo - row), m.halo + m.height - row, m.halo, m.halo + m.width)


cdef int convolve(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """Forward pass and data gradient, which has no bias; with an index they are pooled and unpooled. Operands have the
    same places in all four kernels. Bounds: pooled rows where a pooling is involved."""
    cdef conv_relu_pool_args a = read_conv_relu_pool(args, block)
    cdef bint flip = a.bias == NULL
    cdef Epilogue epilogue = epilogue_of(a.bias, a.index)
    cdef const Map *source = &a.in_map
    cdef const Map *target = &a.out_map
    cdef const Nchw16AlgorithmsLoops *compared = nchw16_algorithms_loops(a.micro)
    cdef ConvTask t
    cdef Extent exist
    cdef VectorRows vectors
    cdef const float *first
    cdef float *scratch = <float *> context.scratch
    cdef int algorithm = a.algorithm
    cdef int width = source.width + 2 * source.halo - (KERNEL - 1)
    cdef int step = direct_rows(source.lanes, width, source.pitch)
    cdef bint buffers = direct_buffers(source.lanes, width, epilogue == STORE)
    cdef int tile = NCHW_TILE if algorithm or (a.box.c1 - a.box.c0) % NCHW_TILE == 0 else NCHW_TILE - 1
    # Rows of the convolution in one of the bounds; rows of the output in one.
    cdef int k = 2 if epilogue == POOL else 1, spread = 2 if epilogue == UNPOOL else 1
    cdef int g, o, y, row, i, n, count, rows, strip = algorithm_rows(algorithm, (a.box.y1 - a.box.y0) * k)
    cdef float *copied = scratch + conv_scratch(
        algorithm, source.lanes, width, source.pitch, epilogue == STORE, source.channels, a.box.c1 - a.box.c0,
        (a.box.y1 - a.box.y0) * k).copied
    t.channels_in = source.channels
    t.pixel = source.lanes
    t.flip = flip
    t.w_out = TAPS if flip else source.channels * TAPS
    t.w_in = target.channels * TAPS if flip else TAPS
    for g in range(a.box.g0, a.box.g1):
        y = a.box.y0 * k
        while y < a.box.y1 * k:
            rows = min(strip, a.box.y1 * k - y)
            first = a.input + offset(source, g, 0, y - source.halo) - source.halo * source.lanes
            t.in_channel = plane_size(source)
            t.in_row = <Py_ssize_t> source.pitch * source.lanes
            if algorithm >= ALGORITHM_PAD:
                copy_padded(source, a.input, g, y - source.halo, rows + KERNEL - 1, copied)
                first = copied
                t.in_row = <Py_ssize_t> (width + KERNEL - 1) * LANES
                t.in_channel = (rows + KERNEL - 1) * t.in_row
            o = a.box.c0
            while o < a.box.c1:
                count = min(tile, a.box.c1 - o)
                t.channels_out = count
                t.w = a.weight + o * t.w_out
                t.bias = NULL if flip else a.bias + o
                row = y
                while row < y + rows:
                    n = min(step, y + rows - row)
                    vectors = rows_as_vectors(source.lanes, width, source.pitch, n)
                    t.rows = vectors.rows
                    t.vectors = vectors.vectors
                    t.input = first + (row - y) * t.in_row
                    if buffers:
                        t.out = scratch
                        t.out_channel = direct_channel(&vectors)
                        t.out_row = vectors.row
                    else:
                        t.out = a.output + offset(target, g, o, row)
                        t.out_channel = plane_size(target)
                        t.out_row = <Py_ssize_t> target.pitch * target.lanes
                    exist = extent_of(source, row)
                    if algorithm == ALGORITHM_DIRECT or algorithm == ALGORITHM_PAD_BLOCKED:
                        nchw_convolution_loops(a.micro).convolve(&t)
                    elif algorithm == ALGORITHM_TESTED_BLOCKED:
                        compared.tested(&t, &exist)
                    else:
                        compared.plain(&t, &exist if algorithm == ALGORITHM_TESTED else NULL)
                    for i in range(count if buffers else 0):
                        finish_rows(nchw_pooling_loops(a.micro), epilogue, target, a.output, a.index, g, o + i, row, 0,
                                    n, width, scratch + i * t.out_channel, t.out_row)
                    row += n
                o += count
            y += rows
        for o in range(a.box.c0, a.box.c1):
            clear_halo(target, a.output, g, o, a.box.y0 * spread, a.box.y1 * spread)
    return 0


cdef int conv_backward_weights(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """Directly all groups at once; by the algorithms that it is compared with one by one, strip by strip."""
    cdef conv_backward_weights_args a = read_conv_backward_weights(args, block)
    cdef const Map *dy = &a.dy_map
    cdef const Map *source = &a.in_map
    cdef const Nchw16AlgorithmsLoops *compared = nchw16_algorithms_loops(a.micro)
    cdef WeightGradientTask t
    cdef Extent exist
    cdef VectorRows vectors
    cdef float *copied = <float *> context.scratch
    cdef float *to
    cdef float total
    cdef int algorithm = a.algorithm, strip = algorithm_rows(algorithm, dy.height)
    cdef int g = a.box.g0, o, y, rows
    t.groups = 1 if algorithm else a.box.g1 - a.box.g0
    t.channels_in = source.channels
    t.channels_out = a.box.c1 - a.box.c0
    t.pixel = source.lanes
    t.dy_channel = plane_size(dy)
    t.dy_group = t.dy_channel * dy.channels
    t.dy_row = dy.pitch * dy.lanes
    t.x_group = plane_size(source) * source.channels
    t.out_channel = source.channels * TAPS + 1
    t.out = a.output + (a.partial * dy.channels + a.box.c0) * t.out_channel
    t.accumulate = a.accumulate
    while g < a.box.g1:
        y = 0
        while y < dy.height:
            rows = min(strip, dy.height - y)
            vectors = rows_as_vectors(dy.lanes, dy.width, dy.pitch, rows)
            t.rows = vectors.rows
            t.vectors = vectors.vectors
            t.dy = a.gradient + offset(dy, g, a.box.c0, y)
            t.x = a.input + offset(source, g, 0, y - source.halo) - source.halo * source.lanes
            t.x_channel = plane_size(source)
            t.x_row = source.pitch * source.lanes
            if algorithm >= ALGORITHM_PAD:
                copy_padded(source, a.input, g, y - source.halo, rows + KERNEL - 1, copied)
                t.x = copied
                t.x_row = <Py_ssize_t> (dy.width + KERNEL - 1) * LANES
                t.x_channel = (rows + KERNEL - 1) * t.x_row
            exist = extent_of(source, y)
            if algorithm == ALGORITHM_DIRECT or algorithm == ALGORITHM_PAD_BLOCKED:
                nchw_convolution_loops(a.micro).weight_gradient(&t)  # with dY's sums
            else:
                if algorithm == ALGORITHM_TESTED_BLOCKED:
                    compared.gradient_tested(&t, &exist)
                else:
                    compared.gradient_plain(&t, &exist if algorithm == ALGORITHM_TESTED else NULL)
                for o in range(t.channels_out):
                    total = nchw_loops(a.micro).sum_rows(t.dy + o * t.dy_channel, rows, t.dy_row, dy.width * LANES)
                    to = t.out + o * t.out_channel + t.channels_in * TAPS
                    to[0] = to[0] + total if t.accumulate else total
            t.accumulate = True
            y += rows
        g += t.groups
    return 0


def _taps(x, attributes, prefix, groups, y0, y1):
    """Yield (ky, kx, shifted rows) for the rows [y0, y1) of a convolution's result; the map is padded by its halo."""
    if attributes[f"{prefix}_lanes"] == LANES:
        padded = x[groups]
    else:  # a row's right halo is the next row's left one
        inside, halo = interior(x, attributes, prefix)[groups], attributes[f"{prefix}_halo"]
        padded = np.pad(inside, ((0, 0), (0, 0), (halo, halo), (halo, halo), (0, 0)))
    width = padded.shape[3] - (KERNEL - 1)
    for ky in range(5):
        for kx in range(5):
            yield ky, kx, padded[:, :, y0 + ky : y1 + ky, kx : kx + width]


def _scratch(attributes, bounds, operands):
    cdef int scale = 2 if {"bias", "index"} <= operands else 1  # rows of the result in one of the bounds: pooled
    return sizeof(float) * conv_scratch(
        attributes["algorithm"], attributes["in_lanes"], result_width(attributes), attributes["in_pitch"],
        "index" not in operands, attributes["in_channels"], longest(bounds, "c"), scale * longest(bounds, "y")).end


def _winograd_scratch(attributes, bounds, operands):
    return sizeof(float) * nchw16_winograd_scratch(attributes["in_channels"], longest(bounds, "c")).end


@implement(KERNELS, "conv_forward", <uintptr_t> &convolve, scratch_bytes=_scratch)
@implement(KERNELS, "conv_relu_pool", <uintptr_t> &convolve, scratch_bytes=_scratch)
@implement(KERNELS, "winograd_forward", <uintptr_t> &convolve_winograd, scratch_bytes=_winograd_scratch)
@implement(KERNELS, "winograd_relu_pool", <uintptr_t> &convolve_winograd, scratch_bytes=_winograd_scratch)
def _conv_forward_reference(operands, attributes, bounds, iteration):
    pooled = "index" in operands
    y0, y1 = bounds["y0"], bounds["y1"]
    g, o = slice(bounds["g0"], bounds["g1"]), slice(bounds["c0"], bounds["c1"])
    w = _weight(operands)[o]
    result = operands["bias"][o].reshape(1, -1, 1, 1, 1)
    for ky, kx, x in _taps(operands["input"], attributes, "in", g, y0 << pooled, y1 << pooled):
        result = result + np.einsum("oc,gcyxl->goyxl", w[:, :, ky, kx], x)
    if pooled:
        values = pooling_windows(result)
        result = values.max(axis=0)
        operands["index"][g, o, y0:y1] = np.where(result <= 0, 4, values.argmax(axis=0))
        result = np.where(result <= 0, 0, result)
    interior(operands["output"], attributes, "out")[g, o, y0:y1] = result
    clear_box_halo(operands["output"], attributes, bounds)


@implement(KERNELS, "conv_backward_data", <uintptr_t> &convolve, scratch_bytes=_scratch)
@implement(KERNELS, "conv_backward_data_unpool", <uintptr_t> &convolve, scratch_bytes=_scratch)
@implement(KERNELS, "winograd_backward_data", <uintptr_t> &convolve_winograd, scratch_bytes=_winograd_scratch)
@implement(KERNELS, "winograd_backward_data_unpool", <uintptr_t> &convolve_winograd, scratch_bytes=_winograd_scratch)
def _conv_backward_data_reference(operands, attributes, bounds, iteration):
    g, c, y0, y1 = slice(bounds["g0"], bounds["g1"]), slice(bounds["c0"], bounds["c1"]), bounds["y0"], bounds["y1"]
    w = _weight(operands)[:, c, ::-1, ::-1]
    result = 0
    for ky, kx, dy in _taps(operands["gradient"], attributes, "in", g, y0, y1):
        result = result + np.einsum("oc,goyxl->gcyxl", w[:, :, ky, kx], dy)
    scale = 2 if "index" in operands else 1
    out = interior(operands["output"], attributes, "out")[box(bounds, scale)]
    if scale == 2:
        unpool(out, operands["index"][g, c, y0:y1], result)
    else:
        out[...] = result
    clear_box_halo(operands["output"], attributes, bounds, scale)


def _weights_scratch(attributes, bounds, operands):
    return sizeof(float) * algorithm_copies(
        attributes["algorithm"], attributes["in_channels"], attributes["dy_width"], attributes["dy_height"])


def _winograd_weights_scratch(attributes, bounds, operands):
    return sizeof(float) * max(
        winograd_gradient_scratch(attributes["in_channels"], outputs).end
        for outputs in np.unique(bounds["c1"] - bounds["c0"]))


@implement(KERNELS, "conv_backward_weights", <uintptr_t> &conv_backward_weights, scratch_bytes=_weights_scratch)
@implement(KERNELS, "winograd_backward_weights", <uintptr_t> &winograd_backward_weights,
           scratch_bytes=_winograd_weights_scratch)
def _conv_backward_weights_reference(operands, attributes, bounds, iteration):
    g, o = slice(bounds["g0"], bounds["g1"]), slice(bounds["c0"], bounds["c1"])
    y0, y1 = bounds.get("y0", 0), bounds.get("y1", attributes["dy_height"])
    dy = interior(operands["gradient"], attributes, "dy")[g, o, y0:y1]
    out = operands["output"][bounds["partial"], o]
    result = np.zeros_like(out)
    weights = result[:, :-1].reshape(len(out), -1, 5, 5)
    for ky, kx, x in _taps(operands["input"], attributes, "in", g, y0, y1):
        weights[:, :, ky, kx] = np.einsum("goyxl,gcyxl->oc", dy, x, optimize=True)
    result[:, -1] = dy.sum(axis=(0, 2, 3, 4))
    out[:] = out + result if attributes["accumulate"] else result


def result_width(attributes):
    """Width of the convolution's result, before pooling and spreading."""
    return attributes["in_width"] + 2 * attributes["in_halo"] - (KERNEL - 1)


# --- Winograd ---------------------------------------------------------------------------------------------------------


cdef void strip_shape(int tiles_across, int *across, int *down) noexcept nogil:
    """Tiles of a strip: a row, or several of a narrow map."""
    across[0] = min(tiles_across, WINOGRAD_STRIP)
    down[0] = WINOGRAD_STRIP // across[0] if tiles_across <= WINOGRAD_STRIP else 1


cdef int convolve_winograd(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """As `convolve`."""
    cdef winograd_relu_pool_args a = read_winograd_relu_pool(args, block)
    cdef Epilogue epilogue = epilogue_of(a.bias, a.index)
    cdef const Map *source = &a.in_map
    cdef const Map *target = &a.out_map
    cdef WinogradTransform t
    cdef WinogradProduct q
    cdef const Nchw16WinogradLoops *loops = nchw16_winograd_loops(a.micro)
    cdef int k = 2 if epilogue == POOL else 1, spread = 2 if epilogue == UNPOOL else 1
    cdef int c0 = a.box.c0, c1 = a.box.c1, first = a.box.y0 * k, stop = a.box.y1 * k
    cdef Nchw16WinogradScratch place = nchw16_winograd_scratch(source.channels, c1 - c0)
    cdef float *rows = <float *> context.scratch + place.rows
    cdef int g, o, y, x0, i, r, num_rows, columns, across, down
    cdef int width = source.width + 2 * source.halo - WINOGRAD_BORDER
    q.inputs = source.channels
    q.outputs = c1 - c0
    q.u = a.transformed + c0
    q.u_in = target.channels
    q.u_point = q.u_in * source.channels
    q.v_in = q.m_out = WINOGRAD_STRIP * LANES
    q.v_point = place.v_point
    q.m_point = place.m_point
    q.v = <float *> context.scratch
    q.m = <float *> context.scratch + place.m
    t.in_channel = plane_size(source)
    t.in_row = <Py_ssize_t> source.pitch * LANES
    t.in_pixel = LANES
    t.out_point = q.v_point
    t.out_channel = q.v_in
    t.out_tile = LANES
    t.channels = source.channels
    strip_shape((width + WINOGRAD_TILE - 1) // WINOGRAD_TILE, &across, &down)
    for g in range(a.box.g0, a.box.g1):
        y = first
        while y < stop:
            num_rows = min(down, (stop - y + WINOGRAD_TILE - 1) // WINOGRAD_TILE)
            x0 = 0
            while x0 < width:
                columns = min(across * WINOGRAD_TILE, width - x0)
                t.tiles = (columns + WINOGRAD_TILE - 1) // WINOGRAD_TILE
                q.tiles = num_rows * t.tiles
                for r in range(num_rows):
                    i = y + r * WINOGRAD_TILE
                    t.input = a.input + offset(source, g, 0, i - source.halo) + (x0 - source.halo) * LANES
                    t.out = <float *> q.v + r * t.tiles * LANES
                    t.rows = stop + WINOGRAD_BORDER - i
                    t.columns = source.pitch - x0
                    loops.input(&t)
                loops.multiply(&q)
                for o in range(c0, c1):
                    for r in range(num_rows):
                        loops.output(
                            q.m + (o - c0) * q.m_out + r * t.tiles * LANES, q.m_point, t.tiles,
                            a.bias[o] if a.bias != NULL else 0, rows, WINOGRAD_ROW)
                        i = y + r * WINOGRAD_TILE
                        finish_rows(
                            nchw_pooling_loops(a.micro), epilogue, target, a.output, a.index, g, o, i, x0,
                            min(WINOGRAD_TILE, stop - i), columns, rows, WINOGRAD_ROW)
                x0 += columns
            y += num_rows * WINOGRAD_TILE
        for o in range(c0, c1):
            clear_halo(target, a.output, g, o, a.box.y0 * spread, a.box.y1 * spread)
    return 0


cdef int winograd_weights(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """Transformed weights (points, channels in, channels out) of the convolution that reads them. bounds: its
    input channels."""
    cdef winograd_weights_args a = read_winograd_weights(args, block)
    cdef int outputs = a.outputs
    cdef Py_ssize_t w_out = TAPS if a.flip else a.inputs * TAPS, w_in = outputs * TAPS if a.flip else TAPS
    nchw16_winograd_loops(a.micro).weights(
        a.weight + a.c0 * w_in, w_out, w_in, outputs, a.c1 - a.c0, a.flip,
        a.transformed + a.c0 * outputs, <Py_ssize_t> a.inputs * outputs, outputs)
    return 0


cdef void transform_natural(const Nchw16WinogradLoops *loops, const winograd_backward_weights_args *a, bint gradient,
                            WinogradTransform *t, float *out, int g, int y, int x0, int num_rows) noexcept nogil:
    """Rows of tiles of the side that keeps its layout: the gradient, or the input."""
    cdef const Map *dy = &a.dy_map
    cdef const Map *x = &a.in_map
    cdef int r, row
    for r in range(num_rows):
        row = y + r * WINOGRAD_TILE
        t.out = out + r * t.tiles * LANES
        if gradient:
            t.input = a.gradient + offset(dy, g, a.box.c0, row) + x0 * LANES
            t.rows = a.box.y1 - row
            t.columns = dy.width - x0
            loops.gradient(t)
        else:
            t.input = a.input + offset(x, g, 0, row - x.halo) + (x0 - x.halo) * LANES
            t.rows = a.box.y1 + WINOGRAD_BORDER - row
            t.columns = x.pitch - x0
            loops.input(t)


cdef void transform_turned(const MicroKernels *micro, const Map *m, bint gradient, WinogradTransform *t,
                           const float *source, int channels, float *window, float *out, int num_rows,
                           int rows) noexcept nogil:
    """Rows of tiles of a vector of the other side's channels, which are transposed: what exists of their window."""
    cdef const Nchw16WinogradLoops *loops = nchw16_winograd_loops(micro)
    cdef int r, i, border = 0 if gradient else WINOGRAD_BORDER
    for r in range(min(num_rows * WINOGRAD_TILE + border, rows)):
        for i in range(t.columns):
            nchw_loops(micro).transpose(source + (<Py_ssize_t> r * m.pitch + i) * LANES, plane_size(m), channels,
                                        window + r * t.in_row + i * LANES, t.in_channel)
    for r in range(num_rows):
        t.input = window + r * WINOGRAD_TILE * t.in_row
        t.out = out + r * t.tiles * LANES * LANES
        t.rows = rows - r * WINOGRAD_TILE
        if gradient:
            loops.gradient(t)
        else:
            loops.input(t)


cdef void store_taps(const winograd_backward_weights_args *a, const WinogradGradientScratch *place,
                     const float *sums) noexcept nogil:
    """Weight gradients of all pairs of channels from their points, and the bias gradient, in PyTorch's order."""
    cdef const Map *dy = &a.dy_map
    cdef Py_ssize_t per_out = a.in_map.channels * TAPS + 1
    cdef float *gradient = a.output + (a.partial * dy.channels + a.box.c0) * per_out
    cdef float *to
    cdef float total
    cdef int j, r, g
    for j in range(place.blocks):
        for r in range(place.rows):
            to = gradient + (r * per_out + j * LANES * TAPS if place.turn_input else r * TAPS + j * LANES * per_out)
            nchw16_winograd_loops(a.micro).gradient_output(
                sums + j * WINOGRAD_POINTS * place.sums_point + r * LANES, place.sums_point,
                min(LANES, place.lanes_channels - j * LANES), to, TAPS if place.turn_input else per_out, a.accumulate)
    for r in range(a.box.c1 - a.box.c0):
        to = gradient + r * per_out + per_out - 1
        total = to[0] if a.accumulate else 0
        for g in range(a.box.g0, a.box.g1):
            total += nchw_loops(a.micro).sum_rows(
                a.gradient + offset(dy, g, a.box.c0 + r, a.box.y0), a.box.y1 - a.box.y0,
                <Py_ssize_t> dy.pitch * LANES, <Py_ssize_t> dy.width * LANES)
        to[0] = total


cdef int winograd_backward_weights(const void *args, Py_ssize_t block,
                                   const TaskContext *context) noexcept nogil:
    """Weight gradient; bounds: partial buffer, groups, output channels, rows.

    For each point a matrix product over tiles and images. One side keeps its layout, and its numbers are
    broadcast; the other is transposed, channels in the lanes: the side whose channels fill vectors better.
    """
    cdef winograd_backward_weights_args a = read_winograd_backward_weights(args, block)
    cdef const Map *dy = &a.dy_map
    cdef const Map *x = &a.in_map
    cdef const Nchw16WinogradLoops *loops = nchw16_winograd_loops(a.micro)
    cdef WinogradGradientScratch place = winograd_gradient_scratch(x.channels, a.box.c1 - a.box.c0)
    cdef bint turn_input = place.turn_input
    cdef const Map *kept = dy if turn_input else x
    cdef const Map *wide = x if turn_input else dy
    cdef WinogradTransform natural, turned
    cdef NchwReduction q
    cdef float *window = <float *> context.scratch
    cdef const float *source
    cdef int border = WINOGRAD_BORDER if turn_input else 0, width = dy.width
    cdef int g, y, x0, j, num_rows, columns, across, down
    q.rows = place.rows
    q.a, q.a_row, q.a_point = window + place.others, place.others_row, place.others_point
    q.b, q.b_point = window + place.vectors, place.vectors_point
    q.out_row, q.out_point = LANES, place.sums_point
    q.accumulate = 0
    natural.channels = q.rows
    natural.in_pixel = LANES
    natural.in_channel, natural.in_row = plane_size(kept), <Py_ssize_t> kept.pitch * LANES
    natural.out_point, natural.out_channel, natural.out_tile = q.a_point, q.a_row, LANES
    turned.channels = LANES
    turned.in_pixel = LANES
    turned.in_channel = place.window_lane
    turned.out_point, turned.out_channel, turned.out_tile = q.b_point, LANES, LANES * LANES
    strip_shape((width + WINOGRAD_TILE - 1) // WINOGRAD_TILE, &across, &down)
    for g in range(a.box.g0, a.box.g1):
        y = a.box.y0
        while y < a.box.y1:
            num_rows = min(down, (a.box.y1 - y + WINOGRAD_TILE - 1) // WINOGRAD_TILE)
            x0 = 0
            while x0 < width:
                columns = min(across * WINOGRAD_TILE, width - x0)
                natural.tiles = turned.tiles = (columns + WINOGRAD_TILE - 1) // WINOGRAD_TILE
                q.length = num_rows * natural.tiles * LANES
                transform_natural(loops, &a, turn_input, &natural, <float *> q.a, g, y, x0, num_rows)
                turned.in_row = <Py_ssize_t> (natural.tiles * WINOGRAD_TILE + border) * LANES
                turned.columns = columns + border
                source = (a.input + offset(x, g, 0, y - x.halo) + (x0 - x.halo) * LANES if turn_input
                          else a.gradient + offset(dy, g, a.box.c0, y) + x0 * LANES)
                for j in range(place.blocks):
                    transform_turned(
                        a.micro, wide, not turn_input, &turned, source + j * LANES * plane_size(wide),
                        min(LANES, place.lanes_channels - j * LANES), window, <float *> q.b, num_rows,
                        a.box.y1 - y + border)
                    q.out = window + place.sums + j * WINOGRAD_POINTS * q.out_point
                    loops.reduce(&q)
                q.accumulate = 1
                x0 += columns
            y += num_rows * WINOGRAD_TILE
    store_taps(&a, &place, window + place.sums)
    return 0


# The values of the polynomials of five taps at the points, over the products of distances.
_TAPS_AT_POINTS = np.array([
    [1, 0, 0, 0, 0],
    *([[-2.0 / 9.0 * sign**k for k in range(5)] for sign in (1, -1)]),
    *([[(2.0 * sign)**k / 90.0 for k in range(5)] for sign in (1, -1)]),
    *([[32.0 / 45.0 * (0.5 * sign)**k for k in range(5)] for sign in (1, -1)]),
    [0, 0, 0, 0, 1],
])
_TAPS_FROM_POINTS = np.linalg.pinv(_TAPS_AT_POINTS)


@implement(KERNELS, "winograd_weights", <uintptr_t> &winograd_weights)
def _winograd_weights_reference(operands, attributes, bounds, iteration):
    inputs = slice(bounds["c0"], bounds["c1"])
    w = operands["weight"]
    w = w[inputs, :, ::-1, ::-1].swapaxes(0, 1) if attributes["flip"] else w[:, inputs]
    points = np.einsum("pk,ockl,ql->pqco", _TAPS_AT_POINTS, w, _TAPS_AT_POINTS, optimize=True)
    operands["transformed"][:, inputs] = points.reshape(WINOGRAD_POINTS, *points.shape[2:])


def _weight(operands):
    """The weights in PyTorch's layout; they are recovered from their values at Winograd's points, so that the NumPy
    form is the direct convolution."""
    if "weight" in operands:
        return operands["weight"]
    points = operands["transformed"].reshape(8, 8, *operands["transformed"].shape[1:])
    taps = np.einsum("kp,pqco,lq->ockl", _TAPS_FROM_POINTS, points, _TAPS_FROM_POINTS, optimize=True)
    return taps if "bias" in operands else taps.swapaxes(0, 1)[:, :, ::-1, ::-1]


POINTS = WINOGRAD_POINTS  # of the transformed weights of a pair of channels
TILE = WINOGRAD_TILE  # side of a tile of results
