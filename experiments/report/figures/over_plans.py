"""Figures over properties of a plan: `batch`, `granularity`, `options`, `overlay`, and `memory` over the batch;
`run_time` and `run_time_over_batch` of a step and of its phases, wall and busy times in one panel."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D

from ....cython_src.plan.model import PHASES
from ....cython_src.typed_text import format_bytes
from ...analysis.accounting import BUSY, phase_table, phases_of
from ...analysis.comparisons import PER, axis_table, plans_by_value
from ...analysis.costs import LIBRARIES, memory_table
from ...analysis.estimates import EQUIVALENCE_BAND
from ...analysis.limits import BOUND_NAMES, BOUNDS, bound_of, bound_table
from ...analysis.names import GRANULARITY, INTERFERENCE, NETWORK, axis_label, model_label, model_rank, value_text
from ...analysis.speeds import on_most_threads, speed_table
from ...analysis.sweep import Sweep
from ...subjects.calls import is_calls
from ...subjects.memory import parse_bytes
from ...subjects.models import SERIAL, ModelSpec
from ...tables.numbers import plural
from ..words import blocks_text, plan_facts, samples_word
from .chart import Chart, Lacking, Panel, figure, over_threads, reference_rows, thread_axis, value_rows
from .speedup import bound_lines, ratio_rows
from .style import COLORS, GREY, LINES, ModelStyle, model_styles

ENDS = ("", "_low", "_high")
MAX_AXES = 3  # of `options`
ELSEWHERE = ("batch", GRANULARITY)  # axes that have figures of their own
# Axes of `overlay` in order: granularity, another option, one that changes the work.
RANK = {GRANULARITY: -1, "phase": 1, "sequence": 2, "batch": 3}
MAX_MODELS, FEWEST_COUNTS, MARKS = 3, 3, "osD^vPX*"  # of `overlay`
PLANNED, UNFIT = "planned", "not run"
MACHINE, ALLOWED = "the machine's memory", "the run's limit"
RED, NEAR = "#c03030", 8  # a limit farther above what was measured is written next to the axis
LOOKS = {
    PLANNED: ModelStyle(GREY, "", "--"),
    UNFIT: ModelStyle(GREY, "X", "none"),
    MACHINE: ModelStyle(RED, "", "-"),
    ALLOWED: ModelStyle(RED, "", ":"),
}


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
    styles = {**model_styles(sweep.samples["model"]), **looks}
    facts = [*facts, where_text(table["model"].unique(), widest)]
    return Chart(panels, facts, styles, x_label, places=places, caption=[caption])


def where_text(models: Sequence[ModelSpec], widest: int) -> str:
    """Return where the models ran: threads of the processor, a GPU, or both."""
    gpu = any(model.is_gpu for model in models)
    if gpu and all(model.is_gpu or model.is_serial for model in models):
        return "on a GPU (serial: 1 thread of the processor)" if SERIAL in models else "on a GPU"
    threads = plural(widest, "thread") + " (serial: 1)" * (SERIAL in models and widest > 1)
    return f"{threads}, and on a GPU" if gpu else threads


def over_batches(sweep: Sweep, plan_id: str) -> dict[str, int]:
    """Return the batches of the plans that differ in it alone; raise `Lacking` where there is only one."""
    if len(plans := sweep.siblings(plan_id, "batch")) < 2:
        raise Lacking("a figure over batches needs at least two of them, got one; run a sweep with several batches")
    return {plan: sweep.plans[plan].batch for plan in plans}


def asked_batches(sweep: Sweep, plan_id: str) -> list[int]:
    """Return the batches that were asked for."""
    return [sweep.plans[plan].batch for plan in sweep.siblings(plan_id, "batch", requested=True)]


@figure(3, "network")
def batch(sweep: Sweep, plan_id: str) -> Chart:
    """Return images or tokens per second and the ratio to fork-join over the batch."""
    batches, word = over_batches(sweep, plan_id), samples_word(sweep, plan_id)
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
        asked_batches(sweep, plan_id),
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
        panels.append(Panel(ratios, f"time{per} / with {rows['baseline'].iloc[0]}", "below 1: faster", "ratio"))
    facts = [
        sweep.problem_name(plan_id, axes[0] if len(axes) == 1 else ""),
        blocks_text(*(sweep.plans[p] for p in sweep.plan_ids() if p in shown)),
        where_text(times["model"].unique(), widest),
    ]
    caption = (
        f"Time with each value of {', '.join(map(axis_label, axes))}, all else equal, and over that with the first "
        f"value. Bars: 95 % intervals; grey: ± {EQUIVALENCE_BAND:.0%}. Weights are bit-identical within each plan."
    )
    return Chart(panels, facts, model_styles(sweep.samples["model"]), across=2, caption=[caption])


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
    return Chart(panels, facts, model_styles(sweep.samples["model"]), axis_label(x), **look)


@figure(4.5, "network")
def overlay(sweep: Sweep, plan_id: str) -> Chart:
    """Return times over threads: a panel for each model in its fastest form, fork-join and the fastest others, and a
    line for each value of an option."""
    swept = [a for a in sweep.axes if a not in (NETWORK, INTERFERENCE) and len(sweep.siblings(plan_id, a)) > 1]
    axis = min(swept, key=lambda axis: RANK.get(axis, 0), default="")
    plans = plans_by_value(sweep, sweep.siblings(plan_id, axis), axis) if axis else {}
    table = speed_table(sweep)
    other = table["model"].map(lambda m: bool(m.is_serial or m.is_gpu or m.is_peer or m.again)).astype(bool)
    table = table[table["plan_id"].isin(plans.values()) & ~other]
    counts = sorted({*table["threads"]})
    if len(counts) < FEWEST_COUNTS:
        raise Lacking(
            f"an overlay needs at least two values of an option, and a model of the processor besides serial on "
            f"{FEWEST_COUNTS} numbers of threads, got fewer; `granularity` and `options` show values on most threads"
        )
    fastest: dict[str, ModelSpec] = {}
    for model in table[table["threads"] == counts[-1]].sort_values("time_s")["model"]:
        fastest.setdefault(model.name, model)
    models = sorted(fastest.values(), key=lambda model: model.name != "forkjoin")[:MAX_MODELS]
    panels, limits, styles, names = [], bound_table(sweep), {}, {}
    for number, (value, plan) in enumerate(plans.items()):
        color, mark, line = (looks[number % len(looks)] for looks in (COLORS, MARKS, LINES))
        styles |= {plan: ModelStyle(color, mark, line), f"bound of {plan}": ModelStyle(color, "", (0, (1, 2)))}
        names |= {plan: f"{value_text(value)} ({sweep.plans[plan].num_tasks} tasks)", f"bound of {plan}": ""}
    for model in sorted(models, key=model_rank):
        own, bounds = table[table["model"] == model], limits[limits["plan_id"].isin(plans.values())]
        rows = [
            value_rows(own.assign(model=own["plan_id"]), "time_s", scale=1e3),
            value_rows(bounds.assign(model="bound of " + bounds["plan_id"]), f"{bound_of(model)}_s", scale=1e3),
        ]
        panels.append(Panel(pd.concat(rows), "time per step (ms)", model_label(model)))
    held = ", ".join(dict.fromkeys(BOUND_NAMES[bound_of(model)] for model in models))
    caption = (
        f"Time of a step with each value of {axis_label(axis)} over threads; a panel for each model, in its fastest "
        f"form. Bars and bands: 95 % intervals. Dotted: the bound of the panel's model ({held})."
    )
    label, marks = thread_axis(sweep, counts)
    look = {"places": sweep.asked_threads(plan_id), "marks": marks, "same_scale": True, "caption": [caption]}
    return Chart(panels, [sweep.problem_name(plan_id, axis)], styles, label, names, **look)


def memory_by_batch(sweep: Sweep, plan_id: str) -> tuple[dict[ModelSpec, dict[int, float]], dict[int, float]]:
    """Return peaks (bytes by model and batch, on most threads and of the serial run) and planned memory (bytes by
    batch, of refused plans too: buffers, task graph, and what is resident before)."""
    table, planned = memory_table(sweep), {}
    for plan in sweep.siblings(plan_id, "batch", requested=True):
        measured = table.loc[table["plan_id"] == plan, "planned_bytes"]
        refused = sum(sweep.plans[plan].memory_bytes.values()) + table[LIBRARIES].median()
        planned[sweep.plans[plan].batch] = float(measured.max() if len(measured) else refused)
    own = table[table["plan_id"].isin(sweep.siblings(plan_id, "batch"))]
    own = own[(own["model"] == SERIAL) | own.index.isin(on_most_threads(own)[0].index)]
    peaks: dict[ModelSpec, dict[int, float]] = {model: {} for model in sorted(own["model"].unique(), key=model_rank)}
    for row in own.to_dict("records"):
        peaks[row["model"]][sweep.plans[row["plan_id"]].batch] = row["peak_bytes"]
    return peaks, dict(sorted(planned.items()))


@figure(3.1, "network")
def memory(sweep: Sweep, plan_id: str) -> Chart:
    """Return the planned line, a marker for each model's peak, and the limits that lie near."""
    if len(batches := asked_batches(sweep, plan_id)) < 2:
        raise Lacking("memory over batches needs at least two of them, got one; run a sweep with several batches")
    peaks, planned = memory_by_batch(sweep, plan_id)
    rows = [reference_rows(name, list(own), [*own.values()]) for name, own in ((PLANNED, planned), *peaks.items())]
    ran = {size for own in peaks.values() for size in own}
    unfit = [size for size in planned if size not in ran]
    rows += [reference_rows(UNFIT, unfit, [planned[size] for size in unfit])] if unfit else []
    most = max(size for own in (planned, *peaks.values()) for size in own.values())
    total, given = (sweep.environment.get("memory") or {}).get("total_bytes"), sweep.config.get("memory_limit")
    limits = ({MACHINE: total} if total else {}) | ({ALLOWED: parse_bytes(given)} if given else {})
    near = {name: size for name, size in limits.items() if size < NEAR * most}
    rows += [reference_rows(name, [math.nan], [size]) for name, size in near.items()]
    values = pd.concat(rows)
    values[["value", "low", "high"]] /= 2**20
    far = [f"{name} ({format_bytes(size)})" for name, size in limits.items() if name not in near]
    return Chart(
        [Panel(values, "peak memory (MiB)")],
        [sweep.problem_name(plan_id, "batch"), *([f"far below {' and '.join(far)}"] if far else [])],
        {**model_styles(list(peaks)), **LOOKS},
        "batch",
        {name: f"{name}, {format_bytes(size)}" for name, size in near.items()},
        batches,
        caption=[
            "Most memory that was resident in a measuring process over the batch. Dashed: buffers of the plan, task "
            "graph, and Python with its libraries; beyond it are copies and what libraries allocate."
        ],
    )


