"""Figure `layers`: busy time per layer and model, and each layer's fraction of one thread's peak."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from ...analysis.accounting import layer_table
from ...analysis.names import model_label, model_rank
from ...analysis.speeds import is_usable
from ...analysis.sweep import Sweep
from ...subjects.models import SERIAL
from .axes import rows_of_bars
from .chart import Chart, Panel, reference_rows
from .heading import plan_facts
from .style import COLORS, marked

RANK, ONE_FOR, OTHERS = 1, "plan", "others"


# Bars name so many layers; the others are summed up. Where these hold less than half of the time, layers of one block
# of the network are summed up first.
MAX_LAYERS, LEAST_NAMED = 9, 0.5
MAX_RATES = 16  # layers of panel (b), those with most time

SMALLEST_LAYER = 0.015

# Segments of at least this fraction of the longest bar hold a number.
SMALLEST_LABEL = {"double": 0.075, "single": 0.12}

MARKERS = {"forward": ("o", COLORS[0], -0.13), "backward": ("D", COLORS[3], 0.13), "update": ("^", COLORS[2], 0)}


def missing(sweep: Sweep, plan_id: str) -> str:
    """Return why the figure cannot be drawn."""
    if any(row.plan_id == plan_id for row in sweep.profiles):
        return ""
    return "a figure of layers needs profile rows, got none; measure with `forktask compare`"


def chart(sweep: Sweep, plan_id: str) -> Chart:
    """Return busy time per layer and model, and each layer's fraction of one thread's peak."""
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
    largest = sorted(large, key=lambda layer: -weight[layer])[:MAX_LAYERS]
    shown = [layer for layer in order if layer in largest]
    others = [layer for layer in order if layer not in largest]
    colors = dict(zip(shown, COLORS, strict=False)) | ({OTHERS: (0.8, 0.8, 0.8)} if others else {})
    labels, rows = [], []
    for point in points:
        threads = f", {point[1]} thr." if not point[0].is_serial else ""
        labels.append(marked(model_label(point[0]) + threads, is_usable(sweep, (plan_id, *point))))
        sums = 1e3 * tables[point].groupby(tables[point]["layer"].map(group))["time_s"].sum()
        widths = [sums[others].sum() if name == OTHERS else sums.get(name, 0.0) for name in colors]
        rows += [reference_rows(name, [labels[-1]], [width]) for name, width in zip(colors, widths, strict=True)]
    bars = pd.concat(rows)

    def paint(axis, column: str) -> None:
        longest = bars.groupby("x")["value"].sum().max()
        for place, label in enumerate(labels):
            widths = bars.loc[bars["x"] == label, "value"].to_numpy()
            lefts = np.cumsum(widths) - widths
            look = {"height": 0.72, "color": [*colors.values()], "edgecolor": "white", "linewidth": 0.5}
            axis.barh(place, widths, left=lefts, **look)
            for color, left, width in zip(colors.values(), lefts, widths, strict=True):
                if width >= SMALLEST_LABEL[column] * longest:
                    dark = sum(c * w for c, w in zip(color, (0.3, 0.59, 0.11), strict=True)) < 0.62
                    look = {"ha": "center", "va": "center", "fontsize": 6, "color": "white" if dark else "black"}
                    axis.text(left + width / 2, place, f"{width / widths.sum():.0%}", **look)
        rows_of_bars(axis, labels, "busy time of a step (ms)")

    fractions, layers = _rates(lead, MAX_RATES)
    panels = [Panel(bars, "busy time of a step (ms)", "time by layer", paint=paint)]
    title = model_label(points[0][0]) if (SERIAL, 1) not in tables else "serial"
    if layers:
        data = reference_rows(fractions["phase"], fractions["layer"], fractions["peak_fraction"])
        painted = partial(_draw_rates, sweep=sweep, fractions=fractions, layers=layers)
        panels.append(Panel(data, "fraction of peak", f"arithmetic rate, {title}", paint=painted))
    handles = [Patch(color=colors[n], label=n if n != OTHERS else _others_text(others)) for n in colors]
    handles += [
        Line2D([], [], linestyle="none", marker=m, color=c, markersize=4, label=phase)
        for phase, (m, c, _) in MARKERS.items()
        if (fractions["phase"] == phase).any()
    ]
    height = max(1.7, 0.28 * len(points) + 0.6, 0.12 * len(layers) + 0.4)
    return Chart(panels, plan_facts(sweep, plan_id), height=height, widths=(1.25, 1), handles=handles)


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


def _draw_rates(rates, column: str, sweep: Sweep, fractions: pd.DataFrame, layers: Sequence[str]) -> None:
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
    rates.set_yticks(range(len(layers)), layers, fontsize=7 if column == "double" else 4.5)
    rates.set_ylim(len(layers) - 0.4, -0.6)
    rates.set_xlim(0, max([1.0, *(fractions["peak_fraction"] * 1.05)]))
    rates.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:.0%}"))
    rates.tick_params(axis="y", length=0)
    peak = sweep.machine.peak_flops_per_s_1thread
    rates.set_xlabel(f"fraction of peak ({peak / 1e9:.0f} GFLOP/s)" if peak else "fraction of peak (not measured)")


def _others_text(others: Sequence[str]) -> str:
    return others[0] if len(others) == 1 else f"{len(others)} others"


def caption(sweep: Sweep, plan_id: str) -> list[str]:
    """Return the caption's sentences."""
    return [
        "(a) Busy time of a step by layer, all workers, with shares; longer than the serial bar: blocks ran slower "
        "side by side. (b) Operations per busy second over one thread's peak, of the longest layers; Winograd "
        "counts as direct convolution. Means over profiles."
    ]
