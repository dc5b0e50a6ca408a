"""The report of a study: tables for the terminal, CSV files, figures, and a page."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd

from ...cython_src.errors import UsageError
from ..report.figures.style import FORMATS, save, style_parameters
from ..report.render_html import DrawnFigure, render_html
from ..report.render_text import render_text
from ..report.sections import Report, Section
from ..results.files import write_atomically, write_table
from ..sampling.memory import format_bytes
from ..tables import Column, Table
from ..tables.numbers import number, time
from ..training.phase_times import COLUMNS as PHASE_COLUMNS
from .figures import FIGURES
from .running import Results
from .tables import (
    PLANNED,
    agreement,
    axes_of,
    data_sentences,
    energy_sentences,
    epoch_medians,
    epoch_table,
    failures,
    loader_table,
    loading_table,
    memory_table,
    pretrained_sentences,
    run_table,
)

PHASES_SAID = (
    "Load is gathering a batch, and reading or decoding its images where they are not in memory. Wall times, of models "
    "that wait between phases, add up to the epoch; busy times are those in blocks, mean over threads: with waiting "
    "they add up to it."
)
MEMORY_SAID = (
    "The most memory that was resident in the process of a run, and what it consists of. Libraries (with Python) and "
    "loader (with the data) were measured; the other kinds are what the plan of a step needs, and evaluating plans "
    "beside it. The rest is copies, and libraries that are loaded later, such as PyTorch for a file of it; it is "
    "negative where parts of a plan were never touched. Growth is from the second epoch to the last one."
)


LOADING_SAID = (
    "First the runs that load in their steps. Of lower: their rate over the lower of the best way of loading alone and "
    "of training on images in memory. Of both: over the rate of the two one after the other on the same cores. Then "
    "the ways of loading alone. Memory is the most that was resident in the process; libraries were there before the "
    "data, loader is what came with data and loader, code of PyTorch or joblib too. Workers: of the largest worker "
    "process, times their number."
)


def build(results: Results, command: str) -> Report:
    """Return the report of a study."""
    sentences, warnings = agreement(results)
    study = results.study
    runs, failed = run_table(results), failures(results)
    smoke = any(stage["smoke_test"] for _, result in results.done() for stage in result["stages"])
    notes = ["The data are too easy to compare networks on: a smoke test."] if smoke else []
    notes += sorted(
        {stage["data_note"] for _, result in results.done() for stage in result["stages"] if "data_note" in stage}
    )
    sections = [
        Section(
            "Runs",
            2,
            sentences=data_sentences(results) + sentences + energy_sentences(results),
            tables=[Table("runs", _run_columns(results), runs)],
        ),
        Section(
            "Phases of an epoch",
            2,
            sentences=[PHASES_SAID] if any(name in row for row in runs for name in PHASE_COLUMNS) else [],
            tables=[Table("phases", _phase_columns(results), [row for row in runs if row["phases_timed"]])],
        ),
        Section(
            "Memory",
            2,
            sentences=[MEMORY_SAID] if runs else [],
            tables=[Table("memory", _memory_columns(results), memory_table(results))],
        ),
        Section(
            "Loading image files",
            2,
            sentences=[LOADING_SAID] if results.loaders else [],
            tables=[
                Table("loading", _loading_columns(results), loading_table(results)),
                Table("loaders", _loader_columns(), loader_table(results)),
            ],
        ),
        Section("Curves", 2, figures=tuple(FIGURES), plan_id="study", in_terminal=False),
        Section("Epochs", 2, tables=[Table("epochs", _epoch_columns(results), epoch_medians(results))]),
        Section("What did not run or did not fit", 2, tables=[Table("failures", _failure_columns(results), failed)]),
    ]
    pretrained = pretrained_sentences(results)
    if pretrained:
        sections.insert(0, Section("Pretrained weights", 2, sentences=pretrained))
    if study.how_to_read:
        sections.insert(0, Section("How to read it", 2, sentences=[study.how_to_read], in_terminal=False))
    facts = {
        "title": study.title,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command,
        "data": "",
        "environment_id": results.environment_id,
    }
    count = f"{len(results.done())} of {len(results.found)} runs"
    return Report(f"{study.title}: {count}", facts, notes, warnings, sections, _opening(results, runs))


def _opening(results: Results, runs: list[dict[str, Any]]) -> list[str]:
    """Return the first paragraphs, for readers who know none of the words below: question, method, answer."""
    if not runs:
        return []
    axes = " and ".join(name.replace("_", " ") for name in axes_of(results))
    seeds, epochs = max(row["seeds"] for row in runs), max(row["epochs"] for row in runs)
    from_start = f", from {seeds} random starts each" if seeds > 1 else ""
    question = (
        "How well does a neural network learn to name what its examples show, and how long does that take? Training "
        "shows it a set of examples again and again, once in each epoch, and changes its weights a little after every "
        f"few of them. Here {len(runs)} way{'s' * (len(runs) > 1)} to train"
        + (f", which differ in {axes}, were" if axes else " was")
        + f" run for up to {epochs} epoch{'s' * (epochs > 1)}{from_start}; afterwards each network named examples that "
        "it had never seen."
    )
    best, fastest = max(runs, key=lambda row: row["test_accuracy"]), min(runs, key=lambda row: row["epoch_time_s"])
    answer = f"It was right for {100 * best['test_accuracy']:.2f} % of them"
    if len(runs) > 1:
        worst = min(row["test_accuracy"] for row in runs)
        least = f"{100 * worst:.2f} to " if worst < best["test_accuracy"] else ""
        answer = f"They were right for {least}{100 * best['test_accuracy']:.2f} % of them"
        answer += f" (most with {best['label']})" if least else ", whatever the way"
        slowest = max(row["epoch_time_s"] for row in runs)
        answer += (
            f". An epoch took {time(fastest['epoch_time_s'])} ({fastest['label']}) to {time(slowest)}"
            if slowest > fastest["epoch_time_s"]
            else ""
        )
    else:
        answer += f". An epoch took {time(best['epoch_time_s'])}"
    told = [f"{answer}.", *_reached_sentences(results, runs)]
    if len(runs) > 1:
        least, most = (choose(runs, key=lambda row: row["peak_bytes"]) for choose in (min, max))
        told.append(
            f"Their processes held at most {format_bytes(least['peak_bytes'])} ({least['label']}) to "
            f"{format_bytes(most['peak_bytes'])} ({most['label']})."
        )
    if missing := len({run.label for run, _ in results.failed()}):
        told.append(f"{missing} more way{'s' * (missing > 1)} did not run, or did not fit: see the end of this page.")
    return [question, " ".join(told)]


def _reached_sentences(results: Results, runs: list[dict[str, Any]]) -> list[str]:
    """Say how long training to the highest accuracy took that was asked for and reached, or that none was."""
    asked = sorted(results.study.options.accuracy)
    for accuracy in reversed(asked):
        name = f"time_to_{accuracy:g}"
        reached = sorted((row for row in runs if math.isfinite(row[name])), key=lambda row: row[name])
        if not reached:
            continue
        took = " to ".join(
            f"{time(row[name])} ({row['label']})" for row in ([reached[0], reached[-1]] if reached[1:] else reached)
        )
        never = f"; {len(runs) - len(reached)} of {len(runs)} ways never did" * (len(reached) < len(runs))
        return [f"To be right for {100 * accuracy:g} % of the validation examples took {took} of training{never}."]
    return [f"None was right for {100 * asked[0]:g} % of the validation examples."] if asked else []


def write_study_report(results: Results, out: Path, command: str) -> str:
    """Write epochs.csv, runs.csv, the figures and report.html; return the report's text.

    Raises
    ------
    UsageError
        The folder cannot be written.
    """
    report = build(results, command)
    drawn = []
    try:
        folder = out / "figures"
        folder.mkdir(exist_ok=True)
        write_table(out / "epochs.csv", epoch_table(results))
        write_table(out / "runs.csv", pd.DataFrame(run_table(results)))
        for name, draw in FIGURES.items():
            with matplotlib.rc_context(style_parameters()):
                found = draw(results)
            if found is None:
                continue
            figure, caption = found
            for kind in FORMATS:
                save(figure, folder / f"{name}.{kind}")
            write_atomically(folder / f"{name}.txt", caption + "\n")
            drawn.append(DrawnFigure("study", name, (folder / f"{name}.svg").read_text(encoding="utf-8"), caption))
    except OSError as error:
        raise UsageError(f"the report must be writable to {str(out)!r}, got: {error.strerror}") from None
    write_atomically(out / "report.html", render_html(report, drawn))
    write_atomically(out / "report.json", json.dumps(as_json(results), indent=1) + "\n")
    return render_text(report) + f"{out}: report.html, runs.csv, epochs.csv, figures\n"


def as_json(results: Results) -> dict[str, Any]:
    """Return the tables as plain data; a time to an accuracy that was not reached is null."""

    def plain(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{name: None if value != value else value for name, value in row.items()} for row in rows]

    return {
        "schema_version": 1,
        "title": results.study.title,
        "runs": plain(run_table(results)),
        "failures": failures(results),
        "memory": plain(memory_table(results)),
        "loading": loading_table(results),
        "loaders": loader_table(results),
        "pretrained": pretrained_sentences(results),
        "agreement": agreement(results)[0],
    }


def _axis(name: str) -> Column:
    return Column(name.replace("_", " "), lambda row: str(row[name]))


def _names(results: Results) -> list[Column]:
    """Return the columns that tell combinations apart: the axes, or the label of a study without any."""
    return [*map(_axis, axes_of(results))] or [Column("run", lambda row: row["label"])]


def _loss(name: str, heading: str) -> Column:
    return Column(heading, lambda row: number(row[name], 4), True)


def _seconds(name: str, heading: str) -> Column:
    return Column(heading, lambda row: time(row[name]), True)


def _size(name: str, heading: str) -> Column:
    return Column(heading, lambda row: format_bytes(row[name]), True)


def _per_cent(name: str, heading: str) -> Column:
    return Column(heading, lambda row: f"{100 * row[name]:.2f} %", True)


def _run_columns(results: Results) -> list[Column]:
    def spread(row: dict[str, Any]) -> str:
        if row["seeds"] == 1:
            return ""
        return f"{100 * row['test_accuracy_min']:.2f} ... {100 * row['test_accuracy_max']:.2f}"

    return [
        *_names(results),
        Column("seeds", lambda row: str(row["seeds"]), True),
        Column("epochs", lambda row: str(row["epochs"]), True),
        _seconds("epoch_time_s", "time/epoch"),
        Column("energy/epoch", lambda row: time(row["joules_per_epoch"], "J"), True),
        Column("samples/s", lambda row: f"{row['samples_per_s']:,.0f}", True),
        _loss("train_loss", "train loss"),
        _loss("valid_loss", "valid loss"),
        _per_cent("valid_error", "valid error"),
        _per_cent("test_accuracy", "test accuracy"),
        Column("over seeds (%)", spread, True),
        *(
            Column(f"time to {100 * accuracy:g} %", partial(_reached, f"time_to_{accuracy:g}"), True)
            for accuracy in results.study.options.accuracy
        ),
        _size("peak_bytes", "peak memory"),
        Column("GPU memory", lambda row: format_bytes(row["gpu_memory_bytes"]) if _sampled(row) else "", True),
        Column("GPU load", lambda row: f"{row['gpu_utilisation']:.0f} %" if _sampled(row) else "", True),
    ]


def _sampled(row: dict[str, Any]) -> bool:
    return row.get("gpu_memory_bytes", math.nan) > 0


def _reached(name: str, row: dict[str, Any]) -> str:
    return time(row[name]) or "not reached"


def _epoch_columns(results: Results) -> list[Column]:
    return [
        *_names(results),
        *([Column("stage", lambda row: f"{row['stage']:.0f}", True)] if len(results.study.stages) > 1 else []),
        Column("epoch", lambda row: str(row["epoch"]), True),
        _loss("train_loss", "train loss"),
        _loss("valid_loss", "valid loss"),
        _per_cent("error_rate", "valid error"),
        _seconds("epoch_time_s", "time"),
        _seconds("time_s", "time so far"),
        Column("energy", lambda row: time(row.get("joules"), "J"), True),
        _size("resident_bytes", "memory"),
    ]


def _memory_columns(results: Results) -> list[Column]:
    measured = [_size("libraries_bytes", "libraries"), _size("loader_bytes", "loader")]
    planned = [
        Column(kind, lambda row, kind=kind: format_bytes(row[kind]) if row[kind] else "", True) for kind in PLANNED
    ]
    rest = [_size("rest_bytes", "rest"), Column("growth", _growth, True)]
    return [*_names(results), _size("peak_bytes", "peak"), *measured, *planned, *rest]


def _loading_columns(results: Results) -> list[Column]:
    rates = {"samples_per_s": "images/s", "loading_per_s": "loading alone", "training_per_s": "training alone"}
    return [
        *_names(results),
        *(Column(title, lambda row, name=name: f"{row[name]:,.0f}", True) for name, title in rates.items()),
        Column("of lower", lambda row: f"{row['of_lower']:.2f}", True),
        Column("of both", lambda row: f"{row['of_both']:.2f}", True),
    ]


def _loader_columns() -> list[Column]:
    return [
        *map(_axis, ("load", "threads", "way", "count")),
        Column("images/s", lambda row: f"{row['images_per_s']:,.0f}", True),
        _size("peak_bytes", "memory"),
        _size("libraries_bytes", "libraries"),
        _size("loader_bytes", "loader"),
        _size("workers_bytes", "workers"),
    ]


def _growth(row: dict[str, Any]) -> str:
    return "" if math.isnan(row["grown_bytes"]) else format_bytes(row["grown_bytes"])


def _phase_columns(results: Results) -> list[Column]:
    phases = [Column(name[:-2], lambda row, name=name: time(row.get(name)), True) for name in PHASE_COLUMNS]
    return [*_names(results), _axis("phases_timed"), _seconds("epoch_time_s", "epoch"), *phases]


def _failure_columns(results: Results) -> list[Column]:
    return [
        *_names(results),
        Column("seed", lambda row: str(row["seed"]), True),
        Column("reason", lambda row: row["reason"]),
        Column("message", lambda row: row["message"]),
    ]
