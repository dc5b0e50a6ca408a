"""The only timing loop: it warms up until stationary, then times runs of two lengths in turns; a step is the slope.
Long steps have runs of one length."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

WARMUP_WINDOW = 8  # runs that the stationarity test looks at
WARMUP_CHUNK_S = 0.005  # shortest run that is timed during warm-up: 250 times the clock's and the call's cost
# Before a turn on a GPU: its clock falls while others have their turns, and takes about so long to rise.
GPU_UNTIMED_S = 0.02
LONG_PASS_S = 0.25  # of a pass that fills the caches and wakes the threads by itself, within a percent of its time
# From this time of a pass on one run is timed: what it takes besides its passes, some ten microseconds, is below a
# thousandth of it, and the difference of two runs has two to three times the noise of their sum.
ONE_RUN_S = 0.05
ONE_RUN_PASSES = 3  # a run's last pass has none to overlap with
FALLING_Z = 1.645  # one-sided 5 % quantile of the normal distribution


@dataclass
class Stepper:
    """Runner of an executor that counts iterations, so that each run continues where the last one ended."""

    executor: Any  # anything with `run(num_iterations, first_iteration)`
    stride: int = 1  # iterations of one pass through the plan
    # seconds, monotonic
    clock: Callable[[], float] = time.perf_counter
    iterations_done: int = 0

    def run(self, passes: int) -> float:
        """Run `passes` passes through the plan and return how long they took, in seconds."""
        count = passes * self.stride
        start = self.clock()
        self.executor.run(count, self.iterations_done)
        elapsed = self.clock() - start
        self.iterations_done += count
        return elapsed

    def pass_times(self, run_s: float, runs: int) -> list[float]:
        """Return the seconds of a pass in each of several runs, which take about `run_s`."""
        passes = 1
        while (elapsed := self.run(passes)) < run_s / 2 and passes < 1 << 20:
            passes *= 2
        passes = max(1, round(passes * run_s / elapsed))
        return [self.run(passes) / passes for _ in range(runs)]


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
    """Runs before the timed ones."""

    passes: list[int]
    times_s: list[float]  # of whole runs, of `passes` passes each
    stationary: bool  # whether the test was passed before time was up

    @property
    def pass_time_s(self) -> float:
        """Time of one pass at the end of the warm-up: median of the last runs."""
        count = min(WARMUP_WINDOW, len(self.times_s))
        return float(np.median([t / n for t, n in zip(self.times_s[-count:], self.passes[-count:], strict=True)]))


def warm_up(stepper: Stepper, limit_s: float, made: Sequence[tuple[int, float]] = ()) -> WarmUp:
    """Run until the time of a pass no longer falls, for `limit_s` at most (two runs at least).

    The length of a run is doubled until it takes `WARMUP_CHUNK_S`; then runs of that length go on until the last
    `WARMUP_WINDOW` of them show no falling trend. Runs that were `made` before, as passes and seconds, count where
    their passes are long, so that some of them are a warm-up.
    """
    made = [run for run in made if run[1] >= LONG_PASS_S * run[0]]
    passes, times = [count for count, _ in made], [seconds for _, seconds in made]
    length, spent, first_full = 1, sum(times), 0 if made else None
    while spent < limit_s or len(times) < 2:
        times.append(stepper.run(length))
        passes.append(length)
        spent += times[-1]
        if first_full is None:
            if times[-1] < WARMUP_CHUNK_S:
                length *= 2
                continue
            first_full = len(times) - 1
        window = [seconds / count for seconds, count in zip(times, passes, strict=True)][first_full:][-WARMUP_WINDOW:]
        if len(window) == WARMUP_WINDOW and not still_falling(window):
            return WarmUp(passes, times, True)
    return WarmUp(passes, times, False)


def turn_lengths(pass_time_s: float, turn_s: float, untimed_s: float = 0.0) -> tuple[int, int, int]:
    """Return the lengths in passes of a turn's untimed run, of at least `untimed_s`, and of its short and its long one,
    which take about `turn_s` together.

    The step time is the slope between the two timed runs, and the further apart these are, the less their noise moves
    it: by a quarter less with 1 and 9 passes than with 2 and 8. The long run has three passes at least. Of passes of
    `ONE_RUN_S` and more there is no short run, of those of `LONG_PASS_S` no untimed one either but on a GPU.
    """
    if pass_time_s >= LONG_PASS_S:
        return math.ceil(untimed_s / pass_time_s), 0, ONE_RUN_PASSES
    budget = turn_s / max(pass_time_s, 1e-9)  # in passes
    untimed = max(1, int(budget / 5), math.ceil(untimed_s / max(pass_time_s, 1e-9)))
    if pass_time_s >= ONE_RUN_S:
        return untimed, 0, ONE_RUN_PASSES
    short = max(1, int(budget / 10))
    return untimed, short, max(3 * short, int(budget) - short)


def take_turns(
    stepper: Stepper,
    pass_time_s: float,
    turn_s: float,
    meanwhile: AbstractContextManager | None = None,
    untimed_s: float = 0.0,
) -> Generator[dict[str, Any], dict[str, Any] | None, int]:
    """Say that the process is ready, then take a turn for each request, and return the number of steps of all.

    A turn begins with an untimed run: the contestant before has used the caches, and threads may sleep.

    Parameters
    ----------
    pass_time_s : float
        Time of one pass through the plan, from the warm-up.
    turn_s : float
        Duration of the timed runs of a turn.
    meanwhile : context manager, optional
        Entered for each turn.
    untimed_s : float
        Least duration of the untimed run.
    """
    untimed, short, long = turn_lengths(pass_time_s, turn_s, untimed_s)
    steps = {"short_steps": short * stepper.stride, "long_steps": long * stepper.stride}
    turn = yield {**steps, "turn_s": (short + long) * pass_time_s}
    turns = 0
    while turn is not None:
        with meanwhile or nullcontext():
            if untimed:
                stepper.run(untimed)
            lengths = (long, short) if turn["long_first"] else (short, long)
            times = {0: 0.0} | {n: stepper.run(n) for n in lengths if n}
        turns += 1
        turn = yield {"short_s": times[short], "long_s": times[long]}
    return turns * (untimed + short + long) * stepper.stride
