"""Winograd algorithm for the 5 x 5 convolutions in the lane layout: tiles of 4 x 4 results, 64 products instead of
400 for each pair of channels (kernels/convolution/lanes_winograd_loops.h).

The weights are transformed by a loop of its own once a step. Here strips of up to four tiles go through input
transform, products and output transform while they are in the cache, then to the same epilogues as the direct
algorithm. Tiles at the edge of a map or of a block take what is not there as zeros and leave what is not asked for.

Sums run over the input channels in order: as in the direct algorithm, results do not depend on how a loop was cut
into blocks. Rounding errors are larger than those of the direct algorithm, about five times on average.
"""

from convolution_c cimport *
from pooling_c cimport *

from ..maps.lanes cimport clear_halo, offset, plane_size
from .lanes_epilogue cimport POOL, UNPOOL, Epilogue, epilogue_of, finish_rows

import numpy as np

from ..interface.arguments import LANES_BOX, map_attributes
from ..interface.kernel_spec import KernelSpec, longest, register
from .lanes_convolution import (
    _conv_backward_data_reference, _conv_backward_data_unpool_reference, _conv_backward_weights_reference,
    _conv_forward_reference, _conv_relu_pool_reference)


cdef void strip_shape(int tiles_across, int *across, int *down) noexcept nogil:
    """Tiles of a strip: a row, or several of a narrow map."""
    across[0] = min(tiles_across, WINOGRAD_STRIP)
    down[0] = WINOGRAD_STRIP // across[0] if tiles_across <= WINOGRAD_STRIP else 1


