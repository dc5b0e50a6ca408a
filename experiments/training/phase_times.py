"""Times of the phases of an epoch (load, forward, backward, update), from the event log of some of its steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np

from ...cython_src.plan.model import PHASES
from ..results.training_rows import EpochRow, TrainedRow, epoch_times
from ..sampling.phases import PHASE_BARRIERS, phase_walls
from ..subjects.models import ModelSpec

WALL, BUSY = "wall", "busy"
COLUMNS = tuple(f"{phase}_s" for phase in PHASES)
LOGGED_PART = 4  # a quarter of the steps is logged, so that the log's cost is lost in an epoch's time
LEAST_STEPS = 8
MOST_EVENTS = 1 << 15  # of a worker, 1 MiB; a step with more blocks is logged alone


class PhaseLog:
    """Log of the first steps of each epoch of `num_steps`, under a model of the processor."""

    def __init__(self, model: ModelSpec, plan: Any, num_steps: int, threads: int):
        self.plan, self.num_steps, self.threads = plan, num_steps, threads
        self.timed = WALL if model.barrier in PHASE_BARRIERS else BUSY
        wanted = max(LEAST_STEPS, num_steps // LOGGED_PART)
        self.num_logged = max(1, min(wanted, num_steps, MOST_EVENTS // plan.num_tasks))

    @property
    def event_capacity(self) -> int:
        """Events that a worker may have to keep: one worker may run all blocks."""
        return self.num_logged * self.plan.num_tasks

    def run(self, executor: Any, run: Callable[[int, int], None], first: int) -> dict[str, float]:
        """Run an epoch, and return the time of each phase in it.

        Wall time for a model that waits between phases; for others the time in blocks, mean over threads, so that
        phases and waiting together are the epoch. Walls are parts of the logged steps' time, and this part of the
        epoch's; blocks take as long in all steps as in the logged ones.

        `run` is a function of a number of steps and the first one that runs them with the executor, which was prepared
        with the plan and with `event_capacity`.
        """
        workers = executor.workers
        workers.clear_events()
        workers.switch_log(True)
        start = time.perf_counter()
        run(self.num_logged, first)
        logged = time.perf_counter()
        workers.switch_log(False)
        if self.num_logged < self.num_steps:
            run(self.num_steps - self.num_logged, first + self.num_logged)
        part = (logged - start) / (time.perf_counter() - start)
        events = workers.events()
        if self.timed == WALL:
            walls = phase_walls(events, self.plan, self.num_logged)
            return {f"{phase}_s": self.num_logged * seconds / part for phase, seconds in walls.items()}
        names = [loop.phase for loop in self.plan.loops]
        loops = self.plan.task_loop[events["task"]]
        busy = np.bincount(loops, events["stop_ns"] - events["start_ns"], len(names)) * 1e-9
        result = dict.fromkeys((f"{phase}_s" for phase in names), 0.0)
        for phase, seconds in zip(names, busy.tolist(), strict=True):
            result[f"{phase}_s"] += seconds * self.num_steps / self.num_logged / self.threads
        return result


def phase_medians(history: Sequence[EpochRow]) -> dict[str, float]:
    """Return the median of each phase's time over the undisturbed epochs, or over all where there is none, by column;
    rows without them do not count."""
    timed = [(row, usable) for row, _, usable in epoch_times(history) if row.load_s is not None]
    rows = [row for row, usable in timed if usable] or [row for row, _ in timed]
    names = [name for name in COLUMNS if rows and getattr(rows[0], name) is not None]
    return {name: median(getattr(row, name) for row in rows) for name in names}


def phases_text(seeds: Sequence[TrainedRow]) -> str:
    """Return a line on the phases of an epoch, means over seeds; empty where they are not known."""
    if not all(seed.phase_s for seed in seeds):
        return ""
    means = {name: sum(seed.phase_s[name] for seed in seeds) / len(seeds) for name in seeds[0].phase_s}
    times = ", ".join(f"{name[:-2]} {1e3 * seconds:.3g} ms" for name, seconds in means.items())
    how = "wall time" if seeds[0].phases_timed == WALL else "in blocks, mean over threads"
    return f"an epoch's phases, {how}: {times}\n"
