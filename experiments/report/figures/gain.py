"""Figure `gain`: what the bounds promise that taskiter gains over fork-join, and what it gains, over all plans."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ...analysis.gains import gain_table
from ...analysis.names import NETWORK
from ...analysis.speeds import is_usable
from ...analysis.sweep import Sweep
from .axes import cross_out
from .heading import header
from .style import COLORS, GREY, add_legend, new_figure, panel_title

RANK, ONE_FOR = 8, "sweep"
_MARKERS = "osD^v<>Ph*X"
# A point is left outside of the axes where it is further from the median than this factor and than so many times the
# median distance: one such point would press all others into a corner.
FAR, FAR_SPREADS = 2.0, 6.0


def missing(sweep: Sweep, plan_id: str) -> str:
    """Return why the figure cannot be drawn."""
    table = gain_table(sweep)
    if len(table) and table["plan_id"].nunique() > 1:
        return ""
    return (
        "gains are compared over at least two plans with serial profiles, fork-join and taskiter on two threads or "
        "more; see `forktask run predicted_gain`"
    )


def draw(sweep: Sweep, plan_id: str, column: str) -> Figure:
    """Draw measured over promised gains of the largest number of threads, a point for each plan."""
    table = gain_table(sweep)
    threads = int(table["threads"].max())
    table = table[table["threads"] == threads]
    figure, (axis,) = new_figure(column, 1, panel_height=3.0)
    networks = list(dict.fromkeys(sweep.records[p][NETWORK] for p in table["plan_id"]))
    batches = sorted({sweep.records[p]["batch"] for p in table["plan_id"]})
    low, high = _limits(table)
    for row in table.to_dict("records"):
        record = sweep.records[row["plan_id"]]
        axis.errorbar(
            [row["promised"]],
            [row["gained"]],
            xerr=_reach(row, "promised"),
            yerr=_reach(row, "gained"),
            color=COLORS[networks.index(record[NETWORK]) % len(COLORS)],
            marker=_MARKERS[batches.index(record["batch"]) % len(_MARKERS)],
            linestyle="none",
            elinewidth=0.6,
            markeredgecolor="white",
            markeredgewidth=0.4,
        )
        if not is_usable(sweep, (row["plan_id"], row["model"], row["threads"])):
            cross_out(axis, [row["promised"]], [row["gained"]])
        if not (low <= row["promised"] <= high and low <= row["gained"] <= high):
            _point_to(axis, row, low, high, COLORS[networks.index(record[NETWORK]) % len(COLORS)])
    axis.plot([low, high], [low, high], color="0.2", linewidth=0.8, zorder=1)
    axis.axhline(1, color=GREY, linewidth=0.6, dashes=(1, 1.2), zorder=1)
    axis.set_xlim(low, high)
    axis.set_ylim(low, high)
    axis.set_xlabel("promised: fork-join bound / max(area, cycle mean)")
    axis.set_ylabel("gained: fork-join / taskiter")
    panel_title(axis, f"{threads} threads")
    handles = [
        Line2D([], [], color=COLORS[i % len(COLORS)], marker="s", linestyle="none", label=name)
        for i, name in enumerate(networks)
    ]
    handles += [
        Line2D([], [], color="0.3", marker=_MARKERS[i % len(_MARKERS)], linestyle="none", label=f"batch {batch}")
        for i, batch in enumerate(batches)
    ]
    handles.append(Line2D([], [], color="0.2", linewidth=0.8, label="as promised"))
    add_legend(figure, column, handles)
    header(figure, sweep, [f"{len(table)} plans"], column)
    return figure


def _limits(table: pd.DataFrame) -> tuple[float, float]:
    """Return the limits of both axes: all points but those far from the others, with room for the diagonal."""
    low, high = 0.95, 1.1
    for name in ("promised", "gained"):
        logs = np.log(table[name].to_numpy(dtype=float))
        distance = np.abs(logs - np.median(logs))
        near = logs[distance <= max(math.log(FAR), FAR_SPREADS * np.median(distance))]
        low, high = min(low, np.exp(near.min()) / 1.05), max(high, np.exp(near.max()) * 1.05)
    room = 0.02 * (high - low)  # for half a marker
    return low - room, high + room


def _point_to(axis, row: dict, low: float, high: float, color) -> None:
    """Write the values of a point that lies outside of the axes where it leaves them, with an arrow, in its colour."""
    at = np.clip([row["promised"], row["gained"]], low, high)
    inwards = 0.08 * (high - low) * np.sign(at - [row["promised"], row["gained"]])
    axis.annotate(
        f"{row['promised']:.2f}; {row['gained']:.2f}",
        at,
        at + inwards,
        ha="left" if at[0] < (low + high) / 2 else "right",
        va="center",
        fontsize=6.5,
        color=color,
        arrowprops={"arrowstyle": "->", "linewidth": 0.8, "color": color, "shrinkA": 1, "shrinkB": 0},
    )


def _reach(row: dict, name: str) -> np.ndarray:
    """Return the distances of an interval's ends, shape (2, 1); zero without an interval."""
    value = row[name]
    ends = [row[f"{name}_low"], row[f"{name}_high"]]
    low, high = (end if np.isfinite(end) else value for end in ends)
    return np.array([[max(value - low, 0.0)], [max(high - value, 0.0)]])


def caption(sweep: Sweep, plan_id: str) -> list[str]:
    """Return the caption's sentences."""
    return [
        "A point is a plan. Promised: fork-join bound over max(area, cycle mean). Gained: time of the better fork-join "
        "form over that of the fastest taskiter. Above the line fork-join loses more than its bound says; below it "
        "taskiter does not reach its own. Bars: 95 % intervals; arrows: points beyond the axes."
    ]
