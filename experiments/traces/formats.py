"""Traces in the formats of other tools, from windows of event logs; times are from the start of each run.

Perfetto: the JSON of Chrome, in µs: a process per model, a track per thread. Blocks are complete events; what happened
inside of one, such as the loss of its CPU, lies within it. Dependences are flow arrows.

Paraver, in ns: states, blocks and dependences in .prv, their names and colours in .pcf, the threads in .row. Each model
is an application of its own, so one window shows all of them on one time axis.

References
----------
"Trace Event Format" (Google, 2016); viewer: https://ui.perfetto.dev. "Paraver: Tracefile Description" (Barcelona
Supercomputing Center): header, state records (1), event records (2) and communication records (3).
"""

from __future__ import annotations

import gzip
import io
import json
import os
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from ...cython_src.typed_text import rounded
from ..analysis.windows import LogWindow, layer_of_loops
from ..events.event_states import CAUSES, IN_BLOCK, RUNNING, STATES
from ..results.files import write_atomically

MAX_LINKS = 100_000  # of a model
# Red, green and blue of each of STATES.
STATE_COLORS = (
    (0, 0, 255),
    (128, 128, 128),
    (0, 128, 128),
    (240, 160, 0),
    (242, 220, 140),
    (214, 39, 40),
    (140, 79, 191),
    (117, 195, 255),
    (0, 0, 0),
)


class Link(NamedTuple):
    """A dependence of a block on one that ran before it: task and worker of that one, worker of the block, and the end
    of the one and the start of the other, in ns from the window's start."""

    task: int
    sender: int
    receiver: int
    sent: int
    received: int


def links_of(window: LogWindow) -> tuple[list[Link], list[str]]:
    """Return the links of a window, and a sentence where some are left out."""
    arrows, complete = window.arrows(MAX_LINKS)
    workers, origin = window.worker, window.start_ns
    links = [
        Link(
            task,
            int(workers[k, task]),
            int(workers[later, successor]),
            int(window.stop[k, task]) - origin,
            int(window.start[later, successor]) - origin,
        )
        for k, task, later, successor in arrows.tolist()
    ]
    text = f"links of {window.log.model}: from each block's last predecessor only"
    return links, [] if complete else [text]


ITERATION_TRACKS = 1000  # number of the first track of iterations


def write_perfetto(path: str | os.PathLike, windows: Sequence[LogWindow]) -> str:
    """Write a gzipped trace; return a sentence about what it holds."""
    path = Path(path)
    content = io.BytesIO()
    num_events, text = 0, []
    with gzip.open(content, "wt", encoding="utf-8", compresslevel=6) as file:
        file.write('{"displayTimeUnit": "ns", "traceEvents": [\n')
        for number, window in enumerate(windows, 1):
            links, left_out = links_of(window)
            text += left_out
            for event in _perfetto_events(number, window, links):
                file.write((",\n" if num_events else "") + json.dumps(event, separators=(",", ":")))
                num_events += 1
        file.write("\n]}\n")
    write_atomically(path, content.getvalue())
    return "; ".join([f"{path}: {num_events} events of {len(windows)} models", *text])


def _perfetto_events(process: int, window: LogWindow, links: Sequence[Link]) -> Iterator[dict]:
    log = window.log
    step_ms = log.wall_ns * 1e-6 / log.about["iterations"]
    yield _metadata("process_name", process, 0, f"{log.model} ({rounded(step_ms)} ms per iteration)")
    yield {**_metadata("process_sort_index", process, 0, ""), "args": {"sort_index": process}}
    for thread in range(log.threads):
        yield _metadata("thread_name", process, thread, f"thread {thread}")
    yield from _iteration_tracks(process, window)
    names = [log.task_name(task) for task in range(log.num_tasks)]
    layers, phases = layer_of_loops(log), log.loops["phase"]
    origin = window.start_ns
    for k in window.passes:
        iteration = log.about["first_iteration"] + k * log.about["stride"]
        for task, (start, stop, worker) in enumerate(
            zip(window.start[k].tolist(), window.stop[k].tolist(), window.worker[k].tolist(), strict=True)
        ):
            loop = int(log.task_loop[task])
            yield {
                **_block(process, worker, start - origin, stop - origin, names[task]),
                "cat": phases[loop] or "block",
                "args": {"iteration": iteration, "layer": layers[loop], "block": task},
            }
    between = window.events[(window.events["state"] != RUNNING)]
    for event in between:
        worker, state, cause = int(event["worker"]), STATES[event["state"]], CAUSES[event["cause"]]
        yield {
            **_block(process, worker, int(event["start_ns"]) - origin, int(event["stop_ns"]) - origin, state),
            "cat": "idle",
            "args": {} if event["cause"] == IN_BLOCK else {"cause": cause},
        }
    for number, link in enumerate(links):
        flow = {"cat": "dependence", "name": "dependence", "id": process * 10_000_000 + number, "pid": process}
        yield {**flow, "ph": "s", "ts": (link.sent - 1) / 1e3, "tid": link.sender}  # within the block
        yield {**flow, "ph": "f", "bp": "e", "ts": link.received / 1e3, "tid": link.receiver}


