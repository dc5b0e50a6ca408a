"""Reasons for which a GPU runs no launch in a logged run: the host that launches, copies, blocks of the host, waits."""

from __future__ import annotations

import numpy as np

from ..events.event_states import COPYING, RUNNING, WAITING_DEVICE
from ..events.events import HOST, STREAM, THREAD, EventLog, number_at
from ..subjects.models import parse_model
from ..tables.numbers import format_time
from .case import LEAST_PART

# Why no launch runs, in the order in which a moment is laid to one of them.
REASONS = ("copies", "host blocks", "waits", "launches")
LARGER = "larger launches (--batch)"
BUSY = 0.9  # part of a step in which launches run, from which on they bind


def busy_and_idle(log: EventLog) -> tuple[float, dict[str, float]]:
    """Return the time of a step in which some launch runs, and in which none does by `REASONS`, in seconds.

    Nothing runs while data are copied; while the host computes blocks itself; while the host waits for the device,
    which is on its way between the end of a launch and the start of another; or while the host launches.
    """
    events, states = log.events, log.events["state"]
    of = {kind: np.isin(events["worker"], log.lanes_of(kind)) for kind in (HOST, STREAM, THREAD)}
    moments = np.unique(np.concatenate([events["start_ns"], events["stop_ns"]]))
    length, start = np.diff(moments), moments[:-1]

    def during(chosen: np.ndarray) -> np.ndarray:
        return number_at(events[chosen], start) > 0

    found = {
        "busy": during(of[STREAM] & (states == RUNNING)),
        "copies": during(states == COPYING),
        "host blocks": during((of[HOST] | of[THREAD]) & (states == RUNNING)),
        "waits": during(of[HOST] & (states == WAITING_DEVICE)),
        "launches": np.ones(len(start), bool),
    }
    left, seconds = np.ones(len(start), bool), {}
    for name, chosen in found.items():
        seconds[name] = float(length[left & chosen].sum()) * 1e-9 / log.about["iterations"]
        left &= ~chosen
    return seconds.pop("busy"), seconds


def explain(log: EventLog) -> list[tuple[str, float, str, str]]:
    """Return (kind, seconds of a step, sentence, what to try) for a GPU's log, the most costly first."""
    busy_s, idle_s = busy_and_idle(log)
    step_s = log.step_s
    steps, blocks = log.about["iterations"], log.blocks
    launched = blocks[np.isin(blocks["worker"], log.lanes_of(STREAM))]
    if not len(launched):
        return [("device", 0.0, "no launch ran on the device: all blocks were placed on the host.", "")]
    count = len(launched) / steps
    mean_s = float((launched["stop_ns"] - launched["start_ns"]).mean()) * 1e-9
    num_bytes = int(log.copies["num_bytes"].sum())
    copying_s = float((log.copies["stop_ns"] - log.copies["start_ns"]).sum()) * 1e-9
    graphs, advice = "graph of" in log.loops["name"][0], parse_model(log.about["model"]).model.advice
    said = {
        "launches": (
            f"the device has nothing to run while the host launches: {count:.3g} launches a step, which run for "
            f"{format_time(mean_s)} on average",
            "more passes in a graph (gpu_taskiter:unroll=N)"
            if graphs
            else f"gpu_taskgraph or gpu_taskiter, which launch a step at once; or {LARGER}",
        ),
        "copies": (
            f"copies bind: nothing runs while they do, {num_bytes / steps / 1e6:.3g} MB a step at "
            f"{num_bytes / max(copying_s, 1e-9) / 1e9:.3g} GB/s",
            "memory=pinned, and copies beside launches (gpu_hostload:copies=prefetch); or data that stay on the device",
        ),
        "host blocks": (
            "the device waits for blocks that the host computes",
            advice.get("host blocks", "gpu_both, which computes them beside launches; or these blocks on the device"),
        ),
        "waits": (
            "the device runs nothing while the host waits for it: between launches, and from a wait to the next launch",
            f"{advice['waits']}; or {LARGER}" if "waits" in advice else LARGER,
        ),
    }
    rows = [
        (name, seconds, f"{said[name][0]}; {format_time(seconds)} of a step of {format_time(step_s)}.", said[name][1])
        for name, seconds in idle_s.items()
        if seconds >= LEAST_PART * step_s
    ]
    if busy_s >= BUSY * step_s:
        text = f"launches run for {busy_s / step_s:.0%} of a step: they bind, not the host, waits or copies."
        rows.append(("device", 0.0, text, "forktask kernels, which times each kernel"))
    return sorted(rows, key=lambda row: -row[1])
