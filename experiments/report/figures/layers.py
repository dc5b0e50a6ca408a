"""Figures of layers: `layers` has their busy time under each model, and their fraction of one thread's peak,
`layer_times` their time on one thread with each form of convolutions; `losses`: where threads x wall time went in
logged runs, and what makes up the gain of tasks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter
from msgspec import structs

from ...analysis.accounting import alike_profiles, layer_table
from ...analysis.comparisons import plans_by_value
from ...analysis.losses import LOSSES, is_undisturbed
from ...analysis.names import model_label, model_rank, value_text
from ...analysis.speeds import is_usable
from ...analysis.sweep import Point, Sweep
from ...subjects.models import SERIAL
from ..words import plan_facts
from .axes import rows_of_bars
from .chart import Chart, Lacking, Panel, drawn, figure, reference_rows
from .style import COLORS, ModelStyle, in_style, mark_handle, marked

OTHERS = "others"
# Bars name so many layers; the others are summed up. Where these hold less than half of the time, layers of one block
# of the network are summed up first.
MAX_LAYERS, LEAST_NAMED = 9, 0.5
SMALLEST_LAYER = 0.015
MAX_RATES = 16  # layers of panel (b), those with most time
MOST_TIMES, LEAST_SHARE = 18, 0.05  # layers of `layer_times`: so many at most, each of so much of a step at least
# Segments of at least this fraction of the longest bar hold a number.
SMALLEST_LABEL = {"double": 0.075, "single": 0.12}
MARKERS = {"forward": ("o", COLORS[0], -0.13), "backward": ("D", COLORS[3], 0.13), "update": ("^", COLORS[2], 0)}
FORMS = "osD^vP*X"  # markers of the forms of convolutions


@figure(1)
def layers(sweep: Sweep, plan_id: str) -> Chart:
    """Return busy time per layer and model, and each layer's fraction of one thread's peak."""
    if not any(row.plan_id == plan_id for row in sweep.profiles):
        raise Lacking(
            "a figure of layers needs profile rows, got none; measure without --no-profile, and with more --budget"
        )
    points = sorted(
        {(r.model, r.threads) for r in sweep.profiles if r.plan_id == plan_id and sweep.shows(r.model)},
        key=lambda p: (p[1], model_rank(p[0])),
    )
    widest = max((t for _, t in points), default=0)
    points = [p for p in points if p == (SERIAL, 1) or (p[1] == widest and alike_profiles(sweep, Point(plan_id, *p)))]
    if not points:
        raise Lacking(
            "a figure of layers needs logged runs that took as long as the timed ones, got none; measure again"
        )
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

    # Rows with arithmetic that panel (b) shows, and their layers in the order of the plan.
    known = (lead["phase"] != "load") & lead["peak_fraction"].notna() & (lead["flops"] > 0) & (lead["share"] >= 0.005)
    most = set(lead[known].groupby("layer")["time_s"].sum().nlargest(MAX_RATES).index)
    fractions = lead[known & lead["layer"].isin(most)]
    rated = [layer for layer in dict.fromkeys(lead["layer"]) if layer in most]

    def paint_rates(axis, column: str) -> None:
        for phase, (marker, color, aside) in MARKERS.items():
            part = fractions[fractions["phase"] == phase]
            places = [rated.index(layer) + aside for layer in part["layer"]]
            look = {"s": 16, "marker": marker, "color": [color], "linewidths": 0, "zorder": 3, "clip_on": False}
            axis.scatter(part["peak_fraction"], places, **look)
        for row in range(len(rated)):
            axis.axhline(row, color="0.92", linewidth=0.6, zorder=0)
        axis.set_yticks(range(len(rated)), rated, fontsize=7 if column == "double" else 4.5)
        axis.set_ylim(len(rated) - 0.4, -0.6)
        axis.set_xlim(0, max([1.0, *(fractions["peak_fraction"] * 1.05)]))
        axis.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:.0%}"))
        axis.tick_params(axis="y", length=0)
        peak = sweep.machine.peak_flops_per_s_1thread
        axis.set_xlabel(f"fraction of peak ({peak / 1e9:.0f} GFLOP/s)" if peak else "fraction of peak (not measured)")

    panels = [Panel(bars, "busy time of a step (ms)", "time by layer", paint=paint)]
    title = model_label(points[0][0]) if (SERIAL, 1) not in tables else "serial"
    if rated:
        data = reference_rows(fractions["phase"], fractions["layer"], fractions["peak_fraction"])
        panels.append(Panel(data, "fraction of peak", f"arithmetic rate, {title}", paint=paint_rates))
    others_text = others[0] if len(others) == 1 else f"{len(others)} others"
    handles = [Patch(color=colors[n], label=n if n != OTHERS else others_text) for n in colors]
    phases = [phase for phase in MARKERS if (fractions["phase"] == phase).any()]
    handles += [mark_handle(*MARKERS[phase][:2], phase) for phase in phases]
    height = max(1.7, 0.28 * len(points) + 0.6, 0.12 * len(rated) + 0.4)
    caption = (
        "(a) Busy time of a step by layer, all workers, with shares; longer than the serial bar: blocks ran slower "
        "side by side. (b) Operations per busy second over one thread's peak, of the longest layers; Winograd "
        "counts as direct convolution. Means over profiles."
    )
    facts = plan_facts(sweep, plan_id)
    return Chart(panels, facts, height=height, widths=(1.25, 1), handles=handles, caption=[caption])


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


@figure(1.1, "network")
def layer_times(sweep: Sweep, plan_id: str) -> Chart:
    """Return a row for each layer and a mark for each form of convolutions; the last row is the step."""
    profiled = [p for p in sweep.siblings(plan_id, "conv") if sweep.profiles_of((p, SERIAL, 1))]
    plans = {value_text(value): plan for value, plan in plans_by_value(sweep, profiled, "conv").items()}
    if len(plans) < 2:
        raise Lacking(
            "times of layers need serial profiles of two forms of convolutions, got fewer; run layers or conv_forms"
        )
    tables = {value: layer_table(sweep, plan) for value, plan in plans.items()}
    times = pd.DataFrame({value: own.groupby("layer", sort=False)["time_s"].sum() for value, own in tables.items()})
    order, largest = (
        dict.fromkeys(pd.concat(tables)["layer"]),
        set((times / times.sum()).max(axis=1).nlargest(MOST_TIMES).loc[lambda share: share >= LEAST_SHARE].index),
    )
    step = times.sum().rename("all").to_frame().T
    table = 1e3 * pd.concat([times.loc[[layer for layer in order if layer in largest]], step])
    usable = {value: is_usable(sweep, (plans[value], SERIAL, 1)) for value in table}
    rows = pd.concat([reference_rows(v, list(table.index), table[v].tolist()).assign(usable=usable[v]) for v in table])
    styles = {v: ModelStyle(COLORS[i % len(COLORS)], FORMS[i % len(FORMS)], "none") for i, v in enumerate(table)}
    panel = Panel(rows[rows["value"].notna()], "time in the serial step (ms)")
    caption = (
        f"Time of each layer of at least {LEAST_SHARE:.0%} of a serial step, with each form of convolutions; means "
        "over profiles, scaled to the step's time. Every model's layers: layers.csv."
    )
    facts = [sweep.problem_name(plan_id, "conv"), "one thread"]
    return Chart([panel], facts, styles, dodged=False, hollow_unknown=False, caption=[caption])


SECONDS = (*(f"{name}_s" for name in LOSSES), "step_time_s")


@figure(2)
def losses(sweep: Sweep, plan_id: str) -> Chart:
    """Return the losses of each logged model, and their differences from fork-join."""
    if not (rows := rows_of(sweep, plan_id)):
        raise Lacking("a figure of losses needs event logs, got none; measure with `forktask compare --trace`")
    return losses_chart(rows, plan_facts(sweep, plan_id))


def rows_of(sweep: Sweep, plan_id: str) -> list[dict[str, Any]]:
    """Return the losses of a plan's latest logs (rows of `losses.as_rows`), models in their fixed order."""
    latest = {
        (row.model, row.threads): row for row in sweep.traces if row.plan_id == plan_id and sweep.shows(row.model)
    }
    rows = [structs.asdict(latest[key].losses) for key in sorted(latest, key=lambda key: (key[1], model_rank(key[0])))]
    return [{**row, "usable": is_undisturbed(row)} for row in rows]


