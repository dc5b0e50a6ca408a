"""Errors, interrupts, sleeping: how runs of the task executors end and what idle threads cost."""

import dataclasses
import time

import numpy as np
import pytest
from interrupts import stop_by_ctrl_c
from tasking.random_plans import random_plan
from tasking.test_executor import EXECUTORS, assert_same, content, serial_content

from forktask.cython_src.binding.bind import BlockFailure, bind
from forktask.cython_src.plan.builder import PlanBuilder
from forktask.cython_src.plan.model import Block, update
from forktask.tasking.executor import TaskIterExecutor
from forktask.tasking.team import StuckGraph

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("hash_kernel")]
ONE_OF_EACH = ["tasks-none", "taskgraph-stealing", "taskiter-stealing", "taskiter-partitioned"]


def columns_plan(width, steps, work, kernel_iteration=(-1, -1)):
    """Independent columns of updates: loop s updates cell i in block i."""
    builder = PlanBuilder("columns")
    builder.buffer("cells", (width,), "uint64", role="statistic")
    builder.buffer("trace", (width * steps, 2), "uint64", role="statistic")
    for step in range(steps):
        blocks = [Block((step * width + i, 0, 0, 0, 0, i, i + 1), (update("cells", (i, i + 1)),)) for i in range(width)]
        builder.loop(
            f"step{step}",
            "test_hash",
            {"cells": "cells", "trace": "trace"},
            blocks,
            attributes={"work": work, "fail_iteration": kernel_iteration[0], "fail_task": kernel_iteration[1]},
        )
    return builder.build()


@pytest.mark.parametrize("name", ONE_OF_EACH)
@pytest.mark.parametrize("num_threads", [2, 4])
def test_ctrl_c_stops_a_run(name, num_threads):
    """Check KeyboardInterrupt with tasks of about a millisecond, and that the executor stays usable."""
    plan = columns_plan(8, 4, 700_000)
    with EXECUTORS[name](num_threads) as executor:
        bound = bind(plan)
        executor.prepare(bound)
        stop_by_ctrl_c(executor)
        for array in bound.arrays.values():
            array.fill(0)
        executor.run(1)
        assert_same(content(bound, executor), serial_content(plan, [(1,)]))


@pytest.mark.parametrize("name", EXECUTORS)
def test_python_kernels_run_on_all_executors(name):
    """Check NumPy targets, whose blocks take the GIL on plain threads, and the exception that becomes the cause."""
    from forktask.cython_src.kernels.interface.kernel_spec import KernelSpec, register
    from forktask.cython_src.kernels.kernel_table import get

    def add_one(operands, attributes, bounds, iteration):
        if iteration == attributes["raise_in"]:
            raise ValueError("as asked")
        operands["out"][bounds["i"]] += 1

    try:
        get("test_add_one")
    except ValueError:
        register(
            KernelSpec(name="test_add_one", operands=("out",), integers=("raise_in",), bounds=("i",), reference=add_one)
        )
    builder = PlanBuilder("python")
    builder.buffer("out", (6,), role="statistic")
    for loop in range(3):
        builder.loop(
            f"loop{loop}",
            "test_add_one",
            {"out": "out"},
            [Block((i,), (update("out", (i, i + 1)),)) for i in range(6)],
            attributes={"raise_in": 50},
        )
    bound = bind(builder.build(), target="numpy")
    with EXECUTORS[name](3) as executor:
        executor.prepare(bound)
        executor.run(20)
        np.testing.assert_array_equal(bound.arrays["out"], 60)
        with pytest.raises(BlockFailure, match="in iteration 50") as failure:
            executor.run(100)
        assert isinstance(failure.value.__cause__, ValueError)


