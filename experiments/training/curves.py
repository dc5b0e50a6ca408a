"""Curves of a training run: a CSV table, and a figure of accuracy over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..results.files import csv_text, write_atomically
from ..results.training_rows import EpochRow, Summary, epoch_times
from ..tables.numbers import plural

if TYPE_CHECKING:
    from ..report.figures.chart import Chart

HISTORY_COLUMNS = tuple(name for name in EpochRow.__struct_fields__ if name != "disturbance")


def history_table(histories: Mapping[int, Sequence[EpochRow]]) -> tuple[list[str], list[list[Any]]]:
    """Return columns and rows of the epochs of all seeds, without columns that are null in all rows, last the epoch's
    own seconds and whether others left it undisturbed."""
    rows = [row for history in histories.values() for row in history]
    names = [name for name in HISTORY_COLUMNS if any(getattr(row, name) is not None for row in rows)]
    own = {id(row): result for history in histories.values() for row, *result in epoch_times(history)}
    values = [[*(getattr(row, name) for name in names), *own[id(row)]] for row in rows]
    return [*(names or HISTORY_COLUMNS), "epoch_time_s", "usable"], values


def write_history(path: Path, histories: Mapping[int, Sequence[EpochRow]]) -> None:
    """Write `history_table` as CSV; replace the file as a whole."""
    write_atomically(path, csv_text(*history_table(histories)))


def draw_accuracy(path: Path, histories: Mapping[int, Sequence[EpochRow]], summary: Summary) -> None:
    """Draw validation accuracy over training time to `path`.pdf and .png, its caption to `path`.txt."""
    from ..report.figures.chart import drawn
    from ..report.figures.style import in_style, save

    with in_style():
        figure = drawn(chart := accuracy_chart(histories, summary), "single")
    for ending in (".pdf", ".png"):
        save(figure, path.with_suffix(ending))
    write_atomically(path.with_suffix(".txt"), chart.text + "\n")


def accuracy_chart(histories: Mapping[int, Sequence[EpochRow]], summary: Summary) -> Chart:
    """Return validation accuracy over training time.

    With several seeds the figure has their median and a band from the lowest to the highest. Points are matched by
    epoch; the time of an epoch is the median over seeds.
    """
    times = np.median([[row.time_s for row in history] for history in histories.values()], axis=0)
    accuracies = np.array([[100 * (1 - row.error_rate) for row in history] for history in histories.values()])

    # Only drawing loads libraries that take more memory than many networks.
    import pandas as pd

    from ..report.figures.axes import cross_out
    from ..report.figures.chart import Chart, Panel
    from ..report.figures.style import COLORS

    quiet = [[usable for *_, usable in epoch_times(history)] for history in histories.values()]
    usable = np.mean(quiet, axis=0) >= 0.5
    several = len(histories) > 1
    shown = f"Median of {len(histories)} seeds, band from lowest to highest." if several else "One seed."
    config = summary.config
    caption = (
        f"Validation accuracy over training time, evaluation not counted: {summary.title}, model {config['model']}, "
        f"{plural(config['threads'], 'thread')}, batch {config['batch']}. {shown} Test accuracy "
        f"{100 * summary.test_accuracy_median:.2f} %."
    )
    if not usable.all():
        caption += " Crossed out: epochs that others, or a CPU quota, disturbed."
    ends = {"value": np.median(accuracies, axis=0), "low": accuracies.min(axis=0), "high": accuracies.max(axis=0)}
    rows = pd.DataFrame({"model": config["model"], "x": times, **ends, "usable": usable})

    def paint(axis: Any, column: str) -> None:
        axis.fill_between(times, rows["low"], rows["high"], color=COLORS[0], alpha=0.2, lw=0)
        axis.plot(times, rows["value"], marker="o", markersize=3, color=COLORS[0])
        cross_out(axis, times[~usable], rows["value"][~usable], 3)
        axis.set(xlabel="training time (s)", ylabel="validation accuracy (%)")
        axis.set_xlim(left=0)

    panel = Panel(rows, "validation accuracy (%)", summary.title, paint=paint)
    return Chart([panel], x="training time (s)", caption=[caption])
