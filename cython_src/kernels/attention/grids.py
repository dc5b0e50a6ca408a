"""How attention is launched on a GPU."""

import math

from ..interface.grids import Launch, extents, launched, per_item, tiled
from ..linear.grids import GAP, step_bytes

ATTENTION_TILE = 64  # tokens, and features of a head, of a CUDA block
SIZES = ("ATTENTION_TILE",)


def attention(symbol, a, b):
    """A CUDA block for each tile of a block's tokens; backward also of the queries that see its keys."""
    pieces = math.ceil(a["features"] / a["heads"] / ATTENTION_TILE)
    tiles = -(-extents(b, 4) // ATTENTION_TILE)
    if symbol == "attention_backward":
        tiles = tiles - ((b[:, 4] if a["causal"] else 0) - a["sequence"]) // ATTENTION_TILE
    powers, by_token = 4 * ATTENTION_TILE * (ATTENTION_TILE + GAP), 4 * 5 * ATTENTION_TILE
    steps = step_bytes(ATTENTION_TILE, ATTENTION_TILE)
    return Launch(symbol, tiled(extents(b, 0, 2) * pieces * tiles), steps + powers + by_token)


launched("attention_forward", "attention_backward", grid=attention)
launched("attention_add_parts", grid=per_item(lambda a, b: extents(b, 0, 2, 4) * (a["features"] // a["heads"])))
