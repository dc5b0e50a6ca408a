"""OpenMP tasks with depend clauses over the plans of all other executors."""

import json
import os
import subprocess
import sys

import kinds
import numpy as np
import pytest
from interrupts import stop_by_ctrl_c

from forktask.cython_src.binding.bind import BlockFailure, bind
from forktask.cython_src.errors import UsageError
from forktask.cython_src.graphs.task_bench import PATTERNS, task_bench
from forktask.cython_src.kernels.interface.kernel_spec import KernelSpec, register
from forktask.cython_src.plan.builder import PlanBuilder
from forktask.cython_src.plan.model import (
    COMMUTATIVE,
    CONCURRENT,
    READ,
    UPDATE,
    WRITE,
    Block,
    commutative,
    concurrent,
    read,
    update,
    write,
)
from forktask.forkjoin.executor import SerialExecutor
from forktask.forkjoin.openmp_executor import OpenMPTasksExecutor
from forktask.forkjoin.openmp_task_run import depend_lists

TASKWAITS = ("none", "iteration", "phase", "loop")


def run(executor, plan, target="cpu", iterations=5):
    """Arrays of a plan after some iterations in two calls."""
    bound = bind(plan, target=target)
    with executor:
        executor.prepare(bound)
        executor.run(2)
        executor.run(iterations - 2, 2)
    return bound.arrays


def hash_plan(seed, width=9, num_loops=7, work=0, fail_iteration=-1):
    """Random reads from three buffers of hash chains, loops in random order over them."""
    random = np.random.default_rng(seed)
    builder = PlanBuilder("random")
    for name in "abc":
        builder.buffer(name, (width,), "uint64", role="statistic")
    for k in range(num_loops):
        out, source = random.permutation(list("abc"))[:2]
        blocks = []
        for i in random.permutation(width)[: random.integers(1, width + 1)]:
            start, stop = sorted(random.choice(width + 1, 2, replace=False))
            blocks.append(
                Block(
                    (int(i), int(start), int(stop)),
                    (update(out, (int(i), int(i) + 1)), read(source, (int(start), int(stop)))),
                )
            )
        builder.loop(
            f"loop{k}",
            "hash_chain",
            {"out": out, "in": source},
            blocks,
            phase=("forward", "update")[k % 2],
            attributes={
                "work": work,
                "fail_iteration": fail_iteration if k == 3 else -1,
                "fail_index": blocks[0].bounds[0],
            },
        )
    return builder.build()


@pytest.mark.parametrize("taskwait", TASKWAITS)
def test_openmp_tasks_equal_serial(taskwait):
    """Check random plans of hash chains on 1 to 4 threads, compiled and in Python."""
    for seed in range(8):
        plan = hash_plan(seed)
        expected = run(SerialExecutor(), plan)
        for num_threads, target in ((1, "cpu"), (2, "cpu"), (4, "cpu"), (2, "numpy")):
            arrays = run(OpenMPTasksExecutor(num_threads, taskwait=taskwait), plan, target)
            for name in "abc":
                np.testing.assert_array_equal(arrays[name], expected[name])


@pytest.mark.parametrize("pattern", PATTERNS)
def test_task_bench_checks_pass(pattern):
    """Check every Task Bench pattern: tasks themselves notice a wrong order."""
    for num_threads in (1, 2, 4):
        run(
            OpenMPTasksExecutor(num_threads), task_bench(pattern, 8, 6, kernel="load_imbalance", work=50), iterations=12
        )


def test_depend_lists_merge_what_a_task_does_to_a_cell():
    """Check that a cell stands once for each task: in, out, inout when it is read and written, or in any order."""
    builder = PlanBuilder("lists")
    builder.buffer("x", (6,), "uint64", role="statistic")
    builder.loop(
        "only",
        "hash_chain",
        {"out": "x", "in": "x"},
        [
            Block(
                (0, 0, 0),
                (
                    read("x", (0, 3)),
                    write("x", (2, 4)),
                    concurrent("x", (4, 5)),
                    commutative("x", (5, 6)),
                    read("x", (1, 3)),
                ),
            )
        ],
        attributes={"work": 0, "fail_iteration": -1, "fail_index": -1},
    )
    table = builder.build().accesses
    start_of_cell = {}
    for cell, start in enumerate(sorted({0, 1, 2, 3, 4, 5})):
        start_of_cell[cell] = start
    lists = depend_lists(table)
    found = {
        kind: {start_of_cell[c] for c in cells[: offsets[-1]].tolist()}
        for kind, (offsets, cells) in zip((READ, WRITE, UPDATE, CONCURRENT, COMMUTATIVE), lists, strict=True)
    }
    assert found == {READ: {0, 1}, WRITE: {3}, UPDATE: {2}, CONCURRENT: {4}, COMMUTATIVE: {5}}


