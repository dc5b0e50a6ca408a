"""Outliers: blocks that took several times as long as others of their loop, and what these runs have in common."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..events.event_states import PREEMPTED
from ..events.events import EventLog

TIMES = 5.0  # least time of an outlier, in medians of its block
FEWEST = 3  # outliers that are worth a sentence, unless their CPU was lost
SHARED = 0.8  # least part of the outliers that have the property by which they are named
LIFT = 4.0  # least ratio of slow runs with a cause to slow runs of the loop without it
LEAST_S = 20e-6  # shorter ones cost nothing worth a search
PAUSE_S = 1e-3  # time without any block in which others may have used the caches


@dataclass(frozen=True)
class Outliers:
    """Outliers of a loop in one event log that have one cause."""

    loop: str
    # count, runs: outliers, and runs of the loop's blocks in all
    count: int
    runs: int
    seconds: float  # what they took beyond their block's median, per step
    longest_s: float
    median_s: float
    cause: str  # what they have in common, one of `CAUSES`
    worker: int = -1  # the worker that all ran on, or -1
    evidence: str = ""  # how often runs with what they have in common were slow, and other runs


CAUSES = {
    "preempted": "the thread lost its CPU in the middle of the block",
    "first touch": "they ran in the first pass, which touches memory for the first time",
    "evicted": "no block had run for a while before them, in which others used the caches: cold caches",
    "worker": "all ran on one worker",
    "cold cache": "another worker had run the block the time before, so its data were in another core's cache",
    "always": "the same blocks are slow in every pass, so it is the work itself: unequal sizes, or denormal numbers",
    "none": "nothing that the log holds",
}


def find_outliers(log: EventLog) -> list[Outliers]:
    """Return the outliers of each loop by what they have in common, the most costly first.

    An outlier is a run of a block that took more than five times the median of its loop's runs.
    """
    blocks, events = log.blocks, log.events
    if not len(blocks):
        return []
    stride, steps = log.about["stride"], log.about["iterations"]
    taken = _overlaps(blocks, events[events["state"] == PREEMPTED])
    passes = blocks["iteration"] // stride
    pauses, faults = _pauses(blocks), log.about.get("page_faults")
    seconds = (blocks["stop_ns"] - blocks["start_ns"]) * 1e-9
    loop_of = log.task_loop[blocks["task"]]
    result = []
    for number, name in enumerate(log.loops["name"]):
        mine = np.flatnonzero(loop_of == number)
        if not len(mine):
            continue
        usual = float(np.median(seconds[mine]))
        slow = (seconds[mine] > TIMES * usual) & (seconds[mine] > LEAST_S)
        if not slow.any():
            continue
        own = blocks[mine]
        for cause, chosen, evidence in _causes(own, passes[mine], slow, taken[mine], pauses, faults):
            workers = set(own["worker"][chosen].tolist())
            result.append(
                Outliers(
                    loop=name,
                    count=int(chosen.sum()),
                    runs=len(mine),
                    seconds=float((seconds[mine][chosen] - usual).sum()) / steps,
                    longest_s=float(seconds[mine][chosen].max()),
                    median_s=usual,
                    cause=cause,
                    worker=workers.pop() if len(workers) == 1 else -1,
                    evidence=evidence,
                )
            )
    return sorted(result, key=lambda one: -one.seconds)


def _causes(runs, passes, slow, taken, pauses, faults) -> Iterator[tuple[str, np.ndarray, str]]:
    """Give the causes of slow runs of a loop, which of them each explains, and what shows it.

    What a cause has explained counts neither as slow nor as usual for the causes that are tried after it. The first
    pass touches memory for the first time if the run had page faults enough (None: not counted); else it comes after a
    pause.
    """
    left = np.ones(len(runs), bool)
    moved, rested = _before(runs, pauses)
    first = passes == passes.min()
    if touches := faults is None or faults >= (first & slow).sum():
        rested &= ~first
    for cause, having in (
        ("preempted", taken),
        ("first touch", first & touches),
        ("evicted", rested),
        ("cold cache", moved),
    ):
        having, others = having & left, ~having & left
        chosen = having & slow
        hits, strays = int(chosen.sum()), int((others & slow).sum())
        if not hits or (hits < FEWEST and cause != "preempted"):
            continue
        if cause != "preempted" and (not others.any() or hits * others.sum() < LIFT * strays * having.sum()):
            continue
        seen = f"slow were {hits} of {having.sum()} such runs, and {strays} of {others.sum()} others"
        yield cause, chosen, seen + (f"; {faults} page faults in the run" if cause == "first touch" and faults else "")
        left &= ~having
    chosen = slow & left
    if chosen.sum() < FEWEST:
        return
    again = left & np.isin(runs["task"], np.unique(runs["task"][chosen]))
    if len(np.unique(passes)) > 2 and chosen.sum() >= SHARED * again.sum():
        yield "always", chosen, ""
    elif len(np.unique(runs["worker"])) > 1 and len(np.unique(runs["worker"][chosen])) == 1:
        yield "worker", chosen, ""
    else:
        yield "none", chosen, ""


def _overlaps(runs, taken) -> np.ndarray:
    """Return for each run whether its worker was without a CPU for a part of it."""
    result = np.zeros(len(runs), bool)
    for worker in np.unique(runs["worker"]):
        own = np.flatnonzero(runs["worker"] == worker)
        spells = taken[taken["worker"] == worker]
        if len(spells):
            first = np.searchsorted(spells["stop_ns"], runs["start_ns"][own], side="right")
            inside = first < len(spells)
            result[own[inside]] = spells["start_ns"][first[inside]] < runs["stop_ns"][own[inside]]
    return result


def _pauses(blocks) -> np.ndarray:
    """Return the ends of the spells in which no worker ran a block."""
    order = np.argsort(blocks["start_ns"])
    start, busy_until = blocks["start_ns"][order], np.maximum.accumulate(blocks["stop_ns"][order])
    return start[1:][start[1:] - busy_until[:-1] > PAUSE_S * 1e9]


def _before(runs, pauses) -> tuple[np.ndarray, np.ndarray]:
    """Return for each run whether another worker ran the same block the time before, and whether there was a pause in
    between, as there is before the first run."""
    order = np.lexsort((runs["iteration"], runs["task"]))
    task, worker = runs["task"][order], runs["worker"][order]
    paused = np.searchsorted(pauses, runs["start_ns"][order], side="right")
    moved, rested = np.zeros(len(runs), bool), np.ones(len(runs), bool)
    again = task[1:] == task[:-1]
    moved[order[1:]] = again & (worker[1:] != worker[:-1])
    rested[order[1:]] = ~again | (paused[1:] != paused[:-1])
    return moved, rested
