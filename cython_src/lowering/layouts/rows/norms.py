"""Norms of tokens, layer norm and NoNorm, and the sum before them."""

from __future__ import annotations

from ....networks.layers import Add, LayerNorm, NoNorm
from ....plan.builder import block_bounds
from ...elementwise import add, add_backward
from ...gradients import new_gradient, sent_back
from ...state import Loops, Lowering, repeated
from ...units import Unit
from .blocks import TokenMap, row_blocks


def addition(low: Lowering, unit: Unit, recomputed: bool) -> None:
    """Append the sum of two tensors, or leave it to the norm that is the first to read it: then it is stored only where
    something else reads it. A recomputation may end between the two and never leaves it."""
    if not unit.joins_norm or recomputed:
        add(low, unit, recomputed)
        return
    if unit.applied:
        low.output_map(unit, recomputed)


def summed_by(low: Lowering, unit: Unit, recomputed: bool) -> Unit | None:
    """Return the sum before a norm that the norm's own loop computes."""
    before = low.producer.get(unit.sources[0])
    joined = before is not None and before.joins_norm and not recomputed and low.readers[before.target][0] is unit
    return before if joined else None


def norm(low: Lowering, unit: Unit, recomputed: bool) -> None:
    """Append the norm, with the sum before it where it takes that; each token's mean and standard deviation are kept
    for the gradient of a layer norm."""
    name, addends = unit.layer.name, summed_by(low, unit, recomputed)
    target = low.output_map(unit, recomputed)
    tensors = addends.sources if addends else unit.sources
    operands = dict(zip(("input", "residual"), (low.maps[tensor] for tensor in tensors), strict=False))
    operands |= {kind: low.parameter(f"{name}.{kind}") for kind in ("weight", "bias")}
    operands |= {"output": target, "sum": low.maps[addends.target] if addends and addends.applied else None}
    attributes = {"features": target.features, "eps": 0.0}
    if isinstance(unit.layer, LayerNorm):
        operands["statistics"] = low.keep_beside(unit, "statistics", (target.rows, 2), recomputed)
        attributes["eps"] = unit.layer.eps
    bounds = block_bounds(r=row_blocks(low, target))
    low.append(unit, repeated(recomputed), "layernorm_forward", operands, bounds, **attributes)


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
    row_ranges = row_blocks(low, source, sums=True)
    operands = {"gradient": gradient, "input": source, "residual": around, "weight": f"{name}.weight", "output": target}
    for kind in ("weight", "bias"):
        partials = low.partial_gradients(f"{name}.{kind}", len(row_ranges), (source.features,))
        operands[f"{kind}_partials"] = partials
    if isinstance(unit.layer, LayerNorm):
        operands["statistics"] = low.kept[f"{name}.statistics"]
    bounds = [{**block, "partial": number} for number, block in enumerate(block_bounds(r=row_ranges))]
    low.append(unit, "gradient", "layernorm_backward", operands, bounds, features=source.features)


LOOPS = {**dict.fromkeys((LayerNorm, NoNorm), Loops(norm, norm_backward)), Add: Loops(addition, add_backward)}
