"""Sums of partial gradients, clipping, and the optimiser's steps."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from ..plan.builder import block_bounds
from .state import Lowering


@dataclass(frozen=True)
class Gradient:
    """A parameter's gradient on its way to the optimiser.

    Attributes
    ----------
    parameter : str
    partials : str
        Buffer of partial gradients; empty where `buffer` holds their sum already.
    buffer : str
        Buffer of the sum.
    elements : dict
        Kernel attributes that say where a parameter's elements stand in each partial.
    blocks : list
        Ranges of the leading axis.
    """

    parameter: str
    partials: str
    buffer: str
    elements: dict[str, int]
    blocks: list[tuple[int, int]]

    @property
    def bounds(self) -> list[dict[str, int]]:
        """Bounds of the blocks: elements."""
        row = self.elements["row_length"]
        return [{"e0": first * row, "e1": last * row} for first, last in self.blocks]

    @property
    def layer(self) -> str:
        """Name of the layer that the parameter belongs to."""
        return self.parameter.rpartition(".")[0]


def append_updates(low: Lowering) -> None:
    """Sum the partial gradients of every trained parameter and take the optimiser's step."""
    rates = low.builder.buffer("learning_rates", (low.data.num_learning_rates,), role="table")
    o = low.options
    if low.layout.joint_sgd and o.optimizer == "sgd" and not o.clip_norm and o.decay == "all":
        for layer in dict.fromkeys(name.rpartition(".")[0] for name in low.partials):
            joint_sgd(low, layer, rates)
        return
    gradients = [gradient_of(low, name) for name in low.partials]
    scale = ""
    if low.options.clip_norm and gradients:
        gradients, scale = clip(low, gradients)
    for gradient in gradients:
        optimizer_step(low, gradient, rates, scale)


def gradient_of(low: Lowering, name: str) -> Gradient:
    """Describe a parameter's gradient and declare the buffer of its sum."""
    partials, count = low.partials[name]
    shape, stored = low.parameter_shapes[name], low.builder.shape(partials)
    row, row_stride = math.prod(shape[1:]), math.prod(stored[2:])
    # A bias gradient may be the last column of the weight gradient.
    combined = len(stored) == 3 and name.endswith(".bias")
    elements = {
        "num_partials": count,
        "partial_stride": shape[0] * row_stride,
        "row_length": row,
        "row_stride": row_stride,
        "row_offset": row_stride - 1 if combined else 0,
    }
    if count == 1 and row == row_stride:
        buffer, partials = partials, ""
    else:
        buffer = low.builder.buffer(f"{name}.gradient_sum", shape, role="gradient", carried=True)
    low.aliases[f"{name}.grad"] = parameter_view(buffer, shape)
    return Gradient(name, partials, buffer, elements, low.layout.update_blocks(low, shape[0], row))


def parameter_view(buffer: str, shape: tuple[int, ...]) -> Callable:
    """Function of the arrays that gives a buffer in a parameter's shape."""
    return lambda arrays: arrays[buffer].reshape(shape)


def clip(low: Lowering, gradients: list[Gradient]) -> tuple[list[Gradient], str]:
    """Append the sums of all gradients, their norm, and the factor that every step then waits for.

    Returns
    -------
    list of Gradient, str
        The gradients as sums, and the buffer of the factor.
    """
    b, length = low.builder, low.data.num_iterations_logged
    total = sum(len(gradient.blocks) for gradient in gradients)
    squares = b.buffer("gradient_squares", (total,), role="temporary")
    scale = b.buffer("gradient_scale", (1,), role="temporary")
    log = b.buffer("gradient_norms", (length,), role="log")
    numbers = itertools.count()
    for g in gradients:
        bounds = [{**block, "partial": next(numbers)} for block in g.bounds]
        operands = {"gradient": g.buffer, "squares": squares, "partials": g.partials}
        low.loop(f"{g.parameter}.gradient_sum", "gradient_sum", operands, bounds, g.layer, "update", **g.elements)
    operands = {"squares": squares, "scale": scale, "norm_log": log}
    sizes = {"num_squares": total, "length": length, "max_norm": low.options.clip_norm}
    low.loop("gradient_scale", "gradient_scale", operands, [{}], low.units[-1].layer.name, "update", **sizes)
    return [replace(gradient, partials="") for gradient in gradients], scale


def optimizer_step(low: Lowering, gradient: Gradient, rates: str, scale: str) -> None:
    """Append the optimiser's step for one parameter."""
    o, name = low.options, gradient.parameter
    operands = {"gradient": gradient.buffer, "parameter": name, "learning_rates": rates}
    operands |= {"partials": gradient.partials, "scale": scale}
    decayed = o.decay == "all" or len(low.parameter_shapes[name]) > 1
    attributes = {
        **gradient.elements,
        "num_rates": low.data.num_learning_rates,
        "weight_decay": o.weight_decay if decayed else 0.0,
    }
    if o.optimizer == "sgd":
        states = {"velocity": f"{name}.momentum"} if o.momentum else {}
        attributes["momentum"] = o.momentum
    else:
        states = {"first_moment": f"{name}.exp_avg", "second_moment": f"{name}.exp_avg_sq"}
        attributes |= {"beta1": o.betas[0], "beta2": o.betas[1], "eps": o.eps, "decoupled": int(o.optimizer == "adamw")}
    for operand, state in states.items():
        operands[operand] = low.builder.buffer(state, low.parameter_shapes[name], role="optimizer_state")
    kernel = f"optimizer_{'sgd' if o.optimizer == 'sgd' else 'adam'}"
    low.loop(f"{name}.update", kernel, operands, gradient.bounds, gradient.layer, "update", **attributes)


def joint_sgd(low: Lowering, layer: str, rates: str) -> None:
    """Append the step of SGD for a layer's weights and biases together; row o of a gradient is that of W[o], then of
    b[o]."""
    b, chain = low.builder, low.options.chain
    weight, bias = low.parameter(f"{layer}.weight"), low.parameter(f"{layer}.bias")
    shape = low.parameter_shapes[weight]
    outputs, inputs = shape[0], math.prod(shape[1:])
    momenta = [
        b.buffer(f"{name}.momentum", low.parameter_shapes[name], role="optimizer_state") for name in (weight, bias)
    ]
    partials, count = low.partials[weight]
    # Declared as carried, so that it is still there for users after a step in which memory is shared.
    gradient = (
        partials if chain else b.buffer(f"{layer}.gradient_sum", (outputs, inputs + 1), role="gradient", carried=True)
    )
    low.loop(
        f"{layer}.update",
        "sgd",
        {
            "partials": partials,
            "gradient": gradient,
            "weight": weight,
            "bias": bias,
            "weight_momentum": momenta[0],
            "bias_momentum": momenta[1],
            "learning_rates": rates,
        },
        block_bounds(o=low.layout.update_blocks(low, outputs, inputs + 1)),
        layer,
        "update",
        num_partials=count,
        outputs=outputs,
        inputs=inputs,
        num_rates=low.data.num_learning_rates,
        momentum=low.options.momentum,
        weight_decay=low.options.weight_decay,
    )
    for name, columns in ((weight, slice(0, inputs)), (bias, inputs)):
        low.aliases[f"{name}.grad"] = _column_view(gradient, (outputs, inputs + 1), columns, low.parameter_shapes[name])


def _column_view(buffer: str, stored: tuple[int, int], columns: slice | int, shape: tuple[int, ...]) -> Callable:
    """Function of the arrays that gives some columns of a buffer in a parameter's shape."""
    return lambda arrays: arrays[buffer].reshape(stored)[:, columns].reshape(shape)
