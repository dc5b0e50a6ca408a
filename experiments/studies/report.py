"""The report of a study: tables for the terminal, CSV files, figures, and a page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from ...cython_src.errors import check_choice
from ..report.figures.chart import Lacking, drawn
from ..report.figures.style import FIGURE_FOLDER, FORMATS, in_style, save_all, save_asked
from ..report.rendering import DrawnFigure, render_html, render_json, render_text
from ..report.sections import Report, environment_section, facts_of, section
from ..results.files import write_atomically, write_table
from ..tables import (
    USABLE,
    Column,
    Table,
    count_column,
    number_column,
    percent_column,
    size_column,
    text_column,
    time_column,
)
from ..tables.numbers import percent, time
from ..training.phase_times import COLUMNS as PHASE_COLUMNS
from . import tables
from .configuration import Study, axis_text
from .figures import FIGURES
from .figures import title as title_of
from .running import StudyResults

PHASES_SAID = (
    "Load is gathering a batch, and reading or decoding its images where they are not in memory. Wall times are of "
    "models that wait between phases; busy times are those in blocks, mean over threads. The rest of the epoch is "
    "where no phase runs: starts and ends of runs, reading the log of phases and, of busy times, waiting; it is long "
    "where competing processes took the CPUs. Each is a median over epochs, and busy times of all steps are estimated "
    "from the first ones; the rest is 0 where these sum to more than the epoch."
)
LOADING_SAID = (
    "First the runs that load in their steps. Of lower: their rate over the lower of the best way of loading alone and "
    "of training on images in memory. Of both: over the rate of the two one after the other on the same cores. Then "
    "the ways of loading alone. Memory is the most that was resident in the process; libraries were there before the "
    "data, loader is the memory of data and loader, code of PyTorch or joblib too. Workers: of the largest worker "
    "process, times their number."
)


def build(results: StudyResults) -> Report:
    """Return the report of a study."""
    sentences, wrong = tables.agreement(results)
    study, names = results.study, _names(results)
    runs = tables.run_table(results)
    told = tables.data_sentences(results) + tables.energy_sentences(results)
    phases = [row for row in runs if row["phases_timed"]]
    failed = Table("failures", [*names, *map(text_column, ("seed", "reason", "message"))], tables.failures(results))
    loading = (
        Table("loading", [*names, *LOADING], tables.loading_table(results)),
        Table("loaders", LOADERS, tables.loader_table(results)),
    )
    sections = [
        section("How to read it", sentences=[study.how_to_read] if study.how_to_read else [], in_terminal=False),
        section("Pretrained weights", sentences=tables.pretrained_sentences(results)),
        section("Runs", Table("runs", [*names, *_run_columns(study)], runs), about=told, answers=sentences),
        section("Phases of an epoch", Table("phases", [*names, *PHASES], phases), about=[PHASES_SAID]),
        section("Loading image files", *loading, sentences=[LOADING_SAID] if results.loading else []),
        section("Curves", figures=tuple(FIGURES), plan_id="study", in_terminal=False),
        section("What did not run or did not fit", failed),
        environment_section(results.run, tables.machine_sentence(results)),
    ]
    title = f"{study.title}: {len(results.done())} of {len(results.found)} runs"
    warnings = wrong + tables.disturbance_warnings(results, runs)
    return Report(title, facts_of(results.run, study.title, data=""), tables.data_notes(results), warnings, sections)


def write_study_report(
    results: StudyResults, out: Path, as_json: bool = False, formats: Sequence[str] = (), whole: bool = False
) -> str:
    """Write epochs.csv, runs.csv, the figures, report.html and report.json; return the report's text, the `whole` of
    it, or the tables as JSON, in which a time to an accuracy that was not reached is null. Raises `UsageError`: the
    folder cannot be written."""
    report = build(results)
    pictures = []
    (out / FIGURE_FOLDER).mkdir(exist_ok=True)
    write_table(out / "epochs.csv", tables.epoch_table(results))
    write_table(out / "runs.csv", pd.DataFrame(tables.run_table(results)))
    for name in FIGURES:
        with suppress(Lacking):
            figure, caption = drawn_figure(results, name, "double")
            svg = save_all(figure, out / FIGURE_FOLDER / name, formats, _caption_file(results, report, caption))
            pictures.append(DrawnFigure("study", name, svg, caption))
    write_atomically(out / "report.html", render_html(report, pictures))
    text = json.dumps(render_json(report), indent=1)
    write_atomically(out / "report.json", text + "\n")
    return text if as_json else render_text(report, whole) + f"{out}: report.html, runs.csv, epochs.csv, figures\n"


def _caption_file(results: StudyResults, report: Report, caption: str) -> str:
    """Return the text beside a figure: its caption, and how its numbers came about."""
    method = [results.study.title, tables.machine_sentence(results), *tables.data_sentences(results)]
    method += [*report.notes, *report.warnings]
    return "\n\n".join([caption, "\n".join(method)]) + "\n"


def drawn_figure(results: StudyResults, name: str, column: str, title: bool = True) -> tuple[Figure, str]:
    """Return one of `FIGURES` and its caption. Raises `Lacking`: the study has nothing for it."""
    with in_style():
        chart = replace(FIGURES[name](results), facts=[title_of(results)])
        return drawn(chart, column, title), chart.text


def draw_study(
    results: StudyResults, folder: Path, figure: str, *, column: str, kind: str, out: str | None, title: bool
) -> Path:
    """Draw one figure, with its caption beside it, and return its path; arguments as for `report.files.draw_folder`.
    Raises `UsageError`: an unknown figure or format, a study that has nothing for it, or a file that cannot be
    written."""
    check_choice("the figure", figure, FIGURES)
    check_choice("--format", kind, FORMATS)
    picture, caption = drawn_figure(results, figure, column, title)
    return save_asked(picture, folder, figure, column, kind, out, _caption_file(results, build(results), caption))


def _names(results: StudyResults) -> list[Column]:
    """Return the columns that tell combinations apart: the axes, or the label of a study without any."""
    axes = results.study.axes
    named = [text_column(axis)._replace(text=lambda row, axis=axis: axis_text(row[axis])) for axis in axes]
    return named or [text_column("label", "run")]


def _rate(name: str, heading: str) -> Column:
    return Column(heading, lambda row: f"{row[name]:,.0f}", True)


def _run_columns(study: Study) -> list[Column]:
    goals = {f"time_to_{accuracy:g}": f"time to {100 * accuracy:g} %" for accuracy in study.options.accuracy}

    def spread(row: dict[str, Any]) -> str:
        if row["seeds"] == 1:
            return ""
        return f"{100 * row['test_accuracy_min']:.2f} ... {100 * row['test_accuracy_max']:.2f}"

    return [
        *map(count_column, ("seeds", "epochs")),
        time_column("epoch_time_s", "time/epoch"),
        Column("least to most", _spread, True),
        Column("disturbed epochs", lambda row: str(row["disturbed_epochs"] or ""), True),
        USABLE,
        Column("energy/epoch", lambda row: time(row["joules_per_epoch"], "J"), True),
        _rate("samples_per_s", "samples/s"),
        *(number_column(name, digits=4) for name in ("train_loss", "valid_loss")),
        *(percent_column(name, digits=2) for name in ("valid_error", "test_accuracy")),
        Column("over seeds (%)", spread, True),
        *(Column(text, lambda row, name=name: time(row[name]) or "not reached", True) for name, text in goals.items()),
        size_column("peak_bytes", "peak memory"),
        size_column("gpu_memory_bytes", "GPU memory"),
        Column("GPU load", lambda row: percent(row.get("gpu_utilisation")), True),
    ]


def _spread(row: dict[str, Any]) -> str:
    """Write the shortest and the longest epoch."""
    ends = time(row["epoch_time_min_s"]), time(row["epoch_time_max_s"])
    return " to ".join(ends) if ends[0] != ends[1] else ""


LOADING = (
    _rate("samples_per_s", "images/s"),
    *(_rate(f"{part}_per_s", f"{part} alone") for part in ("loading", "training")),
    *map(number_column, ("of_lower", "of_both")),
    USABLE,
)
LOADERS = (
    *map(text_column, ("load", "threads", "way", "count")),
    _rate("images_per_s", "images/s"),
    USABLE,
    size_column("peak_bytes", "memory"),
    *(size_column(f"{part}_bytes", part) for part in ("libraries", "loader", "workers")),
)
PHASES = (
    text_column("phases_timed"),
    time_column("epoch_time_s", "epoch"),
    *(Column(name[:-2], lambda row, name=name: time(row.get(name)), True) for name in (*PHASE_COLUMNS, "rest_s")),
    USABLE,
)
