"""What the clock tier measures with: two sides, how much a round takes, and fresh processes that take turns."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...cython_src.errors import UsageError
from ..machine import machine_peaks
from ..machine.topology import available_cpus, cpu_order
from ..results.turns import MeasuredGroup
from ..sampling.child import ANSWERS, TIME_LIMIT_S
from ..sampling.generation import Contestant, Generation, Machine, contestant_of, measure_generation
from ..subjects.calls import TARGET_VARIABLE, label
from ..subjects.models import ModelSpec
from ..tables.numbers import plural

CHECK_ITERATIONS = 2
CAPACITY_S = 0.04


@dataclass(frozen=True)
class Side:
    """One side of a comparison: a model on a number of threads, running a plan."""

    model: ModelSpec
    threads: int
    plan: Mapping[str, Any]  # result of `subject.describe`
    # folders from which the process imports packages first: one of two commits, or those of a function; empty: none
    installation: str = ""
    rtol: float | None = 0.0  # of what functions return: 0: it must be equal; None: it is not compared

    def __str__(self) -> str:
        return f"{label(self.model)} on {plural(self.threads, 'thread')}"


@dataclass(frozen=True)
class Effort:
    """How much a process measures, the same for both sides."""

    rounds: int = 6  # turns of each side, in pairs
    # target_s, warmup_s: least time of the timed runs and of the warm-up
    target_s: float = 0.12
    warmup_s: float = 0.1
    limit_s: float = TIME_LIMIT_S  # after which the process is stopped

    def passes(self) -> int:
        """Passes through the plan in a process, at least: checked, warming up, in turns (runs of 1, 1 and 3)."""
        return CHECK_ITERATIONS + 3 + 5 * self.rounds

    def seconds(self, fixed_s: float, pass_s: float) -> float:
        """Time of a process whose start takes `fixed_s` and whose passes take `pass_s`."""
        warm, timed = max(self.warmup_s, 3 * pass_s), max(1.2 * self.target_s, 5 * self.rounds * pass_s)
        return fixed_s + CHECK_ITERATIONS * pass_s + warm + timed


EFFORTS = tuple(Effort(rounds, 0.02 * rounds) for rounds in (6, 4, 2))
TRIAL = Effort(rounds=1, target_s=0.01, warmup_s=0.01)


class Bench:
    """This machine, its clock and a fair coin; tests have another one, which takes no time."""

    now = staticmethod(time.monotonic)
    machine: Machine | None = None  # this one

    def toss(self) -> bool:
        """Toss a fair, unseeded coin: which side is started first."""
        return random.SystemRandom().random() < 0.5

    def capacity(self, threads: int) -> float:
        """Measure the work of `threads` spinning threads at the moment, in single threads."""
        return 1.0 if threads == 1 else machine_peaks.measure_capacity(threads, CAPACITY_S, cpu_order(threads))

    def measure(self, sides: Mapping[str, tuple[Side, Effort]]) -> list[MeasuredGroup]:
        """Measure sides, interleaved, by name, in fresh processes that are started in the order of the mapping."""
        efforts = [effort for _, effort in sides.values()]
        contestants = [_contestant(name, side, effort) for name, (side, effort) in sides.items()]
        seed = str(random.SystemRandom().random())
        return measure_generation(
            Generation(contestants, "", efforts[0].target_s, efforts[0].rounds, seed), self.machine
        )


def _contestant(name: str, side: Side, effort: Effort) -> Contestant:
    available = len(available_cpus())
    if side.threads > available:
        raise UsageError(
            f"{side.threads} threads need as many CPUs to be timed, this process may use {available}; ask for fewer"
        )
    return contestant_of(
        name,
        side.model,
        side.threads,
        plan=dict(side.plan),
        check_iterations=CHECK_ITERATIONS,
        warmup_s=effort.warmup_s,
        limit_s=effort.limit_s,
        rtol=side.rtol,
        variables=dict.fromkeys(("PYTHONPATH", TARGET_VARIABLE), side.installation) if side.installation else {},
    )


def check_turns(installation: str) -> None:
    """Raise `UsageError` if an installation holds a forktask whose measuring processes this one cannot talk to."""
    child = Path(installation, "forktask/experiments/sampling/child.py")
    if child.parents[2].is_dir() and not (child.exists() and ANSWERS in child.read_text()):
        raise UsageError(
            "both commits must have measuring processes that take turns and answer on a pipe of their own, and one is "
            "older than these; compare with a later commit"
        )
