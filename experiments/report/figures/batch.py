"""Figure `batch`: images or tokens per second and the ratio to fork-join over the batch."""

from __future__ import annotations

from matplotlib.figure import Figure

from ...analysis.sweep import Sweep
from ...subjects.models import ModelSpec
from ..words import samples_word
from .over_plans import caption_over_plans, draw_over_plans, drawn_rows

RANK, ONE_FOR = 3, "network"


def missing(sweep: Sweep, plan_id: str) -> str:
    """Return why the figure cannot be drawn."""
    if len(sweep.siblings(plan_id, "batch")) > 1:
        return ""
    return "a figure over batches needs at least two of them, got one; run a sweep with several batches"


def _counted(sweep: Sweep, plan_id: str) -> tuple[ModelSpec, int]:
    """Return what throughput counts, and how many of them a sample has: images, or tokens."""
    word = samples_word(sweep, plan_id)
    return ("tokens", sweep.records[plan_id]["sequence"]) if word == "sequences" else (word, 1)


def draw(sweep: Sweep, plan_id: str, column: str) -> Figure:
    """Draw images or tokens per second and the ratio to fork-join over the batch."""
    plans = sorted(sweep.siblings(plan_id, "batch"), key=lambda p: sweep.plans[p].batch)
    counted, each = _counted(sweep, plan_id)
    slowest = min(each * row["batch"] / row["time_s"] for row in drawn_rows(sweep, plans)[0].to_dict("records"))
    scale, unit = (1e3, "thousand ") if slowest >= 1e3 else (1.0, "")
    return draw_over_plans(
        sweep,
        plans,
        column,
        "batch",
        lambda p: p.batch,
        f"batch ({samples_word(sweep, plan_id)})",
        lambda p, t: p.batch * each / t / scale,
        f"{unit}{counted} per second",
        "throughput",
        [sweep.problem_name(plan_id, "batch"), f"batches {', '.join(str(sweep.plans[p].batch) for p in plans)}"],
    )


def caption(sweep: Sweep, plan_id: str) -> list[str]:
    """Return the caption's sentences."""
    return caption_over_plans(f"{_counted(sweep, plan_id)[0].capitalize()} per second over the batch.")
