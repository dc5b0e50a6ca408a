"""Figure `losses`: where threads x wall time went in logged runs, and what makes up the gain of tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from msgspec import structs

from ...analysis.losses import LOSSES, is_undisturbed
from ...analysis.names import model_label, model_rank
from ...analysis.sweep import Sweep
from .axes import rows_of_bars
from .heading import plan_header, write_lines
from .style import add_legend, finish, in_style, marked, new_figure

RANK, ONE_FOR = 2, "plan"


def missing(sweep: Sweep, plan_id: str) -> str:
    """Return why the figure cannot be drawn."""
    if any(row.plan_id == plan_id for row in sweep.traces):
        return ""
    return "a figure of losses needs event logs, got none; measure with `forktask compare --trace`"


def draw(sweep: Sweep, plan_id: str, column: str) -> Figure:
    """Draw the losses of each logged model, and their differences from fork-join."""
    figure = draw_losses(rows_of(sweep, plan_id), column)
    plan_header(figure, sweep, plan_id, column)
    return figure


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
        figure = draw_losses(rows, column)
        if title:
            write_lines(figure, [title], column)
        return finish(figure)


def draw_losses(rows: Sequence[Mapping[str, Any]], column: str) -> Figure:
    """Draw bars that sum to the step time, and differences from the quickest fork-join."""
    reference, others = compared(rows)
    panels = 2 if others else 1
    shares = {"widths": (1.25, 1), "heights": (len(rows) + 1, len(others) + 1)} if others else {}
    figure, axes = new_figure(column, panels, max(1.6, 0.3 * len(rows) + 0.6), **shares)
    _draw_bars(axes[0], rows, lambda row, name: row[name])
    labels = [_label(row) for row in rows]
    rows_of_bars(axes[0], labels, "wall time of an iteration (ms)", "where the threads' time went")
    if others:
        _draw_bars(axes[1], others, lambda row, name: reference[name] - row[name])
        labels = [_label(row, threads=False) for row in others]
        rows_of_bars(axes[1], labels, "less time an iteration than fork-join (ms)", "gain over fork-join, by cause")
    handles = [Patch(color=loss.color, label=loss.label) for loss in LOSSES.values()]
    handles.append(Line2D([], [], color="black", linewidth=0.9, label="measured"))
    add_legend(figure, column, handles, columns=4)
    return figure


def compared(rows: Sequence[Mapping[str, Any]]):
    """Return the row of the quickest fork-join run and those of task models on as many threads."""
    runs = [row for row in rows if row["model"].name == "forkjoin"]
    if not runs:
        return None, []
    reference = min(runs, key=lambda row: row["step_time_s"])
    others = [r for r in rows if r["model"].takes_tasks and r["threads"] == reference["threads"]]
    return reference, others


def _draw_bars(axis, rows: Sequence[Mapping[str, Any]], seconds: Callable[[Mapping[str, Any], str], float]) -> None:
    """Stack the losses of each row, positive ones to the right of zero and negative ones to the left, and mark their
    sum as measured."""
    for place, row in enumerate(rows):
        right = left = 0.0
        for name, loss in LOSSES.items():
            value = 1e3 * seconds(row, f"{name}_s")
            start = right if value >= 0 else left
            axis.barh(place, value, left=start, height=0.7, color=loss.color, linewidth=0, zorder=2)
            right, left = (right + value, left) if value >= 0 else (right, left + value)
        total = 1e3 * seconds(row, "step_time_s")
        axis.plot([total] * 2, [place - 0.42, place + 0.42], color="black", linewidth=0.9, zorder=4)
    axis.axvline(0, color="black", linewidth=0.5)


def _label(row: Mapping[str, Any], threads: bool = True) -> str:
    lanes = "lanes" if row["model"].name == "gpu_both" else "streams" if row["model"].is_gpu else "thr."
    aside = f", {row['threads']} {lanes}" if threads and row["threads"] > 1 else ""
    return marked(model_label(row["model"]) + aside, row["usable"])


def losses_caption(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the sentences about the bars."""
    sentences = [
        "(a) Time of an iteration of a logged run, by what its threads did; useful: the time of the same blocks in a "
        "logged serial run."
    ]
    reference, others = compared(rows)
    if others:
        sentences.append(
            f"(b) What each cause makes task models faster than {model_label(reference['model'])} (right) or slower."
        )
    return sentences


def caption(sweep: Sweep, plan_id: str) -> list[str]:
    """Return the caption's sentences."""
    return losses_caption(rows_of(sweep, plan_id))
