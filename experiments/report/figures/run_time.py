"""Figures `run_time` and `run_time_over_batch`: run time of a step and of its phases, wall and busy times in one
panel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd
from matplotlib.lines import Line2D

from ....cython_src.plan.model import PHASES
from ...analysis.phases import BUSY, phase_table, phases_of
from ...analysis.speeds import speed_table
from ...analysis.sweep import Sweep
from ..words import plan_facts, samples_word
from .chart import Chart, Lacking, Panel, figure, over_threads, value_rows
from .over_plans import asked_batches, over_batches, rows_on_most_threads, where_text
from .style import GREY, model_styles

SMALLEST_PHASE = 0.01  # of a step: blocks of shorter phases take hardly longer than the log's entries
HOLLOW = Line2D([], [], linestyle="none", marker="o", color=GREY, markerfacecolor="white", label="hollow: busy time")


def _run_time(
    sweep: Sweep, points: pd.DataFrame, x: str, facts: Sequence[str], places: Sequence[int], over: str = ""
) -> Chart:
    """Return panels of the step and of each phase that is not too short, for some rows of `speed_table`."""
    panels, phases = [Panel(value_rows(points, "time_s", x, 1e3), "ms", "step")], phase_table(sweep)
    timed = points.merge(phases, on=["plan_id", "model", "threads"]) if len(phases) else points[:0]
    timed = timed.assign(hollow=timed["timed"] == BUSY) if len(timed) else timed
    present = {phase for plan_id in points["plan_id"].unique() for phase in phases_of(sweep, plan_id)}
    for phase in (phase for phase in PHASES if phase in present and len(timed)):
        if (timed[f"{phase}_s"] / timed["time_s"]).max() >= SMALLEST_PHASE:
            panels.append(Panel(value_rows(timed, f"{phase}_s", x, 1e3), "ms", phase))
    busy = bool(len(timed) and timed["hollow"].any())
    text = "Hollow: busy times of models whose phases overlap: time in blocks, without waiting, mean over threads."
    caption = [
        f"Run time of a step and of its phases{over}, with 95 % intervals; wall times add up to the step.",
        text if busy else "",
    ]
    styles, handles = model_styles(sweep.samples["model"]), [HOLLOW] * busy
    return Chart(panels, facts, styles, places=places, handles=handles, hollow_unknown=False, caption=caption)


@figure(0.4)
def run_time(sweep: Sweep, plan_id: str) -> Chart:
    """Return times over threads; of two numbers of threads a row for each model on the larger one."""
    phases, speeds = phase_table(sweep), speed_table(sweep)
    if not len(phases) or not (phases["plan_id"] == plan_id).any():
        raise Lacking("run time of phases needs profile rows, got none; measure with `forktask compare`")
    points = speeds[(speeds["plan_id"] == plan_id) & ~speeds["model"].map(lambda model: model.is_gpu)]
    facts, places = plan_facts(sweep, plan_id), sweep.asked_threads(plan_id)
    return over_threads(sweep, _run_time(sweep, points, "threads", facts, places))


@figure(3.05, "network")
def run_time_over_batch(sweep: Sweep, plan_id: str) -> Chart:
    """Return times on most threads over the batch, on one scale."""
    points, widest = rows_on_most_threads(sweep, list(over_batches(sweep, plan_id)))
    facts = [sweep.problem_name(plan_id, "batch"), where_text(points["model"].unique(), widest)]
    result = _run_time(sweep, points, "batch", facts, asked_batches(sweep, plan_id), " over the batch")
    return replace(result, x=f"batch ({samples_word(sweep, plan_id)})", same_scale=True)
