"""Tables and figure of `forktask simulate`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ...cython_src.errors import UsageError
from ..analysis.load import load
from ..analysis.names import model_label
from ..simulate.machine_model import MAX_CORES, read_machine
from ..simulate.predict import error_text, keep_machine, missing, prediction_table, thread_counts
from ..subjects.models import parse_models
from ..tables import Column, text_table
from ..tables.columns import USABLE, number_column, percent_column, time_column
from ..tables.numbers import percent
from .figures import style
from .figures.chart import Chart
from .figures.speedup import simulation
from .files import chosen_plan
from .rendering import plain_row
from .words import plan_title


@dataclass(frozen=True)
class Simulated:
    """A plan of a results folder, simulated: the table (see `prediction_table`), and what its figure shows."""

    title: str
    machine: str
    error: str
    table: pd.DataFrame
    chart: Chart

    def as_row(self) -> dict[str, Any]:
        """Return "title", "machine", "rows" and "error"."""
        rows = [{**plain_row(row), "model": row["model"]} for row in self.table.to_dict("records")]
        return {"title": self.title, "machine": self.machine, "rows": rows, "error": self.error}


def simulate_plan(
    folder: str | os.PathLike,
    *,
    threads: Sequence[int] | None = None,
    models: Sequence[str] | None = None,
    machine: str | os.PathLike | None = None,
    plan: str | None = None,
    seed: int = 0,
) -> Simulated:
    """Simulate a plan of a results folder, on another machine where its file is given. This machine's latencies and
    overheads are measured and kept in the folder, if they are not there yet.

    Raises
    ------
    UsageError
        No serial profile, impossible threads or models, or a file that cannot be read or written.
    """
    if threads and not all(1 <= n <= MAX_CORES for n in threads):
        raise UsageError(f"--threads of a simulation must be in [1, {MAX_CORES}], got {', '.join(map(str, threads))}")
    chosen = parse_models(models) if models else None
    other = read_machine(machine) if machine else None
    sweep = load(folder)
    plan_id = chosen_plan(sweep, plan)
    if reason := missing(sweep, plan_id):
        raise UsageError(reason)
    keep_machine(folder)
    counts = sorted(set(threads)) if threads else thread_counts(sweep, plan_id, other.cores if other else None)
    table = prediction_table(sweep, plan_id, counts, other, chosen, seed)
    with style.in_style():
        chart = simulation(sweep, plan_id, counts, other, chosen, seed)
    on, error = (other.name, "") if other else ("the machine that measured", error_text(table))
    return Simulated(plan_title(sweep, plan_id), on, error, table, chart)


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
