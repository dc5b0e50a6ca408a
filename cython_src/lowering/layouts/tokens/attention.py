"""Attention: nothing of the size of a sequence squared is stored."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ....plan.builder import block_grid
from ....plan.model import Access, read, write
from ...gradients import sent_back
from ...state import Lowering, loop_name, phase_of
from ...units import Unit
from .blocks import attention_blocks, row_range
from .maps import TokenMap

Range = tuple[int, int]


def _blocks(low: Lowering, unit: Unit) -> Iterator[tuple[Range, Range, Range, dict[str, int], float]]:
    """Samples, heads, tokens, bounds, and pairs of tokens times features of each block."""
    layer, length = unit.layer, low.options.sequence
    _, features = low.shapes[unit.target]
    flops = 4.0 * low.batch * length * length * features / (1 + layer.causal)
    for n, h, t in block_grid(*attention_blocks(low, layer.heads, flops)):
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
    """Append the gradient of the queries, with the sums that it shares with that of keys and values, and the latter."""
    learning = [tensor for tensor in unit.sources if low.learns[tensor]]
    if not learning:
        return
    name, source, output = unit.layer.name, low.maps[unit.sources[0]], low.maps[unit.target]
    sums = low.kept[f"{name}.logsumexp"]
    delta = low.builder.buffer(f"{name}.delta", (unit.layer.heads, source.rows), role="temporary")
    with contextlib.ExitStack() as stack:
        # Maps of queries, keys and values are columns of one buffer, all of which the kernels write.
        targets = [stack.enter_context(sent_back(low, unit, tensor)) for tensor in learning]
        target = targets[0]
        queries, keys = [], []
        for n, h, t, bounds, work in _blocks(low, unit):
            q, k, v = (_columns(low, unit, h, third) for third in range(3))
            rows, seen = row_range(low, n, t), row_range(low, n, _before(low, unit, t))
            accesses = _parts(source, rows, q) + _parts(source, seen, k, v)
            accesses += _parts(output, rows, q) + _parts(gradient, rows, q) + _parts(target, rows, q, access=write)
            accesses += [access for r in rows for access in (read(sums, h, r), write(delta, h, r))]
            queries.append((bounds, accesses, 6.0 * work, _bytes(accesses)))
            later = row_range(low, n, _after(low, unit, t))
            accesses = _parts(source, later, q) + _parts(source, rows, k, v) + _parts(gradient, later, q)
            accesses += _parts(target, rows, k, v, access=write)
            accesses += [read(buffer, h, r) for r in later for buffer in (sums, delta)]
            keys.append((bounds, accesses, 8.0 * work, _bytes(accesses)))
        operands = {
            "qkv": source.name,
            "output": output.name,
            "gradient": gradient.name,
            "logsumexp": sums,
            "delta": delta,
            "dqkv": target.name,
        }
        shape = _attributes(low, unit)
        low.loop(f"{name}.query_gradient", "attention_backward_queries", operands, queries, name, "backward", **shape)
        del operands["output"]
        low.loop(f"{name}.key_gradient", "attention_backward_keys", operands, keys, name, "backward", **shape)


def _bytes(accesses: list[Access]) -> float:
    """Bytes of what a block touches, each region once; all regions have two ranges here."""
    return 4.0 * sum((a.box[0][1] - a.box[0][0]) * (a.box[1][1] - a.box[1][0]) for a in accesses)
