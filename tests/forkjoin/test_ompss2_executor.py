"""OmpSs-2's tasks and taskiter: a process for each test, since the library starts once and must be preloaded."""

import os
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
from programs import run_python

from forktask.cython_src.binding.bind import bind
from forktask.cython_src.errors import MachineError, UsageError
from forktask.cython_src.graphs.task_bench import PATTERNS, task_bench
from forktask.experiments.subjects.models import parse_model, process_environment
from forktask.forkjoin import outside_executors
from forktask.forkjoin.outside_executors import OmpSs2Executor

SPECS = ("ompss2", *(f"ompss2:construct=tasks:taskwait={where}" for where in ("none", "loop", "phase", "iteration")))
BEGIN = """
import sys
sys.path.append({folder!r})
import numpy as np
from forktask.cython_src.binding.bind import bind
from forktask.cython_src.graphs.task_bench import task_bench
from forktask.cython_src.plan.builder import PlanBuilder
from forktask.cython_src.plan.model import Block, commutative
from forktask.experiments.subjects.models import make_executor
from forktask.forkjoin.executor import SerialExecutor
from test_outside_runtimes import all_to_all_plan

def run(plan, spec, num_threads, iterations, target="cpu", **settings):
    bound = bind(plan, target=target)
    with SerialExecutor() if spec == "serial" else make_executor(spec, num_threads, **settings) as executor:
        executor.prepare(bound)
        executor.run(1)
        executor.run(iterations - 1, 1)
        events = executor.workers.events() if settings else None
    return bound.arrays, events

"""


def run_alone(code, **options):
    """Run code in a process that preloads the library; return what it printed. Nothing may stay in /dev/shm."""
    code = BEGIN.format(folder=str(Path(__file__).parent)) + code
    before = set(Path("/dev/shm").iterdir())
    done = run_python(code, variables=process_environment(parse_model("ompss2")), timeout=100, **options)
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert not [path for path in set(Path("/dev/shm").iterdir()) - before if path.name.startswith("nosv")]
    return done.stdout


@pytest.mark.ompss2
@pytest.mark.parametrize("num_threads", [1, pytest.param(2, marks=pytest.mark.two_cpus)])
@pytest.mark.parametrize("spec", SPECS)
def test_patterns_joins_and_python_kernels_equal_serial(spec, num_threads):
    """Check every Task Bench pattern, hash chains through joins, compiled and in Python, and both in one process."""
    run_alone(f"""
for pattern in {PATTERNS}:
    arrays, _ = run(task_bench(pattern, 8, 6, kernel="load_imbalance", work=50), {spec!r}, {num_threads}, 23)
    assert arrays["cells"][0, 0, 0] == 23, pattern
expected, _ = run(all_to_all_plan(), "serial", 1, 10)
for target in ("cpu", "numpy"):
    arrays, _ = run(all_to_all_plan(), {spec!r}, {num_threads}, 10, target)
    for name in "ab":
        np.testing.assert_array_equal(arrays[name], expected[name])
""")


@pytest.mark.ompss2
@pytest.mark.two_cpus
@pytest.mark.parametrize("construct", ["taskiter", "tasks"])
def test_each_block_runs_once_on_the_thread_of_its_cpu(construct):
    """Check that the log has every block of every iteration once, that two workers ran, and the caller's affinity."""
    run_alone(f"""
import os
allowed = os.sched_getaffinity(0)
cpus = [max(allowed), min(allowed)]
plan = task_bench("no_comm", 8, 8, kernel="compute", work=50000)
_, events = run(plan, "ompss2:construct={construct}", 2, 10, cpus=cpus, event_capacity=2000)
assert set(events["worker"]) == {{0, 1}}
assert sorted(zip(events["iteration"].tolist(), events["task"].tolist())) == [
    (iteration, task) for iteration in range(10) for task in range(plan.num_tasks)]
assert os.sched_getaffinity(0) == allowed
""")


