"""Figure `layers`: busy time per layer and model, and each layer's fraction of one thread's peak."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from ...analysis.accounting import layer_table
from ...analysis.names import model_label, model_rank
from ...analysis.speeds import is_usable
from ...analysis.sweep import Sweep
from ...subjects.models import SERIAL, ModelSpec
from .axes import rows_of_bars
from .heading import plan_header
from .style import COLORS, add_legend, marked, new_figure, panel_title

RANK, ONE_FOR = 1, "plan"


# Bars name so many layers; the others are summed up. Where these hold less than half of the time, layers of one block
# of the network are summed up first.
MAX_LAYERS, LEAST_NAMED = 9, 0.5
# Panel (b) has a row for each of so many layers, those with most time.
MAX_RATES = {"double": 24, "single": 9}

SMALLEST_LAYER = 0.015

# Segments of at least this fraction of the longest bar hold a number.
SMALLEST_LABEL = {"double": 0.075, "single": 0.12}


MARKERS = {"forward": ("o", COLORS[0], -0.13), "backward": ("D", COLORS[3], 0.13), "update": ("^", COLORS[2], 0)}


def missing(sweep: Sweep, plan_id: str) -> str:
    """Return why the figure cannot be drawn."""
    if any(row.plan_id == plan_id for row in sweep.profiles):
        return ""
    return "a figure of layers needs profile rows, got none; measure with `forktask compare`"


def draw(sweep: Sweep, plan_id: str, column: str) -> Figure:
    """Draw busy time per layer and model, and each layer's fraction of one thread's peak."""
    points = sorted(
        {(r.model, r.threads) for r in sweep.profiles if r.plan_id == plan_id and sweep.shows(r.model)},
        key=lambda p: (p[1], model_rank(p[0])),
    )
    widest = max((t for _, t in points), default=0)
    points = [p for p in points if p == (SERIAL, 1) or p[1] == widest]
    tables = {p: layer_table(sweep, plan_id, *p) for p in points}
    lead = tables.get((SERIAL, 1), next(iter(tables.values())))
    group = _groups(lead)
    order = list(dict.fromkeys(lead["layer"].map(group)))
    weight = lead.groupby(lead["layer"].map(group))["time_s"].sum()
    large = [layer for layer in order if weight[layer] >= SMALLEST_LAYER * weight.sum()]
    shown = sorted(large, key=lambda layer: -weight[layer])[:MAX_LAYERS]
    shown = [layer for layer in order if layer in shown]
    others = [layer for layer in order if layer not in shown]
    colors = dict(zip(shown, COLORS, strict=False))
    names = shown + (["others"] if others else [])
    colors["others"] = (0.8, 0.8, 0.8)

    fractions, layers = _rates(lead, MAX_RATES[column])
    height = max(1.7, 0.28 * len(points) + 0.6, 0.12 * len(layers) + 0.4)
    shares = {"widths": (1.25, 1), "heights": (len(points) + 2, len(layers) + 2)} if layers else {}
    figure, (bars, *of_rates) = new_figure(column, 1 + bool(layers), height, **shares)
    labels = []
    longest = max(float(table["time_s"].sum()) for table in tables.values())
    for row, point in enumerate(points):
        sums = tables[point].groupby(tables[point]["layer"].map(group))["time_s"].sum()
        widths = [float(sums[others].sum()) if name == "others" else float(sums.get(name, 0.0)) for name in names]
        *lefts, total = 0.0, *itertools.accumulate(widths)
        look = {"height": 0.72, "color": [colors[name] for name in names], "edgecolor": "white", "linewidth": 0.5}
        bars.barh(row, np.multiply(widths, 1e3), left=np.multiply(lefts, 1e3), **look)
        for name, left, width in zip(names, lefts, widths, strict=True):
            if width >= SMALLEST_LABEL[column] * longest:
                dark = sum(c * w for c, w in zip(colors[name], (0.3, 0.59, 0.11), strict=True)) < 0.62
                bars.text(
                    (left + width / 2) * 1e3,
                    row,
                    f"{width / total:.0%}",
                    ha="center",
                    va="center",
                    fontsize=6.5 if len(points) < 9 or column == "double" else 5,
                    color="white" if dark else "black",
                )
        threads = f", {point[1]} thr." if not point[0].is_serial else ""
        labels.append(marked(model_label(point[0]) + threads, is_usable(sweep, (plan_id, *point))))
    rows_of_bars(bars, labels, "busy time of a step (ms)", "time by layer")

    for rates in of_rates:
        title = model_label(points[0][0]) if (SERIAL, 1) not in tables else "serial"
        _draw_rates(rates, sweep, fractions, layers, title)
    handles = [Patch(color=colors[n], label=n if n != "others" else _others_text(others)) for n in names]
    handles += [
        Line2D([], [], linestyle="none", marker=m, color=c, markersize=4, label=phase)
        for phase, (m, c, _) in MARKERS.items()
        if (fractions["phase"] == phase).any()
    ]
    add_legend(figure, column, handles, columns=7 if column == "double" else 3)
    plan_header(figure, sweep, plan_id, column)
    return figure


def _groups(lead: pd.DataFrame) -> dict[str, str]:
    """Return what each layer is summed up as: itself, or its block of the network (its name without the last part) as
    long as the largest hold too little of the time."""
    group = {layer: layer for layer in lead["layer"]}
    while any("." in name for name in group.values()):
        sums = lead.groupby(lead["layer"].map(group))["time_s"].sum()
        if sums.nlargest(MAX_LAYERS).sum() >= LEAST_NAMED * sums.sum():
            break
        group = {layer: name.rpartition(".")[0] or name for layer, name in group.items()}
    return group


def _rates(lead: pd.DataFrame, most: int) -> tuple[pd.DataFrame, list[str]]:
    """Return the rows with arithmetic that panel (b) shows, and their layers in the order of the plan."""
    known = (lead["phase"] != "load") & lead["peak_fraction"].notna() & (lead["flops"] > 0) & (lead["share"] >= 0.005)
    largest = set(lead[known].groupby("layer")["time_s"].sum().nlargest(most).index)
    fractions = lead[known & lead["layer"].isin(largest)]
    return fractions, [layer for layer in dict.fromkeys(lead["layer"]) if layer in largest]


def _draw_rates(rates, sweep: Sweep, fractions: pd.DataFrame, layers: Sequence[str], model: ModelSpec) -> None:
    """Draw each layer's fraction of one thread's peak, a mark for each phase."""
    for phase, (marker, color, aside) in MARKERS.items():
        part = fractions[fractions["phase"] == phase]
        rates.scatter(
            part["peak_fraction"],
            [layers.index(layer) + aside for layer in part["layer"]],
            s=16,
            marker=marker,
            color=[color],
            linewidths=0,
            label=phase,
            zorder=3,
            clip_on=False,
        )
    for row in range(len(layers)):
        rates.axhline(row, color="0.92", linewidth=0.6, zorder=0)
    rates.set_yticks(range(len(layers)), layers)
    rates.set_ylim(len(layers) - 0.4, -0.6)
    rates.set_xlim(0, max([1.0, *(fractions["peak_fraction"] * 1.05)]))
    rates.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:.0%}"))
    rates.tick_params(axis="y", length=0)
    peak = sweep.machine.peak_flops_per_s_1thread
    rates.set_xlabel(f"fraction of peak ({peak / 1e9:.0f} GFLOP/s)" if peak else "fraction of peak (not measured)")
    panel_title(rates, f"arithmetic rate, {model}")


def _others_text(others: Sequence[str]) -> str:
    return others[0] if len(others) == 1 else f"{len(others)} others"


def caption(sweep: Sweep, plan_id: str) -> list[str]:
    """Return the caption's sentences."""
    return [
        "(a) Busy time of a step by layer, all workers, with shares; longer than the serial bar: blocks ran slower "
        "side by side. (b) Operations per busy second over one thread's peak, of the longest layers; Winograd "
        "counts as direct convolution. Means over profiles."
    ]
