"""Figure `overhead`: one-time costs of each model, and the time per iteration with them spread over a run."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from ...analysis.costs import cost_table
from ...analysis.names import model_label
from ...analysis.speeds import better_forkjoin, is_usable, on_most_threads
from ...analysis.sweep import Sweep
from ...subjects.models import MODELS
from ...tables.numbers import format_time, plural
from .axes import log2_axis, power_ticks, rows_of_bars
from .heading import plan_header
from .style import COLORS, GREY, add_legend, marked, marker_look, model_handles, model_styles, new_figure, panel_title

RANK, ONE_FOR = 2, "plan"
PARTS = {
    "record": COLORS[1],
    "close": COLORS[3],
    "other preparation": "0.75",
    "first iteration beyond a steady one": COLORS[9],
}


def missing(sweep: Sweep, plan_id: str) -> str:
    """Return why the figure cannot be drawn."""
    own = sweep.samples[sweep.samples["plan_id"] == plan_id]
    if "prepare_s" in own and own["prepare_s"].notna().any():
        return ""
    return "a figure of overheads needs the cost of `prepare` in the samples, got none; measure again"


def draw(sweep: Sweep, plan_id: str, column: str) -> Figure:
    """Draw one-time costs of each model, and the mean time per iteration with them spread over n iterations."""
    costs = cost_table(sweep)
    costs, widest = on_most_threads(costs[costs["plan_id"] == plan_id])
    costs = costs[costs["prepare_s"].notna()]
    styles = model_styles(sweep.samples["model"])
    figure, (bars, curves) = new_figure(column, 2, 2.0)
    labels, seen = _draw_costs(bars, sweep, plan_id, costs, column)
    gpu = costs["model"].map(lambda model: model.is_gpu)
    places = [plural(widest, "thread")] if not all(gpu) else []
    places += ["a GPU"] if any(gpu) else []
    rows_of_bars(bars, labels, "one-time cost (ms)", f"before the steady state, {' and '.join(places)}")
    steady = costs[[not model.is_serial and not MODELS[model.name].far_behind for model in costs["model"]]]
    _draw_runs(curves, sweep, plan_id, steady, widest, styles)
    panel_title(curves, "one-time cost spread over the run")
    handles = [Patch(color=color, label=name) for name, color in PARTS.items() if name in seen]
    handles += model_handles(styles, steady["model"])
    add_legend(figure, column, handles, columns=4 if column == "double" else 2)
    plan_header(figure, sweep, plan_id, column)
    return figure


def _draw_costs(axis, sweep: Sweep, plan_id: str, costs: pd.DataFrame, column: str) -> tuple[list[str], set[str]]:
    """Draw a bar of the one-time costs of each model, and return the bars' names and the parts that some has."""
    labels, seen = [], set()
    size = 6.5 if column == "double" else max(4.5, min(6.5, 45 / len(costs)))  # no taller than a row
    for row, cost in enumerate(costs.to_dict("records")):
        record, close = np.nan_to_num([cost["record_s"], cost["close_s"]])
        rest = max(0.0, cost["prepare_s"] - record - close)
        widths = record, close, rest, cost["once_s"] - cost["prepare_s"]
        *lefts, total = 0.0, *itertools.accumulate(widths)
        seen |= {name for name, width in zip(PARTS, widths, strict=True) if width}
        look = {"height": 0.7, "color": [*PARTS.values()], "linewidth": 0}
        axis.barh(row, np.multiply(widths, 1e3), left=np.multiply(lefts, 1e3), **look)
        usable = is_usable(sweep, (plan_id, cost["model"], int(cost["threads"])))
        labels.append(marked(model_label(cost["model"]), usable))
        axis.text(total * 1e3, row, f" {format_time(total)}", va="center", ha="left", fontsize=size)
    axis.margins(x=0.2)
    axis.xaxis.set_major_locator(MaxNLocator(5))
    return labels, seen


def _draw_runs(axis, sweep: Sweep, plan_id: str, steady: pd.DataFrame, widest: int, styles) -> None:
    """Draw the time per iteration of runs of n iterations over that of the better fork-join form of its device: the two
    are not compared, one is often many times as fast as the other."""
    scales, references = {}, []
    for on_gpu, own in steady.groupby(steady["model"].map(lambda model: model.is_gpu)):
        threads = 1 if on_gpu else widest
        reference = better_forkjoin(sweep, plan_id, threads, on_gpu)
        join = (plan_id, reference, threads)
        scales[on_gpu] = sweep.typical_time(join).value if reference else own["step_s"].min()
        references.append(reference)
    scale = np.array([scales[model.is_gpu] for model in steady["model"]], dtype=float)
    n = np.logspace(0, 4, 200)
    for cost, own_scale in zip(steady.to_dict("records"), scale, strict=True):
        style = styles[cost["model"]]
        look = {"color": style.color, "linewidth": 1.1, "markevery": (25, 50), **marker_look(style)}
        axis.plot(n, (cost["once_s"] / n + cost["step_s"]) / own_scale, style.line, **look)
    ends = (steady["once_s"] / 3 + steady["step_s"]) / scale
    axis.set_xscale("log")
    low, high = (float(end) for end in (steady["step_s"] / scale).agg(["min", "max"]))
    low, high = min(0.9, 0.97 * low), max(min(4.0, max(1.3, float(ends.max()))), 1.1 * high)
    if high > 8 * low:
        log2_axis(axis, "y", power_ticks(low, high), low, high)
    else:
        axis.set_ylim(low, high)
    axis.axhline(1, color=GREY, linewidth=0.7, zorder=0)
    axis.set_xlabel("iterations run")
    axis.xaxis.set_major_locator(FixedLocator([1, 10, 100, 1000, 10000]))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,.0f}"))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_ylabel(f"time per iteration /\n{'steady fork-join' if all(references) else 'best steady'}")


def caption(sweep: Sweep, plan_id: str) -> list[str]:
    """Return the caption's sentences."""
    own = sweep.samples[sweep.samples["plan_id"] == plan_id]
    of_gpu = "; models of a GPU over gpu_forkjoin" if any(model.is_gpu for model in own["model"]) else ""
    return [
        "(a) What each model spends once, and how much longer its first iteration takes than a later one. (b) Mean "
        "time per iteration of a run of n, one-time costs included, over the step of the better fork-join "
        f"form{of_gpu}: where curves cross, costs are earned back."
    ]
