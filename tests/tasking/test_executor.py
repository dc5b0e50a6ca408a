"""The task executors against serial order."""

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tasking.random_plans import kinds_plan, random_plan, shared_plan

from forktask.cython_src.binding.bind import BlockFailure, Workers, bind
from forktask.cython_src.errors import UsageError
from forktask.cython_src.plan.builder import PlanBuilder
from forktask.cython_src.plan.model import Block, commutative, update
from forktask.tasking.executor import TaskGraphExecutor, TaskIterExecutor, TasksExecutor

EXECUTORS = {
    "tasks-loop": lambda n, **o: TasksExecutor(n, taskwait="loop", **o),
    "tasks-phase": lambda n, **o: TasksExecutor(n, taskwait="phase", **o),
    "tasks-iteration": lambda n, **o: TasksExecutor(n, taskwait="iteration", **o),
    "tasks-none": lambda n, **o: TasksExecutor(n, taskwait="none", **o),
    "tasks-window4": lambda n, **o: TasksExecutor(n, taskwait="none", window=4, **o),
    "taskgraph-stealing": lambda n, **o: TaskGraphExecutor(n, placement="stealing", **o),
    "taskgraph-partitioned": lambda n, **o: TaskGraphExecutor(n, placement="partitioned", **o),
    "taskgraph-loop": lambda n, **o: TaskGraphExecutor(n, barrier="loop", placement="stealing", **o),
    "taskgraph-phase": lambda n, **o: TaskGraphExecutor(n, barrier="phase", **o),
    "taskiter-partitioned": lambda n, **o: TaskIterExecutor(n, placement="partitioned", **o),
    "taskiter-unrolled": lambda n, **o: TaskIterExecutor(
        n, unroll=3, slots=2, priority="path", placement="stealing", **o
    ),
    "taskiter-stealing": lambda n, **o: TaskIterExecutor(n, placement="stealing", **o),
}
pytestmark = pytest.mark.timeout(120)


def run_serial(bound, num_iterations, first_iteration=0):
    """Plan order on one thread: the truth."""
    workers = Workers(1, bound.scratch_bytes)
    for replay in range(first_iteration, first_iteration + num_iterations):
        for number, loop in enumerate(bound.plan.loops):
            for block in range(loop.num_blocks):
                assert bound.run_task(number, block, replay, workers) == 0


def content(bound, executor=None):
    """All persistent arrays, without the order of tasks that write nothing and may overlap with themselves: eager ones
    and those of unrolled graphs."""
    arrays = {name: bound.arrays[name].copy() for name, b in bound.plan.buffers.items() if b.persistent}
    overlap = isinstance(executor, TasksExecutor) or getattr(getattr(executor, "options", None), "unroll", 1) > 1
    if overlap and "trace" in arrays and arrays["trace"].ndim == 2:
        arrays["trace"] = arrays["trace"][:, 0]
    return arrays


def serial_content(plan, runs):
    """Persistent arrays after runs of (num_iterations, first_iteration)."""
    bound = bind(plan)
    for run in runs:
        run_serial(bound, *run)
    return content(bound)


def assert_same(found, expected):
    for name, array in found.items():
        truth = expected[name] if array.ndim == expected[name].ndim else expected[name][:, 0]
        np.testing.assert_array_equal(array, truth, err_msg=name)


@pytest.mark.usefixtures("hash_kernel")
@pytest.mark.parametrize("make", EXECUTORS.values(), ids=EXECUTORS)
def test_random_plans_equal_serial_order(make):
    """Check each task once an iteration and in a legal order, by hash chains over random plans."""
    executors = [make(n) for n in (1, 2, 3, 7)]

    @settings(max_examples=60, suppress_health_check=list(HealthCheck))
    @given(seed=st.integers(0, 2**32), runs=st.lists(st.integers(1, 12), min_size=1, max_size=3))
    def check(seed, runs):
        plan = random_plan(seed, phases=("forward", "backward"))
        runs = [(n, sum(runs[:i])) for i, n in enumerate(runs)]
        expected = serial_content(plan, runs)
        for executor in executors:
            bound = bind(plan)
            executor.prepare(bound)
            for run in runs:
                executor.run(*run)
            assert_same(content(bound, executor), expected)

    check()
    for executor in executors:
        executor.close()


@pytest.mark.usefixtures("hash_kernel")
@pytest.mark.parametrize("make", EXECUTORS.values(), ids=EXECUTORS)
def test_all_access_kinds_equal_serial_order(make):
    """Check concurrent, commutative and reduction accesses among the others, on 1 to 16 threads."""
    executors = [make(n) for n in (1, 2, 5, 16)]

    @settings(max_examples=40, suppress_health_check=list(HealthCheck))
    @given(seed=st.integers(0, 2**32), iterations=st.integers(1, 9), work=st.sampled_from([0, 200]))
    def check(seed, iterations, work):
        plan = kinds_plan(seed, work)
        expected = bind(plan)
        run_serial(expected, iterations)
        for executor in executors:
            bound = bind(plan)
            executor.prepare(bound)
            executor.run(iterations)
            for name in ("cells", "folds", "trace"):
                np.testing.assert_array_equal(bound.arrays[name], expected.arrays[name], err_msg=name)

    check()
    for executor in executors:
        executor.close()


