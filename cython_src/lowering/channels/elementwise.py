"""Layers that treat each element alone: sums, activations, dropout."""

from __future__ import annotations

from .gradients import sent_back, sent_to
from .state import FeatureMap, Lowering, phase_of
from .units import ACTIVATIONS, Unit


def add(low: Lowering, unit: Unit, again: bool) -> None:
    first, second = (low.maps[name] for name in unit.sources)
    target = low.output_map(unit, again)
    low.sum_maps(
        f"{unit.layer.name}.again" if again else unit.layer.name,
        unit,
        phase_of(again),
        first,
        second,
        target,
        unit.activation,
    )


def activation(low: Lowering, unit: Unit, again: bool) -> None:
    maps = {"input": low.maps[unit.sources[0]], "output": low.output_map(unit, again)}
    low.elementwise(
        f"{unit.layer.name}.again" if again else unit.layer.name,
        "channels_activation",
        unit,
        phase_of(again),
        maps["output"],
        {k: m.name for k, m in maps.items()},
        maps,
        **maps["input"].attributes("in"),
        out_halo=maps["output"].halo,
        activation=ACTIVATIONS[type(unit.layer)],
    )


def activation_backward(low: Lowering, unit: Unit, gradient: FeatureMap) -> None:
    output = low.maps[unit.target]
    with sent_to(low, unit, unit.sources[0], gradient) as (target, accumulate):
        maps = {"gradient": gradient, "activations": output, "output": target}
        low.elementwise(
            f"{unit.layer.name}.gradient",
            "channels_activation_backward",
            unit,
            "backward",
            target,
            {k: m.name for k, m in maps.items()},
            maps,
            accumulated=("output",) if accumulate else (),
            **gradient.attributes("in"),
            activations_halo=output.halo,
            out_halo=target.halo,
            activation=ACTIVATIONS[type(unit.layer)],
            accumulate=int(accumulate),
        )


def dropout(low: Lowering, unit: Unit, again: bool) -> None:
    source = low.maps[unit.sources[0]]
    if not low.options.training:
        low.maps[unit.target] = source
        return
    dropout_loop(
        low,
        f"{unit.layer.name}.again" if again else unit.layer.name,
        unit,
        phase_of(again),
        source,
        low.output_map(unit, again),
    )


def dropout_loop(low: Lowering, name: str, unit: Unit, phase: str, source: FeatureMap, target: FeatureMap) -> None:
    """The same kernel forward and backward: its random numbers are a function of place and iteration."""
    maps = {"input": source, "output": target}
    low.elementwise(
        name,
        "channels_dropout",
        unit,
        phase,
        target,
        {k: m.name for k, m in maps.items()},
        maps,
        **source.attributes("in"),
        out_halo=target.halo,
        seed=low.options.seed,
        layer=low.units.index(unit),
        rate=unit.layer.rate,
    )


def dropout_backward(low: Lowering, unit: Unit, gradient: FeatureMap) -> None:
    with sent_back(low, unit, unit.sources[0]) as target:
        dropout_loop(low, f"{unit.layer.name}.gradient", unit, "backward", gradient, target)
