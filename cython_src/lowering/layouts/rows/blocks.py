"""Matrices of the layout "rows", and how its loops are cut into blocks: as the user asked for, else so that there are
enough blocks for eight threads, none of them so short that starting it counts. Nothing depends on the number of
threads.

Where the user names samples (images) and tokens of a slice (rows), a block of a loop that treats each token alone has
as many rows, one after the other; a block of attention has that slice of each of these samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from ....plan.builder import ranges
from ...state import PARTS_ON_DEVICE, Lowering

ROWS = 256  # of a block, at most: weights are read once for each
COLUMNS = 64  # of a wide panel of the kernels' matrices: output features of products are cut in multiples
NARROW = 32  # of a panel: what other loops cut, in multiples
OUTPUTS = 16  # a block of a weight gradient packs all inputs: it has as many outputs as it can, in multiples of this
FEWEST_OUTPUTS = 96  # of such a block: fewer, and packing counts
SIX_COLUMNS = 192  # of a block of `products=bf16x6`, at least: it cuts all of both factors into parts
WIDE = 96  # columns of a block whose first factor comes from memory, at least, if its rows can be halved
FACTOR_BYTES = 8 << 20  # of the rows of a first factor that comes from memory for each block
KEY_SLICES = 8  # of a sample backward, at most
SHORTEST_FLOPS = 1e6  # about ten microseconds of one core
SHORTEST_BYTES = 16384  # of a map that is read or written once


@dataclass(frozen=True)
class TokenMap:
    """A buffer (batch x sequence, pitch): a row of features for each token, from the column `offset` on."""

    name: str
    batch: int
    sequence: int
    features: int
    pitch: int
    offset: int = 0

    @property
    def rows(self) -> int:
        """Tokens of all samples."""
        return self.batch * self.sequence

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.rows, self.pitch)

    def box(self, rows: tuple[int, int], columns: tuple[int, int] | None = None) -> tuple[tuple[int, int], ...]:
        """Region of some rows; all features unless columns are given."""
        start, stop = columns or (0, self.features)
        return (rows,) if stop - start == self.pitch else (rows, (start + self.offset, stop + self.offset))

    def columns(self, start: int, stop: int) -> TokenMap:
        """Return the map of some of the features."""
        return replace(self, features=stop - start, offset=self.offset + start)

    def natural(self) -> Callable:
        """Function of the arrays that gives the tensor as (batch, sequence, features)."""
        columns = slice(self.offset, self.offset + self.features)
        return lambda arrays: arrays[self.name].reshape(self.batch, self.sequence, -1)[..., columns]


class Ids(TokenMap):
    """The tokens themselves: a buffer (batch x sequence,)."""

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.rows,)

    def natural(self) -> Callable:
        """Function of the arrays that gives the tokens as (batch, sequence)."""
        return lambda arrays: arrays[self.name].reshape(self.batch, self.sequence)


def sample_blocks(low: Lowering) -> list[tuple[int, int]]:
    """Return the samples of a block of a loop that is cut by samples alone."""
    cut = low.options.cut
    wanted = math.ceil(low.batch / cut.wanted())
    return ranges(low.batch, wanted if cut.is_auto else cut.images or low.batch)


def _asked_rows(low: Lowering, length: int) -> int:
    """Rows of a block as the user cuts them; samples have `length` tokens."""
    cut = low.options.cut
    return min(cut.images or low.batch, low.batch) * min(cut.rows or length, length)


def row_blocks(low: Lowering, target: TokenMap, sums: bool = False) -> list[tuple[int, int]]:
    """Return the rows of the blocks of a loop that treats each token of a map alone, or also sums over them."""
    if low.options.cut.device and sums:
        return ranges(target.rows, math.ceil(target.rows / PARTS_ON_DEVICE))
    if not low.options.cut.is_auto:
        return ranges(target.rows, _asked_rows(low, target.sequence))
    wanted = max(target.rows / low.options.cut.wanted(), SHORTEST_BYTES / (4 * target.features))
    # Powers of two nest: a block of one loop then meets few blocks of the next.
    return ranges(target.rows, min(ROWS, 1 << max(0, math.ceil(math.log2(wanted)))))


def product_blocks(
    low: Lowering, target: TokenMap, flops: float, six: bool = False
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return the ranges of rows and of columns of a product of matrices, `flops` in all; `six`: by six of bfloat16."""
    columns, cut = target.features, low.options.cut
    if not cut.is_auto:
        row_ranges = ranges(target.rows, _asked_rows(low, target.sequence))
        return row_ranges, ranges(columns, min(cut.channels or columns, columns))
    rows = min(target.rows, ROWS)
    row_ranges = ranges(target.rows, rows)
    pieces = _pieces(columns, _wanted(low, flops) / len(row_ranges), least=SIX_COLUMNS if six else 0)
    # Each range of columns reads all of the first factor: half as many, and twice as many of rows, read half as much.
    if rows == ROWS and pieces[0][1] < WIDE and 2 * flops / columns / target.rows * rows > FACTOR_BYTES:
        row_ranges = ranges(target.rows, ROWS // 2)
        pieces = _pieces(columns, _wanted(low, flops) / len(row_ranges))
    return row_ranges, pieces


def weight_blocks(
    low: Lowering, gradient: TokenMap, flops: float, six: bool = False
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return the ranges of rows and of outputs of a weight gradient; each range of rows has a partial sum, or a link of
    the chain."""
    outputs, rows, cut = gradient.features, gradient.rows, low.options.cut
    if not cut.is_auto:
        samples = ranges(low.batch, cut.images or low.batch)
        row_ranges = [(n[0] * gradient.sequence, n[1] * gradient.sequence) for n in samples]
        return row_ranges, ranges(outputs, min(cut.channels or outputs, outputs))
    row_ranges = ranges(rows, ROWS) if low.options.chain else [(0, rows)]
    least = SIX_COLUMNS if six else FEWEST_OUTPUTS
    return row_ranges, _pieces(outputs, _wanted(low, flops) / len(row_ranges), OUTPUTS, least)


def attention_blocks(
    low: Lowering, heads: int, flops: float, backward: bool
) -> tuple[list[tuple[int, int]], list[tuple[int, int]], list[tuple[int, int]]]:
    """Return the ranges of samples, heads and tokens of attention."""
    cut, length = low.options.cut, low.options.sequence
    if not cut.is_auto:
        sizes = cut.images or low.batch, min(cut.heads or heads, heads), min(cut.rows or length, length)
    else:
        number = _wanted(low, flops)
        samples = max(1, low.batch // number)
        head = math.ceil(heads / min(heads, math.ceil(number * samples / low.batch)))
        slices = math.ceil(number * samples * head / (low.batch * heads))
        most = length if backward else min(ROWS, length)
        sizes = samples, head, min(most, math.ceil(length / slices / NARROW) * NARROW)
    # Backward each slice of keys has partial sums of its own: their number is bounded, and so are they.
    rows = max(sizes[2], math.ceil(length / KEY_SLICES)) if backward else sizes[2]
    return ranges(low.batch, sizes[0]), ranges(heads, sizes[1]), ranges(length, rows)


def feature_blocks(low: Lowering, features: int) -> list[tuple[int, int]]:
    """Return the features of a block of a loop over all tokens."""
    cut = low.options.cut
    if not cut.is_auto:
        return ranges(features, min(cut.channels or features, features))
    size = 4.0 * low.batch * low.options.sequence * features
    return _pieces(features, max(1, min(cut.wanted(), size / SHORTEST_BYTES)), NARROW)


def position_blocks(low: Lowering, positions: int) -> list[tuple[int, int]]:
    """Return the positions of a block of the gradient of a table of positions."""
    cut = low.options.cut
    wanted = math.ceil(positions / cut.wanted())
    return ranges(positions, wanted if cut.is_auto else min(cut.rows or positions, positions))


def _wanted(low: Lowering, flops: float) -> int:
    return max(1, min(low.options.cut.wanted(), int(flops / SHORTEST_FLOPS)))


def _pieces(total: int, number: float, step: int = COLUMNS, least: int = 0) -> list[tuple[int, int]]:
    """At least `number` ranges, unless they were smaller than `least` or `step`; sizes are multiples of `step`."""
    number = math.ceil(total / max(step, least, int(total / max(number, 1) / step) * step))
    return ranges(total, math.ceil(total / number / step) * step)
