"""Figure `run_time_over_batch`: run time of a step and of its phases over the batch, wall and busy times apart."""

from __future__ import annotations

from matplotlib.figure import Figure

from ...analysis.sweep import Sweep
from ..words import samples_word
from . import batch
from .heading import header
from .over_plans import drawn_rows, where_text
from .run_time import caption_over, draw_panels, panels_of

RANK, ONE_FOR = 3.05, "network"

missing = batch.missing


def draw(sweep: Sweep, plan_id: str, column: str) -> Figure:
    """Draw a panel for the step and one for each phase, on most threads; below them those of busy times."""
    points, widest = drawn_rows(sweep, sweep.siblings(plan_id, "batch"))
    asked = [sweep.plans[plan].batch for plan in sweep.siblings(plan_id, "batch", asked=True)]
    label = "batch" if column == "single" else f"batch ({samples_word(sweep, plan_id)})"
    figure = draw_panels(sweep, panels_of(sweep, points), "batch", label, asked, column)
    header(figure, sweep, [sweep.problem_name(plan_id, "batch"), where_text(points["model"].unique(), widest)], column)
    return figure


def caption(sweep: Sweep, plan_id: str) -> list[str]:
    """Return the caption's sentences."""
    return caption_over("the batch", sweep, sweep.siblings(plan_id, "batch"))
