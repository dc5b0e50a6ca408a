"""Figure `memory`: peak memory over the batch, planned and measured, under the machine's limit."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from ....cython_src.typed_text import format_bytes
from ...analysis.memory import LIBRARIES, memory_table
from ...analysis.names import model_rank
from ...analysis.speeds import on_most_threads
from ...analysis.sweep import Sweep
from ...subjects.memory import parse_bytes
from ...subjects.models import SERIAL
from .axes import log2_axis, nested_size, power_ticks, series, x_axis
from .heading import write_lines
from .style import GREY, add_legend, model_handles, model_styles, new_figure

RANK, ONE_FOR = 3.1, "network"
PLANNED = {"color": GREY, "linestyle": "--", "linewidth": 0.9}
UNFIT = {"linestyle": "none", "marker": "x", "color": GREY, "markersize": 5}
LIMIT = {"color": "#c03030", "linewidth": 1.0}
MACHINE, ALLOWED = "the machine's memory", "the run's limit"
LINES = {MACHINE: "-", ALLOWED: ":"}


def missing(sweep: Sweep, plan_id: str) -> str:
    """Return why the figure cannot be drawn."""
    if len(sweep.siblings(plan_id, "batch", asked=True)) > 1:
        return ""
    return "memory over batches needs at least two of them, got one; run a sweep with several batches"


def data(sweep: Sweep, plan_id: str) -> dict[str, Any]:
    """Return what is drawn: "title", "peaks" (bytes by model and batch, on most threads and of the serial run),
    "planned" (bytes by batch, of refused plans too: buffers, task graph, and what is resident before) and "limits"."""
    table = memory_table(sweep)
    planned = {}
    for plan in sweep.siblings(plan_id, "batch", asked=True):
        measured = table.loc[table["plan_id"] == plan, "planned_bytes"]
        refused = sum(sweep.plans[plan].memory_bytes.values()) + table[LIBRARIES].median()
        planned[sweep.plans[plan].batch] = float(measured.max() if len(measured) else refused)
    own = table[table["plan_id"].isin(sweep.siblings(plan_id, "batch"))]
    own = own[(own["model"] == SERIAL) | own.index.isin(on_most_threads(own)[0].index)]
    peaks: dict[str, dict[int, float]] = {model: {} for model in sorted(own["model"].unique(), key=model_rank)}
    for row in own.to_dict("records"):
        peaks[row["model"]][sweep.plans[row["plan_id"]].batch] = row["peak_bytes"]
    total, given = (sweep.environment.get("memory") or {}).get("total_bytes"), sweep.config.get("memory_limit")
    limits = ({MACHINE: total} if total else {}) | ({ALLOWED: parse_bytes(given)} if given else {})
    title = sweep.problem_name(plan_id, "batch")
    return {"title": title, "peaks": peaks, "planned": dict(sorted(planned.items())), "limits": limits}


def draw(sweep: Sweep, plan_id: str, column: str) -> Figure:
    """Draw the planned line, a marker for each model's peak, and the limits."""
    found = data(sweep, plan_id)
    peaks, planned = found["peaks"], found["planned"]
    styles = model_styles(list(peaks))
    figure, (axis,) = new_figure(column, 1, 2.2)
    axis.set_title("")  # a single panel needs no letter
    axis.plot(list(planned), [size / 2**20 for size in planned.values()], **PLANNED)
    for number, (model, of_model) in enumerate(peaks.items()):
        values = np.array([of_model.get(batch, np.nan) for batch in planned]) / 2**20
        nothing = np.full(len(values), np.nan)
        look = {"size": nested_size(number, len(peaks))}
        series(axis, list(planned), values, nothing, nothing, styles[model], band=True, **look)
    ran = {batch for of_model in peaks.values() for batch in of_model}
    unfit = [batch for batch in planned if batch not in ran]
    axis.plot(unfit, [planned[batch] / 2**20 for batch in unfit], **UNFIT)
    for name, size in found["limits"].items():
        axis.axhline(size / 2**20, linestyle=LINES[name], **LIMIT)
    of_models = [size for of_model in peaks.values() for size in of_model.values()]
    every = [size / 2**20 for size in (*of_models, *planned.values(), *found["limits"].values())]
    log2_axis(axis, "y", power_ticks(min(every), max(every)), min(every) / 1.3, max(every) * 1.3)
    x_axis(axis, list(planned), "batch")
    axis.yaxis.set_major_formatter(FuncFormatter(lambda size, _: format_bytes(size * 2**20)))
    axis.set_ylabel("memory")
    handles = [*model_handles(styles, list(peaks)), Line2D([], [], label="planned", **PLANNED)]
    handles += [
        Line2D([], [], linestyle=LINES[name], label=f"{name}, {format_bytes(size)}", **LIMIT)
        for name, size in found["limits"].items()
    ]
    handles += [Line2D([], [], label="not run", **UNFIT)] if unfit else []
    add_legend(figure, column, handles)
    write_lines(figure, [f"{found['title']}; peak resident memory of a process"], column)
    return figure


def caption(sweep: Sweep, plan_id: str) -> list[str]:
    """Return the caption's sentences."""
    return [
        "Most memory that was resident in a measuring process over the batch. Dashed: buffers of the plan, task graph, "
        "and Python with its libraries; beyond it are copies and what libraries allocate."
    ]
