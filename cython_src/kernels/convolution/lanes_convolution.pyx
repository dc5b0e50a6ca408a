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

from libc.string cimport memcpy, memset

from convolution_c cimport *
from pooling_c cimport *

from ..maps.lanes cimport clear_halo, offset, plane_size
from .lanes_epilogue cimport POOL, STORE, UNPOOL, Epilogue, epilogue_of, finish_rows

from functools import partial

import numpy as np

from ..interface.arguments import LANES_BOX, map_attributes
from ..interface.kernel_spec import KernelSpec, longest, register
from ..maps import lanes as lanes_maps
from ..maps.lanes import interior


cdef int convolve(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """Forward pass and data gradient, which has no bias; with an index they are pooled and unpooled. Operands have the
    same places in all four kernels. Bounds: pooled rows where a pooling is involved."""
    cdef conv_relu_pool_args a = read_conv_relu_pool(args, block)
    cdef bint flip = a.bias == NULL
    cdef Epilogue epilogue = epilogue_of(a.bias, a.index)
    cdef const Map *source = &a.in_map
    cdef const Map *target = &a.out_map
    cdef ConvTask t
    cdef VectorRows vectors
    cdef float *scratch = <float *> context.scratch
    cdef int width = source.width + 2 * source.halo - (KERNEL - 1)
    cdef int step = direct_rows(source.lanes, width, source.pitch)
    cdef bint buffers = direct_buffers(source.lanes, width, epilogue == STORE)
    cdef int tile = LANES_TILE if (a.box.c1 - a.box.c0) % LANES_TILE == 0 else LANES_TILE - 1
    # Rows of the convolution in one of the bounds; rows of the output in one.
    cdef int k = 2 if epilogue == POOL else 1, spread = 2 if epilogue == UNPOOL else 1
    cdef int g, o, y, i, n, count, stop
    t.in_channel = plane_size(source)
    t.in_row = <Py_ssize_t> source.pitch * source.lanes
    t.channels_in = source.channels
    t.pixel = source.lanes
    t.flip = flip
    t.w_out = TAPS if flip else source.channels * TAPS
    t.w_in = target.channels * TAPS if flip else TAPS
    for g in range(a.box.g0, a.box.g1):
        o = a.box.c0
        while o < a.box.c1:
            count = min(tile, a.box.c1 - o)
            t.channels_out = count
            t.w = a.weight + o * t.w_out
            t.bias = NULL if flip else a.bias + o
            y = a.box.y0 * k
            stop = a.box.y1 * k
            while y < stop:
                n = min(step, stop - y)
                vectors = rows_as_vectors(source.lanes, width, source.pitch, n)
                t.rows = vectors.rows
                t.vectors = vectors.vectors
                t.input = a.input + offset(source, g, 0, y - source.halo) - source.halo * source.lanes
                if buffers:
                    t.out = scratch
                    t.out_channel = direct_channel(&vectors)
                    t.out_row = vectors.row
                else:
                    t.out = a.output + offset(target, g, o, y)
                    t.out_channel = plane_size(target)
                    t.out_row = <Py_ssize_t> target.pitch * target.lanes
                lanes_convolution_loops(a.micro).convolve(&t)
                for i in range(count if buffers else 0):
                    finish_rows(lanes_pooling_loops(a.micro), epilogue, target, a.output, a.index, g, o + i, y, 0, n,
                                width, scratch + i * t.out_channel, t.out_row)
                y += n
            for i in range(count):
                clear_halo(target, a.output, g, o + i, a.box.y0 * spread, a.box.y1 * spread)
            o += count
    return 0


cdef int conv_backward_weights(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    cdef conv_backward_weights_args a = read_conv_backward_weights(args, block)
    cdef WeightGradientTask t
    cdef VectorRows vectors
    cdef Py_ssize_t row
    vectors = rows_as_vectors(a.dy_map.lanes, a.dy_map.width, a.dy_map.pitch, a.dy_map.height)
    t.rows = vectors.rows
    t.vectors = vectors.vectors
    t.dy = a.gradient + offset(&a.dy_map, a.box.g0, a.box.c0, 0)
    t.x = a.input + offset(&a.in_map, a.box.g0, 0, -a.in_map.halo) - a.in_map.halo * a.in_map.lanes
    t.dy_channel = plane_size(&a.dy_map)
    t.dy_group = t.dy_channel * a.dy_map.channels
    t.dy_row = a.dy_map.pitch * a.dy_map.lanes
    t.x_channel = plane_size(&a.in_map)
    t.x_group = t.x_channel * a.in_map.channels
    t.x_row = a.in_map.pitch * a.in_map.lanes
    t.groups = a.box.g1 - a.box.g0
    t.channels_in = a.in_map.channels
    t.channels_out = a.box.c1 - a.box.c0
    t.pixel = a.in_map.lanes
    t.accumulate = a.accumulate
    t.out_channel = a.in_map.channels * TAPS + 1
    row = a.partial * a.dy_map.channels + a.box.c0
    t.out = a.output + row * t.out_channel
    lanes_convolution_loops(a.micro).weight_gradient(&t)
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
    "conv_forward", ("input", "weight", "bias", "output", "index?"), MAPS, (), LANES_BOX, _conv_forward_reference,
    <uintptr_t> &convolve, scratch_bytes=STORED))
