"""Figures `forest` and, in peers.py, `peers`: ratios of all contestants with their intervals, one below the other."""

from __future__ import annotations

import pandas as pd

from ...analysis.estimates import EQUIVALENCE_BAND
from ...analysis.names import model_label
from ...analysis.speeds import estimate_of, interval_columns
from ...analysis.sweep import Sweep
from ..verdicts import answers
from .chart import Chart, Panel, value_rows
from .style import GREY, ModelStyle, model_styles

RANK, ONE_FOR = -1, "sweep"
MOST_ROWS = 24
WIDEST = 1.5  # ratios on the axis; what is farther from 1 is an arrow


def missing(sweep: Sweep, plan_id: str, against: str = "forkjoin") -> str:
    """Return why the figure cannot be drawn."""
    if any(row["against"] == against for row in answers(sweep)):
        return ""
    return "a forest plot needs a fork-join form and another model on as many threads"


def chart(sweep: Sweep, plan_id: str) -> Chart:
    """Return ratios and intervals under the titles of their plans."""
    return ratios(sweep, "forkjoin", WIDEST)


def ratios(sweep: Sweep, against: str, widest: float) -> Chart:
    """Return the rows of answers against fork-join, or the times of peers over ours."""
    rows = [row for row in answers(sweep) if row["against"] == against][:MOST_ROWS]
    table, label = pd.DataFrame(rows), "time / better fork-join"
    table["group"] = table["plan"]
    if against == "peers":
        inverse = [interval_columns("ratio", estimate_of(row, "ratio").inverse()) for row in rows]
        table = table.assign(**pd.DataFrame(inverse, index=table.index))
        others = list(dict.fromkeys(map(model_label, table["reference"])))
        table["group"] = [f"{model_label(row['reference'])} over ours, {row['plan']}" for row in rows]
        label = f"time of {others[0]} / ours" if len(others) == 1 else "other program's time / ours"
    # A model that is measured twice on a plan has two rows.
    again = table.groupby(["group", "label"]).cumcount().astype(bool)
    names = table["label"].where(~again, [f"{row['label']}, {row['threads']} thr." for row in rows])
    styles = model_styles(sweep.samples["model"])
    styles |= {model: ModelStyle(GREY, look.marker, look.line) for model, look in styles.items() if model.again}
    panel = Panel(value_rows(table, "ratio", names), label, "", "ratio", (1 / widest, widest))
    return Chart([panel], (), styles)


def caption(sweep: Sweep, plan_id: str) -> list[str]:
    """Return the caption's sentences."""
    rows = [row for row in answers(sweep) if row["against"] == "forkjoin"]
    again = any(row["model"].again for row in rows)
    return [
        f"Time over that of the better fork-join form, on most threads, with 95 % intervals; grey: ± "
        f"{EQUIVALENCE_BAND:.0%}.",
        "Again (A/A): a model against itself." if again else "",
        f"{len(rows) - MOST_ROWS} more in the table." if len(rows) > MOST_ROWS else "",
    ]
