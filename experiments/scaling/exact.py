"""Exact tier: facts that hold on any machine, however slow or disturbed. Nothing here reads a clock.

    python -P -m forktask.experiments.scaling.exact < job.json

reads a job (one JSON object with `model`, `threads`, `plan`, `seed`, `passes`, `arrays_file` and, for the model tier,
`predict`) and writes the facts of one model on one number of threads. `facts_of` starts these processes; `failures`
compares what they say. A job with `overlap` writes how many blocks ran at once.
"""

from __future__ import annotations

import ctypes
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ...cython_src.plan import dependences
from ..events.events import number_at
from ..machine.topology import available_cpus
from ..sampling.child import answer_job, measure_in_process, sample_environment
from ..sampling.profile import block_times
from ..sampling.timing import Stepper
from ..subjects.models import SERIAL, ModelSpec, make_executor, process_environment
from ..subjects.subject import build, hash_arrays
from ..tables.numbers import plural
from .model import graph_differences, graph_facts, make_entry

EXACT_COMMAND = (sys.executable, "-P", "-m", "forktask.experiments.scaling.exact")
COUNTER = "forktask_malloc_count"
PASSES = 4  # passes through the plan before results are compared
ALLOCATION_PASSES = 8
ALLOCATION_TRIES = 3
ALL_WORKERS_S = 20.0  # A process waits at most so long until each of its threads got a block.
OVERLAP_S = 5.0  # A process tries at most so long to see blocks run at once.
UNSWITCHED_S = 1000.0  # Python takes the GIL from no thread sooner.
TIME_LIMIT_S = 300.0


@contextmanager
def recordings_counted() -> Iterator[list[int]]:
    """Count calls of `record_graph` from any module of the package; the list's only element is the count."""
    real, count = dependences.record_graph, [0]

    def counted(*arguments, **options):
        count[0] += 1
        return real(*arguments, **options)

    package = __package__.split(".")[0]
    users = [
        module
        for name, module in list(sys.modules.items())
        if name.split(".")[0] == package and getattr(module, "record_graph", None) is real
    ]
    for module in users:
        module.record_graph = counted
    try:
        yield count
    finally:
        for module in users:
            module.record_graph = real


def malloc_counter() -> Callable[[], int] | None:
    """Return a function that reads the preloaded count of allocator calls; None in a process without it."""
    try:
        counter = ctypes.CDLL(None).forktask_malloc_calls
    except AttributeError:
        return None
    counter.restype = ctypes.c_int64
    return counter


def allocations_per_pass(run: Callable[[int], None], counter: Callable[[], int]) -> float:
    """Return the allocator calls of one more pass: (calls of a long run - calls of a short one) / difference in passes.

    Calls that do not depend on the length of a run cancel. The smallest of a few tries counts, because another thread
    of the process may allocate meanwhile.
    """
    per_pass = []
    for _ in range(ALLOCATION_TRIES):
        start = counter()
        run(ALLOCATION_PASSES)
        middle = counter()
        run(3 * ALLOCATION_PASSES)
        per_pass.append(((counter() - middle) - (middle - start)) / (2 * ALLOCATION_PASSES))
        if per_pass[-1] == 0:
            break
    return max(0.0, min(per_pass))


def measure_facts(job: Mapping[str, Any]) -> dict[str, Any]:
    """Run one model and return facts: results, graph, recordings, threads, allocations.

    Returns
    -------
    dict
        "hashes": {array: SHA-256}; "graph": see `graph_facts`; "recordings" (calls of `record_graph` in
        `prepare`; more than one where barriers divide the graph) and "recordings_in_runs"; "threads_seen",
        "threads_possible";
        "allocations_per_pass" or None with the reason in "allocations_unknown"; "entry" where the job has `predict`.
    """
    spec = job["model"]
    bound = build(job)
    plan = bound.plan
    # A loop with fewer blocks than threads rightly keeps some of them idle.
    possible = min(job["threads"], max(loop.num_blocks for loop in plan.loops))
    logged = max(ALLOCATION_PASSES, job["passes"]) * plan.num_tasks
    with make_executor(spec, job["threads"], event_capacity=logged) as executor, recordings_counted() as recordings:
        executor.prepare(bound)
        recorded_before = recordings[0]
        stepper = Stepper(executor, plan.iteration_stride)
        stepper.run(1)
        stepper.run(job["passes"] - 1)
        hashes = {name: hash_arrays({name: array}) for name, array in sorted(bound.arrays.items())}
        events = executor.workers.events()
        block_times(events, plan, job["passes"])  # raises where a task did not run in each pass
        seen = set(np.unique(events["worker"]).tolist())
        deadline = time.monotonic() + ALL_WORKERS_S
        while len(seen) < possible and time.monotonic() < deadline:
            executor.workers.clear_events()
            stepper.run(1)
            seen |= set(np.unique(executor.workers.events()["worker"]).tolist())
        counter, allocations, unknown = malloc_counter(), None, None
        if bound.needs_gil:
            unknown = "blocks in Python allocate by nature"
        elif counter is None:
            unknown = "the C library offers no way to count"
        else:
            allocations = allocations_per_pass(stepper.run, counter)
        recorded_in_runs = recordings[0] - recorded_before
    result = {
        "kind": "exact",
        "threads": job["threads"],
        "deterministic": plan.deterministic,
        "records": spec.model.records,
        "hashes": hashes,
        "graph": graph_facts(plan),
        "recordings": recorded_before,
        "recordings_in_runs": recorded_in_runs,
        "threads_seen": len(seen),
        "threads_possible": possible,
        "allocations_per_pass": allocations,
        "allocations_unknown": unknown,
        "instruction_set": bound.instruction_set,
    }
    if job.get("arrays_file"):
        np.savez(job["arrays_file"], **{f"array_{i}": bound.arrays[name] for i, name in enumerate(hashes)})
    if "predict" in job:  # runs the plan
        result["entry"] = make_entry(bound, job)
    return result


