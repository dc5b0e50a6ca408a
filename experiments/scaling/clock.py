"""Clock tier: ratios of times taken side by side in one job, judged by a sequential test.

A round is four samples from fresh processes, as A B B A or B A A B by a toss, with the capacity of the
machine measured before and after. Rounds go on until the test decides or the budget is spent. Nothing
absolute is stored or compared.
"""

from __future__ import annotations

import math
import os
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...cython_src.errors import UsageError
from ..machine import machine_peaks
from ..machine.topology import available_cpus, cpu_order
from ..sampling.child import SAMPLE_COMMAND, TIME_LIMIT_S, clean_environment, run_sample, sample_environment
from ..sampling.models import parse_model, process_environment
from .sequential import FAIL, GO_ON, PASS, Decision, decide, judge

INCONCLUSIVE = "inconclusive"
DEFAULT_BUDGET_S = 120.0
TARGET_S = 0.1  # duration of a sample's timed runs; its process lives about four times as long
PAIRS = 20  # pairs of short and long runs in a sample; among many short runs some are undisturbed
WARMUP_S = 0.1
CHECK_ITERATIONS = 2
CAPACITY_S = 0.04
# A round is disturbed if it has more than this and more than twice the machine's usual value: shares of the timed wall
# time, and the relative change of the capacity.
DISTURBED = {"pressure": 0.1, "steal": 0.05, "throttled": 0.001, "capacity_change": 0.1}
USUAL_TIMES = 2.0
FIRST_ROUNDS = 3  # rounds that show the machine's usual disturbance, before any round is judged
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
    slowdown : float
        Each run is made longer by this part, to measure the power of the test.
    installation : str
        Folder from which the process imports packages first, one of two commits; empty: this installation.
    """

    model: str
    threads: int
    plan: Mapping[str, Any]
    slowdown: float = 0.0
    installation: str = ""


@dataclass
class Round:
    """Four samples, and the disturbance meanwhile.

    Attributes
    ----------
    order : str
        "ABBA" or "BAAB".
    times_s : list of float
        Step times, in that order.
    capacity : list of float
        The machine's capacity, before and after.
    disturbance : dict
        Values by the names of DISTURBED; None where the machine hides one.
    log_ratio : float
    discarded : str
        Reason why this round does not count; empty if it counts.
    """

    order: str
    times_s: list[float]
    capacity: list[float]
    disturbance: dict[str, float | None]
    log_ratio: float
    discarded: str = ""


@dataclass
class ClockResult:
    """Outcome of a claim.

    Attributes
    ----------
    claim : str
    limit : float
        Limit of the ratio of times, A / B.
    verdict : {"pass", "fail", "inconclusive"}
    decision : Decision
    rounds : list of Round, the discarded ones among them
    elapsed_s : float
    reason : str
        Reason of an inconclusive end.
    """

    claim: str
    limit: float
    verdict: str
    decision: Decision
    rounds: list[Round] = field(default_factory=list)
    elapsed_s: float = 0.0
    reason: str = ""

    @property
    def discarded(self) -> list[Round]:
        return [r for r in self.rounds if r.discarded]


Sampler = Callable[[Side], Mapping[str, Any]]


def run_clock_test(
    claim: str,
    sides: tuple[Side, Side],
    limit: float,
    *,
    budget_s: float,
    per_capacity: bool = False,
    sampler: Sampler | None = None,
    measure_capacity: Callable[[int], float] | None = None,
    clock: Callable[[], float] | None = None,
    toss: Callable[[], bool] | None = None,
    max_rounds: int | None = None,
) -> ClockResult:
    """Measure rounds until the claim "time of A / time of B is at most `limit`" is decided or the budget is spent.

    Parameters
    ----------
    claim : str
        The claim in words, for reports.
    sides : (A, B)
    limit : float
    budget_s : float
    per_capacity : bool
        A's time counts times the capacity: for efficiencies.
    sampler, measure_capacity, clock, toss : callables
        Replacements, for tests, of fresh processes, spinning threads, the clock and the coin.
    max_rounds : int, optional

    Returns
    -------
    ClockResult

    Raises
    ------
    RuntimeError
        A process failed, or two samples of one plan and length left different results.
    """
    sampler = sampler or sample
    measure_capacity = measure_capacity or capacity
    clock = clock or now
    toss = toss or toss_coin
    threads = max(side.threads for side in sides)
    rounds: list[Round] = []
    start = clock()
    longest = 0.0
    verdict = GO_ON
    before = measure_capacity(threads) if budget_s > 0 else math.nan
    while clock() - start + longest <= budget_s and budget_s > 0 and len(rounds) != max_rounds:
        begun = clock()
        order = "ABBA" if toss() else "BAAB"
        rows = [_checked(sampler(sides[side == "B"]), sides[side == "B"]) for side in order]
        _check_same_results(rows, sides)
        after = measure_capacity(threads)
        rounds.append(_round(order, rows, (before, after), per_capacity))
        before = after
        longest = max(longest, clock() - begun)
        mark_disturbed(rounds)
        if len(rounds) >= FIRST_ROUNDS:
            verdict = judge([r.log_ratio for r in rounds if not r.discarded], limit)
        if verdict in (PASS, FAIL):
            break
    decision = decide([r.log_ratio for r in rounds if not r.discarded], limit)
    result = ClockResult(claim, limit, verdict, decision, rounds, clock() - start)
    if verdict in (PASS, FAIL):
        return result
    result.verdict = INCONCLUSIVE
    if not rounds:
        result.reason = f"a budget of {budget_s:g} s has no room for a round"
    else:
        result.reason = (
            f"after {decision.rounds} rounds in {result.elapsed_s:.0f} s ({len(result.discarded)} discarded) the "
            f"ratio is {describe(decision.ratio, decision.low, decision.high)}, the limit {limit:.4g}"
        )
    return result


def describe(value: float, low: float, high: float) -> str:
    """Format a ratio with its interval: `1.02 [0.98, 1.07]`, with dots if few rounds give no end yet."""
    return f"{value:.3f} [{'...' if low == 0 else f'{low:.3f}'}, {'...' if math.isinf(high) else f'{high:.3f}'}]"


def _checked(row: Mapping[str, Any], side: Side) -> Mapping[str, Any]:
    if "failure" in row:
        raise RuntimeError(
            f"{side.model} on {side.threads} threads did not run ({row['failure']}): {row['message'].splitlines()[0]}"
        )
    return row


def _check_same_results(rows: Sequence[Mapping[str, Any]], sides: tuple[Side, Side]) -> None:
    """Check that all samples computed the same: otherwise a ratio of times means nothing."""
    if (sides[0].plan, sides[0].installation) != (sides[1].plan, sides[1].installation):
        return  # Two commits may rightly compute different results.
    hashes = {(row["weights_hash"], row["losses_hash"]) for row in rows if row.get("deterministic", True)}
    if len(hashes) > 1:
        raise RuntimeError(f"{sides[0].model} and {sides[1].model} must leave the same results, they differ")


def step_time_s(row: Mapping[str, Any]) -> float:
    """Return the time of a step in a sample: the time of its fastest run, divided by the run's steps.

    Other programs can only add to a time. A run as long as a scheduler's slice or shorter often meets none of
    them, and on a machine with four times as many busy threads as CPUs the fastest of forty runs was found to
    spread by 2 % from process to process where their mean spread by 6 and slopes by 15.
    """
    return min(t / n for t, n in zip(row["run_times_s"], row["run_lengths"], strict=True))


def _round(order: str, rows: Sequence[Mapping[str, Any]], capacity: tuple[float, float], per_capacity: bool) -> Round:
    sign = [1 if side == "A" else -1 for side in order]
    times_s = [step_time_s(row) for row in rows]
    log_ratio = sum(s * math.log(t) for s, t in zip(sign, times_s, strict=True)) / 2
    if per_capacity:
        log_ratio += math.log((capacity[0] + capacity[1]) / 2)
    return Round(order, times_s, list(capacity), _disturbance(rows, capacity), log_ratio)


def _disturbance(rows: Sequence[Mapping[str, Any]], capacity: tuple[float, float]) -> dict[str, float | None]:
    """Return the disturbance of a round on either side: shares of the timed time, and capacity change."""
    wall = sum(row["timed_wall_s"] for row in rows)

    def share(name: str, unit_s: float) -> float | None:
        values = [row["disturbance"].get(name) for row in rows]
        return None if None in values else sum(values) * unit_s / wall

    return {
        "pressure": share("pressure_some_us", 1e-6),
        "steal": share("steal_ticks", 1 / os.sysconf("SC_CLK_TCK")),
        "throttled": share("throttled_us", 1e-6),
        "capacity_change": abs(math.log(capacity[1] / capacity[0])),
    }


def mark_disturbed(rounds: list[Round]) -> None:
    """Mark the latest round if it was disturbed; the first few rounds are judged together, once there are enough.

    The rule looks at whole rounds and not at the side that was disturbed, so it favours neither and the test stays
    exact. The machine's usual disturbance discards no round: otherwise a busy machine would leave none.
    """
    if len(rounds) < FIRST_ROUNDS:
        return
    for r in rounds if len(rounds) == FIRST_ROUNDS else rounds[-1:]:
        reasons = []
        for name, limit in DISTURBED.items():
            seen = [other.disturbance[name] for other in rounds if other.disturbance[name] is not None]
            value = r.disturbance[name]
            if value is not None and value > limit and value > USUAL_TIMES * statistics.median(seen):
                reasons.append(f"{name.replace('_', ' ')} {value:.0%}")
        r.discarded = ", ".join(reasons)


# --- measuring
# ---------------------------------------------------------------------------------------------------------


now = time.monotonic


def toss_coin() -> bool:
    """Toss a fair, unseeded coin; the error rate of claims at their limit rests on it."""
    return random.SystemRandom().random() < 0.5


def capacity(threads: int) -> float:
    """Measure the work of `threads` spinning threads at the moment, in single threads."""
    return 1.0 if threads == 1 else machine_peaks.measure_capacity(threads, CAPACITY_S, cpu_order(threads))


def sample(side: Side) -> dict[str, Any]:
    """Measure one sample in a fresh process, by the measuring loop of all commands."""
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
        "target_s": TARGET_S,
        "warmup_s": WARMUP_S,
        "pairs": PAIRS,
        **({"slowdown": side.slowdown} if side.slowdown else {}),
    }
    return run_sample(job, clean_environment(os.environ, settings), TIME_LIMIT_S, measuring_command(side.installation))


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
