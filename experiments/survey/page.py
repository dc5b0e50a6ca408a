"""The page of a survey: the machine, its limits, the results of each stage, and the simulator's error."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from ...cython_src.reading import decoding, read_regular
from ..analysis.load import load
from ..analysis.speeds import main_plan, on_most_threads, speed_table
from ..analysis.sweep import Sweep
from ..machine.info import machine_topics
from ..metg.metg import table_of
from ..metg.table import COLUMNS as METG
from ..report import columns
from ..report.figures.style import FIGURE_FOLDER, save
from ..report.files import REPORT
from ..report.rendering import DrawnFigure, render_html, render_json, render_text
from ..report.sections import Report, Section, section
from ..report.verdicts import answers
from ..results.files import locked_file, output_folder, write_atomically
from ..results.folder import SAMPLES, read_results
from ..results.rows import SampleRow
from ..simulate.predict import knows_machine, missing, prediction_table
from ..subjects.models import PERSISTENT, TASKITER
from ..tables import Column, Table, count_column, percent_column, text_column
from ..tables.numbers import plural, time
from . import INFO, is_survey
from .handovers import draw_handovers, read_handovers
from .stages import STAGES, Stage, take_survey

SURVEY = "survey.json"
ERRORS = (
    text_column("network"),
    count_column("threads"),
    percent_column("error", "median error"),
    percent_column("largest", "largest error"),
)
LIMITS = (
    count_column("threads"),
    Column("GB/s", lambda row: f"{row['bandwidth'] / 1e9:.1f}" if row["bandwidth"] else "", True),
    Column("work of single threads", lambda row: f"{row['capacity']:.2f}" if row["capacity"] else "", True),
)


def survey_machine(folder: Path, budget_s: float, command: str) -> str:
    """Measure what a folder lacks, as `take_survey` does, and return the text of its page, which an interrupted survey
    gets too."""
    with locked_file(output_folder(folder, INFO)):
        try:
            take_survey(folder, budget_s, command)
        finally:
            text = write_survey(folder) if is_survey(folder) else ""
    return text


def write_survey(folder: Path) -> str:
    """Write report.html and survey.json of what a survey's folder holds, and return the text for a terminal."""
    content = read_regular(folder / INFO, "a machine's description")
    with decoding(folder / INFO, "description of a machine", "give the same forktask survey again: it is written anew"):
        result = json.loads(content)
        planned, _ = result["stages"], result["machine"]
    sweeps = {stage: load(folder / stage.name) for stage in STAGES if stage.axes and _is_measured(folder, stage)}
    errors = [row for stage, sweep in sweeps.items() for row in simulator_errors(stage, sweep)]
    drawn = [*_drawn(folder, sweeps)]
    sections = [
        _machine(result),
        _handovers(folder),
        *(_network(stage, sweep) for stage, sweep in sweeps.items()),
        *_metg(folder),
        section("Error of the simulator here", Table("simulator", ERRORS, errors), answers=error_sentences(errors)),
    ]
    environment = result["environment"]
    cores = plural(environment["topology"]["cores"], "core")
    facts = {
        "title": f"Survey of {environment['cpu']['model'] or 'a machine'}, {cores}",
        "created": result["created"],
        "forktask": environment["forktask"],
        "command": f"forktask survey --out {folder.name}",
        "data": "",
        "environment_id": result["environment_id"],
    }
    left = [stage.name for stage in STAGES if stage.name in planned and not _is_measured(folder, stage)]
    warnings = [f"Not measured yet: {', '.join(left)}. The same command continues in this folder."] if left else []
    report = Report(facts["title"], facts, warnings=warnings, sections=sections)
    write_atomically(folder / REPORT, render_html(report, drawn))
    write_atomically(folder / SURVEY, json.dumps({**render_json(report), **result}, indent=1, default=str) + "\n")
    return f"{render_text(report)}\nReport: {folder / REPORT}"


