"""Attention: nothing of the size of a sequence squared is stored."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ....plan.builder import block_grid
from ....plan.model import Access, read, update, write
from ...gradients import sent_back
from ...state import Lowering, loop_name, phase_of
from ...units import Unit
from .blocks import attention_blocks, row_range
from .maps import TokenMap

Range = tuple[int, int]


def _blocks(
    low: Lowering, unit: Unit, backward: bool = False
) -> Iterator[tuple[Range, Range, Range, dict[str, int], float]]:
    """Samples, heads, tokens, bounds, and pairs of tokens times features of each block."""
    layer, length = unit.layer, low.options.sequence
    _, features = low.shapes[unit.target]
    flops = 4.0 * low.batch * length * length * features / (1 + layer.causal)
    for n, h, t in block_grid(*attention_blocks(low, layer.heads, flops, backward)):
        bounds = {"n0": n[0], "n1": n[1], "h0": h[0], "h1": h[1], "t0": t[0], "t1": t[1]}
        pairs = (t[1] - t[0]) * (length - (length - (t[0] + t[1]) / 2) * layer.causal)
        yield n, h, t, bounds, (n[1] - n[0]) * pairs * (h[1] - h[0]) * features / layer.heads


def _columns(low: Lowering, unit: Unit, heads: Range, third: int) -> Range:
    """Columns of some heads in queries (0), keys (1) or values (2); in the output they are those of the queries."""
    _, features = low.shapes[unit.target]
    size = features // unit.layer.heads
    return third * features + heads[0] * size, third * features + heads[1] * size


def _attributes(low: Lowering, unit: Unit) -> dict[str, int]:
    length, features = low.shapes[unit.target]
    return {
        "sequence": length,
        "heads": unit.layer.heads,
        "features": features,
        "causal": int(unit.layer.causal),
        "rows": low.batch * length,
    }


def _before(low: Lowering, unit: Unit, tokens: Range) -> Range:
    """Keys that some queries see."""
    return (0, tokens[1] if unit.layer.causal else low.options.sequence)


def _after(low: Lowering, unit: Unit, tokens: Range) -> Range:
    """Queries that see some keys."""
    return (tokens[0] if unit.layer.causal else 0, low.options.sequence)


def _parts(m: TokenMap, rows: list[Range], *columns: Range, access=read) -> list[Access]:
    return [access(m.name, r, c) for r in rows for c in columns]


def attention(low: Lowering, unit: Unit, again: bool) -> None:
    """Append attention; the logarithm of each query's sum of exponentials is kept for the gradient."""
    source, target = low.maps[unit.sources[0]], low.output_map(unit, again)
    sums = low.keep_beside(unit, "logsumexp", (unit.layer.heads, source.rows), again)
    blocks = []
    for n, h, t, bounds, work in _blocks(low, unit):
        q, k, v = (_columns(low, unit, h, third) for third in range(3))
        rows, seen = row_range(low, n, t), row_range(low, n, _before(low, unit, t))
        accesses = _parts(source, rows, q) + _parts(source, seen, k, v) + _parts(target, rows, q, access=write)
        accesses += [write(sums, h, r) for r in rows]
        blocks.append((bounds, accesses, 4.0 * work, _bytes(accesses)))
    low.loop(
        loop_name(unit, again),
        "attention_forward",
        {"qkv": source.name, "output": target.name, "logsumexp": sums},
        blocks,
        unit.layer.name,
        phase_of(again),
        **_attributes(low, unit),
    )


def attention_backward(low: Lowering, unit: Unit, gradient: TokenMap) -> None:
    """Append the gradients by slices of keys. Each slice but a sample's first has a part of the gradient of the queries
    in a place of its own, and another loop adds these in order: no two blocks write one place."""
    learning = [tensor for tensor in unit.sources if low.learns[tensor]]
    if not learning:
        return
    name, source, output = unit.layer.name, low.maps[unit.sources[0]], low.maps[unit.target]
    sums = low.kept[f"{name}.logsumexp"]
    rows, features = source.rows, output.features
    blocks = list(_blocks(low, unit, backward=True))
    slices = sorted({t for _, _, t, _, _ in blocks})
    parts = (len(slices) - 1) * rows
    with contextlib.ExitStack() as stack:
        # Maps of queries, keys and values are columns of one buffer, all of which the kernels write.
        targets = [stack.enter_context(sent_back(low, unit, tensor)) for tensor in learning]
        operands = {
            "qkv": source.name,
            "output": output.name,
            "gradient": gradient.name,
            "logsumexp": sums,
            "dqkv": targets[0].name,
        }
        target = targets[0]
        if parts:
            operands["parts"] = low.builder.buffer(f"{name}.query_parts", (parts, features), role="temporary")
        keys, queries = [], []
        for n, h, t, bounds, work in blocks:
            q, k, v = (_columns(low, unit, h, third) for third in range(3))
            own, later, part = row_range(low, n, t), row_range(low, n, _after(low, unit, t)), slices.index(t)
            accesses = _parts(source, later, q) + _parts(source, own, k, v)
            accesses += _parts(output, later, q) + _parts(gradient, later, q) + [read(sums, h, r) for r in later]
            accesses += _parts(target, own, k, v, access=write)
            if not part:
                accesses += _parts(target, later, q, access=write)
            else:
                accesses += [write(operands["parts"], _of_part(r, part, rows), q) for r in later]
            keys.append((bounds | {"part": part}, accesses, 10.0 * work, _bytes(accesses)))
            number = part if unit.layer.causal else len(slices) - 1
            if number:
                accesses = _parts(target, own, q, access=update)
                accesses += [
                    read(operands["parts"], _of_part(r, i, rows), q) for r in own for i in range(1, number + 1)
                ]
                queries.append((bounds | {"part": number}, accesses, 0.0, _bytes(accesses)))
        shape = _attributes(low, unit)
        low.loop(f"{name}.gradient", "attention_backward", operands, keys, name, "backward", **shape)
        if queries:
            operands = {operand: operands[operand] for operand in ("parts", "dqkv")}
            low.loop(f"{name}.query_gradient", "attention_add_parts", operands, queries, name, "backward", **shape)


def _of_part(rows: Range, part: int, height: int) -> Range:
    """Rows of a part; the first lies elsewhere."""
    return rows[0] + (part - 1) * height, rows[1] + (part - 1) * height


def _bytes(accesses: list[Access]) -> float:
    """Bytes of what a block touches, each region once; all regions have two ranges here."""
    return 4.0 * sum((a.box[0][1] - a.box[0][0]) * (a.box[1][1] - a.box[1][0]) for a in accesses)
