"""Batch norm: statistics, their use, and the gradient."""

from __future__ import annotations

from ....plan.model import read, update, write
from ...gradients import gradient_map, pass_on, sent_to, set_gradient
from ...state import Lowering, loop_name, phase_of
from ...units import Unit
from .maps import FeatureMap, statistics_buffer, vector_buffer
from .pixels import pixel_blocks, pixelwise


def statistic(low: Lowering, name: str) -> str:
    """Declare a running statistic's buffer."""
    return low.builder.buffer(name, low.statistic_shapes[name], role="statistic")


def norm(low: Lowering, unit: Unit, again: bool) -> None:
    source = low.maps[unit.sources[0]]
    scale, shift = (vector_buffer(low, f"{unit.layer.name}.{kind}", source) for kind in ("scale", "shift"))
    if not again:
        if low.options.training:
            _finish(low, unit, source, scale, shift)
        else:
            _evaluate(low, unit, source, scale, shift)
    if unit.applied:
        _apply(low, unit, source, scale, shift, again)


def _learned_and_running(low: Lowering, name: str) -> dict[str, str]:
    """Declare a norm's weight, bias and running statistics: kind -> buffer."""
    learned = {kind: low.parameter(f"{name}.{kind}") for kind in ("weight", "bias")}
    return learned | {kind: statistic(low, f"{name}.{kind}") for kind in ("running_mean", "running_var")}


def _finish(low: Lowering, unit: Unit, source: FeatureMap, scale: str, shift: str) -> None:
    """Append the loops that take the batch's statistics and, from them, scale and shift of each channel."""
    layer, name = unit.layer, unit.layer.name
    buffers = _learned_and_running(low, name)
    partials = f"{name}.partials"
    before = low.producer.get(unit.sources[0])
    if before is None or before.statistics != name:
        statistics_buffer(low, name, len(pixel_blocks(low, source)), source)
        pixelwise(
            low,
            f"{name}.statistics",
            "channels_norm_statistics",
            unit,
            "forward",
            source,
            {"input": source.name, "partials": partials},
            {"input": source},
            partials=partials,
            **source.attributes("in"),
        )
    count = low.builder.shape(partials)[0]
    operands = {
        "partials": partials,
        **buffers,
        "scale": scale,
        "shift": shift,
        "mean": vector_buffer(low, f"{name}.mean", source),
        "inv_std": vector_buffer(low, f"{name}.inv_std", source),
    }
    accesses = [read(operands[kind]) for kind in ("partials", "weight", "bias")]
    accesses += [update(operands[kind]) for kind in ("running_mean", "running_var")]
    accesses += [write(operands[kind]) for kind in ("scale", "shift", "mean", "inv_std")]
    low.loop(
        f"{name}.finish",
        "channels_norm_finish",
        operands,
        [({"c0": 0, "c1": source.channels}, accesses, 0.0, 8.0 * count * source.pitch)],
        name,
        "forward",
        channels=source.channels,
        num_partials=count,
        count=low.batch * source.height * source.width,
        eps=layer.eps,
        momentum=layer.momentum,
    )


def _evaluate(low: Lowering, unit: Unit, source: FeatureMap, scale: str, shift: str) -> None:
    """Append the loop that takes scale and shift of each channel from the running statistics."""
    layer, name = unit.layer, unit.layer.name
    buffers = _learned_and_running(low, name)
    accesses = [*map(read, buffers.values()), write(scale), write(shift)]
    low.loop(
        f"{name}.finish",
        "channels_norm_evaluate",
        {**buffers, "scale": scale, "shift": shift},
        [({"c0": 0, "c1": source.channels}, accesses, 0.0, 24.0 * source.pitch)],
        name,
        "forward",
        channels=source.channels,
        eps=layer.eps,
    )


def _apply(low: Lowering, unit: Unit, source: FeatureMap, scale: str, shift: str, again: bool) -> None:
    """Append the loop that scales and shifts the map, adds the shortcut, and applies the activation."""
    target = low.output_map(unit, again)
    operands = {"input": source.name, "scale": scale, "shift": shift, "output": target.name}
    maps = {"input": source, "output": target}
    constant = [read(scale), read(shift)]
    if unit.shortcut:
        maps["residual"] = low.maps[unit.shortcut]
        operands["residual"] = maps["residual"].name
    if unit.shortcut_norm:
        for kind in ("scale", "shift"):
            operands[f"residual_{kind}"] = f"{unit.shortcut_norm}.{kind}"
            constant.append(read(operands[f"residual_{kind}"]))
    pixelwise(
        low,
        loop_name(unit, again),
        "channels_norm_apply",
        unit,
        phase_of(again),
        target,
        operands,
        maps,
        constant,
        **source.attributes("in"),
        residual_halo=maps.get("residual", source).halo,
        out_halo=target.halo,
        activation=unit.activation,
    )


