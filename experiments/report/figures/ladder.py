"""Figure `ladder`: rungs from fork-join to tasks, their ratios to fork-join and to the rung above, and simulated."""

from __future__ import annotations

import math
import textwrap
from typing import Any

import pandas as pd
from matplotlib.lines import Line2D

from ...analysis.estimates import EQUIVALENCE_BAND
from ...analysis.ladder import ladder_table, missing
from ...analysis.names import model_label
from ...analysis.sweep import Sweep
from ...simulate.predict import error_text, prediction_table
from ...subjects.models import ModelSpec
from ...tables.numbers import time
from . import simulated
from .chart import Chart, Panel, reference_rows, value_rows
from .style import GREY, model_styles

RANK, ONE_FOR = 0.2, "plan"
SIMULATED_THREADS = (8, 64)
SIMULATED = {"linestyle": "none", "color": GREY, "marker": "o", "markersize": 4}


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


def chart(sweep: Sweep, plan_id: str) -> Chart:
    """Return a row for each rung in the order of the file, and a panel for each ratio."""
    table = pd.DataFrame(rows_of(sweep, plan_id))
    names = [
        f"{textwrap.fill(row['takes'], 60)}\n{model_label(row['model'])}, {time(row['time_s'])}"
        for row in table.to_dict("records")
    ]
    x = pd.Series(names, table.index)
    both = table["usable"] & table["usable"].shift(fill_value=True)
    panels = [
        Panel(value_rows(table.assign(ratio=table["ratio"].fillna(1.0)), "ratio", x), "time / fork-join", "", "ratio"),
        Panel(value_rows(table.assign(usable=both), "above", x), "time / rung above", "", "ratio"),
    ]
    handles = []
    if table[f"simulated_{SIMULATED_THREADS[0]}"].notna().any():
        rows = [
            reference_rows(table["model"], x, table[f"simulated_{threads}"]).assign(hollow=not number)
            for number, threads in enumerate(SIMULATED_THREADS)
        ]
        panels.append(Panel(pd.concat(rows), "simulated / fork-join", "", "ratio"))
        faces = zip(SIMULATED_THREADS, ("white", GREY), strict=True)
        handles = [
            Line2D([], [], markerfacecolor=face, label=f"simulated, {n} threads", **SIMULATED) for n, face in faces
        ]
    facts = [sweep.problem_name(plan_id), f"measured on {table['threads'].iloc[0]} threads"]
    styles = model_styles(sweep.samples["model"])
    return Chart(panels, facts, styles, handles=handles, hollow_unknown=False, height=0.45 + 0.31 * len(table))


def caption(sweep: Sweep, plan_id: str) -> list[str]:
    """Return the caption's sentences."""
    text = "Each rung removes (−) or adds (+) a wait. Ratios of times with 95 % intervals, to the better "
    text += f"fork-join form and to the rung above; grey: ± {EQUIVALENCE_BAND:.0%}."
    if reason := simulated.missing(sweep, plan_id):
        return [text, f"Not simulated: {reason}."]
    threads = sorted({row["threads"] for row in rows_of(sweep, plan_id)})
    return [text, error_text(prediction_table(sweep, plan_id, threads))]
