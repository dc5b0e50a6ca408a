"""Profile: a run with the event log on, which gives times of blocks, loops and phases, and the runtime's cost."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from ...cython_src.graphs.task_bench import replica
from ..bounds.bounds import durations_by_loop, plan_bounds, predicted_times
from ..machine.numa import remote_bytes
from ..machine.perf_counters import PerfCounters, block_events
from ..machine.topology import places_of
from ..subjects.models import bind_for, make_executor
from ..subjects.subject import build
from .block_counters import BlockCounters
from .phases import PHASE_BARRIERS, phase_walls, phases_beside
from .timing import Stepper

MAX_PROFILE_EVENTS = 250_000  # of 32 bytes, for each worker
EVENT_LOG_WARMUP = 3  # passes before logging begins, fewer where they take as long as the logged run
COUNTED_PASSES = 20  # at most
RUNTIME_COST_RUNS = 7
RUNTIME_COST_RUN_S = 0.01  # duration of each of these runs


def block_times(events: np.ndarray, plan, num_passes: int) -> dict[str, Any]:
    """Summarise the event log by blocks and loops.

    Parameters
    ----------
    events : structured array as of `Workers.events`
    plan : Plan
    num_passes : int
        Passes through the plan that were logged.

    Returns
    -------
    dict
        block_time_s: {loop: seconds of each block, median over passes, so that one that was pushed off its
        CPU does not count}. Means over passes, which add up: block_mean_s, likewise; loop_time_s: {loop: busy
        seconds}.

    Raises
    ------
    RuntimeError
        A block was not run exactly once in each pass.
    """
    num_tasks = plan.num_tasks
    counts = np.bincount(events["task"], minlength=num_tasks)
    if len(counts) != num_tasks or (counts != num_passes).any():
        task = int(np.argmax(counts != num_passes))
        raise RuntimeError(
            f"{plan.task_name(task)} must run {num_passes} times in {num_passes} passes, ran {counts[task]} times"
        )
    duration = (events["stop_ns"] - events["start_ns"]) * 1e-9
    by_task = duration[np.argsort(events["task"], kind="stable")].reshape(num_tasks, num_passes)
    typical, mean = np.median(by_task, axis=1), by_task.mean(axis=1)
    block_time_s: dict[str, list[float]] = {}
    block_mean_s: dict[str, list[float]] = {}
    loop_time_s: dict[str, float] = {}
    for loop in plan.loops:  # A chain is several loops under one name.
        tasks = slice(loop.first_task, loop.first_task + loop.num_blocks)
        block_time_s.setdefault(loop.name, []).extend(typical[tasks].tolist())
        block_mean_s.setdefault(loop.name, []).extend(mean[tasks].tolist())
        loop_time_s[loop.name] = loop_time_s.get(loop.name, 0.0) + float(mean[tasks].sum())
    return {"block_time_s": block_time_s, "block_mean_s": block_mean_s, "loop_time_s": loop_time_s}


def measure_runtime_cost(job: Mapping[str, Any], plan) -> float:
    """Measure a pass through the plan's graph with empty kernels, in seconds: the cost of barriers or tasks.

    The median of several runs. While other threads compute, the same work of the runtime may cost more, or be hidden.
    """
    bound = bind_for(job["model"], replica(plan, np.ones(plan.num_tasks), 0))
    with make_executor(job["model"], job["threads"], cpus=job["cpus"]) as executor:
        executor.prepare(bound)
        return float(np.median(Stepper(executor).pass_times(RUNTIME_COST_RUN_S, RUNTIME_COST_RUNS)))


def count_blocks(job: Mapping[str, Any], bound, passes: int) -> dict[str, Any]:
    """Count events in blocks, in a run of its own that is not timed.

    Returns
    -------
    dict
        by_kernel: {kernel: {event: count of a step}}; by_thread: the same of each thread; error: why an event is
        missing, empty where none is.
    """
    events = block_events(job.get("counters", ()))
    with PerfCounters(events) as tried:
        names, error = tried.counted, tried.error
    if not names:
        return {"by_kernel": {}, "by_thread": [], "error": error}
    spec = job["model"]
    if spec.option("unroll", 1) > 1:  # whose executor binds the unrolled plan itself: the same graph, bound before
        with make_executor(spec, job["threads"]) as executor:
            bound = bound.again(executor.unrolled(bound.plan))
        spec = spec.with_options(unroll=1, slots=1)
    with (
        BlockCounters(bound, job["threads"], [events[name] for name in names]) as counters,
        make_executor(spec, job["threads"], cpus=job["cpus"]) as executor,
    ):
        executor.prepare(bound)
        stepper = Stepper(executor, bound.iteration_stride)
        stepper.run(1)
        counters.sums[...] = 0
        stepper.run(passes)
    if counters.error:  # many threads need many open files
        return {"by_kernel": {}, "by_thread": [], "error": os.strerror(counters.error)}
    sums, steps = counters.sums, passes * bound.iteration_stride

    def of_step(part: np.ndarray) -> dict[str, float | None]:
        """Return the counts of a step; events that take turns on the processor's counters are scaled up."""
        rows = zip(names, part.reshape(-1, len(names), 3).sum(axis=0).tolist(), strict=True)
        return {
            name: n * enabled / running / steps if running else (None if enabled else 0.0)
            for name, (n, enabled, running) in rows
        }

    kernels = np.array([loop.kernel for loop in bound.plan.loops])
    return {
        "by_kernel": {name: of_step(sums[:, kernels == name]) for name in dict.fromkeys(kernels.tolist())},
        "by_thread": [of_step(of_worker) for of_worker in sums],
        "error": error,
    }


