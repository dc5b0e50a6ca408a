"""Fork-join, serial and joblib executors against each other."""

import signal

import numpy as np
import pytest
from kinds import forms_of_models, threads_of

from forktask.cython_src.binding.bind import bind
from forktask.cython_src.errors import UsageError
from forktask.cython_src.plan.builder import PlanBuilder
from forktask.cython_src.plan.model import Block, read, update
from forktask.experiments.subjects.models import make_executor
from forktask.forkjoin.executor import ForkJoinExecutor, SerialExecutor

FORKJOIN_OPTIONS = [
    {**region, "schedule": schedule, "chunk_size": chunk_size}
    for region in ({"region": "loop"}, {"region": "persistent"}, {"region": "persistent", "join": "tree"})
    for schedule in ("static", "dynamic", "guided")
    for chunk_size in (0, 1, 3, 100)
]
FORKJOIN_OPTIONS += [
    {"region": "persistent", "order": "place", "schedule": schedule, "join": join}
    for schedule in ("static", "guided")
    for join in ("omp", "tree")
]


def stencil_plan(width=13, steps=4, work=0, fail_iteration=-1, fail_index=-1, stride=1):
    """Chains of hashes over two buffers: the result depends on every block, its order and its iteration."""
    builder = PlanBuilder("stencil")
    builder.unrolled(stride)
    for name in ("even", "odd"):
        builder.buffer(name, (width,), "uint64", role="statistic")
    for step in range(steps):
        out, source = ("even", "odd") if step % 2 else ("odd", "even")
        blocks = []
        for i in range(width):
            near = (max(i - 1, 0), min(i + 2, width))
            blocks.append(Block((i, *near), (update(out, (i, i + 1)), read(source, near))))
        attributes = {"work": work, "fail_iteration": fail_iteration if step == 1 else -1, "fail_index": fail_index}
        builder.loop(
            f"step{step}",
            "hash_chain",
            {"out": out, "in": source},
            blocks,
            attributes=attributes,
            iteration_offset=step % stride,
        )
    return builder.build()


def result(executor, plan, iterations=6, target="cpu"):
    """Both buffers after some iterations, run in two calls."""
    bound = bind(plan, target=target)
    with executor:
        executor.prepare(bound)
        executor.run(2 * plan.iteration_stride)
        executor.run((iterations - 2) * plan.iteration_stride, 2 * plan.iteration_stride)
    return np.concatenate([bound.arrays["even"], bound.arrays["odd"]])


@pytest.fixture(scope="module")
def serial_result():
    return result(SerialExecutor(), stencil_plan())


def test_serial_equals_the_python_form(serial_result):
    """Check that compiled kernels and their NumPy form give the same bits."""
    assert len(set(serial_result.tolist())) == 26
    np.testing.assert_array_equal(result(SerialExecutor(), stencil_plan(), target="numpy"), serial_result)


@pytest.mark.parametrize("options", FORKJOIN_OPTIONS, ids=str)
def test_forkjoin_equals_serial(options, serial_result):
    """Check every region, barrier, schedule and chunk size, on 1 to 21 threads (more than there may be cores)."""
    for num_threads in (1, 2, 3, 8, 21):
        np.testing.assert_array_equal(result(ForkJoinExecutor(num_threads, **options), stencil_plan()), serial_result)


@pytest.mark.parametrize(("name", "value"), [("join", "tree"), ("order", "place")])
def test_some_options_need_a_persistent_region(name, value):
    """Check that a barrier and an order which a region for each loop does not have are refused."""
    with pytest.raises(UsageError, match=f"{name}={value} needs region=persistent, got region=loop"):
        ForkJoinExecutor(2, **{name: value})


@pytest.mark.parametrize("spec", forms_of_models("region", "schedule", "placement"))
def test_what_a_signal_handler_raises_reaches_the_caller(spec):
    """Check that a run that a handler's OSError ends does not return as if it were whole."""

    def refuse(number, frame):
        raise OSError(28, "No space left on device")

    former = signal.signal(signal.SIGALRM, refuse)
    try:
        with make_executor(spec, threads_of(spec, 2)) as executor:
            executor.prepare(bind(stencil_plan(work=400_000)))
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with pytest.raises(OSError, match="No space left"):
                executor.run(10**6)
    finally:
        signal.signal(signal.SIGALRM, former)