def _iteration_tracks(process: int, window: LogWindow) -> Iterator[dict]:
    """Tracks of iterations; overlapping ones lie on different tracks."""
    ends: list[int] = []
    for iteration, start, stop in window.spans():
        row = next((r for r, end in enumerate(ends) if end <= start), len(ends))
        if row == len(ends):
            yield _metadata("thread_name", process, ITERATION_TRACKS + row, "iterations")
        ends[row : row + 1] = [stop]
        event = _block(process, ITERATION_TRACKS + row, start - window.start_ns, stop - window.start_ns, "iteration")
        yield {**event, "cat": "iteration", "args": {"iteration": iteration}}


def _metadata(kind: str, process: int, thread: int, name: str) -> dict:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}


def _block(process: int, thread: int, start_ns: int, stop_ns: int, name: str) -> dict:
    times_us = {"ts": start_ns / 1e3, "dur": (stop_ns - start_ns) / 1e3}
    return {"ph": "X", "pid": process, "tid": thread, **times_us, "name": name}


NO_STATE_COLOR = (255, 255, 255)
BLOCK_TYPE, LAYER_TYPE, ITERATION_TYPE, CAUSE_TYPE = (84000001 + kind for kind in range(4))


def write_paraver(path: str | os.PathLike, windows: Sequence[LogWindow]) -> str:
    """Write `path` (.prv) and the files beside it; return a sentence about what they hold."""
    path = Path(path)
    records: list[tuple[int, int, str]] = []
    first_cpu = 1
    layers = sorted({layer for window in windows for layer in layer_of_loops(window.log)})
    texts = []
    for application, window in enumerate(windows, 1):
        records += _paraver_records(application, window, layers, first_cpu)
        links, left_out = links_of(window)
        texts += left_out
        records += _paraver_communications(application, links, first_cpu)
        first_cpu += window.log.threads
    records.sort(key=lambda record: record[:2])
    threads = [window.log.threads for window in windows]
    length = max(window.length_ns for window in windows)
    date = datetime.now(UTC).strftime("%d/%m/%y at %H:%M")
    applications = ":".join(f"1({n}:1)" for n in threads)
    head = f"#Paraver ({date}):{length}_ns:1({sum(threads)}):{len(windows)}:{applications}"
    write_atomically(path, "\n".join([head, *(line for _, _, line in records), ""]))
    write_atomically(path.with_suffix(".pcf"), _paraver_names(windows, layers))
    write_atomically(path.with_suffix(".row"), _paraver_rows(windows))
    return "; ".join([f"{path}: {len(records)} records of {len(windows)} models", *texts])


def _paraver_records(application: int, window: LogWindow, layers: Sequence[str], first_cpu: int):
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
        yield start - origin, 1, f"2:{where}:{start - origin}:{values}"


def _paraver_communications(application: int, links: Sequence[Link], first_cpu: int):
    """A record for each dependence: from the end of the predecessor to the start of the block."""
    for task, a, b, sent, received in links:
        line = (
            f"3:{first_cpu + a}:{application}:1:{a + 1}:{sent}:{sent}:"
            f"{first_cpu + b}:{application}:1:{b + 1}:{received}:{received}:1:{task + 1}"
        )
        yield sent, 2, line


def _paraver_names(windows: Sequence[LogWindow], layers: Sequence[str]) -> str:
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
    ):
        lines += ["", "EVENT_TYPE", f"0 {kind} {name}"]
        if values:
            lines += ["VALUES", *(f"{i} {value}" for i, value in enumerate(values))]
    return "\n".join(lines) + "\n"


def _paraver_rows(windows: Sequence[LogWindow]) -> str:
    names = [f"{window.log.model} thread {w}" for window in windows for w in range(window.log.threads)]
    lines = [f"LEVEL CPU SIZE {len(names)}", *(f"{i}.machine" for i in range(1, len(names) + 1))]
    lines += ["", "LEVEL NODE SIZE 1", "machine", "", f"LEVEL THREAD SIZE {len(names)}", *names]
    return "\n".join(lines) + "\n"
