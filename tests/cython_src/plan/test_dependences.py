"""The graph against a brute-force oracle on random plans."""

import itertools
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forktask.cython_src.binding.checks import span_in_tasks
from forktask.cython_src.plan.builder import PlanBuilder, ranges
from forktask.cython_src.plan.cells import commutative_locks
from forktask.cython_src.plan.dependences import record_graph
from forktask.cython_src.plan.model import COMMUTATIVE, CONCURRENT, READ, UPDATE, WRITE, AccessTable, Block, read, write


def table(tasks, num_cells):
    """Access table of tasks given as lists of (kind, cells, buffer)."""
    lists = sorted({tuple(sorted(set(cells))) for task in tasks for _, cells, _ in task})
    number = {cells: i for i, cells in enumerate(lists)}
    flat = [access for task in tasks for access in task]
    return AccessTable(
        num_tasks=len(tasks),
        num_cells=num_cells,
        task_offsets=np.cumsum([0, *(len(task) for task in tasks)]).astype(np.int32),
        access_kind=np.array([kind for kind, _, _ in flat], np.uint8),
        access_list=np.array([number[tuple(sorted(set(cells)))] for _, cells, _ in flat], np.int32),
        list_offsets=np.cumsum([0, *(len(cells) for cells in lists)]).astype(np.int32),
        list_cells=np.array([c for cells in lists for c in cells], np.int32),
        access_buffer=np.array([buffer for _, _, buffer in flat], np.int32),
    )


@st.composite
def random_tables(draw):
    num_cells = draw(st.integers(1, 5))
    cells = st.lists(st.integers(0, num_cells - 1), min_size=1, max_size=3)
    kinds = draw(st.sampled_from([[READ, READ, WRITE, UPDATE], [READ, WRITE, UPDATE, CONCURRENT, COMMUTATIVE]]))
    access = st.tuples(st.sampled_from(kinds), cells, st.integers(0, 1))
    tasks = []
    for accesses in draw(st.lists(st.lists(access, min_size=0, max_size=3), min_size=1, max_size=8)):
        # As the builder demands: what may run in any order meets no other access of its task.
        kept = []
        for new in accesses:
            mixed = [k for k, c, _ in kept if set(c) & set(new[1]) and max(k, new[0]) >= CONCURRENT]
            if not mixed:
                kept.append(new)
        tasks.append(kept)
    return table(tasks, num_cells), tasks


def flat_reachability(graph, num_replays):
    """reach[(k, u), (l, v)] over `num_replays` copies of a graph, tasks only; joins are passed through."""
    n = graph.num_nodes
    source, target, token = graph.edges()
    reach = np.zeros((num_replays * n, num_replays * n), dtype=bool)
    for k in range(num_replays):
        for s, t, d in zip(source.tolist(), target.tolist(), token.tolist(), strict=True):
            if k + d < num_replays:
                reach[k * n + s, (k + d) * n + t] = True
    reach = closure(reach)
    keep = [k * n + t for k in range(num_replays) for t in range(graph.num_tasks)]
    return reach[np.ix_(keep, keep)]


def closure(reach):
    reach = reach.copy()
    for i in range(len(reach)):
        reach |= reach[:, i : i + 1] & reach[i : i + 1, :]
    return reach


def conflict(a, b):
    """Whether two tasks must keep their order: one writes what the other touches, and not both in any order.

    Buffers that share memory (equal cells, other buffer) never count as one group.
    """
    return any(
        (x[0] != READ or y[0] != READ) and not (x[0] == y[0] >= CONCURRENT and x[2] == y[2]) and set(x[1]) & set(y[1])
        for x in a
        for y in b
    )


def oracle(tasks, num_replays, one_at_a_time):
    """Order that conflicts demand: registered one after the other, two tasks that conflict stay in that order."""
    flat = list(tasks) * num_replays
    reach = np.zeros((len(flat), len(flat)), dtype=bool)
    for i, j in itertools.combinations(range(len(flat)), 2):
        reach[i, j] = conflict(flat[i], flat[j]) or (i + len(tasks) == j and one_at_a_time[i % len(tasks)])
    return closure(reach)


def follow_themselves(graph):
    """Return which tasks wait for nothing but themselves in the iteration before."""
    source, target, _ = graph.edges()
    alone = np.bincount(target, minlength=graph.num_nodes) == 1
    return np.isin(np.arange(graph.num_tasks), source[(source == target) & alone[target]])


@settings(max_examples=250)
@given(random_tables(), st.integers(1, 4))
def test_closed_graph_is_the_flat_graph_of_n_iterations(case, num_replays):
    """Check that the cyclic graph orders what N registered iterations would, and nothing else."""
    accesses, tasks = case
    graph = record_graph(accesses)
    np.testing.assert_array_equal(
        flat_reachability(graph, num_replays), oracle(tasks, num_replays, follow_themselves(graph))
    )


