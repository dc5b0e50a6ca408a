"""Figure `gain`: what the bounds promise that taskiter gains over fork-join, and what it gains, over all plans."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ...analysis.gains import gain_table
from ...analysis.names import NETWORK
from ...analysis.statistics import CONFIDENCE
from ...analysis.study import Study
from ..words import machine_text
from .heading import header
from .style import COLORS, GREY, add_legend, new_figure, panel_title

RANK, MAIN_PLAN_ONLY = 8, True
_MARKERS = "osD^v<>Ph*X"


def missing(study: Study, plan_id: str) -> str:
    """Return why the figure cannot be drawn."""
    table = gain_table(study)
    if len(table) and table["plan_id"].nunique() > 1:
        return ""
    return (
        "gains are compared over at least two plans with serial profiles, fork-join and taskiter on two threads or "
        "more; see `forktask run predicted_gain`"
    )


def draw(study: Study, plan_id: str, column: str) -> Figure:
    """Draw measured over promised gains of the largest number of threads, a point for each plan."""
    table = gain_table(study)
    threads = int(table["threads"].max())
    table = table[table["threads"] == threads]
    figure, (axis,) = new_figure(column, 1, panel_height=3.0)
    networks = list(dict.fromkeys(study.records[p][NETWORK] for p in table["plan_id"]))
    batches = sorted({study.records[p]["batch"] for p in table["plan_id"]})
    for row in table.to_dict("records"):
        record = study.records[row["plan_id"]]
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
    values = table[["promised", "gained"]].to_numpy().ravel()
    low, high = min(0.95, values.min() / 1.05), max(1.1, values.max() * 1.05)
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
    header(figure, study, [f"{len(table)} plans"], column)
    return figure


def _reach(row: dict, name: str) -> np.ndarray:
    """Return the distances of an interval's ends, shape (2, 1); zero without an interval."""
    value = row[name]
    ends = [row[f"{name}_low"], row[f"{name}_high"]]
    low, high = (end if np.isfinite(end) else value for end in ends)
    return np.array([[max(value - low, 0.0)], [max(high - value, 0.0)]])


def caption(study: Study, plan_id: str) -> list[str]:
    """Return the caption's sentences."""
    return [
        "Each point is a plan: a network, a batch (markers) and a granularity. Promised: the sum over loops of "
        "max(work / capacity, longest block), over max(work / capacity, maximum cycle mean), from block durations of "
        "serial runs. Gained: time of a step of the better fork-join form over that of the fastest taskiter.",
        f"Bars: {CONFIDENCE:.0%} intervals. Above the line fork-join loses more than its bound says (barriers "
        "themselves, uneven shares); below it taskiter does not reach its own bound. Below 1 taskiter is slower.",
        machine_text(study),
    ]
