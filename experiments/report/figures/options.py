"""Figure `options`: the time with each value of a swept option, and over that with its first value."""

from __future__ import annotations

import pandas as pd

from ...analysis.estimates import EQUIVALENCE_BAND
from ...analysis.names import GRANULARITY, axis_label, value_text
from ...analysis.speeds import PER, axis_table, on_most_threads, row_is_usable
from ...analysis.sweep import Sweep
from ..words import blocks_text
from .batch import rows_on_most_threads, where_text
from .chart import Chart, Panel, value_rows
from .style import model_styles

RANK, ONE_FOR = 5, "network"
MAX_AXES = 3
# These axes have figures of their own.
ELSEWHERE = ("batch", GRANULARITY)


def _ratios(sweep: Sweep, plan_id: str) -> pd.DataFrame:
    """Return the ratios between this plan and those that differ from it in one option."""
    table = axis_table(sweep)
    if not len(table):
        return table
    near = {axis: set(sweep.siblings(plan_id, axis)) for axis in sweep.axes if axis not in ELSEWHERE}
    return table[[p in near.get(a, ()) for a, p in zip(table["axis"], table["plan_id"], strict=True)]]


def missing(sweep: Sweep, plan_id: str) -> str:
    """Return why the figure cannot be drawn."""
    if len(_ratios(sweep, plan_id)):
        return ""
    return "a figure over options needs at least two values of one, got one; run a sweep such as checkerboard"


def chart(sweep: Sweep, plan_id: str) -> Chart:
    """Return for each swept option times of its values, and their ratios to that of the first, on most threads."""
    table = _ratios(sweep, plan_id)
    table = table.assign(usable=[row_is_usable(sweep, row) for row in table.to_dict("records")])
    axes, panels, shown = list(dict.fromkeys(table["axis"]))[:MAX_AXES], [], set()
    for axis in axes:
        rows = table[table["axis"] == axis]
        plans = [rows["baseline_plan_id"].iloc[0], *dict.fromkeys(rows["plan_id"])]
        shown.update(plans)
        times, widest = rows_on_most_threads(sweep, plans)
        names = {plan: value_text(sweep.records[plan][axis]) for plan in plans}
        serial = rows[rows["model"].map(lambda model: model.is_serial)]
        rows = pd.concat([serial, on_most_threads(rows.drop(serial.index))[0]]) if len(serial) < len(rows) else rows
        per = f" per {PER[axis]}" if axis in PER else ""
        panels.append(
            Panel(
                value_rows(times, "time_s", times["plan_id"].map(names), 1e3),
                "time per step (ms)",
                f"{axis_label(axis)}: time",
            )
        )
        ratios = value_rows(rows, "ratio", "value")
        panels.append(Panel(ratios, f"time{per} / with {rows['baseline'].iloc[0]}", "below 1: faster", "ratio"))
    facts = [
        sweep.problem_name(plan_id, axes[0] if len(axes) == 1 else ""),
        blocks_text(*(sweep.plans[p] for p in sweep.plan_ids() if p in shown)),
        where_text(times["model"].unique(), widest),
    ]
    return Chart(panels, facts, model_styles(sweep.samples["model"]), across=2)


def caption(sweep: Sweep, plan_id: str) -> list[str]:
    """Return the caption's sentences."""
    axes = list(dict.fromkeys(_ratios(sweep, plan_id)["axis"]))[:MAX_AXES]
    return [
        f"Time with each value of {', '.join(map(axis_label, axes))}, all else equal, and over that with the first "
        f"value. Bars: 95 % intervals; grey: ± {EQUIVALENCE_BAND:.0%}. Weights are bit-identical within each plan."
    ]
