"""Convolutions of the layouts "nchw16" and "nchw", with the pooling before or after them where it is joined; and loops
that treat each pixel, or each window of a pooling, alone."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ....kernels.maps.nchw import NchwMap
from ....networks.layers import Conv2d, MaxPool
from ....plan.builder import block_bounds, block_grid, ranges
from ...gradients import gradient_map
from ...state import Loops, Lowering, repeated
from ...units import Unit
from .algorithms import POINTS, TAPS, algorithm_attributes, chosen_algorithm, kernel_name
from .blocks import channel_ranges, convolution_blocks, group_ranges, row_ranges, winograd_ranges


def convolution(low: Lowering, unit: Unit, recomputed: bool) -> None:
    """Append a convolution alone, or with ReLU and pooling."""
    name = unit.layer.name
    source, target = low.maps[unit.sources[0]], low.output_map(unit, recomputed)
    scale = 2 if unit.pooling else 1
    height, width = target.height * scale, target.width * scale
    algorithm = chosen_algorithm(low, source.channels, target.channels, height, width)
    low.parameter(f"{name}.weight")
    bias = low.parameter(f"{name}.bias")
    operands = {"input": source, "output": target, "bias": bias}
    operands |= weight_operand(low, unit, algorithm, source, target, flip=False, recomputed=recomputed)
    if unit.pooling:
        operands["index"] = index_buffer(low, unit)
    bounds = convolution_blocks(low, algorithm, target.channels, target.height, scale)
    kernel = kernel_name(algorithm, "relu_pool" if unit.pooling else "forward")
    low.append(unit, repeated(recomputed), kernel, operands, bounds, **algorithm_attributes(algorithm))


def weight_operand(
    low: Lowering, unit: Unit, algorithm: str, source: NchwMap, target: NchwMap, *, flip: bool, recomputed: bool = False
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
    if recomputed:
        return {"transformed": f"{name}ed"}
    inputs, outputs = source.channels, target.channels
    transformed = low.builder.buffer(f"{name}ed", (POINTS, inputs, outputs), role="temporary")
    bounds = block_bounds(c=ranges(inputs, math.ceil(inputs / 4)))
    operands = {"weight": weight, "transformed": transformed}
    attributes = {"outputs": outputs, "inputs": inputs, "flip": int(flip)}
    phase = "backward" if flip else "forward"  # weights of data gradients are made ready in the backward pass
    low.loop(name, "winograd_weights", operands, bounds, layer, phase, **attributes)
    return {"transformed": transformed}


def convolution_backward(low: Lowering, unit: Unit, gradient: NchwMap) -> None:
    """Append weight gradient and data gradient; the gradient comes as that of the convolution's own result."""
    if low.trained(unit.layer):
        weight_gradient(low, unit, gradient)
    if low.learns[unit.sources[0]]:
        data_gradient(low, unit, gradient)


def data_gradient(low: Lowering, unit: Unit, gradient: NchwMap) -> None:
    """Append dX; where a pooling is joined to the convolution before, spread at once to that convolution's gradient."""
    target, _ = gradient_map(low, unit.sources[0])
    index = index_before(low, unit)
    scale = 2 if index else 1
    height, width = target.height // scale, target.width // scale
    algorithm = chosen_algorithm(low, gradient.channels, target.channels, height, width)
    operands = {"gradient": gradient, "output": target, "index": index}
    operands |= weight_operand(low, unit, algorithm, gradient, target, flip=True)
    bounds = convolution_blocks(low, algorithm, target.channels, height, 1)
    kernel = kernel_name(algorithm, "backward_data_unpool" if index else "backward_data")
    low.append(unit, "data_gradient", kernel, operands, bounds, **algorithm_attributes(algorithm))


def weight_gradient(low: Lowering, unit: Unit, gradient: NchwMap) -> None:
    """Append partial gradients, one for each block of groups and rows, or a chain of loops that add to one buffer; the
    last column is the bias gradient."""
    name, chain = unit.layer.name, low.options.chain
    source = low.maps[unit.sources[0]]
    outputs = gradient.channels
    algorithm = chosen_algorithm(low, outputs, source.channels, gradient.height, gradient.width)
    channels, rows = channel_ranges(low, outputs), [(0, gradient.height)]
    if algorithm == "winograd" and not chain and low.options.cut.is_auto:
        channels, rows = winograd_ranges(low, outputs, gradient.height)
    parts = list(block_grid(group_ranges(low, sums=True), rows))
    count = 1 if chain else len(parts)
    stored = (count, outputs, source.channels * TAPS + 1)
    partials = low.builder.buffer(f"{name}.partials", stored, role="gradient", carried=chain)
    for kind in ("weight", "bias"):
        low.partials[f"{name}.{kind}"] = partials, count
    operands = {"gradient": gradient, "input": source, "output": partials}
    bounds = [list(block_bounds(g=[g], y=[y], c=channels)) for g, y in parts]
    kernel = kernel_name(algorithm, "backward_weights")
    low.weight_loops(unit, name, kernel, operands, bounds, **algorithm_attributes(algorithm))


def pixelwise(low: Lowering, unit: Unit, what: str, kernel: str, operands: Mapping[str, str | NchwMap]) -> None:
    """Append a loop over groups, channels and rows of the smallest map."""
    cut = min((m for m in operands.values() if not isinstance(m, str)), key=lambda m: m.height)
    cuts = {"g": group_ranges(low), "c": channel_ranges(low, cut.channels), "y": row_ranges(low, cut.height, 2)}
    low.append(unit, what, kernel, operands, block_bounds(**cuts))


def index_buffer(low: Lowering, unit: Unit) -> str:
    """Declare the buffer that says which element of its window each maximum of a pooling was."""
    shape = (low.groups, *low.shapes[unit.target], low.layout.lanes)
    return low.builder.buffer(f"{unit.target}.index", shape, "uint8")


def index_before(low: Lowering, unit: Unit) -> str:
    """Return the index of the pooling in the unit before this one, if its gradient must be spread."""
    before = low.producer.get(unit.sources[0])
    return f"{before.target}.index" if before and isinstance(before.layer, Conv2d) and before.pooling else ""


def pool(low: Lowering, unit: Unit, recomputed: bool) -> None:
    """Append a pooling that no convolution includes."""
    operands = {"input": low.maps[unit.sources[0]], "output": low.output_map(unit, recomputed)}
    operands["index"] = index_buffer(low, unit)
    pixelwise(low, unit, repeated(recomputed), "pool_forward", operands)


def pool_backward(low: Lowering, unit: Unit, gradient: NchwMap) -> None:
    """Append its gradient, spread by the index."""
    operands = {"gradient": gradient, "index": f"{unit.target}.index"}
    operands["output"] = gradient_map(low, unit.sources[0])[0]
    pixelwise(low, unit, "gradient", "pool_backward", operands)


LOOPS = {Conv2d: Loops(convolution, convolution_backward, masks=True), MaxPool: Loops(pool, pool_backward)}
