"""Barriers that fork-join needs, and places of blocks, against their definitions."""

import numpy as np
import pytest
from tasking.random_plans import cells_plan, random_plan

from forktask.cython_src.plan.barriers import needed_barriers, order_by_place
from forktask.cython_src.plan.dependences import record_graph


def test_a_thread_needs_no_barrier_for_its_own_blocks():
    """Check loops of two blocks, the third of which crosses the threads of the second."""
    whole = [(0, 1), (1, 2)]
    plan = cells_plan(whole, whole, [(1, 2), (0, 1)], cost=[1, 1, 1])
    assert needed_barriers(plan, np.array([0, 1, 0, 1, 0, 1])).tolist() == [0, 1, 1]
    assert needed_barriers(plan, np.array([0, 1, 0, 1, 1, 0])).tolist() == [0, 0, 1]


@pytest.mark.parametrize("seed", range(40))
def test_barriers_stand_where_threads_depend_on_each_other(seed):
    """Check random plans: blocks of different threads that depend on each other are separated, and each barrier but the
    last separates some of the loop behind it from blocks since the one before."""
    plan = random_plan(seed)
    thread_of = np.random.default_rng(seed).integers(0, 3, plan.num_tasks)
    after = needed_barriers(plan, thread_of)
    segment = np.concatenate([[0], np.cumsum(after[:-1], dtype=int)])
    graph = record_graph(plan.accesses, closed=False)
    edges = [*zip(*(each.tolist() for each in graph.edges()[:2]), strict=True)]
    behind_join = {node: [target for source, target in edges if source == node] for node in range(graph.num_nodes)}
    crossed = set()
    for source, target in edges:
        for task in [target] if target < plan.num_tasks else behind_join[target]:
            if source < plan.num_tasks and thread_of[source] != thread_of[task]:
                first, last = (segment[plan.task_loop[t]] for t in (source, task))
                assert first < last
                crossed |= {plan.task_loop[task]} if first + 1 == last else set()
    assert after[-1]
    assert {number + 1 for number in np.flatnonzero(after[:-1])} <= crossed


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
