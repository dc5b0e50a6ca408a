"""Batch norm: statistics, their use, and the gradient."""

from __future__ import annotations

from ....kernels.maps.nhwc import NhwcMap
from ....networks.layers import BatchNorm
from ....plan.builder import block_bounds
from ...gradients import gradient_map, pass_on, sent_to, set_gradient
from ...state import Loops, Lowering, repeated
from ...units import Unit
from .block_sizes import pixel_blocks
from .maps import statistics_buffer, vector_buffer


def norm(low: Lowering, unit: Unit, recomputed: bool) -> None:
    source = low.maps[unit.sources[0]]
    scale, shift = (vector_buffer(low, f"{unit.layer.name}.{kind}", source) for kind in ("scale", "shift"))
    if not recomputed:
        _finish(low, unit, source, scale, shift)
    if unit.applied:
        _apply(low, unit, source, scale, shift, recomputed)


def _finish(low: Lowering, unit: Unit, source: NhwcMap, scale: str, shift: str) -> None:
    """Append the loops that take scale and shift of each channel from the batch's statistics; or, not in training, from
    the running ones."""
    layer, name = unit.layer, unit.layer.name
    operands = {kind: low.parameter(f"{name}.{kind}") for kind in ("weight", "bias")}
    for kind in ("running_mean", "running_var"):
        operands[kind] = low.builder.buffer(f"{name}.{kind}", low.statistic_shapes[f"{name}.{kind}"], role="statistic")
    operands |= {"scale": scale, "shift": shift}
    kernel, attributes = "nhwc_norm_evaluate", {"channels": source.channels, "eps": layer.eps}
    if low.options.training:
        kernel, partials = "nhwc_norm_finish", _statistics(low, unit, source)
        own = {kind: vector_buffer(low, f"{name}.{kind}", source) for kind in ("mean", "inv_std")}
        operands = {"partials": partials, **operands, **own}
        attributes |= {"num_partials": low.builder.shape(partials)[0], "momentum": layer.momentum}
        attributes["count"] = low.batch * source.height * source.width
    low.loop(f"{name}.finish", kernel, operands, block_bounds(c=[(0, source.channels)]), name, "forward", **attributes)


def _statistics(low: Lowering, unit: Unit, source: NhwcMap) -> str:
    """Append the loop that takes the batch's statistics by blocks, unless that of the layer before does; return their
    buffer."""
    name = unit.layer.name
    partials = f"{name}.partials"
    before = low.producer.get(unit.sources[0])
    if before is None or before.statistics != name:
        bounds = list(pixel_blocks(low, source, sums=True))
        statistics_buffer(low, name, len(bounds), source)
        operands = {"input": source, "partials": partials}
        low.loop(f"{name}.statistics", "nhwc_norm_statistics", operands, bounds, name, "forward")
    return partials


def _apply(low: Lowering, unit: Unit, source: NhwcMap, scale: str, shift: str, recomputed: bool) -> None:
    """Append the loop that scales and shifts the map, adds the shortcut, and applies the activation."""
    target = low.output_map(unit, recomputed)
    operands = {"input": source, "scale": scale, "shift": shift, "output": target}
    if unit.shortcut:
        operands["residual"] = low.maps[unit.shortcut]
    if unit.shortcut_norm:
        operands |= {f"residual_{kind}": f"{unit.shortcut_norm}.{kind}" for kind in ("scale", "shift")}
    bounds = pixel_blocks(low, target)
    low.append(unit, repeated(recomputed), "nhwc_norm_apply", operands, bounds, activation=unit.activation)


def norm_backward(low: Lowering, unit: Unit, gradient: NhwcMap) -> None:
    name = unit.layer.name
    source, bounds = low.maps[unit.sources[0]], list(pixel_blocks(low, low.maps[unit.sources[0]], sums=True))
    operands = {"gradient": gradient, "input": source, "mean": f"{name}.mean"}
    if unit.activation and unit.shortcut:
        operands["activations"] = low.maps[unit.target]
    elif unit.activation:  # the mask is found again from the norm's input: a map less to read
        operands |= {"scale": f"{name}.scale", "shift": f"{name}.shift"}
    partials = low.gradient_sums.get(name)
    if not partials:
        shape = (len(bounds), 2, source.pitch)
        partials = low.builder.buffer(f"{name}.gradient_partials", shape, role="temporary")
        sums = {**operands, "inv_std": f"{name}.inv_std", "partials": partials}
        kernel = "nhwc_norm_backward_statistics"
        low.append(unit, "gradient_statistics", kernel, sums, bounds, activation=unit.activation)
    operands["coefficients"] = _gradient_finish(low, unit, source, partials)
    before = low.producer.get(unit.sources[0])
    if before and before.joins_backward:  # its own kernel does the rest, from the gradient as it is
        set_gradient(low, unit.sources[0], gradient)
        return
    shortcut = unit.shortcut_norm or unit.shortcut
    shortcut_learns = bool(shortcut) and low.learns[shortcut]
    if shortcut and not unit.activation:
        pass_on(low, unit, shortcut, gradient)
    if not (low.learns[unit.sources[0]] or shortcut_learns):
        return
    with sent_to(low, unit, unit.sources[0], gradient) as (target, present):
        operands |= {"output": target, "previous": target if present else None}
        added = False
        if shortcut_learns and unit.activation:
            operands["branch"], added = gradient_map(low, shortcut)
        own = {"activation": unit.activation, "accumulate_branch": int(added)}
        low.append(unit, "gradient", "nhwc_norm_backward_apply", operands, bounds, **own)


def _gradient_finish(low: Lowering, unit: Unit, source: NhwcMap, partials: str) -> str:
    """Append the loop that sums the gradients of weight and bias; return the buffer of the input gradient's
    coefficients, which it computes too."""
    b, name = low.builder, unit.layer.name
    count = b.shape(partials)[0]
    coefficients = b.buffer(f"{name}.coefficients", (3, source.pitch), role="temporary")
    operands = {
        "partials": partials,
        "weight": f"{name}.weight",
        "inv_std": f"{name}.inv_std",
        "gradient_weight": low.partial_gradients(f"{name}.weight", 1, (source.channels,)),
        "gradient_bias": low.partial_gradients(f"{name}.bias", 1, (source.channels,)),
        "coefficients": coefficients,
    }
    bounds, sizes = block_bounds(c=[(0, source.channels)]), {"channels": source.channels, "num_partials": count}
    sizes["count"] = low.batch * source.height * source.width
    low.append(unit, "gradient_finish", "nhwc_norm_backward_finish", operands, bounds, **sizes)
    return coefficients


LOOPS = {BatchNorm: Loops(norm, norm_backward, masks=True)}
