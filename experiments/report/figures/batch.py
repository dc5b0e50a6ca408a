"""Figure `batch`: images or tokens per second and the ratio to fork-join over the batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ...analysis.estimates import EQUIVALENCE_BAND
from ...analysis.limits import BOUNDS, bound_table
from ...analysis.speeds import on_most_threads, speed_table
from ...analysis.sweep import Sweep
from ...subjects.models import SERIAL, ModelSpec
from ...tables.numbers import plural
from ..words import samples_word
from .bound_lines import bound_rows
from .chart import Chart, Panel, value_rows
from .speedup import ratio_rows
from .style import GREY, ModelStyle, model_styles

RANK, ONE_FOR = 3, "network"
ENDS = ("", "_low", "_high")


def missing(sweep: Sweep, plan_id: str) -> str:
    """Return why the figure cannot be drawn."""
    if len(sweep.siblings(plan_id, "batch")) > 1:
        return ""
    return "a figure over batches needs at least two of them, got one; run a sweep with several batches"


def rows_on_most_threads(sweep: Sweep, plan_ids: Sequence[str]) -> tuple[pd.DataFrame, int]:
    """Return the rows of `speed_table` on most threads, with the serial run's, and that number; `on_most_threads`."""
    speeds = speed_table(sweep)
    table = speeds[speeds["plan_id"].isin(plan_ids)]
    widest_rows, widest = on_most_threads(table)
    serial = table[table["model"] == SERIAL]
    return table.loc[table.index.isin([*widest_rows.index, *serial.index])].copy(), widest


def over_plans(
    sweep: Sweep,
    x: Mapping[str, Any],
    x_label: str,
    value_of: Callable[[str, Any], Any],
    label: str,
    title: str,
    facts: Sequence[str],
    places: Sequence[float] = (),
) -> Chart:
    """Return a value, computed from plan and seconds, and the ratio to fork-join of plans over their `x`, on the most
    threads."""

    def valued(rows: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
        result = [[value_of(p, s) for p, s in zip(rows["plan_id"], rows[name], strict=True)] for name in names]
        value, (low, high) = result[0], np.sort(result[1:], axis=0)  # of rates the ends are turned round
        return rows.assign(value=value, value_low=low, value_high=high, x=rows["plan_id"].map(x))

    table, widest = rows_on_most_threads(sweep, list(x))
    table = valued(table, ("time_s", "low_s", "high_s"))
    limits = bound_table(sweep)
    looks: dict = {}
    bounds = pd.DataFrame()
    if len(limits := limits[limits["plan_id"].isin(x)] if len(limits) else limits):
        limits = limits[limits["threads"] == limits["threads"].max()].copy()
        limits["x"] = limits["plan_id"].map(x)
        for name in BOUNDS:
            own = valued(limits, [f"{name}_s{end}" for end in ENDS])
            limits[[f"{name}_s{end}" for end in ENDS]] = own[["value", "value_low", "value_high"]].to_numpy()
        bounds, looks = bound_rows(limits, {*table["model"]} - {SERIAL}, "s", "x")
    if not x_label and len(bounds):
        looks = {name: ModelStyle(GREY, "|", "none") for name in list(looks)[:1]}
        bounds = bounds[bounds["model"].isin(looks)]
    panels = [
        Panel(pd.concat([value_rows(table, "value", "x"), bounds]), label, title),
        Panel(ratio_rows(table, "x"), "time / better fork-join", "below 1: faster", "ratio"),
    ]
    if not len(panels[1].rows):
        del panels[1]
    styles = {**model_styles(sweep.samples["model"]), **looks}
    return Chart(panels, [*facts, where_text(table["model"].unique(), widest)], styles, x_label, places=places)


def where_text(models: Sequence[ModelSpec], widest: int) -> str:
    """Return where the models ran: threads of the processor, a GPU, or both."""
    gpu = any(model.is_gpu for model in models)
    if gpu and all(model.is_gpu or model.is_serial for model in models):
        return "on a GPU (serial: 1 thread of the processor)" if SERIAL in models else "on a GPU"
    threads = plural(widest, "thread") + " (serial: 1)" * (SERIAL in models and widest > 1)
    return f"{threads}, and on a GPU" if gpu else threads


def _counted(sweep: Sweep, plan_id: str) -> tuple[str, int]:
    """Return what throughput counts, and how many of them a sample has: images, or tokens."""
    word = samples_word(sweep, plan_id)
    return ("tokens", sweep.records[plan_id]["sequence"]) if word == "sequences" else (word, 1)


def chart(sweep: Sweep, plan_id: str) -> Chart:
    """Return images or tokens per second and the ratio to fork-join over the batch."""
    batches = {plan: sweep.plans[plan].batch for plan in sweep.siblings(plan_id, "batch")}
    counted, each = _counted(sweep, plan_id)
    table, _ = rows_on_most_threads(sweep, list(batches))
    slowest = min(each * row["batch"] / row["time_s"] for row in table.to_dict("records"))
    scale, unit = (1e3, "thousand ") if slowest >= 1e3 else (1.0, "")
    return over_plans(
        sweep,
        batches,
        f"batch ({samples_word(sweep, plan_id)})",
        lambda p, t: batches[p] * each / t / scale,
        f"{unit}{counted} per second",
        "throughput",
        [sweep.problem_name(plan_id, "batch")],
        asked_batches(sweep, plan_id),
    )


def asked_batches(sweep: Sweep, plan_id: str) -> list[int]:
    """Return the batches that were asked for."""
    return [sweep.plans[plan].batch for plan in sweep.siblings(plan_id, "batch", requested=True)]


def caption_over(what: str) -> list[str]:
    """Return the caption's sentences; `what` describes the first panel."""
    return [
        f"(a) {what} (b) Time over that of the better fork-join form of the same plan. Bars and bands: 95 % intervals; "
        f"grey: ± {EQUIVALENCE_BAND:.0%}."
    ]


def caption(sweep: Sweep, plan_id: str) -> list[str]:
    """Return the caption's sentences."""
    return caption_over(f"{_counted(sweep, plan_id)[0].capitalize()} per second over the batch.")
