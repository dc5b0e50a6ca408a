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

import numpy as np

from .kernel_table import KernelSpec, register


def _gradient(operands, attributes, bounds):
    """Sum the partials of a block's elements into the gradient, where they are given; return the gradient."""
    e0, e1 = bounds["e0"], bounds["e1"]
    g = operands["gradient"].reshape(-1)[e0:e1]
    if "partials" in operands:
        e = np.arange(e0, e1)
        at = e // attributes["row_length"] * attributes["row_stride"] + attributes["row_offset"] + e % attributes["row_length"]
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


def _sgd_reference(operands, attributes, bounds, iteration):
    g, w, rate = _step(operands, attributes, bounds, iteration)
    g = g + attributes["weight_decay"] * w
    if "velocity" in operands:
        v = _state(operands, "velocity", bounds)
        v[:] = attributes["momentum"] * v + g
        g = v
    w -= rate * g


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


def _sum_reference(operands, attributes, bounds, iteration):
    g = _gradient(operands, attributes, bounds)
    operands["squares"][bounds["partial"]] = (g**2).sum()


def _scale_reference(operands, attributes, bounds, iteration):
    norm = np.sqrt(operands["squares"].sum())
    operands["scale"][0] = min(1.0, attributes["max_norm"] / (norm + 1e-6))
    if "norm_log" in operands:
        operands["norm_log"][iteration % attributes["length"]] = norm


ELEMENTS = ("num_partials", "partial_stride", "row_length", "row_stride", "row_offset")
# Without `velocity`: no momentum. `scale`: (1,), multiplies the gradient (clipping).
register(KernelSpec(
    "optimizer_sgd", ("partials?", "gradient", "parameter", "velocity?", "learning_rates", "scale?"),
    ELEMENTS + ("num_rates",), ("momentum", "weight_decay"), ("e0", "e1"), _sgd_reference))
register(KernelSpec(
    "optimizer_adam",
    ("partials?", "gradient", "parameter", "first_moment", "second_moment", "learning_rates", "scale?"),
    ELEMENTS + ("num_rates", "decoupled"), ("beta1", "beta2", "eps", "weight_decay"), ("e0", "e1"), _adam_reference))
# Clipping by the global norm: sums of gradients with their squares, by blocks of all parameters, each in its place of
# `squares` (num_squares,); then the factor min(1, max_norm / (norm + 1e-6)), which waits for all of them.
register(KernelSpec("gradient_sum", ("partials?", "gradient", "squares"), ELEMENTS, (), ("e0", "e1", "partial"),
                    _sum_reference))
register(KernelSpec("gradient_scale", ("squares", "scale", "norm_log?"), ("num_squares", "length"), ("max_norm",), (),
                    _scale_reference))
