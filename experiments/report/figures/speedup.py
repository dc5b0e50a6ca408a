"""Figure `speedup`: speedup, efficiency, and the ratio of each task model to the better fork-join form."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from ...analysis.estimates import EQUIVALENCE_BAND
from ...analysis.limits import bound_table
from ...analysis.names import is_gpu, model_label, model_rank
from ...analysis.speeds import best_serial, raw_ratios, speed_table
from ...analysis.study import Study
from .axes import (
    dodged,
    draw_across,
    log2_axis,
    mark_physical_cores,
    name_those_below,
    nested_size,
    power_ticks,
    ratio_panel,
    raw_dots,
    series,
    speedup_limits,
    with_gaps,
    x_axis,
)
from .bound_lines import BoundLine, bound_handles, bound_lines, draw_bound
from .heading import plan_header
from .style import add_legend, model_handles, model_styles, new_figure, panel_title

RANK, ONE_FOR = 0, "plan"


def missing(study: Study, plan_id: str) -> str:
    """Return why the figure cannot be drawn."""
    if best_serial(study, plan_id):
        return ""
    return "a speedup needs serial runs of the same network and batch, got none; add `serial` to --models"


def draw(study: Study, plan_id: str, column: str) -> Figure:
    """Draw speedup, efficiency, and the ratio of each task model to the better fork-join form."""
    speeds = speed_table(study)
    table = speeds[speeds["plan_id"] == plan_id]
    styles = model_styles(study.samples["model"])
    table, accelerated = table[~table["model"].map(is_gpu)], table[table["model"].map(is_gpu)]
    models = [m for m in sorted(table["model"].unique(), key=model_rank) if m != "serial"]
    counts = sorted({1, *table["threads"]})
    bounds = _bounds(study, plan_id)
    figure, (speedup, efficiency, ratio) = new_figure(column, 3)
    # Points of (a) stand at their true x: moved along x, they would seem to lie above or below the ideal line.
    beside = dodged(table.loc[table["model"] != "serial", "threads"].tolist(), models)

    for axis, divide in ((speedup, False), (efficiency, True)):
        dodge = beside if divide else dict.fromkeys(models, 1.0)
        x = np.array(counts, dtype=float)
        if not models and (divide or not len(accelerated)):
            said = {"ha": "center", "va": "center", "transform": axis.transAxes, "fontsize": 7, "color": "0.45"}
            reason = (
                "no model besides serial\nhas a valid sample" if not len(accelerated) else "models of a GPU\nhave none"
            )
            axis.text(0.5, 0.5, reason, **said)
        if divide:
            axis.axhline(1, color="0.2", linewidth=0.8, zorder=1)
        else:
            axis.plot(x, x, color="0.2", linewidth=0.8, zorder=1)
        for line in bounds:
            draw_bound(axis, line, line.x if divide else 1.0, beside if divide else None)
        for number, model in enumerate(models):
            points = with_gaps(table[table["model"] == model], "threads", study.asked_threads(plan_id))
            size = nested_size(number, len(models)) if dodge[model] == 1 else 4.5
            prefix = "efficiency" if divide else "speedup"
            for threads in points["threads"]:
                raw = raw_ratios(study, plan_id, model, int(threads))
                raw_dots(axis, threads * dodge[model], raw / (threads if divide else 1), styles[model].color)
            series(
                axis,
                points["threads"] * dodge[model],
                points[prefix],
                points[f"{prefix}_low"],
                points[f"{prefix}_high"],
                styles[model],
                model_label(model),
                size=size,
                usable=points["usable"],
            )
        x_axis(axis, counts, "threads")
    # A model with workers on the host too stands at its best number of them.
    accelerated = accelerated.sort_values("speedup").drop_duplicates("model", keep="last")
    draw_across(speedup, accelerated, "speedup", styles)
    everywhere = speeds[(speeds["plan_id"] == plan_id) & (speeds["model"] != "serial")]
    low, high = speedup_limits(everywhere, max(counts))
    log2_axis(speedup, "y", power_ticks(low, high), low, high)
    named = pd.concat([table[table["model"].isin(models)], accelerated.assign(threads=1)])
    name_those_below(speedup, named, low, styles)
    speedup.set_ylabel("speedup")
    panel_title(speedup, "over best serial")
    top = min(
        max([1.0, *table["efficiency"], *table["efficiency_high"].dropna()]), 2 * max([1.0, *table["efficiency"]])
    )
    efficiency.set_ylim(0, top * 1.06)
    efficiency.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    efficiency.set_ylabel("efficiency")
    panel_title(efficiency, "speedup / threads")

    asked = study.asked_threads(plan_id)
    has_ratios = ratio_panel(ratio, table, models, styles, "threads", asked, accelerated)
    x_axis(ratio, counts, "threads")
    ratio.set_ylabel("time / better fork-join")
    panel_title(ratio, "below 1: faster")
    mark_physical_cores(study, (speedup, efficiency, ratio), counts)

    handles = model_handles(styles, models)
    handles += [
        Line2D([], [], color=styles[m].color, linestyle=styles[m].line, linewidth=0.9, label=model_label(m))
        for m in sorted(accelerated["model"], key=model_rank)
    ]
    handles.append(Line2D([], [], color="0.2", linewidth=0.8, label="ideal"))
    handles += bound_handles(bounds)
    if has_ratios:
        handles.append(Patch(color="0.88", label=f"± {EQUIVALENCE_BAND:.0%}"))
    add_legend(figure, column, handles)
    plan_header(figure, study, plan_id, column)
    return figure


def _bounds(study: Study, plan_id: str) -> list[BoundLine]:
    limits = bound_table(study)
    models = study.samples.loc[study.samples["plan_id"] == plan_id, "model"].unique()
    return bound_lines(limits[limits["plan_id"] == plan_id], set(models) - {"serial"})


def caption(study: Study, plan_id: str) -> list[str]:
    """Return the caption's sentences."""
    gpu = any(map(is_gpu, study.samples["model"]))
    return [
        "(a) Speedup over the fastest serial run, (b) speedup over threads, (c) time over that of the better fork-join "
        f"form. Bars and bands: 95 % intervals; dots: generations; grey: below {EQUIVALENCE_BAND:.0%}.",
        "Lines across: models of a GPU, in (c) over gpu_forkjoin." if gpu else "",
    ]
