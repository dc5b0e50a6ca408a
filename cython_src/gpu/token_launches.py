"""How loops of the layout "tokens" are launched; tables for `launches`."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping

import numpy as np

from .grids import (
    MAX_TILES,
    PRODUCT_STEP,
    PRODUCT_TILES,
    STRIP_CHANNELS,
    THREADS,
    THREADS_WANTED,
    Launch,
    extents,
    strided,
    tiled,
)

ATTENTION_TILE = 64  # tokens, and features of a head, of a CUDA block


def _tile_bytes(rows: int, columns: int) -> int:
    """Shared memory of a step of a product, as STEP_FLOATS in kernels/linear/tiles.cuh."""
    return 4 * PRODUCT_STEP * (rows + 4 + columns + 4)


def _product(symbol: str, sizes: Callable[[Mapping, np.ndarray], tuple]) -> Callable[[Mapping, np.ndarray], Launch]:
    """A CUDA block for each tile of the result; `sizes`: rows and columns of each block's."""

    def launch(attributes: Mapping, bounds: np.ndarray) -> Launch:
        rows, columns = sizes(attributes, bounds)
        for tile in PRODUCT_TILES:
            tiles = np.ceil(rows / (16 * tile[0])) * np.ceil(columns / (8 * tile[1]))
            if tiles.sum() * THREADS >= THREADS_WANTED:
                break
        return Launch(f"{symbol}_{tile[0]}x{tile[1]}", tiled(tiles), _tile_bytes(16 * tile[0], 8 * tile[1]))

    return launch


