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
    layer, b, o = unit.layer, low.builder, low.options
    name = layer.name
    source = low.maps[unit.sources[0]]
    scale, shift = (vector_buffer(low, f"{name}.{kind}", source) for kind in ("scale", "shift"))
    if not again:
        weight, bias = low.parameter(f"{name}.weight"), low.parameter(f"{name}.bias")
        running = {kind: statistic(low, f"{name}.{kind}") for kind in ("running_mean", "running_var")}
        all_channels = {"c0": 0, "c1": source.channels}
        if o.training:
            partials = f"{name}.partials"
            if low.producer[unit.sources[0]].statistics != name:
                count = len(pixel_blocks(low, source))
                statistics_buffer(low, name, count, source)
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
            count = b.shape(partials)[0]
            operands = {
                "partials": partials,
                "weight": weight,
                "bias": bias,
                **running,
                "scale": scale,
                "shift": shift,
                "mean": vector_buffer(low, f"{name}.mean", source),
                "inv_std": vector_buffer(low, f"{name}.inv_std", source),
            }
            accesses = [read(partials), read(weight), read(bias)]
            accesses += [update(buffer) for buffer in running.values()]
            accesses += [write(operands[kind]) for kind in ("scale", "shift", "mean", "inv_std")]
            low.loop(
                f"{name}.finish",
                "channels_norm_finish",
                operands,
                [(all_channels, accesses, 0.0, 8.0 * count * source.pitch)],
                unit.layer.name,
                "forward",
                channels=source.channels,
                num_partials=count,
                count=low.batch * source.height * source.width,
                eps=layer.eps,
                momentum=layer.momentum,
            )
        else:
            operands = {"weight": weight, "bias": bias, **running, "scale": scale, "shift": shift}
            accesses = [read(operands[kind]) for kind in ("weight", "bias", "running_mean", "running_var")]
            accesses += [write(scale), write(shift)]
            low.loop(
                f"{name}.finish",
                "channels_norm_evaluate",
                operands,
                [(all_channels, accesses, 0.0, 24.0 * source.pitch)],
                unit.layer.name,
                "forward",
                channels=source.channels,
                eps=layer.eps,
            )
    if not unit.applied:
        return
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
    layer, b = unit.layer, low.builder
    name = layer.name
    source = low.maps[unit.sources[0]]
    mean, inv_std = f"{name}.mean", f"{name}.inv_std"
    partials = low.gradient_sums.get(name) or b.buffer(
        f"{name}.gradient_partials", (len(pixel_blocks(low, source)), 2, source.pitch), role="temporary"
    )
    count = b.shape(partials)[0]
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
    weight = f"{name}.weight"
    coefficients = b.buffer(f"{name}.coefficients", (3, source.pitch), role="temporary")
    results = {
        kind: b.buffer(f"{name}.{kind}.partials", (1, source.channels), role="gradient", carried=True)
        for kind in ("weight", "bias")
    }
    operands = {
        "partials": partials,
        "weight": weight,
        "inv_std": inv_std,
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
        unit.layer.name,
        "backward",
        channels=source.channels,
        num_partials=count,
        count=low.batch * source.height * source.width,
        evaluation=0,
    )
    if low.trained(unit):
        for kind, buffer in results.items():
            low.partials[f"{name}.{kind}"] = buffer, 1
    if (
        unit.sources[0] in low.producer and low.producer[unit.sources[0]].joins_backward
    ):  # which does the rest, from the gradient as it is
        set_gradient(low, unit.sources[0], gradient)
        return
    shortcut = unit.shortcut_norm or unit.shortcut
    learns = low.learns[unit.sources[0]], bool(shortcut) and low.learns[shortcut]
    if shortcut and not unit.activation:
        pass_on(low, unit, shortcut, gradient)
    if not any(learns):
        return
    with sent_to(low, unit, unit.sources[0], gradient) as (target, present):
        common |= {"coefficients": coefficients, "output": target.name}
        maps["output"] = target
        if present:
            common["previous"] = target.name
        branch, added = target, False
        if learns[1] and unit.activation:
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
