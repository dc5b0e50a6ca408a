"""Linear layer of tokens: y = activation(x W^T + bias) + residual, its data gradient and its weight gradient.

Rows are tokens; a weight is PyTorch's, (outputs, inputs). A row of the output, and of its gradient, may be longer than
its features (`output_pitch`, `gradient_pitch`), which begin at an offset; the rest is neither read nor written. With
`further_weight` an input has `further_inputs` features more, which that multiplies: y = x[:, :inputs] W^T +
x[:, inputs:] V^T. The gradients of both parts are loops of their own, over slices of the input's columns.

Sums run over the features in an order that depends on their number alone, so that blocks may cut rows and columns
anywhere; those of the weight gradient run over the block's rows.
"""

from libc.stdint cimport int32_t, uintptr_t
from libc.string cimport memset

from ..interface.block_kernel cimport KernelArgs, TaskContext

import numpy as np

from ..elementwise.gelu import gelu, gelu_derivative
from ..interface.kernel_spec import KernelSpec, longest, register


cdef extern from "cython_src/kernels/simd/activation_codes.h" nogil:
    const int ACTIVATION_RELU, ACTIVATION_GELU


cdef extern from "cython_src/kernels/linear/linear_loops.h" nogil:
    Py_ssize_t LINEAR_FLOATS(Py_ssize_t terms, Py_ssize_t columns)
    Py_ssize_t LINEAR_GRADIENT_FLOATS(Py_ssize_t rows, Py_ssize_t outputs, Py_ssize_t inputs)
    const int LINEAR_COLUMNS

    ctypedef struct LinearTask:
        const float *a
        const float *b
        float *c
        Py_ssize_t a_row, b_row, c_row
        int rows, columns, terms, accumulate
        const float *bias
        const float *residual
        float *before
        const float *gelu_of
        const float *relu_of
        Py_ssize_t residual_row
        int activation
        float *scratch

    ctypedef struct LinearGradientTask:
        const float *gradient
        const float *input
        float *c
        float *bias
        Py_ssize_t gradient_row, input_row, c_row
        int rows, outputs, inputs, accumulate
        float *scratch

    ctypedef struct LinearLoops:
        void (*forward)(const LinearTask *) noexcept nogil
        void (*backward_data)(const LinearTask *) noexcept nogil
        void (*backward_weights)(const LinearGradientTask *) noexcept nogil


cdef extern from "cython_src/kernels/simd/micro_kernels.h" nogil:
    ctypedef struct Micro "MicroKernels":  # what is used here of the table of inner loops
        const LinearLoops *linear


RELU, GELU = ACTIVATION_RELU, ACTIVATION_GELU  # codes of the activation; 0: none


cdef inline float *at(const void *operand, Py_ssize_t offset) noexcept nogil:
    """Element of an operand; NULL where a loop leaves it out."""
    return <float *> operand + offset if operand != NULL else NULL


