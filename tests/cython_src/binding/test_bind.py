"""Binding plans to memory and kernels."""

import threading
from contextlib import suppress

import pytest
from cython_src.python_kernels import kernel

from forktask.cython_src.binding.bind import BlockFailure, Workers, bind
from forktask.cython_src.binding.storage import Storage
from forktask.cython_src.errors import UsageError
from forktask.cython_src.graphs.task_bench import task_bench
from forktask.cython_src.kernels.interface.kernel_spec import KernelSpec, register
from forktask.cython_src.plan.builder import PlanBuilder
from forktask.cython_src.plan.model import Block, commutative, concurrent, read, update, write
from forktask.cython_src.targets import bind as bind_anywhere


@kernel("test.add_iteration", "x bias?", "start stop", integers="factor", reals="offset")
def add_iteration(o, a, b, iteration):
    bias = o["bias"][0] if "bias" in o else 0
    o["x"][b["start"] : b["stop"]] += a["factor"] * iteration + a["offset"] + bias


@kernel("test.fails", "x", "status")
def fails(o, a, b, iteration):
    o["x"][0] += 1
    return b["status"] if iteration else 0


def plan(unroll=1, **operands):
    builder = PlanBuilder("test")
    builder.buffer("x", (4,), role="parameter")
    builder.buffer("bias", (1,), role="parameter")
    for offset in range(unroll):
        builder.loop(
            "add",
            "test.add_iteration",
            {"x": "x", **operands},
            attributes={"factor": 10, "offset": 0.5},
            iteration_offset=offset,
            blocks=[Block(r, (update("x", r), *([read("bias")] if operands else []))) for r in ((0, 2), (2, 4))],
        )
    builder.unrolled(unroll)
    return builder.build()


def test_bad_binding_is_refused():
    """Check unknown targets, kernels and kernels without the form asked for."""
    with pytest.raises(UsageError, match="target.*'tpu'"):
        bind(plan(), target="tpu")
    builder = PlanBuilder("test")
    builder.buffer("x", (1,), role="parameter")
    builder.loop("f", "test.unknown", {"x": "x"}, [Block((), (write("x"),))])
    with pytest.raises(UsageError, match="no kernel is called 'test.unknown'"):
        bind(builder.build(), target="numpy")
    register(KernelSpec("test.compiled_only", ("x",), address=1))
    builder = PlanBuilder("test")
    builder.buffer("x", (1,), role="parameter")
    builder.loop("f", "test.compiled_only", {"x": "x"}, [Block((), (write("x"),))])
    with pytest.raises(UsageError, match="has no form for target 'numpy'"):
        bind(builder.build(), target="numpy")


def test_bad_targets_are_refused():
    """Check an unknown target, and an instruction set for a GPU."""
    with pytest.raises(UsageError, match="target.*'tpu'"):
        bind_anywhere(task_bench("trivial", 2, 2), target="tpu")
    with pytest.raises(UsageError, match="'avx2' for 'gpu'"):
        bind_anywhere(task_bench("trivial", 2, 2), target="gpu", instruction_set="avx2")


@pytest.mark.parametrize(
    ("attributes", "bounds", "message"),
    [
        ({"factor": 1}, (0, 1), "takes attributes .*offset"),
        ({"factor": 1, "offset": 0.0, "ofset": 1}, (0, 1), "ofset"),
        ({"factor": 1, "offset": 0.0}, (0,), "takes bounds"),
    ],
)
def test_loop_must_fit_its_kernel(attributes, bounds, message):
    """Check that missing or surplus attributes and bounds are refused when the plan is bound."""
    builder = PlanBuilder("test")
    builder.buffer("x", (4,), role="parameter")
    builder.loop("f", "test.add_iteration", {"x": "x"}, [Block(bounds, (update("x"),))], attributes=attributes)
    with pytest.raises(UsageError, match=message):
        bind(builder.build(), target="numpy")


def failing(*status, access=update):
    builder = PlanBuilder("test")
    builder.buffer("x", (1,), role="parameter")
    for s in status:
        builder.loop("f", "test.fails", {"x": "x"}, [Block((s,), (access("x"),))])
    return bind(builder.build(), target="numpy")


def test_failure_names_task_and_iteration_and_is_forgotten():
    """Check status, message and that the binding stays usable."""
    bound, workers = failing(0, 7), Workers(2)
    assert bound.run_task(1, 0, 0, workers) == 0
    assert bound.run_task(1, 0, 5, workers, 1) == 7
    with pytest.raises(BlockFailure, match=r"f\[0\] failed in iteration 5 with status 7") as caught:
        bound.raise_failure(workers)
    assert (caught.value.task_name, caught.value.iteration, caught.value.status) == ("f[0]", 5, 7)
    bound.raise_failure(workers)
    assert bound.run_task(0, 0, 5, workers) == 0


def test_earliest_failure_is_raised():
    """Check that of two workers' failures the one of the earlier iteration is reported."""
    bound, workers = failing(3, 4), Workers(2)
    bound.run_task(0, 0, 9, workers, 0)
    bound.run_task(1, 0, 8, workers, 1)
    with pytest.raises(BlockFailure, match="iteration 8 with status 4"):
        bound.raise_failure(workers)


def test_views_by_name():
    """Check that buffers and aliases are found by name and an unknown name lists what there is."""
    builder = PlanBuilder("test", aliases={"first": lambda arrays: arrays["x"][:1]})
    builder.buffer("x", (4,), role="parameter")
    builder.loop("f", "test.fails", {"x": "x"}, [Block((0,), (update("x"),))])
    bound = bind(builder.build(), Storage(), "numpy")
    bound.view("first")[0] = 3
    assert bound.view("x")[0] == 3
    with pytest.raises(UsageError, match="'y'; known: first, x"):
        bound.view("y")


meetings = []  # the last one is where blocks of `meeting_increment` wait for one another


@kernel("test.meeting_increment", "x")
def meeting_increment(o, a, b, iteration):
    value = o["x"][0]
    with suppress(threading.BrokenBarrierError):  # nobody came, now or before
        meetings[-1].wait()
    o["x"][0] = value + 1


@pytest.mark.parametrize("access", [commutative, concurrent])
def test_commutative_blocks_run_one_at_a_time(access):
    """Check that threads that run commutative blocks lose no increment; without the lock (concurrent), where two blocks
    meet between reading and writing, they do."""
    builder = PlanBuilder("test")
    builder.buffer("x", (1,), role="parameter")
    builder.loop("f", "test.meeting_increment", {"x": "x"}, [Block((), (access("x"),)) for _ in range(40)])
    bound, workers = bind(builder.build(), target="numpy"), Workers(2)
    meetings.append(threading.Barrier(2, timeout=0.2 if access is commutative else 60))

    def work(worker):
        for block in range(worker, 40, 2):
            assert bound.run_task(0, block, 0, workers, worker) == 0

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (bound.arrays["x"][0] == 40) == (access is commutative)


def test_failing_commutative_block_lets_go_of_its_lock():
    """Check that a block that failed does not keep others from running."""
    bound, workers = failing(7, access=commutative), Workers(1)
    assert [bound.run_task(0, 0, 1, workers) for _ in range(2)] == [7, 7]
