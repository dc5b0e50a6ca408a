"""Copies of a plan's buffers in the memories of host and device, and which of them hold the truth.

An MSI protocol, run by the program that launches the work instead of by hardware: a copy is modified (the only valid
one), shared (as valid as the other) or invalid. A buffer may be cut along its first dimension into pieces that have
states of their own, so that some of it is written here and some there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

HOST, DEVICE = "host", "device"
PLACES = (HOST, DEVICE)
INVALID, SHARED, MODIFIED = "I", "S", "M"


class Coherence:
    """States of the copies of some buffers.

    Attributes
    ----------
    changes : int
        Number of changes of states so far.
    changed : dict of str to int
        Number of the last change of each buffer.
    """

    def __init__(self) -> None:
        self._cuts: dict[str, list[int]] = {}
        self._state: dict[str, dict[str, list[str]]] = {}
        self.changes = 0
        self.changed: dict[str, int] = {}

    def add(self, name: str, owner: str | None = None, cuts: Sequence[int] = (0, 1)) -> None:
        """A new buffer: shared, or modified at `owner`. A known one keeps its states and gets the cuts it has not.
        `cuts`: rows between which pieces lie, from 0 to the number of rows."""
        if name not in self._cuts:
            state = {place: SHARED if owner is None else MODIFIED if place == owner else INVALID for place in PLACES}
            self._cuts[name] = [cuts[0], cuts[-1]]
            self._state[name] = {place: [state[place]] for place in PLACES}
        known = self._cuts[name]
        for cut in cuts:
            at = bisect_left(known, cut)
            if at == len(known) or cut < known[0]:
                raise AssertionError(f"buffer {name!r} has rows {known[0]} to {known[-1]}, it cannot be cut at {cut}")
            if known[at] != cut:
                known.insert(at, cut)
                for states in self._state[name].values():
                    states.insert(at, states[at - 1])
        self._note(name)

    def _note(self, name: str) -> None:
        self.changes += 1
        self.changed[name] = self.changes

    def pieces(self, name: str, rows: tuple[int, int] | None = None) -> range:
        """Numbers of the pieces that rows, which must begin and end at cuts, lie in; None: all."""
        cuts = self._cuts[name]
        if rows is None:
            return range(len(cuts) - 1)
        first, last = (bisect_left(cuts, row) for row in rows)
        if last >= len(cuts) or (cuts[first], cuts[last]) != tuple(rows):
            raise AssertionError(f"rows {rows} of buffer {name!r} do not begin and end at one of its cuts {cuts}")
        return range(first, last)

    def state(self, name: str, place: str, piece: int = 0) -> str:
        return self._state[name][place][piece]

    def missing(self, name: str, place: str, rows: tuple[int, int] | None = None) -> list[tuple[int, int]]:
        """Ranges of rows that are out of date at `place`."""
        cuts, states, ranges = self._cuts[name], self._state[name][place], []
        for piece in self.pieces(name, rows):
            if states[piece] == INVALID:
                start = ranges.pop()[0] if ranges and ranges[-1][1] == cuts[piece] else cuts[piece]
                ranges.append((start, cuts[piece + 1]))
        return ranges

    def acquire(
        self, name: str, place: str, reads: bool, writes: bool, rows: tuple[int, int] | None = None
    ) -> list[tuple[int, int]]:
        """Get a copy ready for use at `place` and note what the use makes of it.

        Parameters
        ----------
        reads : bool
            Some of the old content is needed: read, or only part of it overwritten.
        rows : (int, int), optional
            What is used; default: all.

        Returns
        -------
        list of (int, int)
            Ranges of rows to copy from the other place before the use.
        """
        states = self._state[name]
        other = DEVICE if place == HOST else HOST
        copied = self.missing(name, place, rows) if reads else []
        for piece in self.pieces(name, rows):
            if writes and states[place][piece] != MODIFIED:
                states[place][piece], states[other][piece] = MODIFIED, INVALID
                self._note(name)
            elif reads and states[place][piece] == INVALID:
                states[place][piece] = states[other][piece] = SHARED
                self._note(name)
        return copied
