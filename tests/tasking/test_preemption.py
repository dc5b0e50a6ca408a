"""Option preemption: workers stay on their CPUs, or a waiting one swaps with one that another process pushed off."""

import os
import time
from pathlib import Path

import pytest

from forktask.cython_src.binding.bind import bind
from forktask.cython_src.errors import UsageError
from forktask.cython_src.graphs.task_bench import task_bench
from forktask.experiments.sampling.hogs import hogs_running
from forktask.tasking.executor import TaskIterExecutor

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
