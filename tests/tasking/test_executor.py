"""The task executors against serial order."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tasking.random_plans import kinds_plan, random_plan

from forktask.cython_src.binding.bind import Workers, bind
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
    "taskiter-unrolled": lambda n, **o: TaskIterExecutor(n, unroll=3, slots=2, placement="stealing", **o),
    "taskiter-unrolled-partitioned": lambda n, **o: TaskIterExecutor(n, unroll=4, **o),
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
    """Check each task once an iteration and in a legal order, by hash chains over random plans with all kinds of
    accesses, in runs of any length from any first iteration on, on 1 to 16 threads."""
    executors = [make(n) for n in (1, 2, 5, 16)]

    @settings(max_examples=100, suppress_health_check=list(HealthCheck))
    @given(
        seed=st.integers(0, 2**32),
        runs=st.lists(st.integers(0, 12), min_size=1, max_size=3),
        work=st.sampled_from([0, 200]),
    )
    def check(seed, runs, work):
        plan = kinds_plan(seed, work) if seed % 2 else random_plan(seed, phases=("forward", "backward"))
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
        for _ in range(100):  # both threads on one CPU, as a host may leave them, show it in none
            executor.workers.clear_events()
            executor.run(200)
            events = executor.workers.events()
            starts = [tasks for k in range(200) if len(tasks := events["task"][events["iteration"] == k]) > 1]
            assert starts
            if any(tasks[1] >= 4 for tasks in starts):
                return
    pytest.fail("no iteration of 20,000 started another task before the second of those that exclude each other")
