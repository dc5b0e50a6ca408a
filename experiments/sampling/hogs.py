"""Hogs: processes that compete for the CPUs of measured threads, and the capacity that they leave; and causes of
outliers that are injected into a run whose event log is on, so that a diagnosis can be held against them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from ...cython_src.affinity import kept_affinity
from ...cython_src.errors import UsageError
from ...cython_src.kernels.bench.bench import TASK_BENCH_KERNELS, time_work
from ..machine.topology import available_cpus

CAPACITY_S = 1.0  # duration of one measurement, long against a time slice
UNIT_WORK = 4000  # units that time a kernel alone: long against the call, short against a time slice
MOST_HOGS = 128
INJECTIONS = ("first-touch", "cold-cache", "preemption")
EVICTED_BYTES = 1 << 27  # that are written on each CPU to empty its caches: more than any last level holds for a core
LEFT_S = 0.04  # for which a hog leaves the CPU before it takes it again
MADV_DONTNEED = 4  # Linux, all architectures
SPELL_S = 0.004  # a hog spins so long without a look around


@contextlib.contextmanager
def hogs_running(count: int, cpus: Sequence[int], rest_s: float = 0.0) -> Iterator[list[subprocess.Popen]]:
    """Keep `count` processes spinning on as many of `cpus`, the last CPU first; they end with this process.

    They have a process group of their own, so that Ctrl-C does not reach them, but the same session: Linux shares a
    CPU between sessions first (autogroups), and a session whose threads are on two CPUs weighs half on each. A hog in
    a session of its own would take two thirds of a CPU instead of half. Each sleeps for `rest_s` between spells of
    `SPELL_S`.
    """
    program = (
        "import os, sys, time\nparent, cpu, spell_s, rest_s = map(float, sys.argv[1:])\n"
        "os.sched_setaffinity(0, {int(cpu)})\nprint(flush=True)\nwhile os.getppid() == parent:\n"
        "    if rest_s: time.sleep(rest_s)\n"
        "    end = time.perf_counter() + spell_s\n    while time.perf_counter() < end: pass\n"
    )
    hogs = []
    try:
        for k in range(count):
            arguments = map(str, (os.getpid(), cpus[-1 - k % len(cpus)], SPELL_S, rest_s))
            hogs.append(
                subprocess.Popen(
                    [sys.executable, "-P", "-S", "-c", program, *arguments],
                    stdout=subprocess.PIPE,
                    stdin=subprocess.DEVNULL,
                    process_group=0,
                )
            )
        for hog in hogs:
            hog.stdout.readline()  # The hog writes a line when it begins to spin.
        yield hogs
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()
            hog.stdout.close()


def measure_capacity_beside(hogs: int, cpus: Sequence[int], seconds: float = CAPACITY_S) -> float:
    """Measure the part of its usual work, in (0, 1], that one spinning thread on each of `cpus` does while hogs run."""
    kernel = TASK_BENCH_KERNELS.index("compute")
    unit_s = min(time_work(kernel, UNIT_WORK, 10) for _ in range(15)) / 10
    count = max(1, round(seconds / unit_s))

    def rate() -> float:
        def spin(cpu: int) -> float:
            os.sched_setaffinity(0, {cpu})  # pins the calling thread
            start = time.perf_counter()
            time_work(kernel, UNIT_WORK, count)
            return count / (time.perf_counter() - start)

        with ThreadPoolExecutor(len(cpus)) as pool:
            return sum(pool.map(spin, cpus))

    alone = rate()
    with hogs_running(hogs, cpus):
        beside = rate()
    return min(1.0, beside / max(alone, rate()))


@contextlib.contextmanager
def injected(cause: str, bound, cpus: Sequence[int] | None) -> Iterator[Callable[[], None] | None]:
    """Inject a cause of outliers, or none with an empty text, while a run lasts.

    Parameters
    ----------
    cause : str
        One of `INJECTIONS`. first-touch: pages of the transient buffers are given back to the system before the run, so
        that the first pass touches them as after start. preemption: a process that needs the last CPU for some
        milliseconds, again and again.
    bound : BoundPlan
    cpus : sequence of int or None
        Of the workers.

    Yields
    ------
    callable or None
        cold-cache: to be called in the middle of the run, when no worker is in a block; writes more memory on each CPU
        than its caches hold.
    """
    used = available_cpus() if cpus is None else list(cpus)
    if cause == "preemption":
        with hogs_running(1, used[-1:], LEFT_S):
            yield None
        return
    if cause == "first-touch":
        _give_back(bound)
    yield (lambda: _evict(used)) if cause == "cold-cache" else None


def _give_back(bound) -> None:
    """Give the whole pages of all transient buffers back; they read as zero again, as right after binding."""
    page = os.sysconf("SC_PAGE_SIZE")
    libc = ctypes.CDLL(None, use_errno=True)
    for name, buffer in bound.plan.buffers.items():
        if buffer.persistent:
            continue
        array = bound.arrays[name]
        first = -(-array.ctypes.data // page) * page
        size = (array.ctypes.data + array.nbytes - first) // page * page
        if size > 0 and libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(size), MADV_DONTNEED) != 0:
            raise UsageError(
                f"first-touch must give memory back to the system, but it refuses: {os.strerror(ctypes.get_errno())}"
            )


def _evict(cpus: Sequence[int]) -> None:
    """Write more memory on each CPU than its caches hold, and come back to where this thread may run."""
    memory = np.zeros(EVICTED_BYTES, np.uint8)
    with kept_affinity():
        for cpu in dict.fromkeys(cpus):
            os.sched_setaffinity(0, {cpu})
            memory += 1
