"""Figure `memory`: peak memory over the batch, planned and measured, under the machine's limit."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from ....cython_src.typed_text import format_bytes
from ...analysis.memory import LIBRARIES, memory_table
from ...analysis.names import model_rank
from ...analysis.speeds import on_most_threads
from ...analysis.sweep import Sweep
from ...subjects.memory import parse_bytes
from ...subjects.models import SERIAL
from .batch import asked_batches
from .chart import Chart, Panel, reference_rows
from .style import GREY, ModelStyle, model_styles

RANK, ONE_FOR = 3.1, "network"
PLANNED, UNFIT = "planned", "not run"
MACHINE, ALLOWED = "the machine's memory", "the run's limit"
RED, NEAR = "#c03030", 8  # a limit farther above what was measured is written next to the axis
LOOKS = {PLANNED: ModelStyle(GREY, "", "--"), UNFIT: ModelStyle(GREY, "X", "none")}
LIMITS = {MACHINE: ModelStyle(RED, "", "-"), ALLOWED: ModelStyle(RED, "", ":")}


def missing(sweep: Sweep, plan_id: str) -> str:
    """Return why the figure cannot be drawn."""
    if len(sweep.siblings(plan_id, "batch", requested=True)) > 1:
        return ""
    return "memory over batches needs at least two of them, got one; run a sweep with several batches"


def data(sweep: Sweep, plan_id: str) -> dict[str, Any]:
    """Return what is drawn: "peaks" (bytes by model and batch, on most threads and of the serial run), "planned"
    (bytes by batch, of refused plans too: buffers, task graph, and what is resident before) and "limits"."""
    table = memory_table(sweep)
    planned = {}
    for plan in sweep.siblings(plan_id, "batch", requested=True):
        measured = table.loc[table["plan_id"] == plan, "planned_bytes"]
        refused = sum(sweep.plans[plan].memory_bytes.values()) + table[LIBRARIES].median()
        planned[sweep.plans[plan].batch] = float(measured.max() if len(measured) else refused)
    own = table[table["plan_id"].isin(sweep.siblings(plan_id, "batch"))]
    own = own[(own["model"] == SERIAL) | own.index.isin(on_most_threads(own)[0].index)]
    peaks: dict[Any, dict[int, float]] = {model: {} for model in sorted(own["model"].unique(), key=model_rank)}
    for row in own.to_dict("records"):
        peaks[row["model"]][sweep.plans[row["plan_id"]].batch] = row["peak_bytes"]
    total, given = (sweep.environment.get("memory") or {}).get("total_bytes"), sweep.config.get("memory_limit")
    limits = ({MACHINE: total} if total else {}) | ({ALLOWED: parse_bytes(given)} if given else {})
    return {"peaks": peaks, "planned": dict(sorted(planned.items())), "limits": limits}


def chart(sweep: Sweep, plan_id: str) -> Chart:
    """Return the planned line, a marker for each model's peak, and the limits that lie near."""
    result = data(sweep, plan_id)
    peaks, planned = result["peaks"], result["planned"]
    rows = [reference_rows(PLANNED, list(planned), [*planned.values()])]
    rows += [reference_rows(model, list(own), [*own.values()]) for model, own in peaks.items()]
    ran = {batch for own in peaks.values() for batch in own}
    unfit = [batch for batch in planned if batch not in ran]
    rows += [reference_rows(UNFIT, unfit, [planned[batch] for batch in unfit])] if unfit else []
    most = max(size for own in (planned, *peaks.values()) for size in own.values())
    near = {name: size for name, size in result["limits"].items() if size < NEAR * most}
    rows += [reference_rows(name, [math.nan], [size]) for name, size in near.items()]
    values = pd.concat(rows)
    values[["value", "low", "high"]] /= 2**20
    names = {name: f"{name}, {format_bytes(size)}" for name, size in near.items()}
    far = [f"{name} ({format_bytes(size)})" for name, size in result["limits"].items() if name not in near]
    styles = {**model_styles(list(peaks)), **LOOKS, **LIMITS}
    facts = [sweep.problem_name(plan_id, "batch"), *([f"far below {' and '.join(far)}"] if far else [])]
    panel = Panel(values, "peak memory (MiB)")
    return Chart([panel], facts, styles, "batch", names, asked_batches(sweep, plan_id))


def caption(sweep: Sweep, plan_id: str) -> list[str]:
    """Return the caption's sentences."""
    return [
        "Most memory that was resident in a measuring process over the batch. Dashed: buffers of the plan, task graph, "
        "and Python with its libraries; beyond it are copies and what libraries allocate."
    ]
