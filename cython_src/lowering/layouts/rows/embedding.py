"""Embeddings of tokens and positions, and what takes tokens of a sample together: trigrams, the first token."""

from __future__ import annotations

from collections.abc import Callable

from ....networks.layers import Embedding, FirstToken, Positions, Trigram
from ....plan.builder import block_bounds
from ...gradients import pass_on, sent_back
from ...state import Loops, Lowering, repeated
from ...units import Unit
from .blocks import TokenMap, feature_blocks, position_blocks, row_blocks, sample_blocks


def embedding(low: Lowering, unit: Unit, recomputed: bool) -> None:
    """Append the look-up of each token, with its position's row."""
    layer = unit.layer
    source, target = low.maps[unit.sources[0]], low.output_map(unit, recomputed)
    operands = {"tokens": source, "token_weight": low.parameter(f"{layer.name}.weight"), "output": target}
    if layer.positions:
        operands["position_weight"] = low.parameter(f"{layer.positions}.weight")
    shape = _shape(target) | {"vocabulary": low.spec.token_input.vocabulary}
    _row_loop(low, unit, recomputed, "embedding_forward", operands, shape)


def _shape(m: TokenMap) -> dict[str, int]:
    return {"sequence": m.sequence, "features": m.features}


def _row_loop(
    low: Lowering, unit: Unit, recomputed: bool, kernel: str, operands: dict[str, str | TokenMap], shape: dict[str, int]
) -> None:
    """Append a forward loop over the rows of its output."""
    bounds = block_bounds(r=row_blocks(low, operands["output"]))
    low.append(unit, repeated(recomputed), kernel, operands, bounds, **shape)


def embedding_backward(low: Lowering, unit: Unit, gradient: TokenMap) -> None:
    """Append the gradients of both tables: each block has features, or positions, of its own and adds rows in order."""
    layer = unit.layer
    tables = {"token": f"{layer.name}.weight", "position": f"{layer.positions}.weight"}
    if low.trains(tables["token"]):
        _token_gradient(low, unit, gradient, tables["token"])
    if layer.positions and low.trains(tables["position"]):
        _position_gradient(low, unit, gradient, tables["position"])


def positions(low: Lowering, unit: Unit, recomputed: bool) -> None:
    """Append the sum with each position's row, and with the first type's."""
    layer, source = unit.layer, low.maps[unit.sources[0]]
    operands = {"input": source, "output": low.output_map(unit, recomputed)}
    operands["position_weight"] = low.parameter(f"{layer.name}.weight")
    if layer.types:
        operands["type_weight"] = low.parameter(f"{layer.types}.weight")
    _row_loop(low, unit, recomputed, "positions_forward", operands, _shape(operands["output"]))


def positions_backward(low: Lowering, unit: Unit, gradient: TokenMap) -> None:
    """Append the gradient of the positions' rows, and that of the first type, which is their sum."""
    layer = unit.layer
    pass_on(low, unit, unit.sources[0], gradient)
    if not low.trained(unit.layer):
        return
    weight, types = f"{layer.name}.weight", f"{layer.types}.weight" if layer.types else ""
    partials = _position_gradient(low, unit, gradient, weight)
    if not types or not low.trains(types):
        return
    rows, features = low.parameter_shapes[types]
    operands = {"position_gradient": partials, "output": low.partial_gradients(types, 1, (rows, features))}
    bounds = block_bounds(c=feature_blocks(low, features))
    shape = _shape(gradient) | {"types": rows}
    low.append(unit, "type_gradient", "type_gradient", operands, bounds, **shape)


def _copies(kernel: str, cuts: Callable[[Lowering, TokenMap], dict[str, list[tuple[int, int]]]]) -> Loops:
    """Return the loops of a layer that copies features of tokens to other places, by the kernels KERNEL_forward and
    KERNEL_backward; `cuts`: of a loop by what it writes."""

    def forward(low: Lowering, unit: Unit, recomputed: bool) -> None:
        source, target = low.maps[unit.sources[0]], low.output_map(unit, recomputed)
        operands, bounds = {"input": source, "output": target}, block_bounds(**cuts(low, target))
        low.append(unit, repeated(recomputed), f"{kernel}_forward", operands, bounds, **_shape(source))

    def backward(low: Lowering, unit: Unit, gradient: TokenMap) -> None:
        with sent_back(low, unit, unit.sources[0]) as target:
            operands, bounds = {"gradient": gradient, "output": target}, block_bounds(**cuts(low, target))
            low.append(unit, "gradient", f"{kernel}_backward", operands, bounds, **_shape(target))

    return Loops(forward, backward)


def _token_gradient(low: Lowering, unit: Unit, gradient: TokenMap, weight: str) -> None:
    """Append the gradient of the tokens' table, added to what a head with the same weights has left there."""
    source = low.maps[unit.sources[0]]
    vocabulary, features = low.parameter_shapes[weight]
    present = weight in low.partials
    partials = low.partials[weight][0] if present else low.partial_gradients(weight, 1, (vocabulary, features))
    operands, bounds = {"tokens": source, "gradient": gradient, "output": partials}, feature_blocks(low, features)
    shape = {"rows": source.rows, "features": features, "vocabulary": vocabulary, "accumulate": int(present)}
    low.append(unit, "token_gradient", "embedding_token_gradient", operands, block_bounds(c=bounds), **shape)


def _position_gradient(low: Lowering, unit: Unit, gradient: TokenMap, weight: str) -> str:
    """Append the gradient of the positions' table, sums over samples, zeros past the sequence; return its buffer."""
    rows, features = low.parameter_shapes[weight]
    partials = low.partial_gradients(weight, 1, (rows, features))
    operands, bounds = {"gradient": gradient, "output": partials}, block_bounds(t=position_blocks(low, rows))
    shape = {**_shape(gradient), "batch": low.batch}
    low.append(unit, "position_gradient", "embedding_position_gradient", operands, bounds, **shape)
    return partials


LOOPS = {
    Embedding: Loops(embedding, embedding_backward),
    Positions: Loops(positions, positions_backward),
    Trigram: _copies("trigram", lambda low, target: {"r": row_blocks(low, target)}),
    FirstToken: _copies("first_token", lambda low, target: {"n": sample_blocks(low)}),
}
