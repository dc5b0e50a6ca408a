"""Host and device together: performance models, where loops go, and that results stay right."""

import random
import threading
import time

import numpy as np
import pytest
from gpu.fake_gpu.device import FakeDevice
from gpu.test_gpu_models import fill, small_plan

from forktask.cython_src.binding.bind import BlockFailure, bind
from forktask.cython_src.binding.checks import run_serial
from forktask.cython_src.errors import UsageError
from forktask.cython_src.gpu.bind import GpuBoundPlan, device_storage
from forktask.cython_src.gpu.coherence import DEVICE, HOST
from forktask.tasking.gpu_both import GpuBothExecutor, choose_place
from forktask.tasking.performance_models import PerformanceModels


def on_cpu(steps):
    """The plan, bound to the processor, after some steps."""
    bound = bind(small_plan())
    fill(bound)
    run_serial(bound, steps)
    return bound


def assert_within_rounding(bound, cpu):
    for buffer in bound.plan.buffers.values():
        if buffer.persistent and buffer.dtype == "float32":
            array, wanted = bound.arrays[buffer.name], cpu.arrays[buffer.name]
            assert np.linalg.norm(array - wanted) <= 1e-4 * np.linalg.norm(wanted) + 1e-12, buffer.name


def known(**lengths_s):
    """Models with a history of each "kernel_place": seconds."""
    models = PerformanceModels(latency_s=1.0, bandwidth_bytes_per_s=100.0)
    for name, length_s in lengths_s.items():
        kernel, place = name.split("_")
        for _ in range(4):
            models.add(kernel, 1, place, length_s)
    return models


def test_outliers_have_names():
    """Check first call, transfer wait and contention, and that none of them spoils the mean."""
    models = PerformanceModels()
    assert models.add("f", 1, HOST, 50.0) == "first call"
    assert models.expected_s("f", 1, HOST) is None
    assert [models.add("f", 1, HOST, length) for length in (1.0, 2.0, 3.0)] == [None] * 3
    assert models.expected_s("f", 1, HOST) == 2.0
    assert models.add("f", 1, HOST, 7.0) == "contention"
    assert models.add("f", 1, HOST, 7.0, transfer=True) == "transfer wait"
    assert models.add("f", 1, HOST, 2.0, transfer=True) is None
    assert models.expected_s("f", 1, HOST) == 2.0 and models.expected_s("f", 2, HOST) is None
    (row,) = models.table()
    assert (row["first call"], row["contention"], row["transfer wait"]) == ((1, 50.0), (1, 7.0), (1, 7.0))


def test_a_loop_goes_where_it_ends_first():
    """Check length, copies, queues and readiness of data, in virtual time; a copy of 100 bytes takes two seconds."""
    models = known(f_host=10.0, f_device=5.0)
    nothing = {HOST: [], DEVICE: []}
    free = {HOST: 0.0, DEVICE: 0.0}
    assert choose_place(models, "f", 1, free, 0.0, nothing) == DEVICE
    assert choose_place(models, "f", 1, {HOST: 0.0, DEVICE: 6.0}, 0.0, nothing) == HOST
    assert choose_place(models, "f", 1, {HOST: 0.0, DEVICE: 6.0}, 7.0, nothing) == DEVICE  # nobody can start before
    assert choose_place(models, "f", 1, free, 0.0, {HOST: [], DEVICE: [100, 100]}) == DEVICE  # 9 s
    assert choose_place(models, "f", 1, free, 0.0, {HOST: [], DEVICE: [100, 100, 100]}) == HOST  # 11 s