def measure_overlap(job: Mapping[str, Any]) -> dict[str, Any]:
    """Run passes until `job["overlap"]` blocks have run at once, or for `OVERLAP_S`.

    Python callables are as long as the calls that their threads make: Python switches to no other thread by itself
    here, so two of these overlap only if one released the GIL.

    Returns
    -------
    dict
        "most": the most blocks at once; "hold_gil": loops of Python callables of which no call overlapped another one.
    """
    bound = build(job)
    plan = bound.plan
    sys.setswitchinterval(UNSWITCHED_S)
    most, free, python = 0, set(), set()
    with make_executor(job["model"], job["threads"], event_capacity=plan.num_tasks) as executor:
        executor.prepare(bound)
        stepper, deadline = Stepper(executor, plan.iteration_stride), time.monotonic() + OVERLAP_S
        while most < job["overlap"] and time.monotonic() < deadline:
            bound.python_calls = []
            executor.workers.clear_events()
            stepper.run(1)
            calls = np.array([call[1:] for call in bound.python_calls], [("start_ns", "<i8"), ("stop_ns", "<i8")])
            names = np.array([name for name, *_ in bound.python_calls], object)
            python |= {*names}
            free |= {*names[number_at(calls, calls["start_ns"]) > 1]}
            events = executor.workers.events()
            compiled = events[~np.isin([plan.loops[k].name for k in plan.task_loop[events["task"]]], [*python])]
            blocks = np.concatenate([calls, compiled[["start_ns", "stop_ns"]].astype(calls.dtype)])
            most = max(most, int(number_at(blocks, blocks["start_ns"]).max()))
    return {"most": most, "hold_gil": sorted(python - free)}


def counter_library() -> Path | None:
    """Return the path of the library that counts allocator calls; None if it was not built (no glibc)."""
    path = Path(__file__).with_name(COUNTER + (sysconfig.get_config_var("SHLIB_SUFFIX") or ".so"))
    return path if path.is_file() else None


