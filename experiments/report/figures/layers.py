"""Figures of layers: `layers` has their busy time under each model, `layer_times` their time on one thread with each
form of convolutions; `losses`: where threads x wall time went in logged runs, and what makes up the gain of tasks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from msgspec import structs

from ...analysis.accounting import alike_profiles, layer_table
from ...analysis.comparisons import plans_by_value
from ...analysis.losses import LOSSES, is_undisturbed
from ...analysis.names import model_label, value_text
from ...analysis.speeds import is_usable
from ...analysis.sweep import Point, Sweep
from ...subjects.models import SERIAL, ModelSpec
from ...tables.numbers import plural
from ..words import plan_facts
from .axes import rows_of_bars
from .chart import Chart, Lacking, Panel, drawn, figure, reference_rows
from .style import COLORS, ModelStyle, in_style, marked, model_styles

MOST_TIMES, LEAST_SHARE = 18, 0.05  # layers of a figure: at most, and the least part of a step of each
FORMS = "osD^vP*X"  # markers of the forms of convolutions


def _layer_rows(tables: Mapping[Any, pd.DataFrame], usable: Mapping[Any, bool]) -> pd.DataFrame:
    """Return a row for each layer and key of some `layer_table`s; the last layer, "all", is the step."""
    times = pd.DataFrame({key: own.groupby("layer", sort=False)["time_s"].sum() for key, own in tables.items()})
    order, largest = (
        dict.fromkeys(pd.concat(tables.values())["layer"]),
        set((times / times.sum()).max(axis=1).nlargest(MOST_TIMES).loc[lambda share: share >= LEAST_SHARE].index),
    )
    step = times.sum().rename("all").to_frame().T
    table = 1e3 * pd.concat([times.loc[[layer for layer in order if layer in largest]], step])
    rows = [reference_rows(key, list(table.index), table[key].tolist()).assign(usable=usable[key]) for key in tables]
    result = pd.concat(rows)
    return result[result["value"].notna()]


@figure(1)
def layers(sweep: Sweep, plan_id: str) -> Chart:
    """Return a row for each layer and a mark for each model on most threads: busy time; the last row is the step."""
    if not any(row.plan_id == plan_id for row in sweep.profiles):
        raise Lacking(
            "a figure of layers needs profile rows, got none; measure without --no-profile, and with more --budget"
        )
    points = sorted({(r.model, r.threads) for r in sweep.profiles if r.plan_id == plan_id and sweep.shows(r.model)})
    widest = max((t for _, t in points), default=0)
    points = [p for p in points if p == (SERIAL, 1) or (p[1] == widest and alike_profiles(sweep, Point(plan_id, *p)))]
    if not points:
        raise Lacking(
            "a figure of layers needs logged runs that took as long as the timed ones, got none; measure again"
        )
    tables = {model: layer_table(sweep, plan_id, model, threads) for model, threads in points}
    rows = _layer_rows(tables, {point[0]: is_usable(sweep, (plan_id, *point)) for point in points})
    facts, styles = [*plan_facts(sweep, plan_id), plural(widest, "thread")], model_styles(list(tables), sweep.rank)
    caption = (
        f"Busy time of each layer of at least {LEAST_SHARE:.0%} of a step, summed over threads, under each model; "
        "longer than in the serial run: blocks ran slower side by side. Means over profiles. Every layer: layers.csv."
    )
    panel = Panel(rows, "busy time of a step (ms)")
    return Chart([panel], facts, styles, dodged=False, hollow_unknown=False, caption=[caption])


@figure(1.1, "network")
def layer_times(sweep: Sweep, plan_id: str) -> Chart:
    """Return a row for each layer and a mark for each form of convolutions; the last row is the step."""
    profiled = [p for p in sweep.siblings(plan_id, "conv") if sweep.profiles_of((p, SERIAL, 1))]
    plans = {value_text(value): plan for value, plan in plans_by_value(sweep, profiled, "conv").items()}
    if len(plans) < 2:
        raise Lacking(
            "times of layers need serial profiles of two forms of convolutions, got fewer; run layers or conv_forms"
        )
    tables = {value: layer_table(sweep, plan) for value, plan in plans.items()}
    rows = _layer_rows(tables, {value: is_usable(sweep, (plan, SERIAL, 1)) for value, plan in plans.items()})
    styles = {v: ModelStyle(COLORS[i % len(COLORS)], FORMS[i % len(FORMS)], "none") for i, v in enumerate(tables)}
    caption = (
        f"Time of each layer of at least {LEAST_SHARE:.0%} of a serial step, with each form of convolutions; means "
        "over profiles, scaled to the step's time. Every model's layers: layers.csv."
    )
    facts, panel = [sweep.problem_name(plan_id, "conv"), "one thread"], Panel(rows, "time in the serial step (ms)")
    return Chart([panel], facts, styles, dodged=False, hollow_unknown=False, caption=[caption])


SECONDS = (*(f"{name}_s" for name in LOSSES), "step_time_s")


@figure(2)
def losses(sweep: Sweep, plan_id: str) -> Chart:
    """Return the losses of each logged model, and their differences from fork-join."""
    if not (rows := rows_of(sweep, plan_id)):
        raise Lacking("a figure of losses needs event logs, got none; measure with `forktask compare --trace`")
    return losses_chart(rows, plan_facts(sweep, plan_id), sweep.label)


def rows_of(sweep: Sweep, plan_id: str) -> list[dict[str, Any]]:
    """Return the losses of a plan's latest logs (rows of `losses.as_rows`), models in their fixed order."""
    latest = {
        (row.model, row.threads): row for row in sweep.traces if row.plan_id == plan_id and sweep.shows(row.model)
    }
    rows = [structs.asdict(latest[key].losses) for key in sorted(latest, key=lambda key: (key[1], sweep.rank(key[0])))]
    return [{**row, "usable": is_undisturbed(row)} for row in rows]


