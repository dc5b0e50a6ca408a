"""Linear layer of tokens: y = activation(x W^T + bias) + residual, its data gradient and its weight gradient.

Rows are tokens; a weight is PyTorch's, (outputs, inputs). A row of the output, and of its gradient, may be longer than
its features (`output_pitch`, `gradient_pitch`), which begin at an offset; the rest is neither read nor written. With
`further_weight` an input has `further_inputs` features more, which that multiplies: y = x[:, :inputs] W^T +
x[:, inputs:] V^T. The gradients of both parts are loops of their own, over slices of the input's columns.

Sums run over the features in an order that depends on their number alone, so that blocks may cut rows and columns
anywhere; those of the weight gradient run over the block's rows.
"""

from libc.string cimport memset

from linear_c cimport *
from simd_c cimport LANES

import os
import time
from functools import cache

import numpy as np

from ..interface.kernel_spec import implement, longest
from ..simd import instruction_sets
from ..simd.activations import activate, gelu_derivative
from .specs import KERNELS

TILES = ("avx512_narrow", "avx512")  # 12 x 32, 6 x 64
TURNS = 8  # of both tiles: 2 ms
CLEARLY = 0.97  # tiles of 12 x 32 take at most this part of the other's time where they are used


def choose_instruction_set(name=None):
    """The instruction set of a plan's kernels: as `instruction_sets.choose`, which raises for `name`; where nobody asks
    for one, of AVX-512's two tiles the faster one, which a process measures once."""
    result = instruction_sets.choose(name)
    asked = name or os.environ.get(instruction_sets.ENVIRONMENT_VARIABLE)
    return _faster_tile() if result == "avx512" and not asked else result


@cache
def _faster_tile():
    narrow, wide = tile_times()
    return TILES[narrow > CLEARLY * wide]


def tile_times():
    """Shortest time of a forward product with either of TILES, in seconds, in turns; its data fit the L2 cache."""
    cdef int rows = 96, terms = LINEAR_TERMS, columns = 192
    cdef uintptr_t address
    cdef float[::1] memory = np.ones(
        rows * terms + columns * (terms + rows) + LINEAR_FLOATS(terms, columns) + LANES, np.float32)
    cdef LinearTask task
    memset(&task, 0, sizeof(LinearTask))
    task.rows, task.terms, task.columns = rows, terms, columns
    task.a_row, task.b_row, task.c_row = terms, terms, columns
    address = (<uintptr_t> &memory[0] + 63) // 64 * 64
    task.scratch = <float *> address
    task.a = task.scratch + LINEAR_FLOATS(terms, columns)
    task.b = task.a + rows * terms
    task.c = <float *> task.b + columns * terms
    times = {name: [] for name in TILES}
    for _ in range(TURNS + 1):
        for name in TILES:
            address = instruction_sets.micro_kernels_address(name)
            start = time.perf_counter()
            linear_loops(<const MicroKernels *> address).forward(&task)
            times[name].append(time.perf_counter() - start)
    return [min(some[1:]) for some in times.values()]


cdef inline float *at(float *operand, Py_ssize_t offset) noexcept nogil:
    """Element of an operand; NULL where a loop leaves it out."""
    return operand + offset if operand != NULL else NULL