SMALLEST_PHASE = 0.01  # of a step: blocks of shorter phases take hardly longer than the log's entries
HOLLOW = Line2D([], [], linestyle="none", marker="o", color=GREY, markerfacecolor="white", label="hollow: busy time")


def _run_time(
    sweep: Sweep, points: pd.DataFrame, x: str, facts: Sequence[str], places: Sequence[int], over: str = ""
) -> Chart:
    """Return panels of the step and of each phase that is not too short, for some rows of `speed_table`."""
    panels, phases = [Panel(value_rows(points, "time_s", x, 1e3), "ms", "step")], phase_table(sweep)
    timed = points.merge(phases, on=["plan_id", "model", "threads"]) if len(phases) else points[:0]
    timed = timed.assign(hollow=timed["timed"] == BUSY) if len(timed) else timed
    present = {phase for plan_id in points["plan_id"].unique() for phase in phases_of(sweep, plan_id)}
    for phase in (phase for phase in PHASES if phase in present and len(timed)):
        if (timed[f"{phase}_s"] / timed["time_s"]).max() >= SMALLEST_PHASE:
            panels.append(Panel(value_rows(timed, f"{phase}_s", x, 1e3), "ms", phase))
    busy = bool(len(timed) and timed["hollow"].any())
    text = "Hollow: busy times of models whose phases overlap: time in blocks, without waiting, mean over threads."
    caption = [
        f"Run time of a step and of its phases{over}, with 95 % intervals; wall times add up to the step.",
        text if busy else "",
    ]
    styles, handles = model_styles(sweep.samples["model"]), [HOLLOW] * busy
    return Chart(panels, facts, styles, places=places, handles=handles, hollow_unknown=False, caption=caption)


