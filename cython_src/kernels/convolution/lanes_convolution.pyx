"""Convolution with 5 x 5 kernels and stride 1: forward (alone, or with ReLU and pooling), data
gradient (alone, or with the backward pass of the pooling and ReLU before it) and weight gradient.

Y[o, y, x] = b[o] + sum over c, ky, kx of W[o, c, ky, kx] * X[c, y + ky - p, x + kx - p]

The padding p is the halo of X; the data gradient's dY has a halo of 4 - p. The flat layout has padding 2 alone.

Parameters are read in PyTorch's layout, (out, in, 5, 5), one number at a time, so nothing is packed. The data
gradient is the same inner loop with the roles of the channels exchanged and the taps reversed.

Algorithms that the direct one is compared with, by the attribute "algorithm", a position in algorithms.COMPARED;
forward pass and data gradient sum in the direct algorithm's order, so they have its bits.

im2col       inputs of all taps copied side by side, then a product with the weights
if           bounds tested at each tap, one output pixel at a time
if_blocked   the same with a tile of outputs in registers
pad          the input copied between zeros first, then one output pixel at a time
pad_blocked  the same with the direct algorithm's tiles
"""

from libc.stdint cimport int32_t, uint8_t, uintptr_t
from libc.string cimport memcpy, memset

from ..interface.block_kernel cimport KernelArgs, TaskContext
from ..maps.lanes cimport Map, clear_halo, offset, plane_size, read_map
from ..maps.lanes_loops cimport LanesLoops
from ..pooling.lanes_loops cimport LanesPoolingLoops
from ..simd.lanes cimport LANES
from .lanes_epilogue cimport POOL, STORE, UNPOOL, Epilogue, finish_rows
from .lanes_loops cimport KERNEL, TAPS, ConvTask, LanesConvolutionLoops, WeightGradientTask

from functools import partial

import numpy as np

from ..interface.kernel_spec import KernelSpec, longest, register
from ..maps import lanes as lanes_maps
from ..maps.lanes import BOX, interior, map_attributes


cdef extern from "cython_src/kernels/convolution/lanes_sizes.h" nogil:
    const int LANES_TILE

    ctypedef struct VectorRows:
        int rows, vectors
        Py_ssize_t row

    VectorRows rows_as_vectors(int lanes, int width, int pitch, int rows)
    bint direct_buffers(int lanes, int width, bint stores)
    int direct_rows(int lanes, int width, int pitch)
    Py_ssize_t direct_channel(const VectorRows *r)
    Py_ssize_t direct_scratch(int lanes, int width, int pitch, bint stores, int channels, int rows)

    const int ALGORITHM_IM2COL, ALGORITHM_TESTED, ALGORITHM_TESTED_BLOCKED, ALGORITHM_PAD, ALGORITHM_PAD_BLOCKED
    const int PAIR_ROWS

    ctypedef struct AlgorithmScratch:
        Py_ssize_t copied, end

    int algorithm_rows(int algorithm, int rows)
    Py_ssize_t algorithm_channel(int width)
    AlgorithmScratch algorithm_scratch(int algorithm, bint stores, int inputs, int outputs, int width, int rows)


cdef extern from "cython_src/kernels/convolution/lanes_algorithms_loops.h" nogil:
    ctypedef struct Extent:
        int top, bottom, left, right

    ctypedef struct LanesAlgorithmsLoops:
        void (*plain)(const ConvTask *, const Extent *) noexcept nogil
        void (*tested)(const ConvTask *, const Extent *) noexcept nogil
        void (*copy_taps)(const float *, Py_ssize_t, Py_ssize_t, int, int, int, float *) noexcept nogil
        void (*product)(const ConvTask *) noexcept nogil
        void (*gradient_plain)(const WeightGradientTask *, const Extent *) noexcept nogil
        void (*gradient_tested)(const WeightGradientTask *, const Extent *) noexcept nogil
        void (*gradient_product)(const WeightGradientTask *) noexcept nogil


cdef extern from "cython_src/kernels/simd/micro_kernels.h" nogil:
    ctypedef struct Micro "MicroKernels":  # what is used here of the table of inner loops
        const LanesConvolutionLoops *lanes_convolution
        const LanesPoolingLoops *lanes_pooling
        const LanesLoops *lanes
        const LanesAlgorithmsLoops *lanes_algorithms