def facts_of(
    plan: Mapping[str, Any],
    models: Sequence[ModelSpec],
    threads: Sequence[int],
    folder: Path | None = None,
    predict: Mapping[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """Collect facts of `serial` and of each model on each number of threads, each from a process of its own.

    Parameters
    ----------
    plan : mapping
        See `subject.describe`.
    folder : path, optional
        Folder for the final arrays, `arrays_<k>.npz` for row k.
    predict : mapping, optional
        What the serial process needs for an entry of the baseline, see `model.make_entry`.

    Returns
    -------
    list of dict
        Rows of `measure_facts`, serial first; a process that failed gives a row with "failure" and "message".
    """
    jobs = [(SERIAL, 1)]
    for model in models:
        counts = [n for n in threads if n <= (model.model.max_threads or n)] or [1]
        jobs += [(model, n) for n in counts if (model, n) not in jobs]
    cases = [
        {
            "model": model,
            "threads": count,
            "passes": PASSES,
            "arrays_file": None if folder is None else str(folder / f"arrays_{k}.npz"),
            **({} if k or predict is None else {"predict": predict}),
        }
        for k, (model, count) in enumerate(jobs)
    ]
    return _run_all(plan, cases)


def overlaps_of(
    plan: Mapping[str, Any], models: Sequence[ModelSpec], threads: int, at_least: int
) -> list[dict[str, Any]]:
    """Return a row of `measure_overlap` for each model."""
    return _run_all(plan, [{"model": model, "threads": threads, "overlap": at_least} for model in models])


def _run_all(plan: Mapping[str, Any], cases: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    # Nothing is timed, so as many processes run at once as there are CPUs.
    with ThreadPoolExecutor(max(1, len(available_cpus()))) as pool:
        return list(pool.map(_run, [{**case, "cpus": None, "plan": dict(plan), "seed": 1} for case in cases]))


def _run(job: Mapping[str, Any]) -> dict[str, Any]:
    model, threads = job["model"], job["threads"]
    settings = {**sample_environment(threads, 0, threads, "passive"), **process_environment(model)}
    library = counter_library()
    if library is not None:
        settings["LD_PRELOAD"] = " ".join([*filter(None, [settings.get("LD_PRELOAD")]), str(library)])
    row = measure_in_process(job, settings, TIME_LIMIT_S, EXACT_COMMAND)
    return {"kind": "exact", **row, "model": model, "threads": threads}


def failures(
    rows: Sequence[Mapping[str, Any]], stored_graph: Mapping[str, Any] | None, differs: Callable | None = None
) -> list[str]:
    """Return a sentence for each fact that does not hold; empty if all hold. `rows`: result of `facts_of`, of which the
    first is the serial run; `stored_graph`: `graph_facts` of the baseline; `differs`: comparison for plans that are not
    deterministic, (row number) -> None or a sentence."""
    result = [_did_not_run(row) for row in rows if "failure" in row]
    good = [(k, row) for k, row in enumerate(rows) if "failure" not in row]
    if not good:
        return result
    first = good[0][1]
    for k, row in good:
        if row["deterministic"]:
            names = [name for name in first["hashes"] if row["hashes"].get(name) != first["hashes"][name]]
            if names:
                result.append(
                    f"{_who(row)} leaves other bits than {_who(first)} in {', '.join(names[:5])}"
                    f"{f' and {len(names) - 5} more arrays' if len(names) > 5 else ''}"
                )
        elif differs is not None:
            result += filter(None, [differs(k)])
        if row["recordings_in_runs"]:
            result.append(
                f"{_who(row)} must not record in a run, recorded {row['recordings_in_runs']} times in the runs"
            )
        if bool(row["recordings"]) != row["records"]:
            result.append(
                f"{_who(row)} must {'record its graph' if row['records'] else 'not record'} when it is prepared, "
                f"recorded {row['recordings']} times"
            )
        if row["threads_seen"] < row["threads_possible"]:
            result.append(
                f"{_who(row)} must run blocks on {plural(row['threads_possible'], 'thread')}, the event log has "
                f"{row['threads_seen']}"
            )
        if row["allocations_per_pass"] and not may_allocate(row["model"], row["threads"]):
            result.append(
                f"{_who(row)} must not allocate in a step, calls malloc {row['allocations_per_pass']:g} times"
            )
        if row["graph"] != first["graph"]:
            changes = "; ".join(graph_differences(first["graph"], row["graph"]))
            result.append(f"{_who(row)} has another graph than {_who(first)}: {changes}")
    if stored_graph is not None and first["graph"] != stored_graph:
        result += [
            f"the graph is not the baseline's: {line}" for line in graph_differences(stored_graph, first["graph"])
        ]
    return result


def overlap_failures(rows: Sequence[Mapping[str, Any]], at_least: int) -> list[str]:
    """Return a sentence for each model under which fewer blocks ran at once; rows: result of `overlaps_of`."""
    result = []
    for row in rows:
        if "failure" in row:
            result.append(_did_not_run(row))
        elif row["most"] < at_least:
            line = f"{_who(row)} must run {plural(at_least, 'block')} at once, ran {row['most']} at most"
            if row["hold_gil"]:
                line += (
                    f"; no two calls of {', '.join(row['hold_gil'])} ran at once: Python functions hold the GIL "
                    f"unless they release it; compile them"
                )
            result.append(line)
    return result


def may_allocate(spec: ModelSpec, threads: int) -> bool:
    """Whether a runtime outside of forktask allocates in a step: outside references do, tasks or futures.

    libgomp keeps its team for the next parallel region, except for a team of one thread: there `prange` costs an
    allocation a loop.
    """
    alone = spec.name == "forkjoin" and threads == 1 and spec.option("region") != "persistent"
    return spec.model.is_reference or alone


def _did_not_run(row: Mapping[str, Any]) -> str:
    return f"{_who(row)} did not run ({row['failure']}): {row['message'].splitlines()[0]}"


def _who(row: Mapping[str, Any]) -> str:
    return f"{row['model']} on {plural(row['threads'], 'thread')}"


if __name__ == "__main__":
    sys.exit(
        answer_job(lambda job: (measure_overlap if "overlap" in job else measure_facts)(job), usage_failure="usage")
    )