cdef int convolve(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """As in lanes_convolution.pyx."""
    cdef winograd_relu_pool_args a = read_winograd_relu_pool(args, block)
    cdef Epilogue epilogue = epilogue_of(a.bias, a.index)
    cdef const Map *source = &a.in_map
    cdef const Map *target = &a.out_map
    cdef WinogradTransform t
    cdef WinogradProduct q
    cdef const LanesWinogradLoops *loops = lanes_winograd_loops(a.micro)
    cdef int k = 2 if epilogue == POOL else 1, spread = 2 if epilogue == UNPOOL else 1
    cdef int c0 = a.box.c0, c1 = a.box.c1, first = a.box.y0 * k, stop = a.box.y1 * k
    cdef LanesWinogradScratch place = lanes_winograd_scratch(source.channels, c1 - c0)
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
                            lanes_pooling_loops(a.micro), epilogue, target, a.output, a.index, g, o, i, x0,
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
    lanes_winograd_loops(a.micro).weights(
        a.weight + a.c0 * w_in, w_out, w_in, outputs, a.c1 - a.c0, a.flip,
        a.transformed + a.c0 * outputs, <Py_ssize_t> a.inputs * outputs, outputs)
    return 0


cdef int winograd_backward_weights(const void *args, Py_ssize_t block,
                                   const TaskContext *context) noexcept nogil:
    """Weight gradient; bounds: partial buffer, groups, output channels, rows.

    For each point a matrix product over tiles and images. One side keeps its layout, and its numbers are
    broadcast; the other is transposed, channels in the lanes: the side whose channels fill vectors better.
    """
    cdef winograd_backward_weights_args a = read_winograd_backward_weights(args, block)
    cdef Map *dy = &a.dy_map
    cdef Map *x = &a.in_map
    cdef Map *wide
    cdef const LanesWinogradLoops *loops = lanes_winograd_loops(a.micro)
    cdef WinogradTransform natural, turned
    cdef LanesReduction q
    cdef WinogradGradientScratch place
    cdef const float *from_
    cdef const float *base
    cdef float *window
    cdef float *vectors
    cdef float *gradient
    cdef float *sums
    cdef float *to
    cdef float total
    cdef Py_ssize_t per_out, block_size
    cdef int outputs = a.box.c1 - a.box.c0, g, y, x0, r, i, j, n, blocks, num_rows, columns, across, down, border, count
    cdef int channels, height = a.box.y1, width = dy.width
    cdef bint turn_input
    per_out = x.channels * TAPS + 1
    place = winograd_gradient_scratch(x.channels, outputs)
    turn_input = place.turn_input
    channels = place.lanes_channels
    blocks = place.blocks
    q.rows = place.rows
    q.a_row = place.others_row
    q.a_point = place.others_point
    q.b_point = place.vectors_point
    q.out_row = LANES
    q.out_point = place.sums_point
    q.accumulate = 0
    window = <float *> context.scratch
    vectors = window + place.vectors
    q.a = window + place.others
    sums = window + place.sums
    block_size = WINOGRAD_POINTS * q.out_point
    q.b = vectors

    natural.channels = q.rows
    natural.in_pixel = LANES
    natural.out_point = q.a_point
    natural.out_channel = q.a_row
    natural.out_tile = LANES
    natural.in_channel = plane_size(dy if turn_input else x)
    natural.in_row = <Py_ssize_t> (dy.pitch if turn_input else x.pitch) * LANES
    turned.channels = LANES
    turned.in_pixel = LANES
    turned.in_channel = place.window_lane
    turned.out_point = q.b_point
    turned.out_channel = LANES
    turned.out_tile = LANES * LANES
    wide = x if turn_input else dy
    border = WINOGRAD_BORDER if turn_input else 0
    strip_shape((width + WINOGRAD_TILE - 1) // WINOGRAD_TILE, &across, &down)
    for g in range(a.box.g0, a.box.g1):
        y = a.box.y0
        while y < height:
            num_rows = min(down, (height - y + WINOGRAD_TILE - 1) // WINOGRAD_TILE)
            x0 = 0
            while x0 < width:
                columns = min(across * WINOGRAD_TILE, width - x0)
                natural.tiles = turned.tiles = n = (columns + WINOGRAD_TILE - 1) // WINOGRAD_TILE
                q.length = num_rows * n * LANES
                for r in range(num_rows):
                    natural.out = <float *> q.a + r * n * LANES
                    i = y + r * WINOGRAD_TILE
                    if turn_input:
                        natural.input = a.gradient + offset(dy, g, a.box.c0, i) + x0 * LANES
                        natural.rows = height - i
                        natural.columns = width - x0
                        loops.gradient(&natural)
                    else:
                        natural.input = a.input + offset(x, g, 0, i - x.halo) + (x0 - x.halo) * LANES
                        natural.rows = height + WINOGRAD_BORDER - i
                        natural.columns = x.pitch - x0
                        loops.input(&natural)
                # The window of the side that is transposed: what exists of it.
                base = a.input if turn_input else a.gradient
                base += (offset(x, g, 0, y - x.halo) + (x0 - x.halo) * LANES if turn_input
                         else offset(dy, g, a.box.c0, y) + x0 * LANES)
                turned.in_row = <Py_ssize_t> (n * WINOGRAD_TILE + border) * LANES
                for j in range(blocks):
                    count = min(LANES, channels - j * LANES)
                    for r in range(min(num_rows * WINOGRAD_TILE, height - y) + border):
                        from_ = base + j * LANES * plane_size(wide) + <Py_ssize_t> r * wide.pitch * LANES
                        to = window + r * turned.in_row
                        for i in range(columns + border):
                            lanes_loops(a.micro).transpose(from_ + i * LANES, plane_size(wide), count, to + i * LANES,
                                                           turned.in_channel)
                    for r in range(num_rows):
                        turned.input = window + r * WINOGRAD_TILE * turned.in_row
                        turned.out = vectors + r * n * LANES * LANES
                        turned.rows = height - y - r * WINOGRAD_TILE + border
                        turned.columns = columns + border
                        if turn_input:
                            loops.input(&turned)
                        else:
                            loops.gradient(&turned)
                    q.out = sums + j * block_size
                    loops.reduce(&q)
                q.accumulate = 1
                x0 += columns
            y += num_rows * WINOGRAD_TILE
    gradient = a.output + (a.partial * dy.channels + a.box.c0) * per_out
    for j in range(blocks):
        for r in range(q.rows):
            to = gradient + (r * per_out + j * LANES * TAPS if turn_input else r * TAPS + j * LANES * per_out)
            loops.gradient_output(
                sums + j * block_size + r * LANES, q.out_point, min(LANES, channels - j * LANES), to,
                TAPS if turn_input else per_out, a.accumulate)
    for r in range(outputs):
        to = gradient + r * per_out + x.channels * TAPS
        total = to[0] if a.accumulate else 0
        for g in range(a.box.g0, a.box.g1):
            total += lanes_loops(a.micro).sum_rows(
                a.gradient + offset(dy, g, a.box.c0 + r, a.box.y0), height - a.box.y0,
                <Py_ssize_t> dy.pitch * LANES, <Py_ssize_t> dy.width * LANES)
        to[0] = total
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


def _winograd_weights_reference(operands, attributes, bounds, iteration):
    inputs = slice(bounds["c0"], bounds["c1"])
    w = operands["weight"]
    w = w[inputs, :, ::-1, ::-1].swapaxes(0, 1) if attributes["flip"] else w[:, inputs]
    points = np.einsum("pk,ockl,ql->pqco", _TAPS_AT_POINTS, w, _TAPS_AT_POINTS, optimize=True)
    operands["transformed"][:, inputs] = points.reshape(WINOGRAD_POINTS, *points.shape[2:])


def _with_taps(reference, flip):
    """The NumPy form recovers the weights and is the direct convolution."""

    def direct(operands, attributes, bounds, iteration):
        transformed = operands["transformed"][:, :, bounds["c0"]:bounds["c1"]]
        points = transformed.reshape(8, 8, *transformed.shape[1:])
        taps = np.einsum("kp,pqco,lq->ockl", _TAPS_FROM_POINTS, points, _TAPS_FROM_POINTS, optimize=True)
        if flip:
            taps = taps.swapaxes(0, 1)[:, :, ::-1, ::-1]
        weight = _Cut(taps, bounds["c0"], 1 if flip else 0)
        return reference({**operands, "weight": weight}, attributes, bounds, iteration)

    return direct


class _Cut:
    """Weights of which a block has only its own channels, indexed as if it had all."""

    def __init__(self, weights, start, axis):
        self.weights, self.start, self.axis = weights, start, axis

    def __getitem__(self, key):
        key = list(key) if isinstance(key, tuple) else [key]
        part = key[self.axis]
        key[self.axis] = slice(part.start - self.start, part.stop - self.start)
        return self.weights[tuple(key)]


def _scratch(attributes, bounds, operands):
    return sizeof(float) * lanes_winograd_scratch(attributes["in_channels"], longest(bounds, "c")).end


def _weights_scratch(attributes, bounds, operands):
    return sizeof(float) * max(
        winograd_gradient_scratch(attributes["in_channels"], outputs).end
        for outputs in np.unique(bounds["c1"] - bounds["c0"]))


POINTS = WINOGRAD_POINTS  # of the transformed weights of a pair of channels
TILE = WINOGRAD_TILE  # side of a tile of results
MAPS = map_attributes("in") + map_attributes("out")

register(KernelSpec(
    "winograd_weights", ("weight", "transformed"), ("outputs", "inputs", "flip"), (), ("c0", "c1"),
    _winograd_weights_reference, <uintptr_t> &winograd_weights))
register(KernelSpec(
    "winograd_forward", ("input", "transformed", "bias", "output", "index?"), MAPS, (), LANES_BOX,
    _with_taps(_conv_forward_reference, False), <uintptr_t> &convolve,
    scratch_bytes=_scratch))
register(KernelSpec(
    "winograd_relu_pool", ("input", "transformed", "bias", "output", "index"), MAPS, (), LANES_BOX,
    _with_taps(_conv_relu_pool_reference, False), <uintptr_t> &convolve,
    scratch_bytes=_scratch))
register(KernelSpec(
    "winograd_backward_data", ("gradient", "transformed", "bias?", "output", "index?"), MAPS, (), LANES_BOX,
    _with_taps(_conv_backward_data_reference, True), <uintptr_t> &convolve,
    scratch_bytes=_scratch))
register(KernelSpec(
    "winograd_backward_data_unpool", ("gradient", "transformed", "bias?", "output", "index"), MAPS, (), LANES_BOX,
    _with_taps(_conv_backward_data_unpool_reference, True), <uintptr_t> &convolve,
    scratch_bytes=_scratch))
register(KernelSpec(
    "winograd_backward_weights", ("gradient", "input", "output"),
    map_attributes("dy") + map_attributes("in") + ("accumulate",), (),
    ("partial", "g0", "g1", "c0", "c1", "y0", "y1"), _conv_backward_weights_reference,
    <uintptr_t> &winograd_backward_weights,
    scratch_bytes=_weights_scratch))
