"""The Gantt picture as a page of its own to zoom and to point at; nothing is loaded from elsewhere."""

from __future__ import annotations

import html
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

import matplotlib.colors
import numpy as np

from ..analysis.names import model_label
from ..analysis.windows import Window, layer_names, layer_of_loops
from ..sampling.events import EventLog
from ..sampling.files import write_atomically
from .gantt import IDLE_KINDS, axis_length_ns, idle_kinds, layer_colors, phase_color, shown_events
from .words import format_time

TEMPLATE = Path(__file__).with_name("gantt_page.html")
MAX_EVENTS = 100_000  # of a page: 2 MB
MAX_EDGES = 50_000  # of the graph; with more, blocks do not show their dependences


def write_gantt_page(path: str | os.PathLike, windows: Sequence[Window], caption: str) -> str:
    """Write the page; return a sentence about what it holds.

    Parameters
    ----------
    windows : sequence of Window
        Of one plan.
    caption : str
        Sentences below the title.
    """
    path = Path(path)
    data = page_data(windows)
    text = Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        title=html.escape(windows[0].log.about["plan_name"]),
        caption=html.escape(caption),
        data=json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"),
    )
    write_atomically(path, text)
    count = sum(len(lane) // 5 for model in data["models"] for lane in model["lanes"])
    unlinked = (
        ""
        if data["plans"][0]["before"]
        else f"; its {windows[0].log.edges.shape[1]} dependences are too many to be shown"
    )
    return f"{path}: {count} events of {len(windows)} models{unlinked}"


def page_data(windows: Sequence[Window]) -> dict[str, Any]:
    """Return what the page draws, times in ns: loops, colours, dependences, the axis' first length, and events."""
    names = layer_names([window.log for window in windows])
    colors = layer_colors(names)
    return {
        "layers": [{"name": name, "color": matplotlib.colors.to_hex(colors[name])} for name in names],
        "kinds": [{"name": name, "color": color} for name, color in IDLE_KINDS.values()],
        "shown": axis_length_ns(windows),
        "lost": list(IDLE_KINDS).index("preempted"),
        "models": [_model_data(window) for window in windows],
        **_plans_of([window.log for window in windows], names, colors),
    }


def _plans_of(logs: Sequence[EventLog], names: Sequence[str], colors: Mapping) -> dict[str, Any]:
    """Return loops and dependences, once for all logs of the same tasks: those of a GPU have launches as tasks."""
    plans: list[dict[str, Any]] = []
    plan_of = []
    for log in logs:
        plan = _plan_data(log, names, colors)
        if plan not in plans:
            plans.append(plan)
        plan_of.append(plans.index(plan))
    return {"plans": plans, "plan_of": plan_of}


def _plan_data(log: EventLog, names: Sequence[str], colors: Mapping) -> dict[str, Any]:
    before: dict[int, list[list[int]]] = {}
    after: dict[int, list[list[int]]] = {}
    if log.edges.shape[1] <= MAX_EDGES:
        for source, target, token in log.edges.T.tolist():
            if max(source, target) < log.num_tasks:
                before.setdefault(target, []).append([source, token])
                after.setdefault(source, []).append([target, token])
    return {
        "loops": [
            {
                "name": name,
                "layer": names.index(layer),
                "phase": phase,
                "first": first,
                "color": matplotlib.colors.to_hex(phase_color(colors[layer], phase)),
            }
            for name, layer, phase, first in zip(
                log.loops["name"], layer_of_loops(log), log.loops["phase"], log.loops["first_task"], strict=True
            )
        ],
        "loop_of": log.task_loop.tolist(),
        "stride": log.about["stride"],
        "before": before,
        "after": after,
    }


def _model_data(window: Window) -> dict[str, Any]:
    log, origin = window.log, window.start_ns
    events = shown_events(window)
    kinds = np.full(len(events), -1)
    for number, kind in enumerate(IDLE_KINDS):
        kinds[idle_kinds(events) == kind] = number
    lanes = []
    for worker in range(len(log.lanes)):
        own = events["worker"] == worker
        start, stop = events["start_ns"][own], events["stop_ns"][own]
        columns = (
            np.diff(start, prepend=origin),
            stop - start,
            np.maximum(events["task"][own], 0),
            events["iteration"][own],
            kinds[own],
        )
        lanes.append(np.stack(columns, axis=1).ravel().tolist())
    cycle = window.critical_cycle()
    path = []
    for block in window.path(cycle) if cycle is not None else ():
        worker = int(window.worker[block])
        path += [[int(window.start[block]) - origin, worker], [int(window.stop[block]) - origin, worker]]
    step = format_time(log.step_s)
    floor = "" if cycle is None else f"; critical cycle {format_time(cycle.mean_s / log.about['stride'])}"
    return {
        "title": f"{model_label(log.about['model'])}, {step} an iteration{floor}",
        "names": [name for _, name in log.lanes],
        "length": window.stop_ns - origin,
        "spans": [[iteration, start - origin, stop - origin] for iteration, start, stop in window.spans()],
        "lanes": lanes,
        "path": path,
    }
