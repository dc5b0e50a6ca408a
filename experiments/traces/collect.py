"""Traces of several models, each in a fresh process, in one folder."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...cython_src.errors import UsageError
from ...cython_src.gpu import device as gpu_device
from ...cython_src.typed_text import rounded
from ..events.events import EVENTS_FOLDER, EventLog, read_events
from ..machine.topology import available_cpus, cpu_order
from ..results.files import check_writable_folder
from ..sampling.child import SAMPLE_COMMAND, TIME_LIMIT_S, clean_environment, measure_in_process, sample_environment
from ..subjects.models import check_threads, parse_model, process_environment
from ..tables.progress import say

WARMUP_S = 0.5
HIGH_OVERHEAD = 0.02  # part of a run that logging should stay below


@dataclass(frozen=True)
class Collection:
    """Traces that could be made, and a sentence for each model that failed."""

    logs: list[EventLog] = field(default_factory=list)
    paths: list[Path] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def file_name(model: str, threads: int) -> str:
    """Return the name of a model's event log in its folder."""
    return f"{model.replace(':', '_').replace('=', '-').replace('/', '-')}-{threads}.npz"


def collect_traces(
    plan: Mapping[str, Any],
    models: Sequence[str],
    threads: int,
    folder: str | os.PathLike,
    *,
    seconds: float = 0.5,
    iterations: int | None = None,
    inject: str = "",
    oversubscribe: bool = False,
) -> Collection:
    """Trace each model in a process of its own and write its log below `folder`.

    Parameters
    ----------
    plan : mapping
        The `plan` entry of a job: options of a plan with the network, or a function that makes a graph.
    threads : int
        Models that run on fewer threads take what they may.
    seconds, iterations
        About how long each logged run lasts; or its length in iterations instead.
    inject : str
        A cause of outliers, one of `injections.INJECTIONS`, that each logged run meets.

    Raises
    ------
    UsageError
        More threads than cores, no GPU for a model of one, or a folder that cannot be written.
    """
    cpus = available_cpus()
    check_threads(threads, len(cpus), oversubscribe)
    specs = [parse_model(model) for model in models]
    if any(spec.model.device == "gpu" for spec in specs):
        gpu_device.count_gpus()
        if inject:
            raise UsageError(f"causes of outliers are injected into models of the CPU, got {inject}; leave it out")
    check_writable_folder(Path(folder, EVENTS_FOLDER))
    collection = Collection()
    for spec in specs:
        count = min(threads, spec.model.max_threads or threads)
        path = Path(folder, EVENTS_FOLDER, file_name(str(spec), count)).resolve()
        job = {
            "kind": "trace",
            "model": str(spec),
            "threads": count,
            "cpus": cpu_order(count, cpus, oversubscribe=oversubscribe),
            "plan": dict(plan),
            "seed": 1,
            "warmup_s": WARMUP_S,
            "target_s": seconds,
            "iterations": iterations,
            "memory_limit": None,
            "path": os.fspath(path),
            "inject": inject,
        }
        settings = {**sample_environment(count, 0, len(cpus)), **process_environment(spec)}
        row = measure_in_process(
            job, clean_environment(os.environ, settings), TIME_LIMIT_S + 20 * seconds, SAMPLE_COMMAND
        )
        if row.get("failure") == "unwritable":
            raise UsageError(row["message"])
        if "failure" in row:
            reason = "" if row["failure"] == "usage" else f"{row['failure']}: "
            collection.failures.append(f"{spec}: {reason}{row['message'].splitlines()[0]}")
            continue
        log = read_events(path)
        collection.logs.append(log)
        collection.paths.append(path)
        say(log_sentence(log))
    return collection


def log_sentence(log: EventLog) -> str:
    """Say how long a traced run was, what logging cost it, and whether anything is missing."""
    about = log.about
    step_ms = log.wall_ns * 1e-6 / about["iterations"]
    text = f"{log.title}: {about['iterations']} iterations of {rounded(step_ms)} ms, {about['num_events']} events; "
    text += f"logging changes the time of a run by {log.overhead_text}"
    if about["overhead"] > HIGH_OVERHEAD and not log.overhead_text.startswith("an unknown"):
        text += f", more than {HIGH_OVERHEAD:.0%}: take coarser blocks, or read its times with care"
    if "clock_error_ns" in about:
        text += (
            f"; times of the GPU are within {rounded(about['clock_error_ns'] * 1e-3)} us of the host's, whose clocks "
            f"drift by {rounded(about['clock_drift_ppm'])} us a second"
        )
    if about["lost"]:
        text += f"; {about['lost']} spells did not fit the log and count as scheduling"
    return text
