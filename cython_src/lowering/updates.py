"""Sums of partial gradients, clipping, and the optimizer's steps."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

from .state import Lowering


@dataclass(frozen=True)
class Gradient:
    """A parameter's gradient on its way to the optimizer."""

    parameter: str
    partials: str  # buffer of partial gradients; empty where `buffer` holds their sum already
    buffer: str  # of the sum
    elements: dict[str, int]  # attributes of kernels: where a parameter's elements stand in each partial
    blocks: list[tuple[int, int]]  # ranges of the leading axis

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
    """Sum the partial gradients of every trained parameter and take the optimizer's step."""
    rates = low.builder.buffer("learning_rates", (low.data.num_learning_rates,), role="table")
    gradients, o = [gradient_of(low, name) for name in low.partials], low.options
    scale, biases = "", {}
    if o.clip_norm and gradients:
        gradients, scale = clip(low, gradients)
    elif low.layout.joint_sgd and o.optimizer == "sgd" and o.decay == "all":
        biases = {f"{g.layer}.weight": g for g in gradients if g.parameter.endswith(".bias")}
    for gradient in gradients:
        if gradient not in biases.values():
            optimizer_step(low, gradient, rates, scale, biases.get(gradient.parameter))


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
    low.aliases[f"{name}.grad"] = lambda arrays: arrays[buffer].reshape(shape)
    return Gradient(name, partials, buffer, elements, low.layout.update_blocks(low, shape[0], row))


def clip(low: Lowering, gradients: list[Gradient]) -> tuple[list[Gradient], str]:
    """Append the sums of all gradients, their norm, and the factor that every step then waits for; return the gradients
    as sums, and the factor's buffer."""
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


def optimizer_step(low: Lowering, gradient: Gradient, rates: str, scale: str, bias: Gradient | None) -> None:
    """Append the optimizer's step for one parameter; by SGD also for the bias whose gradient lies beside that of it."""
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
    if bias:
        operands |= {"bias": bias.parameter, "bias_gradient": bias.buffer}
        states |= {"bias_velocity": f"{bias.parameter}.momentum"} if o.momentum else {}
    for operand, state in states.items():
        shape = low.parameter_shapes[state.rpartition(".")[0]]
        operands[operand] = low.builder.buffer(state, shape, role="optimizer_state")
    kernel, layer = f"optimizer_{'sgd' if o.optimizer == 'sgd' else 'adam'}", gradient.layer
    low.loop(f"{layer if bias else name}.update", kernel, operands, gradient.bounds, layer, "update", **attributes)
