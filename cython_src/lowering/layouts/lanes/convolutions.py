"""Convolutions of the layouts "lanes" and "flat", with the pooling before or after them where it is joined."""

from __future__ import annotations

import math

from ....plan.builder import block_grid, ranges
from ....plan.model import read, update, write
from ...gradients import gradient_map
from ...state import Lowering, loop_name, phase_of
from ...units import Unit
from .algorithms import POINTS, TAPS, algorithm_attributes, algorithm_of, kernel_name
from .blocks import channel_ranges, convolution_ranges, group_ranges, winograd_ranges
from .maps import FeatureMap
from .pixels import box_bounds, index_before, index_buffer


def convolution(low: Lowering, unit: Unit, again: bool) -> None:
    """Append a convolution alone, or with ReLU and pooling."""
    name = unit.layer.name
    source, target = low.maps[unit.sources[0]], low.output_map(unit, again)
    scale = 2 if unit.pooling else 1
    height, width = target.height * scale, target.width * scale
    algorithm = algorithm_of(low, name, source.channels, target.channels, height, width)
    weight, bias = low.parameter(f"{name}.weight"), low.parameter(f"{name}.bias")
    operands = {"input": source.name, "bias": bias, "output": target.name}
    operands |= weight_operand(low, unit, algorithm, source, target, flip=False, again=again)
    if unit.pooling:
        operands["index"] = index_buffer(low, unit)
    blocks = []
    cuts = convolution_ranges(low, algorithm, target.channels, target.height, scale)
    for g, c, y in block_grid(group_ranges(low), *cuts):
        rows, channels, images = y[1] - y[0], c[1] - c[0], low.samples_in(g)
        accesses = [
            read(source.name, g, (0, source.channels), source.read_rows(y[0] * scale, y[1] * scale)),
            read(operands["transformed"], (0, POINTS), (0, source.channels), c)
            if algorithm == "winograd"
            else read(weight, c),
            read(bias, c),
            write(target.name, g, c, target.written_rows(*y)),
        ]
        if unit.pooling:
            accesses.append(write(operands["index"], g, c, y))
        flops = 2.0 * TAPS * source.channels * channels * rows * scale * width * images
        read_size = source.channels * rows * scale * width
        written_size = channels * rows * target.width * (1.25 if unit.pooling else 1)
        blocks.append((box_bounds(g, c, y), accesses, flops, 4.0 * images * (read_size + written_size)))
    low.loop(
        loop_name(unit, again),
        kernel_name(algorithm, "relu_pool" if unit.pooling else "forward"),
        operands,
        blocks,
        name,
        phase_of(again),
        **source.attributes("in"),
        **target.attributes("out"),
        **algorithm_attributes(algorithm),
    )


def weight_operand(
    low: Lowering,
    unit: Unit,
    algorithm: str,
    source: FeatureMap,
    target: FeatureMap,
    *,
    flip: bool,
    again: bool = False,
) -> dict[str, str]:
    """Return the operand that holds the weights.

    By Winograd's algorithm it is transformed, (points, channels in, channels out) of the convolution or, flipped, of
    its data gradient; a loop of its own makes it anew in each iteration.
    """
    layer = unit.layer.name
    weight = f"{layer}.weight"
    if algorithm != "winograd":
        return {"weight": weight}
    name = f"{layer}.data_gradient.transform" if flip else f"{layer}.transform"
    if again:
        return {"transformed": f"{name}ed"}
    inputs, outputs = source.channels, target.channels
    transformed = low.builder.buffer(f"{name}ed", (POINTS, inputs, outputs), role="temporary")
    blocks = []
    for part in ranges(inputs, math.ceil(inputs / 4)):
        box = (part,) if flip else ((0, outputs), part)
        accesses = read(weight, *box), write(transformed, (0, POINTS), part)
        size = 4.0 * (TAPS + POINTS) * outputs * (part[1] - part[0])
        blocks.append(({"c0": part[0], "c1": part[1]}, accesses, 0.0, size))
    operands = {"weight": weight, "transformed": transformed}
    attributes = {"outputs": outputs, "inputs": inputs, "flip": int(flip)}
    low.loop(name, "winograd_weights", operands, blocks, layer, phase_of(flip), **attributes)
    return {"transformed": transformed}


def convolution_backward(low: Lowering, unit: Unit, gradient: FeatureMap) -> None:
    """Append weight gradient and data gradient; the gradient comes as that of the convolution's own result."""
    if low.trained(unit):
        weight_gradient(low, unit, gradient)
    if low.learns[unit.sources[0]]:
        data_gradient(low, unit, gradient)