def draw_traced(rows: Sequence[Mapping[str, Any]], column: str = "double", title: str = "") -> Figure:
    """Draw rows of `losses.as_rows` as a figure of their own."""
    with in_style():
        return drawn(losses_chart(rows, [title] if title else []), column)


def losses_chart(rows: Sequence[Mapping[str, Any]], facts: Sequence[str]) -> Chart:
    """Return bars that sum to the step time, and differences from the quickest fork-join."""
    joins = [row for row in rows if row["model"].name == "forkjoin"]
    reference = min(joins, key=lambda row: row["step_time_s"], default={})
    others = [r for r in rows if r["model"].takes_tasks and r["threads"] == reference.get("threads")]
    gains = [{name: reference[name] - row[name] for name in SECONDS} for row in others]
    panels = [_bars(rows, list(map(_label, rows)), "wall time of an iteration (ms)", "where the threads' time went")]
    caption = [
        "(a) Time of an iteration of a logged run, by what its threads did; useful: the time of the same blocks in a "
        "logged serial run."
    ]
    if others:
        names = [_label(row, threads=False) for row in others]
        panels.append(_bars(gains, names, "less time than fork-join (ms)", "gain over fork-join, by cause"))
        join = model_label(reference["model"])
        caption.append(f"(b) What each cause makes task models faster than {join} (right) or slower.")
    handles = [Patch(color=loss.color, label=loss.label) for loss in LOSSES.values()]
    handles.append(Line2D([], [], color="black", linewidth=0.9, label="measured"))
    height = max(1.6, 0.3 * len(rows) + 0.6)
    return Chart(panels, facts, height=height, widths=(1.25, 1), handles=handles, caption=caption)


