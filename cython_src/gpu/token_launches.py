"""How loops of the layout "rows" are launched; tables for `launches`."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping

import numpy as np

from .grids import MAX_TILES, THREADS, Grid, Launch, extents, per_item, per_strip, product, step_bytes, tiled

ATTENTION_TILE = 64  # tokens, and features of a head, of a CUDA block
# CUDA blocks among which the tokens of a table are divided; their shared memory: counts, and two lists of rows.
TOKEN_BLOCKS, TOKEN_BYTES = 1024, 4 * THREADS + 2 * 2 * 16 * THREADS


def _product(symbol: str, attributes: Mapping, bounds: np.ndarray) -> Launch:
    """A CUDA block for each tile of the result."""
    rows, columns, terms = extents(bounds, 0), extents(bounds, 2), attributes["inputs"]
    if symbol == "linear_backward_weights":
        rows, columns, terms = columns, terms, int(rows.min())
    elif symbol == "linear_backward_data":
        terms = attributes["outputs"]
    return product(symbol, terms, lambda tile: np.ceil(rows / (16 * tile[0])) * np.ceil(columns / (8 * tile[1])))


def _attention(symbol: str, attributes: Mapping, bounds: np.ndarray) -> Launch:
    """A CUDA block for each tile of a block's tokens; backward also of the queries that see its keys."""
    pieces = math.ceil(attributes["features"] / attributes["heads"] / ATTENTION_TILE)
    tiles = -(-extents(bounds, 4) // ATTENTION_TILE)
    if symbol == "attention_backward":
        first = bounds[:, 4] if attributes["causal"] else 0
        tiles = tiles - (first - attributes["sequence"]) // ATTENTION_TILE
    powers = 4 * ATTENTION_TILE * (ATTENTION_TILE + 8)
    by_token = 4 * 5 * ATTENTION_TILE
    shared = step_bytes((ATTENTION_TILE // 16, ATTENTION_TILE // 8)) + powers + by_token
    return Launch(symbol, tiled(extents(bounds, 0, 2) * pieces * tiles), shared)


def _per_row(symbol: str, attributes: Mapping, bounds: np.ndarray) -> Launch:
    """A CUDA block for each row."""
    return Launch(symbol, min(MAX_TILES, tiled(extents(bounds, 0))), 4 * THREADS)


# A thread for each number of the rows; of a product's result.
_PER_NUMBER = per_item(lambda a, b: extents(b, 0) * a["features"])
_PER_NUMBER_OF_PRODUCT = per_item(lambda a, b: extents(b, 0, 2))

TOKEN_LAUNCHES: dict[str, Grid] = {
    "tokens_load": per_item(lambda a, b: extents(b, 0) * a["sequence"]),
    "embedding_token_gradient": lambda symbol, a, b: Launch(symbol, min(TOKEN_BLOCKS, a["vocabulary"]), TOKEN_BYTES),
    "type_gradient": per_strip(lambda a, b: extents(b, 0)),
    "trigram_forward": per_item(lambda a, b: extents(b, 0) * 3 * a["features"]),
    "first_token_backward": per_item(lambda a, b: extents(b, 0) * a["sequence"] * a["features"]),
    **dict.fromkeys(("embedding_forward", "embedding_position_gradient", "positions_forward"), _PER_NUMBER),
    **dict.fromkeys(("trigram_backward", "first_token_forward"), _PER_NUMBER),
    **dict.fromkeys(("rows_activation", "rows_activation_backward", "rows_add"), _PER_NUMBER),
    **dict.fromkeys(("layernorm_forward", "layernorm_backward"), _per_row),
    **{f"linear_{what}": _product for what in ("forward", "backward_data", "backward_weights")},
    **{f"attention_{what}": _attention for what in ("forward", "backward")},
    "attention_add_parts": per_item(lambda a, b: extents(b, 0, 2, 4) * (a["features"] // a["heads"])),
    **{f"vocabulary_{what}": _per_row for what in ("loss", "evaluate", "gradient")},
}

# What a kernel launches after itself where an operand is given.
TOKEN_AFTER: dict[tuple[str, str], tuple[str, Grid]] = {
    ("layernorm_backward", "weight_partials"): ("layernorm_weight_gradient", per_strip(lambda a, b: a["features"])),
    ("linear_backward_weights", "bias"): ("linear_bias_gradient", per_strip(lambda a, b: extents(b, 2))),
}


def _output_differs(attributes: Mapping, given: Collection[str]) -> bool:
    return bool(attributes["activation"] or {"bias", "residual", "before"} & {*given})


# What is left to do after a loop's matrix products, unless the last function says that it is nothing.
TOKEN_BESIDE_PRODUCTS: dict[str, tuple[str, Grid, Callable[[Mapping, Collection[str]], bool]]] = {
    "linear_forward": ("linear_output", _PER_NUMBER_OF_PRODUCT, _output_differs),
    "linear_backward_data": ("linear_data_gradient", _PER_NUMBER_OF_PRODUCT, lambda a, given: "before" in given),
}
