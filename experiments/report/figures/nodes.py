"""Figure `nodes`: the ratio of each contestant to fork-join on each node of a pooled sweep."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from ...analysis.estimates import EQUIVALENCE_BAND
from ...analysis.nodes import sweep_on
from ...analysis.speeds import interval_columns, is_usable, judged
from ...analysis.sweep import Sweep, kept
from ..verdicts import answers
from .chart import Chart, Panel, value_rows
from .style import model_styles

RANK, ONE_FOR = 6, "plan"
MOST_PANELS = 4


@kept
def rows_of(sweep: Sweep, plan_id: str) -> list[dict[str, Any]]:
    """Return a row for each contestant of a plan and each node: node, label, model, threads, reference, generations,
    ratio, ratio_low, ratio_high, verdict, usable; the node "" is all of them together."""
    shown = [row for row in answers(sweep) if row["against"] == "forkjoin" and row["plan_id"] == plan_id]
    result = [{**row, "node": ""} for row in shown] if len(sweep.nodes) > 1 else []
    for node in sweep.nodes if result else ():
        there = sweep_on(sweep, node)
        for row in shown:
            points = [(plan_id, row[name], row["threads"]) for name in ("model", "reference")]
            if all(point in there.turns for point in points):
                ratio, usable = there.ratio(*points), all(is_usable(there, point) for point in points)
                own = {"generations": ratio.count, **interval_columns("ratio", ratio), "usable": usable}
                own["verdict"] = judged(there, ratio, *points)
                result.append({**row, "node": node, **own})
    return result


def missing(sweep: Sweep, plan_id: str) -> str:
    """Return why the figure cannot be drawn."""
    return "" if rows_of(sweep, plan_id) else "ratios by node need fork-join and another model on several pooled nodes"


def chart(sweep: Sweep, plan_id: str) -> Chart:
    """Return a panel for each contestant, a row for each node, and all nodes together as a band."""
    rows = pd.DataFrame(rows_of(sweep, plan_id))
    order = {node: place for place, node in enumerate(sweep.nodes)}
    panels = []
    for model in dict.fromkeys(rows["model"]):
        own = rows[rows["model"] == model].sort_values("node", key=lambda nodes: nodes.map(order))
        named = value_rows(own, "ratio", own["node"].replace("", math.nan))
        panels.append(Panel(named, "time / fork-join", own["label"].iloc[0], "ratio"))
    styles = model_styles(sweep.samples["model"])
    return Chart(panels[:MOST_PANELS], [sweep.problem_name(plan_id)], styles, names=dict.fromkeys(styles, ""))


def caption(sweep: Sweep, plan_id: str) -> list[str]:
    """Return the caption's sentences."""
    rows = rows_of(sweep, plan_id)
    hidden = sum(not row["node"] for row in rows) - MOST_PANELS
    return [
        f"Time over that of the better fork-join form on each node, with 95 % intervals; coloured band: all nodes "
        f"together; grey: ± {EQUIVALENCE_BAND:.0%}.",
        f"{hidden} more models in the table." if hidden > 0 else "",
        "" if all(row["usable"] for row in rows) else "Crossed out: not usable.",
    ]
