"""Embedding: each token's row of the token table, plus its position's row of the position table, and their gradients.

The gradients scatter without locks and in a fixed order: a block of the tokens' gradient owns a slice of the features
and adds all rows in order; a block of the positions' gradient owns positions and adds the samples in order.
"""

from libc.stdint cimport int32_t, uintptr_t
from libc.string cimport memcpy, memset

from ..interface.block_kernel cimport KernelArgs, TaskContext
from ..elementwise.tokens_loops cimport TokenElementLoops

import numpy as np

from ..interface.kernel_spec import KernelSpec, register


cdef extern from "cython_src/kernels/simd/micro_kernels.h" nogil:
    ctypedef struct Micro "MicroKernels":  # what is used here of the table of inner loops
        const TokenElementLoops *token_elements


# Status of a kernel that met a token outside the vocabulary.
BAD_TOKEN = 3


cdef int embedding_forward(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """bounds: rows."""
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef const int32_t *tokens = <const int32_t *> a.operand[0]
    cdef const float *positions = <const float *> a.operand[2]
    cdef const float *weight
    cdef Py_ssize_t sequence = a.integers[0], features = a.integers[1], row
    cdef float *out
    for row in range(b[0], b[1]):
        if tokens[row] < 0 or tokens[row] >= a.integers[2]:
            return 3
        weight = <const float *> a.operand[1] + tokens[row] * features
        out = <float *> a.operand[3] + row * features
        if positions != NULL:
            (<const Micro *> a.micro).token_elements.add(weight, positions + row % sequence * features, out, features)
        else:
            memcpy(out, weight, features * sizeof(float))
    return 0


cdef int embedding_token_gradient(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """bounds: features."""
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef const int32_t *tokens = <const int32_t *> a.operand[0]
    cdef Py_ssize_t features = a.integers[1], vocabulary = a.integers[2], width = b[1] - b[0], row
    cdef const float *gradient = <const float *> a.operand[1] + b[0]
    cdef float *output = <float *> a.operand[2] + b[0]
    cdef float *out
    if not a.integers[3]:
        for row in range(vocabulary):
            memset(output + row * features, 0, width * sizeof(float))
    for row in range(a.integers[0]):
        if tokens[row] < 0 or tokens[row] >= vocabulary:
            return 3
        out = output + tokens[row] * features
        (<const Micro *> a.micro).token_elements.add(out, gradient + row * features, out, width)
    return 0


cdef int embedding_position_gradient(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """bounds: positions."""
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef Py_ssize_t sequence = a.integers[0], batch = a.integers[1], features = a.integers[2], position, _sample
    cdef const float *gradient
    cdef float *out
    for position in range(b[0], b[1]):
        gradient = <const float *> a.operand[0] + position * features
        out = <float *> a.operand[1] + position * features
        if position >= sequence:
            memset(out, 0, features * sizeof(float))
            continue
        memcpy(out, gradient, features * sizeof(float))
        for _sample in range(1, batch):
            gradient += sequence * features
            (<const Micro *> a.micro).token_elements.add(out, gradient, out, features)
    return 0


def _forward_reference(operands, attributes, bounds, iteration):
    rows = np.arange(bounds["r0"], bounds["r1"])
    tokens = operands["tokens"][rows]
    if ((tokens < 0) | (tokens >= attributes["vocabulary"])).any():
        return BAD_TOKEN
    out = operands["token_weight"][tokens]
    if "position_weight" in operands:
        out = out + operands["position_weight"][rows % attributes["sequence"]]
    operands["output"][rows] = out


def _token_gradient_reference(operands, attributes, bounds, iteration):
    columns, tokens = slice(bounds["c0"], bounds["c1"]), operands["tokens"][: attributes["rows"]]
    if ((tokens < 0) | (tokens >= attributes["vocabulary"])).any():
        return BAD_TOKEN
    out = operands["output"][0]
    if not attributes["accumulate"]:
        out[:, columns] = 0
    for row, token in enumerate(tokens):
        out[token, columns] += operands["gradient"][row, columns]


def _position_gradient_reference(operands, attributes, bounds, iteration):
    sequence, positions = attributes["sequence"], slice(bounds["t0"], bounds["t1"])
    samples = operands["gradient"].reshape(attributes["batch"], sequence, attributes["features"])
    used = max(min(bounds["t1"], sequence) - bounds["t0"], 0)
    out = operands["output"][0, positions]
    out[:used] = samples[:, positions].sum(axis=0)
    out[used:] = 0


register(KernelSpec(
    "embedding_forward", ("tokens", "token_weight", "position_weight?", "output"),
    ("sequence", "features", "vocabulary"), (), ("r0", "r1"), _forward_reference, <uintptr_t> &embedding_forward))
register(KernelSpec(
    "embedding_token_gradient", ("tokens", "gradient", "output"), ("rows", "features", "vocabulary", "accumulate"), (),
    ("c0", "c1"), _token_gradient_reference, <uintptr_t> &embedding_token_gradient))
register(KernelSpec(
    "embedding_position_gradient", ("gradient", "output"), ("sequence", "batch", "features"), (), ("t0", "t1"),
    _position_gradient_reference, <uintptr_t> &embedding_position_gradient))
