"""Figures of a study: accuracy over epochs and over time, and memory and time by batch."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ..analysis.names import model_label
from ..report.figures.axes import cross_out, decimal_ticks, log2_axis
from ..report.figures.style import COLORS, LINES, add_legend, marked, new_figure, panel_title
from ..subjects.memory import parse_bytes
from ..tables.numbers import plural
from ..training.phase_times import BUSY
from ..training.phase_times import COLUMNS as PHASE_COLUMNS
from .configuration import Training, axis_text
from .tables import LEAST_USABLE, epoch_table, loader_table, run_table

MARKERS = "osv^D<>Ph8"
# Axes whose values say what they are; legends leave their names out.
PLAIN = ("network", "model", "optimizer")
MOST_BANDS = 3  # combinations of which bands over seeds are told apart
ALONE = "alone"  # loading in no step


def _written(run: Training, besides: str = "") -> str:
    """Values of a combination as figures write them, but that of an axis which is told `besides`."""
    texts = {name: _value_text(run, name) for name in run.axes if name != besides}
    return ", ".join(text if name in PLAIN else f"{name.replace('_', ' ')} {text}" for name, text in texts.items())


def _value_text(run: Training, name: str) -> str:
    """A value of an axis; of a training's own parameters the folder, since all are called alike."""
    value = run.axes[name]
    if name == "model":
        return model_label(run.stages[0].spec)
    if name == "start" and value:
        path = Path(value)
        return (path.parent.name if path.stem.startswith("parameters-seed-") else "") or path.stem
    return axis_text(value)


def _legend_labels(results: Any) -> dict[str, str]:
    """Label of each combination -> how figures write it."""
    return {run.label: _written(run) or run.label for run, _ in results.done()}


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


def accuracy_over_time(results: Any, column: str) -> tuple[Figure, str] | None:
    """Best validation accuracy so far of every combination over training time, with bands over seeds."""
    table = epoch_table(results)
    if not len(table):
        return None
    table["accuracy"] = 100 * (1 - table["error_rate"])
    figure, (axis,) = new_figure(column, 1, 2.3)
    styles = _styles(list(dict.fromkeys(table["label"])))
    lowest, highest = 100.0, 0.0
    for label, group in table.groupby("label", sort=False):
        by_epoch = group.groupby("epoch").agg(
            time_s=("time_s", "median"),
            accuracy=("accuracy", "median"),
            low=("accuracy", "min"),
            high=("accuracy", "max"),
            usable=("usable", "mean"),
        )
        best, low, high = (by_epoch[name].cummax() for name in ("accuracy", "low", "high"))
        rises = best.diff().fillna(1) > 0
        wrong = by_epoch[(by_epoch["usable"] < LEAST_USABLE) & rises]
        cross_out(axis, wrong["time_s"], best[wrong.index], 2.5)
        lowest = min(lowest, by_epoch["accuracy"].quantile(0.05, interpolation="lower"))
        highest = max(highest, by_epoch["high"].max())
        look = {"markersize": 4, "markeredgecolor": "white", "markeredgewidth": 0.3, **styles[label]}
        axis.plot(by_epoch["time_s"], best, drawstyle="steps-post", markevery=[len(by_epoch) - 1], **look)
        if group["seed"].nunique() > 1 and len(styles) <= MOST_BANDS:
            band = {"color": styles[label]["color"], "alpha": 0.15, "lw": 0, "step": "post"}
            axis.fill_between(by_epoch["time_s"], low, high, **band)
    margin = 0.06 * max(highest - lowest, 1.0)
    axis.set(xlabel="training time (s)", ylabel="best validation accuracy (%)")
    axis.set_xlim(left=0)
    axis.margins(x=0.02)
    axis.set_ylim(lowest - margin, min(highest + margin, 100.5))
    for accuracy in results.study.options.accuracy:
        axis.axhline(100 * accuracy, color="0.6", lw=0.6, ls=":")
    text = _legend_labels(results)
    handles = [Line2D([], [], label=text[label], **style) for label, style in styles.items()]
    add_legend(figure, column, handles, columns=3)
    seeds = table["seed"].nunique()
    band = ", with a band from the lowest to the highest" * (len(styles) <= MOST_BANDS)
    shown = f"median of {seeds} seeds{band}" if seeds > 1 else "one seed"
    return figure, (
        f"Best validation accuracy so far of each combination, {shown}. Time is training alone. Models that compute "
        f"the same differ by speed alone; crosses: disturbed."
    )


