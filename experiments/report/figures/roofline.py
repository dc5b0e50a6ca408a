"""What bounds the serial step: figure `roofline` has its kernels under the machine's roofs, figure `bound` how much of
it arithmetic bounds, and how much memory, over the plans of a sweep."""

from __future__ import annotations

import math
import textwrap
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator, PercentFormatter

from ...analysis.names import GRANULARITY, NETWORK, axis_label, value_text
from ...analysis.roofline import MEMORY, floors_by_phase, memory_share, roofline_table
from ...analysis.speeds import is_usable
from ...analysis.sweep import Sweep
from ...subjects.models import SERIAL
from ..words import plan_facts
from .axes import rows_of_bars
from .chart import Chart, Lacking, Panel, figure, reference_rows
from .style import COLORS, GREY, mark_handle, marked

MOST_PLANS, NAMED = 24, 2  # of `bound`, and of its caption
MOST_KERNELS = 10  # that have a bar of their own
NUMBER_AT = ((8, -8), (8, 5), (-8, 5), (-8, -8))  # places beside a mark, in turn
BOUND_COLORS = {"arithmetic": COLORS[0], MEMORY: COLORS[1]}
MARKERS = {"forward": "o", "backward": "D", "update": "^", "load": "s", "other": "v"}


@figure(1.5)
def roofline(sweep: Sweep, plan_id: str) -> Chart:
    """Return the roofline with the kernels that have arithmetic, and a bar for each kernel."""
    table = roofline_table(sweep, plan_id)
    if not len(table):
        raise Lacking("a roofline needs the machine's peak and bandwidth, got none; measure with `forktask compare`")
    if table["time_s"].isna().all():
        raise Lacking("a roofline needs a profile of the serial run, got none; measure `serial` too, with profiles")
    table = table[table["time_s"] > 0]
    rows = table.to_dict("records")
    data = reference_rows(SERIAL, table["kernel"] + ", " + table["phase"], 1e3 * table["time_s"])
    data = data.assign(floor=1e3 * table["floor_s"], intensity=table["intensity"], bound=table["bound"])

    def paint_bars(axis, column: str) -> None:
        shown, others = rows[:MOST_KERNELS], rows[MOST_KERNELS:]
        for place, row in enumerate(shown):
            color = BOUND_COLORS[row["bound"]]
            time_ms, floor_ms = row["time_s"] * 1e3, row["floor_s"] * 1e3
            axis.barh(place, time_ms, height=0.7, color=color, alpha=0.3)
            axis.barh(place, min(floor_ms, time_ms), height=0.7, color=color)
            axis.text(time_ms, place, f" {row['roof']:.0%}", va="center", fontsize=6.5 if column == "double" else 6)
        labels = [f"{row['kernel']}, {row['phase']}  {number}" for number, row in enumerate(shown, 1)]
        if others:
            axis.barh(len(shown), sum(row["time_s"] for row in others) * 1e3, height=0.7, color="0.85")
            labels.append(f"{len(others)} others")
        axis.margins(x=0.14)
        rows_of_bars(axis, labels, "time in the serial step (ms)")

    handles = [Patch(color=color, label=f"bound by {bound}, by model") for bound, color in BOUND_COLORS.items()]
    present = {row["phase"] for row in rows if row["flops"]}
    handles += [mark_handle(marker, GREY, phase) for phase, marker in MARKERS.items() if phase in present]
    title = marked("time; dark: its floor", is_usable(sweep, (plan_id, SERIAL, 1)))
    panels = [Panel(data, "time in the serial step (ms)", title, paint=paint_bars)]
    if any(row["flops"] for row in rows):
        paint = partial(_roofs, sweep, rows)
        panels.insert(0, Panel(data[:0], "GFLOP/s", "arithmetic under the roofs, by model", paint=paint))
    height = max(2.0, 0.16 * min(len(rows), MOST_KERNELS + 1) + 0.5)
    caption = [
        "(a) Kernels with arithmetic, numbered as in (b); lines: one thread's roofs, dotted: caches; area: share of "
        "the serial step. (b) All kernels: floor over time. Operations and bytes are the plan's: a floor is the longer "
        "of both at peak and bandwidth, and says nothing of why a kernel takes longer."
    ]
    facts = plan_facts(sweep, plan_id)
    return Chart(panels, facts, height=height, widths=(1, 1.1), handles=handles, caption=caption)


