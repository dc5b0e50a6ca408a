"""Figure `speedup`: speedup, efficiency, and the ratio of each task model to the better fork-join form."""

from __future__ import annotations

import math

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ...analysis.estimates import EQUIVALENCE_BAND
from ...analysis.limits import bound_table
from ...analysis.names import model_label, model_rank
from ...analysis.speeds import best_serial, raw_ratios, speed_table
from ...analysis.sweep import Sweep
from ...subjects.models import SERIAL
from .axes import band_handle, draw_across, mark_places, name_those_below, ratio_panel, raw_dots, say_why_empty, x_axis
from .bound_lines import BoundLine, bound_handles, bound_lines
from .heading import plan_header
from .over_threads import draw_pair, ideal_handle, limit_pairs
from .style import GREY, add_legend, model_handles, model_styles, new_figure, panel_title

RANK, ONE_FOR = 0, "plan"


def missing(sweep: Sweep, plan_id: str) -> str:
    """Return why the figure cannot be drawn."""
    if best_serial(sweep, plan_id):
        return ""
    return "a speedup needs serial runs of the same network and batch, got none; measure `serial` too"


def draw(sweep: Sweep, plan_id: str, column: str) -> Figure:
    """Draw speedup, efficiency, and the ratio of each task model to the better fork-join form."""
    speeds = speed_table(sweep)
    own = speeds[speeds["plan_id"] == plan_id]
    styles, of_gpu = model_styles(sweep.samples["model"]), own["model"].map(lambda model: model.is_gpu)
    table, accelerated = own[~of_gpu], own[of_gpu]
    models = [m for m in sorted(table["model"].unique(), key=model_rank) if not m.is_serial]
    counts, asked, bounds = sorted({1, *table["threads"]}), sweep.asked_threads(plan_id), _bounds(sweep, plan_id)
    figure, (speedup, efficiency, ratio) = new_figure(column, 3)
    lines = [(line, GREY) for line in bounds]
    beside = draw_pair((speedup, efficiency), table, models, styles, counts, lines, band=True, places=asked)
    for model, threads in table.loc[table["model"].isin(models), ["model", "threads"]].itertuples(index=False):
        raw, color = raw_ratios(sweep, plan_id, model, int(threads)), styles[model].color
        raw_dots(speedup, threads, raw, color)
        raw_dots(efficiency, threads * beside[model], raw / threads, color)
    # A model with workers on the host too stands at its best number of them.
    accelerated = accelerated.sort_values("speedup").drop_duplicates("model", keep="last")
    if not models:
        reason = "models of a GPU\nhave none" if len(accelerated) else "no model besides serial\nhas a valid sample"
        for axis in (efficiency, *([] if len(accelerated) else [speedup])):
            say_why_empty(axis, reason)
    draw_across(speedup, accelerated, "speedup", styles)
    shown = own[own["model"] != SERIAL].copy()
    shown.loc[shown["model"].map(lambda model: model.is_gpu), ["efficiency", "efficiency_high"]] = math.nan
    low = limit_pairs([(speedup, efficiency)], shown, counts)
    named = pd.concat([table[table["model"].isin(models)], accelerated.assign(threads=1)])
    name_those_below(speedup, named, low, styles)
    panel_title(speedup, "over best serial")
    panel_title(efficiency, "speedup / threads")
    has_ratios = ratio_panel(ratio, table, models, styles, "threads", asked, accelerated)
    x_axis(ratio, counts, "threads")
    mark_places(sweep, (speedup, efficiency, ratio), counts)

    handles = model_handles(styles, models)
    handles += [
        Line2D([], [], color=styles[m].color, linestyle=styles[m].line, linewidth=0.9, label=model_label(m))
        for m in sorted(accelerated["model"], key=model_rank)
    ]
    handles += [ideal_handle(), *bound_handles(bounds), *([band_handle()] if has_ratios else [])]
    add_legend(figure, column, handles)
    plan_header(figure, sweep, plan_id, column)
    return figure


def _bounds(sweep: Sweep, plan_id: str) -> list[BoundLine]:
    limits = bound_table(sweep)
    models = sweep.samples.loc[sweep.samples["plan_id"] == plan_id, "model"].unique()
    return bound_lines(limits[limits["plan_id"] == plan_id], set(models) - {SERIAL})


def caption(sweep: Sweep, plan_id: str) -> list[str]:
    """Return the caption's sentences."""
    gpu = any(model.is_gpu for model in sweep.samples["model"])
    return [
        "(a) Speedup over the fastest serial run, (b) speedup over threads, (c) time over that of the better fork-join "
        f"form. Bars and bands: 95 % intervals; dots: generations; grey: ± {EQUIVALENCE_BAND:.0%}.",
        "Lines across: models of a GPU, in (c) over gpu_forkjoin." if gpu else "",
    ]
