"""Embedding: each token's row of the token table, plus its position's row of the position table, and their gradients;
positions, and the row of a token's type, added to any features; trigrams, the features of the next token, the token
and the one before it side by side, zeros past the ends of a sample.

The gradients scatter without locks and in a fixed order: a block of the tokens' gradient owns a slice of the features
and adds all rows in order; a block of the positions' gradient owns positions and adds the samples in order.
"""

from libc.string cimport memcpy, memset

from elementwise_c cimport *
from embedding_c cimport *

import numpy as np

from ..interface.kernel_spec import implement
from .specs import KERNELS


# Status of a kernel that met a token outside the vocabulary.
BAD_TOKEN = 3


cdef int embedding_forward(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    cdef embedding_forward_args a = read_embedding_forward(args, block)
    cdef const float *weight
    cdef Py_ssize_t features = a.features, row
    cdef float *out
    for row in range(a.r0, a.r1):
        if a.tokens[row] < 0 or a.tokens[row] >= a.vocabulary:
            return 3
        weight = a.token_weight + a.tokens[row] * features
        out = a.output + row * features
        if a.position_weight != NULL:
            token_elements_loops(a.micro).add(weight, a.position_weight + row % a.sequence * features, out, features)
        else:
            memcpy(out, weight, features * sizeof(float))
    return 0


cdef int embedding_token_gradient(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    cdef embedding_token_gradient_args a = read_embedding_token_gradient(args, block)
    cdef Py_ssize_t width = a.c1 - a.c0, row
    cdef const float *gradient = a.gradient + a.c0
    cdef float *output = a.output + a.c0
    cdef float *out
    if not a.accumulate:
        for row in range(a.vocabulary):
            memset(output + row * a.features, 0, width * sizeof(float))
    for row in range(a.rows):
        if a.tokens[row] < 0 or a.tokens[row] >= a.vocabulary:
            return 3
        out = output + a.tokens[row] * a.features
        token_elements_loops(a.micro).add(out, gradient + row * a.features, out, width)
    return 0


cdef int embedding_position_gradient(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    cdef embedding_position_gradient_args a = read_embedding_position_gradient(args, block)
    cdef Py_ssize_t features = a.features, position, _sample
    cdef const float *gradient
    cdef float *out
    for position in range(a.t0, a.t1):
        gradient = a.gradient + position * features
        out = a.output + position * features
        if position >= a.sequence:
            memset(out, 0, features * sizeof(float))
            continue
        memcpy(out, gradient, features * sizeof(float))
        for _sample in range(1, a.batch):
            gradient += a.sequence * features
            token_elements_loops(a.micro).add(out, gradient, out, features)
    return 0


cdef int positions_forward(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    cdef positions_forward_args a = read_positions_forward(args, block)
    cdef Py_ssize_t features = a.features, row
    cdef const float *position
    cdef float *out
    for row in range(a.r0, a.r1):
        position = a.position_weight + row % a.sequence * features
        out = a.output + row * features
        token_elements_loops(a.micro).add(
            a.input + row * features, position, out, features)
        if a.type_weight != NULL:
            token_elements_loops(a.micro).add(out, a.type_weight, out, features)
    return 0


cdef int type_gradient(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """Sum of the first positions' gradients;"""
    cdef type_gradient_args a = read_type_gradient(args, block)
    cdef Py_ssize_t width = a.c1 - a.c0, row
    cdef const float *gradient = a.position_gradient + a.c0
    cdef float *out = a.output + a.c0
    memcpy(out, gradient, width * sizeof(float))
    for row in range(1, a.sequence):
        token_elements_loops(a.micro).add(out, gradient + row * a.features, out, width)
    for row in range(1, a.types):
        memset(out + row * a.features, 0, width * sizeof(float))
    return 0


cdef int trigram_forward(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    cdef trigram_forward_args a = read_trigram_forward(args, block)
    cdef Py_ssize_t features = a.features, row, part, size = features * sizeof(float)
    cdef const float *source
    cdef float *out
    for row in range(a.r0, a.r1):
        source = a.input + row * features
        out = a.output + 3 * row * features
        for part in range(3):
            if 0 <= row % a.sequence + 1 - part < a.sequence:
                memcpy(out + part * features, source + (1 - part) * features, size)
            else:
                memset(out + part * features, 0, size)
    return 0


cdef int trigram_backward(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    cdef trigram_backward_args a = read_trigram_backward(args, block)
    cdef Py_ssize_t features = a.features, row
    cdef const float *gradient
    cdef float *out
    for row in range(a.r0, a.r1):
        gradient = a.gradient + 3 * row * features
        out = a.output + row * features
        memcpy(out, gradient + features, features * sizeof(float))
        if row % a.sequence > 0:  # the next token of the row before
            token_elements_loops(a.micro).add(out, gradient - 3 * features, out, features)
        if row % a.sequence + 1 < a.sequence:  # the token before the next row
            token_elements_loops(a.micro).add(out, gradient + 5 * features, out, features)
    return 0


cdef int first_token_forward(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    cdef first_token_forward_args a = read_first_token_forward(args, block)
    cdef Py_ssize_t n
    for n in range(a.n0, a.n1):
        memcpy(a.output + n * a.features, a.input + n * a.sequence * a.features,
               a.features * sizeof(float))
    return 0


cdef int first_token_backward(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    cdef first_token_backward_args a = read_first_token_backward(args, block)
    cdef Py_ssize_t features = a.features, n
    cdef float *out
    for n in range(a.n0, a.n1):
        out = a.output + n * a.sequence * features
        memcpy(out, a.gradient + n * features, features * sizeof(float))
        memset(out + features, 0, (a.sequence - 1) * features * sizeof(float))
    return 0


@implement(KERNELS, "embedding_forward", <uintptr_t> &embedding_forward)
def _forward_reference(operands, attributes, bounds, iteration):
    rows = np.arange(bounds["r0"], bounds["r1"])
    tokens = operands["tokens"][rows]
    if ((tokens < 0) | (tokens >= attributes["vocabulary"])).any():
        return BAD_TOKEN
    out = operands["token_weight"][tokens]
    if "position_weight" in operands:
        out = out + operands["position_weight"][rows % attributes["sequence"]]
    operands["output"][rows] = out


@implement(KERNELS, "embedding_token_gradient", <uintptr_t> &embedding_token_gradient)
def _token_gradient_reference(operands, attributes, bounds, iteration):
    columns, tokens = slice(bounds["c0"], bounds["c1"]), operands["tokens"][: attributes["rows"]]
    if ((tokens < 0) | (tokens >= attributes["vocabulary"])).any():
        return BAD_TOKEN
    out = operands["output"][0]
    if not attributes["accumulate"]:
        out[:, columns] = 0
    for row, token in enumerate(tokens):
        out[token, columns] += operands["gradient"][row, columns]


@implement(KERNELS, "embedding_position_gradient", <uintptr_t> &embedding_position_gradient)
def _position_gradient_reference(operands, attributes, bounds, iteration):
    sequence, positions = attributes["sequence"], slice(bounds["t0"], bounds["t1"])
    samples = operands["gradient"].reshape(attributes["batch"], sequence, attributes["features"])
    used = max(min(bounds["t1"], sequence) - bounds["t0"], 0)
    out = operands["output"][0, positions]
    out[:used] = samples[:, positions].sum(axis=0)
    out[used:] = 0


@implement(KERNELS, "positions_forward", <uintptr_t> &positions_forward)
def _positions_forward_reference(operands, attributes, bounds, iteration):
    rows = np.arange(bounds["r0"], bounds["r1"])
    out = operands["input"][rows] + operands["position_weight"][rows % attributes["sequence"]]
    operands["output"][rows] = out + operands["type_weight"][0] if "type_weight" in operands else out


@implement(KERNELS, "type_gradient", <uintptr_t> &type_gradient)
def _type_gradient_reference(operands, attributes, bounds, iteration):
    columns, out = slice(bounds["c0"], bounds["c1"]), operands["output"][0]
    out[0, columns] = operands["position_gradient"][0, : attributes["sequence"], columns].sum(axis=0)
    out[1:, columns] = 0


@implement(KERNELS, "trigram_forward", <uintptr_t> &trigram_forward)
def _trigram_forward_reference(operands, attributes, bounds, iteration):
    sequence, features = attributes["sequence"], attributes["features"]
    for row in range(bounds["r0"], bounds["r1"]):
        parts = operands["output"][row].reshape(3, features)
        for part, move in enumerate((1, 0, -1)):
            inside = 0 <= row % sequence + move < sequence
            parts[part] = operands["input"][row + move] if inside else 0


@implement(KERNELS, "trigram_backward", <uintptr_t> &trigram_backward)
def _trigram_backward_reference(operands, attributes, bounds, iteration):
    sequence, features = attributes["sequence"], attributes["features"]
    for row in range(bounds["r0"], bounds["r1"]):
        parts = operands["gradient"][row].reshape(3, features)
        out = parts[1].copy()
        if row % sequence > 0:
            out += operands["gradient"][row - 1, :features]
        if row % sequence + 1 < sequence:
            out += operands["gradient"][row + 1, 2 * features :]
        operands["output"][row] = out


@implement(KERNELS, "first_token_forward", <uintptr_t> &first_token_forward)
def _first_token_forward_reference(operands, attributes, bounds, iteration):
    samples = slice(bounds["n0"], bounds["n1"])
    operands["output"][samples] = operands["input"][:: attributes["sequence"]][samples]


@implement(KERNELS, "first_token_backward", <uintptr_t> &first_token_backward)
def _first_token_backward_reference(operands, attributes, bounds, iteration):
    samples = slice(bounds["n0"], bounds["n1"])
    out = operands["output"].reshape(-1, attributes["sequence"], attributes["features"])
    out[samples] = 0
    out[samples, 0] = operands["gradient"][samples]
