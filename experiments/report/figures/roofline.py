"""Figure `roofline`: kernels of the serial step under the machine's roofs, and where they stand below them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from ...analysis.roofline import MEMORY, measured_step, roofline_table
from ...analysis.speeds import is_usable
from ...analysis.sweep import Sweep
from ...subjects.models import SERIAL
from .axes import rows_of_bars
from .chart import Chart, Panel, reference_rows
from .heading import plan_facts
from .style import COLORS, GREY, marked

RANK, ONE_FOR = 1.5, "plan"
MOST_KERNELS = 10  # that have a bar of their own
BOUND_COLORS = {"arithmetic": COLORS[0], MEMORY: COLORS[1]}
MARKERS = {"forward": "o", "backward": "D", "update": "^", "load": "s", "other": "v"}


def missing(sweep: Sweep, plan_id: str) -> str:
    """Return why the figure cannot be drawn."""
    table = roofline_table(sweep, plan_id)
    if not len(table):
        return "a roofline needs the machine's peak and bandwidth, got none; measure with `forktask compare`"
    if table["time_s"].isna().all():
        return "a roofline needs a profile of the serial run, got none; measure `serial` too, with profiles"
    return ""


def chart(sweep: Sweep, plan_id: str) -> Chart:
    """Return the roofline with the kernels that have arithmetic, and a bar for each kernel."""
    table = roofline_table(sweep, plan_id)
    table = table[table["time_s"] > 0]
    rows = table.to_dict("records")
    data = reference_rows(SERIAL, table["kernel"] + ", " + table["phase"], 1e3 * table["time_s"])
    data = data.assign(floor=1e3 * table["floor_s"], intensity=table["intensity"], bound=table["bound"])
    counted = measured_step(sweep, plan_id)

    def paint_roofs(axis, column: str) -> None:
        _roofs(axis, sweep, rows, 4 if column == "double" else 2)
        if counted:
            axis.plot(counted["intensity"], counted["flops_per_s"] / 1e9, "*", color="0.1", markersize=9, zorder=4)

    def paint_bars(axis, column: str) -> None:
        shown, others = rows[:MOST_KERNELS], rows[MOST_KERNELS:]
        for place, row in enumerate(shown):
            color = BOUND_COLORS[row["bound"]]
            time_ms, floor_ms = row["time_s"] * 1e3, row["floor_s"] * 1e3
            axis.barh(place, time_ms, height=0.7, color=color, alpha=0.3)
            axis.barh(place, min(floor_ms, time_ms), height=0.7, color=color)
            axis.text(time_ms, place, f" {row['roof']:.0%}", va="center", fontsize=6.5 if column == "double" else 5.5)
        labels = [f"{row['kernel']}, {row['phase']}" for row in shown]
        if others:
            axis.barh(len(shown), sum(row["time_s"] for row in others) * 1e3, height=0.7, color="0.85")
            labels.append(f"{len(others)} others")
        axis.margins(x=0.14)
        rows_of_bars(axis, labels, "time in the serial step (ms)")

    handles = [Patch(color=color, label=f"bound by {bound}, by model") for bound, color in BOUND_COLORS.items()]
    handles += [
        Line2D([], [], linestyle="none", marker=marker, color=GREY, markersize=4, label=phase)
        for phase, marker in MARKERS.items()
        if any(row["phase"] == phase and row["flops"] for row in rows)
    ]
    title = marked("time; dark: its floor", is_usable(sweep, (plan_id, SERIAL, 1)))
    panels = [Panel(data, "time in the serial step (ms)", title, paint=paint_bars)]
    if any(row["flops"] for row in rows):
        panels.insert(0, Panel(data[:0], "GFLOP/s", "arithmetic under the roofs, by model", paint=paint_roofs))
        look = {"linestyle": "none", "marker": "*", "color": "0.1", "markersize": 7, "label": "step, by counters"}
        handles += [Line2D([], [], **look)] if counted else []
    height = max(2.0, 0.16 * min(len(rows), MOST_KERNELS + 1) + 0.5)
    widths = (1, 1.1) if len(panels) > 1 else None
    return Chart(panels, plan_facts(sweep, plan_id), height=height, widths=widths, handles=handles)


def _roofs(axis, sweep: Sweep, rows: list[Mapping[str, Any]], decades: float) -> None:
    """Draw the roofs of one thread, and a mark for each kernel with arithmetic, its area by its share of the time; an
    axis of more decades than `decades` has a tick for each of them alone."""
    flops_per_s, bytes_per_s = sweep.rates(1)
    ridge = flops_per_s / bytes_per_s
    placed = [row for row in rows if row["flops"] and math.isfinite(row["intensity"])]
    counted = measured_step(sweep, placed[0]["plan_id"]) if placed else {}
    intensities = [row["intensity"] for row in [*placed, *([counted] if counted else [])]] or [ridge]
    reached = [row["flops"] / row["time_s"] for row in placed] or [flops_per_s]
    low, high = min(*intensities, ridge) / 3, max(*intensities, ridge) * 3
    x = np.array([low, ridge, high])
    axis.loglog(x, np.minimum(x * bytes_per_s, flops_per_s) / 1e9, color="0.2", linewidth=1.0, zorder=1)
    axis.axvline(ridge, color="0.85", linewidth=0.6, zorder=0)
    for level, rate in sweep.machine.cache_bandwidth_bytes_per_s.items():
        if rate > bytes_per_s:
            edge = min(high, flops_per_s / rate)
            axis.loglog([low, edge], [low * rate / 1e9, edge * rate / 1e9], ":", color="0.5", linewidth=0.7, zorder=1)
            middle = math.sqrt(low * edge)
            place = {"xytext": (-2, 1), "textcoords": "offset points", "ha": "right"}
            axis.annotate(f"L{level}", (middle, middle * rate / 1e9), fontsize=5.5, color="0.4", **place)
    for row in placed:
        axis.scatter(
            row["intensity"],
            row["flops"] / row["time_s"] / 1e9,
            s=10 + 120 * row["share"],
            marker=MARKERS.get(row["phase"], "v"),
            color=[BOUND_COLORS[row["bound"]]],
            edgecolors="white",
            linewidths=0.4,
            zorder=3,
        )
    axis.set_xlim(low, high)
    axis.set_ylim(min(*reached, low * bytes_per_s) / 1.5e9, max(*reached, flops_per_s) * 1.6e-9)
    for side, (least, most) in ((axis.xaxis, axis.get_xlim()), (axis.yaxis, axis.get_ylim())):
        subs = (1, 3) if math.log10(most / least) < decades else (1,)
        side.set_major_locator(LogLocator(subs=subs, numticks=7))
        side.set_minor_locator(NullLocator())
        side.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_xlabel("operations a byte")
    axis.set_ylabel("GFLOP/s")


def caption(sweep: Sweep, plan_id: str) -> list[str]:
    """Return the caption's sentences."""
    return [
        "(a) Kernels with arithmetic; lines: one thread's roofs, dotted those of the caches; area: share of the serial "
        "step. (b) All kernels: floor over time. Operations and bytes are those that the plan declares: a floor is the "
        "longer of both at peak and bandwidth, and says nothing of why a kernel takes longer.",
        "Star: the step by hardware counters." if measured_step(sweep, plan_id) else "No counters on this machine.",
    ]
