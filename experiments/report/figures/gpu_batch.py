"""Figure `gpu_batch`: time of an epoch over the batch, on the CPU and on a GPU."""

from __future__ import annotations

import math

from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter

from ...analysis.gpu import EPOCH_SAMPLES
from ...analysis.names import is_gpu, model_label, model_rank
from ...analysis.speeds import is_usable
from ...analysis.sweep import Sweep
from ..words import samples_word
from .axes import log2_axis, series
from .heading import header
from .style import add_legend, model_handles, model_styles, new_figure, panel_title

RANK, ONE_FOR = 10, "network"


def missing(sweep: Sweep, plan_id: str) -> str:
    """Return why the figure cannot be drawn."""
    if not any(is_gpu(model) for model in sweep.samples["model"]):
        return "a figure over devices needs models of a GPU, got none; add gpu_taskiter to --models"
    if len(sweep.siblings(plan_id, "batch")) > 1:
        return ""
    return "a figure over batches needs at least two of them, got one; run a sweep with several batches"


def _lines(sweep: Sweep, plan_id: str) -> dict[str, dict[int, tuple[float, float, float, bool]]]:
    """Return seconds of an epoch with their interval, and whether they are usable, by model and batch, on the number of
    threads that is fastest."""
    lines: dict[str, dict[int, tuple[float, float, float, bool]]] = {}
    for plan in sweep.siblings(plan_id, "batch"):
        batch = sweep.plans[plan].batch
        for model, threads in sweep.points_of(plan):
            typical, line = sweep.typical_time((plan, model, threads)), lines.setdefault(model, {})
            if typical.value < line.get(batch, (math.inf,))[0] * batch / EPOCH_SAMPLES:
                seconds = [s * EPOCH_SAMPLES / batch for s in (typical.value, typical.low, typical.high)]
                line[batch] = (*seconds, is_usable(sweep, (plan, model, threads)))
    return lines


def draw(sweep: Sweep, plan_id: str, column: str) -> Figure:
    """Draw the time of an epoch over the batch, a line for each model."""
    lines = _lines(sweep, plan_id)
    styles, models = model_styles(sweep.samples["model"]), sorted(lines, key=model_rank)
    batches = sorted({batch for line in lines.values() for batch in line})
    asked = sorted({sweep.plans[plan].batch for plan in sweep.siblings(plan_id, "batch", asked=True)})
    figure, (axis,) = new_figure(column, 1, 2.6)
    for model in models:
        found = [lines[model].get(batch, (math.nan, math.nan, math.nan, True)) for batch in asked]
        *columns, usable = zip(*found, strict=True)
        series(axis, asked, *columns, styles[model], model_label(model), usable=usable)
    axis.set_yscale("log")
    axis.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    log2_axis(axis, "x", batches, batches[0] / 1.2, batches[-1] * 1.2)
    axis.set_xlabel("batch")
    axis.set_ylabel(f"seconds for {EPOCH_SAMPLES:,} {samples_word(sweep, plan_id)}")
    panel_title(axis, "time of an epoch")
    add_legend(figure, column, model_handles(styles, models))
    header(figure, sweep, [sweep.problem_name(plan_id, "batch"), f"batches {', '.join(map(str, batches))}"], column)
    return figure


def caption(sweep: Sweep, plan_id: str) -> list[str]:
    """Return the caption's sentences."""
    several = max(threads for _, threads in sweep.points_of(plan_id)) > 1
    return [
        f"Time of an epoch of {EPOCH_SAMPLES:,} {samples_word(sweep, plan_id)} over the batch, from step times alone.",
        "Models of several threads: on the fastest number." if several else "",
    ]
