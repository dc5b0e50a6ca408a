"""Traces of two folders side by side: two machines, two commits or two sets of options on one time axis."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ...cython_src.errors import UsageError
from ..analysis.names import model_label
from ..analysis.study import capacity_of
from ..analysis.windows import typical
from ..sampling.events import EVENTS_FOLDER, EventLog, read_events
from ..traces.collect import read_machine
from .figures.style import save_asked
from .gantt import draw_gantt
from .words import describe_machine

SHOWN = 3  # iterations of each model


def is_trace_folder(folder: str | os.PathLike) -> bool:
    """Return whether a folder holds logs of `forktask trace`."""
    return Path(folder, EVENTS_FOLDER).is_dir()


def overlay_traces(first: str | os.PathLike, second: str | os.PathLike, out: str | None = None) -> dict[str, Any]:
    """Draw the models that two folders of traces share on one time axis; returns what `overlay_folders` returns.

    Raises
    ------
    UsageError
        Different work, no model in both, or a figure that cannot be written.
    """
    folders = [str(first), str(second)]
    logs = [_logs(folder) for folder in folders]
    plans = [next(iter(found.values())).about["plan"] for found in logs]
    work = [{name: plan.get(name) for name in ("network", "batch", "phase")} for plan in plans]
    if work[0] != work[1]:
        said = " and ".join(", ".join(map(str, one.values())) for one in work)
        raise UsageError(f"both folders must hold traces of the same network, batch and phase, got {said}")
    shared = [model for model in logs[0] if model in logs[1]]
    if not shared:
        raise UsageError(
            f"both folders must hold traces of one model at least, got {', '.join(logs[0])} and {', '.join(logs[1])}"
        )
    machines = []
    for folder, found in zip(folders, logs, strict=True):
        environment, machine = read_machine(folder)[:2]
        threads = max(log.about["threads"] for log in found.values())
        machines.append(describe_machine(environment, machine, threads, capacity_of([machine], threads)))
    windows, names = [], []
    for model in shared:
        for folder, found in zip(folders, logs, strict=True):
            windows.append(typical(found[model], SHOWN))
            names.append(folder)
    path = Path(out) if out else Path(first) / "overlay-of-two.svg"
    head = [logs[0][shared[0]].about["plan_name"]]
    head += [f"{folder}: {machine}" for folder, machine in zip(folders, machines, strict=True)]
    figure, caption = draw_gantt(windows, names=names, head="\n".join(head))
    save_asked(figure, path, caption)
    rows = []
    for model in shared:
        times = [found[model].step_s for found in logs]
        threads = [found[model].about["threads"] for found in logs]
        if threads[0] == threads[1]:
            row = {"first_s": times[0], "second_s": times[1], "ratio": times[1] / times[0]}
            rows.append({"model": model, "threads": threads[0], **row})
        else:
            rows.append({"model": model, "threads": threads[0], "first_s": times[0], "second_s": None, "ratio": None})
            rows.append({"model": model, "threads": threads[1], "first_s": None, "second_s": times[1], "ratio": None})
    names = {**plans[0], **plans[1]}
    return {
        "titles": [next(iter(found.values())).about["plan_name"] for found in logs],
        "machines": machines,
        "differing": [name for name in names if plans[0].get(name) != plans[1].get(name)],
        "rows": rows,
        "figure": str(path),
    }


def _logs(folder: str) -> dict[str, EventLog]:
    """Return the logs of a folder by model."""
    paths = sorted(Path(folder, EVENTS_FOLDER).glob("*.npz"))
    if not paths:
        raise UsageError(f"a folder of traces must hold logs, got none in {folder!r}; name one of forktask trace")
    logs = [read_events(path) for path in paths]
    return {log.about["model"]: log for log in sorted(logs, key=lambda log: model_label(log.about["model"]))}
