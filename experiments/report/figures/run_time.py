"""Figure `run_time`: run time over threads of a step and of its phases, wall times and busy times apart."""

from __future__ import annotations

import string

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullFormatter

from ....cython_src.plan.model import PHASES
from ...analysis.names import model_rank
from ...analysis.phases import BUSY, WALL, phase_table
from ...analysis.speeds import speed_table
from ...analysis.sweep import Sweep
from .axes import decimal_ticks, log2_axis, mark_places, model_lines, x_axis
from .heading import plan_header
from .phases import shown_phases
from .style import COLUMN_WIDTH_IN, TALLEST_IN, add_legend, model_handles, model_styles, new_figure, panel_title

RANK, ONE_FOR = 0.4, "plan"
TICK_IN, LABELS_IN = 0.35, 0.35  # of a panel's width for each label along x, and for those along y
NARROW_IN = 1.5  # panels at most so wide have small titles


def missing(sweep: Sweep, plan_id: str) -> str:
    """Return why the figure cannot be drawn."""
    rows = phase_table(sweep)
    rows = rows[rows["plan_id"] == plan_id] if len(rows) else rows
    if len(rows) and rows["threads"].nunique() > 1:
        return ""
    return "run time of phases over threads needs profiles on two numbers of threads, got none; give --threads 1,2"


def panels_of(sweep: Sweep, points: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Return titles and rows of the panels for some rows of `speed_table`: wall times of the step and of each phase,
    then busy times of phases, all in the columns s, s_low and s_high."""
    found = [("step", points.rename(columns={"time_s": "s", "low_s": "s_low", "high_s": "s_high"}))]
    phases = phase_table(sweep)
    profiled = points.merge(phases, on=["plan_id", "model", "threads"]) if len(phases) else points[:0]
    shown = {phase for plan in profiled["plan_id"].unique() for phase in shown_phases(sweep, plan)[0]}
    for kind in (WALL, BUSY) if shown else ():
        rows = profiled[profiled["timed"] == kind]
        for phase in (phase for phase in PHASES if phase in shown and len(rows)):
            named = rows.rename(columns={f"{phase}_s{end}": f"s{end}" for end in ("", "_low", "_high")})
            found.append((phase if kind == WALL else f"{phase}, busy", named))
    return found


def draw_panels(
    sweep: Sweep, panels: list[tuple[str, pd.DataFrame]], x: str, label: str, places: list[int], column: str
) -> Figure:
    """Draw panels of `panels_of` over a column of their rows; in a double column those of busy times below.

    Parameters
    ----------
    x, label : str
        Column along x, and what stands at the axis.
    places : list of int
        Values of `x` that were asked for; lines end at those where nothing was measured.
    """
    styles = model_styles(sweep.samples["model"])
    models = sorted({model for _, rows in panels for model in rows["model"]}, key=model_rank)
    walls = sum(not title.endswith(", busy") for title, _ in panels)
    wide = walls if walls > 1 else len(panels)
    across = wide if column == "double" else min(len(panels), 2 if len(panels) < 5 else 3)
    room = COLUMN_WIDTH_IN[column] / across
    spots = [*panels, *[None] * (-len(panels) % across)]
    figure, axes = new_figure("double", len(spots), 1.5, rows=len(spots) // across)
    if column == "single":
        figure.set_size_inches(COLUMN_WIDTH_IN[column], min(figure.get_figheight(), TALLEST_IN))
    letters = iter(string.ascii_lowercase)
    for axis, panel in zip(axes, spots, strict=True):
        if panel is None:
            axis.remove()
            continue
        title, rows = panel
        axis.set_title(f"({next(letters)})")
        model_lines(axis, rows, models, styles, x, "s", 1e3, places=places, size=3.5)
        ends = 1e3 * rows[["s", "s_low", "s_high"]].to_numpy(dtype=float)
        low, high = np.nanmin(ends), np.nanmax(ends)
        pad = max(1.1, (high / low) ** 0.05)  # room for the outermost markers
        low, high = low / pad, high * pad
        log2_axis(axis, "y", decimal_ticks(low, high), low, high)
        measured = sorted(set(panels[0][1][x]))
        x_axis(axis, measured, label, min(8, max(1, round((room - LABELS_IN) / TICK_IN))))
        axis.xaxis.set_minor_locator(FixedLocator(measured))  # those without room for a label
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.set_ylabel("ms")
        panel_title(axis, title, fontsize=8 if room > NARROW_IN else 6.5)
    add_legend(figure, column, model_handles(styles, models), 4 if column == "double" else 2)
    return figure


def draw(sweep: Sweep, plan_id: str, column: str) -> Figure:
    """Draw a panel for the step and one for each phase; below them those of busy times."""
    speeds = speed_table(sweep)
    points = speeds[(speeds["plan_id"] == plan_id) & ~speeds["model"].map(lambda model: model.is_gpu)]
    figure = draw_panels(sweep, panels_of(sweep, points), "threads", "threads", sweep.asked_threads(plan_id), column)
    mark_places(sweep, figure.axes, points["threads"].tolist())
    plan_header(figure, sweep, plan_id, column)
    return figure


def caption(sweep: Sweep, plan_id: str) -> list[str]:
    """Return the caption's sentences."""
    return caption_over("threads", sweep, [plan_id])


def caption_over(what: str, sweep: Sweep, plan_ids: list[str]) -> list[str]:
    """Return the sentences of a caption of panels over something, from some plans."""
    phases = phase_table(sweep)
    busy = len(phases) and (phases["plan_id"].isin(plan_ids) & (phases["timed"] == BUSY)).any()
    said = "Busy: models whose phases overlap have time in blocks alone, without waiting, mean over threads."
    return [
        f"Run time of a step and of its phases over {what}, with 95 % intervals; wall times add up to the step.",
        said if busy else "",
    ]
