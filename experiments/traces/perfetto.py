"""Traces in the JSON format of Chrome, which Perfetto's viewer opens: a process per model, a track per thread.

Times are in microseconds from the start of each run. Blocks are complete events; what happened inside of one, such as
the loss of its CPU, lies within it. Dependences are flow arrows.

References
----------
"Trace Event Format" (Google, 2016); viewer: https://ui.perfetto.dev.
"""

from __future__ import annotations

import gzip
import io
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from ...cython_src.typed_text import rounded
from ..analysis.windows import LogWindow, layer_of_loops
from ..events.event_states import CAUSES, IN_BLOCK, RUNNING, STATES
from ..results.files import write_atomically
from .drawing import Link, links_of

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
            for event in _events(number, window, links):
                file.write((",\n" if num_events else "") + json.dumps(event, separators=(",", ":")))
                num_events += 1
        file.write("\n]}\n")
    write_atomically(path, content.getvalue())
    return "; ".join([f"{path}: {num_events} events of {len(windows)} models", *text])


def _events(process: int, window: LogWindow, links: Sequence[Link]) -> Iterator[dict]:
    log = window.log
    step_ms = log.wall_ns * 1e-6 / log.about["iterations"]
    yield _metadata("process_name", process, 0, f"{log.model} ({rounded(step_ms)} ms per iteration)")
    yield {**_metadata("process_sort_index", process, 0, ""), "args": {"sort_index": process}}
    for lane, (_, name) in enumerate(log.lanes):
        yield _metadata("thread_name", process, lane, name)
    yield from _iterations(process, window)
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
                **_complete(process, worker, start - origin, stop - origin, names[task]),
                "cat": phases[loop] or "block",
                "args": {"iteration": iteration, "layer": layers[loop], "block": task},
            }
    between = window.events[(window.events["state"] != RUNNING)]
    sizes = log.copy_bytes
    for event in between:
        worker, state, cause = int(event["worker"]), STATES[event["state"]], CAUSES[event["cause"]]
        inside, size = event["cause"] == IN_BLOCK, sizes.get((worker, int(event["start_ns"])))
        yield {
            **_complete(process, worker, int(event["start_ns"]) - origin, int(event["stop_ns"]) - origin, state),
            "cat": "idle",
            "args": {} if inside else {"bytes": size} if size else {"cause": cause},
        }
    for number, link in enumerate(links):
        flow = {"cat": "dependence", "name": "dependence", "id": process * 10_000_000 + number, "pid": process}
        yield {**flow, "ph": "s", "ts": (link.sent - 1) / 1e3, "tid": link.sender}  # within the block
        yield {**flow, "ph": "f", "bp": "e", "ts": link.received / 1e3, "tid": link.receiver}


def _iterations(process: int, window: LogWindow) -> Iterator[dict]:
    """Tracks of iterations: those that overlap lie on different ones."""
    ends: list[int] = []
    for iteration, start, stop in window.spans():
        row = next((r for r, end in enumerate(ends) if end <= start), len(ends))
        if row == len(ends):
            yield _metadata("thread_name", process, ITERATION_TRACKS + row, "iterations")
        ends[row : row + 1] = [stop]
        event = _complete(process, ITERATION_TRACKS + row, start - window.start_ns, stop - window.start_ns, "iteration")
        yield {**event, "cat": "iteration", "args": {"iteration": iteration}}


def _metadata(kind: str, process: int, thread: int, name: str) -> dict:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}


def _complete(process: int, thread: int, start_ns: int, stop_ns: int, name: str) -> dict:
    return {
        "ph": "X",
        "pid": process,
        "tid": thread,
        "ts": start_ns / 1e3,
        "dur": (stop_ns - start_ns) / 1e3,
        "name": name,
    }
