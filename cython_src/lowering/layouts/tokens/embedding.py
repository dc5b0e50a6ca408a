"""Embeddings of tokens and positions, and what takes tokens of a sample together: trigrams, the first token."""

from __future__ import annotations

from ....plan.model import read, update, write
from ...gradients import pass_on, sent_back
from ...state import Lowering, loop_name, phase_of
from ...units import Unit
from .blocks import feature_blocks, position_blocks, row_blocks, sample_blocks
from .maps import TokenMap


def embedding(low: Lowering, unit: Unit, again: bool) -> None:
    """Append the look-up of each token, with its position's row."""
    layer = unit.layer
    source, target = low.maps[unit.sources[0]], low.output_map(unit, again)
    operands = {"tokens": source.name, "token_weight": low.parameter(f"{layer.name}.weight"), "output": target.name}
    if layer.positions:
        operands["position_weight"] = low.parameter(f"{layer.positions}.weight")
    blocks = []
    for r in row_blocks(low, target):
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
        low.partials[tables["position"]] = _position_gradient(low, unit, gradient, tables["position"]), 1


def positions(low: Lowering, unit: Unit, again: bool) -> None:
    """Append the sum with each position's row, and with the first type's."""
    layer, source = unit.layer, low.maps[unit.sources[0]]
    target = low.output_map(unit, again)
    tables = {"position_weight": low.parameter(f"{layer.name}.weight")}
    if layer.types:
        tables["type_weight"] = low.parameter(f"{layer.types}.weight")
    blocks = []
    for r in row_blocks(low, target):
        accesses = [read(source.name, r), write(target.name, r)]
        accesses.append(read(tables["position_weight"], _positions(r, source.sequence)))
        if layer.types:
            accesses.append(read(tables["type_weight"], (0, 1)))
        blocks.append(({"r0": r[0], "r1": r[1]}, accesses, 0.0, 12.0 * target.features * (r[1] - r[0])))
    operands = {"input": source.name, **tables, "output": target.name}
    shape = {"sequence": source.sequence, "features": target.features}
    low.loop(loop_name(unit, again), "positions_forward", operands, blocks, layer.name, phase_of(again), **shape)


def positions_backward(low: Lowering, unit: Unit, gradient: TokenMap) -> None:
    """Append the gradient of the positions' rows, and that of the first type, which is their sum."""
    layer = unit.layer
    pass_on(low, unit, unit.sources[0], gradient)
    if not low.trained(unit):
        return
    weight, types = f"{layer.name}.weight", f"{layer.types}.weight" if layer.types else ""
    partials = _position_gradient(low, unit, gradient, weight)
    if low.trains(weight):
        low.partials[weight] = partials, 1
    if not types or not low.trains(types):
        return
    rows, features = low.parameter_shapes[types]
    stored = low.builder.buffer(f"{types}.partials", (1, rows, features), role="gradient", carried=True)
    low.partials[types] = stored, 1
    blocks = []
    for c in feature_blocks(low, features):
        accesses = read(partials, (0, 1), (0, gradient.sequence), c), write(stored, (0, 1), (0, rows), c)
        blocks.append(({"c0": c[0], "c1": c[1]}, accesses, 0.0, 4.0 * (gradient.sequence + rows) * (c[1] - c[0])))
    low.loop(
        f"{layer.name}.type_gradient",
        "type_gradient",
        {"position_gradient": partials, "output": stored},
        blocks,
        layer.name,
        "backward",
        sequence=gradient.sequence,
        features=features,
        types=rows,
    )


def trigram(low: Lowering, unit: Unit, again: bool) -> None:
    """Append the copies of each token's neighbours."""
    source, target = low.maps[unit.sources[0]], low.output_map(unit, again)
    blocks = []
    for r in row_blocks(low, target):
        # A token's neighbours are those of its sample.
        first, last = r[0] - (r[0] % source.sequence > 0), r[1] + (r[1] % source.sequence > 0)
        accesses = read(source.name, (first, last)), write(target.name, r)
        blocks.append(({"r0": r[0], "r1": r[1]}, accesses, 0.0, 16.0 * source.features * (r[1] - r[0])))
    operands = {"input": source.name, "output": target.name}
    shape = {"sequence": source.sequence, "features": source.features}
    low.loop(loop_name(unit, again), "trigram_forward", operands, blocks, unit.layer.name, phase_of(again), **shape)


def trigram_backward(low: Lowering, unit: Unit, gradient: TokenMap) -> None:
    """Append the sums of what the tokens before, at and after each place send back there."""
    name, blocks = unit.layer.name, []
    with sent_back(low, unit, unit.sources[0]) as target:
        size, length = target.features, target.sequence
        for r in row_blocks(low, target):
            rows = {0: (r[0] - (r[0] % length > 0), r[1] - 1), 1: r, 2: (r[0] + 1, r[1] + (r[1] % length > 0))}
            accesses = [read(gradient.name, b, (p * size, (p + 1) * size)) for p, b in rows.items() if b[0] < b[1]]
            moved = 16.0 * size * (r[1] - r[0])
            blocks.append(({"r0": r[0], "r1": r[1]}, (*accesses, write(target.name, r)), 0.0, moved))
        operands, shape = {"gradient": gradient.name, "output": target.name}, {"sequence": length, "features": size}
        low.loop(f"{name}.gradient", "trigram_backward", operands, blocks, name, "backward", **shape)


def first_token(low: Lowering, unit: Unit, again: bool) -> None:
    """Append the copy of each sample's first token."""
    source, target = low.maps[unit.sources[0]], low.output_map(unit, again)
    length, blocks = source.sequence, []
    for n in sample_blocks(low):
        accesses = [write(target.name, n), *(read(source.name, (i * length, i * length + 1)) for i in range(*n))]
        blocks.append(({"n0": n[0], "n1": n[1]}, accesses, 0.0, 8.0 * target.features * (n[1] - n[0])))
    operands, shape = {"input": source.name, "output": target.name}, {"sequence": length, "features": target.features}
    low.loop(loop_name(unit, again), "first_token_forward", operands, blocks, unit.layer.name, phase_of(again), **shape)


def first_token_backward(low: Lowering, unit: Unit, gradient: TokenMap) -> None:
    """Append zeros, and the gradient in the place of each sample's first token."""
    name, blocks = unit.layer.name, []
    with sent_back(low, unit, unit.sources[0]) as target:
        for n in sample_blocks(low):
            rows = n[0] * target.sequence, n[1] * target.sequence
            size = 4.0 * target.features * (rows[1] - rows[0])
            blocks.append(({"n0": n[0], "n1": n[1]}, (read(gradient.name, n), write(target.name, rows)), 0.0, size))
        operands = {"gradient": gradient.name, "output": target.name}
        shape = {"sequence": target.sequence, "features": target.features}
        low.loop(f"{name}.gradient", "first_token_backward", operands, blocks, name, "backward", **shape)


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


def _position_gradient(low: Lowering, unit: Unit, gradient: TokenMap, weight: str) -> str:
    """Append the gradient of the positions' table, sums over samples, zeros past the sequence; return its buffer."""
    rows, features = low.parameter_shapes[weight]
    partials = low.builder.buffer(f"{weight}.partials", (1, rows, features), role="gradient", carried=True)
    blocks = []
    for t in position_blocks(low, rows):
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
    return partials
