"""Fully connected layer: y = W x + b (alone, or with ReLU), its data gradient (alone, or with the backward pass of
the ReLU, or pooling and ReLU, before it; into a map with or without halo) and its weight gradient.

Features are a map's elements in PyTorch's order (channel, row, column), so a map of the layout "nchw16" or "nchw" is
used as it is.

Flattening makes such vectors of maps with the channels in the lanes, (batch, channels * height * width, 1), and back.
"""

from libc.string cimport memcpy

from dense_c cimport *
from elementwise_c cimport *
from pooling_c cimport *

from ..maps.nchw cimport clear_halo, offset
from ..maps.nhwc cimport channel_end, clear_channel_halo, pixel

import numpy as np

from ..interface.kernel_spec import implement
from ..maps import nchw as nchw_maps
from ..maps.nchw import interior, unpool
from ..maps.nhwc import inside, write_block
from .specs import KERNELS


cdef int fc_forward(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """y, or with the activation its positive parts."""
    cdef fc_forward_args a = read_fc_forward(args, block)
    cdef Py_ssize_t g, size = a.outputs * a.lanes
    cdef float *out = a.output + a.g0 * size
    for g in range(a.g0, a.g1):
        dense_loops(a.micro).forward(a.input + g * a.features * a.lanes, a.weight, a.bias, a.output + g * size,
                                     a.features, a.outputs, a.lanes)
    if a.activation:
        relu_loops(a.micro).forward(out, out, (a.g1 - a.g0) * size)
    return 0


cdef int fc_backward_data(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """The data gradient where the layer's input is positive, if that is given, or where a pooling's index points, zero
    elsewhere; into features, or into a map."""
    cdef fc_backward_data_args a = read_fc_backward_data(args, block)
    cdef const Map *m = &a.out_map
    cdef bint through = a.index != NULL or m.halo > 0  # scratch memory
    cdef Py_ssize_t size = a.features * a.lanes, g, at
    cdef int c, y, scale = 2 if a.index != NULL else 1, row = m.width // scale * <int> a.lanes
    cdef float *dx
    for g in range(a.g0, a.g1):
        dx = <float *> context.scratch if through else a.output + g * size
        dense_loops(a.micro).backward_data(a.gradient + g * a.outputs * a.lanes, a.weight, dx, a.features, a.outputs,
                                           a.lanes)
        if a.activation != NULL:
            relu_loops(a.micro).backward(dx, a.activation + g * size, dx, size)
        at = 0
        for c in range(m.channels if through else 0):
            for y in range(m.height // scale):
                if a.index == NULL:
                    memcpy(a.output + offset(m, g, c, y), dx + at, row * sizeof(float))
                else:
                    nchw_pooling_loops(a.micro).unpool_row(
                        dx + at, a.index + g * size + at, m.width // 2, <int> a.lanes,
                        a.output + offset(m, g, c, 2 * y), a.output + offset(m, g, c, 2 * y + 1))
                at += row
            clear_halo(m, a.output, g, c, 0, m.height)
    return 0


cdef int fc_backward_weights(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    cdef fc_backward_weights_args a = read_fc_backward_weights(args, block)
    dense_loops(a.micro).backward_weights(
        a.gradient + a.g0 * a.outputs * a.lanes, a.input + a.g0 * a.features * a.lanes,
        a.output + a.partial * a.outputs * (a.features + 1), a.g1 - a.g0, a.features, a.outputs, a.lanes, a.accumulate)
    return 0


def _features(array, bounds):
    """(groups, features, lanes) of a block's groups, from a map or from logits."""
    part = array[bounds["g0"] : bounds["g1"]]
    return part.reshape(part.shape[0], -1, array.shape[array.ndim - 1])


@implement(KERNELS, "fc_forward", <uintptr_t> &fc_forward)
def _fc_forward_reference(operands, attributes, bounds, iteration):
    x = _features(operands["input"], bounds)
    out = operands["output"][bounds["g0"] : bounds["g1"]]
    y = np.einsum("of,gfl->gol", operands["weight"], x) + operands["bias"][None, :, None]
    out[:] = (np.where(y <= 0, 0, y) if attributes["activation"] else y).reshape(out.shape)


def _gradient_scratch(attributes, bounds, operands):
    """The gradient of a group before it goes to its places."""
    if "index" not in operands and not attributes["out_halo"]:
        return 0
    return sizeof(float) * attributes["features"] * attributes["lanes"]


@implement(KERNELS, "fc_backward_data", <uintptr_t> &fc_backward_data, scratch_bytes=_gradient_scratch)
def _fc_backward_data_reference(operands, attributes, bounds, iteration):
    g = slice(bounds["g0"], bounds["g1"])
    dx = np.einsum("of,gol->gfl", operands["weight"], _features(operands["gradient"], bounds))
    if "activation" in operands:
        dx = np.where(operands["activation"][g].reshape(dx.shape) > 0, dx, 0)
    out = operands["output"][g]
    if "index" in operands:
        unpool(interior(out, attributes, "out"), operands["index"][g], dx)
    elif attributes["out_halo"]:
        inside_halo = interior(out, attributes, "out")
        inside_halo[:] = dx.reshape(inside_halo.shape)
    else:
        out[:] = dx.reshape(out.shape)
    if "index" in operands or attributes["out_halo"]:
        nchw_maps.clear_halo(operands["output"], attributes, "out", g, slice(None), 0, attributes["out_height"])


@implement(KERNELS, "fc_backward_weights", <uintptr_t> &fc_backward_weights)
def _fc_backward_weights_reference(operands, attributes, bounds, iteration):
    dy = _features(operands["gradient"], bounds)
    out = operands["output"][bounds["partial"]]
    result = np.empty_like(out)
    result[:, :-1] = np.einsum("gol,gfl->of", dy, _features(operands["input"], bounds))
    result[:, -1] = dy.sum(axis=(0, 2))
    out[:] = out + result if attributes["accumulate"] else result


cdef int flatten(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    cdef nhwc_flatten_args a = read_nhwc_flatten(args, block)
    cdef NhwcMap *m = &a.in_map
    cdef Py_ssize_t plane = m.height * m.width
    cdef const float *row
    cdef float *out
    cdef int n, y, x, c, i
    for n in range(a.n0, a.n1):
        for y in range(m.height):
            row = a.input + pixel(m, n, y, 0)
            out = a.output + n * plane * m.channels + <Py_ssize_t> y * m.width
            c = 0
            while c + LANES <= m.channels and m.width >= LANES:
                x = 0
                while x < m.width:
                    x = min(x, m.width - LANES)  # the last pixels again, so that they fill a vector
                    nchw_loops(a.micro).transpose(row + <Py_ssize_t> x * m.pitch + c, m.pitch, LANES,
                                                  out + c * plane + x, plane)
                    x += LANES
                c += LANES
            for i in range(c, m.channels):
                for x in range(m.width):
                    out[i * plane + x] = row[<Py_ssize_t> x * m.pitch + i]
    return 0


cdef int flatten_backward(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    cdef nhwc_flatten_backward_args a = read_nhwc_flatten_backward(args, block)
    cdef NhwcMap *m = &a.out_map
    cdef Py_ssize_t plane = m.height * m.width
    cdef const float *gradient
    cdef float *row
    cdef int n, y, x, c, i, end = channel_end(m, a.box.c1)
    for n in range(a.box.n0, a.box.n1):
        for y in range(a.box.y0, a.box.y1):
            gradient = a.gradient + n * plane * m.channels + <Py_ssize_t> y * m.width
            row = a.output + pixel(m, n, y, 0)
            c = a.box.c0
            while not a.accumulate and c < end and m.width >= LANES:
                x = 0
                while x < m.width:
                    x = min(x, m.width - LANES)
                    nchw_loops(a.micro).transpose(gradient + c * plane + x, plane, min(LANES, m.channels - c),
                                                  row + <Py_ssize_t> x * m.pitch + c, m.pitch)
                    x += LANES
                c += LANES
            for x in range(m.width if c < end else 0):
                for i in range(c, end):
                    if i >= m.channels:
                        row[<Py_ssize_t> x * m.pitch + i] = 0
                    elif a.accumulate:
                        row[<Py_ssize_t> x * m.pitch + i] += gradient[i * plane + x]
                    else:
                        row[<Py_ssize_t> x * m.pitch + i] = gradient[i * plane + x]
    if not a.accumulate:
        clear_channel_halo(m, a.output, &a.box)
    return 0


@implement(KERNELS, "nhwc_flatten", <uintptr_t> &flatten)
def _flatten_reference(operands, attributes, bounds, iteration):
    images = {name: bounds[name] for name in ("n0", "n1")}
    x = inside(operands["input"], attributes, "in", images)[..., : attributes["in_channels"]]
    operands["output"][bounds["n0"] : bounds["n1"], :, 0] = x.transpose(0, 3, 1, 2).reshape(len(x), -1)


@implement(KERNELS, "nhwc_flatten_backward", <uintptr_t> &flatten_backward)
def _flatten_backward_reference(operands, attributes, bounds, iteration):
    shape = (-1, attributes["out_channels"], attributes["out_height"], attributes["out_width"])
    gradient = operands["gradient"][bounds["n0"] : bounds["n1"], :, 0].reshape(shape)
    part = gradient[:, bounds["c0"] : bounds["c1"], bounds["y0"] : bounds["y1"]].transpose(0, 2, 3, 1)
    write_block(operands["output"], attributes, "out", bounds, part, accumulate=attributes["accumulate"])
