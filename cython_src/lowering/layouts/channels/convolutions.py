"""Convolutions, depthwise ones too: packing of weights, forward pass, data gradient, weight gradient."""

from __future__ import annotations

import math

from ....kernels.convolution import algorithms
from ....kernels.maps.channels import STATISTICS_ROWS
from ....networks.layers import Convolution
from ....plan.builder import block_grid, ranges
from ....plan.model import read, update, write
from ...gradients import masked, pass_on, sent_to
from ...state import Lowering, loop_name, phase_of
from ...units import Unit
from . import block_sizes
from .block_sizes import Window
from .depthwise import depthwise_norm_backward
from .maps import FeatureMap, geometry, source_map, statistics_buffer, window

BLOCKS_OF_PACK = 16
PACK_BYTES = 262144  # of a block that packs weights, at least


def convolution(low: Lowering, unit: Unit, again: bool) -> None:
    layer = unit.layer
    source, target = source_map(low, unit), low.output_map(unit, again)
    weight = low.parameter(f"{layer.name}.weight")
    shape = low.parameter_shapes[weight]
    windows = window(layer, low.shapes[unit.sources[0]], low.shapes[unit.target])
    depthwise = low.is_depthwise(layer)
    flops = 2.0 * math.prod(shape[1:]) * target.channels * target.height * target.width * low.batch
    images, rows, part = block_sizes.output_blocks(
        low.options.cut, windows, source, target, 4.0 * math.prod(shape), flops
    )
    operands = {"input": source.name, "output": target.name}
    norm = low.producer[unit.sources[0]] if unit.normalises else None
    vectors = []
    if depthwise:
        operands["weight"] = weight
        if norm:
            vectors = [f"{norm.layer.name}.scale", f"{norm.layer.name}.shift"]
            operands |= dict(zip(("input_scale", "input_shift"), vectors, strict=True))
    else:
        algorithm = chosen_algorithm(low, layer, source, target, "forward")
        packed = pack(low, unit, weight, 0, algorithm, again)
        operands["packed"] = packed
    if layer.bias:
        operands["bias"] = low.parameter(f"{layer.name}.bias")
    residual = low.maps[unit.shortcut] if unit.shortcut else None
    if residual:
        operands["residual"] = residual.name
    cuts = ranges(low.batch, images), ranges(target.height, rows)
    statistics = unit.statistics and not again and low.options.training
    if statistics:
        partials = statistics_buffer(low, unit.statistics, len(cuts[0]) * len(cuts[1]), target)
        operands["statistics"] = partials
    blocks = []
    for number, (n, y) in enumerate(block_grid(*cuts)):
        for c in ranges(target.channels, part):
            share = (n[1] - n[0]) * (y[1] - y[0]) * (c[1] - c[0])
            share /= low.batch * target.height * target.channels
            accesses = [source.read_window(n, windows, y, c if depthwise else None), target.write(n, y, c)]
            if depthwise:
                accesses.append(read(weight, c))
                accesses += [read(vector, source.channel_box(*c)) for vector in vectors]
            else:
                accesses.append(read(packed, *algorithms.packed_box(c)))
            if layer.bias:
                accesses.append(read(operands["bias"], c))
            if residual:
                accesses.append(residual.read(n, y, c))
            if statistics:
                accesses.append(write(partials, (number, number + 1), (0, STATISTICS_ROWS), target.channel_box(*c)))
            bounds = {"n0": n[0], "n1": n[1], "y0": y[0], "y1": y[1], "c0": c[0], "c1": c[1], "partial": number}
            size = 4.0 * (
                low.batch
                * (
                    source.pitch * source.height * source.width / len(ranges(target.channels, part))
                    + (1 + bool(residual)) * target.pitch * target.height * target.width
                )
                + math.prod(shape)
            )
            blocks.append((bounds, accesses, flops * share, size * share))
    attributes = {**source.attributes("in"), **target.attributes("out"), **geometry(low, layer)}
    attributes["activation"] = unit.activation
    kernel = "channels_depthwise_forward"
    if norm:
        kernel = "channels_norm_depthwise"
        attributes["input_activation"] = norm.activation
    if not depthwise:
        kernel = "channels_conv_forward"
        attributes |= {"groups": layer.groups, "algorithm": algorithm}
    low.loop(loop_name(unit, again), kernel, operands, blocks, layer.name, phase_of(again), **attributes)