def norm_backward(low: Lowering, unit: Unit, gradient: FeatureMap) -> None:
    name = unit.layer.name
    source = low.maps[unit.sources[0]]
    mean, inv_std = f"{name}.mean", f"{name}.inv_std"
    partials = low.gradient_sums.get(name) or low.builder.buffer(
        f"{name}.gradient_partials", (len(pixel_blocks(low, source)), 2, source.pitch), role="temporary"
    )
    common = {"gradient": gradient.name, "input": source.name, "mean": mean}
    maps = {"gradient": gradient, "input": source}
    constant = [read(mean)]
    activations_halo = 0
    if unit.activation and unit.shortcut:
        output = low.maps[unit.target]
        common["activations"], maps["activations"], activations_halo = output.name, output, output.halo
    elif unit.activation:  # the mask is found again from the norm's input: a map less to read
        common |= {"scale": f"{name}.scale", "shift": f"{name}.shift"}
        constant += [read(common["scale"]), read(common["shift"])]
    shapes = {
        **source.attributes("in"),
        "gradient_halo": gradient.halo,
        "activations_halo": activations_halo,
        "activation": unit.activation,
    }
    if name not in low.gradient_sums:
        pixelwise(
            low,
            f"{name}.gradient_statistics",
            "channels_norm_backward_statistics",
            unit,
            "backward",
            source,
            {**common, "inv_std": inv_std, "partials": partials},
            maps,
            [*constant, read(inv_std)],
            partials=partials,
            **shapes,
        )
    coefficients = _gradient_finish(low, unit, source, partials)
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
        common |= {"coefficients": coefficients, "output": target.name}
        maps["output"] = target
        if present:
            common["previous"] = target.name
        branch, added = target, False
        if shortcut_learns and unit.activation:
            branch, added = gradient_map(low, shortcut)
            common["branch"], maps["branch"] = branch.name, branch
        accumulated = [operand for operand, yes in (("output", present), ("branch", added)) if yes]
        pixelwise(
            low,
            f"{name}.gradient",
            "channels_norm_backward_apply",
            unit,
            "backward",
            source,
            common,
            maps,
            [*constant, read(coefficients)],
            accumulated,
            **shapes,
            out_halo=target.halo,
            branch_halo=branch.halo,
            accumulate_branch=int(added),
        )


def _gradient_finish(low: Lowering, unit: Unit, source: FeatureMap, partials: str) -> str:
    """Append the loop that sums the gradients of weight and bias; return the buffer of the input gradient's
    coefficients, which it computes too."""
    b, name = low.builder, unit.layer.name
    count = b.shape(partials)[0]
    coefficients = b.buffer(f"{name}.coefficients", (3, source.pitch), role="temporary")
    results = {
        kind: b.buffer(f"{name}.{kind}.partials", (1, source.channels), role="gradient", carried=True)
        for kind in ("weight", "bias")
    }
    operands = {
        "partials": partials,
        "weight": f"{name}.weight",
        "inv_std": f"{name}.inv_std",
        "gradient_weight": results["weight"],
        "gradient_bias": results["bias"],
        "coefficients": coefficients,
    }
    accesses = [read(operands[kind]) for kind in ("partials", "weight", "inv_std")]
    accesses += [write(buffer) for buffer in (*results.values(), coefficients)]
    low.loop(
        f"{name}.gradient_finish",
        "channels_norm_backward_finish",
        operands,
        [({"c0": 0, "c1": source.channels}, accesses, 0.0, 8.0 * count * source.pitch)],
        name,
        "backward",
        channels=source.channels,
        num_partials=count,
        count=low.batch * source.height * source.width,
    )
    if low.trained(unit):
        for kind, buffer in results.items():
            low.partials[f"{name}.{kind}"] = buffer, 1
    return coefficients
