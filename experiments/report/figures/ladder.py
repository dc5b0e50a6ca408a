"""Figure `ladder`: rungs from fork-join to tasks, their ratios to fork-join and to the rung above, and simulated."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from ...analysis.estimates import EQUIVALENCE_BAND
from ...analysis.ladder import ladder_table, missing
from ...analysis.names import called, model_label
from ...analysis.sweep import Sweep
from ...simulate.predict import error_text, prediction_table
from ...subjects.models import ModelSpec
from ...tables.numbers import time
from . import simulated
from .axes import mark_ratio, rows_of_ratios
from .heading import header
from .style import GREY, TALLEST_IN, add_legend, blank_figure, model_styles

RANK, ONE_FOR = 0.2, "plan"
SIMULATED_THREADS = (8, 64)
MARKERS = ("s", "D")
SIMULATED = {"linestyle": "none", "color": GREY, "markersize": 3.5}


def rows_of(sweep: Sweep, plan_id: str) -> list[dict[str, Any]]:
    """Return the rows of `ladder_table`, with simulated_8 and simulated_64: simulated time over that of the better
    fork-join form on so many threads; NaN for a model that is not simulated, or without the machine's latencies."""
    if missing(sweep, plan_id):
        return []
    rows = ladder_table(sweep, plan_id).to_dict("records")
    times = _simulated(sweep, plan_id)
    for row in rows:
        for threads in SIMULATED_THREADS:
            of_all = {model: seconds for (model, count), seconds in times.items() if count == threads}
            joins = [seconds for model, seconds in of_all.items() if model.name == "forkjoin"]
            row[f"simulated_{threads}"] = of_all.get(row["model"], math.nan) / min(joins, default=math.nan)
    return rows


def _simulated(sweep: Sweep, plan_id: str) -> dict[tuple[ModelSpec, int], float]:
    """Return simulated seconds a step by model and threads; empty where the simulation lacks something."""
    if simulated.missing(sweep, plan_id):
        return {}
    table = prediction_table(sweep, plan_id, SIMULATED_THREADS)
    return {(row["model"], row["threads"]): row["step_s"] for row in table.to_dict("records")}


def draw(sweep: Sweep, plan_id: str, column: str) -> Figure:
    """Draw a row for each rung in the order of the file, and a panel for each ratio."""
    rows, styles = rows_of(sweep, plan_id), model_styles(sweep.samples["model"])
    predicted = any(math.isfinite(row[f"simulated_{SIMULATED_THREADS[0]}"]) for row in rows)
    wide, tall = column == "double", 0.27 * len(rows) + 1.2
    figure = blank_figure(column, tall if wide else min(tall, TALLEST_IN))
    panels = figure.subplots(1, 2 + predicted, sharey=True)
    figure.get_layout_engine().set(w_pad=0.04, h_pad=0.03, wspace=0.03)
    for place, row in enumerate(rows):
        color = styles[row["model"]].color
        both = row["usable"] and rows[max(place - 1, 0)]["usable"]
        for panel, name, usable in zip(panels, ("ratio", "above"), (row["usable"], both), strict=False):
            ratio = [row[f"{name}{end}"] for end in ("", "_low", "_high")]
            mark_ratio(panel, place, ratio, color, usable=usable)
        if math.isnan(row["ratio"]):
            panels[0].plot(1, place, "|", color=color, markersize=9)
        if wide:
            at = (1.01, place)
            panels[0].annotate(time(row["time_s"]), at, xycoords=("axes fraction", "data"), fontsize=6, va="center")
        for number, threads in enumerate(SIMULATED_THREADS if predicted else ()):
            look = {"color": color, "markerfacecolor": color if number else "white", "markersize": 3.5}
            panels[2].plot(row[f"simulated_{threads}"], place, MARKERS[number], **look)
    names = [_row_name(row, wide) for row in rows]
    panels[0].set_yticks(range(len(rows)), names, fontsize=6 if wide else 5.5, linespacing=1.0)
    panels[0].set_ylim(len(rows) - 0.5, -0.5)
    for panel, label in zip(
        panels, ("time /\nfork-join", "time /\nrung above", "simulated /\nfork-join"), strict=False
    ):
        rows_of_ratios(panel, label, fontsize=7)
        panel.xaxis.set_major_locator(MaxNLocator(4 if wide else 2, steps=[1, 2, 5, 10]))
        panel.margins(x=0.08)
        panel.tick_params(axis="x", labelsize=7 if wide else 6)
    faces = ("white", GREY) if predicted else ()
    handles = [
        Line2D([], [], marker=marker, markerfacecolor=face, label=f"simulated, {threads} threads", **SIMULATED)
        for marker, face, threads in zip(MARKERS, faces, SIMULATED_THREADS, strict=False)
    ]
    if handles:
        add_legend(figure, "double", handles, None if wide else 2)
    header(figure, sweep, [sweep.problem_name(plan_id), f"measured on {rows[0]['threads']} threads"], column)
    return figure


def _row_name(row: Mapping[str, Any], wide: bool) -> str:
    """Return what a rung takes away and its model; in a single column, which has no room for both, the first, or the
    name that the model was given."""
    takes, label = textwrap.fill(row["takes"], 42 if wide else 24), model_label(row["model"])
    if wide:
        return f"{takes}\n{label}"
    with called({}):
        return takes if label == model_label(row["model"]) else textwrap.fill(label, 24)


def caption(sweep: Sweep, plan_id: str) -> list[str]:
    """Return the caption's sentences."""
    rows = rows_of(sweep, plan_id)
    known = any(math.isfinite(row["ratio_low"]) for row in rows)
    said = "Each rung takes away (−) or puts back (+) a wait. Ratios of times with 95 % intervals, to the better "
    said += f"fork-join form and to the rung above; grey: ± {EQUIVALENCE_BAND:.0%}."
    if reason := simulated.missing(sweep, plan_id):
        return [said, "" if known else "Hollow: too few generations for an interval.", f"Not simulated: {reason}."]
    threads = sorted({row["threads"] for row in rows})
    return [
        said,
        "" if known else "Hollow: too few generations for an interval.",
        error_text(prediction_table(sweep, plan_id, threads)),
    ]
