"""Graphs mapped to streams and events: all dependences enforced, none twice."""

from hypothesis import given
from hypothesis import strategies as st
from tasking.random_plans import random_plan

from forktask.cython_src.gpu.launch_graph import LaunchGraph, launch_graph
from forktask.cython_src.lowering.lower import lower
from forktask.cython_src.networks.parts import convolutional_classifier
from forktask.tasking.gpu_streams import map_to_streams

SMALL = convolutional_classifier("small", (2, 8, 32), (5, 4), 3)


@st.composite
def graphs(draw):
    """Random graphs whose nodes are numbered in a topological order, with edges to the next replay."""
    size = draw(st.integers(1, 9))
    nodes = range(size)
    before = [sorted(draw(st.sets(st.integers(0, k - 1), max_size=3))) if k else [] for k in nodes]
    before_next = [sorted(draw(st.sets(st.sampled_from(nodes), max_size=2)) | {k}) for k in nodes]
    return LaunchGraph([(node,) for node in nodes], before, before_next)


def enforced(program, replays, without=None):
    """(node, replay) -> all (node, replay) that are done before, when the program runs `replays` times in a row.

    `without`: a wait that is left out, as (node, other, whether of the replay before).
    """
    last, done = {}, {}
    for replay in range(replays):
        for step in program.steps:
            own = (step.node, replay)
            before = set() if step.stream not in last else done[last[step.stream]] | {last[step.stream]}
            waits = [(n, replay) for n in step.waits if (step.node, n, False) != without]
            waits += [(n, replay - 1) for n in step.waits_next if replay and (step.node, n, True) != without]
            for other in waits:
                before |= done[other] | {other}
            done[own] = before
            last[step.stream] = own
    return done


def missing(graph, done, replays):
    for replay in range(replays):
        for node in range(len(graph.launches)):
            wanted = {(n, replay) for n in graph.before[node]}
            wanted |= {(n, replay - 1) for n in graph.before_next[node] if replay}
            if wanted - done[node, replay]:
                return node, replay
    return None


@given(graphs(), st.integers(1, 4))
def test_dependences_hold_in_every_replay(graph, max_streams):
    """Check that streams and waits imply every edge in four replays in a row, and that no wait can be left out."""
    program = map_to_streams(graph, max_streams)
    assert program.num_streams <= max_streams
    assert sorted(step.node for step in program.steps) == list(range(len(graph.launches)))
    assert missing(graph, enforced(program, 4), 4) is None
    for step in program.steps:
        for other in step.waits:
            # Waits within a replay must hold for the first one too, which has none before.
            assert missing(graph, enforced(program, 1, (step.node, other, False)), 1)
        for other in step.waits_next:
            assert missing(graph, enforced(program, 4, (step.node, other, True)), 4)


@given(st.integers(0, 10**6), st.data())
def test_loops_launched_together_wait_for_none_of_them(seed, data):
    """Check that loops of a launch are of one function, and all that they wait for, directly or not, comes before."""
    plan = random_plan(seed, num_loops=12)
    functions = data.draw(st.lists(st.sampled_from((None, "a", "b")), min_size=12, max_size=12))
    single, graph = launch_graph(plan, [None] * 12), launch_graph(plan, functions)
    place = {loop: k for k, loops in enumerate(graph.launches) for loop in loops}

    def check(node, launch):
        for other in single.before[node]:
            assert place.get(other, -1) < launch
            check(other, launch)

    for loop in range(12):
        check(loop, place[loop])
    for loops in graph.launches:
        assert len(loops) < 2 or {functions[loop] for loop in loops} in ({"a"}, {"b"})


def test_a_network_needs_few_events():
    """Check that a training step uses several streams and fewer waits than it has edges."""
    plan = lower(SMALL, batch=8, layout="nchw", granularity="images=2")
    graph = launch_graph(plan, [None] * len(plan.loops))
    program = map_to_streams(graph, 8)
    assert 1 < program.num_streams <= 8
    edges = sum(len(before) for before in graph.before) + sum(len(before) for before in graph.before_next)
    assert sum(len(step.waits + step.waits_next) for step in program.steps) < edges / 2
    assert missing(graph, enforced(program, 3), 3) is None
    assert not any(step.waits + step.waits_next for step in map_to_streams(graph, 1).steps)