@settings(max_examples=100)
@given(random_tables())
def test_open_graph_is_one_iteration(case):
    """Check that a graph that is not closed orders one iteration, and has the closed graph's order within it."""
    accesses, tasks = case
    graph = record_graph(accesses, closed=False)
    assert not graph.num_cross.any()
    expected = oracle(tasks, 1, [False] * len(tasks))
    np.testing.assert_array_equal(flat_reachability(graph, 1), expected)
    np.testing.assert_array_equal(flat_reachability(record_graph(accesses), 1), expected)


@pytest.mark.parametrize(
    ("tasks", "closed", "edges"),
    [
        (
            [[(WRITE, [0], 0)], [(READ, [0], 0)], [(READ, [0], 0)], [(UPDATE, [0], 0)]],
            True,
            "0 1 0, 0 2 0, 1 3 0, 2 3 0, 3 0 1",
        ),
        (
            [[(WRITE, [0], 0)], [(READ, [0], 0)], [(WRITE, [0], 1)], [(READ, [0], 1)]],
            True,
            "0 1 0, 1 2 0, 2 3 0, 3 0 1",
        ),
        ([[(WRITE, [0, 1], 0)], [(WRITE, [1], 1), (READ, [0], 0)]], False, "0 1 0"),
        ([[], [(READ, [0], 0)]], True, "0 0 1, 1 1 1"),
    ],
    ids=["small", "sharing", "two reasons", "no conflict"],
)
def test_edges_of_small_graphs(tasks, closed, edges):
    """Check tokens by hand: of a write, two reads and an update; of memory that two buffers share; of an edge
    with several reasons; and of tasks without conflicts, which still run once at a time."""
    graph = record_graph(table(tasks, 2), closed=closed)
    assert {f"{u} {v} {token}" for u, v, token in zip(*map(list, graph.edges()), strict=True)} == {*edges.split(", ")}


def crossing_plan(rows):
    """Two blockings that meet: every task of the second loop reads all that the first wrote."""
    builder = PlanBuilder("crossing")
    builder.buffer("x", (rows, rows), role="activation")
    builder.buffer("y", (rows, rows), role="activation")
    cut = ranges(rows, 1)
    builder.loop("rows", "k", {"x": "x"}, [Block(r, (write("x", r),)) for r in cut])
    builder.loop("columns", "k", {"x": "x", "y": "y"}, [Block(r, (read("x"), write("y", (0, rows), r))) for r in cut])
    return builder.build()


def test_joins_keep_edges_linear():
    """Check that n writers met by n readers of everything make edges of order n, one join each way."""
    for n in (8, 64):
        graph = record_graph(crossing_plan(n).accesses)
        assert graph.num_joins == 2
        assert graph.num_edges == 4 * n + n  # writers, readers; readers, next writers; y's writer follows itself
        assert span_in_tasks(graph, 3) == 6


def layered_plan(width, steps):
    builder = PlanBuilder("layers")
    builder.buffer("a", (width,), role="activation", carried=True)
    builder.buffer("b", (width,), role="activation", carried=True)
    for step in range(steps):
        x, y = "ab" if step % 2 else "ba"
        builder.loop(
            f"step {step}",
            "k",
            {"x": x, "y": y},
            [Block((), (read(x, (max(0, i - 1), min(width, i + 2))), write(y, (i, i + 1)))) for i in range(width)],
        )
    return builder.build()


def test_recording_cost_per_task_is_flat():
    """Check that recording a stencil of 20 times the tasks costs at most three times as much a task."""
    seconds = {}
    for steps in (100, 2000):
        plan = layered_plan(16, steps)
        best = np.inf
        for _ in range(3):
            start = time.process_time()
            record_graph(plan.accesses)
            best = min(best, time.process_time() - start)
        seconds[steps] = best / plan.num_tasks
    assert seconds[2000] < 3 * seconds[100], seconds


def test_locks_keep_commutative_regions_apart():
    """Check that commutative accesses share a lock exactly if their regions are connected, and others need none."""
    tasks = [
        [(COMMUTATIVE, [0, 1], 0)],
        [(COMMUTATIVE, [1, 2], 0), (COMMUTATIVE, [4], 0)],
        [(COMMUTATIVE, [3], 0)],
        [(CONCURRENT, [5], 0)],
        [(UPDATE, [0], 0)],
    ]
    num_locks, offsets, locks = commutative_locks(table(tasks, 6))
    assert num_locks == 3
    sets = [set(locks[a:b].tolist()) for a, b in itertools.pairwise(offsets.tolist())]
    assert [len(s) for s in sets] == [1, 2, 1, 0, 0]
    assert sets[0] < sets[1] and not sets[2] & sets[1]
    assert all((np.diff(locks[a:b]) > 0).all() for a, b in itertools.pairwise(offsets.tolist()))
