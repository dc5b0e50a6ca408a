"""The only timing loop: it warms up until stationary, then alternates runs of two lengths; their slope is a step."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

WARMUP_WINDOW = 8  # runs that the stationarity test looks at
WARMUP_CHUNK_S = 0.02  # shortest run that is timed during warm-up: 1000 times the clock's and the call's cost
FALLING_Z = 1.645  # one-sided 5 % quantile of the normal distribution
LEAST_PAIRS = 3  # of a short and a long run
MAX_ROUNDS = 3  # rounds of timed runs at most, if the first gave no slope


class Stepper:
    """Runner of an executor that counts iterations, so that each run continues where the last one ended.

    Parameters
    ----------
    executor
        Anything with `run(num_iterations, first_iteration)`.
    stride : int
        Iterations of one pass through the plan.
    clock : callable
        Seconds, monotonic.
    """

    def __init__(self, executor, stride: int = 1, clock: Callable[[], float] = time.perf_counter):
        self.executor = executor
        self.stride = stride
        self.clock = clock
        self.iterations_done = 0

    def run(self, passes: int) -> float:
        """Run `passes` passes through the plan and return how long they took, in seconds."""
        count = passes * self.stride
        start = self.clock()
        self.executor.run(count, self.iterations_done)
        elapsed = self.clock() - start
        self.iterations_done += count
        return elapsed


def still_falling(times: Sequence[float]) -> bool:
    """Return whether a series is still getting faster, by Mann and Kendall's test for a trend.

    S counts, over all pairs, those that rise minus those that fall. Without a trend S has mean 0 and variance
    n (n - 1) (2 n + 5) / 18, whatever the distribution; the series is falling if S lies below -1.645 standard
    deviations. Only order counts, so a single disturbed run does not decide.

    References
    ----------
    Mann, "Nonparametric tests against trend", Econometrica 13 (1945).
    """
    n = len(times)
    values = np.asarray(times)
    later, earlier = np.triu_indices(n, 1)[::-1]
    s = np.sign(values[later] - values[earlier]).sum()
    return bool(s < -FALLING_Z * math.sqrt(n * (n - 1) * (2 * n + 5) / 18))


@dataclass(frozen=True)
class WarmUp:
    """Runs before the timed ones.

    Attributes
    ----------
    passes : list of int
    times_s : list of float
        Of whole runs, of `passes` passes each.
    stationary : bool
        Whether the test was passed before time was up.
    """

    passes: list[int]
    times_s: list[float]
    stationary: bool

    @property
    def pass_time_s(self) -> float:
        """Time of one pass at the end of the warm-up: median of the last runs."""
        count = min(WARMUP_WINDOW, len(self.times_s))
        return float(np.median([t / n for t, n in zip(self.times_s[-count:], self.passes[-count:], strict=True)]))


def warm_up(stepper: Stepper, limit_s: float, chunk_s: float = WARMUP_CHUNK_S) -> WarmUp:
    """Run until the time of a pass no longer falls, for `limit_s` at most (two runs at least).

    The length of a run is doubled until it takes `chunk_s`; then runs of that length go on until the last
    `WARMUP_WINDOW` of them show no falling trend.
    """
    passes: list[int] = []
    times: list[float] = []
    length, spent, first_full = 1, 0.0, None
    while spent < limit_s or len(times) < 2:
        times.append(stepper.run(length))
        passes.append(length)
        spent += times[-1]
        if first_full is None:
            if times[-1] < chunk_s:
                length *= 2
                continue
            first_full = len(times) - 1
        window = times[first_full:][-WARMUP_WINDOW:]
        if len(window) == WARMUP_WINDOW and not still_falling(window):
            return WarmUp(passes, times, True)
    return WarmUp(passes, times, False)


@dataclass(frozen=True)
class Timed:
    """Timed runs of two lengths, alternating.

    Attributes
    ----------
    run_lengths : list of int
        Iterations (steps) of each run.
    run_times_s : list of float
    """

    run_lengths: list[int]
    run_times_s: list[float]

    @property
    def step_time_s(self) -> float:
        """Slope: the cost of one more iteration.

        Median of (long - short) / (difference in length) over all pairs of a long and a short run (Hodges and
        Lehmann's shift estimate): a few disturbed runs do not move it.
        """
        lengths, times = np.array(self.run_lengths), np.array(self.run_times_s)
        short, long = lengths.min(), lengths.max()
        shift = np.median(np.subtract.outer(times[lengths == long], times[lengths == short]))
        return float(shift / (long - short))

    @property
    def fill_time_s(self) -> float:
        """Intercept: the cost of a run besides its iterations, such as filling and draining a pipeline."""
        lengths, times = np.array(self.run_lengths), np.array(self.run_times_s)
        short = lengths.min()
        return float(np.median(times[lengths == short]) - short * self.step_time_s)


def run_lengths_for(
    pass_time_s: float, target_s: float, pairs: int | None = None, least_pairs: int = LEAST_PAIRS
) -> tuple[int, int, int]:
    """Return (short, long, pairs): run lengths in passes and how many of each, lasting about `target_s` together.

    The long run is four times the short one where steps are short enough; at least `least_pairs`, at most 15,
    unless `pairs` says how many.
    """
    budget = target_s / max(pass_time_s, 1e-9)  # in passes
    pairs = int(min(max(budget / 15, least_pairs), 15)) if pairs is None else pairs
    short = max(1, int(budget / pairs / 5))
    long = max(short + 1, min(4 * short, int(budget / pairs) - short))
    return short, long, pairs


def time_runs(
    stepper: Stepper, pass_time_s: float, target_s: float, pairs: int | None = None, least_pairs: int = LEAST_PAIRS
) -> Timed:
    """Alternate short and long runs as A B B A, so that a slow drift cancels.

    If long runs did not take longer than short ones, disturbances were larger than the measured difference: another
    round is measured and added, up to `MAX_ROUNDS` in all.
    """
    short, long, pairs = run_lengths_for(pass_time_s, target_s, pairs, least_pairs)
    lengths: list[int] = []
    times: list[float] = []
    for _ in range(MAX_ROUNDS):
        for pair in range(pairs):
            for passes in (short, long) if pair % 2 == 0 else (long, short):
                times.append(stepper.run(passes))
                lengths.append(passes * stepper.stride)
        timed = Timed(lengths, times)
        if timed.step_time_s > 0:
            break
    return timed
