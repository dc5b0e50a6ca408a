"""How linear layers, and other matrix products in tiles, are launched on a GPU."""

import math

import numpy as np

from ..interface.grids import blocks_wanted, extents, guess, joined, launched, per_item, per_strip

# Sums of a product are cut first, into parts that several CUDA blocks add up, of no fewer terms than these: to copy
# factors then takes three times as long as to write and read the parts. Smaller tiles come next; they change no result.
# A guess until it is measured.
PART_TERMS = 256
THREAD_ROWS, THREAD_COLUMNS = 16, 8  # threads along the rows and columns of a tile
# Numbers of a tile that each thread computes, rows (pixels or tokens, or outputs of a weight gradient) by columns
# (channels or features, or taps and input channels), the largest first.
TILES = ((8, 8), (4, 4), (4, 2))
STEP, STAGES = 16, 3  # numbers of a sum that are copied together, and steps in shared memory at a time
GAP = 8  # numbers behind a row of shared memory, so that a warp's reads along both axes meet all banks
SIZES = ("THREAD_ROWS", "THREAD_COLUMNS", "TILES", "STEP", "STAGES", "GAP")


def step_bytes(rows, columns):
    """Shared memory of the steps of a tile of a product: the most that Tile::FLOATS in tiles.cuh can be."""
    return 4 * STAGES * STEP * (rows + columns + 2 * GAP)


def product(symbol, terms, tiles_of, suits=lambda *size: True, more_bytes=lambda *size: 0, most_parts=math.inf):
    """A CUDA block for each part of each tile of a product, of the largest tiles of which there are enough. Its sums,
    of so many terms, may be cut into `most_parts`. Functions of a tile's rows and columns say how many tiles each block
    has, whether the size suits (the smallest is taken in any case), and what shared memory it needs beside the steps.
    """
    wanted = blocks_wanted()
    most_parts = min(most_parts, terms // guess("FORKTASK_GPU_PART_TERMS", PART_TERMS))
    for tile in TILES:
        size = rows, columns = THREAD_ROWS * tile[0], THREAD_COLUMNS * tile[1]
        if tile is not TILES[-1] and not suits(*size):
            continue
        tiles = tiles_of(*size)
        blocks = max(1, np.sum(tiles))
        parts = max(1, min(most_parts, math.ceil(wanted / blocks)))
        if blocks * parts >= wanted:
            break
    name, shared_bytes = f"{symbol}_{tile[0]}x{tile[1]}", step_bytes(*size) + more_bytes(*size)
    return joined(name, tiles, shared_bytes, parts, rows * columns)


def linear(symbol, a, b):
    """A CUDA block for each tile of the result."""
    height, width, terms = extents(b, 0), extents(b, 2), a["inputs"]
    if symbol == "linear_backward_weights":
        height, width, terms = width, terms, int(height.min())
    elif symbol == "linear_backward_data":
        terms = a["outputs"]
    return product(symbol, terms, lambda rows, columns: np.ceil(height / rows) * np.ceil(width / columns))


def _output_differs(a, given):
    return bool(a["activation"] or {"bias", "residual", "before"} & {*given})


_PER_NUMBER = per_item(lambda a, b: extents(b, 0, 2))  # of a product's result
_DATA_GRADIENT = "linear_data_gradient", _PER_NUMBER, lambda a, given: "before" in given
_BIAS_GRADIENT = "linear_bias_gradient", per_strip(lambda a, b: extents(b, 2))
launched("linear_forward", grid=linear, beside_products=("linear_output", _PER_NUMBER, _output_differs))
launched("linear_backward_data", grid=linear, beside_products=_DATA_GRADIENT)
launched("linear_backward_weights", grid=linear, after={"bias": _BIAS_GRADIENT})
