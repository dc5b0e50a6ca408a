"""Fully connected layer: logits = W x + b, its data gradient and its weight gradient.

Features are a map's elements in PyTorch's order (channel, row, column), so a map of the lane layout is used as it is.
"""

from libc.stdint cimport int32_t, uintptr_t

from .block_kernel cimport KernelArgs, TaskContext
from .micro_kernels cimport Micro

import numpy as np

from .kernel_table import KernelSpec, register


cdef int fc_forward(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """bounds: groups."""
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef int features = <int> a.integers[0], outputs = <int> a.integers[1], lanes = <int> a.integers[2]
    cdef Py_ssize_t g
    for g in range(b[0], b[1]):
        (<const Micro *> a.micro).fc_forward(
            <const float *> a.operand[0] + g * features * lanes, <const float *> a.operand[1],
            <const float *> a.operand[2], <float *> a.operand[3] + g * outputs * lanes, features, outputs, lanes)
    return 0


cdef int fc_backward_data(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """bounds: groups."""
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef int features = <int> a.integers[0], outputs = <int> a.integers[1], lanes = <int> a.integers[2]
    cdef Py_ssize_t g
    for g in range(b[0], b[1]):
        (<const Micro *> a.micro).fc_backward_data(
            <const float *> a.operand[0] + g * outputs * lanes, <const float *> a.operand[1],
            <float *> a.operand[2] + g * features * lanes, features, outputs, lanes)
    return 0


cdef int fc_backward_weights(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """bounds: partial buffer, groups."""
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef int features = <int> a.integers[0], outputs = <int> a.integers[1], lanes = <int> a.integers[2]
    cdef Py_ssize_t g = b[1]
    (<const Micro *> a.micro).fc_backward_weights(
        <const float *> a.operand[0] + g * outputs * lanes, <const float *> a.operand[1] + g * features * lanes,
        <float *> a.operand[2] + <Py_ssize_t> b[0] * outputs * (features + 1), b[2] - b[1], features, outputs, lanes,
        <int> a.integers[3])
    return 0


def _features(array, bounds):
    """(groups, features, lanes) of a block's groups, from a map or from logits."""
    part = array[bounds["g0"] : bounds["g1"]]
    return part.reshape(part.shape[0], -1, array.shape[array.ndim - 1])


def _fc_forward_reference(operands, attributes, bounds, iteration):
    x = _features(operands["input"], bounds)
    operands["output"][bounds["g0"] : bounds["g1"]] = (
        np.einsum("of,gfl->gol", operands["weight"], x) + operands["bias"][None, :, None])


def _fc_backward_data_reference(operands, attributes, bounds, iteration):
    dx = np.einsum("of,gol->gfl", operands["weight"], operands["gradient"][bounds["g0"] : bounds["g1"]])
    out = operands["output"][bounds["g0"] : bounds["g1"]]
    out[:] = dx.reshape(out.shape)


def _fc_backward_weights_reference(operands, attributes, bounds, iteration):
    dy = operands["gradient"][bounds["g0"] : bounds["g1"]]
    out = operands["output"][bounds["partial"]]
    result = np.empty_like(out)
    result[:, :-1] = np.einsum("gol,gfl->of", dy, _features(operands["input"], bounds))
    result[:, -1] = dy.sum(axis=(0, 2))
    out[:] = out + result if attributes["accumulate"] else result


SHAPE = ("features", "outputs", "lanes")
register(KernelSpec("fc_forward", ("input", "weight", "bias", "output"), SHAPE, (), ("g0", "g1"),
                    _fc_forward_reference, <uintptr_t> &fc_forward))
register(KernelSpec("fc_backward_data", ("gradient", "weight", "output"), SHAPE, (), ("g0", "g1"),
                    _fc_backward_data_reference, <uintptr_t> &fc_backward_data))
register(KernelSpec("fc_backward_weights", ("gradient", "input", "output"), SHAPE + ("accumulate",), (),
                    ("partial", "g0", "g1"), _fc_backward_weights_reference, <uintptr_t> &fc_backward_weights))
