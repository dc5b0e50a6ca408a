"""Figures over properties of a plan: `batch`, `granularity`, `options`, and `calls` over an argument; `run_time` of a
step and of its phases over threads, wall and busy times in one panel."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D

from ....cython_src.plan.model import PHASES
from ...analysis.accounting import BUSY, phase_table, phases_of
from ...analysis.comparisons import PER, axis_table
from ...analysis.estimates import EQUIVALENCE_BAND
from ...analysis.limits import BOUNDS, bound_table
from ...analysis.names import GRANULARITY, axis_label, value_text
from ...analysis.speeds import on_most_threads, speed_table
from ...analysis.sweep import Sweep
from ...subjects.calls import is_calls
from ...subjects.models import SERIAL, ModelSpec
from ...tables.numbers import plural
from ..words import blocks_text, plan_facts, samples_word
from .chart import Chart, Lacking, Panel, figure, over_threads, value_rows
from .speedup import bound_lines, ratio_rows
from .style import GREY, ModelStyle, model_styles

ENDS = ("", "_low", "_high")
MAX_AXES = 3  # of `options`
ELSEWHERE = ("batch", GRANULARITY)  # axes that have figures of their own


def rows_on_most_threads(sweep: Sweep, plan_ids: Sequence[str]) -> tuple[pd.DataFrame, int]:
    """Return the rows of `speed_table` on most threads, with the serial run's, and that number; `on_most_threads`."""
    speeds = speed_table(sweep)
    table = speeds[speeds["plan_id"].isin(plan_ids)]
    widest_rows, widest = on_most_threads(table)
    serial = table[table["model"] == SERIAL]
    return table.loc[table.index.isin([*widest_rows.index, *serial.index])].copy(), widest


def _over_plans(
    sweep: Sweep,
    x: Mapping[str, Any],
    x_label: str,
    value_of: Callable[[str, Any], Any],
    label: str,
    title: str,
    what: str,
    facts: Sequence[str],
    places: Sequence[float],
) -> Chart:
    """Return a value, computed from plan and seconds, and the ratio to fork-join of plans over their `x`, on the most
    threads; `what` is the first sentence of the caption."""

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
        bounds, looks = bound_lines(limits, {*table["model"]} - {SERIAL}, "s", "x")
    if not x_label and len(bounds):
        looks = {name: ModelStyle(GREY, "|", "none") for name in list(looks)[:1]}
        bounds = bounds[bounds["model"].isin(looks)]
    panels = [
        Panel(pd.concat([value_rows(table, "value", "x"), bounds]), label, title),
        Panel(ratio_rows(table, "x"), "time / better fork-join", "below 1: faster", "ratio"),
    ]
    if not len(panels[1].rows):
        del panels[1]
    caption = (
        f"(a) {what} (b) Time over that of the better fork-join form of the same plan. Bars and bands: 95 % intervals; "
        f"grey: ± {EQUIVALENCE_BAND:.0%}."
    )
    styles = {**model_styles(sweep.samples["model"], sweep.rank), **looks}
    facts = [*facts, where_text(table["model"].unique(), widest)]
    return Chart(panels, facts, styles, x_label, places=places, caption=[caption])


def where_text(models: Sequence[ModelSpec], widest: int) -> str:
    """Return where the models ran: threads of the processor, a GPU, or both."""
    gpu = any(model.is_gpu for model in models)
    if gpu and all(model.is_gpu or model.is_serial for model in models):
        return "on a GPU (serial: 1 thread of the processor)" if SERIAL in models else "on a GPU"
    threads = plural(widest, "thread") + " (serial: 1)" * (SERIAL in models and widest > 1)
    return f"{threads}, and on a GPU" if gpu else threads