@figure(0.4)
def run_time(sweep: Sweep, plan_id: str) -> Chart:
    """Return times over threads; of two numbers of threads a row for each model on the larger one."""
    phases, speeds = phase_table(sweep), speed_table(sweep)
    points = speeds[(speeds["plan_id"] == plan_id) & ~speeds["model"].map(lambda model: model.is_gpu)]
    several = min(2, points["threads"].max())  # one thread alone has no curve
    if not len(phases) or not (phases[phases["plan_id"] == plan_id]["threads"] >= several).any():
        raise Lacking(
            "run time of phases needs profile rows, got none; measure without --no-profile, and with more --budget"
        )
    facts, places = plan_facts(sweep, plan_id), sweep.asked_threads(plan_id)
    return over_threads(sweep, _run_time(sweep, points, "threads", facts, places))


@figure(3.05, "network")
def run_time_over_batch(sweep: Sweep, plan_id: str) -> Chart:
    """Return times on most threads over the batch, on one scale."""
    points, widest = rows_on_most_threads(sweep, list(over_batches(sweep, plan_id)))
    facts = [sweep.problem_name(plan_id, "batch"), where_text(points["model"].unique(), widest)]
    result = _run_time(sweep, points, "batch", facts, asked_batches(sweep, plan_id), " over the batch")
    return replace(result, x=f"batch ({samples_word(sweep, plan_id)})", same_scale=True)
