"""Matrices of the layout "rows"."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace


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
        """Shape of the buffer."""
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
        """Shape of the buffer."""
        return (self.rows,)

    def natural(self) -> Callable:
        """Function of the arrays that gives the tokens as (batch, sequence)."""
        return lambda arrays: arrays[self.name].reshape(self.batch, self.sequence)
