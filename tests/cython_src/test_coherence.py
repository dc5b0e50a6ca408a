"""Copies on host and device: nobody ever reads an old one, and nothing is copied without need."""

from forktask.cython_src.coherence import DEVICE, HOST, INVALID, MODIFIED, PLACES, SHARED, Coherence
from hypothesis import given
from hypothesis import strategies as st

USES = st.tuples(st.sampled_from("ab"), st.sampled_from(PLACES), st.booleans(), st.booleans())


@given(st.lists(USES, max_size=30))
def test_every_use_sees_the_last_write(uses):
    """Check random uses against two real memories with version numbers; a copy is made only of a copy that is out of date."""
    coherence = Coherence("ab")
    memory = {place: {"a": 0, "b": 0} for place in PLACES}
    truth = {"a": 0, "b": 0}
    for version, (name, place, reads, writes) in enumerate(uses, 1):
        source = coherence.acquire(name, place, reads, writes)
        if source is not None:
            assert reads and source != place and memory[place][name] != truth[name]
            memory[place][name] = memory[source][name]
        if reads:
            assert memory[place][name] == truth[name]
        if writes:
            memory[place][name] = truth[name] = version
        states = {p: coherence.state(name, p) for p in PLACES}
        assert sorted(states.values()) in ([SHARED, SHARED], [INVALID, MODIFIED])
        for p in PLACES:
            assert (memory[p][name] == truth[name]) >= (states[p] != INVALID)


def test_a_buffer_is_added_once():
    """Check that a known buffer keeps its state, and that a new one may belong to one place."""
    coherence = Coherence()
    coherence.add("x", owner=HOST)
    assert (coherence.state("x", HOST), coherence.state("x", DEVICE)) == (MODIFIED, INVALID)
    assert coherence.acquire("x", DEVICE, reads=True, writes=False) == HOST
    coherence.add("x", owner=HOST)
    assert coherence.state("x", DEVICE) == SHARED
