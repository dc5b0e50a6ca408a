"""Figure `layer_times`: time of each layer on one thread, a mark for each form of convolutions."""

from __future__ import annotations

import pandas as pd

from ...analysis.accounting import layer_table
from ...analysis.names import value_text
from ...analysis.speeds import is_usable, plans_by_value
from ...analysis.sweep import Sweep
from ...subjects.models import SERIAL
from .chart import Chart, Panel, reference_rows
from .style import COLORS, ModelStyle

RANK, ONE_FOR = 1.1, "network"
MARKERS = "osD^vP*X"
MOST_LAYERS = 18  # that have a row, those with most time


def _plans(sweep: Sweep, plan_id: str) -> dict[str, str]:
    """Return the plans that differ in the form of convolutions and have a serial profile, in the sweep's order."""
    plans = [p for p in sweep.siblings(plan_id, "conv") if sweep.profiles_of((p, SERIAL, 1))]
    return {value_text(value): plan for value, plan in plans_by_value(sweep, plans, "conv").items()}


def missing(sweep: Sweep, plan_id: str) -> str:
    """Return why the figure cannot be drawn."""
    if len(_plans(sweep, plan_id)) > 1:
        return ""
    return "times of layers need serial profiles of two forms of convolutions, got fewer; run layers or conv_forms"


def times(sweep: Sweep, plan_id: str) -> pd.DataFrame:
    """Return seconds of each layer in a serial step, all its phases together: a row for each layer, a column for each
    form; the last row, "all", is the step."""
    result = {
        value: layer_table(sweep, plan).groupby("layer", sort=False)["time_s"].sum()
        for value, plan in _plans(sweep, plan_id).items()
    }
    table = pd.DataFrame(result)
    order = list(dict.fromkeys(layer for column in result.values() for layer in column.index))
    largest = set(table.max(axis=1).nlargest(MOST_LAYERS).index)
    return pd.concat(
        [table.loc[[layer for layer in order if layer in largest]], table.sum().rename("all").to_frame().T]
    )


def chart(sweep: Sweep, plan_id: str) -> Chart:
    """Return a row for each layer and a mark for each form."""
    table, plans = 1e3 * times(sweep, plan_id), _plans(sweep, plan_id)
    usable = {value: is_usable(sweep, (plans[value], SERIAL, 1)) for value in table}
    rows = pd.concat([reference_rows(v, list(table.index), table[v].tolist()).assign(usable=usable[v]) for v in table])
    styles = {v: ModelStyle(COLORS[i % len(COLORS)], MARKERS[i % len(MARKERS)], "none") for i, v in enumerate(table)}
    panel = Panel(rows[rows["value"].notna()], "time in the serial step (ms)")
    facts = [sweep.problem_name(plan_id, "conv"), "one thread"]
    return Chart([panel], facts, styles, dodged=False, hollow_unknown=False)


def caption(sweep: Sweep, plan_id: str) -> list[str]:
    """Return the caption's sentences."""
    return [
        "Time of each layer in a serial step, all its phases together, with each form of convolutions; means over "
        "profiles, scaled to the step's time. Every model's layers: layers.csv."
    ]
