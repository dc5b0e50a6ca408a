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
from .figures import simulated, style
from .files import FIGURE_FOLDER, chosen_plan
from .words import format_time, plan_title


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
    if not study.machine_model:
        keep_machine(folder)
        study = load(folder)
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


def format_simulation(found: Mapping[str, Any]) -> str:
    """Return the simulation as text: a line a model and number of threads."""
    head = ("model", "threads", "simulated", "measured", "error", "speedup", "efficiency", "idle", "runtime")
    lines = [head]
    for row in found["rows"]:
        lines.append(
            (
                model_label(row["model"]),
                f"{row['threads']}{'*' if row['far'] else ''}",
                format_time(row["step_s"]),
                format_time(row["measured_s"]) if row["measured_s"] is not None else "",
                f"{row['error']:+.1%}" if row["error"] is not None else "",
                f"{row['speedup']:.2f}",
                f"{row['efficiency']:.2f}",
                f"{round(row['idle'], 2) + 0:.0%}",  # no "-0%"
                f"{row['runtime']:.1%}",
            )
        )
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    text = [f"{found['title']}, simulated on {found['machine']}", ""]
    for line in lines:
        cells = [line[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(line[1:], widths[1:], strict=True))]
        text.append("  ".join(cells).rstrip())
    if any(row["far"] for row in found["rows"]):
        text += ["", "* far beyond what was measured: the error of the simulation is not known there."]
    text += ["", *([found["error"]] if found["error"] else []), f"figure: {found['figure']}"]
    return "\n".join(text)