def simulator_errors(stage: Stage, sweep: Sweep) -> Iterator[dict[str, Any]]:
    """Yield by how much simulated step times are off, for each number of threads that was measured: network, threads,
    error (the median over models, without its sign), largest."""
    plan_id = main_plan(sweep)
    if not knows_machine(sweep) or missing(sweep, plan_id):
        return
    counts = sorted({point.threads for point in sweep.points() if point.threads > 1})
    table = prediction_table(sweep, plan_id, counts)
    for threads in counts:
        errors = [abs(error) for error in table[table["threads"] == threads]["error"] if math.isfinite(error)]
        if errors:
            yield {"network": stage.name, "threads": threads, "error": median(errors), "largest": max(errors)}


def error_sentences(errors: list[dict[str, Any]]) -> list[str]:
    """Say how far the simulator was off at each number of threads."""
    counts = sorted({row["threads"] for row in errors})
    each = [
        f"{median([row['error'] for row in errors if row['threads'] == threads]):.0%} on {plural(threads, 'thread')}"
        for threads in counts
    ]
    return [f"Simulated step times differ from measured ones by {', '.join(each)} (medians)."] if each else []


def _is_measured(folder: Path, stage: Stage) -> bool:
    """Whether there are results; a sweep that was interrupted in its first generation has no samples."""
    rows = folder / stage.name / SAMPLES
    return rows.exists() and (not stage.axes or bool(read_results(rows.parent).of(SampleRow)))


def _machine(result: dict[str, Any]) -> Section:
    limits = result["machine"]
    rows = [
        {"threads": int(n), "bandwidth": bytes_per_s, "capacity": limits["capacity"].get(n)}
        for n, bytes_per_s in limits["bandwidth_bytes_per_s"].items()
    ]
    topics = [{"entry": topic, "value": text} for topic, text in machine_topics(result).items()]
    tables = Table("machine", columns.ENVIRONMENT, topics), Table("limits", LIMITS, rows)
    return section("The machine and its limits", *tables)


def _handovers(folder: Path) -> Section:
    took = read_handovers(folder)
    texts = []
    if took:
        nearest, furthest = min(took, key=took.__getitem__), max(took, key=took.__getitem__)
        texts = [
            f"A cache line goes from one CPU to another in {time(median(took.values()))}"
            + (
                f" (median of {len(took)} pairs); {time(took[nearest])} between CPUs {nearest[0]} and {nearest[1]}, "
                f"{time(took[furthest])} between {furthest[0]} and {furthest[1]}."
                if len(took) > 1
                else "."
            )
        ]
    return section("Hand-overs between CPUs", sentences=texts, figures=("handovers",), plan_id="survey")


def _network(stage: Stage, sweep: Sweep) -> Section:
    plan_id = main_plan(sweep)
    widest, _ = on_most_threads(speed_table(sweep))
    rows = [row for row in answers(sweep) if row["plan_id"] == plan_id]
    best = [
        row for row in widest.to_dict("records") if row["plan_id"] == plan_id and row["model"] in (PERSISTENT, TASKITER)
    ]
    texts = [f"{row['model']}, {plural(row['threads'], 'thread')}: {time(row['time_s'])} per step." for row in best]
    return Section(
        f"{stage.title}: {stage.name}",
        2,
        sentences=[" ".join([*texts, f"All tables: `{stage.name}/{REPORT}`."])],
        tables=[Table(f"answers of {stage.name}", columns.ANSWER, rows)],
        figures=("speedup", "batch"),
        plan_id=stage.name,
    )


def _metg(folder: Path) -> Iterator[Section]:
    if (folder / "metg" / SAMPLES).exists():
        rows = [row for row in table_of(folder / "metg")["results"] if row["repeats"]]
        yield section("What a task costs", Table("metg", METG, rows))


def _drawn(folder: Path, sweeps: dict[Stage, Sweep]) -> Iterator[DrawnFigure]:
    if len(pairs := read_handovers(folder)) > 1:
        (folder / FIGURE_FOLDER).mkdir(exist_ok=True)
        path = save(draw_handovers(pairs), folder / FIGURE_FOLDER / "handovers.svg")
        caption = "Time of a hand-over of a cache line between threads on two CPUs, the least of three windows."
        yield DrawnFigure("survey", "handovers", path.read_text(encoding="utf-8"), caption)
    for stage in sweeps:
        pictures = (folder / stage.name / FIGURE_FOLDER / f"{name}.svg" for name in ("speedup", "batch"))
        yield from filter(None, (DrawnFigure.read(stage.name, picture) for picture in pictures))