def by_batch(results: Any, column: str) -> tuple[Figure, str] | None:
    """Peak resident memory and time per epoch over the batch."""
    table = pd.DataFrame(run_table(results))
    if "batch" not in results.study.axes or not len(table):
        return None
    runs = {run.label: run for run, _ in results.done()}
    only = model_label(next(run for run, _ in results.done()).stages[0].spec)  # where nothing else was varied
    table["line"] = [_written(runs[label], "batch") or only for label in table["label"]]
    figure, axes = new_figure(column, 2, 2.3)
    styles = _styles(list(dict.fromkeys(table["line"])))
    for line, group in table.sort_values("batch").groupby("line", sort=False):
        # Lines end at batches that did not run, did not fit, or must not be used.
        group = group.set_index("batch").reindex(sorted(results.study.axes["batch"]))
        wrong = group["usable"].eq(False)
        axes[0].plot(group.index, group["peak_bytes"] / 2**20, markersize=3.5, **styles[line])
        axes[1].plot(group.index, group["epoch_time_s"].mask(wrong), markersize=3.5, **styles[line])
        apart = {**styles[line], "linestyle": "none"}
        axes[1].plot(group.index[wrong], group["epoch_time_s"][wrong], markersize=3.5, **apart)
        cross_out(axes[1], group.index[wrong], group["epoch_time_s"][wrong])
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
    add_legend(figure, column, [Line2D([], [], label=line, **style) for line, style in styles.items()], columns=3)
    missing = sorted({int(run.axes["batch"]) for run, _ in results.failed()} - set(np.array(batches).tolist()))
    note = f" Did not run: batch {', '.join(map(str, missing))}." if missing else ""
    text = "Peak resident memory, and median time of an epoch, over the batch; crossed out: most epochs were disturbed."
    return figure, text + note


def phases(results: Any, column: str) -> tuple[Figure, str] | None:
    """Time of an epoch and its phases, of every combination."""
    table = [row for row in run_table(results) if row["phases_timed"]]
    names = [name for name in PHASE_COLUMNS if any(row.get(name, 0.0) > 0 for row in table)]
    if not names:
        return None
    figure, (axis,) = new_figure(column, 1, 0.6 + 0.19 * len(table))
    left = np.zeros(len(table))
    for name, color in zip(names, COLORS, strict=False):
        widths = np.array([row.get(name, 0.0) for row in table])
        axis.barh(np.arange(len(table)), widths, left=left, color=color, height=0.7, label=name[:-2])
        left += widths
    rest = np.maximum([row["epoch_time_s"] for row in table] - left, 0)
    axis.barh(np.arange(len(table)), rest, left=left, color="0.88", height=0.7, label="waiting and runtime")
    text = _legend_labels(results)
    names = [text[row["label"]] + (" *" if row["phases_timed"] == BUSY else "") for row in table]
    axis.set_yticks(range(len(table)), [marked(name, row["usable"]) for name, row in zip(names, table, strict=True)])
    axis.invert_yaxis()
    axis.set(xlabel="time of an epoch (s)", xlim=(0, None))
    handles = axis.get_legend_handles_labels()[0]
    add_legend(figure, column, handles, columns=len(handles))
    return figure, (
        "Phases of an epoch, medians over undisturbed epochs and seeds. Wall times of models that wait between phases; "
        "*: busy times, mean over threads, of models whose phases run into each other."
    )


