"""Figure `granularity`: step time and the ratio to fork-join with each granularity."""

from __future__ import annotations

import re

from ...analysis.names import GRANULARITY, value_text
from ...analysis.sweep import Sweep
from .batch import caption_over, over_plans
from .chart import Chart

RANK, ONE_FOR = 4, "network"


def missing(sweep: Sweep, plan_id: str) -> str:
    """Return why the figure cannot be drawn."""
    if len(sweep.siblings(plan_id, GRANULARITY)) > 1:
        return ""
    return "a figure over granularity needs two at least, got one; run a sweep with several granularities"


def chart(sweep: Sweep, plan_id: str) -> Chart:
    """Return step time and the ratio to fork-join: lines over the number of tasks where granularities differ in one
    number, else a row for each."""
    plans = sorted(sweep.siblings(plan_id, GRANULARITY), key=lambda p: sweep.plans[p].num_tasks)
    texts = {plan: value_text(sweep.records[plan][GRANULARITY]) for plan in plans}
    tasks = {plan: sweep.plans[plan].num_tasks for plan in plans}
    numbered = len({re.sub(r"\d+", "", text) for text in texts.values()}) == 1 and len({*tasks.values()}) == len(plans)
    x = tasks if numbered else {plan: f"{texts[plan]} ({tasks[plan]} tasks)" for plan in plans}
    requested = (
        [sweep.plans[p].num_tasks for p in sweep.siblings(plan_id, GRANULARITY, requested=True)] if numbered else ()
    )
    return over_plans(
        sweep,
        x,
        "tasks per step" if numbered else "",
        lambda _, t: t * 1e3,
        "time per step (ms)",
        "time",
        [sweep.problem_name(plan_id)],
        requested,
    )


def caption(sweep: Sweep, plan_id: str) -> list[str]:
    """Return the caption's sentences."""
    return caption_over("Time of a step with each granularity.")
