"""Figure `handover`: ratios to fork-join over the time of a hand-over between two CPUs, generation by generation."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from statistics import median
from typing import Any

import pandas as pd

from ...analysis.names import model_label
from ...analysis.speeds import better_forkjoin
from ...analysis.sweep import Sweep, kept
from ...results.turns import MOVED_TIMES
from ...subjects.models import ModelSpec
from .chart import Chart, Panel, reference_rows
from .heading import plan_facts
from .style import model_styles

RANK, ONE_FOR = 6.5, "plan"
NANOSECOND, MOST_NAMED = 1e-9, 4


@kept
def rows_of(sweep: Sweep, plan_id: str) -> list[dict[str, Any]]:
    """Return a row for each generation and model on most threads: model, handover_s (median over rounds), ratio (time
    over that of the better fork-join form in this generation), left_out (whether tables leave the generation out)."""
    threads = max((count for model, count in sweep.points_of(plan_id) if not model.is_gpu), default=1)
    join = better_forkjoin(sweep, plan_id, threads)
    own = sweep.samples[(sweep.samples["plan_id"] == plan_id) & (sweep.samples["threads"] == threads)]
    groups = {key: part.set_index("model")["step_time_s"] for key, part in own.groupby(["repetition", "group"])}
    moved = {(generation, group[2]) for generation, group in sweep.quiet.moved if group[0] == plan_id}
    result = []
    for row in sweep.rounds:
        key = row.repetition, row.group
        seconds = [one for one in row.handover_s if one]
        times = groups.get(key)
        if row.plan_id != plan_id or not seconds or times is None or join not in times.index:
            continue
        for model in (model for model in times.index if model != join and sweep.shows(model) and not model.is_gpu):
            ratio = times[model] / times[join]
            about = {"model": model, "handover_s": median(seconds), "left_out": key in moved}
            result.append({**about, "ratio": float(ratio)})
    return result


def _classes(sweep: Sweep, plan_id: str) -> list[list[dict[str, Any]]]:
    """Return the rows of near and of far CPUs: they part where hand-overs leap most."""
    rows = sorted(rows_of(sweep, plan_id), key=lambda row: row["handover_s"])
    leaps = [after["handover_s"] / before["handover_s"] for before, after in pairwise(rows)]
    at = 1 + leaps.index(max(leaps)) if leaps else 0
    return [rows[:at], rows[at:]]


def missing(sweep: Sweep, plan_id: str) -> str:
    """Return why the figure cannot be drawn."""
    taken = [row["handover_s"] for row in rows_of(sweep, plan_id)]
    if taken and max(taken) > MOVED_TIMES * min(taken):
        return ""
    return "ratios over hand-overs need fork-join, another model, and generations with near and with far CPUs"


def chart(sweep: Sweep, plan_id: str) -> Chart:
    """Return a marker for each generation and model, hollow where tables leave the generation out."""
    table = pd.DataFrame(rows_of(sweep, plan_id)).sort_values("model")
    about = {"hollow": table["left_out"], "x": table["handover_s"] / NANOSECOND}
    rows = reference_rows(table["model"], about["x"], table["ratio"]).assign(**about)
    styles = {m: replace(look, line="none") for m, look in model_styles(sweep.samples["model"]).items()}
    panel = Panel(rows, "time / better fork-join", "", "ratio")
    return Chart([panel], plan_facts(sweep, plan_id), styles, "hand-over of a cache line (ns)")


def caption(sweep: Sweep, plan_id: str) -> list[str]:
    """Return the caption's sentences: the ratios of near and of far CPUs, where several generations had each."""
    classes = _classes(sweep, plan_id)
    of_model: list[dict[ModelSpec, list[float]]] = [{}, {}]
    for rows, result in zip(classes, of_model, strict=True):
        for row in rows:
            result.setdefault(row["model"], []).append(row["ratio"])
    both = [model for model in sorted(of_model[0]) if min(len(result.get(model, ())) for result in of_model) > 1]
    texts = [
        f"{model_label(model)} {', '.join(f'{median(result[model]):.2f}' for result in of_model)}" for model in both
    ]
    far_ns = min(row["handover_s"] for row in classes[1]) / NANOSECOND
    medians = f"Medians near, and far (from {far_ns:.0f} ns on): {'; '.join(texts[:MOST_NAMED])}."
    return [
        "Ratio over the time of a hand-over between two CPUs; hollow: left out of tables.",
        medians if texts else "",
    ]
