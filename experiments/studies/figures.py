"""Figures of a study: accuracy over training time; rate and memory of each way to load."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import pandas as pd
from matplotlib.lines import Line2D

from ..analysis.names import model_label
from ..report.figures.axes import cross_out
from ..report.figures.chart import Chart, Lacking, Panel, reference_rows
from ..report.figures.style import COLORS, GREY, LINES, ModelStyle, model_styles
from ..subjects.memory import parse_bytes
from ..subjects.models import ModelSpec
from ..tables.numbers import plural
from .configuration import Training, axis_text
from .running import StudyResults
from .tables import LEAST_USABLE, epoch_table, loader_table, run_table

MARKERS = "osv^D<>Ph8"
# Axes whose values say what they are; legends leave their names out.
PLAIN = ("network", "model", "optimizer")
MOST_BANDS = 3  # combinations of which bands over seeds are told apart
ALONE, WORKERS = "loading alone", "with worker processes"
TIME, ACCURACY = "training time (s)", "best validation accuracy (%)"


def _written(run: Training, besides: str = "") -> str:
    """Values of a combination as figures write them, except that of the axis `besides`."""
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


def _styles(names: Iterable[str], specs: Mapping[str, ModelSpec] | None = None) -> dict[str, ModelStyle]:
    """Return the look of each combination: that of its model, with lines for what else differs, if there are several
    models and few combinations; equal curves lie on each other, so markers tell them apart."""
    names = list(dict.fromkeys(names))
    models = [specs[name] for name in names] if specs else []
    lines = [models[:i].count(model) for i, model in enumerate(models)]  # of what differs besides the model
    if len({*models}) > 1 and max(lines) < len(LINES):
        looks = model_styles(models)
        return {name: replace(looks[m], line=LINES[i]) for name, m, i in zip(names, models, lines, strict=True)}
    return {
        name: ModelStyle(COLORS[i % len(COLORS)], MARKERS[i % len(MARKERS)], LINES[i // len(COLORS) % len(LINES)])
        for i, name in enumerate(names)
    }


def accuracy_over_time(results: StudyResults) -> Chart:
    """Return the best validation accuracy so far of every combination over training time, with bands over seeds."""
    table = epoch_table(results)
    if not len(table):
        raise Lacking("accuracy over time needs runs that were trained to their end, got none")
    text = {run.label: _written(run) or run.label for run, _ in results.done()}
    table["accuracy"] = 100 * (1 - table["error_rate"])
    curves = table.groupby(["label", "epoch"], sort=False).agg(
        x=("time_s", "median"),
        value=("accuracy", "median"),
        low=("accuracy", "min"),
        high=("accuracy", "max"),
        usable=("usable", "mean"),
    )
    lowest = curves["value"].groupby("label").quantile(0.05, interpolation="lower").min()
    ends = ["value", "low", "high"]
    curves[ends] = curves[ends].groupby("label").cummax()
    curves["usable"] = curves["usable"] >= LEAST_USABLE
    rows = curves.reset_index().assign(model=lambda rows: rows["label"].map(text))
    styles = _styles(rows["model"], {text[run.label]: run.stages[0].spec for run, _ in results.done()})
    seeds, bands = table["seed"].nunique(), len(styles) <= MOST_BANDS
    looks = {
        name: {"color": style.color, "marker": style.marker, "linestyle": style.line} for name, style in styles.items()
    }

    def paint(axis, column: str) -> None:
        for name, own in rows.groupby("model", sort=False):
            wrong = own[~own["usable"] & (own["value"].diff().fillna(1) > 0)]
            cross_out(axis, wrong["x"], wrong["value"], 2.5)
            look = {"markersize": 4, "markeredgecolor": "white", "markeredgewidth": 0.3, **looks[name]}
            axis.plot(own["x"], own["value"], drawstyle="steps-post", markevery=[len(own) - 1], **look)
            if seeds > 1 and bands:
                band = {"color": styles[name].color, "alpha": 0.15, "lw": 0, "step": "post"}
                axis.fill_between(own["x"], own["low"], own["high"], **band)
        highest = rows["high"].max()
        margin = 0.06 * max(highest - lowest, 1.0)
        axis.set(xlabel=TIME, ylabel=ACCURACY, ylim=(lowest - margin, min(highest + margin, 100.5)))
        axis.set_xlim(left=0)
        axis.margins(x=0.02)
        for accuracy in results.study.options.accuracy:
            axis.axhline(100 * accuracy, color="0.6", lw=0.6, ls=":")

    shown = f"median of {seeds} seeds" if seeds > 1 else "one seed"
    band = ", with a band from the lowest to the highest" * (seeds > 1 and bands)
    caption = (
        f"Best validation accuracy so far of each combination, {shown}{band}. Time is training alone. Models that "
        f"compute the same differ by speed alone; crosses: disturbed."
    )
    handles = [Line2D([], [], label=name, **look) for name, look in looks.items()]
    panel = Panel(rows, ACCURACY, paint=paint)
    return Chart([panel], x=TIME, styles=styles, height=2.3, handles=handles, caption=[caption])


def by_batch(results: StudyResults) -> Chart:
    """Return peak resident memory, and the time of an epoch, over the batch."""
    table = pd.DataFrame(run_table(results))
    if len(batches := results.study.axes.get("batch", ())) < 2 or not len(table):
        raise Lacking("a figure over batches needs runs of two batches at least, got fewer; list them under [train]")
    texts = {run.label: _written(run, "batch") or model_label(run.stages[0].spec) for run, _ in results.done()}
    names = table["label"].map(texts)
    peaks = reference_rows(names, table["batch"], table["peak_bytes"] / 2**20)
    times = reference_rows(names, table["batch"], table["epoch_time_s"]).assign(usable=table["usable"])
    panels = [
        Panel(peaks, "peak resident memory (MiB)", "memory", "linear"),
        Panel(times, "time of an epoch (s)", "time"),
    ]
    caption = "Peak resident memory, and median time of an epoch, over the batch; crossed out: disturbed."
    return Chart(panels, x="batch", styles=_styles(names), places=sorted(batches), caption=[caption])


def loading(results: StudyResults) -> Chart:
    """Return images per second and memory of each way to load: in the steps of a run, and alone."""
    alone, stages = loader_table(results), {run.label: run.stages[0] for run, _ in results.done()}
    if len({stage.load for stage in stages.values()}) < 2 and not alone:
        raise Lacking("a figure of loading needs runs that load in two ways, or loading alone, got neither")
    texts = {run.label: _written(run, "load") for run, _ in results.done()}
    rows = [
        {**row, "x": texts[row["label"]], "model": f"load {stages[row['label']].load}", "rate": row["samples_per_s"]}
        for row in run_table(results)
    ]
    for row in alone:
        name = f"{row['load']}, {row['way']}" + (f", {row['count']}" if row["way"] != "loop" else "")
        rows.append({**row, "x": name, "model": ALONE, "rate": row["images_per_s"]})
    table = pd.DataFrame(rows)
    peaks = reference_rows(table["model"], table["x"], table["peak_bytes"] / 2**20)
    memory = [peaks]
    if alone and len(more := table[table["workers_bytes"] > 0]):
        memory.append(reference_rows(WORKERS, more["x"], (more["peak_bytes"] + more["workers_bytes"]) / 2**20))
    styles = {
        kind: ModelStyle(COLORS[7] if kind == ALONE else COLORS[number], "o", "none")
        for number, kind in enumerate(dict.fromkeys(table["model"]))
    } | {WORKERS: ModelStyle(GREY, "|", "none")}
    if limit := next((stage.memory_limit for stage in stages.values()), ""):
        memory.append(reference_rows(f"limit, {limit}", [math.nan], [parse_bytes(limit) / 2**20]))
        styles[f"limit, {limit}"] = ModelStyle("#c03030", "", ":")
    rates = reference_rows(table["model"], table["x"], table["rate"]).assign(usable=table["usable"])
    panels = [
        Panel(rates, "images per second", "rate"),
        Panel(pd.concat(memory), "peak memory (MiB)", "memory", "linear"),
    ]
    missing = list(dict.fromkeys(text for run, _ in results.failed() if (text := _written(run))))
    caption = [
        f"{results.study.title}: images per second of training, or of loading alone (crossed out: disturbed), and the "
        f"most memory that was resident in the process.",
        f"Did not run: {'; '.join(missing)}." if missing else "",
    ]
    return Chart(panels, styles=styles, dodged=False, hollow_unknown=False, caption=caption)


def title(results: StudyResults) -> str:
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


FIGURES: dict[str, Callable[[StudyResults], Chart]] = {
    chart.__name__: chart for chart in (accuracy_over_time, by_batch, loading)
}
