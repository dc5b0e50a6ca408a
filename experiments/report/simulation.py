"""Tables and figure of `forktask simulate`."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

from ...cython_src.errors import UsageError
from ..analysis.load import load
from ..analysis.names import model_label
from ..sampling.models import parse_models
from ..simulate.machine_model import MAX_CORES, read_machine
from ..simulate.predict import error_text, keep_machine, missing, prediction_table, thread_counts
from ..tables import Column, text_table
from ..tables.columns import number_column, percent_column, time_column
from ..tables.numbers import percent
from .figures import simulated, style
from .files import FIGURE_FOLDER, chosen_plan
from .words import plan_title


def simulate_folder(
    folder: str | os.PathLike,
    *,
    threads: Sequence[int] | None = None,
    models: Sequence[str] | None = None,
    machine: str | None = None,
    plan: str | None = None,
    seed: int = 0,
    kind: str = "svg",
    out: str | None = None,
) -> dict[str, Any]:
    """Simulate a plan of a results folder and draw the result.

    This machine's latencies and overheads are measured and kept in the folder, if they are not there yet.

    Parameters
    ----------
    folder : path
    threads : sequence of int, optional
    models : sequence of str, optional
    machine : str, optional
        Path of a machine file.
    plan : str, optional
        First characters of a plan's id.
    seed : int
    kind : {"pdf", "svg", "png"}
    out : str, optional
        Path of the figure.

    Returns
    -------
    dict
        "title", "machine", "rows" (see `prediction_table`), "error", "figure".

    Raises
    ------
    UsageError
        No serial profile, impossible threads or models, or a file that cannot be read or written.
    """
    if threads and not all(1 <= n <= MAX_CORES for n in threads):
        raise UsageError(f"--threads of a simulation must be in [1, {MAX_CORES}], got {', '.join(map(str, threads))}")
    chosen = [str(spec) for spec in parse_models(models)] if models else None
    other = read_machine(machine) if machine else None
    study = load(folder)
    plan_id = chosen_plan(study, plan)
    if reason := missing(study, plan_id):
        raise UsageError(reason)
    keep_machine(folder)
    counts = sorted(set(threads)) if threads else thread_counts(study, plan_id, other.cores if other else None)
    table = prediction_table(study, plan_id, counts, other, chosen, seed)
    name = "simulated" + (f"-{Path(machine).stem}" if machine else "")
    path = Path(out) if out else Path(folder) / FIGURE_FOLDER / f"{name}.{kind}"
    with matplotlib.rc_context(style.style_parameters()):
        figure = simulated.draw_on(study, plan_id, "double", counts, other, chosen, seed)
        caption = simulated.caption_on(study, plan_id, counts, other, chosen, seed)
        style.save_asked(figure, path, " ".join(filter(None, caption)))
    rows = [
        {key: None if isinstance(value, float) and math.isnan(value) else value for key, value in row.items()}
        for row in table.to_dict("records")
    ]
    return {
        "title": plan_title(study, plan_id),
        "machine": other.name if other else "the machine that measured",
        "rows": rows,
        "error": error_text(table) if other is None else "",
        "figure": str(path),
    }


_COLUMNS = (
    Column("model", lambda r: model_label(r["model"])),
    Column("threads", lambda r: f"{r['threads']}*" if r["far"] else f"{r['threads']}", True),
    time_column("step_s", "simulated"),
    time_column("measured_s", "measured"),
    Column("error", lambda r: f"{r['error']:+.1%}" if r["error"] is not None else "", True),
    number_column("speedup"),
    number_column("efficiency"),
    Column("idle", lambda r: percent(round(r["idle"], 2) + 0), True),  # no "-0%"
    percent_column("runtime", digits=1),
)


def format_simulation(found: Mapping[str, Any]) -> str:
    """Return the simulation as text: a line a model and number of threads."""
    text = [f"{found['title']}, simulated on {found['machine']}", "", *text_table(_COLUMNS, found["rows"])]
    if any(row["far"] for row in found["rows"]):
        text += ["", "* far beyond what was measured: the error of the simulation is not known there."]
    text += ["", *([found["error"]] if found["error"] else []), f"figure: {found['figure']}"]
    return "\n".join(text)