@pytest.mark.parametrize("placement", ["stealing"])
def test_the_watchdog_reports_a_stuck_graph(placement):
    """Check that a counter that never comes to zero ends in an error with the state, and that the executor survives."""
    plan = columns_plan(4, 3, 0)
    with TaskIterExecutor(2, placement=placement, watchdog_s=0.2) as executor:
        bound = bind(plan)
        graph = executor.record(bound)
        wrong = graph.num_intra.copy()
        wrong[6] += 1
        executor.prepare(bound, dataclasses.replace(graph, num_intra=wrong))
        with pytest.raises(StuckGraph, match=r"step1\[2\]: finished 0 iterations, waits for 1 of"):
            executor.run(5)
        executor.prepare(bound, graph)
        executor.run(5)


@pytest.mark.parametrize("placement", ["stealing", "partitioned"])
def test_the_watchdog_leaves_long_tasks_alone(placement):
    """Check that a task that takes longer than the watchdog waits is no stuck graph."""
    with TaskIterExecutor(2, watchdog_s=0.05, placement=placement) as executor:
        executor.prepare(bind(columns_plan(1, 1, 200_000_000)))
        executor.run(1)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_sleepers_are_woken(name):
    """Check a graph in which all threads but one sleep again and again, without spinning: each one is woken."""
    plan = columns_plan(9, 2, 3000)
    chain = PlanBuilder("chain")
    chain.buffer("cells", (9,), "uint64", role="statistic")
    chain.buffer("trace", (200, 2), "uint64", role="statistic")
    task = 0
    for step in range(16):
        blocks = []
        for i in range(9 if step % 2 else 1):
            box = (i, i + 1) if step % 2 else (0, 9)
            blocks.append(Block((task, 0, 0, 0, 0, *box), (update("cells", box),)))
            task += 1
        chain.loop(
            f"step{step}",
            "test_hash",
            {"cells": "cells", "trace": "trace"},
            blocks,
            attributes={"work": 500 if step % 2 else 20_000, "fail_iteration": -1, "fail_task": -1},
        )
    with EXECUTORS[name](16, spin_ns=0, watchdog_s=20) as executor:
        for tested, iterations in ((plan, 20), (chain.build(), 30)):
            bound = bind(tested)
            executor.prepare(bound)
            executor.run(iterations)
            assert_same(content(bound, executor), serial_content(tested, [(iterations,)]))


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_idle_threads_use_no_cpu(name):
    """Check CPU time: threads without work, within a run and between runs, sleep."""
    plan = columns_plan(
        1, 4, 10_000_000
    )  # a chain of tasks, each some 10 ms and more: nothing for three of four threads
    serial = bind(plan)
    with EXECUTORS[name](1) as executor:
        executor.prepare(serial)
        start = time.process_time()
        executor.run(4)
        alone = time.process_time() - start
    with EXECUTORS[name](4) as executor:
        executor.prepare(bind(plan))
        start = time.process_time()
        executor.run(4)
        together = time.process_time() - start
        time.sleep(0.01)
        start, began = time.process_time(), time.monotonic()
        time.sleep(0.2)
        assert time.process_time() - start < 0.02 * (time.monotonic() - began)
    assert together < 1.5 * alone


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_events_hold_every_block_once(name):
    """Check the event log: each task once an iteration, by more than one worker, none before its predecessor's end."""
    plan = columns_plan(6, 3, 30_000)
    with EXECUTORS[name](2, event_capacity=1000) as executor:
        executor.prepare(bind(plan))
        executor.run(5)
        events = executor.workers.events()
        assert sorted(zip(events["iteration"].tolist(), events["task"].tolist(), strict=True)) == [
            (iteration, task) for iteration in range(5) for task in range(plan.num_tasks)
        ]
        last = {}
        for event in events:
            column = int(event["task"]) % 6
            assert last.get(column, 0) <= event["start_ns"]
            last[column] = event["stop_ns"]


@pytest.mark.parametrize("name", ["taskgraph-stealing", "taskgraph-partitioned"])
def test_iterations_of_a_taskgraph_do_not_overlap(name):
    """Check the barrier: every block of an iteration ends before any of the next starts; taskiter does overlap."""
    plan = columns_plan(3, 2, 20_000)
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
