"""Sums of partial gradients, clipping, and the optimiser's steps."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ...plan.model import ranges, read, update, write
from .state import Lowering, parameter_view
from .units import Unit

BLOCKS_OF_UPDATE = 16
UPDATE_ELEMENTS = 65536  # parameters of a block of the update, at least


def append_updates(low: Lowering) -> None:
    """Sum the partial gradients of every trained parameter and take the optimiser's step."""
    o, b = low.options, low.builder
    rates = b.buffer("learning_rates", (o.num_learning_rates,), role="table")
    parts = []  # layer, parameter, gradient buffer, how to sum, ranges of outputs
    for name, (partials, count) in low.partials.items():
        shape = low.parameter_shapes[name]
        row, outputs = math.prod(shape[1:]), shape[0]
        stored = low.builder.shape(partials)
        # A fully connected layer's bias gradient is the last column of its weight gradient.
        combined = len(stored) == 3 and name.endswith(".bias")
        row_stride = math.prod(stored[2:])
        elements = {
            "num_partials": count,
            "partial_stride": outputs * row_stride,
            "row_length": row,
            "row_stride": row_stride,
            "row_offset": row_stride - 1 if combined else 0,
        }
        if count == 1 and row == row_stride:
            gradient, partials = partials, ""
        else:
            gradient = b.buffer(f"{name}.gradient_sum", shape, role="gradient", carried=True)
        cut = ranges(outputs, max(1, min(outputs, max(UPDATE_ELEMENTS // row, -(-outputs // BLOCKS_OF_UPDATE)))))
        parts.append((name, partials, gradient, elements, cut))
        low.aliases[f"{name}.grad"] = parameter_view(gradient, shape)
    scale = clip(low, parts) if o.clip_norm else ""
    for name, partials, gradient, elements, cut in parts:
        optimizer_step(low, name, partials, gradient, elements, cut, rates, scale)


def summed(low: Lowering, name: str, partials: str, gradient: str, elements: Mapping[str, int], o: tuple[int, int]):
    """Accesses of a loop that sums partials into the gradient, or reads the gradient where there are none."""
    where = (0, 1) if low.builder.shape(gradient) != low.parameter_shapes[name] else None
    box = (where, o) if where else (o,)
    if not partials:
        return [read(gradient, *box)]
    return [read(partials, (0, elements["num_partials"]), o), write(gradient, *box)]


def clip(low: Lowering, parts) -> str:
    """Sum all gradients first, take their norm, and the factor that every step then waits for."""
    o, b = low.options, low.builder
    total = sum(len(cut) for *_, cut in parts)
    squares = b.buffer("gradient_squares", (total,), role="temporary")
    scale = b.buffer("gradient_scale", (1,), role="temporary")
    log = b.buffer("gradient_norms", (o.num_iterations_logged,), role="log")
    number = 0
    for i, (name, partials, gradient, elements, cut) in enumerate(parts):
        row = elements["row_length"]
        blocks = []
        for c in cut:
            accesses = [*summed(low, name, partials, gradient, elements, c), write(squares, (number, number + 1))]
            bounds = {"e0": c[0] * row, "e1": c[1] * row, "partial": number}
            size = 4.0 * (c[1] - c[0]) * row * (elements["num_partials"] + 1)
            blocks.append((bounds, accesses, 0.0, size))
            number += 1
        operands = {"gradient": gradient, "squares": squares} | ({"partials": partials} if partials else {})
        low.loop(f"{name}.gradient_sum", "gradient_sum", operands, blocks, unit_of(low, name), "update", **elements)
        parts[i] = (name, "", gradient, elements, cut)
    accesses = read(squares), write(scale), update(log)
    low.loop(
        "gradient_scale",
        "gradient_scale",
        {"squares": squares, "scale": scale, "norm_log": log},
        [({}, accesses, 0.0, 4.0 * total)],
        low.units[-1],
        "update",
        num_squares=total,
        length=o.num_iterations_logged,
        max_norm=o.clip_norm,
    )
    return scale


def unit_of(low: Lowering, parameter: str) -> Unit:
    name = parameter.rpartition(".")[0]
    return next(unit for unit in low.units if unit.layer.name == name)


def optimizer_step(low: Lowering, name, partials, gradient, elements, cut, rates: str, scale: str) -> None:
    o, b = low.options, low.builder
    parameter, shape, row = name, low.parameter_shapes[name], elements["row_length"]
    operands = {"gradient": gradient, "parameter": parameter, "learning_rates": rates}
    if partials:
        operands["partials"] = partials
    if scale:
        operands["scale"] = scale
    attributes = {**elements, "num_rates": o.num_learning_rates, "weight_decay": o.weight_decay}
    if o.optimizer == "sgd":
        states = {"velocity": f"{name}.momentum"} if o.momentum else {}
        attributes["momentum"] = o.momentum
    else:
        states = {"first_moment": f"{name}.exp_avg", "second_moment": f"{name}.exp_avg_sq"}
        attributes |= {"beta1": o.betas[0], "beta2": o.betas[1], "eps": o.eps, "decoupled": int(o.optimizer == "adamw")}
    for operand, state in states.items():
        operands[operand] = b.buffer(state, shape, role="optimizer_state")
    blocks = []
    for c in cut:
        accesses = [*summed(low, name, partials, gradient, elements, c), read(rates), update(parameter, c)]
        accesses += [update(state, c) for state in states.values()]
        if scale:
            accesses.append(read(scale))
        count = (c[1] - c[0]) * row
        moved = elements["num_partials"] + 1 if partials else 1
        bounds = {"e0": c[0] * row, "e1": c[1] * row}
        blocks.append((bounds, accesses, 0.0, 4.0 * count * (moved + 2 + 2 * len(states))))
    low.loop(
        f"{name}.update",
        f"optimizer_{'sgd' if o.optimizer == 'sgd' else 'adam'}",
        operands,
        blocks,
        unit_of(low, name),
        "update",
        **attributes,
    )
