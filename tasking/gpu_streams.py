"""Which stream runs which launch, and the events between streams: a task graph mapped to CUDA's two means of ordering.

Nodes are launches, and the graph's joins, which launch nothing. Nodes are given to streams in an order
that respects the graph; what a stream runs one after the other needs no event. For everything else vector clocks
decide: a node waits for another's event only if nothing it already waits for implies that.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..cython_src.gpu.launch_graph import LaunchGraph


@dataclass(frozen=True)
class Step:
    """One node in its stream."""

    node: int
    stream: int
    waits: list[int]  # nodes of this replay whose events come first
    waits_next: list[int]  # nodes of the replay before whose events come first


@dataclass(frozen=True)
class StreamProgram:
    """The steps of the host in every replay."""

    num_streams: int
    steps: list[Step]  # in the order in which they are given to the device
    recorded: frozenset[int]  # nodes after which an event is recorded, because someone waits for it


def _issue_order(graph: LaunchGraph) -> list[int]:
    """A topological order of the edges within a replay: plan order for launches, joins as soon as they can be."""
    count = [len(before) for before in graph.before]
    after: list[list[int]] = [[] for _ in count]
    for node, before in enumerate(graph.before):
        for other in before:
            after[other].append(node)
    # Joins come first: they cost nothing and free what waits for them.
    key = [(bool(loops), number) for number, loops in enumerate(graph.launches)]
    heap = [(key[node], node) for node in range(len(count)) if count[node] == 0]
    heapq.heapify(heap)
    order = []
    while heap:
        _, node = heapq.heappop(heap)
        order.append(node)
        for other in after[node]:
            count[other] -= 1
            if count[other] == 0:
                heapq.heappush(heap, (key[other], other))
    if len(order) != len(count):
        raise AssertionError("the launch graph has a cycle within a replay")
    return order


def _assign_streams(graph: LaunchGraph, order: Sequence[int], max_streams: int) -> list[int]:
    """Stream of each node: that of a predecessor that is still its stream's last; else one whose last node lies before
    the node anyway; else a new one; else the one that was used longest ago."""
    reach = [0] * len(order)  # bit sets of ancestors
    stream_of = [0] * len(order)
    tails: list[int] = []
    used: list[int] = []
    for time, node in enumerate(order):
        for other in graph.before[node]:
            reach[node] |= reach[other] | 1 << other
        own = [s for s in range(len(tails)) if tails[s] in graph.before[node]]
        implied = [s for s in range(len(tails)) if reach[node] >> tails[s] & 1]
        if own:
            stream = max(own, key=lambda s: used[s])
        elif implied:
            stream = max(implied, key=lambda s: used[s])
        elif len(tails) < max_streams:
            stream = len(tails)
            tails.append(node)
            used.append(time)
        else:
            stream = min(range(len(tails)), key=lambda s: used[s])
        tails[stream], used[stream], stream_of[node] = node, time, stream
    return stream_of


def map_to_streams(graph: LaunchGraph, max_streams: int = 8) -> StreamProgram:
    """Streams and events for a graph.

    The waits within a replay do not depend on the replay before, so that what the clocks know of one replay holds for
    all later ones, shifted; waits for the replay before are those that are still missing when a second replay follows.

    `max_streams`: at least 1.
    """
    order = _issue_order(graph)
    stream_of = _assign_streams(graph, order, max_streams)
    num_streams = max(stream_of, default=0) + 1
    count = [stream_of.count(s) for s in range(num_streams)]
    place = [0] * len(order)  # of a node in its stream, from 1 on
    done = [0] * num_streams
    for node in order:
        done[stream_of[node]] += 1
        place[node] = done[stream_of[node]]
    rank = {node: k for k, node in enumerate(order)}

    def wait_for(others: Iterable[int], clock: np.ndarray, after: Mapping[int, np.ndarray]):
        """Return those of some nodes that a stream with this clock must wait for, the last first, and its clock then;
        `after` has the clock after each node."""
        missing = []
        for other in sorted(others, key=rank.__getitem__, reverse=True):
            if clock[stream_of[other]] < place[other]:
                missing.append(other)
                clock = np.maximum(clock, after[other])
        return missing, clock

    # clocks[s][r]: how many nodes of stream r are known to be done when stream s goes on.
    clocks = np.zeros((num_streams, num_streams), np.int64)
    waits: list[list[int]] = [[] for _ in order]
    waits_next: list[list[int]] = [[] for _ in order]
    before: dict[int, np.ndarray] = {}  # clocks after the nodes of the replay before
    for replay in (0, 1):
        after: dict[int, np.ndarray] = {}
        for node in order:
            stream = stream_of[node]
            clock = clocks[stream].copy()
            if replay == 0:
                waits[node], clock = wait_for(graph.before[node], clock, after)
            else:
                clock = np.maximum.reduce([clock, *(after[other] for other in waits[node])])
                waits_next[node], clock = wait_for(graph.before_next[node], clock, before)
            clock[stream] = place[node] + replay * count[stream]
            clocks[stream] = after[node] = clock
        before = after
    steps = [Step(node, stream_of[node], waits[node], waits_next[node]) for node in order]
    return StreamProgram(num_streams, steps, frozenset(k for step in steps for k in (*step.waits, *step.waits_next)))
