"""ReLU of maps with the images in the lanes, forward and backward."""

from libc.stdint cimport int32_t, uintptr_t

from ..interface.block_kernel cimport KernelArgs, TaskContext
from ..maps.lanes cimport Map, clear_halo, offset, read_map
from .relu_loops cimport ReluLoops

import numpy as np

from ..interface.kernel_spec import KernelSpec, register
from ..maps.lanes import BOX, box, clear_box_halo, interior, map_attributes


cdef extern from "cython_src/kernels/simd/micro_kernels.h" nogil:
    ctypedef struct Micro "MicroKernels":  # what is used here of the table of inner loops
        const ReluLoops *relu


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
    cdef Map source, target, activation
    cdef int g, c, y
    read_map(&source, a.integers)
    read_map(&target, a.integers + 7)
    read_map(&activation, a.integers + 14)
    for g in range(b[0], b[1]):
        for c in range(b[2], b[3]):
            for y in range(b[4], b[5]):
                (<const Micro *> a.micro).relu.backward(
                    <const float *> a.operand[0] + offset(&source, g, c, y),
                    <const float *> a.operand[1] + offset(&activation, g, c, y),
                    <float *> a.operand[2] + offset(&target, g, c, y),
                    <Py_ssize_t> source.width * source.lanes)
            clear_halo(&target, <float *> a.operand[2], g, c, b[4], b[5])
    return 0


def _relu_forward_reference(operands, attributes, bounds, iteration):
    x = interior(operands["input"], attributes, "in")[box(bounds)]
    interior(operands["output"], attributes, "out")[box(bounds)] = np.where(x <= 0, 0, x)
    clear_box_halo(operands["output"], attributes, bounds)


def _relu_backward_reference(operands, attributes, bounds, iteration):
    dy = interior(operands["gradient"], attributes, "in")[box(bounds)]
    y = interior(operands["activation"], attributes, "activation")[box(bounds)]
    interior(operands["output"], attributes, "out")[box(bounds)] = np.where(y > 0, dy, 0)
    clear_box_halo(operands["output"], attributes, bounds)


MAPS = map_attributes("in") + map_attributes("out")
register(KernelSpec("relu_forward", ("input", "output"), MAPS, (), BOX, _relu_forward_reference,
                    <uintptr_t> &relu_forward))
register(KernelSpec("relu_backward", ("gradient", "activation", "output"),
                    MAPS + map_attributes("activation"), (), BOX, _relu_backward_reference, <uintptr_t> &relu_backward))
