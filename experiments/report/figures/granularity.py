"""Figure `granularity`: step time and the ratio to fork-join over the number of tasks."""

from __future__ import annotations

from matplotlib.figure import Figure

from ...analysis.names import GRANULARITY
from ...analysis.sweep import Sweep
from .over_plans import caption_over_plans, draw_over_plans

RANK, ONE_FOR = 4, "network"


def missing(sweep: Sweep, plan_id: str) -> str:
    """Return why the figure cannot be drawn."""
    if len({sweep.plans[p].num_tasks for p in sweep.siblings(plan_id, GRANULARITY)}) > 1:
        return ""
    return "a figure over granularity needs two at least, got one; run a sweep with several granularities"


def draw(sweep: Sweep, plan_id: str, column: str) -> Figure:
    """Draw step time and the ratio to fork-join over the number of tasks."""
    return draw_over_plans(
        sweep,
        sweep.siblings(plan_id, GRANULARITY),
        column,
        GRANULARITY,
        lambda p: p.num_tasks,
        "tasks per step",
        lambda p, t: t * 1e3,
        "time per step (ms)",
        "time over granularity",
        [sweep.problem_name(plan_id), "the same granularity on both sides"],
    )


def caption(sweep: Sweep, plan_id: str) -> list[str]:
    """Return the caption's sentences."""
    return caption_over_plans("Time of a step over the number of its tasks.")
