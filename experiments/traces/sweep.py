"""Traces of a results folder: each plan once more under each model, with the event log on, as files and rows."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...cython_src.errors import UsageError
from ...cython_src.typed_text import rounded
from ..analysis.names import folder_name, problem_text, record_of, swept_fields, with_short_names
from ..events.events import EVENTS_FOLDER, EventLog, events_files, read_events
from ..machine.placement import Placement
from ..results.files import check_writable_folder
from ..results.folder import Results, ResultsWriter
from ..results.rows import LossesOfRun, PlanRow, SampleRow, TraceRow
from ..sampling.child import TIME_LIMIT_S, measure_in_process
from ..sampling.generation import contestant_of
from ..subjects.models import ModelSpec, read_model
from ..tables.numbers import plural
from ..tables.progress import say

TRACED = ("serial", "forkjoin", "forkjoin:region=persistent", "tasks", "taskgraph", "taskiter")  # by default
SHOWN = 3  # iterations in pictures, by default
CHECKED = 4  # iterations after which all models must hold the same weights
LOGGING = ("overhead", "overheads", "lost")  # what a log says of itself
LOSSES_TABLE = "losses.csv"  # beside the pictures of a plan
TRACE_FOLDER = "traces"  # of a results folder; below it a folder for each plan
WARMUP_S = 0.5
HIGH_OVERHEAD = 0.02  # part of a run that logging should stay below


@dataclass(frozen=True)
class Collection:
    """Traces that could be made, and a sentence for each model that failed."""

    logs: list[EventLog] = field(default_factory=list)
    paths: list[Path] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def file_name(model: ModelSpec, threads: int) -> str:
    """Return the name of a model's event log in its folder."""
    return f"{str(model).replace(':', '_').replace('=', '-').replace('/', '-')}-{threads}.npz"


def collect_traces(
    plan: Mapping[str, Any],
    models: Sequence[ModelSpec],
    threads: int,
    folder: str | os.PathLike,
    *,
    seconds: float = 0.5,
    inject: str = "",
    placement: Placement | None = None,
) -> Collection:
    """Trace each model in a process of its own and write its log below `folder`.

    Parameters
    ----------
    plan : mapping
        The `plan` entry of a job: options of a plan with the network, or a function that makes a graph.
    threads : int
        Models that run on fewer threads take what they may.
    seconds
        About how long each logged run lasts.
    inject : str
        A cause of outliers, one of `injections.INJECTIONS`, that each logged run meets.

    Raises
    ------
    UsageError
        More threads than cores, or a folder that cannot be written.
    """
    placement = placement or Placement()
    placement.order(threads)  # raises
    check_writable_folder(Path(folder, EVENTS_FOLDER))
    collection = Collection()
    for spec in models:
        count = min(threads, spec.model.max_threads or threads)
        path = Path(folder, EVENTS_FOLDER, file_name(spec, count)).resolve()
        contestant = contestant_of(
            str(spec),
            spec,
            count,
            limit_s=TIME_LIMIT_S + 20 * seconds,
            kind="trace",
            cpus=placement.cpus(count),
            memory_policy=placement.memory_policy,
            plan=dict(plan),
            warmup_s=WARMUP_S,
            target_s=seconds,
            memory_limit=None,
            path=os.fspath(path),
            inject=inject,
        )
        row = measure_in_process(contestant.job, contestant.variables, contestant.limit_s)
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
    if about["lost"]:
        text += f"; {about['lost']} spells did not fit the log and count as scheduling"
    return text


def once(seconds: float) -> dict[str, Any]:
    """Return the fields of `sweep.configuration.Measure` by which each model is measured once, for so long."""
    return {"repeats": 1, "check_iterations": CHECKED, "target_s": seconds, "warmup_s": seconds}


def plan_folder(out_dir: str | os.PathLike, plan: PlanRow) -> Path:
    """Return the folder of a plan's logs, pictures and traces for other tools, by the plan's name."""
    return Path(out_dir, TRACE_FOLDER, folder_name(plan))


