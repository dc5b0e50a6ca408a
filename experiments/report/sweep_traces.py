"""Traces of a sweep: each plan once more under each model, with the event log on, as rows and files of its folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from ..analysis.losses import LOSSES, all_losses, as_rows
from ..sampling.events import events_files
from ..sampling.results import Results, ResultsWriter
from ..traces.collect import collect_traces, write_machine
from .trace_files import write_trace_files

TRACE_FOLDER = "traces"
SHOWN = 3  # iterations in the picture


def trace_sweep(
    out_dir: str | os.PathLike,
    results: Results,
    models: Sequence[str],
    threads: int,
    seconds: float,
    oversubscribe: bool = False,
    stream: TextIO | None = None,
) -> list[str]:
    """Trace all plans of a results folder that have no traces yet; return a sentence for each model that failed.

    Parameters
    ----------
    out_dir : path
        Results folder; files go to `traces/<plan_id>`, a row of kind "trace" for each model to the others.
    results : Results
        Its content.
    models : sequence of str
        Of the CPU.
    threads : int
    seconds : float
        About how long each logged run lasts.
    """
    stream = sys.stderr if stream is None else stream
    done = {(row["plan_id"], row["model"], row["threads"]) for row in results.of_kind("trace")}
    failures: list[str] = []
    for plan in results.of_kind("plan"):
        if any((plan["plan_id"], model, threads) in done for model in models):
            continue
        folder = Path(out_dir, TRACE_FOLDER, plan["plan_id"])
        found = collect_traces(
            plan["options"], models, threads, folder, seconds=seconds, oversubscribe=oversubscribe, stream=stream
        )
        failures += found.failures
        if not found.logs:
            continue
        write_machine(folder, results.run["environment"], (results.of_kind("machine") or [{}])[-1])
        write_trace_files(folder, found.logs, SHOWN)
        losses = all_losses(found.logs)
        with ResultsWriter(out_dir) as writer:
            for log, path, own, row in zip(found.logs, found.paths, losses, as_rows(losses), strict=True):
                writer.append(
                    {
                        "kind": "trace",
                        "plan_id": plan["plan_id"],
                        "model": log.about["model"],
                        "threads": log.about["threads"],
                        "environment_id": results.run["environment_id"],
                        "path": os.path.relpath(path, out_dir),
                        "iterations": log.about["iterations"],
                        "overhead": log.about["overhead"],
                        "overheads": log.about["overheads"],
                        "lost": log.about["lost"],
                        "losses": row,
                        "layers": own.table[["phase", "layer", *LOSSES]].to_dict("records"),
                    }
                )
    return failures


def trace_injected(
    out_dir: str | os.PathLike,
    results: Results,
    models: Sequence[str],
    threads: int,
    seconds: float,
    causes: Sequence[str],
    oversubscribe: bool = False,
    stream: TextIO | None = None,
) -> list[str]:
    """Trace all plans of a results folder with each cause of outliers injected, unless that was done; return a sentence
    for each model that failed.

    Logs go to `traces/<plan_id>/<cause>`. They get no row, since what an injected run takes is no result of its model,
    and no pictures, which show typical iterations.
    """
    failures: list[str] = []
    for plan in results.of_kind("plan"):
        for cause in causes:
            folder = Path(out_dir, TRACE_FOLDER, plan["plan_id"], cause)
            if len(events_files(folder)) == len(models):
                continue
            found = collect_traces(
                plan["options"],
                models,
                threads,
                folder,
                seconds=seconds,
                inject=cause,
                oversubscribe=oversubscribe,
                stream=stream,
            )
            failures += found.failures
    return failures
