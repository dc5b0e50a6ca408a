"""Copies on host and device: nobody ever reads an old one, and nothing is copied without need."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forktask.cython_src.gpu.coherence import DEVICE, HOST, INVALID, MODIFIED, PLACES, SHARED, Coherence

CUTS = (0, 2, 3, 7)
RANGES = [(a, b) for i, a in enumerate(CUTS) for b in CUTS[i + 1 :]]
USES = st.tuples(st.sampled_from("ab"), st.sampled_from(PLACES), st.booleans(), st.booleans(), st.sampled_from(RANGES))


@given(st.lists(USES, max_size=30))
def test_every_use_sees_the_last_write(uses):
    """Check random uses of parts against two real memories with version numbers; only what is out of date is copied."""
    coherence = Coherence()
    for name in "ab":
        coherence.add(name, cuts=CUTS)
    memory = {place: {name: [0] * 7 for name in "ab"} for place in PLACES}
    truth = {name: [0] * 7 for name in "ab"}
    for version, (name, place, reads, writes, rows) in enumerate(uses, 1):
        other = PLACES[1 - PLACES.index(place)]
        whole = slice(*rows)
        for start, stop in coherence.acquire(name, place, reads, writes, rows):
            assert reads and rows[0] <= start < stop <= rows[1]
            for row in range(start, stop):
                assert memory[place][name][row] != truth[name][row]
                memory[place][name][row] = memory[other][name][row]
        if reads:
            assert memory[place][name][whole] == truth[name][whole]
        if writes:
            memory[place][name][whole] = truth[name][whole] = [version] * (rows[1] - rows[0])
        for piece in coherence.pieces(name):
            states = {p: coherence.state(name, p, piece) for p in PLACES}
            assert sorted(states.values()) in ([SHARED, SHARED], [INVALID, MODIFIED])
            for p in PLACES:
                for row in range(*CUTS[piece : piece + 2]):
                    assert (memory[p][name][row] == truth[name][row]) >= (states[p] != INVALID)


def test_a_known_buffer_is_cut_further():
    """Check that pieces keep their states when another plan cuts them, and that rows must lie between cuts."""
    coherence = Coherence()
    coherence.add("x", cuts=(0, 4, 8))
    assert coherence.acquire("x", DEVICE, reads=False, writes=True, rows=(4, 8)) == []
    coherence.add("x", cuts=(0, 2, 6, 8))
    assert [coherence.state("x", HOST, piece) for piece in coherence.pieces("x")] == [SHARED, SHARED, INVALID, INVALID]
    assert coherence.missing("x", HOST) == [(4, 8)] and coherence.missing("x", HOST, (2, 6)) == [(4, 6)]
    assert coherence.acquire("x", HOST, reads=True, writes=False, rows=(6, 8)) == [(6, 8)]
    assert coherence.missing("x", HOST) == [(4, 6)]
    with pytest.raises(AssertionError, match="do not begin and end at one of its cuts"):
        coherence.pieces("x", (1, 2))
    with pytest.raises(AssertionError, match="cannot be cut at 9"):
        coherence.add("x", cuts=(0, 9))