@figure(3, "network")
def batch(sweep: Sweep, plan_id: str) -> Chart:
    """Return images or tokens per second and the ratio to fork-join over the batch."""
    if len(plans := sweep.siblings(plan_id, "batch")) < 2:
        raise Lacking("a figure over batches needs at least two of them, got one; run a sweep with several batches")
    batches, word = {plan: sweep.plans[plan].batch for plan in plans}, samples_word(sweep, plan_id)
    # What throughput counts, and how many of them a sample has.
    counted, each = ("tokens", sweep.records[plan_id]["sequence"]) if word == "sequences" else (word, 1)
    table, _ = rows_on_most_threads(sweep, list(batches))
    slowest = min(each * row["batch"] / row["time_s"] for row in table.to_dict("records"))
    scale, unit = (1e3, "thousand ") if slowest >= 1e3 else (1.0, "")
    return _over_plans(
        sweep,
        batches,
        f"batch ({word})",
        lambda p, t: batches[p] * each / t / scale,
        f"{unit}{counted} per second",
        "throughput",
        f"{counted.capitalize()} per second over the batch.",
        [sweep.problem_name(plan_id, "batch")],
        [sweep.plans[plan].batch for plan in sweep.siblings(plan_id, "batch", requested=True)],
    )


@figure(4, "network")
def granularity(sweep: Sweep, plan_id: str) -> Chart:
    """Return step time and the ratio to fork-join with each granularity: lines over the number of tasks where
    granularities differ in one number, else a row for each."""
    plans = sorted(sweep.siblings(plan_id, GRANULARITY), key=lambda p: sweep.plans[p].num_tasks)
    if len(plans) < 2:
        raise Lacking("a figure over granularity needs two at least, got one; run a sweep with several granularities")
    texts = {plan: value_text(sweep.records[plan][GRANULARITY]) for plan in plans}
    tasks = {plan: sweep.plans[plan].num_tasks for plan in plans}
    numbered = len({re.sub(r"\d+", "", text) for text in texts.values()}) == 1 and len({*tasks.values()}) == len(plans)
    requested = sweep.siblings(plan_id, GRANULARITY, requested=True) if numbered else ()
    return _over_plans(
        sweep,
        tasks if numbered else {plan: f"{texts[plan]} ({tasks[plan]} tasks)" for plan in plans},
        "tasks per step" if numbered else "",
        lambda _, t: t * 1e3,
        "time per step (ms)",
        "time",
        "Time of a step with each granularity.",
        [sweep.problem_name(plan_id)],
        [sweep.plans[p].num_tasks for p in requested],
    )


@figure(5, "network")
def options(sweep: Sweep, plan_id: str) -> Chart:
    """Return for each swept option times of its values, and their ratios to that of the first, on most threads."""
    near = {axis: set(sweep.siblings(plan_id, axis)) for axis in sweep.axes if axis not in ELSEWHERE}
    table, panels, shown = axis_table(sweep), [], set()
    table = table[[row["plan_id"] in near.get(row["axis"], ()) for row in table.to_dict("records")]]
    if not len(table):
        raise Lacking(
            "a figure over options needs at least two values of one, got one; run a sweep such as checkerboard"
        )
    axes = list(dict.fromkeys(table["axis"]))[:MAX_AXES]
    for axis in axes:
        rows = table[table["axis"] == axis]
        plans = [rows["baseline_plan_id"].iloc[0], *dict.fromkeys(rows["plan_id"])]
        shown.update(plans)
        times, widest = rows_on_most_threads(sweep, plans)
        names = {plan: value_text(sweep.records[plan][axis]) for plan in plans}
        serial = rows[rows["model"].map(lambda model: model.is_serial)]
        rows = pd.concat([serial, on_most_threads(rows.drop(serial.index))[0]]) if len(serial) < len(rows) else rows
        per = f" per {PER[axis]}" if axis in PER else ""
        steps = value_rows(times, "time_s", times["plan_id"].map(names), 1e3)
        panels.append(Panel(steps, "time per step (ms)", f"{axis_label(axis)}: time"))
        ratios = value_rows(rows, "ratio", "value")
        panels.append(Panel(ratios, f"time{per} / that with {rows['baseline'].iloc[0]}", "below 1: faster", "ratio"))
    facts = [
        sweep.problem_name(plan_id, axes[0] if len(axes) == 1 else ""),
        blocks_text(*(sweep.plans[p] for p in sweep.plan_ids() if p in shown)),
        where_text(times["model"].unique(), widest),
    ]
    caption = (
        f"Time with each value of {', '.join(map(axis_label, axes))}, all else equal, and over that with the first "
        f"value. Bars: 95 % intervals; grey: ± {EQUIVALENCE_BAND:.0%}. Weights are bit-identical within each plan."
    )
    return Chart(panels, facts, model_styles(sweep.samples["model"], sweep.rank), across=2, caption=[caption])


