"""Figure `run_time_over_batch`: run time of a step and of its phases over the batch, on one scale."""

from __future__ import annotations

from dataclasses import replace

from ...analysis.sweep import Sweep
from ..words import samples_word
from . import batch
from .chart import Chart
from .run_time import caption_over, run_time

RANK, ONE_FOR = 3.05, "network"

missing = batch.missing


def chart(sweep: Sweep, plan_id: str) -> Chart:
    """Return times on most threads over the batch."""
    points, widest = batch.rows_on_most_threads(sweep, sweep.siblings(plan_id, "batch"))
    facts = [sweep.problem_name(plan_id, "batch"), batch.where_text(points["model"].unique(), widest)]
    result = run_time(sweep, points, "batch", facts)
    label = f"batch ({samples_word(sweep, plan_id)})"
    return replace(result, x=label, places=batch.asked_batches(sweep, plan_id), same_scale=True)


def caption(sweep: Sweep, plan_id: str) -> list[str]:
    """Return the caption's sentences."""
    return caption_over(" over the batch", sweep, sweep.siblings(plan_id, "batch"))
