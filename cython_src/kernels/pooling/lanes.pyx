"""ReLU and 2 x 2 max-pooling, forward and backward.

The forward pass keeps which element of its window each maximum was (0 to 3, the first of equals); 4 means
that ReLU stopped it, so that the backward pass needs no activations.
"""

from libc.stdint cimport int32_t, uint8_t, uintptr_t

from ..interface.block_kernel cimport KernelArgs, TaskContext
from ..maps.lanes cimport Map, clear_halo, offset, read_map
from .lanes_loops cimport LanesPoolingLoops
from ..elementwise.relu_loops cimport ReluLoops

import numpy as np

from ..maps import lanes as lanes_maps
from ..interface.kernel_spec import KernelSpec, register
from ..maps.lanes import interior, map_attributes


cdef extern from "cython_src/kernels/simd/micro_kernels.h" nogil:
    ctypedef struct Micro "MicroKernels":  # what is used here of the table of inner loops
        const LanesPoolingLoops *lanes_pooling
        const ReluLoops *relu


cdef int pool_forward(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """Y = maximum of each window of X. bounds: groups, channels, pooled rows."""
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const Micro *micro = <const Micro *> a.micro
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef const float *x = <const float *> a.operand[0]
    cdef float *out = <float *> a.operand[1]
    cdef uint8_t *index = <uint8_t *> a.operand[2]
    cdef Map source, target
    cdef int g, c, y
    cdef Py_ssize_t at
    read_map(&source, a.integers)
    read_map(&target, a.integers + 7)
    for g in range(b[0], b[1]):
        for c in range(b[2], b[3]):
            for y in range(b[4], b[5]):
                at = (<Py_ssize_t> g * target.channels + c) * target.height + y
                micro.lanes_pooling.pool_row(
                    x + offset(&source, g, c, 2 * y), x + offset(&source, g, c, 2 * y + 1), target.width, target.lanes,
                    0, out + offset(&target, g, c, y), index + at * target.width * target.lanes)
            clear_halo(&target, out, g, c, b[4], b[5])
    return 0


cdef int pool_backward(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """dX = dY where the index points, else zero. bounds: groups, channels, pooled rows."""
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const Micro *micro = <const Micro *> a.micro
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef const float *dy = <const float *> a.operand[0]
    cdef const uint8_t *index = <const uint8_t *> a.operand[1]
    cdef float *dx = <float *> a.operand[2]
    cdef Map source, target
    cdef int g, c, y
    cdef Py_ssize_t at
    read_map(&source, a.integers)
    read_map(&target, a.integers + 7)
    for g in range(b[0], b[1]):
        for c in range(b[2], b[3]):
            for y in range(b[4], b[5]):
                at = (<Py_ssize_t> g * source.channels + c) * source.height + y
                micro.lanes_pooling.unpool_row(
                    dy + offset(&source, g, c, y), index + at * source.width * source.lanes, source.width, source.lanes,
                    dx + offset(&target, g, c, 2 * y), dx + offset(&target, g, c, 2 * y + 1))
            clear_halo(&target, dx, g, c, 2 * b[4], 2 * b[5])
    return 0


cdef int relu_forward(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """Y = max(X, 0); a NaN stays one. bounds: groups, channels, rows."""
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef Map source, target
    cdef int g, c, y
    read_map(&source, a.integers)
    read_map(&target, a.integers + 7)
    for g in range(b[0], b[1]):
        for c in range(b[2], b[3]):
            for y in range(b[4], b[5]):
                (<const Micro *> a.micro).relu.forward(
                    <const float *> a.operand[0] + offset(&source, g, c, y),
                    <float *> a.operand[1] + offset(&target, g, c, y),
                    <Py_ssize_t> source.width * source.lanes)
            clear_halo(&target, <float *> a.operand[1], g, c, b[4], b[5])
    return 0


cdef int relu_backward(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """dX = dY where Y > 0, else zero. bounds: groups, channels, rows."""
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef Map source, target
    cdef int g, c, y
    read_map(&source, a.integers)
    read_map(&target, a.integers + 7)
    for g in range(b[0], b[1]):
        for c in range(b[2], b[3]):
            for y in range(b[4], b[5]):
                (<const Micro *> a.micro).relu.backward(
                    <const float *> a.operand[0] + offset(&source, g, c, y),
                    <const float *> a.operand[1] + offset(&source, g, c, y),
                    <float *> a.operand[2] + offset(&target, g, c, y),
                    <Py_ssize_t> source.width * source.lanes)
            clear_halo(&target, <float *> a.operand[2], g, c, b[4], b[5])
    return 0


def _box(bounds, scale=1):
    return (slice(bounds["g0"], bounds["g1"]), slice(bounds["c0"], bounds["c1"]),
            slice(scale * bounds["y0"], scale * bounds["y1"]))


def _clear(array, attributes, bounds, scale=1):
    g, c, y = _box(bounds, scale)
    lanes_maps.clear_halo(array, attributes, "out", g, c, y.start, y.stop)


def _pool_forward_reference(operands, attributes, bounds, iteration):
    x = interior(operands["input"], attributes, "in")[_box(bounds, 2)]
    windows = np.stack([x[:, :, i::2, j::2] for i in (0, 1) for j in (0, 1)])
    operands["index"][_box(bounds)] = windows.argmax(axis=0)
    interior(operands["output"], attributes, "out")[_box(bounds)] = windows.max(axis=0)
    _clear(operands["output"], attributes, bounds)


def _pool_backward_reference(operands, attributes, bounds, iteration):
    dy = interior(operands["gradient"], attributes, "in")[_box(bounds)]
    index = operands["index"][_box(bounds)]
    dx = interior(operands["output"], attributes, "out")[_box(bounds, 2)]
    for i in (0, 1):
        for j in (0, 1):
            dx[:, :, i::2, j::2] = np.where(index == 2 * i + j, dy, 0)
    _clear(operands["output"], attributes, bounds, 2)


def _relu_forward_reference(operands, attributes, bounds, iteration):
    x = interior(operands["input"], attributes, "in")[_box(bounds)]
    interior(operands["output"], attributes, "out")[_box(bounds)] = np.where(x <= 0, 0, x)
    _clear(operands["output"], attributes, bounds)


def _relu_backward_reference(operands, attributes, bounds, iteration):
    dy = interior(operands["gradient"], attributes, "in")[_box(bounds)]
    y = interior(operands["activation"], attributes, "in")[_box(bounds)]
    interior(operands["output"], attributes, "out")[_box(bounds)] = np.where(y > 0, dy, 0)
    _clear(operands["output"], attributes, bounds)


MAPS = map_attributes("in") + map_attributes("out")
BOX = ("g0", "g1", "c0", "c1", "y0", "y1")
register(KernelSpec("pool_forward", ("input", "output", "index"), MAPS, (), BOX, _pool_forward_reference,
                    <uintptr_t> &pool_forward))
register(KernelSpec("pool_backward", ("gradient", "index", "output"), MAPS, (), BOX, _pool_backward_reference,
                    <uintptr_t> &pool_backward))
register(KernelSpec("relu_forward", ("input", "output"), MAPS, (), BOX, _relu_forward_reference,
                    <uintptr_t> &relu_forward))
register(KernelSpec("relu_backward", ("gradient", "activation", "output"), MAPS, (), BOX,
                    _relu_backward_reference,
                    <uintptr_t> &relu_backward))
