"""Hogs: processes that compete for the CPUs of measured threads, and the capacity that they leave."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence

from ...cython_src.kernels.bench.bench import TASK_BENCH_KERNELS, time_work

CAPACITY_S = 1.0  # duration of one measurement, long against a time slice
UNIT_WORK = 4000  # units that time a kernel alone: long against the call, short against a time slice
MOST_HOGS = 128
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
        rates = [0.0] * len(cpus)

        def spin(number: int) -> None:
            os.sched_setaffinity(0, {cpus[number]})  # pins the calling thread
            start = time.perf_counter()
            time_work(kernel, UNIT_WORK, count)
            rates[number] = count / (time.perf_counter() - start)

        threads = [threading.Thread(target=spin, args=(number,)) for number in range(len(cpus))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(rates)

    alone = rate()
    with hogs_running(hogs, cpus):
        beside = rate()
    return min(1.0, beside / max(alone, rate()))