def data_gradient(low: Lowering, unit: Unit, gradient: FeatureMap) -> None:
    """Append dX; where a pooling is joined to the convolution before, spread at once to that convolution's gradient."""
    target, _ = gradient_map(low, unit.sources[0])
    index = index_before(low, unit)
    scale = 2 if index else 1
    height, width = target.height // scale, target.width // scale
    name = f"{unit.layer.name}.data_gradient"
    algorithm = algorithm_of(low, name, gradient.channels, target.channels, height, width)
    operands = {"gradient": gradient.name, "output": target.name} | ({"index": index} if index else {})
    operands |= weight_operand(low, unit, algorithm, gradient, target, flip=True)
    blocks = []
    for g, c, y in block_grid(group_ranges(low), *convolution_ranges(low, algorithm, target.channels, height, 1)):
        size, images, channels = (y[1] - y[0]) * width, low.samples_in(g), c[1] - c[0]
        accesses = [
            read(gradient.name, g, (0, gradient.channels), gradient.read_rows(*y)),
            read(operands["transformed"], (0, POINTS), (0, gradient.channels), c)
            if algorithm == "winograd"
            else read(operands["weight"]),
            write(target.name, g, c, target.written_rows(y[0] * scale, y[1] * scale)),
        ]
        if index:
            accesses.append(read(index, g, c, y))
        flops = 2.0 * TAPS * gradient.channels * channels * size * images
        moved = 4.0 * images * size * (gradient.channels + channels * (4.25 if index else 1))
        blocks.append((box_bounds(g, c, y), accesses, flops, moved))
    low.loop(
        name,
        kernel_name(algorithm, "backward_data_unpool" if index else "backward_data"),
        operands,
        blocks,
        unit.layer.name,
        "backward",
        **gradient.attributes("in"),
        **target.attributes("out"),
        **algorithm_attributes(algorithm),
    )


def weight_gradient(low: Lowering, unit: Unit, gradient: FeatureMap) -> None:
    """Append partial gradients, one for each block of groups and rows, or a chain of loops that add to one buffer; the
    last column is the bias gradient."""
    name, chain = unit.layer.name, low.options.chain
    source, loop = low.maps[unit.sources[0]], f"{name}.weight_gradient"
    outputs, pixels = gradient.channels, gradient.height * gradient.width
    algorithm = algorithm_of(low, loop, outputs, source.channels, gradient.height, gradient.width)
    channels, rows = channel_ranges(low, outputs), [(0, gradient.height)]
    if algorithm == "winograd" and not chain and low.options.cut.is_auto:
        channels, rows = winograd_ranges(low, outputs, gradient.height)
    parts = list(block_grid(group_ranges(low), rows))
    count = 1 if chain else len(parts)
    stored = (count, outputs, source.channels * TAPS + 1)
    partials = low.builder.buffer(f"{name}.partials", stored, role="gradient", carried=chain)
    for kind in ("weight", "bias"):
        low.partials[f"{name}.{kind}"] = partials, count
    attributes = {**gradient.attributes("dy"), **source.attributes("in")}
    attributes |= algorithm_attributes(algorithm)
    flops = 2.0 * TAPS * source.channels * outputs * pixels
    moved = 4.0 * (outputs + source.channels) * pixels
    for link, part in enumerate([[p] for p in parts] if chain else [parts]):
        blocks = []
        for number, (g, y) in enumerate(part):
            for c in channels:
                box = (g, c), (g,)
                if algorithm == "winograd":  # the others have blocks of all rows
                    source_box = g, (0, source.channels), source.read_rows(*y)
                    box = (g, c, gradient.interior_rows(*y)), source_box
                output = (update if link else write)(partials, (number, number + 1), c)
                accesses = read(gradient.name, *box[0]), read(source.name, *box[1]), output
                share = (c[1] - c[0]) / outputs * low.samples_in(g) * (y[1] - y[0]) / gradient.height
                bounds = {**box_bounds(g, c, y), "partial": number}
                blocks.append((bounds, accesses, flops * share, moved * share))
        low.loop(
            loop + (f".{link}" if chain else ""),
            kernel_name(algorithm, "backward_weights"),
            {"gradient": gradient.name, "input": source.name, "output": partials},
            blocks,
            name,
            "backward",
            **attributes,
            accumulate=int(link > 0),
        )
