"""The files of a report: summary.csv, layers.csv, figures with their captions, and report.html; and those of traced
models besides their logs: pictures, losses, and traces for other tools."""

from __future__ import annotations

import gc
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure

from ...cython_src.errors import UsageError, check_choice
from ..analysis.accounting import layers_of_all, summary_table
from ..analysis.load import load
from ..analysis.losses import all_losses, as_rows, as_table, as_text
from ..analysis.names import ALWAYS_NAMED, GRANULARITY, INTERFERENCE, value_text
from ..analysis.speeds import main_plan, with_usable
from ..analysis.sweep import Sweep, chosen
from ..analysis.windows import LogWindow, typical
from ..events.events import EventLog
from ..results.files import write_atomically, write_table
from ..traces.formats import write_paraver, write_perfetto
from ..traces.sweep import LOSSES_TABLE, SHOWN, plan_folder
from . import figures
from .figures.layers import draw_traced, losses_chart
from .figures.style import FIGURE_FOLDER, FORMATS, save, save_all, save_asked
from .gantt import draw_gantt, draw_traces, gantt_text
from .rendering import DrawnFigure, render_answers, render_figure, render_html, render_json, render_text
from .sections import Report, build
from .words import plan_title

REPORT = "report.html"
SUMMARY = "summary.csv"
LAYERS = "layers.csv"
GANTT = "gantt"
MAX_EXPORTED = 200_000  # events of a model in each trace for another tool


def figure_stem(sweep: Sweep, plan_id: str, figure: str) -> str:
    """Return a figure's file name: its plain name for the main plan, else with the options that identify the plan."""
    if plan_id == main_plan(sweep):
        return figure
    record = sweep.named[plan_id]
    swept = [f"{axis}_{value_text(record[axis])}" for axis in sweep.axes if axis not in ALWAYS_NAMED]
    cut = [f"batch{record['batch']}", record["phase"], record[GRANULARITY]] if record["phase"] else []
    words = [figure, record["network"], *cut, *swept, *([f"hogs{hogs}"] if (hogs := record[INTERFERENCE]) else [])]
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", "-".join(words)).strip("_-")


def write_report(out_dir: str | os.PathLike, formats: Sequence[str] = ()) -> Path:
    """Write the report of a results folder; see `write_sweep`."""
    sweep = load(out_dir)
    return write_sweep(sweep, build(sweep), Path(out_dir), formats)


def write_sweep(sweep: Sweep, report: Report, out_dir: Path, formats: Sequence[str] = ()) -> Path:
    """Write summary.csv, layers.csv, figures with their captions, and report.html of a sweep that was loaded, and its
    report, into a folder; return the page. Figures are drawn as SVG, and in formats that are given or there already.
    Raises `UsageError`: a folder that cannot be written. Each file of an earlier report is then left as it was, or was
    replaced as a whole.
    """
    folder = out_dir / FIGURE_FOLDER
    drawn = []
    try:
        folder.mkdir(exist_ok=True)
        for plan_id in sweep.plan_ids():
            for name in figures.available_figures(sweep, plan_id):
                column = "single" if name == report.first else "double"
                figure = figures.draw(sweep, name, plan_id, column)
                text = figures.caption_file(sweep, name, plan_id)
                svg = save_all(figure, folder / figure_stem(sweep, plan_id, name), formats, text)
                drawn.append(DrawnFigure(plan_id, name, svg, text.partition("\n\n")[0]))
            if any(row.plan_id == plan_id for row in sweep.traces):
                gantt = DrawnFigure.read(plan_id, plan_folder(out_dir, sweep.plans[plan_id]) / f"{GANTT}.svg")
                drawn += [gantt] if gantt else []
        if len(sweep.samples):
            write_table(out_dir / SUMMARY, summary_table(sweep))
        if sweep.profiles:
            write_table(out_dir / LAYERS, with_usable(sweep, layers_of_all(sweep)))
        page = out_dir / REPORT
        write_atomically(page, render_html(report, drawn))
    except OSError as error:
        raise UsageError(
            f"the report must be writable to {str(out_dir)!r}, got: {error.strerror}; copy the folder to another place"
        ) from None
    return page


def report_folder(
    out_dir: str | os.PathLike, as_json: bool = False, formats: Sequence[str] = (), whole: bool = False
) -> str:
    """Write the report of a folder, and return its answers, or as text or JSON all of it; see `write_sweep`."""
    sweep = load(out_dir)
    report = build(sweep)
    gc.freeze()  # what was imported and read stays: looking through it for garbage would take a tenth of the time
    page = write_sweep(sweep, report, Path(out_dir), formats)
    if as_json:
        return json.dumps({**render_json(report), "report": str(page)}, indent=1)
    return f"{(render_text if whole else render_answers)(report)}\nReport: {page}"