@pytest.mark.usefixtures("hash_kernel")
@pytest.mark.parametrize("make", EXECUTORS.values(), ids=EXECUTORS)
def test_shared_memory_equals_full_memory(make):
    """Check plans whose buffers overlay each other: the added dependences keep tenants apart."""
    for num_threads in (1, 2, 5):
        with make(num_threads) as executor:
            for seed in range(40):
                expected = serial_content(shared_plan(seed, "full"), [(5,)])
                bound = bind(shared_plan(seed))
                executor.prepare(bound)
                executor.run(5)
                assert_same(content(bound, executor), expected)


@pytest.mark.usefixtures("hash_kernel")
@pytest.mark.parametrize("make", EXECUTORS.values(), ids=EXECUTORS)
def test_a_failing_block_stops_the_run(make):
    """Check that the failure names task and iteration, and that the executor stays usable."""
    plan = random_plan(11, num_loops=5, fail=(3, 4))
    with make(3) as executor:
        bound = bind(plan)
        executor.prepare(bound)
        with pytest.raises(BlockFailure, match="failed in iteration 3 with status 7") as failure:
            executor.run(1000)
        assert failure.value.task_name == plan.task_name(4)
        for array in bound.arrays.values():
            array.fill(0)
        executor.run(50, 4)
        assert_same(content(bound, executor), serial_content(plan, [(50, 4)]))


@pytest.mark.parametrize(
    ("make", "option"),
    [
        (lambda: TasksExecutor(1, taskwait="never"), "taskwait"),
        (lambda: TaskGraphExecutor(1, barrier="none"), "barrier"),
        (lambda: TaskIterExecutor(1, placement="magic"), "placement"),
    ],
)
def test_unknown_options_are_refused(make, option):
    """Check that the option is named."""
    with pytest.raises(UsageError, match=option):
        make()


def test_the_wait_policy_of_openmp_steers_idle_workers(monkeypatch):
    """Check that both runtimes spin or sleep alike: OMP_WAIT_POLICY decides, else whether CPUs are short."""
    from forktask.tasking.executor import default_spin_ns

    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    active = default_spin_ns(4, 2)
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    passive = default_spin_ns(2, 2)
    monkeypatch.delenv("OMP_WAIT_POLICY")
    assert active > default_spin_ns(2, 2) > default_spin_ns(4, 2) == passive


@pytest.mark.usefixtures("hash_kernel")
def test_a_home_runs_other_tasks_while_a_commutative_one_would_wait():
    """Check `partitioned`: tasks that exclude each other come first in both programs, and another task starts before
    the second of them. One iteration must show it: in others, both homes may look before either holds the lock."""
    builder = PlanBuilder("excluded")
    builder.buffer("cells", (5,), "uint64", role="statistic")
    builder.buffer("folds", (1,), "uint64", role="statistic")
    builder.buffer("trace", (8,), "uint64", role="statistic")
    for number, name in enumerate(("together", "apart")):
        blocks = []
        for k in range(4):
            bounds = [4 * number + k] + 16 * [0]
            cell = (0, 1) if number == 0 else (k + 1, k + 2)
            at = 9 if number == 0 else 5  # commutative, updated
            bounds[at : at + 2] = cell
            blocks.append(Block(tuple(bounds), ((commutative if number == 0 else update)("cells", cell),), flops=1e6))
        builder.loop(
            name, "test_kinds", {n: n for n in ("cells", "folds", "trace")}, blocks, attributes={"work": 50_000}
        )
    bound = bind(builder.build())
    with TaskIterExecutor(2, event_capacity=2000) as executor:
        executor.prepare(bound)
        executor.run(200)
        events = executor.workers.events()
    starts = [events["task"][events["iteration"] == k] for k in range(200)]
    assert any(tasks[1] >= 4 for tasks in starts)


REAL_TIME = """
import os, statistics, time
from contextlib import suppress
from forktask.cython_src.binding.bind import bind
from forktask.cython_src.graphs.task_bench import task_bench
from forktask.experiments.sampling.models import make_executor

with suppress(PermissionError):  # then the usual policy shows no more than that nothing is broken
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
times = []
with make_executor("taskgraph", len(os.sched_getaffinity(0))) as executor:
    executor.prepare(bind(task_bench("stencil_1d", 4, 4)))
    for _ in range(30):
        start = time.perf_counter()
        executor.run(1)
        times.append(time.perf_counter() - start)
    print(statistics.median(times) / (executor._team.spin_ns / 1e9))
"""


def test_threads_under_a_real_time_policy_let_the_caller_go_on():
    """Check that a run takes less than half of the time for which idle workers spin on every CPU."""
    environment = {**os.environ, "OMP_WAIT_POLICY": "active"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", REAL_TIME], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert float(done.stdout) < 0.5
