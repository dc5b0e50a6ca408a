"""Embeddings of tokens and positions."""

from __future__ import annotations

from ....plan.model import read, update, write
from ...state import Lowering, loop_name, phase_of
from ...units import Unit
from .blocks import feature_blocks, position_blocks, row_blocks
from .maps import TokenMap


def embedding(low: Lowering, unit: Unit, again: bool) -> None:
    """Append the look-up of each token, with its position's row."""
    layer = unit.layer
    source, target = low.maps[unit.sources[0]], low.output_map(unit, again)
    operands = {"tokens": source.name, "token_weight": low.parameter(f"{layer.name}.weight"), "output": target.name}
    if layer.positions:
        operands["position_weight"] = low.parameter(f"{layer.positions}.weight")
    blocks = []
    for r in row_blocks(low, target.features):
        accesses = [read(source.name, r), read(operands["token_weight"]), write(target.name, r)]
        if layer.positions:
            accesses.append(read(operands["position_weight"], _positions(r, source.sequence)))
        size = 4.0 * target.features * (r[1] - r[0]) * (2 + bool(layer.positions))
        blocks.append(({"r0": r[0], "r1": r[1]}, accesses, 0.0, size))
    low.loop(
        loop_name(unit, again),
        "embedding_forward",
        operands,
        blocks,
        layer.name,
        phase_of(again),
        sequence=source.sequence,
        features=target.features,
        vocabulary=low.spec.token_input.vocabulary,
    )


def _positions(rows: tuple[int, int], sequence: int) -> tuple[int, int]:
    """Return the positions of some rows; all of the sequence where they belong to several samples."""
    first = rows[0] // sequence * sequence
    return (rows[0] - first, rows[1] - first) if rows[1] - first <= sequence else (0, sequence)


def embedding_backward(low: Lowering, unit: Unit, gradient: TokenMap) -> None:
    """Append the gradients of both tables: each block has features, or positions, of its own and adds rows in order."""
    layer = unit.layer
    tables = {"token": f"{layer.name}.weight", "position": f"{layer.positions}.weight"}
    if low.trains(tables["token"]):
        _token_gradient(low, unit, gradient, tables["token"])
    if layer.positions and low.trains(tables["position"]):
        _position_gradient(low, unit, gradient, tables["position"])


def _token_gradient(low: Lowering, unit: Unit, gradient: TokenMap, weight: str) -> None:
    """Append the gradient of the tokens' table, added to what a head with the same weights has left there."""
    source, name = low.maps[unit.sources[0]], unit.layer.name
    vocabulary, features = low.parameter_shapes[weight]
    present = low.partials.get(weight)
    if not present:
        stored = low.builder.buffer(f"{weight}.partials", (1, vocabulary, features), role="gradient", carried=True)
        low.partials[weight] = stored, 1
    partials, _ = low.partials[weight]
    blocks = []
    for c in feature_blocks(low, features):
        output = (update if present else write)(partials, (0, 1), (0, vocabulary), c)
        rows = 3 * source.rows + vocabulary * (not present)
        accesses = read(source.name), read(gradient.name, (0, source.rows), c), output
        blocks.append(({"c0": c[0], "c1": c[1]}, accesses, 0.0, 4.0 * rows * (c[1] - c[0])))
    low.loop(
        f"{name}.token_gradient",
        "embedding_token_gradient",
        {"tokens": source.name, "gradient": gradient.name, "output": partials},
        blocks,
        name,
        "backward",
        rows=source.rows,
        features=features,
        vocabulary=vocabulary,
        accumulate=int(present is not None),
    )


def _position_gradient(low: Lowering, unit: Unit, gradient: TokenMap, weight: str) -> None:
    """Append the gradient of the positions' table: sums over the samples, zeros past the sequence."""
    positions, features = low.parameter_shapes[weight]
    partials = low.builder.buffer(f"{weight}.partials", (1, positions, features), role="gradient", carried=True)
    low.partials[weight] = partials, 1
    blocks = []
    for t in position_blocks(low, positions):
        last = min(t[1], gradient.sequence)
        samples = [n * gradient.sequence for n in range(low.batch)] if t[0] < last else []
        accesses = [write(partials, (0, 1), t), *(read(gradient.name, (n + t[0], n + last)) for n in samples)]
        size = 4.0 * features * (t[1] - t[0] + len(samples) * max(0, last - t[0]))
        blocks.append(({"t0": t[0], "t1": t[1]}, accesses, 0.0, size))
    low.loop(
        f"{unit.layer.name}.position_gradient",
        "embedding_position_gradient",
        {"gradient": gradient.name, "output": partials},
        blocks,
        unit.layer.name,
        "backward",
        sequence=gradient.sequence,
        batch=low.batch,
        features=features,
    )
