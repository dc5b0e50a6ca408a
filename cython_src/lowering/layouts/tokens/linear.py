"""Linear layers, with a bias, an activation or a sum that is joined to them; and the head, whose weights are those of
an embedding."""

from __future__ import annotations

from dataclasses import dataclass

from ....networks.layers import GELU, Linear, ReLU, TiedHead
from ....plan.builder import block_grid
from ....plan.model import read, update, write
from ...gradients import pass_on, sent_to
from ...state import Lowering, loop_name, phase_of, tied_parameters
from ...units import ACTIVATIONS, Unit
from .blocks import product_blocks, weight_blocks
from .maps import TokenMap


@dataclass(frozen=True)
class Part:
    """Weights of a layer, and the features of its input that they multiply.

    Attributes
    ----------
    name : str
        What its loops are called by.
    weight, bias : str
        Parameters; no bias: "".
    features : tuple of int
    """

    name: str
    weight: str
    bias: str
    features: tuple[int, int]


def parts_of(low: Lowering, unit: Unit) -> list[Part]:
    """Return the parts of a layer: one, or two of a head that multiplies more features than the embedding has."""
    layer, features = unit.layer, low.shapes[unit.sources[0]][-1]
    bias = f"{layer.name}.bias" if layer.bias else ""
    if not isinstance(layer, TiedHead):
        return [Part(layer.name, f"{layer.name}.weight", bias, (0, features))]
    tied = tied_parameters(layer)[0]
    width = low.parameter_shapes[tied][1]
    own = Part(f"{layer.name}.dense", f"{layer.name}.dense.weight", "", (width, features))
    return [Part(layer.name, tied, bias, (0, width)), *([own] if features > width else [])]


def _before(low: Lowering, tensor: str) -> tuple[str, dict[str, int]]:
    """Return the buffer with which the gradient is sent past the activation that is joined to the unit that makes a
    tensor, or "", and the kernel's attributes: what stood before a GELU, what a ReLU left."""
    unit = low.producer.get(tensor)
    if not unit or not isinstance(unit.layer, Linear) or not unit.activation:
        return "", {}
    if unit.activation == ACTIVATIONS[ReLU]:
        return low.maps[tensor].name, {"relu": 1}
    return low.kept[f"{unit.layer.name}.before"], {}


def _given(**attributes: int) -> dict[str, int]:
    """Attributes that are not 0, which kernels take for those that a loop leaves out."""
    return {name: value for name, value in attributes.items() if value}


def linear(low: Lowering, unit: Unit, again: bool) -> None:
    """Append the layer with what is joined to it; in training the values before an activation are kept."""
    source, target = low.maps[unit.sources[0]], low.output_map(unit, again)
    part, *further = parts_of(low, unit)
    operands = {"input": source.name, "weight": low.parameter(part.weight), "output": target.name}
    if part.bias:
        operands["bias"] = low.parameter(part.bias)
    if further:
        operands["further_weight"] = low.parameter(further[0].weight)
    shortcut = low.maps[unit.shortcut] if unit.shortcut else None
    if shortcut:
        operands["residual"] = shortcut.name
    if unit.activation == ACTIVATIONS[GELU] and low.options.training:
        operands["before"] = low.keep_beside(unit, "before", target.shape, again)
    flops, blocks = 2.0 * source.features * target.features, []
    for r, c in block_grid(*product_blocks(low, target, flops * source.rows)):
        accesses = [read(source.name, r), write(target.name, *target.box(r, c))]
        accesses += [read(operands[name], c) for name in ("weight", "bias", "further_weight") if name in operands]
        if shortcut:
            accesses.append(read(shortcut.name, *shortcut.box(r, c)))
        if "before" in operands:
            accesses.append(write(operands["before"], *target.box(r, c)))
        rows, columns = r[1] - r[0], c[1] - c[0]
        maps = 1 + bool(shortcut) + ("before" in operands)
        size = 4.0 * (rows * source.features + columns * source.features + rows * columns * maps)
        share = rows * columns / target.features
        blocks.append((_bounds(r, c), accesses, flops * share, size))
    low.loop(
        loop_name(unit, again),
        "linear_forward",
        operands,
        blocks,
        unit.layer.name,
        phase_of(again),
        inputs=part.features[1],
        outputs=target.features,
        output_pitch=target.pitch,
        activation=unit.activation,
        **_given(output_offset=target.offset, further_inputs=source.features - part.features[1]),
    )


