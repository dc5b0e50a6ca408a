"""Cyclic graphs with barriers against the flat graph of N registered iterations; programs."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tasking.random_plans import random_plan, shared_plan

from forktask.cython_src.plan.barriers import BARRIERS, barrier_after, record_with_barriers
from forktask.cython_src.plan.dependences import record_graph

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("hash_kernel")]


def repeated(table, times):
    """The access table of a plan registered `times` times in a row."""
    step = np.diff(table.task_offsets)
    return dataclasses.replace(
        table,
        num_tasks=table.num_tasks * times,
        task_offsets=np.concatenate([[0], np.cumsum(np.tile(step, times))]).astype(np.int32),
        access_kind=np.tile(table.access_kind, times),
        access_list=np.tile(table.access_list, times),
        access_buffer=np.tile(table.access_buffer, times),
    )


def order_of(num_nodes, source, target, tasks):
    """Boolean matrix: does task a come before task b? Paths may lead through joins."""
    reach = np.zeros((num_nodes, num_nodes), bool)
    reach[source, target] = True
    while True:
        more = reach | (reach.astype(np.float32) @ reach.astype(np.float32) > 0)
        if (more == reach).all():
            return reach[np.ix_(tasks, tasks)]
        reach = more


def unrolled_order(graph, times, num_tasks=None):
    """Order of all tasks, or the first `num_tasks` nodes, of `times` iterations of a closed graph."""
    source, target, token = (array.astype(np.int64) for array in graph.edges())
    n = graph.num_nodes
    sources, targets = [], []
    for k in range(times):
        inside = k + token < times
        sources.append(source[inside] + k * n)
        targets.append(target[inside] + (k + token[inside]) * n)
    tasks = np.concatenate([np.arange(num_tasks or graph.num_tasks) + k * n for k in range(times)])
    return order_of(n * times, np.concatenate(sources), np.concatenate(targets), tasks)


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32))
def test_every_edge_lies_on_a_cycle_with_one_token(seed):
    """Check what re-arming relies on: after p -> v, the next p comes after this v. With a barrier, too."""
    plan = random_plan(seed, num_loops=1 + seed % 4, max_blocks=5, phases=("forward", "backward"))
    for barrier in BARRIERS:
        graph = record_with_barriers(plan, barrier)
        source, target, token = graph.edges()
        n = graph.num_nodes
        reach = unrolled_order(graph, 3, n)
        for p, v, t in zip(source.tolist(), target.tolist(), token.tolist(), strict=True):
            assert reach[v + t * n, p + n] or (t == 1 and p == v)
        assert (np.bincount(target, minlength=n) == graph.num_intra + graph.num_cross).all()


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32), shared=st.booleans(), barrier=st.sampled_from(BARRIERS[:-1]))
def test_barriers_add_the_order_of_segments_and_nothing_else(seed, shared, barrier):
    """Check that the order is that of the dependences and of the segments between barriers, for N = 1 to 3."""
    phases = ("forward", "backward")
    plan = shared_plan(seed) if shared else random_plan(seed, num_loops=1 + seed % 4, max_blocks=5, phases=phases)
    graph = record_with_barriers(plan, barrier)
    segment = np.cumsum([0, *barrier_after(plan, barrier)])[:-1][plan.task_loop]
    for times in range(1, 4):
        flat = record_graph(repeated(plan.accesses, times), closed=False)
        source, target, _ = flat.edges()
        number = np.concatenate([segment + k * (segment[-1] + 1) for k in range(times)])
        expected = order_of(flat.num_nodes, source, target, np.arange(flat.num_tasks)) | (number[:, None] < number)
        np.testing.assert_array_equal(unrolled_order(graph, times), expected)