def _attention(symbol: str) -> Callable[[Mapping, np.ndarray], Launch]:
    """A CUDA block for each tile of a block's tokens; backward also of the queries that see its keys."""

    def launch(attributes: Mapping, bounds: np.ndarray) -> Launch:
        pieces = math.ceil(attributes["features"] / attributes["heads"] / ATTENTION_TILE)
        tiles = -(-extents(bounds, 4) // ATTENTION_TILE)
        if symbol == "attention_backward":
            first = bounds[:, 4] if attributes["causal"] else 0
            tiles = tiles - (first - attributes["sequence"]) // ATTENTION_TILE
        powers = 4 * ATTENTION_TILE * (ATTENTION_TILE + 4)
        by_token = 4 * 5 * ATTENTION_TILE
        shared = _tile_bytes(ATTENTION_TILE, ATTENTION_TILE) + powers + by_token
        return Launch(symbol, tiled(extents(bounds, 0, 2) * pieces * tiles), shared)

    return launch


def _attention_sum(attributes: Mapping, bounds: np.ndarray) -> Launch:
    size = attributes["features"] // attributes["heads"]
    return Launch("attention_add_parts", strided(extents(bounds, 0, 2, 4) * size))


def _per_row(symbol: str) -> Callable[[Mapping, np.ndarray], Launch]:
    """A CUDA block for each row."""
    return lambda attributes, bounds: Launch(symbol, min(MAX_TILES, tiled(extents(bounds, 0))), 4 * THREADS)


def _per_number(symbol: str, columns: str = "features") -> Callable[[Mapping, np.ndarray], Launch]:
    """A thread for each number of the rows."""
    return lambda attributes, bounds: Launch(symbol, strided(extents(bounds, 0) * attributes[columns]))


def _per_number_of_product(symbol: str) -> Callable[[Mapping, np.ndarray], Launch]:
    return lambda attributes, bounds: Launch(symbol, strided(extents(bounds, 0, 2)))


TOKEN_LAUNCHES: dict[str, Callable[[Mapping, np.ndarray], Launch]] = {
    "tokens_load": _per_number("tokens_load", "sequence"),
    "labelled_tokens_load": _per_number("labelled_tokens_load", "sequence"),
    "embedding_forward": _per_number("embedding_forward"),
    "embedding_token_gradient": _per_number("embedding_token_clear", "vocabulary"),
    "embedding_position_gradient": _per_number("embedding_position_gradient"),
    "positions_forward": _per_number("positions_forward"),
    "type_gradient": lambda attributes, bounds: Launch("type_gradient", strided(extents(bounds, 0))),
    "trigram_forward": lambda attributes, bounds: Launch(
        "trigram_forward", strided(extents(bounds, 0) * 3 * attributes["features"])
    ),
    "trigram_backward": _per_number("trigram_backward"),
    "first_token_forward": _per_number("first_token_forward"),
    "first_token_backward": lambda attributes, bounds: Launch(
        "first_token_backward", strided(extents(bounds, 0) * attributes["sequence"] * attributes["features"])
    ),
    "no_norm_forward": _per_number("no_norm_forward"),
    "no_norm_backward": _per_number("no_norm_backward"),
    "layernorm_forward": _per_row("layernorm_forward"),
    "layernorm_backward": _per_row("layernorm_backward"),
    "linear_forward": _product("linear_forward", lambda attributes, bounds: (extents(bounds, 0), extents(bounds, 2))),
    "linear_backward_data": _product(
        "linear_backward_data", lambda attributes, bounds: (extents(bounds, 0), extents(bounds, 2))
    ),
    "linear_backward_weights": _product(
        "linear_backward_weights", lambda attributes, bounds: (extents(bounds, 2), attributes["inputs"])
    ),
    "attention_forward": _attention("attention_forward"),
    "attention_backward": _attention("attention_backward"),
    "attention_add_parts": _attention_sum,
    "gelu_forward": _per_number("gelu_forward"),
    "gelu_backward": _per_number("gelu_backward"),
    "tokens_add": _per_number("tokens_add"),
    "tokens_relu_forward": _per_number("tokens_relu_forward"),
    "tokens_relu_backward": _per_number("tokens_relu_backward"),
    "vocabulary_loss": _per_row("vocabulary_loss"),
    "vocabulary_evaluate": _per_row("vocabulary_evaluate"),
    "vocabulary_logsumexp": _per_row("vocabulary_logsumexp"),
    "vocabulary_gradient": _per_row("vocabulary_gradient"),
}

# What a kernel launches after itself where an operand is given.
TOKEN_AFTER: dict[tuple[str, str], Callable[[Mapping, np.ndarray], Launch]] = {
    ("embedding_token_gradient", "output"): lambda attributes, bounds: Launch(
        "embedding_token_gradient", min(MAX_TILES, attributes["rows"]), 4
    ),
    ("layernorm_backward", "weight_partials"): lambda attributes, bounds: Launch(
        "layernorm_weight_gradient", math.ceil(attributes["features"] / STRIP_CHANNELS), 4 * THREADS
    ),
    ("no_norm_backward", "weight_partials"): lambda attributes, bounds: Launch(
        "no_norm_weight_gradient", math.ceil(attributes["features"] / STRIP_CHANNELS), 4 * THREADS
    ),
    ("linear_backward_weights", "bias"): lambda attributes, bounds: Launch(
        "linear_bias_gradient", tiled(extents(bounds, 2) / STRIP_CHANNELS), 4 * THREADS
    ),
}


def _output(attributes: Mapping, bounds: np.ndarray, operands: Collection[str]) -> Launch | None:
    plain = not attributes["activation"] and not {"bias", "residual", "before"} & {*operands}
    return None if plain else _per_number_of_product("linear_output")(attributes, bounds)


def _data_gradient(attributes: Mapping, bounds: np.ndarray, operands: Collection[str]) -> Launch | None:
    return _per_number_of_product("linear_data_gradient")(attributes, bounds) if "before" in operands else None


# What is left to do after a loop's matrix products.
TOKEN_BESIDE_PRODUCTS: dict[str, Callable[[Mapping, np.ndarray, Collection[str]], Launch | None]] = {
    "linear_forward": _output,
    "linear_backward_data": _data_gradient,
}
