"""Figure `run_time`: run time over threads of a step and of its phases, wall times and busy times apart."""

from __future__ import annotations

import string

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ...analysis.names import is_gpu, model_label, model_rank
from ...analysis.phases import BUSY, WALL, phase_table
from ...analysis.speeds import is_usable, speed_table
from ...analysis.sweep import Sweep
from .axes import log2_axis, power_ticks, series, x_axis
from .heading import plan_header
from .phases import shown_phases
from .style import add_legend, model_handles, model_styles, new_figure, panel_title

RANK, ONE_FOR = 0.4, "plan"
COLUMNS = ["model", "threads", "s", "s_low", "s_high"]


def missing(sweep: Sweep, plan_id: str) -> str:
    """Return why the figure cannot be drawn."""
    rows = phase_table(sweep)
    rows = rows[rows["plan_id"] == plan_id] if len(rows) else rows
    if len(rows) and rows["threads"].nunique() > 1:
        return ""
    return "run time of phases over threads needs profiles on two numbers of threads, got none; give --threads 1,2"


def _panels(sweep: Sweep, plan_id: str) -> list[tuple[str, pd.DataFrame]]:
    """Return titles and points of the panels: wall times of the step and of each phase, then busy times of phases."""
    speeds, phases = speed_table(sweep), phase_table(sweep)
    step = speeds[(speeds["plan_id"] == plan_id) & ~speeds["model"].map(is_gpu)]
    found = [("step", step.rename(columns={"median_s": "s", "low_s": "s_low", "high_s": "s_high"})[COLUMNS])]
    for kind in (WALL, BUSY):
        own = phases[(phases["plan_id"] == plan_id) & (phases["timed"] == kind)]
        for phase in shown_phases(sweep, plan_id)[0] if len(own) else ():
            named = own.rename(columns={f"{phase}_s{end}": f"s{end}" for end in ("", "_low", "_high")})
            found.append((phase if kind == WALL else f"{phase}, busy", named[COLUMNS]))
    return found


def draw(sweep: Sweep, plan_id: str, column: str) -> Figure:
    """Draw a panel for the step and one for each phase; below them those of busy times."""
    panels = _panels(sweep, plan_id)
    styles = model_styles(sweep.samples["model"])
    models = sorted({model for _, rows in panels for model in rows["model"]}, key=model_rank)
    counts = sweep.asked_threads(plan_id)
    num_busy = sum(title.endswith(", busy") for title, _ in panels)
    first = len(panels) - num_busy
    across = first if column == "double" else 2 if len(panels) < 5 else 3
    places = [*panels[:first], *[None] * (-first % across), *panels[first:], *[None] * (-num_busy % across)]
    figure, axes = new_figure("double", len(places), 1.5, rows=len(places) // across)
    if column == "single":
        figure.set_size_inches(3.3, 4.0)
    letters = iter(string.ascii_lowercase)
    for axis, panel in zip(axes, places, strict=True):
        if panel is None:
            axis.remove()
            continue
        title, rows = panel
        axis.set_title(f"({next(letters)})")
        for model in models:
            points = rows[rows["model"] == model]
            values = (1e3 * points[name] for name in ("s", "s_low", "s_high"))
            look = {"band": False, "size": 3.5, "places": counts if model != "serial" else [1]}
            look["usable"] = [is_usable(sweep, (plan_id, model, threads)) for threads in points["threads"]]
            series(axis, points["threads"], *values, styles[model], model_label(model), **look)
        ends = 1e3 * rows[["s", "s_low", "s_high"]].to_numpy(dtype=float)
        low, high = np.nanmin(ends) / 1.1, np.nanmax(ends) * 1.1
        log2_axis(axis, "y", power_ticks(low, high), low, high)
        x_axis(axis, counts, "threads")
        axis.set_ylabel("ms")
        panel_title(axis, title, fontsize=8 if column == "double" or across == 2 else 6.5)
    add_legend(figure, column, model_handles(styles, models), 4 if column == "double" else 2)
    plan_header(figure, sweep, plan_id, column)
    return figure


def caption(sweep: Sweep, plan_id: str) -> list[str]:
    """Return the caption's sentences."""
    phases = phase_table(sweep)
    busy = ((phases["plan_id"] == plan_id) & (phases["timed"] == BUSY)).any()
    said = "Busy: models whose phases overlap have time in blocks alone, without waiting, mean over threads."
    return [
        "Run time of a step and of its phases over threads, with 95 % intervals; wall times add up to the step.",
        said if busy else "",
    ]
