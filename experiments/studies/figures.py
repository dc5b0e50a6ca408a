"""Figures of a study: accuracy over epochs and over time, and memory and time by batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from ..report.figures.axes import with_gaps
from ..report.figures.style import COLORS, LINES, add_legend, new_figure, panel_title
from ..training.phase_times import BUSY
from ..training.phase_times import COLUMNS as PHASE_COLUMNS
from .tables import epoch_table, run_table

MARKERS = "osv^D<>Ph8"
# Axes whose values say what they are; legends leave their names out.
PLAIN = ("network", "model", "optimizer")


def _written(axes: Mapping[str, Any]) -> str:
    """Values of a combination as figures write them."""
    return ", ".join(
        str(value) if name in PLAIN else f"{name.replace('_', ' ')} {value}" for name, value in axes.items()
    )


def _legend_labels(results: Any) -> dict[str, str]:
    """Label of each combination -> how figures write it."""
    return {run.label: _written(run.axes) or run.label for run, _ in results.done()}


def _styles(labels: list[str]) -> dict[str, dict[str, Any]]:
    """Colour, marker and line of each combination; equal curves lie on each other, so markers tell them apart."""
    return {
        label: {
            "color": COLORS[i % len(COLORS)],
            "marker": MARKERS[i % len(MARKERS)],
            "linestyle": LINES[i // len(COLORS) % len(LINES)],
        }
        for i, label in enumerate(labels)
    }


def accuracy_over_time(results: Any) -> tuple[Figure, str] | None:
    """Validation accuracy of every combination over epochs, with bands over seeds, and over training time."""
    table = epoch_table(results)
    if not len(table):
        return None
    table["accuracy"] = 100 * (1 - table["error_rate"])
    figure, axes = new_figure("double", 2, 2.3)
    styles = _styles(list(dict.fromkeys(table["label"])))
    bands, lowest = set(), 100.0
    for i, (label, group) in enumerate(table.groupby("label", sort=False)):
        by_epoch = group.groupby("epoch").agg(
            time_s=("time_s", "median"),
            accuracy=("accuracy", "median"),
            low=("accuracy", "min"),
            high=("accuracy", "max"),
        )
        lowest = min(lowest, by_epoch["accuracy"].quantile(0.05, interpolation="lower"))
        marked = [*range(i % min(len(styles), len(by_epoch)), len(by_epoch), len(styles))]
        for axis, x, points in (
            (axes[0], by_epoch.index.to_numpy(), marked),
            (axes[1], by_epoch["time_s"].to_numpy(), sorted({*marked, len(by_epoch) - 1})),
        ):
            axis.plot(
                x,
                by_epoch["accuracy"],
                markersize=4,
                markeredgecolor="white",
                markeredgewidth=0.3,
                markevery=points,
                **styles[label],
            )
        band = by_epoch["low"].to_numpy().tobytes() + by_epoch["high"].to_numpy().tobytes()
        if group["seed"].nunique() > 1 and band not in bands:
            bands.add(band)
            _band(axes[0], by_epoch.index, by_epoch, styles[label]["color"])
        if group["seed"].nunique() > 1:
            _band(axes[1], by_epoch["time_s"], by_epoch, styles[label]["color"])
    for axis, title, unit in zip(
        axes, ("over epochs", "over training time"), ("epochs", "training time (s)"), strict=True
    ):
        panel_title(axis, title)
        axis.set_xlabel(unit)
        axis.set_xlim(left=0)
        axis.margins(x=0.02)
        axis.set_ylim(bottom=lowest - 0.08 * (100 - lowest), top=100.5)
        for accuracy in results.study.options.accuracy:
            axis.axhline(100 * accuracy, color="0.6", lw=0.6, ls=":")
    axes[0].xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[0].set_ylabel("validation accuracy (%)")
    said = _legend_labels(results)
    handles = [Line2D([], [], label=said[label], **style) for label, style in styles.items()]
    add_legend(figure, "double", handles, columns=3)
    seeds = table["seed"].nunique()
    shown = f"median of {seeds} seeds, with a band from the lowest to the highest" if seeds > 1 else "one seed"
    return figure, (
        f"{results.study.title}: validation accuracy of each combination, {shown}. Time is training alone, evaluation "
        f"not counted. Curves of models that compute the same lie on each other in (a), and their markers take turns; "
        f"in (b) they differ by speed. The axis leaves out the lowest of many epochs."
    )


def _band(axis: Any, x: Any, by_epoch: pd.DataFrame, color: str) -> None:
    """The accuracies of all seeds in each epoch; over time at the median of the seeds' times."""
    axis.fill_between(x, by_epoch["low"], by_epoch["high"], color=color, alpha=0.2, lw=0)


