"""Traces of a results folder: each plan once more under each model, with the event log on, as files and rows."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ..analysis.names import folder_name, model_rank, problem_text, record_of, swept_fields
from ..events.events import EVENTS_FOLDER, EventLog, events_files, read_events
from ..results.folder import Results, ResultsWriter
from ..results.rows import LossesOfRun, PlanRow, SampleRow, TraceRow
from .collect import Collection, collect_traces

TRACED = ("serial", "forkjoin", "forkjoin:region=persistent", "tasks", "taskgraph", "taskiter")  # by default
CHECKED = 4  # iterations after which all models must hold the same weights
LOGGING = ("overhead", "overheads", "lost")  # what a log says of itself
TRACE_FOLDER = "traces"  # of a results folder; below it a folder for each plan


def once(seconds: float) -> dict[str, Any]:
    """Return the fields of `sweep.configuration.Measure` by which each model is measured once, for so long."""
    return {"repeats": 1, "check_iterations": CHECKED, "target_s": seconds, "warmup_s": seconds}


def plan_folder(out_dir: str | os.PathLike, plan: PlanRow) -> Path:
    """Return the folder of a plan's logs, pictures and traces for other tools, by the plan's name."""
    return Path(out_dir, TRACE_FOLDER, folder_name(plan))


def traced(out_dir: str | os.PathLike, plans: Iterable[PlanRow]) -> Iterator[tuple[str, Path, list[EventLog]]]:
    """Yield plan id, folder and logs of all traces of a results folder; those of a cause that was injected lie below
    those of the plan.

    Raises
    ------
    UsageError
        A log that is damaged.
    """
    ids = {folder_name(plan): plan.plan_id for plan in plans if not plan.interference}
    for events in sorted(Path(out_dir, TRACE_FOLDER).glob(f"**/{EVENTS_FOLDER}")):
        place = events.parent
        if paths := events_files(place):
            name = place.relative_to(Path(out_dir, TRACE_FOLDER)).parts[0]
            yield ids.get(name, ""), place, [read_events(p) for p in paths]


def trace_sweep(
    out_dir: str | os.PathLike, results: Results, models: Sequence[str], **asked: Any
) -> Iterator[tuple[Path, str, list[EventLog], list[str]]]:
    """Trace all plans of a results folder under the models of which it has no traces yet, as `collect_traces` is asked.

    Files go to `traces/<name of the plan>`, a row of kind "trace" for each model to the others. Yields the folder of a
    plan, its title, all of its logs, and a sentence for each model that failed.
    """
    axes = swept_fields([record_of(plan) for plan in results.of(PlanRow)])
    done = {(row.plan_id, row.model) for row in results.of(TraceRow)}
    for plan in results.of(PlanRow):
        missing = [model for model in models if (plan.plan_id, model) not in done]
        folder = plan_folder(out_dir, plan)
        kept = [log for path in events_files(folder) if (log := read_events(path)).about["model"] not in missing]
        new = collect_traces(plan.options, missing, folder=folder, **asked)
        logs = sorted([*kept, *new.logs], key=lambda log: model_rank(log.about["model"]))
        if new.logs:
            _write_rows(out_dir, results, plan, logs, new)
        yield folder, problem_text(record_of(plan), axes), logs, new.failures


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
                    check=checks.get(plan.plan_id, ""),
                    path=os.path.relpath(paths[id(log)], out_dir),
                    losses=LossesOfRun(**{name: row[name] for name in LossesOfRun.__struct_fields__}),
                    layers=own.table[["phase", "layer", *LOSSES]].to_dict("records"),
                )
            )


def trace_injected(
    out_dir: str | os.PathLike, results: Results, models: Sequence[str], causes: Sequence[str], **asked: Any
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
                failures += collect_traces(plan.options, models, folder=folder, inject=cause, **asked).failures
    return failures
