"""Optimisers over flat parameters, PyTorch's forms, and clipping by the global norm.

SGD:    g += weight_decay w; v = momentum v + g; w -= rate v.
Adam:   g += weight_decay w; m = beta1 m + (1 - beta1) g; s = beta2 s + (1 - beta2) g^2;
        w -= rate (m / (1 - beta1^t)) / (sqrt(s / (1 - beta2^t)) + eps), t = iteration + 1.
AdamW:  (decoupled) w -= rate weight_decay w first, and no weight decay in g.

The gradient g is the sum of the partials, in order; it is kept. Where it was summed before (clipping), the loop gives
no partials and g is read. The learning rate is the iteration's element of a table, t is a function of the iteration,
so that nothing is frozen when a graph is recorded.

Element e of a parameter stands in each partial at (e // row_length) row_stride + row_offset + e % row_length, and
partials are partial_stride apart: a fully connected layer's weight gradient (outputs, features + 1) holds its bias
gradient as the last column, and serves both.
"""

from libc.math cimport pow, sqrt
from libc.string cimport memset

from optimizer_c cimport *

import numpy as np

from ..interface.kernel_spec import implement
from .specs import KERNELS


cdef void set_elements(OptimizerTask *task, const float *partials, float *gradient, const Elements *e, Py_ssize_t start,
                       Py_ssize_t stop) noexcept nogil:
    memset(task, 0, sizeof(OptimizerTask))
    task.partials = e.num_partials
    task.partial_stride = e.partial_stride
    task.row_length = e.row_length
    task.row_stride = e.row_stride
    if partials != NULL:
        task.partial = partials + e.row_offset
    task.gradient = gradient
    task.start = start
    task.stop = stop
    task.scale = 1