def by_batch(results: Any) -> tuple[Figure, str] | None:
    """Peak resident memory and time per epoch over the batch."""
    table = pd.DataFrame(run_table(results))
    if "batch" not in results.study.axes or not len(table):
        return None
    others = [name for name in results.study.axes if name != "batch"]
    table["line"] = [_written({name: row[name] for name in others}) or "all" for _, row in table.iterrows()]
    figure, axes = new_figure("double", 2, 2.3)
    styles = _styles(list(dict.fromkeys(table["line"])))
    for line, group in table.sort_values("batch").groupby("line", sort=False):
        group = with_gaps(group, "batch", results.study.axes["batch"])  # of batches that did not run or not fit
        for axis, values in zip(axes, (group["peak_bytes"] / 2**20, group["epoch_time_s"]), strict=True):
            axis.plot(group["batch"], values, markersize=3.5, **styles[line])
    batches = sorted(table["batch"].unique())
    for axis, title, unit in zip(
        axes, ("memory", "time"), ("peak resident memory (MiB)", "time of an epoch (s)"), strict=True
    ):
        panel_title(axis, title)
        axis.set_xscale("log", base=2)
        axis.set_xticks(batches, [str(batch) for batch in batches])
        axis.minorticks_off()
        axis.set_ylim(0, 1.06 * axis.dataLim.ymax)
        axis.set(xlabel="batch", ylabel=unit)
    add_legend(figure, "double", [Line2D([], [], label=line, **style) for line, style in styles.items()], columns=3)
    missing = sorted({int(run.axes["batch"]) for run, _ in results.failed()} - set(np.array(batches).tolist()))
    note = f" Did not run: batch {', '.join(map(str, missing))}." if missing else ""
    return figure, f"{results.study.title}: peak resident memory and time of an epoch over the batch.{note}"


def phases(results: Any) -> tuple[Figure, str] | None:
    """Time of an epoch and its phases, of every combination."""
    table = [row for row in run_table(results) if row["phases_timed"]]
    names = [name for name in PHASE_COLUMNS if any(row.get(name, 0.0) > 0 for row in table)]
    if not names:
        return None
    figure, (axis,) = new_figure("double", 1, 0.6 + 0.19 * len(table))
    axis.set_title("")  # a single panel needs no letter
    left = np.zeros(len(table))
    for name, color in zip(names, COLORS, strict=False):
        widths = np.array([row.get(name, 0.0) for row in table])
        axis.barh(np.arange(len(table)), widths, left=left, color=color, height=0.7, label=name[:-2])
        left += widths
    rest = np.maximum([row["epoch_time_s"] for row in table] - left, 0)
    axis.barh(np.arange(len(table)), rest, left=left, color="0.88", height=0.7, label="waiting and runtime")
    said = _legend_labels(results)
    axis.set_yticks(range(len(table)), [said[row["label"]] + " *" * (row["phases_timed"] == BUSY) for row in table])
    axis.invert_yaxis()
    axis.set(xlabel="time of an epoch (s)", xlim=(0, None))
    add_legend(figure, "double", axis.get_legend_handles_labels()[0], columns=len(names) + 1)
    return figure, (
        f"{results.study.title}: phases of an epoch, means over epochs, medians over seeds. Wall times of models that "
        f"wait between phases; * busy times, mean over threads, of models whose phases run into each other."
    )


FIGURES: dict[str, Callable[[Any], tuple[Figure, str] | None]] = {
    "accuracy_over_time": accuracy_over_time,
    "by_batch": by_batch,
    "phases": phases,
}
