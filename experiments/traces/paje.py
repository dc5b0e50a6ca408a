"""Traces in the Paje format, which ViTE and PajeNG read: containers for models and threads, states, links.

Times are milliseconds from the start of each run.

References
----------
L. Schnorr, "Paje trace file format" (2014).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..analysis.windows import LogWindow, layer_of_loops
from ..events.event_states import IN_BLOCK, RUNNING, STATES
from ..results.files import write_atomically
from .drawing import STATE_COLORS, Link, links_of

# Event -> its number and the fields of its lines, in their order.
DEFINITIONS = {
    "PajeDefineContainerType": (0, "Alias Type Name"),
    "PajeDefineStateType": (1, "Alias Type Name"),
    "PajeDefineLinkType": (2, "Alias Type StartContainerType EndContainerType Name"),
    "PajeDefineEntityValue": (3, "Alias Type Name Color"),
    "PajeCreateContainer": (4, "Time Alias Type Container Name"),
    "PajeDestroyContainer": (5, "Time Type Name"),
    "PajeSetState": (6, "Time Type Container Value"),
    "PajeStartLink": (7, "Time Type Container StartContainer Value Key"),
    "PajeEndLink": (8, "Time Type Container EndContainer Value Key"),
}
KINDS = {"Time": "date", "Color": "color"}  # of fields; the others are strings


def write_paje(path: str | os.PathLike, windows: Sequence[LogWindow]) -> str:
    """Write a trace; return a sentence about what it holds."""
    path = Path(path)
    events: list[tuple[float, int, str]] = []
    texts = []
    for number, window in enumerate(windows):
        links, left_out = links_of(window)
        texts += left_out
        events += _events(number, window, links)
    events.sort(key=lambda event: event[:2])
    end = _time(max(window.length_ns for window in windows))
    lines = [*_header(windows), *(line for _, _, line in events)]
    for number, window in enumerate(windows):
        threads = [_line("PajeDestroyContainer", end, "T", f"m{number}t{w}") for w in range(len(window.log.lanes))]
        lines += [*threads, _line("PajeDestroyContainer", end, "M", f"m{number}")]
    write_atomically(path, "\n".join([*lines, ""]))
    return "; ".join([f"{path}: {len(events)} events of {len(windows)} models", *texts])


def _line(event: str, *values: str) -> str:
    number, fields = DEFINITIONS[event]
    texts = [value if name == "Time" else f'"{value}"' for name, value in zip(fields.split(), values, strict=True)]
    return " ".join([str(number), *texts])


def _time(ns: int) -> str:
    return f"{ns * 1e-6:.6f}"


def _header(windows: Sequence[LogWindow]) -> Iterator[str]:
    for event, (number, fields) in DEFINITIONS.items():
        yield f"%EventDef {event} {number}"
        for name in fields.split():
            yield f"% {name} {KINDS.get(name, 'string')}"
        yield "%EndEventDef"
    yield _line("PajeDefineContainerType", "M", "0", "Model")
    yield _line("PajeDefineContainerType", "T", "M", "Thread")
    yield _line("PajeDefineStateType", "S", "T", "State")
    yield _line("PajeDefineLinkType", "D", "M", "T", "T", "Dependence")
    yield _line("PajeDefineEntityValue", "dep", "D", "dependence", "0 0 0")
    for number, (name, color) in enumerate(zip(STATES, STATE_COLORS, strict=True)):
        if number != RUNNING:
            parts = " ".join(f"{part / 255:.2g}" for part in color)
            yield _line("PajeDefineEntityValue", f"s{number}", "S", name, parts)
    layers = dict.fromkeys(name for window in windows for name in _block_names(window))
    for number, name in enumerate(layers):
        hue = number / len(layers)
        color = " ".join(f"{abs((hue * 6 + shift) % 6 - 3) / 3 * 0.8 + 0.1:.3f}" for shift in (0, 4, 2))
        yield _line("PajeDefineEntityValue", f"b{name}", "S", name, color)
    for number, window in enumerate(windows):
        yield _line("PajeCreateContainer", "0.000000", f"m{number}", "M", "0", str(window.log.model))
        for worker, (_, name) in enumerate(window.log.lanes):
            yield _line("PajeCreateContainer", "0.000000", f"m{number}t{worker}", "T", f"m{number}", name)


def _block_names(window: LogWindow) -> list[str]:
    """Value of the state of each loop's blocks: layer and phase."""
    log = window.log
    return [f"{layer} {phase}".strip() for layer, phase in zip(layer_of_loops(log), log.loops["phase"], strict=True)]


def _events(number: int, window: LogWindow, links: Sequence[Link]) -> Iterator[tuple[float, int, str]]:
    names, log, origin = _block_names(window), window.log, window.start_ns
    for start, _stop, _iteration, task, worker, state, cause in window.events.tolist():
        inside = state == RUNNING and cause != IN_BLOCK
        value = f"b{names[log.task_loop[task]]}" if inside else f"s{state}"
        yield start - origin, 0, _line("PajeSetState", _time(start - origin), "S", f"m{number}t{worker}", value)
    for key, link in enumerate(links):
        for order, event, time, worker in (
            (1, "PajeStartLink", link.sent, link.sender),
            (2, "PajeEndLink", link.received, link.receiver),
        ):
            place = (f"m{number}", f"m{number}t{worker}")
            yield time, order, _line(event, _time(time), "D", *place, "dep", f"m{number}k{key}")