def _roofs(sweep: Sweep, rows: list[dict[str, Any]], axis, column: str) -> None:
    """Draw the roofs of one thread, and a mark for each kernel with arithmetic, its area by its share of the time; an
    axis of many decades has a tick for each of them alone."""
    decades = 4 if column == "double" else 2
    flops_per_s, bytes_per_s = sweep.rates(1)
    ridge = flops_per_s / bytes_per_s
    placed = [row for row in rows if row["flops"] and math.isfinite(row["intensity"])]
    intensities = [row["intensity"] for row in placed] or [ridge]
    reached = [row["flops"] / row["time_s"] for row in placed] or [flops_per_s]
    low, high = min(*intensities, ridge) / 1.7, max(*intensities, ridge) * 1.7
    x = np.array([low, ridge, high])
    axis.loglog(x, np.minimum(x * bytes_per_s, flops_per_s) / 1e9, color="0.2", linewidth=1.0, zorder=1)
    axis.axvline(ridge, color="0.85", linewidth=0.6, zorder=0)
    for level, rate in sweep.machine.cache_bandwidth_bytes_per_s.items():
        if rate > bytes_per_s:
            edge = min(high, flops_per_s / rate)
            axis.loglog([low, edge], [low * rate / 1e9, edge * rate / 1e9], ":", color="0.5", linewidth=0.7, zorder=1)
            middle = math.sqrt(low * edge)
            place = {"xytext": (-2, 1), "textcoords": "offset points", "ha": "right"}
            axis.annotate(f"L{level}", (middle, middle * rate / 1e9), fontsize=6, color="0.4", **place)
    for row in placed:
        look = {"marker": MARKERS.get(row["phase"], "v"), "edgecolors": "white", "linewidths": 0.4, "zorder": 3}
        place, color = (row["intensity"], row["flops"] / row["time_s"] / 1e9), [BOUND_COLORS[row["bound"]]]
        axis.scatter(*place, s=10 + 120 * row["share"], color=color, **look)
    for number, row in enumerate(rows[:MOST_KERNELS], 1):
        if row in placed:
            place = row["intensity"], row["flops"] / row["time_s"] / 1e9
            look = {"textcoords": "offset points", "fontsize": 6, "color": "0.2", "ha": "center", "zorder": 4}
            axis.annotate(str(number), place, xytext=NUMBER_AT[number % len(NUMBER_AT)], **look)
    axis.set_xlim(low, high)
    axis.set_ylim(min(*reached, low * bytes_per_s) / 1.5e9, max(*reached, flops_per_s) * 1.6e-9)
    for side, (least, most) in ((axis.xaxis, axis.get_xlim()), (axis.yaxis, axis.get_ylim())):
        subs = (1, 3) if math.log10(most / least) < decades else (1,)
        side.set_major_locator(LogLocator(subs=subs, numticks=7))
        side.set_minor_locator(NullLocator())
        side.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set(xlabel="operations per byte", ylabel="GFLOP/s")


def _name(sweep: Sweep, plan_id: str) -> str:
    """Return what tells a plan from the others; networks and granularities need no word before them."""
    record = sweep.named[plan_id]
    words = {axis: "" if axis in (NETWORK, GRANULARITY) else f"{axis_label(axis)} " for axis in sweep.axes}
    return ", ".join(f"{word}{value_text(record[axis])}" for axis, word in words.items()) or plan_id


@figure(3.5, "sweep")
def bound(sweep: Sweep, plan_id: str) -> Chart:
    """Return a bar for each plan: its floor by bound, over the time of its serial step."""
    points = [(plan, SERIAL, 1) for plan in sweep.plan_ids() if (plan, SERIAL, 1) in sweep.turns]
    floors = {point: both.values() for point in points if (both := floors_by_phase(sweep, point[0], 1))}
    if not 1 < len(floors) <= MOST_PLANS:
        raise Lacking(
            f"a figure of what bounds several plans needs 2 to {MOST_PLANS} of them with serial runs, and the "
            f"machine's peak and bandwidth, got {len(floors)}; run a sweep with several"
        )
    rows, texts = [], []
    for point, both in floors.items():
        step_s, name = sweep.times.time(point).value, _name(sweep, point[0])
        share, times = memory_share(sweep, point[0]), step_s / sum(map(sum, both))
        texts.append(f"{name} {share:.0%}, step {times:.2f} times the floor")
        for index, kind in enumerate(BOUND_COLORS):
            value = sum(each[index] for each in both) / step_s
            rows.append({"model": kind, "x": marked(name, is_usable(sweep, point)), "value": value})
    table = pd.DataFrame(rows).assign(low=math.nan, high=math.nan)
    names = list(dict.fromkeys(table["x"]))

    def paint(axis, column: str) -> None:
        parts = [table[table["model"] == kind]["value"].to_numpy() for kind in BOUND_COLORS]
        for number, color in enumerate(BOUND_COLORS.values()):
            axis.barh(range(len(names)), parts[number], left=sum(parts[:number]), height=0.75, color=color)
        axis.barh(range(len(names)), 1 - sum(parts), left=sum(parts), height=0.75, color="0.9")
        for place, share in enumerate(parts[1] / sum(parts)):
            axis.text(1.01, place, f"{share:.0%} by memory", va="center", fontsize=6.5)
        wrapped = names if column == "double" else ["\n".join(textwrap.wrap(name, 26)) for name in names]
        axis.set(xlim=(0, 1.2), xticks=[0, 0.25, 0.5, 0.75, 1.0])
        axis.xaxis.set_major_formatter(PercentFormatter(1.0))
        rows_of_bars(axis, wrapped, "share of the serial step")

    handles = [Patch(color=color, label=f"floor, bound by {kind}") for kind, color in BOUND_COLORS.items()]
    handles.append(Patch(color="0.9", label="above the floor"))
    panel = Panel(table, "share of the serial step", paint=paint)
    caption = [
        f"Share of the roofline floor in loops bound by memory, one thread: {'; '.join(texts[:NAMED])}.",
        "Bars: floor over serial step. Above 1: data stayed in caches, or Winograd, whose operations count as direct.",
    ]
    height, facts = max(1.2, 0.19 * len(names) + 0.4), [f"{len(names)} plans, one thread"]
    return Chart([panel], facts, height=height, handles=handles, caption=caption)
