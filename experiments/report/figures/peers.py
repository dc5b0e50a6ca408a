"""Figure `peers`: times of other programs over ours with their intervals, one below the other."""

from __future__ import annotations

import math

from ...analysis.estimates import EQUIVALENCE_BAND
from ...analysis.sweep import Sweep
from . import forest
from .chart import Chart

RANK, ONE_FOR = -0.5, "sweep"


def missing(sweep: Sweep, plan_id: str) -> str:
    """Return why the figure cannot be drawn."""
    if not forest.missing(sweep, plan_id, "peers"):
        return ""
    return "a figure of peers needs torch or llmc, and a model on as many threads"


def chart(sweep: Sweep, plan_id: str) -> Chart:
    """Return ratios and intervals under the names of the other programs and plans."""
    return forest.ratios(sweep, "peers", math.inf)


def caption(sweep: Sweep, plan_id: str) -> list[str]:
    """Return the caption's sentences."""
    return [
        "Time of the fastest other program over that of each of our models on as many threads, with 95 % intervals: "
        f"right of 1 ours is faster. Grey: ± {EQUIVALENCE_BAND:.0%}."
    ]
