"""Observe what an executor does besides running blocks, and print it beside the executor's own record, as JSON.

python -P conduct_probe.py MODEL
"""

import ctypes
import json
import os
import platform
import signal
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np

from forktask.cython_src.binding.bind import bind
from forktask.cython_src.graphs.task_bench import task_bench
from forktask.cython_src.kernels.interface.kernel_spec import KernelSpec, register
from forktask.cython_src.plan.builder import PlanBuilder
from forktask.cython_src.plan.model import Block, update
from forktask.experiments.subjects.models import make_executor, parse_model

MEMBARRIER = {"x86_64": 324, "aarch64": 283}  # numbers of the system call
PRIVATE_EXPEDITED = 8
WIDTH, STEPS = 4, 6
LONG_WORK = 20_000_000  # a task of some 50 ms: a thread without naps is woken twice for each
seen = []


def look(operands, attributes, bounds, iteration):
    """Kernel that notes the state of the thread that runs it. Sleeping lets other threads come."""
    tiny = np.array([1e-30], np.float32)
    seen.append(
        {
            "thread": threading.get_native_id(),
            "cpus": sorted(os.sched_getaffinity(0)),
            "blocks_sigint": signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []),
            "flushes": float((tiny * np.float32(1e-10))[0]) == 0.0,
        }
    )
    time.sleep(0.002)


def looking_plan():
    register(KernelSpec(name="test_look", operands=("out",), integers=(), bounds=("i",), reference=look))
    builder = PlanBuilder("looking")
    builder.buffer("out", (WIDTH,), role="statistic")
    for step in range(STEPS):
        blocks = [Block((i,), (update("out", (i, i + 1)),)) for i in range(WIDTH)]
        builder.loop(f"step{step}", "test_look", {"out": "out"}, blocks)
    return builder.build()


def threads():
    return {int(folder.name) for folder in Path("/proc/self/task").iterdir()}


def voluntary_switches(thread):
    text = Path(f"/proc/self/task/{thread}/status").read_text()
    return int(text.partition("\nvoluntary_ctxt_switches:")[2].split()[0])


def switches_in(executor, plan, seconds):
    """Voluntary switches of each thread in a run of about so many seconds, and how long it took."""
    executor.prepare(bind(plan))
    executor.run(1)
    start = time.monotonic()
    executor.run(2, 1)
    count = max(1, round(2 * seconds / (time.monotonic() - start)))
    before = {thread: voluntary_switches(thread) for thread in threads()}
    start = time.monotonic()
    executor.run(count, 3)
    took = time.monotonic() - start
    return {
        thread: voluntary_switches(thread) - former for thread, former in before.items() if thread in threads()
    }, took


def main(model):
    cpus, me = sorted(os.sched_getaffinity(0))[:2], threading.get_native_id()
    bound = bind(looking_plan(), target="numpy")
    about = parse_model(model).model
    cpus = cpus[: about.max_threads]
    counts = [len(threads())]
    with make_executor(model, len(cpus), cpus=cpus) as executor:
        counts.append(len(threads()))
        executor.prepare(bound)
        counts.append(len(threads()))
        executor.run(1)
        counts.append(len(threads()))
        first, after = list(seen), {t: sorted(os.sched_getaffinity(t)) for t in threads()}
        seen.clear()
        executor.run(1, 1)
        result = {
            "conduct": asdict(executor.conduct()),
            "cpus": cpus,
            "caller": me,
            "first_run": first,
            "second_run": list(seen),
            "num_threads": counts,
            "affinity_after": after,
            "caller_affinity": sorted(os.sched_getaffinity(0)),
            "allowed": sorted(os.sched_getaffinity(os.getppid())),
        }
        wide = task_bench("no_comm", 8, 8, kernel="compute", work=20_000)
        long_task = task_bench("no_comm", 1, 2, kernel="compute", work=LONG_WORK)
        if about.max_threads != 1 and not about.far_behind:
            by_thread, took = switches_in(executor, wide, 0.4)
            result["caller_switches_per_s"] = by_thread[me] / took
            by_thread, took = switches_in(executor, long_task, 0.4)
            del by_thread[me]
            result["sleeper_switches_per_s"] = max(by_thread.values(), default=0) / took
    maps = Path("/proc/self/maps").read_text()
    result["openmp"] = "libomp" if "/libomp" in maps else "libgomp" if "/libgomp" in maps else ""
    result["membarrier"] = ctypes.CDLL(None).syscall(MEMBARRIER[platform.machine()], PRIVATE_EXPEDITED, 0, 0) == 0
    print(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1])
