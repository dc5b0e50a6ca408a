"""Workers that wait swap CPUs with workers that lost theirs to another process."""

import os
import time
from pathlib import Path

import pytest

from forktask.cython_src.binding.bind import bind
from forktask.cython_src.graphs.task_bench import task_bench
from forktask.experiments.sweep.run import hogs_running
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
    with TaskIterExecutor(2, cpus=CPUS, placement=placement) as executor, hogs_running(1, CPUS):
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


@pytest.mark.parametrize(
    ("options", "target"), [({"cpus": CPUS}, "numpy"), ({}, "cpu"), ({"cpus": CPUS[:1] * 2}, "cpu")]
)
def test_no_worker_swaps_where_that_would_mean_nothing(options, target):
    """Check blocks that wait for Python's lock, threads that are not pinned, and threads that share a CPU."""
    plan = task_bench("stencil_1d", 4, 8, kernel="compute", work=500)
    with TaskIterExecutor(2, **options) as executor, hogs_running(1, CPUS):
        executor.prepare(bind(plan, target=target))
        executor.run(30)
        assert executor._team.num_swaps == 0