def test_more_than_one_thread_runs_and_iterations_overlap():
    """Check the event log: all tasks once, by both threads; without taskwait, iterations overlap."""
    plan = task_bench("stencil_1d", 8, 8, kernel="load_imbalance", work=20000)
    with OpenMPTasksExecutor(2, event_capacity=2000) as executor:
        executor.prepare(bind(plan))
        executor.run(5)
        events = executor.workers.events()
    assert set(events["worker"]) == {0, 1}
    assert sorted(zip(events["iteration"].tolist(), events["task"].tolist(), strict=True)) == [
        (iteration, task) for iteration in range(5) for task in range(plan.num_tasks)
    ]


@pytest.mark.parametrize("target", ["cpu", "numpy"])
def test_a_failing_block_stops_the_run(target):
    """Check that the failure is named and the executor stays usable."""
    plan = hash_plan(1, fail_iteration=3)
    with OpenMPTasksExecutor(2) as executor:
        executor.prepare(bind(plan, target=target))
        executor.run(3)
        with pytest.raises(BlockFailure, match=r"loop3\[0\] failed in iteration 3 with status 7"):
            executor.run(1000, 3)
        executor.run(5, 4)


def test_ctrl_c_stops_a_run():
    """Check KeyboardInterrupt with tasks of about a millisecond."""
    with OpenMPTasksExecutor(2) as executor:
        executor.prepare(bind(hash_plan(2, work=400_000)))
        stop_by_ctrl_c(executor)
        executor.run(1)


def test_bad_arguments_are_refused():
    """Check the messages: options, another runtime than the one loaded."""
    with pytest.raises(UsageError, match="taskwait must be one of"):
        OpenMPTasksExecutor(2, taskwait="never")
    with pytest.raises(UsageError, match="set LD_PRELOAD"):
        OpenMPTasksExecutor(2, runtime="libomp").prepare(bind(hash_plan(0)))


def _sum_all(operands, attributes, bounds, iteration):
    total = np.bitwise_xor.reduce(operands["in"] * np.arange(3, 9, dtype=np.uint64))
    operands["out"][bounds["i"]] = total + np.uint64(bounds["i"] + iteration)


def test_overlaid_buffers_are_kept_apart():
    """Check a plan whose buffers share memory: cells are of the memory, so depend clauses see it."""
    register(KernelSpec(name="test_sum_all", operands=("out", "in"), bounds=("i",), reference=_sum_all))
    builder = PlanBuilder("shared")
    builder.buffer("start", (6,), "uint64", role="statistic")
    builder.buffer("result", (6,), "uint64", role="statistic")
    for name in "abcd":
        builder.buffer(name, (6,), "uint64")
    for out, source in (("a", "start"), ("b", "a"), ("c", "b"), ("d", "c"), ("result", "d"), ("start", "result")):
        blocks = [Block((i,), (write(out, (i, i + 1)), read(source))) for i in range(6)]
        builder.loop(f"to {out}", "test_sum_all", {"out": out, "in": source}, blocks)
    plan = builder.build(memory="shared")
    assert plan.arena_of
    expected = run(SerialExecutor(), plan, "numpy")["result"].copy()
    for _ in range(5):
        np.testing.assert_array_equal(run(OpenMPTasksExecutor(4), plan, "numpy")["result"], expected)


@pytest.mark.libomp
def test_the_same_code_runs_on_libomp():
    """Check Task Bench on LLVM's runtime, preloaded into a new process."""
    code = """
import json
from forktask.cython_src.binding.bind import bind
from forktask.cython_src.graphs.task_bench import task_bench
from forktask.forkjoin.executor import ForkJoinExecutor
from forktask.forkjoin.openmp_executor import OpenMPTasksExecutor, loaded_runtime
done = []
for pattern in ("stencil_1d", "spread", "all_to_all"):
    for make in (lambda: OpenMPTasksExecutor(2, runtime="libomp"), lambda: ForkJoinExecutor(2, region="persistent")):
        with make() as executor:
            bound = bind(task_bench(pattern, 8, 6))
            executor.prepare(bound)
            executor.run(20)
            done.append(int(bound.arrays["cells"][..., 0].sum()))
print(json.dumps([loaded_runtime(), done]))
"""
    process = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={**os.environ, "LD_PRELOAD": kinds.libomp()},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert process.returncode == 0, process.stderr
    assert json.loads(process.stdout) == ["libomp", [8 * 6 * 20] * 6]
