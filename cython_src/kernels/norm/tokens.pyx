"""Norms of tokens. Layer normalisation: y = (x - mean) / sqrt(var + eps) * weight + bias for each row, and its
gradients.

With a residual, x = input + residual, which is kept in `sum` where there is one. Mean and 1 / sqrt(var + eps) of each
row are kept in `statistics`. Backward, g = gradient * weight and xhat = (x - mean) / std: dx = (g - mean(g) - xhat
mean(g xhat)) / std, plus `residual`, the gradient that reached x on another way; the gradients of weight and bias are
sums over the block's rows, in order, into the block's partial buffers.

NoNorm, which stands in a norm's place in MobileBERT, is y = x * weight + bias, with the same residual and sum.
"""

from libc.stdint cimport int32_t, uintptr_t

from ..interface.block_kernel cimport KernelArgs, TaskContext
from .tokens_loops cimport LayerNormGradientTask, LayerNormTask
from .tokens_loops cimport LayerNormLoops

import numpy as np

from ..interface.kernel_spec import KernelSpec, register


cdef extern from "cython_src/kernels/simd/micro_kernels.h" nogil:
    ctypedef struct Micro "MicroKernels":  # what is used here of the table of inner loops
        const LayerNormLoops *layernorm


cdef inline float *at(const void *operand, Py_ssize_t offset) noexcept nogil:
    """Element of an operand; NULL where a loop leaves it out."""
    return <float *> operand + offset if operand != NULL else NULL


cdef inline LayerNormTask forward_task(const KernelArgs *a, const int32_t *b) noexcept nogil:
    """What both norms take, of the rows of a block."""
    cdef Py_ssize_t start = b[0] * a.integers[0]
    cdef LayerNormTask task
    task.input = at(a.operand[0], start)
    task.residual = at(a.operand[1], start)
    task.sum = at(a.operand[2], start)
    task.weight = <const float *> a.operand[3]
    task.bias = <const float *> a.operand[4]
    task.out = at(a.operand[5], start)
    task.statistics = NULL
    task.features = a.integers[0]
    task.rows = b[1] - b[0]
    task.eps = 0
    return task


cdef int layernorm_forward(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """bounds: rows."""
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef LayerNormTask task = forward_task(a, b)
    task.statistics = at(a.operand[6], 2 * <Py_ssize_t> b[0])
    task.eps = <float> a.reals[0]
    (<const Micro *> a.micro).layernorm.forward(&task)
    return 0


cdef int no_norm_forward(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """bounds: rows."""
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef LayerNormTask task = forward_task(a, a.bounds + block * a.bounds_width)
    (<const Micro *> a.micro).layernorm.no_norm_forward(&task)
    return 0


cdef inline LayerNormGradientTask backward_task(
    const KernelArgs *a, const int32_t *b, float *statistics, int following
) noexcept nogil:
    """What both norms take, of the rows of a block; `following` is the first operand behind weight and statistics."""
    cdef Py_ssize_t features = a.integers[0], start = b[0] * features
    cdef LayerNormGradientTask task
    task.gradient = at(a.operand[0], start)
    task.input = at(a.operand[1], start)
    task.weight = <const float *> a.operand[2]
    task.statistics = statistics
    task.residual = at(a.operand[following], start)
    task.out = at(a.operand[following + 1], start)
    task.weight_gradient = at(a.operand[following + 2], b[2] * features)
    task.bias_gradient = at(a.operand[following + 3], b[2] * features)
    task.features = features
    task.rows = b[1] - b[0]
    return task


cdef int no_norm_backward(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """bounds: rows, partial buffer."""
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef LayerNormGradientTask task = backward_task(a, a.bounds + block * a.bounds_width, NULL, 3)
    (<const Micro *> a.micro).layernorm.no_norm_backward(&task)
    return 0


cdef int layernorm_backward(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """bounds: rows, partial buffer."""
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef LayerNormGradientTask task = backward_task(a, b, at(a.operand[3], 2 * <Py_ssize_t> b[0]), 4)
    (<const Micro *> a.micro).layernorm.backward(&task)
    return 0


def _summed(operands, rows):
    """What is normalised: the input, or its sum with the residual, which is kept where there is a place for it."""
    x = operands["input"][rows]
    if "residual" in operands:
        x = x + operands["residual"][rows]
        if "sum" in operands:
            operands["sum"][rows] = x
    return x


def _layernorm_forward_reference(operands, attributes, bounds, iteration):
    rows = slice(bounds["r0"], bounds["r1"])
    x = _summed(operands, rows)
    mean = x.mean(axis=1)
    inv_std = 1 / np.sqrt(x.var(axis=1) + attributes["eps"])
    normal = (x - mean[:, None]) * inv_std[:, None]
    operands["output"][rows] = normal * operands["weight"] + operands["bias"]
    operands["statistics"][rows] = np.stack([mean, inv_std], axis=1)


def _layernorm_backward_reference(operands, attributes, bounds, iteration):
    rows, partial = slice(bounds["r0"], bounds["r1"]), bounds["partial"]
    dy = operands["gradient"][rows]
    mean, inv_std = operands["statistics"][rows].T[..., None]
    normal = (operands["input"][rows] - mean) * inv_std
    g = dy * operands["weight"]
    dx = inv_std * (g - g.mean(axis=1, keepdims=True) - normal * (g * normal).mean(axis=1, keepdims=True))
    if "residual" in operands:
        dx = dx + operands["residual"][rows]
    operands["output"][rows] = dx
    operands["weight_partials"][partial] = (dy * normal).sum(axis=0)
    operands["bias_partials"][partial] = dy.sum(axis=0)


def _no_norm_forward_reference(operands, attributes, bounds, iteration):
    rows = slice(bounds["r0"], bounds["r1"])
    operands["output"][rows] = _summed(operands, rows) * operands["weight"] + operands["bias"]


def _no_norm_backward_reference(operands, attributes, bounds, iteration):
    rows, partial = slice(bounds["r0"], bounds["r1"]), bounds["partial"]
    dy = operands["gradient"][rows]
    dx = dy * operands["weight"]
    operands["output"][rows] = dx + operands["residual"][rows] if "residual" in operands else dx
    operands["weight_partials"][partial] = (dy * operands["input"][rows]).sum(axis=0)
    operands["bias_partials"][partial] = dy.sum(axis=0)


register(KernelSpec(
    "no_norm_forward", ("input", "residual?", "sum?", "weight", "bias", "output"), ("features",), (), ("r0", "r1"),
    _no_norm_forward_reference, <uintptr_t> &no_norm_forward))
register(KernelSpec(
    "no_norm_backward",
    ("gradient", "input", "weight", "residual?", "output", "weight_partials", "bias_partials"),
    ("features",), (), ("r0", "r1", "partial"), _no_norm_backward_reference, <uintptr_t> &no_norm_backward))
register(KernelSpec(
    "layernorm_forward", ("input", "residual?", "sum?", "weight", "bias", "output", "statistics"), ("features",),
    ("eps",), ("r0", "r1"), _layernorm_forward_reference, <uintptr_t> &layernorm_forward))
register(KernelSpec(
    "layernorm_backward",
    ("gradient", "input", "weight", "statistics", "residual?", "output", "weight_partials", "bias_partials"),
    ("features",), (), ("r0", "r1", "partial"), _layernorm_backward_reference, <uintptr_t> &layernorm_backward))