cdef int sgd(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    cdef optimizer_sgd_args a = read_optimizer_sgd(args, block)
    cdef OptimizerTask task
    set_elements(&task, a.partials, a.gradient, &a.elements, a.e0, a.e1)
    task.parameter = a.parameter
    task.first = a.velocity
    task.rate = a.learning_rates[context.iteration % a.num_rates]
    if a.scale != NULL:
        task.scale = a.scale[0]
    task.momentum = <float> a.momentum
    task.decay = <float> a.weight_decay
    optimizer_loops(a.micro).sgd(&task)
    if a.bias != NULL:  # its gradient is the last column of the weights'
        task.partial += a.elements.row_stride - 1
        task.gradient, task.parameter, task.first = a.bias_gradient, a.bias, a.bias_velocity
        task.start, task.stop, task.row_length = a.e0 // a.elements.row_length, a.e1 // a.elements.row_length, 1
        optimizer_loops(a.micro).sgd(&task)
    return 0


cdef int adam(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    cdef optimizer_adam_args a = read_optimizer_adam(args, block)
    cdef OptimizerTask task
    cdef double t = <double> (context.iteration + 1), rate = a.learning_rates[context.iteration % a.num_rates]
    set_elements(&task, a.partials, a.gradient, &a.elements, a.e0, a.e1)
    task.parameter = a.parameter
    task.first = a.first_moment
    task.second = a.second_moment
    if a.scale != NULL:
        task.scale = a.scale[0]
    task.beta1 = <float> a.beta1
    task.beta2 = <float> a.beta2
    task.eps = <float> a.eps
    task.decay = 0 if a.decoupled else <float> a.weight_decay
    task.shrink = <float> (1 - rate * a.weight_decay) if a.decoupled else 1
    task.step = <float> (rate / (1 - pow(a.beta1, t)))
    task.correction = <float> (1 / sqrt(1 - pow(a.beta2, t)))
    optimizer_loops(a.micro).adam(&task)
    return 0


cdef int gradient_sum(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    cdef gradient_sum_args a = read_gradient_sum(args, block)
    cdef OptimizerTask task
    set_elements(&task, a.partials, a.gradient, &a.elements, a.e0, a.e1)
    a.squares[a.partial] = optimizer_loops(a.micro).gradient_sum(&task)
    return 0


cdef int gradient_scale(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    cdef gradient_scale_args a = read_gradient_scale(args, block)
    cdef double total = 0, factor
    cdef Py_ssize_t i
    for i in range(a.num_squares):
        total += a.squares[i]
    total = sqrt(total)
    factor = a.max_norm / (total + 1e-6)
    a.scale[0] = <float> factor if factor < 1 else 1
    if a.norm_log != NULL:
        a.norm_log[context.iteration % a.length] = <float> total
    return 0


def _gradient(operands, attributes, bounds):
    """Sum the partials of a block's elements into the gradient, where they are given; return the gradient."""
    e0, e1 = bounds["e0"], bounds["e1"]
    g = operands["gradient"].reshape(-1)[e0:e1]
    if "partials" in operands:
        e = np.arange(e0, e1)
        row, column = np.divmod(e, attributes["row_length"])
        at = row * attributes["row_stride"] + attributes["row_offset"] + column
        partials = operands["partials"].reshape(-1)
        g[:] = 0
        for p in range(attributes["num_partials"]):
            g += partials[p * attributes["partial_stride"] + at]
    return g


def _step(operands, attributes, bounds, iteration):
    """Gradient as it is used, parameter and learning rate of a block."""
    g = _gradient(operands, attributes, bounds)
    if "scale" in operands:
        g = g * operands["scale"][0]
    w = operands["parameter"].reshape(-1)[bounds["e0"] : bounds["e1"]]
    return g, w, operands["learning_rates"][iteration % attributes["num_rates"]]


def _state(operands, name, bounds):
    return operands[name].reshape(-1)[bounds["e0"] : bounds["e1"]]


# Without `velocity`: no momentum. `scale`: (1,), multiplies the gradient (clipping). With `bias` blocks are whole rows
# of weights, and take the step of these rows' biases too.
@implement(KERNELS, "optimizer_sgd", <uintptr_t> &sgd)
def _sgd_reference(operands, attributes, bounds, iteration):
    g, w, rate = _step(operands, attributes, bounds, iteration)
    g = g + attributes["weight_decay"] * w
    if "velocity" in operands:
        v = _state(operands, "velocity", bounds)
        v[:] = attributes["momentum"] * v + g
        g = v
    w -= rate * g
    if "bias" in operands:
        row, stride = attributes["row_length"], attributes["row_stride"]
        own = {"gradient": "bias_gradient", "parameter": "bias", "velocity": "bias_velocity"}
        further = {name: operands[other] for name, other in own.items() if other in operands}
        _sgd_reference(
            {name: operands[name] for name in ("partials", "learning_rates")} | further,
            {**attributes, "row_length": 1, "row_offset": stride - 1},
            {name: e // row for name, e in bounds.items()}, iteration)


@implement(KERNELS, "optimizer_adam", <uintptr_t> &adam)
def _adam_reference(operands, attributes, bounds, iteration):
    g, w, rate = _step(operands, attributes, bounds, iteration)
    beta1, beta2, decay = attributes["beta1"], attributes["beta2"], attributes["weight_decay"]
    if attributes["decoupled"]:
        w *= 1 - rate * decay
    else:
        g = g + decay * w
    m, s = _state(operands, "first_moment", bounds), _state(operands, "second_moment", bounds)
    m[:] = beta1 * m + (1 - beta1) * g
    s[:] = beta2 * s + (1 - beta2) * g**2
    t = iteration + 1
    w -= rate / (1 - beta1**t) * m / (np.sqrt(s) / np.sqrt(1 - beta2**t) + attributes["eps"])


# Clipping by the global norm: sums of gradients with their squares, by blocks of all parameters, each in its place of
# `squares` (num_squares,); then the factor min(1, max_norm / (norm + 1e-6)), which waits for all of them.
@implement(KERNELS, "gradient_sum", <uintptr_t> &gradient_sum)
def _sum_reference(operands, attributes, bounds, iteration):
    g = _gradient(operands, attributes, bounds)
    operands["squares"][bounds["partial"]] = (g**2).sum()


@implement(KERNELS, "gradient_scale", <uintptr_t> &gradient_scale)
def _scale_reference(operands, attributes, bounds, iteration):
    norm = np.sqrt(operands["squares"].sum())
    operands["scale"][0] = min(1.0, attributes["max_norm"] / (norm + 1e-6))
    if "norm_log" in operands:
        operands["norm_log"][iteration % attributes["length"]] = norm
