"""Matrices of the layout "tokens", which declare accesses to themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ....plan.model import Access, read, write


@dataclass(frozen=True)
class TokenMap:
    """A buffer (batch x sequence, pitch): a row of features for each token."""

    name: str
    batch: int
    sequence: int
    features: int
    pitch: int

    @property
    def rows(self) -> int:
        """Tokens of all samples."""
        return self.batch * self.sequence

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the buffer."""
        return (self.rows, self.pitch)

    def attributes(self, prefix: str) -> dict[str, int]:
        """Kernel attributes that describe this map."""
        return {f"{prefix}_features": self.features, f"{prefix}_pitch": self.pitch}

    def box(self, rows: tuple[int, int], columns: tuple[int, int] | None = None) -> tuple[tuple[int, int], ...]:
        """Region of some rows; all features unless columns are given."""
        columns = columns or (0, self.features)
        return (rows,) if columns == (0, self.pitch) else (rows, columns)

    def read(self, groups: tuple[int, int]) -> Access:
        """Read all of some samples."""
        return read(self.name, *self.box((groups[0] * self.sequence, groups[1] * self.sequence)))

    def write(self, groups: tuple[int, int]) -> Access:
        """Write all of some samples."""
        return write(self.name, *self.box((groups[0] * self.sequence, groups[1] * self.sequence)))

    def natural(self) -> Callable:
        """Function of the arrays that gives the tensor as (batch, sequence, features)."""
        return lambda arrays: arrays[self.name].reshape(self.batch, self.sequence, -1)[..., : self.features]


class Ids(TokenMap):
    """The tokens themselves: a buffer (batch x sequence,)."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the buffer."""
        return (self.rows,)

    def natural(self) -> Callable:
        """Function of the arrays that gives the tokens as (batch, sequence)."""
        return lambda arrays: arrays[self.name].reshape(self.batch, self.sequence)
