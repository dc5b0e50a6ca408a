"""Stochastic gradient descent with momentum and weight decay, PyTorch's form, over a layer's weights and
biases.

g = sum of the partial gradients in order; v = momentum v + (g + weight_decay w); w = w - rate v, with the
learning rate from a table that is indexed by the iteration.
"""

from libc.stdint cimport int32_t, uintptr_t

from ..interface.block_kernel cimport KernelArgs, TaskContext
from .optimizer_loops cimport OptimizerLoops

from ..interface.kernel_spec import KernelSpec, register


cdef extern from "cython_src/kernels/simd/micro_kernels.h" nogil:
    ctypedef struct Micro "MicroKernels":  # what is used here of the table of inner loops
        const OptimizerLoops *optimizer


cdef int sgd(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """bounds: rows (output channels). Row o of a gradient is the gradient of W[o], then of b[o]."""
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef const Micro *micro = <const Micro *> a.micro
    cdef int partials = <int> a.integers[0]
    cdef Py_ssize_t outputs = a.integers[1], inputs = a.integers[2], o, row
    cdef const float *partial = <const float *> a.operand[0]
    cdef float *gradient = <float *> a.operand[1]
    cdef float rate = (<const float *> a.operand[6])[context.iteration % a.integers[3]]
    cdef float momentum = <float> a.reals[0], weight_decay = <float> a.reals[1]
    cdef Py_ssize_t stride = outputs * (inputs + 1)
    for o in range(b[0], b[1]):
        row = o * (inputs + 1)
        micro.optimizer.lanes_sgd(
            partial + row, stride, partials, gradient + row, <float *> a.operand[2] + o * inputs,
            <float *> a.operand[4] + o * inputs, inputs, rate, momentum, weight_decay)
        row += inputs
        micro.optimizer.lanes_sgd(
            partial + row, stride, partials, gradient + row, <float *> a.operand[3] + o, <float *> a.operand[5] + o, 1,
            rate, momentum, weight_decay)
    return 0


def _sgd_reference(operands, attributes, bounds, iteration):
    rows = slice(bounds["o0"], bounds["o1"])
    gradient = operands["gradient"].reshape(attributes["outputs"], -1)
    gradient[rows] = operands["partials"][:, rows].sum(axis=0)
    rate = operands["learning_rates"][iteration % attributes["num_rates"]]
    for name, g in (("weight", gradient[rows, :-1]), ("bias", gradient[rows, -1])):
        w, v = operands[name][rows], operands[f"{name}_momentum"][rows]
        v[:] = attributes["momentum"] * v + (g.reshape(w.shape) + attributes["weight_decay"] * w)
        w -= rate * v


register(KernelSpec(
    "sgd",
    ("partials", "gradient", "weight", "bias", "weight_momentum", "bias_momentum", "learning_rates"),
    ("partials", "outputs", "inputs", "num_rates"), ("momentum", "weight_decay"), ("o0", "o1"),
    _sgd_reference,
    <uintptr_t> &sgd))
