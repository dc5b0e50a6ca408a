"""Copies of a plan's buffers in the memories of host and device, and which of them hold the truth.

An MSI protocol over whole buffers, run by the program that launches the work instead of by hardware: a copy is modified
(the only one that is right), shared (as right as the other) or invalid.
"""

from __future__ import annotations

from collections.abc import Iterable

HOST, DEVICE = "host", "device"
PLACES = (HOST, DEVICE)
INVALID, SHARED, MODIFIED = "I", "S", "M"


class Coherence:
    """States of the copies of some buffers.

    Parameters
    ----------
    names : iterable of str
        All buffers, shared at the start.
    """

    def __init__(self, names: Iterable[str] = ()):
        self._state: dict[str, dict[str, str]] = {}
        for name in names:
            self.add(name)

    def add(self, name: str, owner: str | None = None) -> None:
        """A new buffer: shared, or modified at `owner`; nothing happens if it is known."""
        state = {place: SHARED if owner is None else MODIFIED if place == owner else INVALID for place in PLACES}
        self._state.setdefault(name, state)

    def state(self, name: str, place: str) -> str:
        return self._state[name][place]

    def acquire(self, name: str, place: str, reads: bool, writes: bool) -> str | None:
        """Get a copy ready for use at `place` and note what the use makes of it.

        Parameters
        ----------
        reads : bool
            Some of the old content is needed: read, or only part of it overwritten.
        writes : bool

        Returns
        -------
        str or None
            The place to copy the buffer from before it is used, None where no copy is needed.
        """
        states = self._state[name]
        other = DEVICE if place == HOST else HOST
        source = other if reads and states[place] == INVALID else None
        if writes:
            states[place], states[other] = MODIFIED, INVALID
        elif source is not None:
            states[place] = states[other] = SHARED
        return source
