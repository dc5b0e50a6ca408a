"""Tables and figure of `forktask simulate`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from ...cython_src.errors import UsageError
from ..analysis.load import load
from ..analysis.names import model_label
from ..simulate.machine_model import MachineModel
from ..simulate.predict import error_text, keep_machine, missing, prediction_table, thread_counts
from ..subjects.models import ModelSpec
from ..tables import USABLE, Column, number_column, percent_column, text_table, time_column
from ..tables.numbers import percent
from .figures import style
from .figures.chart import Chart
from .figures.speedup import simulation
from .files import chosen_plan
from .rendering import plain_row
from .words import plan_title


def simulate_plan(
    folder: str | os.PathLike,
    threads: Sequence[int] | None,
    models: Sequence[ModelSpec] | None,
    other: MachineModel | None,
    plan: str | None,
    seed: int,
) -> tuple[dict[str, Any], pd.DataFrame, Chart]:
    """Simulate a plan of a results folder on this machine, or another one, as `commands.simulate.simulate` says; return
    "title", "machine", "rows" and "error", the table (see `prediction_table`), and what its figure shows. This
    machine's latencies and overheads are measured and kept in the folder, if they are not there yet."""
    sweep = load(folder)
    plan_id = chosen_plan(sweep, plan)
    if reason := missing(sweep, plan_id):
        raise UsageError(reason)
    keep_machine(folder)
    counts = sorted(set(threads)) if threads else thread_counts(sweep, plan_id, other.cores if other else None)
    table = prediction_table(sweep, plan_id, counts, other, models, seed)
    with style.in_style():
        chart = simulation(sweep, plan_id, counts, other, models, seed)
    rows = [{**plain_row(row), "model": row["model"]} for row in table.to_dict("records")]
    on, error = (other.name, "") if other else ("the machine that measured", error_text(table))
    return {"title": plan_title(sweep, plan_id), "machine": on, "rows": rows, "error": error}, table, chart


_COLUMNS = (
    Column("model", lambda r: model_label(r["model"])),
    Column("threads", lambda r: f"{r['threads']}*" if r["far"] else f"{r['threads']}", True),
    time_column("step_s", "simulated"),
    time_column("measured_s", "measured"),
    Column("error", lambda r: f"{r['error']:+.1%}" if r["error"] is not None else "", True),
    Column(
        "speedup", lambda r: " to ".join(dict.fromkeys(f"{r[key]:.2f}" for key in ("speedup", "speedup_high"))), True
    ),
    number_column("efficiency"),
    Column("idle", lambda r: percent(round(r["idle"], 2) + 0), True),  # no "-0%"
    percent_column("runtime", digits=1),
    USABLE,
)


def format_simulation(result: Mapping[str, Any]) -> str:
    """Return the simulation as text: a line a model and number of threads."""
    text = [f"{result['title']}, simulated on {result['machine']}", "", *text_table(_COLUMNS, result["rows"])]
    if any(row["far"] for row in result["rows"]):
        text += ["", "* far beyond what was measured: the error of the simulation is not known there."]
    text += ["", *([result["error"]] if result["error"] else [])]
    text += [f"figure: {result['figure']}"] if "figure" in result else []
    return "\n".join(text)