@figure(4.2, "network")
def calls(sweep: Sweep, plan_id: str) -> Chart:
    """Return times of calls over an argument that is a number, a panel for each value of the others."""
    values = {axis: {record[axis] for record in sweep.records.values()} for axis in sweep.axes}
    swept = {axis: own for axis, own in values.items() if all(isinstance(v, int | float) for v in own)}
    if not is_calls(sweep.plans[plan_id].network) or not swept:
        raise Lacking("a figure of calls needs functions with an argument of several numbers, got none; sweep one")
    x = max(swept, key=lambda name: len(swept[name]))
    table, widest = rows_on_most_threads(sweep, sweep.plan_ids())
    table["x"] = table["plan_id"].map(lambda plan: sweep.records[plan][x])
    others = table["plan_id"].map(lambda plan: sweep.problem_name(plan, x))
    panels = [
        Panel(value_rows(own, "time_s", "x", 1e6), "time per call (µs)", name) for name, own in table.groupby(others)
    ]
    caption = f"Time of a call over {axis_label(x)}. Bars and bands: 95 % intervals."
    facts = [where_text(table["model"].unique(), widest)]
    look = {"places": sorted(swept[x]), "same_scale": True, "caption": [caption]}
    return Chart(panels, facts, model_styles(sweep.samples["model"], sweep.rank), axis_label(x), **look)


SMALLEST_PHASE = 0.01  # of a step: blocks of shorter phases take hardly longer than the log's entries
HOLLOW = Line2D([], [], linestyle="none", marker="o", color=GREY, markerfacecolor="white", label="hollow: busy time")


@figure(0.4)
def run_time(sweep: Sweep, plan_id: str) -> Chart:
    """Return panels of the step and of each phase that is not too short over threads; of two numbers of threads a row
    for each model on the larger one."""
    phases, speeds = phase_table(sweep), speed_table(sweep)
    points = speeds[(speeds["plan_id"] == plan_id) & ~speeds["model"].map(lambda model: model.is_gpu)]
    several = min(2, points["threads"].max())  # one thread alone has no curve
    if not len(phases) or not (phases[phases["plan_id"] == plan_id]["threads"] >= several).any():
        raise Lacking(
            "run time of phases needs profile rows, got none; measure without --no-profile, and with more --budget"
        )
    panels = [Panel(value_rows(points, "time_s", scale=1e3), "ms", "step")]
    timed = points.merge(phases, on=["plan_id", "model", "threads"])
    timed = timed.assign(hollow=timed["timed"] == BUSY)
    for phase in (phase for phase in PHASES if phase in phases_of(sweep, plan_id)):
        if (timed[f"{phase}_s"] / timed["time_s"]).max() >= SMALLEST_PHASE:
            panels.append(Panel(value_rows(timed, f"{phase}_s", scale=1e3), "ms", phase))
    busy = bool(timed["hollow"].any())
    text = "Hollow: busy times of models whose phases overlap: time in blocks, without waiting, mean over threads."
    caption = [
        "Run time of a step and of its phases, with 95 % intervals; wall times add up to the step.",
        text if busy else "",
    ]
    look = {"places": sweep.asked_threads(plan_id), "handles": [HOLLOW] * busy, "hollow_unknown": False}
    styles, facts = model_styles(sweep.samples["model"], sweep.rank), plan_facts(sweep, plan_id)
    return over_threads(sweep, Chart(panels, facts, styles, caption=caption, **look))
