"""A schedule: jobs one after the other, with a budget, progress, and rows that are kept as they come.

An experiment is a generator of jobs, which may look at the rows so far, and at the schedule, before it yields the next.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, NamedTuple

from ..tables.progress import ProgressBar, say


class Job(NamedTuple):
    """Something to be measured."""

    # stage, said: for people: the part of the experiment, and what is measured
    stage: str
    said: str
    measure: Callable[[], Iterable[Any]]
    cost: Hashable = None  # jobs of one cost take about equally long


class Schedule:
    """Runs jobs and hands each row on.

    Parameters
    ----------
    label : str
        Of the progress bar.
    write : callable (row)
    budget_s : float
        Time that the jobs should take together; they are never cut short.
    now : callable () -> float
        The time of a clock, in seconds.
    """

    def __init__(
        self,
        label: str,
        write: Callable[[Any], object],
        *,
        budget_s: float = math.inf,
        now: Callable[[], float] = time.monotonic,
    ):
        self._label, self._write, self.now = label, write, now
        self._start = self.now()
        self._bar: ProgressBar | None = None
        self.budget_s = budget_s
        self.took: dict[Hashable, float] = {}  # seconds of the last job of each cost

    @property
    def spent_s(self) -> float:
        """Seconds since the schedule was made."""
        return self.now() - self._start

    @property
    def ends(self) -> float:
        """Time of the clock at which the budget is spent."""
        return self._start + self.budget_s

    def with_room(self, costs: Mapping[Hashable, float]) -> set[Hashable]:
        """Return the costs that fit into the rest of the budget together, the quicker ones first. `costs`: seconds that
        jobs of each cost take together."""
        room_s, result = self.budget_s - self.spent_s, set()
        for cost in sorted(costs, key=costs.__getitem__):
            room_s -= costs[cost]
            if room_s < 0:
                break
            result.add(cost)
        return result

    def run(self, jobs: Iterable[Job], total: int = 0) -> None:
        """Measure all jobs; `total`: how many there are, where that is known."""
        stage = ""
        with ProgressBar(total, self._label) as self._bar:
            for number, job in enumerate(jobs):
                if not self._bar.visible and job.stage != stage:
                    self.say(job.stage + (f": {number} of {total} done" if total and number else ""))
                stage = job.stage
                self._bar.show(number, f"{stage}, {job.said}")
                began = self.now()
                for row in job.measure():
                    self._write(row)
                self.took[job.cost] = self.now() - began

    def say(self, message: str, write: Callable[[str], object] | None = None) -> None:
        """Print a line for people, to standard error unless `write` prints it elsewhere."""
        if self._bar is not None:
            self._bar.clear()
        (write or say)(message)
