"""Option preemption: workers stay on their CPUs, or a waiting one swaps with one that another process pushed off."""

import os
import threading
import time
from pathlib import Path

import pytest

from forktask.cython_src.binding.bind import bind
from forktask.cython_src.errors import UsageError
from forktask.cython_src.graphs.task_bench import task_bench
from forktask.experiments.sampling.hogs import hogs_running
from forktask.tasking.executor import TaskIterExecutor, TasksExecutor

CPUS = sorted(os.sched_getaffinity(0))[:2]
pytestmark = [pytest.mark.timeout(120), pytest.mark.two_cpus]


def threads():
    return {int(folder.name) for folder in Path("/proc/self/task").iterdir()}


@pytest.mark.parametrize("placement", ["partitioned", "stealing"])
def test_workers_swap_cpus_beside_a_hog_and_go_back(placement):
    """Check that it happens, that each task still finds the right inputs, and where the threads are after each run."""
    plan = task_bench("stencil_1d", 8, 16, kernel="compute", work=2000)
    before = threads()
    with TaskIterExecutor(2, cpus=CPUS, placement=placement, preemption="swap") as executor, hogs_running(1, CPUS):
        workers = sorted(threads() - before)
        executor.prepare(bind(plan))
        done, end = 0, time.monotonic() + 20
        while executor._team.num_swaps == 0 and time.monotonic() < end:
            executor.run(20, done)
            done += 20
            assert sorted(os.sched_getaffinity(worker) == {cpu} for worker, cpu in zip(workers, CPUS, strict=True)) == [
                True,
                True,
            ]
        assert executor._team.num_swaps > 0


@pytest.mark.parametrize("options", [{}, {"cpus": CPUS[:1] * 2}])
def test_swaps_need_a_cpu_for_each_worker(options):
    """Check threads that are not pinned, and threads that share a CPU."""
    with pytest.raises(UsageError, match="preemption=swap.* 2 threads"):
        TaskIterExecutor(2, preemption="swap", **options)


@pytest.mark.parametrize("make", [TasksExecutor, TaskIterExecutor])
def test_swaps_need_blocks_without_pythons_lock(make):
    """Check that a plan whose blocks wait for the lock is refused, and that the executor stays usable."""
    plan = task_bench("stencil_1d", 4, 8, kernel="compute", work=500)
    with make(2, cpus=CPUS, preemption="swap") as executor:
        with pytest.raises(UsageError, match="use preemption=stay"):
            executor.prepare(bind(plan, target="numpy"))
        executor.prepare(bind(plan))
        executor.run(3)


@pytest.mark.parametrize("make", [TasksExecutor, TaskIterExecutor])
def test_workers_stay_unless_asked(make):
    """Check beside a hog that by default no thread changes its CPU, during a run either, and that none is counted."""
    plan = task_bench("stencil_1d", 8, 16, kernel="compute", work=2000)
    before = threads()
    with make(2, cpus=CPUS) as executor, hogs_running(1, CPUS):
        workers = sorted(threads() - before)
        executor.prepare(bind(plan))
        seen, running = set(), threading.Event()

        def look():
            while not running.is_set():
                seen.add(tuple(tuple(os.sched_getaffinity(worker)) for worker in workers))
                time.sleep(0.0005)

        looking = threading.Thread(target=look)
        looking.start()
        executor.run(1500)
        running.set()
        looking.join()
        assert seen == {tuple((cpu,) for cpu in CPUS)}
        assert executor._team.num_swaps == 0


def test_unknown_preemption_is_refused():
    """Check the message."""
    with pytest.raises(UsageError, match="preemption.*'move'"):
        TaskIterExecutor(1, preemption="move")
