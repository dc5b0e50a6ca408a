"""Figures of ratios: `forest` and `peers` have those of all contestants, `nodes` those of each node of a pooled sweep,
`interference` slowdowns by competing processes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from ...analysis.comparisons import interference_table
from ...analysis.estimates import EQUIVALENCE_BAND
from ...analysis.names import INTERFERENCE, model_label
from ...analysis.places import sweep_on
from ...analysis.speeds import Pair, estimate_of, interval_columns, ratio_rows
from ...analysis.sweep import Point, Sweep, kept
from ..verdicts import answers
from ..words import blocks_text
from .chart import Chart, Lacking, Panel, figure, reference_rows, value_rows
from .style import GREY, ModelStyle, model_styles

MOST_ROWS, MOST_PANELS = 24, 4  # of `forest` and `peers`, and of `nodes`
WIDEST = 1.5  # ratios on the axis of `forest`; what is farther from 1 is an arrow
TAKEN, ACROSS = "CPU time taken", 4


def _answers(sweep: Sweep, against: str) -> list[dict[str, Any]]:
    return [row for row in answers(sweep) if row["against"] == against]


@figure(-1, "sweep")
def forest(sweep: Sweep, plan_id: str) -> Chart:
    """Return ratios to fork-join of all contestants, under the titles of their plans."""
    if not (rows := _answers(sweep, "forkjoin")):
        raise Lacking("a forest plot needs a fork-join form and another model on as many threads")
    reference = sweep.reference_call
    other, whole = "better fork-join", "the better fork-join form"
    if reference:
        other = whole = model_label(reference)
    caption = [
        f"Time over that of {whole}, on most threads, with 95 % intervals; grey: ± {EQUIVALENCE_BAND:.0%}.",
        "Again (A/A): a model against itself." if any(row["model"].again for row in rows) else "",
        f"{len(rows) - MOST_ROWS} more in the table." if len(rows) > MOST_ROWS else "",
    ]
    table = pd.DataFrame(rows[:MOST_ROWS])
    return _below_each_other(sweep, table.assign(group=table["plan"]), f"time / {other}", WIDEST, caption)


@figure(-0.5, "sweep")
def peers(sweep: Sweep, plan_id: str) -> Chart:
    """Return times of other programs over ours, under the names of these programs and plans."""
    if not (rows := _answers(sweep, "peers")[:MOST_ROWS]):
        raise Lacking("a figure of peers needs torch or llmc, and a model on as many threads")
    inverse = [interval_columns("ratio", estimate_of(row, "ratio").inverse()) for row in rows]
    groups = [f"{model_label(row['reference'])} over ours, {row['plan']}" for row in rows]
    table = pd.DataFrame([{**row, **ends} for row, ends in zip(rows, inverse, strict=True)]).assign(group=groups)
    others = list(dict.fromkeys(map(model_label, table["reference"])))
    label = f"time of {others[0]} / ours" if len(others) == 1 else "other program's time / ours"
    caption = [
        "Time of the fastest other program over that of each of our models on as many threads, with 95 % intervals: "
        f"right of 1 ours is faster. Grey: ± {EQUIVALENCE_BAND:.0%}."
    ]
    return _below_each_other(sweep, table, label, math.inf, caption)


def _below_each_other(sweep: Sweep, table: pd.DataFrame, label: str, widest: float, caption: Sequence[str]) -> Chart:
    """Return a row for each answer; a model that is measured twice on a plan has two."""
    again = table.groupby(["group", "label"]).cumcount().astype(bool)
    names = table["label"].where(~again, [f"{row.label}, {row.threads} thr." for row in table.itertuples()])
    styles = model_styles(sweep.samples["model"])
    styles |= {model: ModelStyle(GREY, look.marker, look.line) for model, look in styles.items() if model.again}
    panel = Panel(value_rows(table, "ratio", names), label, "", "ratio", (1 / widest, widest))
    return Chart([panel], (), styles, caption=caption)


@kept
def node_rows(sweep: Sweep, plan_id: str) -> list[dict[str, Any]]:
    """Return a row for each contestant of a plan and each node: node, label, model, threads, reference, generations,
    ratio, ratio_low, ratio_high, verdict, lacks, usable; the node "" is all of them together."""
    shown = [row for row in _answers(sweep, "forkjoin") if row["plan_id"] == plan_id]
    result = [{**row, "node": ""} for row in shown] if len(sweep.nodes) > 1 else []
    for node in sweep.nodes if result else ():
        there = sweep_on(sweep, node)
        pairs = [
            Pair(Point(plan_id, row["model"], row["threads"]), [Point(plan_id, row["reference"], row["threads"])], row)
            for row in shown
        ]
        pairs = [pair for pair in pairs if pair.point in there.turns and pair.references[0] in there.turns]
        result += [{**row, "node": node} for row in ratio_rows(there, pairs)]
    return result


@figure(6)
def nodes(sweep: Sweep, plan_id: str) -> Chart:
    """Return a panel for each contestant, a row for each node, and all nodes together as a band."""
    if not (rows := pd.DataFrame(node_rows(sweep, plan_id))).size:
        raise Lacking("ratios by node need fork-join and another model on several pooled nodes")
    order = {node: place for place, node in enumerate(sweep.nodes)}
    panels = []
    for model in dict.fromkeys(rows["model"]):
        own = rows[rows["model"] == model].sort_values("node", key=lambda names: names.map(order))
        named = value_rows(own, "ratio", own["node"].replace("", math.nan))
        panels.append(Panel(named, "time / fork-join", own["label"].iloc[0], "ratio"))
    styles, more = model_styles(sweep.samples["model"]), sum(rows["node"] == "") - MOST_PANELS
    caption = [
        f"Time over that of the better fork-join form on each node, with 95 % intervals; coloured band: all nodes "
        f"together; grey: ± {EQUIVALENCE_BAND:.0%}.",
        f"{more} more models in the table." if more > 0 else "",
        "" if rows["usable"].all() else "Crossed out: not usable.",
    ]
    names = dict.fromkeys(styles, "")
    return Chart(panels[:MOST_PANELS], [sweep.problem_name(plan_id)], styles, names=names, caption=caption)


@figure(7)
def interference(sweep: Sweep, plan_id: str) -> Chart:
    """Return step time with competing processes over that without, one panel per model, and the part that the CPU time
    taken explains."""
    table = interference_table(sweep)
    if not len(table) or plan_id not in set(table["plan_id"]):
        raise Lacking(
            "a figure over competing processes needs points with and without them, got one kind; run interference.toml"
        )
    table = table[table["plan_id"] == plan_id]
    threads = int(table["threads"].max())
    table = table[table["threads"] == threads]
    left = table.groupby("hogs")["capacity"].first()
    taken = reference_rows(TAKEN, left.index, 1 / left.to_numpy())
    panels = []
    for model, own in table.groupby("model", sort=False):
        rows = pd.concat([taken, value_rows(own, "slowdown", "hogs")])
        panels.append(Panel(rows, "time / without", model_label(model), "linear"))
    return Chart(
        panels,
        [sweep.problem_name(plan_id), blocks_text(sweep.plans[plan_id]), f"{threads} threads"],
        {TAKEN: ModelStyle(GREY, "", ":"), **model_styles(table["model"])},
        "competing processes",
        dict.fromkeys(table["model"], ""),
        sweep.config.get(INTERFERENCE, ()),
        across=ACROSS,
        same_scale=True,
        caption=[
            "Step time with competing processes over that without, of each model; dotted: what the CPU time that they "
            "take explains, above it is CPU time that was available and not used. Bars: 95 % intervals."
        ],
    )
