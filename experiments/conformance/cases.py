"""Whether a model conforms: cases, each a generator that says what it is about to try, in a process of its own that may
crash or hang without harm.

python -P -m forktask.experiments.conformance.cases < job.json

Order is checked on the event log of graphs with work of random lengths: a block that starts before one that it depends
on has ended shows, whatever its result. Graphs grow, so that the first that fails is a small one.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ...cython_src.binding.bind import BlockFailure, bind
from ...cython_src.errors import UsageError
from ...cython_src.graphs.task_bench import replica, task_bench
from ...cython_src.plan.builder import PlanBuilder
from ...cython_src.plan.dependences import TaskGraph, record_graph, topological_order
from ...cython_src.plan.model import Block, Plan, commutative, concurrent, read, update, write
from ..machine.topology import available_cpus
from ..sampling.child import MeasuringProcess, ProcessFailure, answer_job, clean_environment, sample_environment
from ..subjects.models import SERIAL, ModelSpec, counts_for, make_executor, process_environment
from ..subjects.subject import build, result_hashes

COMMAND = (sys.executable, "-P", "-m", "forktask.experiments.conformance.cases")
LIMIT_S = 30.0  # of a step of a case
THREADS = (1, 2, 3, 4)
NETWORKS = (
    *("lenet5", "starpu_cnn", "cifar10_cnn", "gpt2_tiny", "mobilebert_tiny", "mobilenet_v1", "mobilenet_v2"),
    *("resnext29_2x64d", "resnet18", "preact_resnet18"),
)
SIZES, SEEDS = (2, 4, 8, 16, 48), 4  # blocks of a graph, about; graphs of each size
RUNS = ((0, 0), (0, 1), (1, 2), (3, 7), (40, 3))  # (first iteration, iterations)
CAPACITY = 1 << 16  # of the event log
WORK = 3_000  # units of an average block: some 5 us
WIDE_WORK = 1_000_000  # 2 ms
SETTLE_S = 0.02  # in which a block that runs after the end of its run is still logged
ROUNDS = 8
PAGE, MOST_KEPT = os.sysconf("SC_PAGE_SIZE"), 4 << 20  # resident bytes that executors may leave: of allocators
FAILS_AT = 3
ALARM_S, STOPS_S = 0.2, 5.0
COME_S = 5.0  # in which all threads must have run a block
Case = Iterator[str]


class Violation(Exception):
    """A model broke a rule; the text says which, and where."""


def random_plan(size: int, seed: int) -> Plan:
    """Return a graph of about `size` blocks in loops, whose accesses are of every kind and meet in any way."""
    rng = np.random.default_rng((size, seed))
    builder = PlanBuilder(f"random({size}, {seed})")
    cells = int(rng.integers(1, size + 2))
    for name in ("a", "b"):
        builder.buffer(name, (cells,), "uint64", role="statistic")
    left = size
    while left > 0:
        kinds = dict(zip("ab", rng.choice(np.array([read, write, update, concurrent, commutative]), 2), strict=True))
        cuts = np.unique([0, cells, *rng.integers(0, cells + 1, 12)]).tolist()
        parts = list(pairwise(cuts))
        alone = not {write, update}.isdisjoint(kinds.values())  # each block has a part of its own
        blocks = []
        for number in range(min(left, int(rng.integers(1, 13)), len(parts) if alone else size)):
            accesses = []
            for name, kind in kinds.items():
                part = parts[number] if kind in (write, update) else parts[int(rng.integers(len(parts)))]
                accesses.append(kind(name, (0, cells) if kind is read and rng.random() < 0.5 else part))
            blocks.append(Block((number, 0, cells), tuple(accesses)))
        attributes = {"work": 0, "fail_iteration": -1, "fail_index": 0}
        builder.loop(f"loop{left}", "hash_chain", {"out": "a", "in": "b"}, blocks, attributes=attributes)
        left -= len(blocks)
    plan = builder.build()
    return replica(plan, rng.exponential(1.0, plan.num_tasks) + 0.01, WORK)


def logged_run(executor: Any, plan: Plan, graph: TaskGraph, first: int, iterations: int) -> None:
    """Run iterations, and check the event log of them; raises `Violation`."""
    before = len(executor.workers.events())
    executor.run(iterations, first)
    returned_ns = time.monotonic_ns()
    time.sleep(SETTLE_S)
    events = executor.workers.events()
    if before:
        events = np.sort(events, order="start_ns")[before:]
    check_log(plan, graph, events, first, iterations, returned_ns)


def check_log(plan: Plan, graph: TaskGraph, events: np.ndarray, first: int, iterations: int, returned_ns: int) -> None:
    """Raise `Violation` unless each block of each iteration ran once, after those that it depends on, by a worker that
    ran nothing else, and before the run returned."""
    run = f"a run of {iterations} iterations from {first} on"
    for event in events:
        if not first <= event["iteration"] < first + iterations:
            raise Violation(f"{plan.task_name(event['task'])} ran as of iteration {event['iteration']} in {run}")
        if event["stop_ns"] > returned_ns:
            raise Violation(f"run() returned before {plan.task_name(event['task'])} had ended, in {run}")
    index = (events["iteration"] - first) * plan.num_tasks + events["task"]
    counts = np.bincount(index, minlength=iterations * plan.num_tasks)
    if (counts != 1).any():
        iteration, task = divmod(int(np.argmax(counts != 1)), plan.num_tasks)
        number = counts[iteration * plan.num_tasks + task]
        raise Violation(
            f"{plan.task_name(task)} must run once in iteration {first + iteration}, ran {number} times in {run}"
        )
    for worker in np.unique(events["worker"]):
        own = np.sort(events[events["worker"] == worker], order="start_ns")
        if (own["start_ns"][1:] < own["stop_ns"][:-1]).any():
            raise Violation(f"two threads ran blocks as worker {worker} at once, in {run}")
    _check_order(plan, graph, events[np.argsort(index)], first, iterations)


def _check_order(plan: Plan, graph: TaskGraph, events: np.ndarray, first: int, iterations: int) -> None:
    """Raise `Violation` where a block started before one that it depends on had ended. `events`: by iteration and
    task. A join ends with the last of those that lead to it."""
    leading: list[list[tuple[int, int]]] = [[] for _ in range(graph.num_nodes)]
    for source, target, token in zip(*(array.tolist() for array in graph.edges()), strict=True):
        leading[target].append((token, source))
    order = topological_order(graph.successor_offsets, graph.successor_split, graph.successors).tolist()
    ends: dict[tuple[int, int], tuple[int, str]] = {}
    for iteration in range(iterations):
        for node in order:
            before = [ends[iteration - token, source] for token, source in leading[node] if token <= iteration]
            last, cause = max(before, default=(0, ""))
            if node < plan.num_tasks:
                event = events[iteration * plan.num_tasks + node]
                name = f"{plan.task_name(node)} of iteration {first + iteration}"
                if event["start_ns"] < last:
                    early = (last - event["start_ns"]) / 1000
                    raise Violation(f"{name} started {early:.3g} µs before {cause} had ended, on which it depends")
                last, cause = int(event["stop_ns"]), name
            ends[iteration, node] = last, cause


def order(spec: ModelSpec, threads: Sequence[int]) -> Case:
    """Each block runs once per iteration, after those that it depends on."""
    for size in SIZES:
        for seed in range(SEEDS):
            plan = random_plan(size, seed)
            graph = record_graph(plan.accesses, closed=True)
            for number in threads:
                yield f"{plan.num_tasks} tasks in {len(plan.loops)} loops on {number} threads"
                with make_executor(spec, number, event_capacity=CAPACITY) as executor:
                    executor.prepare(bind(plan))
                    for first, iterations in RUNS:
                        logged_run(executor, plan, graph, first, iterations)


def bits(spec: ModelSpec, threads: Sequence[int]) -> Case:
    """Weights and losses are those of `serial`, also of a run in parts."""
    for network in NETWORKS:
        bound = build({"plan": {"network": network, "batch": 2}, "seed": 1, "threads": 1}, SERIAL)
        start = {name: array.copy() for name, array in bound.arrays.items()}
        expected = None
        for model, number in ((SERIAL, 1), *((spec, number) for number in threads)):
            yield f"{network} on {number} threads"
            for name, array in start.items():
                bound.arrays[name][...] = array
            with make_executor(model, number) as executor:
                executor.prepare(bound)
                done = 0
                for iterations in (3,) if expected is None else (1, 2):
                    executor.run(iterations * bound.iteration_stride, done)
                    done += iterations * bound.iteration_stride
            result = result_hashes(bound)
            if expected is not None and result != expected:
                raise Violation(f"other bits than serial after {done} iterations of {network}, on {number} threads")
            expected = result


def all_threads(spec: ModelSpec, threads: Sequence[int]) -> Case:
    """Independent blocks of milliseconds are run by all threads."""
    for number in threads:
        yield f"{16 * number} independent blocks of 2 ms on {number} threads"
        plan = task_bench("no_comm", 8 * number, 2, kernel="compute", work=WIDE_WORK)
        seen: set[int] = set()
        with make_executor(spec, number, event_capacity=CAPACITY) as executor:
            executor.prepare(bind(plan))
            ends, done = time.monotonic() + COME_S, 0
            while len(seen) < number and time.monotonic() < ends:
                executor.run(1, done)
                seen |= set(executor.workers.events()["worker"].tolist())
                done += 1
        if len(seen) != number:
            raise Violation(f"{number} threads must run blocks, workers {sorted(seen)} of them did")


def failing_block(spec: ModelSpec, threads: Sequence[int]) -> Case:
    """A block that fails ends the run with its iteration, and the executor stays usable."""
    builder = PlanBuilder("fails")
    builder.buffer("out", (8,), "uint64", role="statistic")
    builder.buffer("in", (8,), "uint64", role="statistic")
    blocks = [Block((i, 0, 8), (update("out", (i, i + 1)), read("in"))) for i in range(8)]
    attributes = {"work": 10, "fail_iteration": FAILS_AT, "fail_index": 5}
    builder.loop("fails", "hash_chain", {"out": "out", "in": "in"}, blocks, attributes=attributes)
    plan = builder.build()
    for number in threads:
        yield f"block 5 of iteration {FAILS_AT} fails, on {number} threads"
        with make_executor(spec, number) as executor:
            executor.prepare(bind(plan))
            try:
                executor.run(10)
            except BlockFailure as failure:
                if f"iteration {FAILS_AT} " not in str(failure):
                    raise Violation(f"the failure of iteration {FAILS_AT} must be raised, got: {failure}") from None
            else:
                raise Violation("a block that fails must end the run with BlockFailure, run() returned")
            executor.run(10, 10)


def again(spec: ModelSpec, threads: Sequence[int]) -> Case:
    """One executor runs several plans, one after the other, each prepared twice."""
    for number in threads:
        with make_executor(spec, number, event_capacity=CAPACITY) as executor:
            for size in (16, 4, 24):
                yield f"prepare() with another plan, of {size} tasks, on {number} threads"
                plan = random_plan(size, 0)
                bound = bind(plan)
                executor.prepare(bound)
                executor.prepare(bound)
                logged_run(executor, plan, record_graph(plan.accesses, closed=True), 0, 3)


def two_at_once(spec: ModelSpec, threads: Sequence[int]) -> Case:
    """Two executors run at the same time."""
    number, plan = threads[-1], random_plan(24, 1)
    graph = record_graph(plan.accesses, closed=True)
    yield f"two executors on {number} threads each"

    def run(executor: Any) -> None:
        for first in range(0, 40, 4):
            logged_run(executor, plan, graph, first, 4)

    with (
        make_executor(spec, number, event_capacity=CAPACITY) as one,
        make_executor(spec, number, event_capacity=CAPACITY) as other,
        ThreadPoolExecutor(2) as pool,
    ):
        for executor in (one, other):
            executor.prepare(bind(plan))
        list(pool.map(run, (one, other)))


def given_back(spec: ModelSpec, threads: Sequence[int]) -> Case:
    """Threads end with their executor, and its memory is given back."""
    number, plan = threads[-1], random_plan(8, 0)
    counts, resident = [], []
    for done in range(ROUNDS):
        yield f"executor {done + 1} of {ROUNDS} is closed, on {number} threads"
        with make_executor(spec, number) as executor:
            executor.prepare(bind(plan))
            executor.run(3)
        time.sleep(SETTLE_S)  # a thread that was joined is still listed for a moment
        counts.append(len(list(Path("/proc/self/task").iterdir())))
        resident.append(int(Path("/proc/self/statm").read_text().split()[1]) * PAGE)
    if counts[-1] > counts[1]:  # some libraries keep a pool
        raise Violation(f"close() must end all threads, {counts[-1] - counts[1]} are left after {ROUNDS - 2} more")
    if (grown := resident[-1] - resident[1]) > MOST_KEPT:
        raise Violation(f"close() must give memory back, {grown >> 10} KiB are left after {ROUNDS - 2} more executors")


def fork(spec: ModelSpec, threads: Sequence[int]) -> Case:
    """A process that forks and whose child ends goes on."""
    plan = random_plan(16, 0)
    graph = record_graph(plan.accesses, closed=True)
    for number in threads:
        yield f"a child is forked and ends between two runs, on {number} threads"
        with make_executor(spec, number, event_capacity=CAPACITY) as executor:
            executor.prepare(bind(plan))
            logged_run(executor, plan, graph, 0, 3)
            if (child := os.fork()) == 0:
                os._exit(0)
            os.waitpid(child, 0)
            logged_run(executor, plan, graph, 3, 3)


def interrupt(spec: ModelSpec, threads: Sequence[int]) -> Case:
    """Ctrl-C ends a run."""
    plan = random_plan(16, 0)

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, stop)
    for number in threads:
        yield f"a signal arrives in a run of many iterations, on {number} threads"
        with make_executor(spec, number) as executor:
            executor.prepare(bind(plan))
            signal.setitimer(signal.ITIMER_REAL, ALARM_S)
            start = time.monotonic()
            try:
                executor.run(1 << 30)
            except KeyboardInterrupt:
                if (waited := time.monotonic() - start - ALARM_S) > STOPS_S:
                    raise Violation(f"a signal must end a run soon, it took {waited:.3g} s") from None
            else:
                raise Violation("what a signal's handler raises must end the run and reach its caller, run() returned")
            executor.run(2)


CASES: dict[str, Callable[[ModelSpec, Sequence[int]], Case]] = {
    "order": order,
    "all threads": all_threads,
    "failing block": failing_block,
    "several plans": again,
    "two at once": two_at_once,
    "given back": given_back,
    "fork": fork,
    "Ctrl-C": interrupt,
    "bits": bits,
}


def check_model(
    spec: ModelSpec, threads: Sequence[int] = THREADS, limit_s: float = LIMIT_S
) -> Iterator[dict[str, Any]]:
    """Yield a row for each case: `case`, `rule`, and `fault`, None where the model keeps the rule. A case that crashes
    or never ends is the last. Raises `UsageError`: a model of a GPU or another program, which runs no plans on
    threads."""
    if spec.is_gpu or spec.is_peer:
        raise UsageError(f"check-model takes models that run plans on threads of the CPU, got {spec}; name another one")
    counts = sorted(counts_for(spec, threads))
    settings = sample_environment(counts[-1], 0, len(available_cpus()), "passive")
    environment = clean_environment(os.environ, {**settings, **process_environment(spec)})
    for case, function in CASES.items():
        job = {"model": str(spec), "case": case, "threads": counts, "cpus": None}
        ended, tried = True, ""
        with MeasuringProcess(job, environment, limit_s, COMMAND) as process:
            try:
                while (reply := process.ask(None, limit_s) if tried else process.answer())["tries"]:
                    tried = reply["tries"]
                fault = reply["fault"]
            except ProcessFailure as failure:
                ended, fault = False, f"{failure.row['failure']}: {str(failure).splitlines()[0]} ({tried})"
        yield {"case": case, "rule": (function.__doc__ or "").rstrip("."), "fault": fault}
        if not ended:
            return


def check(job: Mapping[str, Any]) -> Any:
    """Try a case of a job; yields {"tries": text} before each step, then {"tries": None, "fault": text or None}."""
    tried = ""
    try:
        for tried in CASES[job["case"]](job["model"], job["threads"]):
            yield {"tries": tried}
    except Exception as error:
        text = str(error) if isinstance(error, Violation) else f"{type(error).__name__}: {error}"
        yield {"tries": None, "fault": f"{text} ({tried})"}
    else:
        yield {"tries": None, "fault": None}
    return {}


if __name__ == "__main__":
    sys.exit(answer_job(check))