cdef int linear_forward(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    cdef linear_forward_args a = read_linear_forward(args, block)
    cdef Py_ssize_t at_output = a.r0 * a.outputs + a.c0
    cdef LinearTask task
    memset(&task, 0, sizeof(LinearTask))
    task.a = a.input + a.r0 * (a.inputs + (a.further_inputs if a.further_weight != NULL else 0))
    task.b = a.weight + a.c0 * a.inputs
    task.bias = at(a.bias, a.c0)
    task.residual = at(a.residual, at_output)
    task.before = at(a.before, at_output)
    task.c = a.output + a.r0 * a.output_pitch + a.c0 + a.output_offset
    task.a_row = task.b_row = a.inputs
    task.c_row = a.output_pitch
    task.residual_row = a.outputs
    task.rows = a.r1 - a.r0
    task.columns = a.c1 - a.c0
    task.terms = a.inputs
    task.activation = a.activation
    task.bf16x6 = a.bf16x6
    task.scratch = <float *> context.scratch
    if a.further_weight != NULL:
        both_parts(&task, a.further_weight + a.c0 * a.further_inputs, a.further_inputs, linear_loops(a.micro))
    else:
        linear_loops(a.micro).forward(&task)
    return 0


cdef void both_parts(const LinearTask *whole, const float *weight, int further,
                     const LinearLoops *loops) noexcept nogil:
    """Products with both weights, some columns after the other: the first sums are then still in the cache."""
    cdef LinearTask first, second
    cdef Py_ssize_t column = 0
    while column < whole.columns:
        memset(&first, 0, sizeof(LinearTask))
        first.a, first.b, first.c = whole.a, whole.b + column * whole.terms, whole.c + column
        first.a_row = whole.terms + further
        first.b_row, first.c_row = whole.terms, whole.c_row
        first.rows, first.terms = whole.rows, whole.terms
        first.columns = <int> min(<Py_ssize_t> LINEAR_COLUMNS, whole.columns - column)
        first.bf16x6, first.scratch = whole.bf16x6, whole.scratch
        loops.forward(&first)
        second = whole[0]
        second.a, second.b, second.c = whole.a + whole.terms, weight + column * further, first.c
        second.a_row, second.b_row = first.a_row, further
        second.bias = whole.bias + column if whole.bias != NULL else NULL
        second.residual = whole.residual + column if whole.residual != NULL else NULL
        second.before = at(whole.before, column)
        second.columns, second.terms, second.accumulate = first.columns, further, 1
        loops.forward(&second)
        column += LINEAR_COLUMNS


cdef int linear_backward_data(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    cdef linear_backward_data_args a = read_linear_backward_data(args, block)
    cdef const float *before = at(a.before, a.r0 * a.inputs + a.c0)
    cdef LinearTask task
    memset(&task, 0, sizeof(LinearTask))
    task.a = a.gradient + a.r0 * a.gradient_pitch + a.gradient_offset
    task.b = a.weight + a.c0
    task.relu_of = before if a.relu else NULL
    task.gelu_of = NULL if a.relu else before
    task.a_row = a.gradient_pitch
    task.b_row = task.residual_row = a.inputs
    task.c_row = a.output_pitch if a.output_pitch else a.inputs
    task.c = a.output + a.r0 * task.c_row + a.c0 + a.output_offset
    task.rows = a.r1 - a.r0
    task.columns = a.c1 - a.c0
    task.terms = a.outputs
    task.accumulate, task.bf16x6 = a.accumulate, a.bf16x6
    task.scratch = <float *> context.scratch
    linear_loops(a.micro).backward_data(&task)
    return 0


cdef int linear_backward_weights(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    cdef linear_backward_weights_args a = read_linear_backward_weights(args, block)
    cdef Py_ssize_t at_output = a.partial * a.outputs + a.o0
    cdef LinearGradientTask task
    memset(&task, 0, sizeof(LinearGradientTask))
    task.gradient = a.gradient + a.r0 * a.gradient_pitch + a.o0 + a.gradient_offset
    task.input_row = a.input_pitch if a.input_pitch else a.inputs
    task.input = a.input + a.r0 * task.input_row + a.input_offset
    task.c = a.weights + at_output * a.inputs
    task.bias = at(a.bias, at_output)
    task.gradient_row = a.gradient_pitch
    task.c_row = a.inputs
    task.rows = a.r1 - a.r0
    task.outputs = a.o1 - a.o0
    task.inputs = a.inputs
    task.accumulate, task.bf16x6 = a.accumulate, a.bf16x6
    task.scratch = <float *> context.scratch
    linear_loops(a.micro).backward_weights(&task)
    return 0


def _moved(columns, offset):
    return slice(columns.start + offset, columns.stop + offset)


def _scratch(plain, rows, columns):
    """Function of the scratch memory of a product: `plain` of that by multiply-adds; by six products of bfloat16 from
    the bounds `rows` and `columns`, which may also be an attribute."""

    def scratch_bytes(attributes, bounds, operands):
        if attributes["bf16x6"]:
            m, n = longest(bounds, rows), attributes[columns] if columns in attributes else longest(bounds, columns)
            return sizeof(float) * LINEAR_SIX_FLOATS(<int> m, <int> n)
        return sizeof(float) * plain(attributes, bounds)

    return scratch_bytes


def _forward_floats(attributes, bounds):
    return LINEAR_FLOATS(max(attributes["inputs"], attributes["further_inputs"]), longest(bounds, "c"))


def _backward_data_floats(attributes, bounds):
    return LINEAR_FLOATS(attributes["outputs"], longest(bounds, "c"))


def _backward_weights_floats(attributes, bounds):
    return LINEAR_GRADIENT_FLOATS(longest(bounds, "r"), longest(bounds, "o"), attributes["inputs"])


@implement(KERNELS, "linear_forward", <uintptr_t> &linear_forward, scratch_bytes=_scratch(_forward_floats, "r", "c"))
def _linear_forward_reference(operands, attributes, bounds, iteration):
    rows, columns = slice(bounds["r0"], bounds["r1"]), slice(bounds["c0"], bounds["c1"])
    x = operands["input"][rows]
    y = x[:, : attributes["inputs"]] @ operands["weight"][columns].T
    if "further_weight" in operands:
        y = y + x[:, attributes["inputs"] :] @ operands["further_weight"][columns].T
    if "bias" in operands:
        y = y + operands["bias"][columns]
    if "before" in operands:
        operands["before"][rows, columns] = y
    y = activate(y, attributes["activation"])
    if "residual" in operands:
        y = y + operands["residual"][rows, columns]
    operands["output"][rows, _moved(columns, attributes["output_offset"])] = y


@implement(KERNELS, "linear_backward_data", <uintptr_t> &linear_backward_data,
           scratch_bytes=_scratch(_backward_data_floats, "r", "c"))
def _linear_backward_data_reference(operands, attributes, bounds, iteration):
    rows, columns = slice(bounds["r0"], bounds["r1"]), slice(bounds["c0"], bounds["c1"])
    gradients = _moved(slice(0, attributes["outputs"]), attributes["gradient_offset"])
    dx = operands["gradient"][rows, gradients] @ operands["weight"][:, columns]
    out = operands["output"][:, _moved(slice(0, attributes["inputs"]), attributes["output_offset"])]
    if attributes["accumulate"]:
        dx = out[rows, columns] + dx
    if "before" in operands:
        before = operands["before"][rows, columns]
        dx = np.where(before > 0, dx, 0) if attributes["relu"] else dx * gelu_derivative(before)
    out[rows, columns] = dx


@implement(KERNELS, "linear_backward_weights", <uintptr_t> &linear_backward_weights,
           scratch_bytes=_scratch(_backward_weights_floats, "o", "inputs"))
def _linear_backward_weights_reference(operands, attributes, bounds, iteration):
    rows, outputs, partial = slice(bounds["r0"], bounds["r1"]), slice(bounds["o0"], bounds["o1"]), bounds["partial"]
    dy = operands["gradient"][rows, _moved(outputs, attributes["gradient_offset"])]
    x = operands["input"][rows, _moved(slice(0, attributes["inputs"]), attributes["input_offset"])]
    results = {"weights": dy.T @ x, "bias": dy.sum(axis=0)}
    for name, result in results.items():
        if name in operands:
            out = operands[name][partial, outputs]
            out[...] = out + result if attributes["accumulate"] else result