def traced(out_dir: str | os.PathLike, plans: Iterable[PlanRow]) -> Iterator[tuple[str, Path, list[EventLog]]]:
    """Yield plan id, folder and logs of all traces of a results folder; logs with an injected cause lie below those of
    the plan. Raises `UsageError`: a log that is damaged."""
    ids = {folder_name(plan): plan.plan_id for plan in plans if not plan.interference}
    for events in sorted(Path(out_dir, TRACE_FOLDER).glob(f"**/{EVENTS_FOLDER}")):
        place = events.parent
        if paths := events_files(place):
            name = place.relative_to(Path(out_dir, TRACE_FOLDER)).parts[0]
            yield ids.get(name, ""), place, [read_events(p) for p in paths]


def trace_sweep(
    out_dir: str | os.PathLike, results: Results, models: Sequence[ModelSpec], again: bool, **requested: Any
) -> Iterator[tuple[Path, str, list[EventLog], list[str]]]:
    """Trace all plans of a results folder under the models of which it has no traces yet, as `collect_traces` is asked.

    Files go to `traces/<name of the plan>`, a row of kind "trace" for each model to the others. Yields the folder of a
    plan, its title, its logs, and a sentence for each model that failed; of plans of which no trace is missing only
    where `again`, or where the folder lacks its table of losses.
    """
    records = with_short_names([record_of(plan) for plan in results.of(PlanRow)])
    axes = swept_fields(records)
    done = {(row.plan_id, row.model) for row in results.of(TraceRow)}
    for number, (plan, record) in enumerate(zip(results.of(PlanRow), records, strict=True), 1):
        missing = [model for model in models if (plan.plan_id, model) not in done]
        folder, title = plan_folder(out_dir, plan), problem_text(record, axes)
        if not (missing or again) and (folder / LOSSES_TABLE).exists():
            continue
        say(f"tracing {title}, plan {number} of {len(records)}: {plural(len(missing), 'model')}")
        kept = [log for path in events_files(folder) if (log := read_events(path)).about["model"] not in missing]
        new = collect_traces(plan.options, missing, folder=folder, **requested)
        logs = sorted([*kept, *new.logs], key=lambda log: log.model)
        if new.logs:
            _write_rows(out_dir, results, plan, logs, new)
        yield folder, title, logs, new.failures


def _write_rows(
    out_dir: str | os.PathLike, results: Results, plan: PlanRow, logs: Sequence[EventLog], new: Collection
) -> None:
    from ..analysis.losses import LOSSES, all_losses, as_rows  # loads pandas, which an import of forktask must not

    paths = dict(zip(map(id, new.logs), new.paths, strict=True))
    losses = all_losses(logs)
    checks = {row.plan_id: row.check for row in results.of(SampleRow)}
    with ResultsWriter(out_dir) as writer:
        for log, own, row in zip(logs, losses, as_rows(losses), strict=True):
            if id(log) not in paths:
                continue
            writer.append(
                TraceRow(
                    **{name: log.about[name] for name in ("model", "threads", "iterations", *LOGGING)},
                    plan_id=plan.plan_id,
                    environment_id=results.run.environment_id,
                    origin=dict(read_model(log.about["model"]).model.origin),
                    check=checks.get(plan.plan_id, ""),
                    path=os.path.relpath(paths[id(log)], out_dir),
                    losses=LossesOfRun(**{name: row[name] for name in LossesOfRun.__struct_fields__}),
                    layers=own.table[["phase", "layer", *LOSSES]].to_dict("records"),
                )
            )


def trace_injected(
    out_dir: str | os.PathLike, results: Results, models: Sequence[ModelSpec], causes: Sequence[str], **requested: Any
) -> list[str]:
    """Trace all plans of a results folder with each cause of outliers injected, unless that was done; return a sentence
    for each model that failed.

    Logs go to `traces/<name of the plan>/<cause>`. They get no row, since what an injected run takes is no result
    of its model, and no pictures, which show typical iterations.
    """
    failures: list[str] = []
    for plan in results.of(PlanRow):
        for cause in causes:
            folder = plan_folder(out_dir, plan) / cause
            if len(events_files(folder)) < len(models):
                failures += collect_traces(plan.options, models, folder=folder, inject=cause, **requested).failures
    return failures