def chosen_algorithm(low: Lowering, layer: Convolution, source: FeatureMap, target: FeatureMap, direction: str) -> int:
    names = ("dy", "in") if direction == "weights" else ("in", "out")
    maps = (target, source) if direction == "weights" else (source, target)
    attributes = {**maps[0].attributes(names[0]), **maps[1].attributes(names[1]), **geometry(low, layer)}
    return algorithms.choose_algorithm(low.options.conv, direction, {**attributes, "groups": layer.groups}, low.batch)


def pack(low: Lowering, unit: Unit, weight: str, direction: int, algorithm: int, again: bool = False) -> str:
    """Copy of the weights in the order of the inner loops: once for each direction and step."""
    name = f"{weight}.packed{'_transposed' if direction else ''}"
    if again:
        return name
    layer, shape = unit.layer, low.parameter_shapes[weight]
    packed_shape = algorithms.packed_shape(algorithm, direction, shape, layer.groups)
    low.builder.buffer(name, packed_shape, role="packed")
    size = 8.0 * math.prod(shape)
    blocks = []
    pieces = ranges(packed_shape[0], -(-packed_shape[0] // max(1, min(BLOCKS_OF_PACK, int(size / PACK_BYTES)))))
    for o in pieces:
        accesses = (read(weight, *algorithms.weight_box(direction, o, shape, layer.groups)), write(name, o))
        blocks.append(({"o0": o[0], "o1": o[1]}, accesses, 0.0, size / len(pieces)))
    low.loop(
        name,
        "channels_conv_pack",
        {"weight": weight, "packed": name},
        blocks,
        unit.layer.name,
        phase_of(direction == 1),
        out_channels=shape[0],
        in_channels=shape[1] * layer.groups,
        kernel=shape[2],
        groups=layer.groups,
        direction=direction,
        algorithm=algorithm,
    )
    return name


def convolution_backward(low: Lowering, unit: Unit, gradient: FeatureMap) -> None:
    if unit.joins_backward:
        depthwise_norm_backward(low, unit, gradient)
        return
    layer = unit.layer
    gradient = masked(low, unit, gradient)
    source = low.maps[unit.sources[0]]
    weight = f"{layer.name}.weight"
    shape = low.parameter_shapes[weight]
    windows = window(layer, low.shapes[unit.sources[0]], low.shapes[unit.target])
    flops = 2.0 * math.prod(shape[1:]) * gradient.channels * gradient.height * gradient.width * low.batch
    if low.learns[unit.sources[0]]:
        convolution_data_gradient(low, unit, gradient, windows, flops)
    if low.trained(unit):
        convolution_weight_gradient(low, unit, gradient, source, flops)
    if unit.shortcut:
        pass_on(low, unit, unit.shortcut, gradient)


def convolution_data_gradient(low: Lowering, unit: Unit, gradient: FeatureMap, windows: Window, flops: float) -> None:
    layer = unit.layer
    weight = f"{layer.name}.weight"
    shape = low.parameter_shapes[weight]
    depthwise = low.is_depthwise(layer)
    with sent_to(low, unit, unit.sources[0], gradient) as (target, accumulate):
        operands = {"gradient": gradient.name, "output": target.name}
        if depthwise:
            operands["weight"] = weight
        else:
            algorithm = chosen_algorithm(low, layer, gradient, target, "data")
            packed = operands["packed"] = pack(low, unit, weight, 1, algorithm)
        images, rows, part = block_sizes.output_blocks(
            low.options.cut, windows, gradient, target, 4.0 * math.prod(shape), flops
        )
        channels = ranges(target.channels, part)
        size = 4.0 * (
            low.batch
            * (
                gradient.pitch * gradient.height * gradient.width
                + (1 + accumulate) * target.pitch * target.height * target.width
            )
            + math.prod(shape)
        )
        blocks = []
        for n, y, c in block_grid(ranges(low.batch, images), ranges(target.height, rows), channels):
            share = (n[1] - n[0]) * (y[1] - y[0]) * (c[1] - c[0]) / (low.batch * target.height * target.channels)
            first, last = windows.gradient_rows(y)
            first, last = max(first, -gradient.halo), min(last, gradient.height + gradient.halo)
            accesses = [target.write(n, y, c, accumulate)]
            if first < last:  # else no window holds these rows of the input
                accesses.insert(0, gradient.read(n, (first, last), c if depthwise else None))
                if depthwise:
                    accesses.append(read(weight, c))
                else:
                    accesses.append(read(packed, *algorithms.packed_box(c)))
            bounds = {"n0": n[0], "n1": n[1], "y0": y[0], "y1": y[1], "c0": c[0], "c1": c[1]}
            blocks.append((bounds, accesses, flops * share, size * share))
        attributes = {**gradient.attributes("in"), **target.attributes("out"), **geometry(low, layer)}
        attributes["accumulate"] = int(accumulate)
        kernel = "channels_depthwise_backward_data"
        if not depthwise:
            kernel = "channels_conv_backward_data"
            attributes |= {"groups": layer.groups, "algorithm": algorithm}
        low.loop(f"{layer.name}.data_gradient", kernel, operands, blocks, unit.layer.name, "backward", **attributes)


def convolution_weight_gradient(
    low: Lowering, unit: Unit, gradient: FeatureMap, source: FeatureMap, flops: float
) -> None:
    layer, b = unit.layer, low.builder
    shape = low.parameter_shapes[f"{layer.name}.weight"]
    row = math.prod(shape[1:])
    depthwise = low.is_depthwise(layer)
    map_bytes = [4.0 * m.pitch * m.height * m.width for m in (gradient, source)]
    images, part_out, part_in = block_sizes.weight_blocks(
        low.options.cut,
        low.batch,
        shape[0],
        shape[1] * layer.groups,
        4.0 * math.prod(shape),
        *map_bytes,
        flops,
        not depthwise,
        layer.groups == 1,
    )
    groups = ranges(low.batch, images)
    count = 1 if low.options.chain else len(groups)
    partials = b.buffer(f"{layer.name}.weight.partials", (count, shape[0], row), role="gradient", carried=count == 1)
    low.partials[f"{layer.name}.weight"] = partials, count
    operands = {"gradient": gradient.name, "input": source.name, "output": partials}
    if layer.bias:
        operands["bias_output"] = b.buffer(
            f"{layer.name}.bias.partials", (count, shape[0]), role="gradient", carried=count == 1
        )
        low.partials[f"{layer.name}.bias"] = operands["bias_output"], count
    prefix = "gradient" if depthwise else "dy"
    attributes = {**gradient.attributes(prefix), **source.attributes("in"), **geometry(low, layer)}
    kernel = "channels_depthwise_backward_weights"
    if not depthwise:
        kernel = "channels_conv_backward_weights"
        attributes |= {"groups": layer.groups, "algorithm": chosen_algorithm(low, layer, source, gradient, "weights")}
    outs, ins = ranges(shape[0], part_out), ranges(shape[1] * layer.groups, part_in)
    windows = window(layer, low.shapes[unit.sources[0]], low.shapes[unit.target])
    links = [[n] for n in groups] if low.options.chain else [groups]
    for link, part in enumerate(links):
        blocks = []
        for n, o, i in block_grid(part, outs, ins):
            number = 0 if low.options.chain else groups.index(n)
            share = (n[1] - n[0]) / low.batch / len(outs) / len(ins)
            written = update if link else write
            elements = (0, row) if len(ins) == 1 else (i[0] * shape[2] * shape[3], i[1] * shape[2] * shape[3])
            accesses = [
                gradient.read(n, None, o),
                written(partials, (number, number + 1), o, elements),
                source.read_window(
                    n, windows, (0, gradient.height), i if layer.groups == 1 else o if depthwise else None
                ),
            ]
            if layer.bias and i[0] == 0:
                accesses.append(written(operands["bias_output"], (number, number + 1), o))
            bounds = {
                "n0": n[0],
                "n1": n[1],
                "o0": o[0],
                "o1": o[1],
                "i0": i[0],
                "i1": i[1],
                "y0": 0,
                "y1": gradient.height,
                "c0": o[0],
                "c1": o[1],
                "partial": number,
            }
            size = sum(map_bytes) * low.batch + 4.0 * math.prod(shape) * len(part)
            blocks.append((bounds, accesses, flops * share, size * share))
        low.loop(
            f"{layer.name}.weight_gradient" + (f".{link}" if low.options.chain else ""),
            kernel,
            operands,
            blocks,
            unit.layer.name,
            "backward",
            **attributes,
            accumulate=int(link > 0),
        )
