"""Maxima of 2 x 2 windows with the images in the lanes, forward and backward.

The forward pass keeps which element of its window each maximum was (0 to 3, the first of equals); 4 means
that ReLU stopped it, so that the backward pass needs no activations.
"""

from libc.stdint cimport int32_t, uint8_t, uintptr_t

from ..interface.block_kernel cimport KernelArgs, TaskContext
from ..maps.lanes cimport Map, clear_halo, offset, read_map
from .lanes_loops cimport LanesPoolingLoops

import numpy as np

from ..interface.kernel_spec import KernelSpec, register
from ..maps.lanes import BOX, box, clear_box_halo, interior, map_attributes


cdef extern from "cython_src/kernels/simd/micro_kernels.h" nogil:
    ctypedef struct Micro "MicroKernels":  # what is used here of the table of inner loops
        const LanesPoolingLoops *lanes_pooling


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


def _pool_forward_reference(operands, attributes, bounds, iteration):
    x = interior(operands["input"], attributes, "in")[box(bounds, 2)]
    windows = np.stack([x[:, :, i::2, j::2] for i in (0, 1) for j in (0, 1)])
    operands["index"][box(bounds)] = windows.argmax(axis=0)
    interior(operands["output"], attributes, "out")[box(bounds)] = windows.max(axis=0)
    clear_box_halo(operands["output"], attributes, bounds)


def _pool_backward_reference(operands, attributes, bounds, iteration):
    dy = interior(operands["gradient"], attributes, "in")[box(bounds)]
    index = operands["index"][box(bounds)]
    dx = interior(operands["output"], attributes, "out")[box(bounds, 2)]
    for i in (0, 1):
        for j in (0, 1):
            dx[:, :, i::2, j::2] = np.where(index == 2 * i + j, dy, 0)
    clear_box_halo(operands["output"], attributes, bounds, 2)


MAPS = map_attributes("in") + map_attributes("out")
register(KernelSpec("pool_forward", ("input", "output", "index"), MAPS, (), BOX, _pool_forward_reference,
                    <uintptr_t> &pool_forward))
register(KernelSpec("pool_backward", ("gradient", "index", "output"), MAPS, (), BOX, _pool_backward_reference,
                    <uintptr_t> &pool_backward))