def loading(results: Any, column: str) -> tuple[Figure, str] | None:
    """Images per second and memory of each way to load: in the steps of a run, and alone."""
    runs, alone = run_table(results), loader_table(results)
    stages = {run.label: run.stages[0] for run, _ in results.done()}
    if len({stage.load for stage in stages.values()}) < 2 and not alone:
        return None
    texts = {run.label: _written(run, "load") for run, _ in results.done()}
    bars = []
    for row in runs:
        name, load = texts[row["label"]], stages[row["label"]].load
        bars.append((name, row["samples_per_s"], row["peak_bytes"], 0.0, load))
    for row in alone:
        name = f"{row['load']}, {row['way']}" + (f", {row['count']}" if row["way"] != "loop" else "")
        bars.append((name, row["images_per_s"], row["peak_bytes"], row["workers_bytes"], ALONE))
    kinds = list(dict.fromkeys(kind for *_, kind in bars))
    colors = {kind: COLORS[7] if kind == ALONE else COLORS[number] for number, kind in enumerate(kinds)}
    figure, axes = new_figure(column, 2, 0.35 + 0.17 * len(bars), across=2, share="all")
    places = np.arange(len(bars))
    shade = [colors[kind] for *_, kind in bars]
    rates = np.array([rate for _, rate, *_ in bars])
    low, high = 0.7 * rates.min(), 1.3 * rates.max()
    axes[0].hlines(places, low, high, color="0.92", linewidth=0.6, zorder=0)
    axes[0].scatter(rates, places, color=shade, s=16, zorder=3)
    log2_axis(axes[0], "x", decimal_ticks(low, high), low, high)
    wrong = [place for place, row in enumerate([*runs, *alone]) if not row["usable"]]
    cross_out(axes[0], [bars[place][1] for place in wrong], wrong)
    axes[1].barh(places, [peak / 2**20 for _, _, peak, *_ in bars], color=shade, height=0.5)
    left, workers = zip(*((peak / 2**20, more / 2**20) for _, _, peak, more, _ in bars), strict=True)
    axes[1].barh(places, workers, left=left, color=shade, alpha=0.45, height=0.5)
    limit = next((stage.memory_limit for stage in stages.values()), "")
    if limit:
        axes[1].axvline(parse_bytes(limit) / 2**20, color="#c03030", linestyle=":", linewidth=1.0)
    units = ("images per second", "peak memory (MiB)")
    for axis, title, unit in zip(axes, ("rate", "memory"), units, strict=True):
        panel_title(axis, title)
        axis.set_xlabel(unit)
        names = [textwrap.fill(name, 90 if column == "double" else 30) for name, *_ in bars]
        axis.set_yticks(places, names, linespacing=0.9, fontsize=7 if column == "double" else 6)
        axis.tick_params(axis="y", length=0, labelleft=axis is axes[0])
    axes[0].invert_yaxis()
    axes[1].set_xlim(left=0)
    words = {ALONE: "loading alone"}
    handles = [Patch(color=color, label=words.get(kind, f"load {kind}")) for kind, color in colors.items()]
    handles += [Patch(color="0.5", alpha=0.45, label="worker processes")] if any(workers) else []
    handles += [Line2D([], [], color="#c03030", linestyle=":", linewidth=1.0, label=f"limit, {limit}")] if limit else []
    add_legend(figure, column, handles)
    missing = list(dict.fromkeys(said_of for run, _ in results.failed() if (said_of := _written(run))))
    note = f" Did not run: {'; '.join(missing)}." if missing else ""
    return figure, (
        f"{results.study.title}: images per second of training, or of loading alone (crossed out: disturbed), and the "
        f"most memory that was resident in the process.{note}"
    )


def title(results: Any) -> str:
    """Return the line above the panels: what all runs of the figure have in common."""
    stages, axes = [run.stages[0] for run, _ in results.found], results.study.axes
    stage = max(stages, key=lambda stage: stage.threads)
    fewer = dict.fromkeys(model_label(other.spec) for other in stages if other.threads < stage.threads)
    facts = {
        "network": stage.network,
        "data": stage.data,
        "batch": f"batch {stage.batch}",
        "threads": plural(stage.threads, "thread") + (f" ({', '.join(fewer)}: 1)" if fewer else ""),
    }
    return ", ".join(fact for name, fact in facts.items() if name not in axes)


FIGURES: dict[str, Callable[[Any, str], tuple[Figure, str] | None]] = {
    "accuracy_over_time": accuracy_over_time,
    "by_batch": by_batch,
    "phases": phases,
    "loading": loading,
}
