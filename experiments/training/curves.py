"""Curves of a training run: CSV tables, a figure of accuracy over time, and one of a GPU over time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..results.files import csv_text, write_atomically
from ..results.training_rows import EpochRow, Summary, epoch_times
from .gpu_sampling import COLUMNS

HISTORY_COLUMNS = tuple(name for name in EpochRow.__struct_fields__ if name != "disturbance")
Samples = Mapping[int, Sequence[tuple[float, int, float]]]


def write_history(path: Path, histories: Mapping[int, Sequence[EpochRow]]) -> None:
    """Write the epochs of all seeds as CSV, without columns that are null in all rows, last whether others left the
    epoch undisturbed; replace the file as a whole."""
    rows = [row for history in histories.values() for row in history]
    names = [name for name in HISTORY_COLUMNS if any(getattr(row, name) is not None for row in rows)]
    usable = {id(row): usable for history in histories.values() for row, _, usable in epoch_times(history)}
    values = ([*(getattr(row, name) for name in names), usable[id(row)]] for row in rows)
    write_atomically(path, csv_text([*(names or HISTORY_COLUMNS), "usable"], values))


def write_gpu_samples(path: Path, samples: Samples) -> None:
    """Write the samples of all seeds as CSV."""
    write_atomically(path, csv_text(COLUMNS, ((seed, *row) for seed, rows in samples.items() for row in rows)))


def draw_accuracy(path: Path, histories: Mapping[int, Sequence[EpochRow]], summary: Summary) -> None:
    """Draw validation accuracy over training time to `path`.pdf and .png, its caption to `path`.txt.

    With several seeds the figure has their median and a band from the lowest to the highest. Points are matched by
    epoch; the time of an epoch is the median over seeds.
    """
    times = np.median([[row.time_s for row in history] for history in histories.values()], axis=0)
    accuracies = np.array([[100 * (1 - row.error_rate) for row in history] for history in histories.values()])

    def draw(axes: Sequence[Any], colors: Sequence[Any]) -> None:
        axes[0].fill_between(times, accuracies.min(axis=0), accuracies.max(axis=0), color=colors[0], alpha=0.2, lw=0)
        axes[0].plot(times, np.median(accuracies, axis=0), marker="o", markersize=3, color=colors[0])
        cross_out(axes[0], times[~usable], np.median(accuracies, axis=0)[~usable], 3)
        axes[0].set(xlabel="training time (s)", ylabel="validation accuracy (%)", title=summary.title)
        axes[0].set_xlim(left=0)

    from ..report.figures.axes import cross_out

    quiet = [[usable for *_, usable in epoch_times(history)] for history in histories.values()]
    usable = np.mean(quiet, axis=0) >= 0.5
    several = len(histories) > 1
    shown = f"Median of {len(histories)} seeds, band from lowest to highest." if several else "One seed."
    config = summary.config
    caption = (
        f"Validation accuracy over training time, evaluation not counted: {summary.title}, model {config['model']}, "
        f"{config['threads']} threads, batch {config['batch']}. {shown} Test accuracy "
        f"{100 * summary.test_accuracy_median:.2f} %."
    )
    if not usable.all():
        caption += " Crossed out: epochs that others disturbed."
    _write_figure(path, 1, draw, caption)


def draw_gpu_samples(path: Path, samples: Samples) -> None:
    """Draw memory and utilisation over time to `path`.pdf and .png, a line for each seed, the caption to .txt."""

    def draw(axes: Sequence[Any], colors: Sequence[Any]) -> None:
        for number, rows in enumerate(samples.values()):
            times, memory, utilisation = zip(*rows, strict=True)
            axes[0].plot(times, np.array(memory) / 2**20, color=colors[number % len(colors)])
            axes[1].plot(times, 100 * np.array(utilisation), color=colors[number % len(colors)])
        axes[0].set(ylabel="memory in use (MiB)", ylim=(0, None))
        axes[1].set(ylabel="utilisation (%)", xlabel="time (s)", ylim=(0, 105))

    caption = (
        "Memory in use on the GPU, by all processes, and utilisation: the part of the driver's last period in which "
        "some kernel ran, which is no efficiency. One line for each seed."
    )
    _write_figure(path, 2, draw, caption)


def _write_figure(path: Path, panels: int, draw: Callable[[Sequence[Any], Sequence[Any]], None], caption: str) -> None:
    # Only drawing loads libraries that take more memory than many networks.
    import matplotlib

    from ..report.figures.style import COLORS, new_figure, save, style_parameters

    with matplotlib.rc_context(style_parameters()):
        figure, axes = new_figure("single", panels)
        draw(axes, COLORS)
    for ending in (".pdf", ".png"):
        save(figure, path.with_suffix(ending))
    write_atomically(path.with_suffix(".txt"), caption + "\n")