cdef int linear_forward(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """bounds: rows, output features."""
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef Py_ssize_t inputs = a.integers[0], outputs = a.integers[1], pitch = a.integers[2]
    cdef Py_ssize_t row = b[0], column = b[2]
    cdef LinearTask task
    memset(&task, 0, sizeof(LinearTask))
    task.a = at(a.operand[0], row * inputs)
    task.b = at(a.operand[1], column * inputs)
    task.bias = at(a.operand[2], column)
    task.residual = at(a.operand[3], row * outputs + column)
    task.before = at(a.operand[4], row * outputs + column)
    task.c = at(a.operand[5], row * pitch + column + a.integers[4])
    task.a_row = task.b_row = inputs
    task.c_row = pitch
    task.residual_row = outputs
    task.rows = b[1] - b[0]
    task.columns = b[3] - b[2]
    task.terms = <int> inputs
    task.activation = <int> a.integers[3]
    task.scratch = <float *> context.scratch
    if a.operand[6] != NULL:
        task.a = at(a.operand[0], row * (inputs + a.integers[5]))
        both_parts(&task, at(a.operand[6], column * a.integers[5]), <int> a.integers[5],
                   (<const Micro *> a.micro).linear)
    else:
        (<const Micro *> a.micro).linear.forward(&task)
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
        first.scratch = whole.scratch
        loops.forward(&first)
        second = whole[0]
        second.a, second.b, second.c = whole.a + whole.terms, weight + column * further, first.c
        second.a_row, second.b_row = first.a_row, further
        second.bias = at(whole.bias, column)
        second.residual = at(whole.residual, column)
        second.before = at(whole.before, column)
        second.columns, second.terms, second.accumulate = first.columns, further, 1
        loops.forward(&second)
        column += LINEAR_COLUMNS


cdef int linear_backward_data(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """bounds: rows, input features."""
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef Py_ssize_t inputs = a.integers[0], outputs = a.integers[1], pitch = a.integers[2]
    cdef Py_ssize_t row = b[0], column = b[2], output_pitch = a.integers[5] if a.integers[5] else inputs
    cdef LinearTask task
    memset(&task, 0, sizeof(LinearTask))
    task.a = at(a.operand[0], row * pitch + a.integers[4])
    task.b = at(a.operand[1], column)
    if a.integers[7]:
        task.relu_of = at(a.operand[2], row * inputs + column)
    else:
        task.gelu_of = at(a.operand[2], row * inputs + column)
    task.c = at(a.operand[3], row * output_pitch + column + a.integers[6])
    task.a_row = pitch
    task.b_row = task.residual_row = inputs
    task.c_row = output_pitch
    task.rows = b[1] - b[0]
    task.columns = b[3] - b[2]
    task.terms = <int> outputs
    task.accumulate = <int> a.integers[3]
    task.scratch = <float *> context.scratch
    (<const Micro *> a.micro).linear.backward_data(&task)
    return 0


cdef int linear_backward_weights(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """bounds: rows, output features, partial buffer."""
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef Py_ssize_t inputs = a.integers[0], outputs = a.integers[1], pitch = a.integers[2]
    cdef Py_ssize_t row = b[0], output = b[2], partial = b[4], input_pitch = a.integers[5] if a.integers[5] else inputs
    cdef LinearGradientTask task
    task.gradient = at(a.operand[0], row * pitch + output + a.integers[4])
    task.input = at(a.operand[1], row * input_pitch + a.integers[6])
    task.c = at(a.operand[2], (partial * outputs + output) * inputs)
    task.bias = at(a.operand[3], partial * outputs + output)
    task.gradient_row = pitch
    task.input_row = input_pitch
    task.c_row = inputs
    task.rows = b[1] - b[0]
    task.outputs = b[3] - b[2]
    task.inputs = <int> inputs
    task.accumulate = <int> a.integers[3]
    task.scratch = <float *> context.scratch
    (<const Micro *> a.micro).linear.backward_weights(&task)
    return 0


def _moved(columns, offset):
    return slice(columns.start + offset, columns.stop + offset)


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
    if attributes["activation"] == GELU:
        y = gelu(y)
    elif attributes["activation"] == RELU:
        y = np.where(y <= 0, 0, y)
    if "residual" in operands:
        y = y + operands["residual"][rows, columns]
    operands["output"][rows, _moved(columns, attributes["output_offset"])] = y


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


def _linear_backward_weights_reference(operands, attributes, bounds, iteration):
    rows, outputs, partial = slice(bounds["r0"], bounds["r1"]), slice(bounds["o0"], bounds["o1"]), bounds["partial"]
    dy = operands["gradient"][rows, _moved(outputs, attributes["gradient_offset"])]
    x = operands["input"][rows, _moved(slice(0, attributes["inputs"]), attributes["input_offset"])]
    results = {"weights": dy.T @ x, "bias": dy.sum(axis=0)}
    for name, result in results.items():
        if name in operands:
            out = operands[name][partial, outputs]
            out[...] = out + result if attributes["accumulate"] else result


def _forward_scratch(attributes, bounds, operands):
    terms = max(attributes["inputs"], attributes["further_inputs"])
    return sizeof(float) * LINEAR_FLOATS(terms, longest(bounds, "c"))


def _backward_data_scratch(attributes, bounds, operands):
    return sizeof(float) * LINEAR_FLOATS(attributes["outputs"], longest(bounds, "c"))


def _backward_weights_scratch(attributes, bounds, operands):
    return sizeof(float) * LINEAR_GRADIENT_FLOATS(longest(bounds, "r"), longest(bounds, "o"), attributes["inputs"])


register(KernelSpec(
    "linear_forward", ("input", "weight", "bias?", "residual?", "before?", "output", "further_weight?"),
    ("inputs", "outputs", "output_pitch", "activation", "output_offset?", "further_inputs?"), (),
    ("r0", "r1", "c0", "c1"),
    _linear_forward_reference, <uintptr_t> &linear_forward, scratch_bytes=_forward_scratch))
register(KernelSpec(
    "linear_backward_data", ("gradient", "weight", "before?", "output"),
    ("inputs", "outputs", "gradient_pitch", "accumulate", "gradient_offset?", "output_pitch?", "output_offset?",
     "relu?"), (), ("r0", "r1", "c0", "c1"),
    _linear_backward_data_reference, <uintptr_t> &linear_backward_data, scratch_bytes=_backward_data_scratch))
register(KernelSpec(
    "linear_backward_weights", ("gradient", "input", "weights", "bias?"),
    ("inputs", "outputs", "gradient_pitch", "accumulate", "gradient_offset?", "input_pitch?", "input_offset?"), (),
    ("r0", "r1", "o0", "o1", "partial"),
    _linear_backward_weights_reference, <uintptr_t> &linear_backward_weights,
    scratch_bytes=_backward_weights_scratch))
