"""Figure `nodes`: the ratio of each contestant to fork-join on each node of a pooled sweep."""

from __future__ import annotations

import math
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ...analysis.estimates import EQUIVALENCE_BAND
from ...analysis.nodes import sweep_on
from ...analysis.speeds import interval_columns, is_usable, judged
from ...analysis.sweep import Sweep, kept
from ..verdicts import answers
from .axes import mark_ratio, rows_of_ratios
from .style import TALLEST_IN, blank_figure, model_styles

RANK, ONE_FOR = 6, "plan"
MOST_PANELS = {"double": 4, "single": 2}
ROW_IN, NAMED_IN, BESIDE_IN = 0.18, 0.1, 0.9
MOST_IN = {"double": 9.0, "single": TALLEST_IN - BESIDE_IN}  # of all rows


@kept
def rows_of(sweep: Sweep, plan_id: str) -> list[dict[str, Any]]:
    """Return a row for each contestant of a plan and each node: node, label, model, threads, reference, generations,
    ratio, ratio_low, ratio_high, verdict, usable; the node "" is all of them together."""
    shown = [row for row in answers(sweep) if row["against"] == "forkjoin" and row["plan_id"] == plan_id]
    found = [{**row, "node": ""} for row in shown] if len(sweep.nodes) > 1 else []
    for node in sweep.nodes if found else ():
        there = sweep_on(sweep, node)
        for row in shown:
            points = [(plan_id, row[name], row["threads"]) for name in ("model", "reference")]
            if all(point in there.turns for point in points):
                ratio, usable = there.ratio(*points), all(is_usable(there, point) for point in points)
                own = {"generations": ratio.count, **interval_columns("ratio", ratio), "usable": usable}
                own["verdict"] = judged(there, ratio, *points)
                found.append({**row, "node": node, **own})
    return found


def missing(sweep: Sweep, plan_id: str) -> str:
    """Return why the figure cannot be drawn."""
    return "" if rows_of(sweep, plan_id) else "ratios by node need fork-join and another model on several pooled nodes"


def draw(sweep: Sweep, plan_id: str, column: str) -> Figure:
    """Draw a panel for each contestant, a line for each node, and all nodes together as a band."""
    rows, styles = rows_of(sweep, plan_id), model_styles(sweep.samples["model"])
    together = [row for row in rows if not row["node"]][: MOST_PANELS[column]]
    nodes = list(sweep.nodes)
    row_in = min(ROW_IN, MOST_IN[column] / len(nodes))
    figure = blank_figure(column, row_in * len(nodes) + BESIDE_IN)
    panels = figure.subplots(1, len(together), sharey=True, squeeze=False)[0]
    for panel, whole in zip(panels, together, strict=True):
        style = styles[whole["model"]]
        rows_of_ratios(panel, "time / fork-join")
        if math.isfinite(whole["ratio_low"]):
            panel.axvspan(whole["ratio_low"], whole["ratio_high"], color=style.color, alpha=0.25, linewidth=0, zorder=1)
        for row in (row for row in rows if row["node"] and row["model"] == whole["model"]):
            ratio = [row[f"ratio{end}"] for end in ("", "_low", "_high")]
            mark_ratio(panel, nodes.index(row["node"]), ratio, style.color, style.marker, row["usable"])
        panel.set_title(whole["label"])
        panel.xaxis.set_major_locator(MaxNLocator(3, steps=[1, 2, 5, 10]))
    panels[0].set_ylim(len(nodes) - 0.5, -0.5)
    panels[0].set_yticks(range(len(nodes)), nodes if row_in >= NAMED_IN else [""] * len(nodes))
    return figure


def caption(sweep: Sweep, plan_id: str) -> list[str]:
    """Return the caption's sentences."""
    rows = rows_of(sweep, plan_id)
    hidden = sum(not row["node"] for row in rows) - MOST_PANELS["double"]
    return [
        f"Time over that of the better fork-join form on each node, with 95 % intervals; coloured band: all nodes "
        f"together; grey: ± {EQUIVALENCE_BAND:.0%}. Hollow: too few generations on that node for an interval.",
        f"{hidden} more models in the table." if hidden > 0 else "",
        "" if all(row["usable"] for row in rows) else "Crossed out: not usable.",
    ]
