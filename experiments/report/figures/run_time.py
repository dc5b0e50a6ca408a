"""Figure `run_time`: run time of a step and of its phases over threads, wall and busy times in one panel."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
from matplotlib.lines import Line2D

from ....cython_src.plan.model import PHASES
from ...analysis.phases import BUSY, phase_table, phases_of
from ...analysis.speeds import speed_table
from ...analysis.sweep import Sweep
from .chart import Chart, Panel, over_threads, value_rows
from .heading import plan_facts
from .style import GREY, model_styles

RANK, ONE_FOR = 0.4, "plan"
SMALLEST_PHASE = 0.01  # of a step: blocks of shorter phases take hardly longer than the log's entries
HOLLOW = Line2D([], [], linestyle="none", marker="o", color=GREY, markerfacecolor="white", label="hollow: busy time")


def missing(sweep: Sweep, plan_id: str) -> str:
    """Return why the figure cannot be drawn."""
    table = phase_table(sweep)
    if len(table) and (table["plan_id"] == plan_id).any():
        return ""
    return "run time of phases needs profile rows, got none; measure with `forktask compare`"


def run_time(sweep: Sweep, points: pd.DataFrame, x: str, facts: list[str]) -> Chart:
    """Return panels of the step and of each phase that is not too short, for some rows of `speed_table`."""
    panels, phases = [Panel(value_rows(points, "time_s", x, 1e3), "ms", "step")], phase_table(sweep)
    timed = points.merge(phases, on=["plan_id", "model", "threads"]) if len(phases) else points[:0]
    timed = timed.assign(hollow=timed["timed"] == BUSY) if len(timed) else timed
    present = {phase for plan_id in points["plan_id"].unique() for phase in phases_of(sweep, plan_id)}
    for phase in (phase for phase in PHASES if phase in present and len(timed)):
        if (timed[f"{phase}_s"] / timed["time_s"]).max() >= SMALLEST_PHASE:
            panels.append(Panel(value_rows(timed, f"{phase}_s", x, 1e3), "ms", phase))
    busy = [HOLLOW] if len(timed) and timed["hollow"].any() else []
    styles = model_styles(sweep.samples["model"])
    return Chart(panels, facts, styles, x, handles=busy, hollow_unknown=False)


def chart(sweep: Sweep, plan_id: str) -> Chart:
    """Return times over threads; of two numbers of threads a row for each model on the larger one."""
    speeds = speed_table(sweep)
    points = speeds[(speeds["plan_id"] == plan_id) & ~speeds["model"].map(lambda model: model.is_gpu)]
    result = run_time(sweep, points, "threads", plan_facts(sweep, plan_id))
    return over_threads(sweep, replace(result, x="", places=sweep.asked_threads(plan_id)))


def caption(sweep: Sweep, plan_id: str) -> list[str]:
    """Return the caption's sentences."""
    return caption_over("", sweep, [plan_id])


def caption_over(over: str, sweep: Sweep, plan_ids: list[str]) -> list[str]:
    """Return the sentences of a caption of panels over something, from some plans."""
    phases = phase_table(sweep)
    busy = len(phases) and (phases["plan_id"].isin(plan_ids) & (phases["timed"] == BUSY)).any()
    text = "Hollow: busy times of models whose phases overlap: time in blocks, without waiting, mean over threads."
    return [
        f"Run time of a step and of its phases{over}, with 95 % intervals; wall times add up to the step.",
        text if busy else "",
    ]