cdef int convolve(const KernelArgs *a, Py_ssize_t block, const TaskContext *context, bint flip,
                  Epilogue epilogue) noexcept nogil:
    """All parts of the convolution. bounds: groups, output channels, rows (pooled rows where a pooling is
    involved)."""
    cdef Map source, target
    cdef ConvTask t
    cdef VectorRows vectors
    cdef const Micro *micro = <const Micro *> a.micro
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef const float *x = <const float *> a.operand[0]
    cdef const float *w = <const float *> a.operand[1]
    cdef const float *bias = NULL if flip else <const float *> a.operand[2]
    cdef float *out = <float *> a.operand[2 if flip else 3]
    cdef uint8_t *index = <uint8_t *> a.operand[3 if flip else 4] if epilogue != STORE else NULL
    cdef float *scratch = <float *> context.scratch
    cdef int g, o, y, i, k, n, count, stop, step, tile, spread, width
    cdef bint buffers
    read_map(&source, a.integers)
    read_map(&target, a.integers + 7)
    t.in_channel = plane_size(&source)
    t.in_row = <Py_ssize_t> source.pitch * source.lanes
    t.channels_in = source.channels
    t.pixel = source.lanes
    t.flip = flip
    t.w_out = TAPS if flip else source.channels * TAPS
    t.w_in = target.channels * TAPS if flip else TAPS
    width = source.width + 2 * source.halo - (KERNEL - 1)
    buffers = direct_buffers(source.lanes, width, epilogue == STORE)
    step = direct_rows(source.lanes, width, source.pitch)
    tile = LANES_TILE if (b[3] - b[2]) % LANES_TILE == 0 else LANES_TILE - 1
    # Rows of the convolution in one of the bounds; rows of the output in one.
    k = 2 if epilogue == POOL else 1
    spread = 2 if epilogue == UNPOOL else 1
    for g in range(b[0], b[1]):
        o = b[2]
        while o < b[3]:
            count = min(tile, b[3] - o)
            t.channels_out = count
            t.w = w + o * t.w_out
            t.bias = NULL if flip else bias + o
            y = b[4] * k
            stop = b[5] * k
            while y < stop:
                n = min(step, stop - y)
                vectors = rows_as_vectors(source.lanes, width, source.pitch, n)
                t.rows = vectors.rows
                t.vectors = vectors.vectors
                t.input = x + offset(&source, g, 0, y - source.halo) - source.halo * source.lanes
                if buffers:
                    t.out = scratch
                    t.out_channel = direct_channel(&vectors)
                    t.out_row = vectors.row
                else:
                    t.out = out + offset(&target, g, o, y)
                    t.out_channel = plane_size(&target)
                    t.out_row = <Py_ssize_t> target.pitch * target.lanes
                micro.lanes_convolution.convolve(&t)
                if buffers:
                    for i in range(count):
                        finish_rows(micro.lanes_pooling, epilogue, &target, out, index, g, o + i, y, 0, n, width,
                                    scratch + i * t.out_channel, t.out_row)
                y += n
            for i in range(count):
                clear_halo(&target, out, g, o + i, b[4] * spread, b[5] * spread)
            o += count
    return 0


