"""Linear layer of tokens: y = activation(x W^T + bias) + residual, its data gradient and its weight gradient.

Rows are tokens; a weight is PyTorch's, (outputs, inputs). A row of the output, and of its gradient, may be longer than
its features (`output_pitch`, `gradient_pitch`); the rest is neither read nor written. Sums run over the features in
an order that depends on their number alone, so that blocks may cut rows and columns anywhere; those of the weight
gradient run over the block's rows.
"""

from libc.stdint cimport int32_t, uintptr_t
from libc.string cimport memset

from ..interface.block_kernel cimport KernelArgs, TaskContext
from .linear_loops cimport LINEAR_FLOATS, LINEAR_GELU, LINEAR_GRADIENT_FLOATS, LinearGradientTask, LinearTask
from .linear_loops cimport LinearLoops

from ..interface.kernel_spec import KernelSpec, longest, register
from ..elementwise.gelu import gelu, gelu_derivative


cdef extern from "cython_src/kernels/simd/micro_kernels.h" nogil:
    ctypedef struct Micro "MicroKernels":  # what is used here of the table of inner loops
        const LinearLoops *linear


GELU = LINEAR_GELU  # code of the activation; 0: none


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
    task.c = at(a.operand[5], row * pitch + column)
    task.a_row = task.b_row = inputs
    task.c_row = pitch
    task.residual_row = outputs
    task.rows = b[1] - b[0]
    task.columns = b[3] - b[2]
    task.terms = <int> inputs
    task.activation = <int> a.integers[3]
    task.scratch = <float *> context.scratch
    (<const Micro *> a.micro).linear.forward(&task)
    return 0


cdef int linear_backward_data(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """bounds: rows, input features."""
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef Py_ssize_t inputs = a.integers[0], outputs = a.integers[1], pitch = a.integers[2]
    cdef Py_ssize_t row = b[0], column = b[2]
    cdef LinearTask task
    memset(&task, 0, sizeof(LinearTask))
    task.a = at(a.operand[0], row * pitch)
    task.b = at(a.operand[1], column)
    task.gelu_of = at(a.operand[2], row * inputs + column)
    task.c = at(a.operand[3], row * inputs + column)
    task.a_row = pitch
    task.b_row = task.c_row = task.residual_row = inputs
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
    cdef Py_ssize_t row = b[0], output = b[2], partial = b[4]
    cdef LinearGradientTask task
    task.gradient = at(a.operand[0], row * pitch + output)
    task.input = at(a.operand[1], row * inputs)
    task.c = at(a.operand[2], (partial * outputs + output) * inputs)
    task.bias = at(a.operand[3], partial * outputs + output)
    task.gradient_row = pitch
    task.input_row = task.c_row = inputs
    task.rows = b[1] - b[0]
    task.outputs = b[3] - b[2]
    task.inputs = <int> inputs
    task.accumulate = <int> a.integers[3]
    task.scratch = <float *> context.scratch
    (<const Micro *> a.micro).linear.backward_weights(&task)
    return 0


def _linear_forward_reference(operands, attributes, bounds, iteration):
    rows, columns = slice(bounds["r0"], bounds["r1"]), slice(bounds["c0"], bounds["c1"])
    y = operands["input"][rows] @ operands["weight"][columns].T
    if "bias" in operands:
        y = y + operands["bias"][columns]
    if "before" in operands:
        operands["before"][rows, columns] = y
    if attributes["activation"] == GELU:
        y = gelu(y)
    if "residual" in operands:
        y = y + operands["residual"][rows, columns]
    operands["output"][rows, columns] = y


def _linear_backward_data_reference(operands, attributes, bounds, iteration):
    rows, columns = slice(bounds["r0"], bounds["r1"]), slice(bounds["c0"], bounds["c1"])
    dx = operands["gradient"][rows, : attributes["outputs"]] @ operands["weight"][:, columns]
    out = operands["output"]
    if attributes["accumulate"]:
        dx = out[rows, columns] + dx
    if "before" in operands:
        dx = dx * gelu_derivative(operands["before"][rows, columns])
    out[rows, columns] = dx


def _linear_backward_weights_reference(operands, attributes, bounds, iteration):
    rows, outputs, partial = slice(bounds["r0"], bounds["r1"]), slice(bounds["o0"], bounds["o1"]), bounds["partial"]
    dy = operands["gradient"][rows, outputs]
    results = {"weights": dy.T @ operands["input"][rows], "bias": dy.sum(axis=0)}
    for name, result in results.items():
        if name in operands:
            out = operands[name][partial, outputs]
            out[...] = out + result if attributes["accumulate"] else result


def _forward_scratch(attributes, bounds, operands):
    return sizeof(float) * LINEAR_FLOATS(attributes["inputs"], longest(bounds, "c"))


def _backward_data_scratch(attributes, bounds, operands):
    return sizeof(float) * LINEAR_FLOATS(attributes["outputs"], longest(bounds, "c"))


def _backward_weights_scratch(attributes, bounds, operands):
    return sizeof(float) * LINEAR_GRADIENT_FLOATS(longest(bounds, "r"), longest(bounds, "o"), attributes["inputs"])


register(KernelSpec(
    "linear_forward", ("input", "weight", "bias?", "residual?", "before?", "output"),
    ("inputs", "outputs", "output_pitch", "activation"), (), ("r0", "r1", "c0", "c1"),
    _linear_forward_reference, <uintptr_t> &linear_forward, scratch_bytes=_forward_scratch))
register(KernelSpec(
    "linear_backward_data", ("gradient", "weight", "before?", "output"),
    ("inputs", "outputs", "gradient_pitch", "accumulate"), (), ("r0", "r1", "c0", "c1"),
    _linear_backward_data_reference, <uintptr_t> &linear_backward_data, scratch_bytes=_backward_data_scratch))
register(KernelSpec(
    "linear_backward_weights", ("gradient", "input", "weights", "bias?"),
    ("inputs", "outputs", "gradient_pitch", "accumulate"), (), ("r0", "r1", "o0", "o1", "partial"),
    _linear_backward_weights_reference, <uintptr_t> &linear_backward_weights,
    scratch_bytes=_backward_weights_scratch))
