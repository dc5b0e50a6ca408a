"""Figure `losses`: where threads x wall time went in logged runs, and what makes up the gain of tasks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from msgspec import structs

from ...analysis.losses import LOSSES, is_undisturbed
from ...analysis.names import model_label, model_rank
from ...analysis.sweep import Sweep
from ..words import plan_facts
from .axes import rows_of_bars
from .chart import Chart, Lacking, Panel, drawn, figure
from .style import in_style, marked

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