cdef int conv_forward(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    return convolve(<const KernelArgs *> args, block, context, False, STORE)


cdef int conv_relu_pool(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    return convolve(<const KernelArgs *> args, block, context, False, POOL)


cdef int conv_backward_data(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    return convolve(<const KernelArgs *> args, block, context, True, STORE)


cdef int conv_backward_data_unpool(const void *args, Py_ssize_t block,
                                   const TaskContext *context) noexcept nogil:
    return convolve(<const KernelArgs *> args, block, context, True, UNPOOL)


cdef int conv_backward_weights(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """bounds: partial buffer, groups, output channels."""
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef Map dy, x
    cdef WeightGradientTask t
    cdef VectorRows vectors
    cdef Py_ssize_t row
    read_map(&dy, a.integers)
    read_map(&x, a.integers + 7)
    vectors = rows_as_vectors(dy.lanes, dy.width, dy.pitch, dy.height)
    t.rows = vectors.rows
    t.vectors = vectors.vectors
    t.dy = <const float *> a.operand[0] + offset(&dy, b[1], b[3], 0)
    t.x = <const float *> a.operand[1] + offset(&x, b[1], 0, -x.halo) - x.halo * x.lanes
    t.dy_channel = plane_size(&dy)
    t.dy_group = t.dy_channel * dy.channels
    t.dy_row = <Py_ssize_t> dy.pitch * dy.lanes
    t.x_channel = plane_size(&x)
    t.x_group = t.x_channel * x.channels
    t.x_row = <Py_ssize_t> x.pitch * x.lanes
    t.groups = b[2] - b[1]
    t.channels_in = x.channels
    t.channels_out = b[4] - b[3]
    t.pixel = x.lanes
    t.accumulate = <int> a.integers[14]
    t.out_channel = x.channels * TAPS + 1
    row = <Py_ssize_t> b[0] * dy.channels + b[3]
    t.out = <float *> a.operand[2] + row * t.out_channel
    (<const Micro *> a.micro).lanes_convolution.weight_gradient(&t)
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


def _convolve(operands, attributes, bounds, y0, y1):
    g, o = slice(bounds["g0"], bounds["g1"]), slice(bounds["c0"], bounds["c1"])
    w = operands["weight"][o]
    result = operands["bias"][o].reshape(1, -1, 1, 1, 1)
    for ky, kx, x in _taps(operands["input"], attributes, "in", g, y0, y1):
        result = result + np.einsum("oc,gcyxl->goyxl", w[:, :, ky, kx], x)
    return g, o, result


def _conv_forward_reference(operands, attributes, bounds, iteration):
    y0, y1 = bounds["y0"], bounds["y1"]
    g, o, result = _convolve(operands, attributes, bounds, y0, y1)
    interior(operands["output"], attributes, "out")[g, o, y0:y1] = result
    lanes_maps.clear_halo(operands["output"], attributes, "out", g, o, y0, y1)


def _conv_relu_pool_reference(operands, attributes, bounds, iteration):
    y0, y1 = bounds["y0"], bounds["y1"]
    g, o, result = _convolve(operands, attributes, bounds, 2 * y0, 2 * y1)
    windows = np.stack([result[:, :, i::2, j::2] for i in (0, 1) for j in (0, 1)])
    best = windows.max(axis=0)
    operands["index"][g, o, y0:y1] = np.where(best <= 0, 4, windows.argmax(axis=0))
    interior(operands["output"], attributes, "out")[g, o, y0:y1] = np.where(best <= 0, 0, best)
    lanes_maps.clear_halo(operands["output"], attributes, "out", g, o, y0, y1)


def _data_gradient(operands, attributes, bounds):
    g, c = slice(bounds["g0"], bounds["g1"]), slice(bounds["c0"], bounds["c1"])
    y0, y1 = bounds["y0"], bounds["y1"]
    w = operands["weight"][:, c, ::-1, ::-1]
    result = 0
    for ky, kx, dy in _taps(operands["gradient"], attributes, "in", g, y0, y1):
        result = result + np.einsum("oc,goyxl->gcyxl", w[:, :, ky, kx], dy)
    return g, c, result


def _conv_backward_data_reference(operands, attributes, bounds, iteration):
    y0, y1 = bounds["y0"], bounds["y1"]
    g, c, result = _data_gradient(operands, attributes, bounds)
    interior(operands["output"], attributes, "out")[g, c, y0:y1] = result
    lanes_maps.clear_halo(operands["output"], attributes, "out", g, c, y0, y1)


def _conv_backward_data_unpool_reference(operands, attributes, bounds, iteration):
    y0, y1 = bounds["y0"], bounds["y1"]
    g, c, result = _data_gradient(operands, attributes, bounds)
    index = operands["index"][g, c, y0:y1]
    out = interior(operands["output"], attributes, "out")[g, c, 2 * y0 : 2 * y1]
    for i in (0, 1):
        for j in (0, 1):
            out[:, :, i::2, j::2] = np.where(index == 2 * i + j, result, 0)
    lanes_maps.clear_halo(operands["output"], attributes, "out", g, c, 2 * y0, 2 * y1)


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


def _scratch(scale, stores, attributes, bounds, operands):
    """`scale`: rows of the result in one of the bounds."""
    return sizeof(float) * direct_scratch(
        attributes["in_lanes"], result_width(attributes), attributes["in_pitch"], stores, longest(bounds, "c"),
        scale * longest(bounds, "y"))


STORED, POOLED, SPREAD = (partial(_scratch, *how) for how in ((1, True), (2, False), (1, False)))
MAPS = map_attributes("in") + map_attributes("out")

register(KernelSpec(
    "conv_forward", ("input", "weight", "bias", "output"), MAPS, (), BOX, _conv_forward_reference,
    <uintptr_t> &conv_forward, scratch_bytes=STORED))
register(KernelSpec(
    "conv_relu_pool", ("input", "weight", "bias", "output", "index"), MAPS, (), BOX,
    _conv_relu_pool_reference,
    <uintptr_t> &conv_relu_pool, scratch_bytes=POOLED))
register(KernelSpec(
    "conv_backward_data", ("gradient", "weight", "output"), MAPS, (), BOX, _conv_backward_data_reference,
    <uintptr_t> &conv_backward_data, scratch_bytes=STORED))
register(KernelSpec(
    "conv_backward_data_unpool", ("gradient", "weight", "output", "index"), MAPS, (), BOX,
    _conv_backward_data_unpool_reference, <uintptr_t> &conv_backward_data_unpool,
    scratch_bytes=SPREAD))
register(KernelSpec(
    "conv_backward_weights", ("gradient", "input", "output"),
    map_attributes("dy") + map_attributes("in") + ("accumulate",), (), ("partial", "g0", "g1", "c0", "c1"),
    _conv_backward_weights_reference, <uintptr_t> &conv_backward_weights))


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


cdef int convolve_compared(const KernelArgs *a, Py_ssize_t block, const TaskContext *context, bint flip,
                           Epilogue epilogue) noexcept nogil:
    """bounds: groups, output channels, rows (pooled rows where a pooling is involved)."""
    cdef Map source, target
    cdef ConvTask t
    cdef Extent exist
    cdef const Micro *micro = <const Micro *> a.micro
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef const float *x = <const float *> a.operand[0]
    cdef const float *w = <const float *> a.operand[1]
    cdef const float *bias = NULL if flip else <const float *> a.operand[2]
    cdef float *out = <float *> a.operand[2 if flip else 3]
    cdef uint8_t *index = <uint8_t *> a.operand[3 if flip else 4] if epilogue != STORE else NULL
    cdef float *tile = <float *> context.scratch
    cdef float *copied
    cdef const float *first
    cdef int algorithm = <int> a.integers[14]
    cdef int g, o, y, first_row, i, n, count, rows, strip, height, width, scale, spread
    cdef Py_ssize_t tile_channel, tile_row
    read_map(&source, a.integers)
    read_map(&target, a.integers + 7)
    height = source.height + 2 * source.halo - (KERNEL - 1)
    width = source.width + 2 * source.halo - (KERNEL - 1)
    tile_row = <Py_ssize_t> width * LANES
    tile_channel = algorithm_channel(width)
    scale = 2 if epilogue == POOL else 1
    spread = 2 if epilogue == UNPOOL else 1
    copied = tile + algorithm_scratch(algorithm, epilogue == STORE, source.channels, b[3] - b[2], width,
                                      (b[5] - b[4]) * scale).copied
    strip = algorithm_rows(algorithm, height)
    t.channels_in = source.channels
    t.vectors = width
    t.pixel = LANES
    t.flip = flip
    t.w_out = TAPS if flip else source.channels * TAPS
    t.w_in = target.channels * TAPS if flip else TAPS
    exist.left = source.halo
    exist.right = source.halo + source.width
    for g in range(b[0], b[1]):
        y = b[4] * scale
        while y < b[5] * scale:
            rows = min(strip, b[5] * scale - y)
            first = x + offset(&source, g, 0, y - source.halo) - source.halo * LANES
            t.in_channel = plane_size(&source)
            t.in_row = <Py_ssize_t> source.pitch * LANES
            if algorithm == ALGORITHM_IM2COL:
                micro.lanes_algorithms.copy_taps(first, t.in_channel, t.in_row, source.channels, rows, width, copied)
                first = copied
                t.in_row = tile_row
                t.in_channel = TAPS * rows * tile_row
            elif algorithm >= ALGORITHM_PAD:
                copy_padded(&source, x, g, y - source.halo, rows + KERNEL - 1, copied)
                first = copied
                t.in_row = tile_row + (KERNEL - 1) * LANES
                t.in_channel = (rows + KERNEL - 1) * t.in_row
            o = b[2]
            while o < b[3]:
                count = min(LANES_TILE, b[3] - o)
                t.channels_out = count
                t.w = w + o * t.w_out
                t.bias = NULL if flip else bias + o
                first_row = y
                while first_row < y + rows:
                    n = min(PAIR_ROWS, y + rows - first_row)
                    t.rows = n
                    t.input = first + (first_row - y) * t.in_row
                    exist.top = max(0, source.halo - first_row)
                    exist.bottom = source.halo + source.height - first_row
                    if epilogue == STORE:
                        t.out = out + offset(&target, g, o, first_row)
                        t.out_channel = plane_size(&target)
                        t.out_row = <Py_ssize_t> target.pitch * LANES
                    else:
                        t.out = tile
                        t.out_channel = tile_channel
                        t.out_row = tile_row
                    if algorithm == ALGORITHM_IM2COL:
                        micro.lanes_algorithms.product(&t)
                    elif algorithm == ALGORITHM_TESTED_BLOCKED:
                        micro.lanes_algorithms.tested(&t, &exist)
                    elif algorithm == ALGORITHM_PAD_BLOCKED:
                        micro.lanes_convolution.convolve(&t)
                    else:
                        micro.lanes_algorithms.plain(&t, &exist if algorithm == ALGORITHM_TESTED else NULL)
                    for i in range(count if t.out == tile else 0):
                        finish_rows(
                            micro.lanes_pooling, epilogue, &target, out, index, g, o + i, first_row, 0, n, width,
                            tile + i * tile_channel, tile_row)
                    first_row += n
                o += count
            y += rows
        for o in range(b[2], b[3]):
            clear_halo(&target, out, g, o, b[4] * spread, b[5] * spread)
    return 0


cdef int conv_algorithm_forward(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    return convolve_compared(<const KernelArgs *> args, block, context, False, STORE)


cdef int conv_algorithm_relu_pool(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    return convolve_compared(<const KernelArgs *> args, block, context, False, POOL)


cdef int conv_algorithm_backward_data(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    return convolve_compared(<const KernelArgs *> args, block, context, True, STORE)


cdef int conv_algorithm_backward_data_unpool(const void *args, Py_ssize_t block,
                                             const TaskContext *context) noexcept nogil:
    return convolve_compared(<const KernelArgs *> args, block, context, True, UNPOOL)


cdef int conv_algorithm_backward_weights(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """bounds: partial buffer, groups, output channels."""
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef const Micro *micro = <const Micro *> a.micro
    cdef Map dy, x
    cdef WeightGradientTask t
    cdef Extent exist
    cdef float *copied = <float *> context.scratch
    cdef float *to
    cdef float total
    cdef const float *inputs = <const float *> a.operand[1]
    cdef int algorithm = <int> a.integers[15]
    cdef int g, o, y, rows, strip
    read_map(&dy, a.integers)
    read_map(&x, a.integers + 7)
    strip = algorithm_rows(algorithm, dy.height)
    t.channels_in = x.channels
    t.channels_out = b[4] - b[3]
    t.vectors = dy.width
    t.pixel = LANES
    t.groups = 1
    t.dy_group = t.x_group = 0
    t.dy_channel = plane_size(&dy)
    t.dy_row = <Py_ssize_t> dy.pitch * LANES
    t.out_channel = x.channels * TAPS + 1
    t.out = <float *> a.operand[2] + (<Py_ssize_t> b[0] * dy.channels + b[3]) * t.out_channel
    t.accumulate = <int> a.integers[14]
    exist.left = x.halo
    exist.right = x.halo + x.width
    for g in range(b[1], b[2]):
        y = 0
        while y < dy.height:
            rows = min(strip, dy.height - y)
            t.rows = rows
            t.dy = <const float *> a.operand[0] + offset(&dy, g, b[3], y)
            t.x = inputs + offset(&x, g, 0, y - x.halo) - x.halo * LANES
            t.x_channel = plane_size(&x)
            t.x_row = <Py_ssize_t> x.pitch * LANES
            exist.top = max(0, x.halo - y)
            exist.bottom = x.halo + x.height - y
            if algorithm == ALGORITHM_IM2COL:
                micro.lanes_algorithms.copy_taps(t.x, t.x_channel, t.x_row, x.channels, rows, dy.width, copied)
                t.x = copied
                t.x_row = <Py_ssize_t> dy.width * LANES
                t.x_channel = TAPS * rows * t.x_row
                micro.lanes_algorithms.gradient_product(&t)
            elif algorithm >= ALGORITHM_PAD:
                copy_padded(&x, inputs, g, y - x.halo, rows + KERNEL - 1, copied)
                t.x = copied
                t.x_row = <Py_ssize_t> (dy.width + KERNEL - 1) * LANES
                t.x_channel = (rows + KERNEL - 1) * t.x_row
                if algorithm == ALGORITHM_PAD:
                    micro.lanes_algorithms.gradient_plain(&t, NULL)
            elif algorithm == ALGORITHM_TESTED_BLOCKED:
                micro.lanes_algorithms.gradient_tested(&t, &exist)
            else:
                micro.lanes_algorithms.gradient_plain(&t, &exist)
            if algorithm == ALGORITHM_PAD_BLOCKED:
                micro.lanes_convolution.weight_gradient(&t)  # with dY's sums
            else:
                for o in range(t.channels_out):
                    total = micro.lanes.sum_rows(t.dy + o * t.dy_channel, rows, t.dy_row, <Py_ssize_t> dy.width * LANES)
                    to = t.out + o * t.out_channel + t.channels_in * TAPS
                    to[0] = to[0] + total if t.accumulate else total
            t.accumulate = True
            y += rows
    return 0


def _compared_scratch(scale, stores, attributes, bounds, operands):
    """`scale`: rows of the result in one of the bounds."""
    return sizeof(float) * algorithm_scratch(
        attributes["algorithm"], stores, attributes["in_channels"], longest(bounds, "c"),
        result_width(attributes), scale * longest(bounds, "y")).end


def _weights_scratch(attributes, bounds, operands):
    return sizeof(float) * algorithm_scratch(
        attributes["algorithm"], True, attributes["in_channels"], longest(bounds, "c"), attributes["dy_width"],
        attributes["dy_height"]).end


STORED, POOLED, SPREAD = (partial(_compared_scratch, *how) for how in ((1, True), (2, False), (1, False)))
COMPARED_MAPS = MAPS + ("algorithm",)
register(KernelSpec(
    "conv_algorithm_forward", ("input", "weight", "bias", "output"), COMPARED_MAPS, (), BOX,
    _conv_forward_reference, <uintptr_t> &conv_algorithm_forward,
    scratch_bytes=STORED))
register(KernelSpec(
    "conv_algorithm_relu_pool", ("input", "weight", "bias", "output", "index"), COMPARED_MAPS, (), BOX,
    _conv_relu_pool_reference, <uintptr_t> &conv_algorithm_relu_pool,
    scratch_bytes=POOLED))
register(KernelSpec(
    "conv_algorithm_backward_data", ("gradient", "weight", "output"), COMPARED_MAPS, (), BOX,
    _conv_backward_data_reference, <uintptr_t> &conv_algorithm_backward_data,
    scratch_bytes=STORED))
register(KernelSpec(
    "conv_algorithm_backward_data_unpool", ("gradient", "weight", "output", "index"), COMPARED_MAPS, (), BOX,
    _conv_backward_data_unpool_reference, <uintptr_t> &conv_algorithm_backward_data_unpool,
    scratch_bytes=SPREAD))
register(KernelSpec(
    "conv_algorithm_backward_weights", ("gradient", "input", "output"),
    map_attributes("dy") + map_attributes("in") + ("accumulate", "algorithm"), (), ("partial", "g0", "g1", "c0", "c1"),
    _conv_backward_weights_reference, <uintptr_t> &conv_algorithm_backward_weights,
    scratch_bytes=_weights_scratch))