def _bars(rows: Sequence[Mapping[str, Any]], names: Sequence[str], label: str, title: str) -> Panel:
    """Return a panel that stacks the losses of each row, positive ones to the right of zero and negative ones to the
    left, and marks their sum as measured."""
    data = [
        {"model": part[:-2], "x": name, "value": 1e3 * row[part], "low": math.nan, "high": math.nan}
        for row, name in zip(rows, names, strict=True)
        for part in SECONDS
    ]

    def paint(axis, column: str) -> None:
        for place, row in enumerate(rows):
            right = left = 0.0
            for name, loss in LOSSES.items():
                value = 1e3 * row[f"{name}_s"]
                start = right if value >= 0 else left
                axis.barh(place, value, left=start, height=0.7, color=loss.color, linewidth=0, zorder=2)
                right, left = (right + value, left) if value >= 0 else (right, left + value)
            total = 1e3 * row["step_time_s"]
            axis.plot([total] * 2, [place - 0.42, place + 0.42], color="black", linewidth=0.9, zorder=4)
        axis.axvline(0, color="black", linewidth=0.5)
        rows_of_bars(axis, names, label)

    return Panel(pd.DataFrame(data), label, title, paint=paint)


def _label(row: Mapping[str, Any], threads: bool = True) -> str:
    lanes = "lanes" if row["model"].name == "gpu_both" else "streams" if row["model"].is_gpu else "thr."
    aside = f", {row['threads']} {lanes}" if threads and row["threads"] > 1 else ""
    return marked(model_label(row["model"]) + aside, row["usable"])
