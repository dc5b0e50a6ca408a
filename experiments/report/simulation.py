"""Tables and figure of `forktask simulate`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from ...cython_src.errors import UsageError
from ..analysis.load import load
from ..analysis.names import model_label
from ..analysis.sweep import Sweep
from ..simulate.machine_model import MAX_CORES, MachineModel, read_machine
from ..simulate.predict import error_text, keep_machine, missing, prediction_table, thread_counts
from ..subjects.models import parse_models
from ..tables import Column, text_table
from ..tables.columns import USABLE, number_column, percent_column, time_column
from ..tables.numbers import percent
from .figures import style
from .figures.chart import Chart, drawn
from .figures.speedup import simulation
from .files import chosen_plan
from .render_json import plain_row
from .words import plan_title


@dataclass(frozen=True)
class Simulated:
    """A plan of a results folder, simulated: its table, and how to draw it."""

    sweep: Sweep
    plan_id: str
    threads: Sequence[int]
    machine: MachineModel | None
    models: Sequence[str] | None
    seed: int
    table: pd.DataFrame

    @property
    def _asked(self) -> tuple:
        return self.threads, self.machine, self.models, self.seed

    @property
    def chart(self) -> Chart:
        """Predicted speedup, measured points and bounds."""
        return simulation(self.sweep, self.plan_id, *self._asked)

    def figure(self, column: str = "double", title: bool = True) -> Figure:
        """Draw the chart."""
        with style.in_style():
            return drawn(self.chart, column, title)

    @property
    def caption(self) -> str:
        return " ".join(filter(None, self.chart.caption))

    def as_row(self) -> dict[str, Any]:
        """Return "title", "machine", "rows" (see `prediction_table`) and "error"."""
        return {
            "title": plan_title(self.sweep, self.plan_id),
            "machine": self.machine.name if self.machine else "the machine that measured",
            "rows": [{**plain_row(row), "model": row["model"]} for row in self.table.to_dict("records")],
            "error": error_text(self.table) if self.machine is None else "",
        }


def simulate_plan(
    folder: str | os.PathLike,
    *,
    threads: Sequence[int] | None = None,
    models: Sequence[str] | None = None,
    machine: str | os.PathLike | None = None,
    plan: str | None = None,
    seed: int = 0,
) -> Simulated:
    """Simulate a plan of a results folder.

    This machine's latencies and overheads are measured and kept in the folder, if they are not there yet.

    Parameters
    ----------
    machine : path, optional
        A machine file.
    plan : str, optional
        First characters of a plan's id.

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
    return Simulated(sweep, plan_id, counts, other, chosen, seed, table)


def simulate_folder(
    folder: str | os.PathLike,
    *,
    kind: str = "svg",
    out: str | None = None,
    column: str = "double",
    title: bool = True,
    machine: str | None = None,
    **requested: Any,
) -> dict[str, Any]:
    """Simulate a plan of a results folder and draw the result into a file; return `Simulated.as_row`, and "figure".

    Parameters
    ----------
    kind : {"pdf", "svg", "png"}
    out : str, optional
        Path of the figure.
    column, title
        As for `figures.draw`.
    machine, **asked
        As for `simulate_plan`.

    Raises
    ------
    UsageError
    """
    result = simulate_plan(folder, machine=machine, **requested)
    name = "simulated" + (f"-{Path(machine).stem}" if machine else "")
    path = style.figure_path(folder, name, column, kind, out)
    style.save_asked(result.figure(column, title), path, result.caption + "\n")
    return {**result.as_row(), "figure": str(path)}


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