@pytest.mark.ompss2
@pytest.mark.two_cpus
@pytest.mark.parametrize("construct", ["taskiter", "tasks"])
def test_commutative_blocks_exclude_each_other(construct):
    """Check 100 iterations of blocks that update one buffer in any order: no update is lost."""
    run_alone(f"""
def plan():
    builder = PlanBuilder("sums")
    builder.buffer("sum", (1,), "uint64", role="statistic")
    blocks = [Block((0, 0, 1), (commutative("sum", (0, 1)),)) for i in range(16)]
    attributes = {{"work": 100, "fail_iteration": -1, "fail_index": 0}}
    builder.loop("add", "hash_chain", {{"out": "sum", "in": "sum"}}, blocks, attributes=attributes)
    return builder.build()
arrays, events = run(plan(), "ompss2:construct={construct}", 2, 100, event_capacity=4000)
assert len(events["task"]) == 1600
order = np.argsort(events["start_ns"])
assert (events["start_ns"][order][1:] >= events["stop_ns"][order][:-1]).all()
""")


@pytest.mark.ompss2
@pytest.mark.parametrize("construct", ["taskiter", "tasks"])
def test_a_failed_block_and_an_interrupted_run_end_it(construct):
    """Check that a failing block is named, and that a run of hours ends within seconds of a signal."""
    printed = run_alone(f"""
import os, signal, threading, time
try:
    run(all_to_all_plan(fail_iteration=5), "ompss2:construct={construct}", 1, 10)
except Exception as error:
    print(type(error).__name__, error)
threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    run(task_bench("stencil_1d", 8, 8, kernel="compute", work=1000), "ompss2:construct={construct}", 1, 2**30)
except KeyboardInterrupt:
    print("interrupted")
""")
    assert "iteration 5" in printed and printed.endswith("interrupted\n")


@pytest.mark.ompss2
def test_a_killed_process_leaves_nothing():
    """Check that the library's memory has no name any more while a plan runs."""
    code = (
        BEGIN.format(folder=str(Path(__file__).parent))
        + """
import os, signal
run(task_bench("no_comm", 2, 2), "ompss2", 1, 10)
os.kill(os.getpid(), signal.SIGKILL)
"""
    )
    done = run_python(code, variables=process_environment(parse_model("ompss2")), timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert not list(Path("/dev/shm").glob("nosv*"))


@pytest.mark.ompss2
@pytest.mark.two_cpus
def test_a_second_start_and_a_fork_are_refused():
    """Check the sentences for other threads in the same process, and for a process that was forked from it."""
    printed = run_alone("""
import os
plan = task_bench("no_comm", 2, 2)
run(plan, "ompss2", 1, 3)
for again in (lambda: run(plan, "ompss2", 2, 3), lambda: os.fork() or run(plan, "ompss2", 1, 3)):
    try:
        again()
    except RuntimeError as error:
        print(error, flush=True)
        if "fork" in str(error):
            os._exit(0)
os.wait()
""")
    assert "starts once in a process" in printed and "do not survive a fork" in printed


@pytest.fixture
def refused(monkeypatch):
    """Return a function that prepares a plan on one thread in this process, which has not preloaded the library."""
    monkeypatch.setattr(OmpSs2Executor, "_started", None)
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    monkeypatch.setattr(OmpSs2Executor, "guard", SimpleNamespace(enter=lambda: None, library="OmpSs-2"))

    def prepare():
        with OmpSs2Executor(1) as executor:
            executor.prepare(bind(task_bench("no_comm", 2, 2)))

    return prepare


def test_what_the_library_cannot_do_is_refused_in_a_sentence(refused, monkeypatch):
    """Check each refusal, which needs no library: it is never called."""
    with pytest.raises(UsageError, match="must have a CPU for each thread, got 2 threads"):
        OmpSs2Executor(2, cpus=[min(os.sched_getaffinity(0))] * 2)
    with pytest.raises(UsageError, match=r"taskwait must be none with construct=taskiter.*got loop; use"):
        OmpSs2Executor(1, taskwait="loop")
    with pytest.raises(UsageError, match="must run in a process that preloads nOS-V"):
        refused()
    monkeypatch.setenv("LD_PRELOAD", "/somewhere/libnosv.so")
    monkeypatch.setattr(outside_executors.shutil, "disk_usage", lambda folder: SimpleNamespace(free=64 << 20))
    with pytest.raises(MachineError, match="must have 160 MiB in /dev/shm, got 64 MiB"):
        refused()
    monkeypatch.setattr(OmpSs2Executor, "_started", [7, 8])
    with pytest.raises(MachineError, match=r"runs here on CPUs \[7, 8\]"):
        refused()
