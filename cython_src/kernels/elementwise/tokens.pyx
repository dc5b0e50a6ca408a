"""Element-wise layers of tokens: ReLU and GELU (tanh form), their backward passes, and the sum of two tensors. Bounds:
rows."""

from libc.stdint cimport int32_t, uintptr_t

from ..interface.block_kernel cimport KernelArgs, TaskContext
from .relu_loops cimport ReluLoops
from .tokens_loops cimport TokenElementLoops

import numpy as np

from ..interface.kernel_spec import KernelSpec, register
from .gelu import gelu, gelu_derivative


cdef extern from "cython_src/kernels/simd/micro_kernels.h" nogil:
    ctypedef struct Micro "MicroKernels":  # what is used here of the table of inner loops
        const ReluLoops *relu
        const TokenElementLoops *token_elements


cdef int gelu_forward(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef Py_ssize_t start = b[0] * a.integers[0], length = (b[1] - b[0]) * a.integers[0]
    (<const Micro *> a.micro).token_elements.gelu(
        <const float *> a.operand[0] + start, <float *> a.operand[1] + start, length)
    return 0


cdef int gelu_backward(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef Py_ssize_t start = b[0] * a.integers[0], length = (b[1] - b[0]) * a.integers[0]
    (<const Micro *> a.micro).token_elements.gelu_backward(
        <const float *> a.operand[0] + start, <const float *> a.operand[1] + start, <float *> a.operand[2] + start,
        length)
    return 0


cdef int tokens_relu_forward(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef Py_ssize_t start = b[0] * a.integers[0], length = (b[1] - b[0]) * a.integers[0]
    (<const Micro *> a.micro).relu.forward(<const float *> a.operand[0] + start, <float *> a.operand[1] + start, length)
    return 0


cdef int tokens_relu_backward(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef Py_ssize_t start = b[0] * a.integers[0], length = (b[1] - b[0]) * a.integers[0]
    (<const Micro *> a.micro).relu.backward(
        <const float *> a.operand[0] + start, <const float *> a.operand[1] + start, <float *> a.operand[2] + start,
        length)
    return 0


cdef int tokens_add(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef Py_ssize_t start = b[0] * a.integers[0], length = (b[1] - b[0]) * a.integers[0]
    (<const Micro *> a.micro).token_elements.add(
        <const float *> a.operand[0] + start, <const float *> a.operand[1] + start, <float *> a.operand[2] + start,
        length)
    return 0


def _gelu_forward_reference(operands, attributes, bounds, iteration):
    rows = slice(bounds["r0"], bounds["r1"])
    operands["output"][rows] = gelu(operands["input"][rows])


def _gelu_backward_reference(operands, attributes, bounds, iteration):
    rows = slice(bounds["r0"], bounds["r1"])
    operands["output"][rows] = operands["gradient"][rows] * gelu_derivative(operands["before"][rows])


def _relu_forward_reference(operands, attributes, bounds, iteration):
    rows = slice(bounds["r0"], bounds["r1"])
    x = operands["input"][rows]
    operands["output"][rows] = np.where(x <= 0, 0, x)


def _relu_backward_reference(operands, attributes, bounds, iteration):
    rows = slice(bounds["r0"], bounds["r1"])
    operands["output"][rows] = np.where(operands["activations"][rows] > 0, operands["gradient"][rows], 0)


def _tokens_add_reference(operands, attributes, bounds, iteration):
    rows = slice(bounds["r0"], bounds["r1"])
    operands["output"][rows] = operands["first"][rows] + operands["second"][rows]


register(KernelSpec("gelu_forward", ("input", "output"), ("features",), (), ("r0", "r1"), _gelu_forward_reference,
                    <uintptr_t> &gelu_forward))
register(KernelSpec("gelu_backward", ("gradient", "before", "output"), ("features",), (), ("r0", "r1"),
                    _gelu_backward_reference, <uintptr_t> &gelu_backward))
register(KernelSpec("tokens_relu_forward", ("input", "output"), ("features",), (), ("r0", "r1"),
                    _relu_forward_reference, <uintptr_t> &tokens_relu_forward))
register(KernelSpec("tokens_relu_backward", ("gradient", "activations", "output"), ("features",), (), ("r0", "r1"),
                    _relu_backward_reference, <uintptr_t> &tokens_relu_backward))
register(KernelSpec("tokens_add", ("first", "second", "output"), ("features",), (), ("r0", "r1"),
                    _tokens_add_reference, <uintptr_t> &tokens_add))
