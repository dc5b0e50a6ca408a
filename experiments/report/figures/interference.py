"""Figure `interference`: slowdown of each model by competing processes, one panel each."""

from __future__ import annotations

import pandas as pd

from ...analysis.interference import interference_table
from ...analysis.names import INTERFERENCE, model_label
from ...analysis.speeds import row_is_usable
from ...analysis.sweep import Sweep
from ..words import blocks_text
from .chart import Chart, Panel, reference_rows, value_rows
from .style import COLORS, GREY, ModelStyle

RANK, ONE_FOR = 7, "plan"
TAKEN, ACROSS = "CPU time taken", 4
LOOKS = {"stay": ModelStyle(COLORS[0], "o", "-"), "swap": ModelStyle(COLORS[3], "v", "--")}


def missing(sweep: Sweep, plan_id: str) -> str:
    """Return why the figure cannot be drawn."""
    table = interference_table(sweep)
    if len(table) and plan_id in set(table["plan_id"]):
        return ""
    return "a figure over competing processes needs points with and without them, got one kind; run interference.toml"


def chart(sweep: Sweep, plan_id: str) -> Chart:
    """Return step time with competing processes over that without, one panel per model, and the part that the CPU time
    taken explains."""
    table = interference_table(sweep)
    table = table[table["plan_id"] == plan_id]
    threads = int(table["threads"].max())
    table = table[table["threads"] == threads]
    table = table.assign(usable=[row_is_usable(sweep, row) for row in table.to_dict("records")])
    stays = {m: m.with_options(preemption="stay") if "preemption" in m.model.fields else m for m in {*table["model"]}}
    names = {model: model_label(other) for model, other in stays.items()}
    left = table.groupby("hogs")["capacity"].first()
    taken = reference_rows(TAKEN, left.index, 1 / left.to_numpy())
    panels = []
    for name in dict.fromkeys(table["model"].map(names)):
        own = table[table["model"].map(names) == name]
        rows = value_rows(own.assign(model=own["preemption"]), "slowdown", "hogs")
        panels.append(Panel(pd.concat([taken, rows]), "time / without", name, "linear"))
    facts = [sweep.problem_name(plan_id), blocks_text(sweep.plans[plan_id]), f"{threads} threads"]
    styles = {TAKEN: ModelStyle(GREY, "", ":"), **LOOKS}
    texts = {"stay": "threads keep their CPU", "swap": "waiting workers exchange CPUs with preempted ones"}
    places = sweep.config.get(INTERFERENCE, ())
    return Chart(
        panels, facts, styles, "competing processes", texts, places, across=ACROSS, linear=True, same_scale=True
    )


def caption(sweep: Sweep, plan_id: str) -> list[str]:
    """Return the caption's sentences."""
    return [
        "Step time with competing processes over that without, of each model; dotted: what the CPU time that they take "
        "explains, above it is CPU time that was available and not used. Bars: 95 % intervals."
    ]
