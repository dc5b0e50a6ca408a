"""The files of a report: summary.csv, figures with their captions, and report.html."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...cython_src.errors import UsageError, check_choice
from ...cython_src.reading import decoding, read_regular
from ..analysis.load import load
from ..analysis.names import GRANULARITY, INTERFERENCE, value_text
from ..analysis.phases import summary_table
from ..analysis.speeds import main_plan
from ..analysis.study import Study
from ..results.files import write_atomically, write_table
from ..traces.sweep import plan_folder
from . import figures
from .figures.style import FORMATS, save, save_asked
from .render_html import DrawnFigure, render_html
from .render_json import render_json
from .render_text import render_text
from .sections import build
from .words import plan_title

FIGURE_FOLDER = "figures"
REPORT = "report.html"
SUMMARY = "summary.csv"


def figure_stem(study: Study, plan_id: str, figure: str) -> str:
    """Return a figure's file name: its plain name for the main plan, else with the options that identify the plan."""
    if plan_id == main_plan(study):
        return figure
    record = study.records[plan_id]
    named = (*("network", "batch", "phase", GRANULARITY), INTERFERENCE)
    swept = [f"{axis}={value_text(record[axis])}" for axis in study.axes if axis not in named]
    cut = [f"batch{record['batch']}", record["phase"], record[GRANULARITY]] if record["phase"] else []
    words = [figure, record["network"], *cut, *swept]
    if record[INTERFERENCE]:
        words.append(f"hogs{record[INTERFERENCE]}")
    return re.sub(r"[^A-Za-z0-9_.=-]+", "_", "-".join(words)).strip("_-")


def write_report(out_dir: str | os.PathLike, formats: Sequence[str] = FORMATS) -> Path:
    """Write summary.csv, the figures with their captions, and report.html into a results folder.

    Parameters
    ----------
    out_dir : path
        Holds samples.jsonl.
    formats : sequence of str
        Of `FORMATS`; figures of plans other than the main one are written as SVG only.

    Returns
    -------
    Path
        The page.

    Raises
    ------
    UsageError
        Rows that must not be compared (see `load.study_from_rows`), or a folder that cannot be written. Each file of
        an earlier report is then left as it was, or was replaced as a whole.
    """
    return write_study(load(out_dir), Path(out_dir), formats)


def write_study(study: Study, out_dir: Path, formats: Sequence[str] = FORMATS) -> Path:
    """Write the files of a study that was loaded; see `write_report`."""
    folder = out_dir / FIGURE_FOLDER
    drawn = []
    try:
        folder.mkdir(exist_ok=True)
        for plan_id in study.plan_ids():
            main = plan_id == main_plan(study)
            for name in figures.available_figures(study, plan_id):
                figure, text = figures.draw(study, name, plan_id), figures.caption(study, name, plan_id)
                stem = folder / figure_stem(study, plan_id, name)
                for kind in sorted({"svg", *(formats if main else ())}):
                    save(figure, f"{stem}.{kind}")
                write_atomically(f"{stem}.txt", text + "\n")
                drawn.append(DrawnFigure(plan_id, name, Path(f"{stem}.svg").read_text(encoding="utf-8"), text))
            drawn += _gantt(study, plan_id, out_dir)
        if len(study.samples):
            write_table(out_dir / SUMMARY, summary_table(study))
        page = out_dir / REPORT
        write_atomically(page, render_html(build(study), drawn))
    except OSError as error:
        raise UsageError(
            f"the report must be writable to {str(out_dir)!r}, got: {error.strerror}; copy the folder to another place"
        ) from None
    return page


def _gantt(study: Study, plan_id: str, out_dir: Path) -> list[DrawnFigure]:
    """Return the picture of the plan's traces, if it is there."""
    picture, caption = (plan_folder(out_dir, plan_id) / f"gantt.{kind}" for kind in ("svg", "txt"))
    if not any(row.plan_id == plan_id for row in study.traces) or not picture.exists() or not caption.exists():
        return []
    title = "picture of a trace, with its caption"
    with decoding(picture, title, "delete it to report without"):
        texts = [read_regular(path, title).decode() for path in (picture, caption)]
        texts[0].index("<svg")  # raises
    return [DrawnFigure(plan_id, "gantt", *texts)]


def report_folder(out_dir: str | os.PathLike, as_json: bool = False) -> str:
    """Write the report of a folder again, and return its tables, as text or JSON."""
    study = load(out_dir)
    page = write_study(study, Path(out_dir))
    if as_json:
        return json.dumps({**render_json(build(study)), "report": str(page)}, indent=2)
    return f"{render_text(build(study))}\nReport: {page}"


def report_on_sweep(out_dir: str | os.PathLike, as_json: bool = False) -> str:
    """Write the report of a sweep, and return its tables, as text or JSON."""
    write_report(out_dir)
    if as_json:
        return json.dumps(summary_json(out_dir), indent=1)
    return f"{summary_text(out_dir)}\n\n{out_dir}: samples.jsonl, summary.csv, figures, report.html"


def plot_folder(
    folder: str | os.PathLike,
    figure: str = "speedup",
    *,
    column: str = "double",
    kind: str = "pdf",
    plan: str | None = None,
    out: str | None = None,
) -> Path:
    """Draw one figure, with its caption beside it, and return its path.

    Parameters
    ----------
    folder : path
        Results folder.
    figure : str
        Name of a figure of the report.
    column : {"double", "single"}
    kind : {"pdf", "svg", "png"}
    plan : str, optional
        First characters of a plan's id; default: the one with most samples.
    out : str, optional
        Default: DIR/figures/NAME[-single].FORMAT.

    Raises
    ------
    UsageError
        An unknown figure, format or plan, or a file that cannot be written.
    """
    study = load(folder)
    plan_id = chosen_plan(study, plan)
    check_choice("--format", kind, FORMATS)
    drawn = figures.draw(study, figure, plan_id, column)
    single = "-single" if column == "single" else ""
    path = Path(out) if out else Path(folder) / FIGURE_FOLDER / f"{figure_stem(study, plan_id, figure)}{single}.{kind}"
    save_asked(drawn, path, figures.caption(study, figure, plan_id))
    return path


def chosen_plan(study: Study, prefix: str | None) -> str:
    """Return the plan whose id begins with `prefix`; without one, the main plan.

    Raises
    ------
    UsageError
        No plan's id, or several, begin so.
    """
    if not prefix:
        return main_plan(study)
    found = [p for p in study.plan_ids() if p.startswith(prefix)]
    if len(found) != 1:
        known = "; ".join(f"{p}: {plan_title(study, p)}" for p in study.plan_ids())
        raise UsageError(f"--plan must begin exactly one plan's id, got {prefix!r}; plans are {known}")
    return found[0]


def summary_text(out_dir: str | os.PathLike) -> str:
    """Return the tables that `compare` and `report` print.

    Raises
    ------
    UsageError
        See `load.study_from_rows`.
    """
    return render_text(build(load(out_dir)))


def summary_json(out_dir: str | os.PathLike) -> dict[str, Any]:
    """Return the same tables as lists of rows with raw numbers (seconds, ratios), fit for `json.dumps`."""
    return render_json(build(load(out_dir)))