def draw_folder(
    folder: str | os.PathLike,
    figure: str = "speedup",
    *,
    column: str = "double",
    kind: str = "pdf",
    plan: str | None = None,
    out: str | None = None,
    title: bool = True,
    models: Mapping[str, str] | None = None,
    panels: Sequence[str] | None = None,
) -> Path:
    """Draw one figure of a results folder, with its caption beside it, and return its path, by default
    DIR/figures/NAME[-single].FORMAT.

    Parameters
    ----------
    figure : str
        Name of a figure of the report, or "gantt": traces of all plans, or of the chosen ones, beside each other.
    plan : str, optional
        First characters of a plan's id; default: the one with most samples. Of "gantt": of several, with commas.
    column, title, models, panels
        As for `figures.draw`.

    Raises
    ------
    UsageError
        An unknown figure, format or plan, or a file that cannot be written.
    """
    sweep = load(folder)
    check_choice("--format", kind, FORMATS)
    check_choice("the figure", figure, [*figures.FIGURES, GANTT])
    if figure == GANTT:
        if panels:
            raise UsageError(f"--panels is for figures with letters, got it with {GANTT}; give --plan, or leave it out")
        # No prefix between two commas is not the main plan.
        requested = [chosen_plan(sweep, prefix or ",") for prefix in plan.split(",")] if plan else sweep.plan_ids()
        drawn, text = draw_traces(chosen(sweep, models), folder, list(dict.fromkeys(requested)), column, title)
        stem = GANTT
    else:
        plan_id = chosen_plan(sweep, plan)
        drawn = figures.draw(sweep, figure, plan_id, column, title, models, panels=panels)
        stem, text = figure_stem(sweep, plan_id, figure), figures.caption_file(sweep, figure, plan_id, models)
    return save_asked(drawn, folder, stem, column, kind, out, text)


def figure_tables(folder: str | os.PathLike, figure: str, plan: str | None = None) -> str:
    """Return the tables that the page shows with a figure, as text; empty where it has none."""
    sweep = load(folder)
    return render_figure(build(sweep), figure, chosen_plan(sweep, plan)) if figure != GANTT else ""


def chosen_plan(sweep: Sweep, prefix: str | None) -> str:
    """Return the plan whose id begins with `prefix`; without one, the main plan. Raises `UsageError`: no plan's id, or
    several, begin so."""
    if prefix is None:
        return main_plan(sweep)
    result = [p for p in sweep.plan_ids() if p.startswith(prefix)]
    if len(result) != 1 or not prefix:
        known = "; ".join(f"{p}: {plan_title(sweep, p)}" for p in sweep.plan_ids())
        raise UsageError(f"--plan must begin exactly one plan's id, got {prefix!r}; plans are {known}")
    return result[0]


def write_trace_files(folder: str | os.PathLike, title: str, logs: Sequence[EventLog], shown: int = SHOWN) -> list[str]:
    """Write pictures, losses and traces of a plan's logs; return a sentence for each file and the table of losses.
    Pictures have `shown` iterations of each model; traces as many as `MAX_EXPORTED` events allow. Raises
    `UsageError`: a file that cannot be written."""
    folder = Path(folder)
    windows = [typical(log, shown) for log in logs]
    exported = [largest_window(log) for log in logs]
    texts = []
    try:
        texts.append(_save(folder, "gantt", partial(draw_gantt, windows, title=title), gantt_text(windows, title)))
        result = all_losses(logs)
        write_table(folder / LOSSES_TABLE, as_table(result))
        texts.append(f"{folder / LOSSES_TABLE}: seconds by model, phase and layer")
        rows = as_rows(result)
        caption = f"{title}. {losses_chart(rows, ()).text}\n"
        texts.append(_save(folder, "losses", partial(draw_traced, rows, title=title), caption))
        texts.append(write_perfetto(folder / "trace.json.gz", exported))
        texts.append(write_paraver(folder / "trace.prv", exported))
    except OSError as error:
        raise UsageError(f"traces must be writable to {os.fspath(folder)!r}, got: {error.strerror}") from None
    cut = [w.log for w in exported if len(w.passes) * w.log.about["stride"] < w.log.about["iterations"]]
    if cut:
        texts.append(
            f"Traces for other tools hold at most {MAX_EXPORTED} events per model: the first iterations of "
            f"{', '.join(str(log.model) for log in cut)}"
        )
    return [*texts, "", as_text(result)]


def largest_window(log: EventLog) -> LogWindow:
    """Return the first iterations of a log that have at most `MAX_EXPORTED` events."""
    passes = int(log.about["iterations"] // log.about["stride"])
    return LogWindow(log, range(max(1, min(passes, passes * MAX_EXPORTED // len(log.events)))))


def _save(folder: Path, name: str, draw: Callable[..., Figure], text: str) -> str:
    for column, stem in (("double", name), ("single", f"{name}-single")):
        figure = draw(column=column)
        for kind in FORMATS:
            save(figure, folder / f"{stem}.{kind}")
    write_atomically(folder / f"{name}.txt", text)
    return f"{folder / name}.{{{','.join(FORMATS)}}}: {name}; {name}-single for a column of 3.3 in"
