"""What is OpenMP's own beyond the other outside runtimes: depend clauses, and LLVM's runtime."""

import json

import kinds
import pytest
from programs import run_python

from forktask.cython_src.plan.builder import PlanBuilder
from forktask.cython_src.plan.model import Block, commutative, concurrent, read, write
from forktask.forkjoin.outside_runs import depend_lists


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
                    *(read("x", (0, 3)), write("x", (2, 4)), concurrent("x", (4, 5))),
                    *(commutative("x", (5, 6)), read("x", (1, 3))),
                ),
            )
        ],
        attributes={"work": 0, "fail_iteration": -1, "fail_index": -1},
    )
    result = [{*cells[: offsets[-1]].tolist()} for offsets, cells in depend_lists(builder.build().accesses)]
    assert result == [{0, 1}, {3}, {2}, {4}, {5}]  # in, out, inout, concurrent, commutative


@pytest.mark.libomp
def test_another_runtime_is_not_taken_for_libgomp():
    """Check that a model of libgomp is refused where calls reach LLVM's runtime, preloaded into the process."""
    code = "import forktask as ft\nft.run('lenet5', model='forkjoin', batch=2, iterations=1)"
    done = run_python(code, variables={"LD_PRELOAD": kinds.libomp()})
    assert "process calls, which is libomp" in done.stderr and "out of LD_PRELOAD" in done.stderr


@pytest.mark.libomp
def test_the_same_code_runs_on_libomp():
    """Check Task Bench on LLVM's runtime, preloaded into a new process."""
    code = """
import json
from forktask.cython_src.binding.bind import bind
from forktask.cython_src.graphs.task_bench import task_bench
from forktask.forkjoin.executor import ForkJoinExecutor, loaded_runtime
from forktask.forkjoin.outside_executors import OpenMPTasksExecutor
done = []
for pattern in ("stencil_1d", "spread", "all_to_all"):
    for kind, options in ((OpenMPTasksExecutor, {}), (ForkJoinExecutor, {"region": "persistent"})):
        with kind(2, runtime="libomp", **options) as executor:
            bound = bind(task_bench(pattern, 8, 6))
            executor.prepare(bound)
            executor.run(20)
            done.append(int(bound.arrays["cells"][..., 0].sum()))
print(json.dumps([loaded_runtime(), done]))
"""
    process = run_python(code, variables={"LD_PRELOAD": kinds.libomp()}, timeout=60)
    assert process.returncode == 0, process.stderr
    assert json.loads(process.stdout) == ["libomp", [8 * 6 * 20] * 6]
