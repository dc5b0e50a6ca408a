"""Two panels over a property of the plan, for the figures `batch` and `granularity`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ...analysis.estimates import EQUIVALENCE_BAND
from ...analysis.limits import BOUNDS, bound_table
from ...analysis.names import model_rank
from ...analysis.speeds import on_most_threads, speed_table
from ...analysis.sweep import Sweep
from ...subjects.models import SERIAL, ModelSpec
from ...tables.numbers import plural
from .axes import band_handle, log2_axis, model_lines, power_ticks, ratio_panel, x_axis
from .bound_lines import BoundLine, bound_handles, bound_lines, draw_bound
from .heading import header
from .style import add_legend, model_handles, model_styles, new_figure, panel_title


def drawn_rows(sweep: Sweep, plan_ids: Sequence[str]) -> tuple[pd.DataFrame, int]:
    """Return the rows of `speed_table` on most threads, with the serial run's, and that number; `on_most_threads`."""
    speeds = speed_table(sweep)
    table = speeds[speeds["plan_id"].isin(plan_ids)]
    widest_rows, widest = on_most_threads(table)
    serial = table[table["model"] == SERIAL]
    return table.loc[table.index.isin([*widest_rows.index, *serial.index])].copy(), widest


def draw_over_plans(
    sweep: Sweep,
    plan_ids: Sequence[str],
    column: str,
    axis: str,
    x_of: Callable,
    x_label: str,
    value_of: Callable,
    value_label: str,
    title: str,
    facts: Sequence[str],
) -> Figure:
    """Draw a value and the ratio to fork-join over a property of plans that differ in `axis`, on the most threads."""
    table, widest = drawn_rows(sweep, plan_ids)
    plans = [sweep.plans[plan_id] for plan_id in table["plan_id"]]
    table["x"] = [x_of(plan) for plan in plans]
    middle, *ends = (
        [value_of(plan, seconds) for plan, seconds in zip(plans, table[name], strict=True)]
        for name in ("time_s", "low_s", "high_s")
    )
    table["value"], (table["value_low"], table["value_high"]) = middle, np.sort(ends, axis=0)  # of rates: turned round
    styles = model_styles(sweep.samples["model"])
    models = sorted(table["model"].unique(), key=model_rank)
    positions = sorted(set(table["x"]))
    asked = [x_of(sweep.plans[p]) for p in sweep.siblings(plan_ids[0], axis, asked=True)]
    figure, (values, ratio) = new_figure(column, 2, 2.1)
    model_lines(values, table, models, styles, "x", "value", places=asked, band=True)
    lines = _bounds(sweep, plan_ids, x_of, value_of)
    for line in lines:
        draw_bound(values, line)
    values.set_yscale("log", base=2)
    low, high = values.get_ylim()
    log2_axis(values, "y", power_ticks(low, high), low, high)
    x_axis(values, positions, x_label)
    values.set_ylabel(value_label)
    panel_title(values, title)

    has_ratios = ratio_panel(ratio, table, models, styles, "x", asked)
    x_axis(ratio, positions, x_label)
    handles = [*model_handles(styles, models), *bound_handles(lines), *([band_handle()] if has_ratios else [])]
    add_legend(figure, column, handles)
    header(figure, sweep, [*facts, where_text(models, widest)], column)
    return figure


def where_text(models: Sequence[ModelSpec], widest: int) -> str:
    """Return where the models ran: threads of the processor, a GPU, or both."""
    gpu = any(model.is_gpu for model in models)
    if gpu and all(model.is_gpu or model.is_serial for model in models):
        return "on a GPU (serial: 1 thread of the processor)" if SERIAL in models else "on a GPU"
    threads = plural(widest, "thread")
    if SERIAL in models and widest > 1:
        threads += " (serial: 1)"
    return f"{threads}, and on a GPU" if gpu else threads


def _bounds(sweep: Sweep, plan_ids: Sequence[str], x_of: Callable, value_of: Callable) -> list[BoundLine]:
    """Return the bounds of the plans on most threads, as the values that are drawn."""
    table = bound_table(sweep)
    table = table[table["plan_id"].isin(plan_ids)]
    rows = []
    for row in table[table["threads"] == table["threads"].max()].to_dict("records"):
        plan = sweep.plans[row["plan_id"]]
        found: dict[str, float] = {"x": x_of(plan)}
        for name in BOUNDS:
            value, *ends = (value_of(plan, row[f"{name}_s{end}"]) for end in ("", "_low", "_high"))
            found |= dict(zip((f"{name}_s", f"{name}_s_low", f"{name}_s_high"), (value, *sorted(ends)), strict=True))
        rows.append(found)
    models = sweep.samples.loc[sweep.samples["plan_id"].isin(plan_ids), "model"].unique()
    return bound_lines(pd.DataFrame(rows), set(models) - {SERIAL}, "s", "x")


def caption_over_plans(what: str) -> list[str]:
    """Return the caption's sentences; `what` describes the first panel."""
    return [
        f"(a) {what} (b) Time over that of the better fork-join form of the same plan. Bars and bands: 95 % intervals; "
        f"grey: ± {EQUIVALENCE_BAND:.0%}."
    ]
