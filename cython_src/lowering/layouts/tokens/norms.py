"""Norms of tokens, layer norm and NoNorm, and the sum before them."""

from __future__ import annotations

from ....networks.layers import LayerNorm
from ....plan.model import read, write
from ...elementwise import add
from ...gradients import new_gradient, sent_back
from ...state import Lowering, loop_name, phase_of
from ...units import Unit
from .blocks import row_blocks
from .maps import TokenMap


def addition(low: Lowering, unit: Unit, again: bool) -> None:
    """Append the sum of two tensors, or leave it to the norm that is the first to read it: then it is stored only where
    something else reads it. A recomputation may end between the two and never leaves it."""
    if not unit.joins_norm or again:
        add(low, unit, again)
        return
    unit.applied = low.options.training or len(low.readers[unit.target]) > 1
    if unit.applied:
        low.output_map(unit, again)


def summed_by(low: Lowering, unit: Unit, again: bool) -> Unit | None:
    """Return the sum before a norm that the norm's own loop computes."""
    before = low.producer.get(unit.sources[0])
    joined = before is not None and before.joins_norm and not again and low.readers[before.target][0] is unit
    return before if joined else None


def norm(low: Lowering, unit: Unit, again: bool) -> None:
    """Append the norm, with the sum before it where it takes that; each token's mean and standard deviation are kept
    for the gradient of a layer norm."""
    name, addends = unit.layer.name, summed_by(low, unit, again)
    target = low.output_map(unit, again)
    tensors = addends.sources if addends else unit.sources
    read_maps = dict(zip(("input", "residual"), (low.maps[tensor] for tensor in tensors), strict=False))
    written = {"output": target}
    if addends and addends.applied:
        written["sum"] = low.maps[addends.target]
    weight, bias = low.parameter(f"{name}.weight"), low.parameter(f"{name}.bias")
    operands = {operand: m.name for operand, m in written.items()}
    kernel, attributes = "no_norm_forward", {}
    if isinstance(unit.layer, LayerNorm):
        operands["statistics"] = low.keep_beside(unit, "statistics", (target.rows, 2), again)
        kernel, attributes = "layernorm_forward", {"eps": unit.layer.eps}
    blocks = []
    for r in row_blocks(low, target):
        accesses = [*(read(m.name, r) for m in read_maps.values()), read(weight), read(bias)]
        accesses += [write(buffer, r) for buffer in operands.values()]
        size = 4.0 * target.features * (r[1] - r[0]) * (len(read_maps) + len(written))
        blocks.append(({"r0": r[0], "r1": r[1]}, accesses, 0.0, size))
    low.loop(
        loop_name(unit, again),
        kernel,
        {operand: m.name for operand, m in read_maps.items()} | operands | {"weight": weight, "bias": bias},
        blocks,
        name,
        phase_of(again),
        features=target.features,
        **attributes,
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
    row_ranges = row_blocks(low, source)
    partials = {
        kind: low.builder.buffer(
            f"{name}.{kind}.partials", (len(row_ranges), source.features), role="gradient", carried=len(row_ranges) == 1
        )
        for kind in ("weight", "bias")
    }
    layer_norm = isinstance(unit.layer, LayerNorm)
    statistics = {"statistics": low.kept[f"{name}.statistics"]} if layer_norm else {}
    read_maps = {"gradient": gradient, "input": source} | ({"residual": around} if around else {})
    blocks = []
    for number, r in enumerate(row_ranges):
        accesses = [
            *(read(m.name, r) for m in read_maps.values()),
            *(read(buffer, r) for buffer in statistics.values()),
            read(f"{name}.weight"),
            write(target.name, r),
            *(write(buffer, (number, number + 1)) for buffer in partials.values()),
        ]
        size = 4.0 * source.features * (r[1] - r[0]) * (len(read_maps) + 1)
        blocks.append(({"r0": r[0], "r1": r[1], "partial": number}, accesses, 0.0, size))
    low.loop(
        f"{name}.gradient",
        "layernorm_backward" if layer_norm else "no_norm_backward",
        {operand: m.name for operand, m in read_maps.items()}
        | {"weight": f"{name}.weight", "output": target.name, **statistics}
        | {f"{kind}_partials": buffer for kind, buffer in partials.items()},
        blocks,
        name,
        "backward",
        features=source.features,
    )
    if low.trained(unit):
        for kind, buffer in partials.items():
            low.partials[f"{name}.{kind}"] = buffer, len(row_ranges)
