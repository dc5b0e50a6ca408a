"""Outliers: blocks that took several times as long as others of their loop, and what these runs have in common."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..sampling.event_states import PREEMPTED
from ..sampling.events import EventLog

TIMES = 5.0  # an outlier takes so many times the median of its block
FEWEST = 3  # outliers that are worth a sentence, unless their CPU was taken away
SHARED = 0.8  # a property that so many of the outliers have names them
LEAST_S = 20e-6  # shorter ones cost nothing worth a search


@dataclass(frozen=True)
class Outliers:
    """Outliers of a loop in one event log.

    Attributes
    ----------
    title : str
        Model and threads of the log.
    loop, layer : str
    count, runs : int
        Outliers, and runs of the loop's blocks in all.
    seconds : float
        What they took beyond their block's median, a step.
    longest_s, median_s : float
    cause : str
        What they have in common, one of `CAUSES`.
    worker : int
        The worker that all ran on, or -1.
    """

    title: str
    loop: str
    layer: str
    count: int
    runs: int
    seconds: float
    longest_s: float
    median_s: float
    cause: str
    worker: int = -1


CAUSES = {
    "preempted": "the thread's CPU was taken away in the middle of the block",
    "first touch": "they ran in the first pass, which touches memory for the first time",
    "worker": "all ran on one worker",
    "cold cache": "another worker had run the block the time before, so its data were in another core's cache",
    "always": "the same blocks are slow in every pass, so it is the work itself: unequal sizes, or denormal numbers",
    "none": "nothing that the log holds",
}


def find_outliers(log: EventLog) -> list[Outliers]:
    """Return the loops with blocks that took five times their usual time or more, the most costly first.

    A block's usual time is its median over the passes; a loop's is the median over its blocks, so that a block that is
    slow in every pass is found too.
    """
    blocks, events = log.blocks, log.events
    if not len(blocks):
        return []
    stride, steps = log.about["stride"], log.about["iterations"]
    taken = events[(events["state"] == PREEMPTED)]
    passes = blocks["iteration"] // stride
    seconds = (blocks["stop_ns"] - blocks["start_ns"]) * 1e-9
    loop_of = log.task_loop[blocks["task"]]
    found = []
    for number, name in enumerate(log.loops["name"]):
        mine = np.flatnonzero(loop_of == number)
        if not len(mine):
            continue
        usual = float(np.median(seconds[mine]))
        slow = mine[(seconds[mine] > TIMES * usual) & (seconds[mine] > LEAST_S)]
        if not len(slow):
            continue
        cause = _cause(blocks, passes, seconds, mine, slow, taken)
        if len(slow) < FEWEST and cause != "preempted":
            continue
        workers = set(blocks["worker"][slow].tolist())
        found.append(
            Outliers(
                title=log.title,
                loop=name,
                layer=log.loops["layer"][number],
                count=len(slow),
                runs=len(mine),
                seconds=float((seconds[slow] - usual).sum()) / steps,
                longest_s=float(seconds[slow].max()),
                median_s=usual,
                cause=cause,
                worker=workers.pop() if len(workers) == 1 else -1,
            )
        )
    return sorted(found, key=lambda one: -one.seconds)


def _cause(blocks, passes, seconds, mine, slow, taken) -> str:
    """Return what most of the slow runs share, and the others do not."""

    def share(chosen: np.ndarray) -> float:
        return float(chosen.mean())

    if share(_overlaps(blocks[slow], taken)) >= SHARED:
        return "preempted"
    if share(passes[slow] == passes.min()) >= SHARED:
        return "first touch"
    tasks = np.unique(blocks["task"][slow])
    again = mine[np.isin(blocks["task"][mine], tasks)]
    if len(np.unique(passes)) > 2 and share(np.isin(again, slow)) >= SHARED:
        return "always"
    if len(np.unique(blocks["worker"][mine])) > 1:
        moved = _moved(blocks, mine)
        if share(moved[np.isin(mine, slow)]) >= SHARED and share(moved) < 1 - (1 - SHARED) / 2:
            return "cold cache"
        if len(np.unique(blocks["worker"][slow])) == 1:
            return "worker"
    return "none"


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


def _moved(blocks, mine) -> np.ndarray:
    """Return for each run in `mine` whether another worker ran the same block the time before."""
    order = np.lexsort((blocks["iteration"][mine], blocks["task"][mine]))
    task, worker = blocks["task"][mine][order], blocks["worker"][mine][order]
    moved = np.zeros(len(mine), bool)
    moved[order[1:]] = (task[1:] == task[:-1]) & (worker[1:] != worker[:-1])
    return moved
