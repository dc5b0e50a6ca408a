"""Linear layers, with a bias, an activation or a sum that is joined to them; and the head, whose weights are those of
an embedding."""

from __future__ import annotations

from ....networks.layers import Linear, TiedHead
from ....plan.builder import block_grid
from ....plan.model import read, update, write
from ...gradients import pass_on, sent_to
from ...state import Lowering, loop_name, phase_of, tied_parameters
from ...units import Unit
from .blocks import product_blocks, weight_blocks
from .maps import TokenMap


def weight_of(unit: Unit) -> str:
    """Return the name of a layer's weights."""
    return tied_parameters(unit.layer)[0] if isinstance(unit.layer, TiedHead) else f"{unit.layer.name}.weight"


def _has_bias(unit: Unit) -> bool:
    return isinstance(unit.layer, Linear) and unit.layer.bias


def _before(low: Lowering, tensor: str) -> str:
    """Return the buffer of what stood before the activation that is joined to the unit that makes a tensor, or ""."""
    unit = low.producer.get(tensor)
    return low.kept[f"{unit.layer.name}.before"] if unit and isinstance(unit.layer, Linear) and unit.activation else ""


def linear(low: Lowering, unit: Unit, again: bool) -> None:
    """Append the layer with what is joined to it; in training the values before an activation are kept."""
    source, target = low.maps[unit.sources[0]], low.output_map(unit, again)
    weight = low.parameter(weight_of(unit))
    operands = {"input": source.name, "weight": weight, "output": target.name}
    if _has_bias(unit):
        operands["bias"] = low.parameter(f"{unit.layer.name}.bias")
    shortcut = low.maps[unit.shortcut] if unit.shortcut else None
    if shortcut:
        operands["residual"] = shortcut.name
    if unit.activation and low.options.training:
        operands["before"] = low.keep_beside(unit, "before", target.shape, again)
    flops, blocks = 2.0 * source.features * target.features, []
    for r, c in block_grid(*product_blocks(low, target.features, flops * source.rows)):
        accesses = [read(source.name, r), read(weight, c), write(target.name, *target.box(r, c))]
        if "bias" in operands:
            accesses.append(read(operands["bias"], c))
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
        inputs=source.features,
        outputs=target.features,
        output_pitch=target.pitch,
        activation=unit.activation,
    )


def linear_backward(low: Lowering, unit: Unit, gradient: TokenMap) -> None:
    """Append data gradient and weight gradient. The gradient is that before the unit's own activation: the reader of
    its result has sent it past that."""
    if unit.shortcut:
        pass_on(low, unit, unit.shortcut, gradient)
    if low.learns[unit.sources[0]]:
        with sent_to(low, unit, unit.sources[0], gradient) as (target, accumulate):
            _data_gradient(low, unit, gradient, target, accumulate)
    if low.trained(unit):
        _weight_gradient(low, unit, gradient)


def _data_gradient(low: Lowering, unit: Unit, gradient: TokenMap, target: TokenMap, accumulate: bool) -> None:
    name, weight, before = unit.layer.name, weight_of(unit), _before(low, unit.sources[0])
    operands = {"gradient": gradient.name, "weight": weight, "output": target.name}
    if before:
        operands["before"] = before
    flops, blocks = 2.0 * gradient.features * target.features, []
    for r, c in block_grid(*product_blocks(low, target.features, flops * target.rows)):
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
        f"{name}.data_gradient",
        "linear_backward_data",
        operands,
        blocks,
        name,
        "backward",
        inputs=target.features,
        outputs=gradient.features,
        gradient_pitch=gradient.pitch,
        accumulate=int(accumulate),
    )


def _weight_gradient(low: Lowering, unit: Unit, gradient: TokenMap) -> None:
    """Append partial weight gradients, or a chain of loops that add to one. To the head's first one the embedding,
    whose loops come later, adds its own."""
    name, weight, chain = unit.layer.name, weight_of(unit), low.options.chain
    source = low.maps[unit.sources[0]]
    outputs, inputs = gradient.features, source.features
    flops = 2.0 * outputs * inputs
    row_ranges, output_ranges = weight_blocks(low, outputs, flops * source.rows)
    count = 1 if chain else len(row_ranges)
    present = low.partials.get(weight)
    count = present[1] if present else count
    stored = {"weights": (weight, (count, outputs, inputs))}
    if _has_bias(unit):
        stored["bias"] = f"{name}.bias", (count, outputs)
    buffers = {}
    for operand, (parameter, shape) in stored.items():
        partials = low.builder.buffer(f"{parameter}.partials", shape, role="gradient", carried=count == 1)
        low.partials[parameter] = partials, count
        buffers[operand] = partials
    for link, part in enumerate([[r] for r in row_ranges] if chain else [row_ranges]):
        adds = link > 0 or present is not None
        blocks = []
        for number, r in enumerate(part):
            for o in output_ranges:
                accesses = [read(gradient.name, *gradient.box(r, o)), read(source.name, r)]
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
            name,
            "backward",
            inputs=inputs,
            outputs=outputs,
            gradient_pitch=gradient.pitch,
            accumulate=int(adds),
        )


def _bounds(rows: tuple[int, int], columns: tuple[int, int]) -> dict[str, int]:
    return {"r0": rows[0], "r1": rows[1], "c0": columns[0], "c1": columns[1]}
