"""OpenMP tasks, oneTBB, Taskflow and StarPU over the plans of all other executors; OmpSs-2 has a file of its own."""

import os

import numpy as np
import pytest
from kinds import KINDS, forms_of_models

from forktask.cython_src.binding.bind import bind
from forktask.cython_src.graphs.task_bench import task_bench
from forktask.cython_src.plan.builder import PlanBuilder
from forktask.cython_src.plan.model import Block, read, update
from forktask.experiments.subjects.models import make_executor
from forktask.forkjoin.executor import SerialExecutor

OUTSIDE = [
    *forms_of_models("taskwait", "construct", "scheduler", has=lambda model: model.library, of_outside=True),
    *("starpu:scheduler=dmda:taskwait=loop", "starpu:construct=tags:scheduler=dmda"),
]
SPECS = [
    pytest.param(spec, marks=[getattr(pytest.mark, kind) for kind in KINDS if kind == spec.split(":")[0]])
    for spec in OUTSIDE
]
pytestmark = pytest.mark.parametrize("spec", SPECS)


def all_to_all_plan(width=12, work=0, fail_iteration=-1):
    """Two loops that read all of each other's output, block by block: their blocks meet in joins."""
    builder = PlanBuilder("meet")
    for name in "ab":
        builder.buffer(name, (width,), "uint64", role="statistic")
    for out, source in ("ab", "ba"):
        builder.loop(
            f"to {out}",
            "hash_chain",
            {"out": out, "in": source},
            [Block((i, 0, width), (update(out, (i, i + 1)), read(source))) for i in range(width)],
            attributes={"work": work, "fail_iteration": fail_iteration if out == "b" else -1, "fail_index": 3},
        )
    return builder.build()


def test_joins_and_python_kernels_equal_serial(spec):
    """Check hash chains through joins, compiled and in Python."""
    plan = all_to_all_plan()
    expected = bind(plan)
    with SerialExecutor() as serial:
        serial.prepare(expected)
        serial.run(10)
    for target in ("cpu", "numpy"):
        bound = bind(plan, target=target)
        with make_executor(spec, 2) as executor:
            executor.prepare(bound)
            executor.run(10)
        for name in "ab":
            np.testing.assert_array_equal(bound.arrays[name], expected.arrays[name])


def test_more_than_one_thread_runs_and_affinity_is_restored(spec):
    """Check that all tasks ran once, by two pinned threads, and that the caller keeps its affinity."""
    plan = task_bench("no_comm", 8, 8, kernel="compute", work=50000)
    allowed = os.sched_getaffinity(0)
    cpus = [min(allowed), max(allowed)]
    with make_executor(spec, 2, cpus=cpus, event_capacity=2000) as executor:
        executor.prepare(bind(plan))
        executor.run(10)
        events = executor.workers.events()
    assert set(events["worker"]) == {0, 1}
    assert sorted(zip(events["iteration"].tolist(), events["task"].tolist(), strict=True)) == [
        (iteration, task) for iteration in range(10) for task in range(plan.num_tasks)
    ]
    assert os.sched_getaffinity(0) == allowed


def test_a_stopped_run_leaves_nothing_to_the_next(spec):
    """Check that a block which fails ends a long run early, and that each block of the next one runs once."""
    plan = all_to_all_plan(fail_iteration=5)
    with make_executor(spec, 2, event_capacity=2000) as executor:
        executor.prepare(bind(plan))
        for _ in range(3):
            with pytest.raises(RuntimeError):
                executor.run(10**6)
            executor.workers.clear_events()
            executor.run(20, 100)
            events = executor.workers.events()
            events = events[events["task"] >= 0]
            assert sorted(zip(events["iteration"].tolist(), events["task"].tolist(), strict=True)) == [
                (iteration, task) for iteration in range(100, 120) for task in range(plan.num_tasks)
            ]