register(KernelSpec(
    "conv_relu_pool", ("input", "weight", "bias", "output", "index"), MAPS, (), LANES_BOX,
    _conv_relu_pool_reference,
    <uintptr_t> &convolve, scratch_bytes=POOLED))
register(KernelSpec(
    "conv_backward_data", ("gradient", "weight", "bias?", "output", "index?"), MAPS, (), LANES_BOX,
    _conv_backward_data_reference, <uintptr_t> &convolve, scratch_bytes=STORED))
register(KernelSpec(
    "conv_backward_data_unpool", ("gradient", "weight", "bias?", "output", "index"), MAPS, (), LANES_BOX,
    _conv_backward_data_unpool_reference, <uintptr_t> &convolve,
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


cdef int convolve_compared(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    cdef conv_algorithm_relu_pool_args a = read_conv_algorithm_relu_pool(args, block)
    cdef bint flip = a.bias == NULL
    cdef Epilogue epilogue = epilogue_of(a.bias, a.index)
    cdef const Map *source = &a.in_map
    cdef const Map *target = &a.out_map
    cdef const LanesAlgorithmsLoops *loops = lanes_algorithms_loops(a.micro)
    cdef ConvTask t
    cdef Extent exist
    cdef float *tile = <float *> context.scratch
    cdef const float *first
    cdef int algorithm = a.algorithm, scale = 2 if epilogue == POOL else 1, spread = 2 if epilogue == UNPOOL else 1
    cdef int height = source.height + 2 * source.halo - (KERNEL - 1)
    cdef int width = source.width + 2 * source.halo - (KERNEL - 1), strip = algorithm_rows(algorithm, height)
    cdef Py_ssize_t tile_channel = algorithm_channel(width), tile_row = <Py_ssize_t> width * LANES
    cdef float *copied = tile + algorithm_scratch(
        algorithm, epilogue == STORE, source.channels, a.box.c1 - a.box.c0, width, (a.box.y1 - a.box.y0) * scale).copied
    cdef int g, o, y, first_row, i, n, count, rows
    t.channels_in = source.channels
    t.vectors = width
    t.pixel = LANES
    t.flip = flip
    t.w_out = TAPS if flip else source.channels * TAPS
    t.w_in = target.channels * TAPS if flip else TAPS
    exist.left = source.halo
    exist.right = source.halo + source.width
    for g in range(a.box.g0, a.box.g1):
        y = a.box.y0 * scale
        while y < a.box.y1 * scale:
            rows = min(strip, a.box.y1 * scale - y)
            first = a.input + offset(source, g, 0, y - source.halo) - source.halo * LANES
            t.in_channel = plane_size(source)
            t.in_row = <Py_ssize_t> source.pitch * LANES
            if algorithm == ALGORITHM_IM2COL:
                loops.copy_taps(first, t.in_channel, t.in_row, source.channels, rows, width, copied)
                first = copied
                t.in_row = tile_row
                t.in_channel = TAPS * rows * tile_row
            elif algorithm >= ALGORITHM_PAD:
                copy_padded(source, a.input, g, y - source.halo, rows + KERNEL - 1, copied)
                first = copied
                t.in_row = tile_row + (KERNEL - 1) * LANES
                t.in_channel = (rows + KERNEL - 1) * t.in_row
            o = a.box.c0
            while o < a.box.c1:
                count = min(LANES_TILE, a.box.c1 - o)
                t.channels_out = count
                t.w = a.weight + o * t.w_out
                t.bias = NULL if flip else a.bias + o
                first_row = y
                while first_row < y + rows:
                    n = min(PAIR_ROWS, y + rows - first_row)
                    t.rows = n
                    t.input = first + (first_row - y) * t.in_row
                    exist.top = max(0, source.halo - first_row)
                    exist.bottom = source.halo + source.height - first_row
                    if epilogue == STORE:
                        t.out = a.output + offset(target, g, o, first_row)
                        t.out_channel = plane_size(target)
                        t.out_row = <Py_ssize_t> target.pitch * LANES
                    else:
                        t.out = tile
                        t.out_channel = tile_channel
                        t.out_row = tile_row
                    if algorithm == ALGORITHM_IM2COL:
                        loops.product(&t)
                    elif algorithm == ALGORITHM_TESTED_BLOCKED:
                        loops.tested(&t, &exist)
                    elif algorithm == ALGORITHM_PAD_BLOCKED:
                        lanes_convolution_loops(a.micro).convolve(&t)
                    else:
                        loops.plain(&t, &exist if algorithm == ALGORITHM_TESTED else NULL)
                    for i in range(count if t.out == tile else 0):
                        finish_rows(lanes_pooling_loops(a.micro), epilogue, target, a.output, a.index, g, o + i,
                                    first_row, 0, n, width, tile + i * tile_channel, tile_row)
                    first_row += n
                o += count
            y += rows
        for o in range(a.box.c0, a.box.c1):
            clear_halo(target, a.output, g, o, a.box.y0 * spread, a.box.y1 * spread)
    return 0


cdef int conv_algorithm_backward_weights(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    cdef conv_algorithm_backward_weights_args a = read_conv_algorithm_backward_weights(args, block)
    cdef WeightGradientTask t
    cdef Extent exist
    cdef float *copied = <float *> context.scratch
    cdef float *to
    cdef float total
    cdef int algorithm = a.algorithm
    cdef int g, o, y, rows, strip
    strip = algorithm_rows(algorithm, a.dy_map.height)
    t.channels_in = a.in_map.channels
    t.channels_out = a.box.c1 - a.box.c0
    t.vectors = a.dy_map.width
    t.pixel = LANES
    t.groups = 1
    t.dy_group = t.x_group = 0
    t.dy_channel = plane_size(&a.dy_map)
    t.dy_row = a.dy_map.pitch * LANES
    t.out_channel = a.in_map.channels * TAPS + 1
    t.out = a.output + (a.partial * a.dy_map.channels + a.box.c0) * t.out_channel
    t.accumulate = a.accumulate
    exist.left = a.in_map.halo
    exist.right = a.in_map.halo + a.in_map.width
    for g in range(a.box.g0, a.box.g1):
        y = 0
        while y < a.dy_map.height:
            rows = min(strip, a.dy_map.height - y)
            t.rows = rows
            t.dy = a.gradient + offset(&a.dy_map, g, a.box.c0, y)
            t.x = a.input + offset(&a.in_map, g, 0, y - a.in_map.halo) - a.in_map.halo * LANES
            t.x_channel = plane_size(&a.in_map)
            t.x_row = a.in_map.pitch * LANES
            exist.top = max(0, a.in_map.halo - y)
            exist.bottom = a.in_map.halo + a.in_map.height - y
            if algorithm == ALGORITHM_IM2COL:
                lanes_algorithms_loops(a.micro).copy_taps(t.x, t.x_channel, t.x_row, a.in_map.channels, rows,
                                                          a.dy_map.width, copied)
                t.x = copied
                t.x_row = a.dy_map.width * LANES
                t.x_channel = TAPS * rows * t.x_row
                lanes_algorithms_loops(a.micro).gradient_product(&t)
            elif algorithm >= ALGORITHM_PAD:
                copy_padded(&a.in_map, a.input, g, y - a.in_map.halo, rows + KERNEL - 1, copied)
                t.x = copied
                t.x_row = <Py_ssize_t> (a.dy_map.width + KERNEL - 1) * LANES
                t.x_channel = (rows + KERNEL - 1) * t.x_row
                if algorithm == ALGORITHM_PAD:
                    lanes_algorithms_loops(a.micro).gradient_plain(&t, NULL)
            elif algorithm == ALGORITHM_TESTED_BLOCKED:
                lanes_algorithms_loops(a.micro).gradient_tested(&t, &exist)
            else:
                lanes_algorithms_loops(a.micro).gradient_plain(&t, &exist)
            if algorithm == ALGORITHM_PAD_BLOCKED:
                lanes_convolution_loops(a.micro).weight_gradient(&t)  # with dY's sums
            else:
                for o in range(t.channels_out):
                    total = lanes_loops(a.micro).sum_rows(t.dy + o * t.dy_channel, rows, t.dy_row,
                                                          a.dy_map.width * LANES)
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
    "conv_algorithm_forward", ("input", "weight", "bias", "output", "index?"), COMPARED_MAPS, (),
    LANES_BOX, _conv_forward_reference, <uintptr_t> &convolve_compared,
    scratch_bytes=STORED))
register(KernelSpec(
    "conv_algorithm_relu_pool", ("input", "weight", "bias", "output", "index"), COMPARED_MAPS, (),
    LANES_BOX, _conv_relu_pool_reference, <uintptr_t> &convolve_compared,
    scratch_bytes=POOLED))
register(KernelSpec(
    "conv_algorithm_backward_data", ("gradient", "weight", "bias?", "output", "index?"), COMPARED_MAPS, (),
    LANES_BOX, _conv_backward_data_reference, <uintptr_t> &convolve_compared,
    scratch_bytes=STORED))
register(KernelSpec(
    "conv_algorithm_backward_data_unpool", ("gradient", "weight", "bias?", "output", "index"), COMPARED_MAPS, (),
    LANES_BOX, _conv_backward_data_unpool_reference, <uintptr_t> &convolve_compared,
    scratch_bytes=SPREAD))
register(KernelSpec(
    "conv_algorithm_backward_weights", ("gradient", "input", "output"),
    map_attributes("dy") + map_attributes("in") + ("accumulate", "algorithm"), (), ("partial", "g0", "g1", "c0", "c1"),
    _conv_backward_weights_reference, <uintptr_t> &conv_algorithm_backward_weights,
    scratch_bytes=_weights_scratch))