def linear_backward(low: Lowering, unit: Unit, gradient: TokenMap) -> None:
    """Append data gradient and weight gradient. The gradient is that before the unit's own activation: the reader of
    its result has sent it past that."""
    if unit.shortcut:
        pass_on(low, unit, unit.shortcut, gradient)
    if low.learns[unit.sources[0]]:
        with sent_to(low, unit, unit.sources[0], gradient) as (target, accumulate):
            for part in parts_of(low, unit):
                _data_gradient(low, unit, part, gradient, target.columns(*part.features), accumulate)
    for part in parts_of(low, unit):
        if any(low.trains(name) for name in (part.weight, part.bias) if name):
            _weight_gradient(low, unit, part, gradient)


def _data_gradient(
    low: Lowering, unit: Unit, part: Part, gradient: TokenMap, target: TokenMap, accumulate: bool
) -> None:
    weight, (before, form) = part.weight, _before(low, unit.sources[0])
    operands = {"gradient": gradient.name, "weight": weight, "output": target.name}
    if before:
        operands["before"] = before
    flops, blocks = 2.0 * gradient.features * target.features, []
    for r, c in block_grid(*product_blocks(low, target, flops * target.rows)):
        box = target.box(r, c)
        accesses = [
            read(gradient.name, *gradient.box(r)),
            read(weight, (0, gradient.features), c),
            (update if accumulate else write)(target.name, *box),
        ]
        if before:
            accesses.append(read(before, *box))
        rows, columns = r[1] - r[0], c[1] - c[0]
        maps = 1 + accumulate + bool(before)
        size = 4.0 * (rows * gradient.features + columns * gradient.features + rows * columns * maps)
        share = rows * columns / target.features
        blocks.append((_bounds(r, c), accesses, flops * share, size))
    low.loop(
        f"{part.name}.data_gradient",
        "linear_backward_data",
        operands,
        blocks,
        unit.layer.name,
        "backward",
        inputs=target.features,
        outputs=gradient.features,
        gradient_pitch=gradient.pitch,
        accumulate=int(accumulate),
        **_given(
            gradient_offset=gradient.offset,
            output_pitch=target.pitch if target.pitch > target.features else 0,
            output_offset=target.offset,
        ),
        **form,
    )


def _weight_gradient(low: Lowering, unit: Unit, part: Part, gradient: TokenMap) -> None:
    """Append partial weight gradients, or a chain of loops that add to one. To the head's first one the embedding,
    whose loops come later, adds its own."""
    name, weight, chain = part.name, part.weight, low.options.chain
    source = low.maps[unit.sources[0]].columns(*part.features)
    outputs, inputs = gradient.features, source.features
    flops = 2.0 * outputs * inputs
    row_ranges, output_ranges = weight_blocks(low, gradient, flops * source.rows)
    count = 1 if chain else len(row_ranges)
    present = low.partials.get(weight)
    count = present[1] if present else count
    stored = {"weights": (weight, (count, outputs, inputs))}
    if part.bias:
        stored["bias"] = part.bias, (count, outputs)
    buffers = {}
    for operand, (parameter, shape) in stored.items():
        partials = low.builder.buffer(f"{parameter}.partials", shape, role="gradient", carried=count == 1)
        if low.trains(parameter):
            low.partials[parameter] = partials, count
        buffers[operand] = partials
    for link, part in enumerate([[r] for r in row_ranges] if chain else [row_ranges]):
        adds = link > 0 or present is not None
        blocks = []
        for number, r in enumerate(part):
            for o in output_ranges:
                accesses = [read(gradient.name, *gradient.box(r, o)), read(source.name, *source.box(r))]
                accesses += [(update if adds else write)(b, (number, number + 1), o) for b in buffers.values()]
                rows, columns = r[1] - r[0], o[1] - o[0]
                size = 4.0 * (rows * (inputs + columns) + columns * inputs * (1 + adds))
                bounds = {"r0": r[0], "r1": r[1], "o0": o[0], "o1": o[1], "partial": number}
                blocks.append((bounds, accesses, flops * rows * columns / outputs, size))
        low.loop(
            f"{name}.weight_gradient" + (f".{link}" if chain else ""),
            "linear_backward_weights",
            {"gradient": gradient.name, "input": source.name, **buffers},
            blocks,
            unit.layer.name,
            "backward",
            inputs=inputs,
            outputs=outputs,
            gradient_pitch=gradient.pitch,
            accumulate=int(adds),
            **_given(
                gradient_offset=gradient.offset,
                input_pitch=source.pitch if source.pitch > source.features else 0,
                input_offset=source.offset,
            ),
        )


def _bounds(rows: tuple[int, int], columns: tuple[int, int]) -> dict[str, int]:
    return {"r0": rows[0], "r1": rows[1], "c0": columns[0], "c1": columns[1]}
