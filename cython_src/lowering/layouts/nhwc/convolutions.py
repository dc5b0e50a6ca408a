"""Convolutions, depthwise ones too: packing of weights, forward pass, data gradient, weight gradient."""

from __future__ import annotations

import math

from ....kernels.convolution import algorithms
from ....kernels.maps.nhwc import NhwcMap, Window
from ....networks.layers import Conv2d
from ....plan.builder import block_bounds, ranges
from ...gradients import gradient_map, pass_on, sent_to
from ...state import Loops, Lowering, repeated
from ...units import Unit
from . import block_sizes
from .maps import geometry, is_depthwise, source_map, statistics_buffer

BLOCKS_OF_PACK = 16
PACK_BYTES = 262144  # of a block that packs weights, at least


def convolution(low: Lowering, unit: Unit, recomputed: bool) -> None:
    layer = unit.layer
    source, target = source_map(low, unit), low.output_map(unit, recomputed)
    low.parameter(f"{layer.name}.weight")
    stem, weights, attributes = _weights(low, unit, "forward", source, target, recomputed)
    cuts = _output_cuts(low, layer, source, target, source.height, target, attributes)
    kernel, operands = f"{stem}_forward", {"input": source, "output": target, **weights}
    attributes["activation"] = unit.activation
    if unit.normalises:
        norm = low.producer[unit.sources[0]]
        kernel, attributes["input_activation"] = "nhwc_norm_depthwise", norm.activation
        operands |= {f"input_{kind}": f"{norm.layer.name}.{kind}" for kind in ("scale", "shift")}
    if layer.bias:
        operands["bias"] = low.parameter(f"{layer.name}.bias")
    if unit.shortcut:
        operands["residual"] = low.maps[unit.shortcut]
    if unit.statistics and not recomputed and low.options.training:
        operands["statistics"] = statistics_buffer(low, unit.statistics, len(cuts["n"]) * len(cuts["y"]), target)
    bounds = [{**b, "partial": number // len(cuts["c"])} for number, b in enumerate(block_bounds(**cuts))]
    low.append(unit, repeated(recomputed), kernel, operands, bounds, **attributes)


def _weights(
    low: Lowering, unit: Unit, direction: str, source: NhwcMap, target: NhwcMap, recomputed: bool = False
) -> tuple[str, dict[str, str], dict[str, int]]:
    """Return the stem of the kernels' names, the operand that holds the weights, and a convolution's attributes."""
    layer, weight = unit.layer, f"{unit.layer.name}.weight"
    if is_depthwise(low, layer):
        return "nhwc_depthwise", {"weight": weight}, geometry(low, layer)
    algorithm = chosen_algorithm(low, layer, source, target, direction)
    packed = pack(low, unit, weight, int(direction == "data"), algorithm, recomputed)
    return "nhwc_conv", {"packed": packed}, {**geometry(low, layer), "groups": layer.groups, "algorithm": algorithm}


def _output_cuts(
    low: Lowering,
    layer: Conv2d,
    source: NhwcMap,
    target: NhwcMap,
    height: int,
    result: NhwcMap,
    attributes: dict[str, int],
) -> dict[str, list[tuple[int, int]]]:
    """Return the images, rows and channels of the blocks of a loop that writes a map, of a convolution whose input has
    a height; `attributes` are those of the loop."""
    shape = low.parameter_shapes[f"{layer.name}.weight"]
    window = Window(layer.kernel, layer.stride, layer.padding, layer.dilation)
    images, rows, part = block_sizes.output_blocks(
        low.options.cut,
        window,
        height,
        source,
        target,
        4.0 * math.prod(shape),
        _flops(low, layer, result),
        algorithms.winograd_side(attributes.get("algorithm", 0)),
    )
    return {"n": ranges(low.batch, images), "y": ranges(target.height, rows), "c": ranges(target.channels, part)}


def _flops(low: Lowering, layer: Conv2d, result: NhwcMap) -> float:
    """Operations of each of a convolution's loops, by the map of its result or of that one's gradient."""
    shape = low.parameter_shapes[f"{layer.name}.weight"]
    return 2.0 * math.prod(shape[1:]) * result.channels * result.height * result.width * low.batch


def chosen_algorithm(low: Lowering, layer: Conv2d, first: NhwcMap, second: NhwcMap, direction: str) -> int:
    """Return the algorithm of a loop by its maps: what it reads and writes; of weights the gradient and the input."""
    names = ("dy", "in") if direction == "weights" else ("in", "out")
    attributes = {**first.attributes(names[0]), **second.attributes(names[1]), **geometry(low, layer)}
    attributes["groups"] = layer.groups
    options = low.options
    return algorithms.choose_algorithm(options.conv, direction, attributes, low.batch, options.by_shape)


def pack(low: Lowering, unit: Unit, weight: str, direction: int, algorithm: int, recomputed: bool = False) -> str:
    """Copy of the weights in the order of the inner loops: once for each direction and step."""
    name = f"{weight}.packed{'_transposed' if direction else ''}"
    if recomputed:
        return name
    layer, shape = unit.layer, low.parameter_shapes[weight]
    packed_shape = algorithms.packed_shape(algorithm, direction, shape, layer.groups)
    low.builder.buffer(name, packed_shape, role="packed")
    blocks = max(1, min(BLOCKS_OF_PACK, int(8.0 * math.prod(shape) / PACK_BYTES)))
    low.loop(
        name,
        "nhwc_conv_pack",
        {"weight": weight, "packed": name},
        block_bounds(o=ranges(packed_shape[0], -(-packed_shape[0] // blocks))),
        unit.layer.name,
        "backward" if direction else "forward",
        out_channels=shape[0],
        in_channels=shape[1] * layer.groups,
        kernel=shape[2],
        groups=layer.groups,
        direction=direction,
        algorithm=algorithm,
    )
    return name


def convolution_backward(low: Lowering, unit: Unit, gradient: NhwcMap) -> None:
    if unit.joins_backward:
        depthwise_norm_backward(low, unit, gradient)
        return
    if low.learns[unit.sources[0]]:
        data_gradient(low, unit, gradient)
    if low.trained(unit.layer):
        weight_gradient(low, unit, gradient)
    if unit.shortcut:
        pass_on(low, unit, unit.shortcut, gradient)


def data_gradient(low: Lowering, unit: Unit, gradient: NhwcMap) -> None:
    with sent_to(low, unit, unit.sources[0], gradient) as (target, accumulate):
        stem, weights, attributes = _weights(low, unit, "data", gradient, target)
        operands = {"gradient": gradient, "output": target, **weights}
        bounds = block_bounds(**_output_cuts(low, unit.layer, gradient, target, target.height, gradient, attributes))
        attributes["accumulate"] = int(accumulate)
        low.append(unit, "data_gradient", f"{stem}_backward_data", operands, bounds, **attributes)


def weight_gradient(low: Lowering, unit: Unit, gradient: NhwcMap) -> None:
    layer, source = unit.layer, low.maps[unit.sources[0]]
    shape = low.parameter_shapes[f"{layer.name}.weight"]
    depthwise = is_depthwise(low, layer)
    algorithm = 0 if depthwise else chosen_algorithm(low, layer, gradient, source, "weights")
    images, part_out, part_in = block_sizes.weight_blocks(
        low.options.cut,
        low.batch,
        shape[0],
        shape[1] * layer.groups,
        4.0 * math.prod(shape),
        *(4.0 * m.pitch * m.height * m.width for m in (gradient, source)),
        _flops(low, layer, gradient),
        not depthwise,
        layer.groups == 1,
        algorithms.winograd_side(algorithm) > 0,
    )
    groups = ranges(low.batch, images)
    count = 1 if low.options.chain else len(groups)
    operands = {"gradient": gradient, "input": source}
    operands["output"] = low.partial_gradients(f"{layer.name}.weight", count, (shape[0], math.prod(shape[1:])))
    if layer.bias:
        operands["bias_output"] = low.partial_gradients(f"{layer.name}.bias", count, shape[:1])
    kernel, attributes, cuts = "nhwc_depthwise_backward_weights", geometry(low, layer), {}
    outs, ins = ranges(shape[0], part_out), ranges(shape[1] * layer.groups, part_in)
    if depthwise:
        cuts = {"y": [(0, gradient.height)], "c": outs}
    else:
        kernel, cuts = "nhwc_conv_backward_weights", {"o": outs, "i": ins}
        attributes |= {"groups": layer.groups, "algorithm": algorithm}
    low.weight_loops(
        unit, layer.name, kernel, operands, [list(block_bounds(n=[n], **cuts)) for n in groups], **attributes
    )


def depthwise_norm_backward(low: Lowering, unit: Unit, gradient: NhwcMap) -> None:
    """Append weight gradient and gradient of the source for a depthwise convolution and the norm after it, whose
    gradient coefficients are already computed, and the sums of the norm that the convolution applies."""
    layer, builder = unit.layer, low.builder
    source, result = source_map(low, unit), low.maps[unit.target]
    after = low.readers[unit.target][0]
    before = low.producer[unit.sources[0]] if unit.normalises else None
    weight = f"{layer.name}.weight"
    target, _ = gradient_map(low, unit.sources[0])
    flops = 4.0 * layer.kernel**2 * low.batch * result.channels * result.height * result.width
    images, part = block_sizes.image_channel_blocks(low.options.cut, low.batch, source.channels, flops)
    groups, channels = ranges(low.batch, images), ranges(source.channels, part)
    operands = {
        "gradient": gradient,
        "result": result,
        **{kind: f"{after.layer.name}.{kind}" for kind in ("scale", "shift", "mean", "coefficients")},
        "weight": weight,
        "input": source,
        "output": target,
        "weight_partials": low.partial_gradients(weight, len(groups), (source.channels, layer.kernel**2)),
    }
    if before:
        name = before.layer.name
        sums = builder.buffer(f"{name}.gradient_partials", (len(groups), 2, source.pitch), role="temporary")
        operands |= {f"input_{kind}": f"{name}.{kind}" for kind in ("scale", "shift", "mean", "inv_std")}
        operands["statistics"] = low.gradient_sums[name] = sums
    bounds = [{**b, "partial": number // len(channels)} for number, b in enumerate(block_bounds(n=groups, c=channels))]
    attributes = {**result.attributes("out"), **geometry(low, layer), "activation": after.activation}
    attributes["input_activation"] = before.activation if before else 0
    low.append(unit, "gradient", "nhwc_depthwise_norm_backward", operands, bounds, **attributes)


LOOPS = {Conv2d: Loops(convolution, convolution_backward)}
