"""Attention: nothing of the size of a sequence squared is stored."""

from __future__ import annotations

import contextlib

from ....networks.layers import Attention
from ....plan.builder import block_bounds
from ...gradients import sent_back
from ...state import Loops, Lowering, repeated
from ...units import Unit
from .blocks import TokenMap, attention_blocks


def _cuts(low: Lowering, unit: Unit, backward: bool = False) -> dict[str, list[tuple[int, int]]]:
    """Return the samples, heads and tokens of the blocks."""
    layer, length = unit.layer, low.options.sequence
    _, features = low.shapes[unit.target]
    flops = 4.0 * low.batch * length * length * features / (1 + layer.causal)
    return dict(zip("nht", attention_blocks(low, layer.heads, flops, backward), strict=True))


def _attributes(low: Lowering, unit: Unit) -> dict[str, int]:
    length, features = low.shapes[unit.target]
    return {
        "sequence": length,
        "heads": unit.layer.heads,
        "features": features,
        "causal": int(unit.layer.causal),
        "rows": low.batch * length,
    }


def attention(low: Lowering, unit: Unit, recomputed: bool) -> None:
    """Append attention; the logarithm of each query's sum of exponentials is kept for the gradient."""
    source, target = low.maps[unit.sources[0]], low.output_map(unit, recomputed)
    operands = {"qkv": source, "output": target}
    operands["logsumexp"] = low.keep_beside(unit, "logsumexp", (unit.layer.heads, source.rows), recomputed)
    bounds = block_bounds(**_cuts(low, unit))
    low.append(unit, repeated(recomputed), "attention_forward", operands, bounds, **_attributes(low, unit))


def attention_backward(low: Lowering, unit: Unit, gradient: TokenMap) -> None:
    """Append the gradients by slices of keys. Each slice but a sample's first has a part of the gradient of the queries
    in a place of its own, and another loop adds these in order: no two blocks write one place."""
    learning = [tensor for tensor in unit.sources if low.learns[tensor]]
    if not learning:
        return
    name, source, output = unit.layer.name, low.maps[unit.sources[0]], low.maps[unit.target]
    cuts = _cuts(low, unit, backward=True)
    parts = len(cuts["t"]) - 1
    with contextlib.ExitStack() as stack:
        # Maps of queries, keys and values are columns of one buffer, all of which the kernels write.
        targets = [stack.enter_context(sent_back(low, unit, tensor)) for tensor in learning]
        operands = {"qkv": source, "output": output, "gradient": gradient, "dqkv": targets[0]}
        operands["logsumexp"] = low.kept[f"{name}.logsumexp"]
        if parts:
            shape = (parts * source.rows, output.features)
            operands["parts"] = low.builder.buffer(f"{name}.query_parts", shape, role="temporary")
        slices = {t[0]: part for part, t in enumerate(cuts["t"])}
        keys = [{**block, "part": slices[block["t0"]]} for block in block_bounds(**cuts)]
        attributes = _attributes(low, unit)
        low.append(unit, "gradient", "attention_backward", operands, keys, **attributes)
        if not parts:
            return
        # What a causal slice sends to the queries before it is zero, and not stored.
        queries = [block if unit.layer.causal else {**block, "part": parts} for block in keys]
        queries = [block for block in queries if block["part"]]
        operands = {operand: operands[operand] for operand in ("parts", "dqkv")}
        low.append(unit, "query_gradient", "attention_add_parts", operands, queries, **attributes)


LOOPS = {Attention: Loops(attention, attention_backward)}
