"""The task graph of a plan over its launches, and which loops share one.

A launch takes the host longer than a short loop lasts, and a network has hundreds of these: updates of its parameters,
packings of its weights. Those of one function that are ready together are one launch, in all models of a GPU alike. It
waits for all that they wait for. Little overlap is lost: they touch each parameter a few times in a step, where layers
do so for each image.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..plan.dependences import record_graph
from ..plan.model import Plan


@dataclass(frozen=True)
class LaunchGraph:
    """Launches and their dependences."""

    launches: list[tuple[int, ...]]  # numbers of the loops, in an order that a stream may keep; none: a join
    # `before`, `before_next`: for each node its predecessors in the same replay, and those in the replay before
    before: list[list[int]]
    before_next: list[list[int]]


def launch_graph(plan: Plan, functions: Sequence[str | None]) -> LaunchGraph:
    """The closed task graph of a plan over its launches. `functions`: of each loop the CUDA function that can run it
    together with others; None: it is launched alone."""
    graph = record_graph(plan.accesses, closed=True)
    num_loops, joins = len(plan.loops), graph.num_nodes - graph.num_tasks
    node_of = [*plan.task_loop.tolist(), *range(num_loops, num_loops + joins)]
    ends = (column.tolist() for column in graph.edges())
    edges = {(node_of[u], node_of[v], t) for u, v, t in zip(*ends, strict=True)}
    place = _places(_before(edges, num_loops + joins, 0), functions)
    launches: list[tuple[int, ...]] = [()] * (max(place, default=-1) + 1)
    for loop in range(num_loops):
        launches[place[loop]] += (loop,)
    edges = {(place[a], place[b], t) for a, b, t in edges}
    return LaunchGraph(launches, _before(edges, len(launches), 0), _before(edges, len(launches), 1))


def _before(edges: Iterable[tuple[int, int, int]], count: int, token: int) -> list[list[int]]:
    """Predecessors of `count` nodes by edges with this token; within a replay no node is its own."""
    before: list[list[int]] = [[] for _ in range(count)]
    for a, b, t in sorted(edges):
        if t == token and (t or a != b):
            before[b].append(a)
    return before


def _places(before: Sequence[Iterable[int]], functions: Sequence[str | None]) -> list[int]:
    """Return the number of each node's launch; nodes are loops, then joins.

    A loop joins the last launch of its function if that comes after all that the loop waits for, else it begins one. So
    each dependence within a replay leads to a later launch, and none closes a cycle.
    """
    place: list[int] = []
    last: dict[str | None, int] = {}

    def first_after(nodes: Iterable[int]) -> int:
        return max((place[k] + 1 if k < len(functions) else first_after(before[k]) for k in nodes), default=0)

    count = 0
    for loop, function in enumerate(functions):
        if function is None or last.get(function, -1) < first_after(before[loop]):
            last[function], count = count, count + 1
        place.append(last[function])
    return [*place, *range(count, count + len(before) - len(functions))]
