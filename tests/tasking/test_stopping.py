"""Errors, interrupts, sleeping: how runs of the task executors end and what idle threads cost."""

import dataclasses

import numpy as np
import pytest
from tasking.random_plans import cells_plan, columns, random_plan
from tasking.test_executor import EXECUTORS, assert_same, content, serial_content

from forktask.cython_src.binding.bind import BlockFailure, bind
from forktask.tasking.executor import TaskIterExecutor
from forktask.tasking.runtimes import StuckGraph

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("hash_kernel")]
ONE_OF_EACH = ["tasks-none", "taskgraph-stealing", "taskiter-stealing", "taskiter-partitioned"]


def test_the_watchdog_reports_a_stuck_graph():
    """Check that a counter that never comes to zero ends in an error with the state, and that the executor survives."""
    plan = columns(4, 3)
    with TaskIterExecutor(2, placement="stealing", watchdog_s=0.2) as executor:
        bound = bind(plan)
        graph = executor.record(bound)
        wrong = graph.num_intra.copy()
        wrong[6] += 1
        executor.prepare(bound, dataclasses.replace(graph, num_intra=wrong))
        with pytest.raises(StuckGraph, match=r"loop1\[2\]: finished 0 iterations, waits for 1 of"):
            executor.run(5)
        executor.prepare(bound, graph)
        executor.run(5)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_sleepers_are_woken(name):
    """Check a graph in which all threads but one sleep again and again, without spinning: each one is woken."""
    plan = columns(9, 2, work=3000)
    chain = cells_plan(*[[(0, 9)], [(i, i + 1) for i in range(9)]] * 8, work=[20_000, 500] * 8)
    with EXECUTORS[name](16, spin_ns=0, watchdog_s=20) as executor:
        for tested, iterations in ((plan, 20), (chain, 30)):
            bound = bind(tested)
            executor.prepare(bound)
            executor.run(iterations)
            assert_same(content(bound, executor), serial_content(tested, [(iterations,)]))


@pytest.mark.parametrize("name", ["taskgraph-stealing", "taskgraph-partitioned"])
def test_iterations_of_a_taskgraph_do_not_overlap(name):
    """Check the barrier: every block of an iteration ends before any of the next starts; taskiter does overlap."""
    plan = columns(3, 2, work=20_000)
    with EXECUTORS[name](2, event_capacity=1000) as executor:
        executor.prepare(bind(plan))
        executor.run(10)
        events = executor.workers.events()
    for iteration in range(9):
        assert (
            events["stop_ns"][events["iteration"] == iteration].max()
            <= events["start_ns"][events["iteration"] == iteration + 1].min()
        )


def test_random_failures_leave_executors_usable():
    """Check failures at random places, then a right run."""
    for seed in range(20):
        broken = random_plan(seed, fail=(seed % 4, seed % 3))
        for name in ONE_OF_EACH:
            with EXECUTORS[name](3) as executor:
                executor.prepare(bind(broken))
                if broken.num_tasks > seed % 3:
                    with pytest.raises(BlockFailure):
                        executor.run(10)
                good = random_plan(seed + 100)
                bound = bind(good)
                executor.prepare(bound)
                executor.run(7)
                assert_same(content(bound, executor), serial_content(good, [(7,)]))


@pytest.mark.parametrize("target", ["cpu", "float64"])
def test_a_loss_that_is_not_finite_stops_when_asked_to_look(target):
    """Check the iteration of the failure, that unasked nothing happens, and that the executor stays usable."""
    from forktask.cython_src.lowering.lower import initialise, lower

    for check in (True, False):
        bound = bind(lower("cifar10_cnn", batch=8, check_finite=check, num_learning_rates=4), target=target)
        initialise(bound, 1)
        bound.arrays["dataset.images"][...] = np.random.default_rng(1).random(bound.arrays["dataset.images"].shape)
        bound.arrays["learning_rates"][:] = 0, 0, np.nan, 0  # the update of iteration 2 spoils the loss of iteration 3
        with TaskIterExecutor(2) as executor:
            executor.prepare(bound)
            if check:
                with pytest.raises(BlockFailure, match=r"^loss\[0\] failed in iteration 3 with status 4"):
                    executor.run(20)
                initialise(bound, 1)
                bound.arrays["learning_rates"][:] = 0
            executor.run(5)
        assert np.isfinite(bound.arrays["losses"][:5]).all() == check
