"""Fully connected layer: y = W x + b (alone, or with ReLU), its data gradient (alone, or with the backward pass of
the ReLU, or pooling and ReLU, before it; into a map with or without halo) and its weight gradient.

Features are a map's elements in PyTorch's order (channel, row, column), so a map of the lane layout is used
as it is.

Flattening makes such vectors of maps with the channels in the lanes, (batch, channels * height * width, 1), and back.
"""

from libc.stdint cimport int32_t, uint8_t, uintptr_t
from libc.string cimport memcpy

from ..elementwise.relu_loops cimport ReluLoops
from ..interface.block_kernel cimport KernelArgs, TaskContext
from ..maps.channels cimport ChannelsMap, channel_end, clear_channel_halo, pixel, read_channels_map
from ..maps.lanes cimport Map, clear_halo, offset, read_map
from ..maps.lanes_loops cimport LanesLoops
from ..pooling.lanes_loops cimport LanesPoolingLoops
from ..simd.lanes cimport LANES

import numpy as np

from ..interface.kernel_spec import KernelSpec, register
from ..maps import channels as channels_maps, lanes as lanes_maps
from ..maps.channels import BOX, channels_attributes, inside, write_block
from ..maps.lanes import interior, map_attributes


cdef extern from "cython_src/kernels/dense/dense_loops.h" nogil:
    ctypedef struct DenseLoops:
        void (*forward)(const float *, const float *, const float *, float *, int, int, int) noexcept nogil
        void (*backward_data)(const float *, const float *, float *, int, int, int) noexcept nogil
        void (*backward_weights)(const float *, const float *, float *, int, int, int, int, int) noexcept nogil


cdef extern from "cython_src/kernels/simd/micro_kernels.h" nogil:
    ctypedef struct Micro "MicroKernels":  # what is used here of the table of inner loops
        const DenseLoops *dense
        const LanesPoolingLoops *lanes_pooling
        const ReluLoops *relu
        const LanesLoops *lanes


