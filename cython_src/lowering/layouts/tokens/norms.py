"""Layer norm."""

from __future__ import annotations

from ....plan.model import read, write
from ...gradients import new_gradient, sent_back
from ...state import Lowering, loop_name, phase_of
from ...units import Unit
from .blocks import row_blocks
from .maps import TokenMap


def norm(low: Lowering, unit: Unit, again: bool) -> None:
    """Append the norm; each token's mean and standard deviation are kept for the gradient."""
    name = unit.layer.name
    source, target = low.maps[unit.sources[0]], low.output_map(unit, again)
    weight, bias = low.parameter(f"{name}.weight"), low.parameter(f"{name}.bias")
    statistics = low.keep_beside(unit, "statistics", (source.rows, 2), again)
    blocks = []
    for r in row_blocks(low, source.features):
        accesses = read(source.name, r), read(weight), read(bias), write(target.name, r), write(statistics, r)
        blocks.append(({"r0": r[0], "r1": r[1]}, accesses, 0.0, 8.0 * source.features * (r[1] - r[0])))
    low.loop(
        loop_name(unit, again),
        "layernorm_forward",
        {"input": source.name, "weight": weight, "bias": bias, "output": target.name, "statistics": statistics},
        blocks,
        name,
        phase_of(again),
        features=source.features,
        eps=unit.layer.eps,
    )


def norm_backward(low: Lowering, unit: Unit, gradient: TokenMap) -> None:
    """Append partial gradients of weight and bias, and the gradient of the input, to which the fusion "residual" adds
    what came around the norm."""
    tensor = unit.sources[0]
    if not low.learns[tensor]:
        unused = low.layout.gradient(low, f"{unit.layer.name}.unused_gradient", tensor)
        _gradient_loop(low, unit, gradient, low.keep(unused, "gradient"))
    elif "residual" in low.fusion and tensor in low.gradients:
        around = low.gradients.pop(tensor)
        target = new_gradient(low, tensor, f"{tensor}.gradient_{unit.layer.name}")
        _gradient_loop(low, unit, gradient, target, around)
    else:
        with sent_back(low, unit, tensor) as target:
            _gradient_loop(low, unit, gradient, target)


def _gradient_loop(
    low: Lowering, unit: Unit, gradient: TokenMap, target: TokenMap, around: TokenMap | None = None
) -> None:
    name, source = unit.layer.name, low.maps[unit.sources[0]]
    row_ranges = row_blocks(low, source.features)
    partials = {
        kind: low.builder.buffer(
            f"{name}.{kind}.partials", (len(row_ranges), source.features), role="gradient", carried=len(row_ranges) == 1
        )
        for kind in ("weight", "bias")
    }
    statistics = low.kept[f"{name}.statistics"]
    read_maps = {"gradient": gradient, "input": source} | ({"residual": around} if around else {})
    blocks = []
    for number, r in enumerate(row_ranges):
        accesses = [
            *(read(m.name, r) for m in read_maps.values()),
            read(statistics, r),
            read(f"{name}.weight"),
            write(target.name, r),
            *(write(buffer, (number, number + 1)) for buffer in partials.values()),
        ]
        size = 4.0 * source.features * (r[1] - r[0]) * (len(read_maps) + 1)
        blocks.append(({"r0": r[0], "r1": r[1], "partial": number}, accesses, 0.0, size))
    low.loop(
        f"{name}.gradient",
        "layernorm_backward",
        {operand: m.name for operand, m in read_maps.items()}
        | {"weight": f"{name}.weight", "statistics": statistics, "output": target.name}
        | {f"{kind}_partials": buffer for kind, buffer in partials.items()},
        blocks,
        name,
        "backward",
        features=source.features,
    )
    if low.trained(unit):
        for kind, buffer in partials.items():
            low.partials[f"{name}.{kind}"] = buffer, len(row_ranges)
