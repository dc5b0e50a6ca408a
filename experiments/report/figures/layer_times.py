"""Figure `layer_times`: time of each layer on one thread, a mark for each form of convolutions."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from ...analysis.accounting import layer_table
from ...analysis.names import value_text
from ...analysis.speeds import is_usable, plans_by_value
from ...analysis.sweep import Sweep
from ...subjects.models import SERIAL
from .heading import header
from .style import COLORS, add_legend, blank_figure, marked

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
    found = {
        value: layer_table(sweep, plan).groupby("layer", sort=False)["time_s"].sum()
        for value, plan in _plans(sweep, plan_id).items()
    }
    table = pd.DataFrame(found)
    order = list(dict.fromkeys(layer for column in found.values() for layer in column.index))
    largest = set(table.max(axis=1).nlargest(MOST_LAYERS).index)
    return pd.concat(
        [table.loc[[layer for layer in order if layer in largest]], table.sum().rename("all").to_frame().T]
    )


def draw(sweep: Sweep, plan_id: str, column: str) -> Figure:
    """Draw a row for each layer and a mark for each form, over a logarithmic axis of time."""
    table, plans = 1e3 * times(sweep, plan_id), _plans(sweep, plan_id)
    figure = blank_figure(column, 0.15 * len(table) + 1.1)
    axis = figure.subplots()
    handles = []
    for number, value in enumerate(table):
        label = marked(value, is_usable(sweep, (plans[value], SERIAL, 1)))
        look = {"marker": MARKERS[number % len(MARKERS)], "color": COLORS[number % len(COLORS)], "linestyle": "none"}
        handles += axis.plot(table[value], range(len(table)), label=label, markersize=4, zorder=3, **look)
    for place in range(len(table)):
        axis.axhline(place, color="0.92", linewidth=0.6, zorder=0)
    axis.axhline(len(table) - 1.5, color="0.6", linewidth=0.6)
    axis.set_yticks(range(len(table)), table.index)
    axis.set_ylim(len(table) - 0.4, -0.6)
    axis.tick_params(axis="y", length=0)
    low, high = float(table.min(axis=None)) / 1.3, float(table.max(axis=None)) * 1.3
    axis.set(xscale="log", xlim=(low, high))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_xlabel("time in the serial step (ms)")
    axis.spines[["top", "right", "left"]].set_visible(False)
    add_legend(figure, column, handles, len(handles) if column == "double" else 3)
    header(figure, sweep, [sweep.problem_name(plan_id, "conv"), "one thread"], column)
    return figure


def caption(sweep: Sweep, plan_id: str) -> list[str]:
    """Return the caption's sentences."""
    return [
        "Time of each layer in a serial step, all its phases together, with each form of convolutions; means over "
        "profiles, scaled to the step's time. Every model's layers: layers.csv."
    ]