def bytes_from_afar(job: Mapping[str, Any], bound, events: np.ndarray) -> dict[str, tuple[float, float]] | None:
    """Return what `remote_bytes` does of the passes that were logged; None: there is one node, or threads roam."""
    if len(job.get("memory_nodes", ())) < 2 or not job["cpus"]:
        return None
    node_of_worker = np.array([node for _, node, _, _ in places_of(job["cpus"])])
    by_task = events["worker"][np.argsort(events["task"], kind="stable")].reshape(bound.num_tasks, -1)
    return remote_bytes(bound.plan, bound.arrays, node_of_worker[by_task.T])


def measure_profile(job: Mapping[str, Any], bound=None) -> dict[str, Any]:
    """Run with the event log on: times of blocks, loops and phases, and the graph's bounds with these times.

    A profile is never a source of step times, because the log costs time. `floors` are those of this very run, from the
    means of its blocks: no pass takes less time than its own blocks allow, so `pass_time_s`, its mean time, is never
    below them. The same graph with empty kernels then gives the runtime's cost.
    """
    spec = job["model"]
    started = time.time()
    bound = build(job) if bound is None else bound
    plan, stride = bound.plan, bound.iteration_stride
    capacity = max(MAX_PROFILE_EVENTS, EVENT_LOG_WARMUP * plan.num_tasks)
    with make_executor(spec, job["threads"], cpus=job["cpus"], event_capacity=capacity) as executor:
        executor.prepare(bound)
        stepper = Stepper(executor, stride)
        warm = [stepper.run(1)]
        while len(warm) < EVENT_LOG_WARMUP and sum(warm) < job["target_s"]:
            warm.append(stepper.run(1))
        pass_time_s = min(warm)
        passes = int(min(max(job["target_s"] / pass_time_s, 3), capacity // plan.num_tasks, 200))
        executor.workers.clear_events()
        wall = stepper.run(passes)
        events = executor.workers.events()
    times = block_times(events, plan, passes)
    means = times.pop("block_mean_s")
    loops = durations_by_loop(plan.loops, means)
    return {
        **times,
        "counts": count_blocks(job, bound, min(passes, COUNTED_PASSES)),
        "remote_bytes": bytes_from_afar(job, bound, events),
        "phase_wall_s": phase_walls(events, plan, passes) if spec.barrier in PHASE_BARRIERS else None,
        "phase_beside_s": phases_beside(events, plan, passes),
        "runtime_cost_s": measure_runtime_cost(job, plan) if stride == 1 else None,
        "bounds": asdict(plan_bounds(plan, times["block_time_s"])),
        "floors": predicted_times(loops, job["threads"], None, plan_bounds(plan, means)),
        "pass_time_s": wall / passes,
        "barrier": spec.barrier,
        "iterations": passes * stride,
        "step_time_s": wall / (passes * stride),
        "instruction_set": bound.instruction_set,
        "pid": os.getpid(),
        "started": started,
    }
