"""Traces: a run with the log of blocks and of what workers do in between, and what logging costs."""

from __future__ import annotations

import gc
import os
import resource
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ...cython_src.binding.bind import SPELL_KINDS, Workers
from ...cython_src.errors import UsageError
from ...cython_src.plan.dependences import record_graph
from ..events.event_states import STATES, instances, worker_states
from ..events.events import EventLog, write_events
from ..subjects.models import make_executor
from ..subjects.subject import build
from .hogs import injected
from .timing import Stepper, warm_up

MAX_BLOCK_EVENTS = 2_000_000  # of 32 bytes, for each worker
MIN_PASSES = 3
SPELLS_PER_BLOCK = 3
OVERHEAD_PAIRS = 5
LONG_PASS_S = 0.5  # passes that are longer are compared in two pairs
OVERHEAD_RUN_S = 0.05  # duration of each run that shows what logging costs


def measure_overhead(
    stepper: Stepper, workers: Workers, pass_time_s: float, capacity: int, num_tasks: int
) -> tuple[float, list[float]]:
    """Return by what fraction logging makes runs longer: by the shortest of runs with and without log, interleaved,
    which other processes disturb least; and of each pair."""
    passes = int(max(1, min(OVERHEAD_RUN_S / pass_time_s, capacity // num_tasks)))
    times: dict[bool, list[float]] = {False: [], True: []}
    for pair in range(OVERHEAD_PAIRS if pass_time_s < LONG_PASS_S else 2):
        for logged in (False, True) if pair % 2 == 0 else (True, False):
            workers.clear_events()
            workers.switch_log(logged)
            times[logged].append(stepper.run(passes))
    workers.switch_log(True)
    parts = [with_log / without - 1 for without, with_log in zip(times[False], times[True], strict=True)]
    return min(times[True]) / min(times[False]) - 1, parts


def _passes_to_log(job: Mapping[str, Any], plan, pass_time_s: float) -> int:
    """Return the passes of the logged run, by its time."""
    most = MAX_BLOCK_EVENTS // plan.num_tasks
    if not most:
        raise UsageError(
            f"a trace holds at most {MAX_BLOCK_EVENTS} blocks per thread, got {plan.num_tasks}; ask for coarser blocks"
        )
    return int(min(max(job["target_s"] / pass_time_s, MIN_PASSES), most))


def _logged_run(stepper: Stepper, passes: int, between: Callable[[], Any] | None) -> tuple[tuple[int, int], int]:
    """Run passes, with a cause of outliers in their middle; return start and stop in ns, and page faults.

    Garbage is collected before: memory of a device that is freed in between waits for the device, and no log says so.
    """
    gc.collect()
    collecting = gc.isenabled()
    gc.disable()
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    start = time.monotonic_ns()  # the clock of the log
    try:
        if between is None:
            stepper.run(passes)
        else:
            stepper.run(passes // 2)
            between()
            stepper.run(passes - passes // 2)
    finally:
        if collecting:
            gc.enable()
    run_ns = (start, time.monotonic_ns())
    return run_ns, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults


def trace_run(job: Mapping[str, Any], bound=None) -> EventLog:
    """Run a model with its event log on.

    Parameters
    ----------
    job : mapping
        As for a sample; the logged run lasts about `target_s`; `inject`: one of `injections.INJECTIONS`, for the logged
        run alone.
    bound : BoundPlan, optional
        Used in place of the job's plan.

    Raises
    ------
    UsageError
        More events than the log may hold.
    """
    spec = job["model"]
    bound = build(job, spec) if bound is None else bound
    with make_executor(spec, job["threads"], cpus=job["cpus"]) as executor:
        executor.prepare(bound)
        plan = bound.plan
        stride = plan.iteration_stride
        pass_time_s = warm_up(Stepper(executor, stride), job["warmup_s"]).pass_time_s
    passes = _passes_to_log(job, plan, pass_time_s)
    capacity = max(passes, MIN_PASSES) * plan.num_tasks
    with make_executor(spec, job["threads"], cpus=job["cpus"], event_capacity=capacity) as executor:
        executor.prepare(bound)
        workers = executor.workers
        workers.log_spells(SPELLS_PER_BLOCK * capacity + 1024)
        stepper = Stepper(executor, stride)
        stepper.run(MIN_PASSES)
        overhead, overheads = measure_overhead(stepper, workers, pass_time_s, capacity, plan.num_tasks)
        workers.clear_events()
        first_iteration = stepper.iterations_done
        cause = job.get("inject", "")
        with injected(cause, bound, job["cpus"]) as between:
            run_ns, faults = _logged_run(stepper, passes, between)
        blocks, (spells, lost) = workers.events(), workers.spells()
    graph = record_graph(plan.accesses, closed=True)
    created = spells[0][spells[0]["kind"] == SPELL_KINDS.index("creating")]
    barrier = spec.barrier
    times = instances(plan, graph, blocks, created, barrier, run_ns[0])
    events = worker_states(plan, times, blocks, spells, spec.model, barrier, run_ns)
    about = {
        "model": str(spec),
        "threads": job["threads"],
        "cpus": job["cpus"],
        "plan": dict(job["plan"]),
        "plan_name": plan.name,
        "run_start_ns": run_ns[0],
        "run_stop_ns": run_ns[1],
        "first_iteration": first_iteration,
        "iterations": passes * stride,
        "stride": stride,
        "barrier": barrier,
        "overhead": overhead,
        "overheads": overheads,
        "unlogged_step_time_s": pass_time_s / stride,
        "lost": lost,
        "injected": cause,
        "page_faults": faults,
        "num_events": len(events),
        "clock": "CLOCK_MONOTONIC",
        "states": STATES,
        "instruction_set": bound.instruction_set,
        "pid": os.getpid(),
    }
    loops = {name: [getattr(loop, name) for loop in plan.loops] for name in ("name", "layer", "phase", "first_task")}
    loops["num_blocks"] = [loop.num_blocks for loop in plan.loops]
    return EventLog(about, events, loops, np.array(graph.edges(), np.int32))


def measure_trace(job: Mapping[str, Any]) -> dict[str, Any]:
    """Trace a job's model, write the log to the job's `path`, and return a row about it, or why there is none: "usage"
    or, where the log cannot be written, "unwritable"."""
    reason = "usage"
    try:
        log = trace_run(job)
        reason = "unwritable"
        write_events(job["path"], log)
    except UsageError as error:
        return {"failure": reason, "message": str(error)}
    return {"kind": "trace", "path": job["path"], **log.about}