def test_what_is_not_known_is_learnt():
    """Check that both places are tried in turn until both have a history."""
    models, places = PerformanceModels(), []
    while any(models.expected_s("f", 1, place) is None for place in (HOST, DEVICE)):
        places.append(choose_place(models, "f", 1, {HOST: 0.0, DEVICE: 0.0}, 0.0, {HOST: [], DEVICE: []}))
        models.add("f", 1, places[-1], 1.0)
    assert places == [HOST, DEVICE] * 4


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
def test_tasks_of_one_loop_run_in_both_places():
    """Check that loops are divided between host and device when both are as fast, in virtual time, and stay right."""
    cpu = on_cpu(4)
    device = FakeDevice(7)
    bound = GpuBoundPlan(small_plan(), None, device)
    fill(bound)
    with GpuBothExecutor() as executor:
        executor.models = PerformanceModels(latency_s=0.0, bandwidth_bytes_per_s=1e30)
        executor.prepare(bound)
        for task in executor._tasks:
            for place in (HOST, DEVICE):
                for _ in range(4):
                    executor.models.add(task.kernel, task.size, place, 1.0)
        executor.run(1)
        assert len(executor.divided) > 4 and min(executor.placed.values()) > 5
        executor.run(3, 1)
    assert_within_rounding(bound, cpu)
    with pytest.raises(UsageError, match="split must be .* at least 1; got 0"):
        GpuBothExecutor(split=0)


@pytest.mark.cxx
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("kind", ["pageable", "pinned", "managed"])
@pytest.mark.parametrize("policy", ["dmda", "cpu", "gpu"])
def test_results_are_right_wherever_loops_run(policy, kind, threads):
    """Check twelve steps against the CPU, with random delays, while placements change as lengths are learnt."""
    cpu = on_cpu(12)
    for seed in range(2):
        device = FakeDevice(seed)
        bound = GpuBoundPlan(small_plan(), device_storage(device, kind), device)
        fill(bound)
        with GpuBothExecutor(threads, policy=policy) as executor:
            executor.prepare(bound)
            executor.run(5)
            executor.run(7, 5)
        assert_within_rounding(bound, cpu)
        assert bool(executor.placed[HOST]) == (policy != "gpu") and bool(executor.placed[DEVICE]) == (policy != "cpu")
        if policy == "cpu":
            assert (cpu.arrays["conv1.weight"] == bound.arrays["conv1.weight"]).all()
    with pytest.raises(UsageError, match="policy.*'heft'"):
        GpuBothExecutor(policy="heft")


class _WithRunTask:
    """A bound plan with another `run_task`."""

    def __init__(self, bound, run_task):
        self._bound, self.run_task = bound, run_task

    def __getattr__(self, name):
        return getattr(self._bound, name)


@pytest.mark.cxx
@pytest.mark.parametrize("kind", ["pageable", "pinned", "managed"])
def test_placements_at_random_are_right(kind, monkeypatch):
    """Check eight steps of any placement on four host threads, slowed down at random, against the CPU."""
    cpu = on_cpu(8)
    for seed in range(4):
        toss = random.Random(seed)
        monkeypatch.setattr("forktask.tasking.gpu_both.choose_place", lambda *rest, t=toss: t.choice((HOST, DEVICE)))
        device = FakeDevice(seed)
        bound = GpuBoundPlan(small_plan(), device_storage(device, kind), device)
        fill(bound)
        run_task, slow = bound.host.run_task, random.Random(seed)

        def late(*arguments, run_task=run_task, slow=slow):
            time.sleep(slow.random() * 1e-3)
            return run_task(*arguments)

        bound.host = _WithRunTask(bound.host, late)
        with GpuBothExecutor(4) as executor:
            executor.prepare(bound)
            executor.run(8)
        assert_within_rounding(bound, cpu)


@pytest.mark.cxx
def test_a_failure_on_the_host_stops_the_run():
    """Check that a bad index raises the block's failure, and that the executor goes on afterwards."""
    bound = GpuBoundPlan(small_plan(), None, FakeDevice())
    fill(bound)
    with GpuBothExecutor(2, policy="cpu") as executor:
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
    with GpuBothExecutor(2, policy="cpu") as executor:
        executor.prepare(bound)
        executor.run(2)
    assert waited and all(waited)
