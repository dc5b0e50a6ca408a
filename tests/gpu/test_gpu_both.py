"""Host and device together: where tasks go, and that results stay right."""

import threading

import numpy as np
import pytest
from gpu.fake_gpu.device import FakeDevice
from gpu.test_gpu_models import fill, small_plan

from forktask.cython_src.binding.bind import BlockFailure, bind
from forktask.cython_src.binding.checks import run_serial
from forktask.cython_src.errors import UsageError
from forktask.cython_src.gpu.bind import GpuBoundPlan, device_storage
from forktask.tasking.gpu_both import GpuBothExecutor


def on_cpu(steps):
    """The plan, bound to the processor, after some steps."""
    bound = bind(small_plan())
    fill(bound)
    run_serial(bound, steps)
    return bound


def test_a_loop_is_divided_where_its_parts_write_apart():
    """Check the parts of each loop by brute force over cells: no two share a written piece, and no block is missing."""
    bound = GpuBoundPlan(small_plan(), None, FakeDevice())
    divided = 0
    for number, loop in enumerate(bound.plan.loops):
        parts = bound.parts(number, 4)
        assert [first for first, _ in parts] == [0, *np.cumsum([count for _, count in parts])[:-1].tolist()]
        assert sum(count for _, count in parts) == loop.num_blocks and len(parts) <= 4
        written = [set(bound.pieces([use for use in bound.uses_of(number, *part) if use[2]])) for part in parts]
        assert sum(map(len, written)) == len(set().union(*written))
        divided += len(parts) > 1
        assert bound.parts(number, 1) == [(0, loop.num_blocks)]
    assert divided > 5


@pytest.mark.cxx
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("kind", ["pageable", "pinned", "managed"])
@pytest.mark.parametrize("host", [0, 1, 2, 4])
def test_results_are_right_wherever_tasks_run(host, kind, threads, monkeypatch):
    """Check twelve steps against the CPU, with random delays, and that both sides run their part of the blocks."""
    cpu = on_cpu(12)
    for seed in range(2):
        device = FakeDevice(seed)
        bound = GpuBoundPlan(small_plan(), device_storage(device, kind), device)
        fill(bound)
        launched, launch = [0], bound.launch

        def counted(*arguments, launched=launched, launch=launch, **named):
            launched[0] += named["num_blocks"]
            launch(*arguments, **named)

        monkeypatch.setattr(bound, "launch", counted)
        with GpuBothExecutor(threads, host=host) as executor:
            executor.prepare(bound)
            executor.run(5)
            executor.run(7, 5)
        for buffer in bound.plan.buffers.values():
            if buffer.persistent and buffer.dtype == "float32":
                array, wanted = bound.arrays[buffer.name], cpu.arrays[buffer.name]
                assert np.linalg.norm(array - wanted) <= 1e-4 * np.linalg.norm(wanted) + 1e-12, buffer.name
        share = launched[0] / (12 * bound.num_tasks)
        assert share == 1 - host / 4 if host in (0, 4) else 0 < share < 1
        if host == 4:
            assert (cpu.arrays["conv1.weight"] == bound.arrays["conv1.weight"]).all()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"split": 0}, "split must be .* at least 1; got 0"),
        ({"split": 2, "host": 3}, "host must be at most split, the tasks of a loop, got 3 of 2"),
        ({"policy": "dmda"}, "policy"),
    ],
)
def test_parts_that_do_not_exist_are_refused(options, sentence):
    """Check the sentences."""
    with pytest.raises(UsageError, match=sentence):
        GpuBothExecutor(**options)


class _WithRunTask:
    """A bound plan with another `run_task`."""

    def __init__(self, bound, run_task):
        self._bound, self.run_task = bound, run_task

    def __getattr__(self, name):
        return getattr(self._bound, name)


@pytest.mark.cxx
def test_a_failure_on_the_host_stops_the_run():
    """Check that a bad index raises the block's failure, and that the executor goes on afterwards."""
    bound = GpuBoundPlan(small_plan(), None, FakeDevice())
    fill(bound)
    with GpuBothExecutor(2, host=4) as executor:
        executor.prepare(bound)
        bound.arrays["batch_order"][...] = 99
        with pytest.raises(BlockFailure, match=r"load\[\d\] failed in iteration 0"):
            executor.run(2)
        fill(bound)
        executor.run(2)


@pytest.mark.cxx
def test_iterations_overlap():
    """Check that the next iteration is placed while a task of the one before still runs, which nothing waits for."""
    bound = GpuBoundPlan(small_plan(), None, FakeDevice())
    fill(bound)
    last = len(bound.plan.loops) - 1
    placed, waited = threading.Event(), []
    run_task = bound.host.run_task

    def run(loop, block, iteration, *rest):
        if iteration == 1:
            placed.set()
        if loop == last and iteration == 0:
            waited.append(placed.wait(30))
        return run_task(loop, block, iteration, *rest)

    bound.host = _WithRunTask(bound.host, run)
    with GpuBothExecutor(2, host=4) as executor:
        executor.prepare(bound)
        executor.run(2)
    assert waited and all(waited)
