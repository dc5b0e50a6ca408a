"""Figure `peers`: times of other programs over ours with their intervals, one below the other."""

from __future__ import annotations

import math

from matplotlib.figure import Figure

from ...analysis.estimates import EQUIVALENCE_BAND
from ...analysis.names import model_label
from ...analysis.speeds import estimate_of, interval_columns
from ...analysis.sweep import Sweep
from ..verdicts import answers
from .forest import MOST_ROWS, draw_rows
from .style import model_styles

RANK, ONE_FOR = -0.5, "sweep"


def _rows(sweep: Sweep) -> list[dict]:
    found = [row for row in answers(sweep) if row["against"] == "peers"]
    return [
        {
            **row,
            **interval_columns("ratio", estimate_of(row, "ratio").inverse()),
            "title": f"{model_label(row['reference'])} over ours, {row['plan']}",
        }
        for row in found
    ]


def missing(sweep: Sweep, plan_id: str) -> str:
    """Return why the figure cannot be drawn."""
    return "" if _rows(sweep) else "a figure of peers needs torch or llmc, and a model on as many threads"


def draw(sweep: Sweep, plan_id: str, column: str) -> Figure:
    """Draw ratios and intervals under the names of the other programs and plans."""
    rows, styles = _rows(sweep)[:MOST_ROWS], model_styles(sweep.samples["model"])
    others = {model_label(row["reference"]) for row in rows}
    named = f"time of {', '.join(others)}" if len(others) == 1 else "other program's time"
    return draw_rows(rows, "title", styles, f"{named} / ours", column, math.inf)


def caption(sweep: Sweep, plan_id: str) -> list[str]:
    """Return the caption's sentences."""
    hidden = len(_rows(sweep)[MOST_ROWS:])
    return [
        "Time of the fastest other program over that of each of our models on as many threads, with 95 % intervals: "
        f"right of 1 ours is faster. Grey: ± {EQUIVALENCE_BAND:.0%}. Hollow: too few generations for an interval.",
        f"{hidden} more in the table." if hidden else "",
    ]
