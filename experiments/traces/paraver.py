"""Traces for Paraver: states, blocks and dependences in .prv, their names and colours in .pcf, the threads in .row.

Each model is an application of its own, so one window shows all of them on one time axis. Times are nanoseconds from
the start of each run.

References
----------
"Paraver: Tracefile Description" (Barcelona Supercomputing Center): header, state records (1), event records (2) and
communication records (3).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from ..analysis.windows import LogWindow, layer_of_loops
from ..events.event_states import CAUSES, IN_BLOCK, RUNNING, STATES
from ..results.files import write_atomically
from .drawing import STATE_COLORS, Link, links_of

NO_STATE_COLOR = (255, 255, 255)
BLOCK_TYPE, LAYER_TYPE, ITERATION_TYPE, CAUSE_TYPE, BYTES_TYPE = (84000001 + kind for kind in range(5))


def write_paraver(path: str | os.PathLike, windows: Sequence[LogWindow]) -> str:
    """Write `path` (.prv) and the files beside it; return a sentence about what they hold."""
    path = Path(path)
    records: list[tuple[int, int, str]] = []
    first_cpu = 1
    layers = sorted({layer for window in windows for layer in layer_of_loops(window.log)})
    texts = []
    for application, window in enumerate(windows, 1):
        records += _records(application, window, layers, first_cpu)
        links, left_out = links_of(window)
        texts += left_out
        records += _communications(application, links, first_cpu)
        first_cpu += len(window.log.lanes)
    records.sort(key=lambda record: record[:2])
    threads = [len(window.log.lanes) for window in windows]
    length = max(window.length_ns for window in windows)
    date = datetime.now(UTC).strftime("%d/%m/%y at %H:%M")
    applications = ":".join(f"1({n}:1)" for n in threads)
    head = f"#Paraver ({date}):{length}_ns:1({sum(threads)}):{len(windows)}:{applications}"
    write_atomically(path, "\n".join([head, *(line for _, _, line in records), ""]))
    write_atomically(path.with_suffix(".pcf"), _names(windows, layers))
    write_atomically(path.with_suffix(".row"), _rows(windows))
    return "; ".join([f"{path}: {len(records)} records of {len(windows)} models", *texts])


def _records(application: int, window: LogWindow, layers: Sequence[str], first_cpu: int):
    """State and event records as (time, order, text); a thread's states follow each other."""
    log, origin = window.log, window.start_ns
    number = {layer: i for i, layer in enumerate(layers, 1)}
    layer_of_task = [number[layer_of_loops(log)[loop]] for loop in log.task_loop]
    for event in window.events.tolist():
        start, stop, iteration, task, worker, state, cause = event
        where = f"{first_cpu + worker}:{application}:1:{worker + 1}"
        yield start - origin, 0, f"1:{where}:{start - origin}:{stop - origin}:{state + 1}"
        if state == RUNNING or cause == IN_BLOCK:
            values = f"{BLOCK_TYPE}:{task + 1}:{LAYER_TYPE}:{layer_of_task[task]}:{ITERATION_TYPE}:{iteration + 1}"
        else:
            values = f"{BLOCK_TYPE}:0:{LAYER_TYPE}:0:{CAUSE_TYPE}:{cause + 1}"
            if size := log.copy_bytes.get((worker, start)):
                values += f":{BYTES_TYPE}:{size}"
        yield start - origin, 1, f"2:{where}:{start - origin}:{values}"


def _communications(application: int, links: Sequence[Link], first_cpu: int):
    """A record for each dependence: from the end of the predecessor to the start of the block."""
    for task, a, b, sent, received in links:
        line = (
            f"3:{first_cpu + a}:{application}:1:{a + 1}:{sent}:{sent}:"
            f"{first_cpu + b}:{application}:1:{b + 1}:{received}:{received}:1:{task + 1}"
        )
        yield sent, 2, line


def _names(windows: Sequence[LogWindow], layers: Sequence[str]) -> str:
    lines = ["DEFAULT_OPTIONS", "", "LEVEL THREAD", "UNITS NANOSEC"]
    lines += ["", "DEFAULT_SEMANTIC", "", "THREAD_FUNC State As Is"]
    lines += ["", "STATES", *(f"{i} {name}" for i, name in enumerate(("idle", *STATES)))]  # 1 is running in all traces
    lines += ["", "STATES_COLOR"]
    lines += [f"{i} {{{r},{g},{b}}}" for i, (r, g, b) in enumerate((NO_STATE_COLOR, *STATE_COLORS))]
    tasks = windows[0].log
    for kind, name, values in (
        (BLOCK_TYPE, "Block", ["none", *(tasks.task_name(task) for task in range(tasks.num_tasks))]),
        (LAYER_TYPE, "Layer", ["none", *layers]),
        (ITERATION_TYPE, "Iteration, from 1 on", []),
        (CAUSE_TYPE, "Cause of waiting", ["none", *CAUSES]),
        (BYTES_TYPE, "Bytes of a copy", []),
    ):
        lines += ["", "EVENT_TYPE", f"0 {kind} {name}"]
        if values:
            lines += ["VALUES", *(f"{i} {value}" for i, value in enumerate(values))]
    return "\n".join(lines) + "\n"


def _rows(windows: Sequence[LogWindow]) -> str:
    names = [f"{window.log.model} {name}" for window in windows for _, name in window.log.lanes]
    lines = [f"LEVEL CPU SIZE {len(names)}", *(f"{i}.machine" for i in range(1, len(names) + 1))]
    lines += ["", "LEVEL NODE SIZE 1", "machine", "", f"LEVEL THREAD SIZE {len(names)}", *names]
    return "\n".join(lines) + "\n"