def draw_traced(rows: Sequence[Mapping[str, Any]], column: str = "double", title: str = "") -> Figure:
    """Draw rows of `losses.as_rows` as a figure of their own."""
    with in_style():
        return drawn(losses_chart(rows, [title] if title else []), column)


def losses_chart(
    rows: Sequence[Mapping[str, Any]], facts: Sequence[str], label: Callable[[ModelSpec], str] = model_label
) -> Chart:
    """Return bars that sum to the step time, and differences from the quickest fork-join."""
    joins = [row for row in rows if row["model"].name == "forkjoin"]
    reference = min(joins, key=lambda row: row["step_time_s"], default={})
    others = [r for r in rows if r["model"].takes_tasks and r["threads"] == reference.get("threads")]
    gains = [{name: reference[name] - row[name] for name in SECONDS} for row in others]
    names = [_label(row, label) for row in rows]
    panels = [_bars(rows, names, "wall time of an iteration (ms)", "where the threads' time went")]
    caption = [
        "(a) Time of an iteration of a logged run, by what its threads did; useful: the time of the same blocks in a "
        "logged serial run."
    ]
    if others:
        names = [_label(row, label, threads=False) for row in others]
        panels.append(_bars(gains, names, "less time than fork-join (ms)", "gain over fork-join, by cause"))
        join = label(reference["model"])
        caption.append(f"(b) What each cause makes task models faster than {join} (right) or slower.")
    handles = [Patch(color=loss.color, label=loss.label) for loss in LOSSES.values()]
    handles.append(Line2D([], [], color="black", linewidth=0.9, label="measured"))
    height = max(1.6, 0.3 * len(rows) + 0.6)
    return Chart(panels, facts, height=height, widths=(1.25, 1), handles=handles, caption=caption)


def _bars(rows: Sequence[Mapping[str, Any]], names: Sequence[str], label: str, title: str) -> Panel:
    """Return a panel that stacks the losses of each row, positive ones to the right of zero and negative ones to the
    left, and marks their sum as measured."""
    data = [
        {"model": part[:-2], "x": name, "value": 1e3 * row[part], "low": math.nan, "high": math.nan}
        for row, name in zip(rows, names, strict=True)
        for part in SECONDS
    ]

    def paint(axis, column: str) -> None:
        for place, row in enumerate(rows):
            right = left = 0.0
            for name, loss in LOSSES.items():
                value = 1e3 * row[f"{name}_s"]
                start = right if value >= 0 else left
                axis.barh(place, value, left=start, height=0.7, color=loss.color, linewidth=0, zorder=2)
                right, left = (right + value, left) if value >= 0 else (right, left + value)
            total = 1e3 * row["step_time_s"]
            axis.plot([total] * 2, [place - 0.42, place + 0.42], color="black", linewidth=0.9, zorder=4)
        axis.axvline(0, color="black", linewidth=0.5)
        rows_of_bars(axis, names, label)

    return Panel(pd.DataFrame(data), label, title, paint=paint)


def _label(row: Mapping[str, Any], label: Callable[[ModelSpec], str], threads: bool = True) -> str:
    aside = f", {row['threads']} thr." if threads and row["threads"] > 1 else ""
    return marked(label(row["model"]) + aside, row["usable"])
