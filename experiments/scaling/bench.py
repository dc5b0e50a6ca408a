"""What the clock tier measures with: two sides, how much a sample takes, and fresh processes that take samples."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...cython_src.errors import UsageError
from ..machine import machine_peaks
from ..machine.topology import available_cpus, cpu_order
from ..sampling.child import SAMPLE_COMMAND, TIME_LIMIT_S, clean_environment, run_sample, sample_environment
from ..sampling.models import parse_model, process_environment

CHECK_ITERATIONS = 2
CAPACITY_S = 0.04
FORMER_SAMPLE_MODULES = ("forktask.experiments.measure",)  # names of the measuring process's module, the latest first


@dataclass(frozen=True)
class Side:
    """One side of a comparison: a model on a number of threads, running a plan.

    Attributes
    ----------
    model : str
    threads : int
    plan : mapping
        Result of `subject.describe`.
    installation : str
        Folder from which the process imports packages first, one of two commits; empty: this installation.
    """

    model: str
    threads: int
    plan: Mapping[str, Any]
    installation: str = ""


@dataclass(frozen=True)
class Effort:
    """How much a sample measures, the same for both sides.

    Attributes
    ----------
    pairs : int
        Of short and long runs: of many runs that are as short as a step allows, some are undisturbed.
    target_s, warmup_s : float
        Time of the timed runs and of the warm-up, at least so many steps as they take: a process lives about four
        times as long.
    limit_s : float
        After which the process is stopped.
    """

    pairs: int = 20
    target_s: float = 0.1
    warmup_s: float = 0.1
    limit_s: float = TIME_LIMIT_S

    def passes(self) -> int:
        """Passes through the plan in a process, at least: checked, warming up, timed (one short and two long)."""
        return CHECK_ITERATIONS + 3 + 3 * self.pairs

    def seconds(self, fixed_s: float, pass_s: float) -> float:
        """Time of a process whose start takes `fixed_s` and whose passes take `pass_s`."""
        warm, timed = max(self.warmup_s, 3 * pass_s), max(self.target_s, 3 * self.pairs * pass_s)
        return fixed_s + CHECK_ITERATIONS * pass_s + warm + timed


EFFORTS = tuple(Effort(pairs) for pairs in (20, 10, 5, 3, 1))
TRIAL = Effort(pairs=1, target_s=0.0, warmup_s=0.01)


class Bench:
    """This machine, its clock and a fair coin; tests have another one, which takes no time."""

    now = staticmethod(time.monotonic)

    def toss(self) -> bool:
        """Toss a fair, unseeded coin; the error rate of claims at their limit rests on it."""
        return random.SystemRandom().random() < 0.5

    def capacity(self, threads: int) -> float:
        """Measure the work of `threads` spinning threads at the moment, in single threads."""
        return 1.0 if threads == 1 else machine_peaks.measure_capacity(threads, CAPACITY_S, cpu_order(threads))

    def sample(self, side: Side, effort: Effort = EFFORTS[0]) -> dict[str, Any]:
        """Take one sample in a fresh process, by the measuring loop of all commands."""
        cpus = available_cpus()
        if side.threads > len(cpus):
            raise UsageError(
                f"{side.threads} threads need as many CPUs to be timed, this process may use {len(cpus)}; ask for fewer"
            )
        settings = {**sample_environment(side.threads, 0, len(cpus)), **process_environment(parse_model(side.model))}
        if side.installation:
            settings["PYTHONPATH"] = side.installation
        job = {
            "kind": "sample",
            "model": side.model,
            "threads": side.threads,
            "cpus": cpu_order(side.threads, cpus),
            "plan": dict(side.plan),
            "seed": 1,
            "check_iterations": CHECK_ITERATIONS,
            "target_s": effort.target_s,
            "warmup_s": effort.warmup_s,
            "pairs": effort.pairs,
        }
        environment = clean_environment(os.environ, settings)
        return run_sample(job, environment, effort.limit_s, measuring_command(side.installation))


def measuring_command(installation: str) -> Sequence[str]:
    """Return the command of the process that measures a job in an installation of this or an earlier version.

    The job and the row that answers it are the same in all of them; the module has had other names.

    Raises
    ------
    UsageError
        The installation holds a forktask without any of these modules.
    """
    if not (installation and Path(installation, "forktask").is_dir()):
        return SAMPLE_COMMAND  # This forktask measures a package of the user's own.
    names = (SAMPLE_COMMAND[-1], *FORMER_SAMPLE_MODULES)
    for name in names:
        if Path(installation, *name.split(".")).with_suffix(".py").exists():
            return (*SAMPLE_COMMAND[:-1], name)
    raise UsageError(
        f"both commits must have a measuring process, one of {', '.join(names)}; compare with a later commit"
    )