cdef int fc_forward(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """bounds: groups."""
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef int features = <int> a.integers[0], outputs = <int> a.integers[1], lanes = <int> a.integers[2]
    cdef Py_ssize_t g
    for g in range(b[0], b[1]):
        (<const Micro *> a.micro).dense.forward(
            <const float *> a.operand[0] + g * features * lanes, <const float *> a.operand[1],
            <const float *> a.operand[2], <float *> a.operand[3] + g * outputs * lanes, features, outputs,
            lanes)
    return 0


cdef int fc_relu_forward(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """Positive parts of y. bounds: groups."""
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef Py_ssize_t size = a.integers[1] * a.integers[2]
    cdef float *out = <float *> a.operand[3] + b[0] * size
    fc_forward(args, block, context)
    (<const Micro *> a.micro).relu.forward(out, out, (b[1] - b[0]) * size)
    return 0


cdef int fc_backward_data_relu(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """The data gradient where the layer's input is positive, else zero. bounds: groups."""
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef Py_ssize_t size = a.integers[0] * a.integers[2]
    cdef float *out = <float *> a.operand[2] + b[0] * size
    fc_backward_data(args, block, context)
    (<const Micro *> a.micro).relu.backward(out, <const float *> a.operand[3] + b[0] * size, out,
                                            (b[1] - b[0]) * size)
    return 0


cdef int fc_backward_data(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """bounds: groups."""
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef int features = <int> a.integers[0], outputs = <int> a.integers[1], lanes = <int> a.integers[2]
    cdef Py_ssize_t g
    for g in range(b[0], b[1]):
        (<const Micro *> a.micro).dense.backward_data(
            <const float *> a.operand[0] + g * outputs * lanes, <const float *> a.operand[1],
            <float *> a.operand[2] + g * features * lanes, features, outputs, lanes)
    return 0


cdef int fc_backward_data_unpool(const void *args, Py_ssize_t block,
                                 const TaskContext *context) noexcept nogil:
    """The data gradient goes where the pooling's index points, zero elsewhere. bounds: groups."""
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const Micro *micro = <const Micro *> a.micro
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef int features = <int> a.integers[0], outputs = <int> a.integers[1], lanes = <int> a.integers[2]
    cdef const uint8_t *index = <const uint8_t *> a.operand[2]
    cdef float *out = <float *> a.operand[3]
    cdef float *dx = <float *> context.scratch
    cdef Map m
    cdef int g, c, y, width
    cdef Py_ssize_t at
    read_map(&m, a.integers + 3)
    width = m.width // 2
    for g in range(b[0], b[1]):
        micro.dense.backward_data(<const float *> a.operand[0] + <Py_ssize_t> g * outputs * lanes,
                                  <const float *> a.operand[1], dx, features, outputs, lanes)
        at = 0
        for c in range(m.channels):
            for y in range(m.height // 2):
                micro.lanes_pooling.unpool_row(
                    dx + at, index + <Py_ssize_t> g * features * lanes + at, width, lanes,
                    out + offset(&m, g, c, 2 * y), out + offset(&m, g, c, 2 * y + 1))
                at += width * lanes
            clear_halo(&m, out, g, c, 0, m.height)
    return 0


cdef int fc_backward_data_halo(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """The data gradient into a map with a halo, where the layer's input is positive if given. bounds: groups."""
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const Micro *micro = <const Micro *> a.micro
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef int features = <int> a.integers[0], outputs = <int> a.integers[1], lanes = <int> a.integers[2]
    cdef Py_ssize_t size = <Py_ssize_t> features * lanes, at
    cdef const float *activation = <const float *> a.operand[3]
    cdef float *out = <float *> a.operand[2]
    cdef float *dx = <float *> context.scratch
    cdef Map m
    cdef int g, c, y
    read_map(&m, a.integers + 3)
    for g in range(b[0], b[1]):
        micro.dense.backward_data(<const float *> a.operand[0] + <Py_ssize_t> g * outputs * lanes,
                                  <const float *> a.operand[1], dx, features, outputs, lanes)
        if activation != NULL:
            micro.relu.backward(dx, activation + g * size, dx, size)
        at = 0
        for c in range(m.channels):
            for y in range(m.height):
                memcpy(out + offset(&m, g, c, y), dx + at, m.width * lanes * sizeof(float))
                at += m.width * lanes
            clear_halo(&m, out, g, c, 0, m.height)
    return 0


cdef int fc_backward_weights(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """bounds: partial buffer, groups."""
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef int features = <int> a.integers[0], outputs = <int> a.integers[1], lanes = <int> a.integers[2]
    cdef Py_ssize_t g = b[1]
    (<const Micro *> a.micro).dense.backward_weights(
        <const float *> a.operand[0] + g * outputs * lanes,
        <const float *> a.operand[1] + g * features * lanes,
        <float *> a.operand[2] + <Py_ssize_t> b[0] * outputs * (features + 1), b[2] - b[1], features,
        outputs, lanes,
        <int> a.integers[3])
    return 0


def _features(array, bounds):
    """(groups, features, lanes) of a block's groups, from a map or from logits."""
    part = array[bounds["g0"] : bounds["g1"]]
    return part.reshape(part.shape[0], -1, array.shape[array.ndim - 1])


def _fc_forward_reference(operands, attributes, bounds, iteration):
    x = _features(operands["input"], bounds)
    out = operands["output"][bounds["g0"] : bounds["g1"]]
    y = np.einsum("of,gfl->gol", operands["weight"], x) + operands["bias"][None, :, None]
    out[:] = y.reshape(out.shape)


def _fc_relu_forward_reference(operands, attributes, bounds, iteration):
    _fc_forward_reference(operands, attributes, bounds, iteration)
    out = operands["output"][bounds["g0"] : bounds["g1"]]
    out[:] = np.where(out <= 0, 0, out)


def _fc_backward_data_reference(operands, attributes, bounds, iteration):
    dx = np.einsum("of,gol->gfl", operands["weight"], _features(operands["gradient"], bounds))
    out = operands["output"][bounds["g0"] : bounds["g1"]]
    out[:] = dx.reshape(out.shape)


def _fc_backward_data_relu_reference(operands, attributes, bounds, iteration):
    _fc_backward_data_reference(operands, attributes, bounds, iteration)
    out = operands["output"][bounds["g0"] : bounds["g1"]]
    out[:] = np.where(operands["activation"][bounds["g0"] : bounds["g1"]] > 0, out, 0)


def _fc_backward_data_halo_reference(operands, attributes, bounds, iteration):
    g = slice(bounds["g0"], bounds["g1"])
    out = interior(operands["output"], attributes, "out")[g]
    dx = np.einsum("of,gol->gfl", operands["weight"], _features(operands["gradient"], bounds)).reshape(out.shape)
    if "activation" in operands:
        dx = np.where(operands["activation"][g].reshape(out.shape) > 0, dx, 0)
    out[:] = dx
    lanes_maps.clear_halo(operands["output"], attributes, "out", g, slice(None), 0, attributes["out_height"])


def _fc_backward_data_unpool_reference(operands, attributes, bounds, iteration):
    g = slice(bounds["g0"], bounds["g1"])
    index = operands["index"][g]
    dx = np.einsum("of,gol->gfl", operands["weight"], _features(operands["gradient"], bounds)).reshape(index.shape)
    out = interior(operands["output"], attributes, "out")[g]
    for i in (0, 1):
        for j in (0, 1):
            out[:, :, i::2, j::2] = np.where(index == 2 * i + j, dx, 0)
    lanes_maps.clear_halo(operands["output"], attributes, "out", g, slice(None), 0, attributes["out_height"])


def _fc_backward_weights_reference(operands, attributes, bounds, iteration):
    dy = _features(operands["gradient"], bounds)
    out = operands["output"][bounds["partial"]]
    result = np.empty_like(out)
    result[:, :-1] = np.einsum("gol,gfl->of", dy, _features(operands["input"], bounds))
    result[:, -1] = dy.sum(axis=(0, 2))
    out[:] = out + result if attributes["accumulate"] else result


def _gradient_scratch(attributes, bounds, operands):
    """The gradient without halo, of a group."""
    return sizeof(float) * attributes["features"] * attributes["lanes"]


SHAPE = ("features", "outputs", "lanes")
register(KernelSpec("fc_forward", ("input", "weight", "bias", "output"), SHAPE, (), ("g0", "g1"),
                    _fc_forward_reference, <uintptr_t> &fc_forward))
register(KernelSpec("fc_relu_forward", ("input", "weight", "bias", "output"), SHAPE, (), ("g0", "g1"),
                    _fc_relu_forward_reference, <uintptr_t> &fc_relu_forward))
register(KernelSpec("fc_backward_data_relu", ("gradient", "weight", "output", "activation"), SHAPE, (), ("g0", "g1"),
                    _fc_backward_data_relu_reference, <uintptr_t> &fc_backward_data_relu))
register(KernelSpec("fc_backward_data", ("gradient", "weight", "output"), SHAPE, (), ("g0", "g1"),
                    _fc_backward_data_reference, <uintptr_t> &fc_backward_data))
register(KernelSpec("fc_backward_data_unpool", ("gradient", "weight", "index", "output"),
                    SHAPE + map_attributes("out"),
                    (), ("g0", "g1"), _fc_backward_data_unpool_reference,
                    <uintptr_t> &fc_backward_data_unpool, scratch_bytes=_gradient_scratch))
register(KernelSpec("fc_backward_data_halo", ("gradient", "weight", "output", "activation?"),
                    SHAPE + map_attributes("out"),
                    (), ("g0", "g1"), _fc_backward_data_halo_reference,
                    <uintptr_t> &fc_backward_data_halo, scratch_bytes=_gradient_scratch))
register(KernelSpec("fc_backward_weights", ("gradient", "input", "output"), SHAPE + ("accumulate",), (),
                    ("partial", "g0", "g1"), _fc_backward_weights_reference,
                    <uintptr_t> &fc_backward_weights))


cdef int flatten(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """bounds: images."""
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef ChannelsMap m
    cdef Py_ssize_t plane
    cdef const float *row
    cdef float *out
    cdef int n, y, x, c, i
    read_channels_map(&m, a.integers)
    plane = <Py_ssize_t> m.height * m.width
    for n in range(b[0], b[1]):
        for y in range(m.height):
            row = <const float *> a.operand[0] + pixel(&m, n, y, 0)
            out = <float *> a.operand[1] + n * plane * m.channels + <Py_ssize_t> y * m.width
            c = 0
            while c + LANES <= m.channels and m.width >= LANES:
                x = 0
                while x < m.width:
                    x = min(x, m.width - LANES)  # the last pixels again, so that they fill a vector
                    (<const Micro *> a.micro).lanes.transpose(
                        row + <Py_ssize_t> x * m.pitch + c, m.pitch, LANES, out + c * plane + x, plane)
                    x += LANES
                c += LANES
            for i in range(c, m.channels):
                for x in range(m.width):
                    out[i * plane + x] = row[<Py_ssize_t> x * m.pitch + i]
    return 0


cdef int flatten_backward(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """bounds: images, rows, channels."""
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef ChannelsMap m
    cdef Py_ssize_t plane
    cdef const float *gradient
    cdef float *row
    cdef float *out = <float *> a.operand[1]
    cdef int n, y, x, c, i, end, accumulate = <int> a.integers[5]
    read_channels_map(&m, a.integers)
    plane = <Py_ssize_t> m.height * m.width
    end = channel_end(&m, b[5])
    for n in range(b[0], b[1]):
        for y in range(b[2], b[3]):
            gradient = <const float *> a.operand[0] + n * plane * m.channels + <Py_ssize_t> y * m.width
            row = out + pixel(&m, n, y, 0)
            c = b[4]
            while not accumulate and c < end and m.width >= LANES:
                x = 0
                while x < m.width:
                    x = min(x, m.width - LANES)
                    (<const Micro *> a.micro).lanes.transpose(
                        gradient + c * plane + x, plane, min(LANES, m.channels - c),
                        row + <Py_ssize_t> x * m.pitch + c, m.pitch)
                    x += LANES
                c += LANES
            if c >= end:
                continue
            for x in range(m.width):
                for i in range(c, end):
                    if i >= m.channels:
                        row[<Py_ssize_t> x * m.pitch + i] = 0
                    elif accumulate:
                        row[<Py_ssize_t> x * m.pitch + i] += gradient[i * plane + x]
                    else:
                        row[<Py_ssize_t> x * m.pitch + i] = gradient[i * plane + x]
        if not accumulate:
            clear_channel_halo(&m, out, n, b[2], b[3], b[4], end)
    return 0


def _flatten_reference(operands, attributes, bounds, iteration):
    images = {name: bounds[name] for name in ("n0", "n1")}
    x = inside(operands["input"], attributes, "in", images)[..., : attributes["in_channels"]]
    operands["output"][bounds["n0"] : bounds["n1"], :, 0] = x.transpose(0, 3, 1, 2).reshape(len(x), -1)


def _flatten_backward_reference(operands, attributes, bounds, iteration):
    shape = (-1, attributes["out_channels"], attributes["out_height"], attributes["out_width"])
    gradient = operands["gradient"][bounds["n0"] : bounds["n1"], :, 0].reshape(shape)
    part = gradient[:, bounds["c0"] : bounds["c1"], bounds["y0"] : bounds["y1"]].transpose(0, 2, 3, 1)
    padding = channels_maps.channel_end(bounds["c1"], attributes["out_pitch"]) - bounds["c1"]
    part = np.pad(part, ((0, 0), (0, 0), (0, 0), (0, padding)))
    write_block(operands["output"], attributes, "out", bounds, part, accumulate=attributes["accumulate"])


register(KernelSpec("channels_flatten", ("input", "output"), channels_attributes("in"), (), ("n0", "n1"),
                    _flatten_reference, <uintptr_t> &flatten))
register(KernelSpec("channels_flatten_backward", ("gradient", "output"), channels_attributes("out") + ("accumulate",),
                    (), BOX, _flatten_backward_reference, <uintptr_t> &flatten_backward))
