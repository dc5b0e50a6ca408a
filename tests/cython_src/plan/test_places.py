"""Places of blocks against their definition."""

import numpy as np
import pytest
from tasking.random_plans import cells_plan, random_plan

from forktask.cython_src.plan.dependences import record_graph
from forktask.cython_src.plan.places import order_by_place


def test_blocks_come_where_their_data_do():
    """Check halves of rows behind rows, and a loop without predecessors, which stays."""
    rows = [(2 * row, 2 * row + 2) for row in range(4)]
    halves = [(2 * row + half, 2 * row + half + 1) for half in range(2) for row in range(4)]
    assert order_by_place(cells_plan(rows, halves, cost=[1, 1])).tolist() == [0, 1, 2, 3, 4, 8, 5, 9, 6, 10, 7, 11]
    assert order_by_place(cells_plan(rows, [(8, 9), *halves], cost=[1, 1])).tolist() == [*range(13)]


@pytest.mark.parametrize("seed", range(40))
def test_places_are_means_over_predecessors(seed):
    """Check random plans against the definition, in which a join stands for all tasks before it."""
    plan = random_plan(seed)
    graph = record_graph(plan.accesses, closed=False)
    before = {node: [] for node in range(graph.num_nodes)}
    for source, target in zip(*(each.tolist() for each in graph.edges()[:2]), strict=True):
        before[target].append(source)

    def tasks_before(node):
        return [t for v in before[node] for t in ([v] if v < plan.num_tasks else tasks_before(v))]

    place, expected = {}, []
    for loop in plan.loops:
        tasks = range(loop.first_task, loop.first_task + loop.num_blocks)
        found = {t: [place[v] for v in tasks_before(t)] for t in tasks}
        keys = {t: np.float32(np.mean(found[t])) if found[t] else -1 for t in tasks}
        if min(keys.values()) < 0 or max(keys.values()) - min(keys.values()) < 1e-3:
            keys = {t: t for t in tasks}
        ordered = sorted(tasks, key=lambda t: (keys[t], t))
        for t in tasks:
            equal = [number for number, other in enumerate(ordered) if keys[other] == keys[t]]
            place[t] = (np.mean(equal) + 0.5) / loop.num_blocks
        expected += ordered
    assert order_by_place(plan).tolist() == expected
