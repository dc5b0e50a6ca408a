"""Times and their ratios, with intervals that hold at every look: value, interval and verdict come from here alone.

The contestants of a session take turns in rounds. A process keeps what placement gave it (about 1 %), so a *generation*
of processes is the unit of an interval, and its rounds make one log time of each point:

    log time (point, round) = point in this generation + round + noise        fitted by medians
    log time (point, generation) = point + generation + placement             likewise; wild placements are clipped

The value of a ratio is a difference of points' means over generations, so that all ratios and times agree with each
other. Its interval is a t interval of these differences, with the boundary of a mixture in place of Student's quantile:
it holds at all looks together, so that measuring may stop as soon as it answers.

References
----------
Tukey, "Exploratory Data Analysis" (1977), chapter 11 (median polish). Lai, Annals of Statistics 4 (1976), and Wang and
Ramdas, "Anytime-valid t-tests and confidence sequences" (2024) (the mixture; its height is calibrated to 5 % by
simulation, and little is spent after HORIZON generations: docs/notes/intervals_of_ratios.md).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar

import numpy as np

FASTER, SLOWER, SAME, UNDECIDED = "faster", "slower", "same", "undecided"
EQUIVALENCE_BAND = 0.02
MIN_GENERATIONS = 6
# The boundary: the prior's weight in generations, its height, and where it begins to rise.
PRIOR, LEVEL, HORIZON = 2.0, 10.0, 40.0
STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}  # 97.5 % quantiles by number of takes
CLIPPED_AT = 5.0  # of the distances of a point's generations from their median, in robust standard deviations
POLISHING = 10  # passes of median polish; later ones move effects by less than a tenth of a standard error
Key = TypeVar("Key", bound=Hashable)
Turn = tuple[int, Hashable, int]  # generation, session, round


@dataclass(frozen=True)
class Estimate:
    """A positive value with its 95 % interval.

    Attributes
    ----------
    value : float
        NaN without samples.
    low, high : float
        NaN of turns in fewer than `MIN_GENERATIONS` generations, and of a single take.
    count : int
        Generations, or takes of what is measured once in each.
    """

    value: float
    low: float
    high: float
    count: int

    @property
    def known(self) -> bool:
        """Whether there is an interval."""
        return math.isfinite(self.low)

    def divided_by(self, number: float) -> Estimate:
        """Return the estimate of a positive multiple."""
        return Estimate(self.value / number, self.low / number, self.high / number, self.count)

    def inverse(self) -> Estimate:
        """Return the estimate of the inverse."""
        return Estimate(1 / self.value, 1 / self.high, 1 / self.low, self.count)

    def over(self, other: Estimate) -> Estimate:
        """Return the quotient of two estimates, its interval as wide as both intervals allow.

        An estimate without an interval counts as exact.
        """
        low, high = (other.low, other.high) if other.known else (other.value, other.value)
        own_low, own_high = (self.low, self.high) if self.known else (self.value, self.value)
        known = self.known or other.known
        return Estimate(
            self.value / other.value,
            own_low / high if known else math.nan,
            own_high / low if known else math.nan,
            min(self.count, other.count),
        )


NOTHING = Estimate(math.nan, math.nan, math.nan, 0)


def half_width(differences: np.ndarray) -> float:
    """Return the half-width of the interval of a mean, valid at all looks together; infinite for few values.

    Parameters
    ----------
    differences : float, shape (n,)
        One from each generation, in logarithms.
    """
    n = len(differences)
    if n < MIN_GENERATIONS:
        return math.inf
    level = LEVEL * math.hypot(1, n / HORIZON)
    growth = (level * math.sqrt((n + PRIOR) / PRIOR)) ** (2 / n)
    # t^2 / (n - 1), where the mixture of likelihood ratios reaches the level
    squared = (growth - 1) / (1 - growth * PRIOR / (n + PRIOR))
    return float(np.std(differences)) * math.sqrt(squared)


def estimate(values: Iterable[float], value: float | None = None) -> Estimate:
    """Return what takes of a positive value have in common: their mean in logarithms, or `value`.

    Few takes, whose number was fixed before, have Student's interval; NaN where one is not known or not positive.
    """
    found = np.array([*values], dtype=float)
    if not len(found) or not (np.isfinite(found) & (found > 0)).all():
        return NOTHING
    logs = clipped(np.log(found))
    half = half_width(logs)
    if len(logs) in STUDENT:
        half = STUDENT[len(logs)] * float(np.std(logs, ddof=1)) / math.sqrt(len(logs))
    return _around(float(np.mean(logs)) if value is None else math.log(value), half, len(logs))


def _around(log_value: float, half: float, count: int) -> Estimate:
    value = math.exp(log_value)
    if not math.isfinite(half):
        return Estimate(value, math.nan, math.nan, count)
    return Estimate(value, value * math.exp(-half), value * math.exp(half), count)


def clipped(values: np.ndarray) -> np.ndarray:
    """Return values that lie no further than `CLIPPED_AT` robust standard deviations from their column's median.

    The standard deviation of a column comes from its differences to the others, or is that of all columns where this is
    larger: that of six values alone is too often too small. NaN stay.
    """
    middle = np.nanmedian(values, axis=0)
    if values.ndim == 1:
        deviation = _deviation(values)
    else:
        apart = _deviation(values[:, :, None] - values[:, None, :]) / math.sqrt(2)
        np.fill_diagonal(apart, math.nan)
        apart = np.where(np.isnan(apart).all(axis=1, keepdims=True), _deviation(values)[:, None], apart)
        deviation = np.maximum(np.nanmedian(apart, axis=1), np.nanmedian(apart))
    return np.clip(values, middle - CLIPPED_AT * deviation, middle + CLIPPED_AT * deviation)


def _deviation(values: np.ndarray) -> np.ndarray:
    with warnings.catch_warnings():  # columns that share no row
        warnings.simplefilter("ignore", RuntimeWarning)
        return 1.4826 * np.nanmedian(np.abs(values - np.nanmedian(values, axis=0)), axis=0)


def median_polish(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the effects of rows and of columns of a table, which may have gaps: table = row + column + rest.

    Effects of rows have the median 0; every row and column has a value.
    """
    rows, columns = np.zeros(table.shape[0]), np.zeros(table.shape[1])
    for _ in range(POLISHING):
        columns = np.nanmedian(table - rows[:, None], axis=0)
        rows = np.nanmedian(table - columns, axis=1)
        rows -= np.median(rows)
    return rows, np.nanmedian(table - rows[:, None], axis=0)


class Estimates(Generic[Key]):
    """Times of points that took turns, and their ratios.

    Parameters
    ----------
    points : mapping of point to {(generation, session, round): seconds}
        Without disturbed rounds. Points of one session took turns in its rounds; sessions of one generation that share
        a point are compared through it, others by their times.
    """

    def __init__(self, points: Mapping[Key, Mapping[Turn, float]]):
        self.points = points

    @cached_property
    def _logs(self) -> tuple[list[int], np.ndarray]:
        """Generations, and log times, a row for each and a column for each point; NaN where it was not measured."""
        sessions: dict[int, dict[Hashable, dict[Key, dict[int, float]]]] = {}
        for key, turns in self.points.items():
            for (generation, session, number), seconds in turns.items():
                session_turns = sessions.setdefault(generation, {}).setdefault(session, {})
                session_turns.setdefault(key, {})[number] = math.log(seconds)
        columns = {key: column for column, key in enumerate(self.points)}
        table = np.full((len(sessions), len(columns)), math.nan)
        for row, generation in enumerate(sorted(sessions)):
            effects = np.full((len(sessions[generation]), len(columns)), math.nan)
            for line, turns in zip(effects, sessions[generation].values(), strict=True):
                numbers = sorted(set().union(*turns.values()))
                logs = np.array([[turns[key].get(number, math.nan) for key in turns] for number in numbers])
                line[[columns[key] for key in turns]] = median_polish(logs)[1]
            table[row] = _joined(effects)
        return sorted(sessions), table

    @cached_property
    def _fit(self) -> tuple[np.ndarray, dict[Key, np.ndarray]]:
        """What the log times of each generation have in common, and each point's part in it, clipped."""
        _, table = self._logs
        if not table.size:
            return np.zeros(0), {}
        common, _ = median_polish(table)
        return common, dict(zip(self.points, clipped(table - common[:, None]).T, strict=True))

    @cached_property
    def _means(self) -> dict[Key, float]:
        return {key: float(np.nanmean(part)) for key, part in self._fit[1].items()}

    def generations(self, *points: Key) -> int:
        """Return in how many generations all of some points were measured."""
        return len(set.intersection(*({turn[0] for turn in self.points.get(point, ())} for point in points)))

    def rounds(self, *points: Key) -> int:
        """Return in how many rounds all of some points had a turn."""
        return len(set.intersection(*(set(self.points.get(point, ())) for point in points)))

    def times(self, point: Key) -> dict[int, float]:
        """Return the seconds of a point in each generation, as they were measured."""
        if point not in self.points:
            return {}
        generations, table = self._logs
        known = zip(generations, table[:, list(self.points).index(point)], strict=True)
        return {generation: math.exp(log) for generation, log in known if not math.isnan(log)}

    def time(self, point: Key) -> Estimate:
        """Return the seconds of a point; NaN if it was not measured."""
        if point not in self.points:
            return NOTHING
        common, parts = self._fit
        logs = (common + parts[point])[~np.isnan(parts[point])]
        return _around(float(np.mean(common)) + self._means[point], half_width(logs), len(logs))

    def contrast(self, weights: Mapping[Key, float]) -> Estimate:
        """Return the product of points' times to the power of their weights, which add up to 0; NaN if no generation
        has them all."""
        differences = np.sum([weight * self._fit[1][point] for point, weight in weights.items()], axis=0)
        value = sum(weight * self._means[point] for point, weight in weights.items())
        return _over_generations(differences, value)

    def ratio(self, numerator: Key, denominator: Key) -> Estimate:
        """Return the ratio of two points' times; NaN if they share no generation."""
        return self.contrast({numerator: 1, denominator: -1} if numerator != denominator else {numerator: 0})

    def fastest(self, candidates: Sequence[Key]) -> Key:
        """Return the candidate with the shortest time."""
        return min(candidates, key=self._means.__getitem__)

    def ratio_to_fastest(self, numerator: Key, candidates: Sequence[Key]) -> Estimate:
        """Return the ratio of a point's time and that of the fastest candidate.

        Each generation is compared with the candidate that is the fastest in all *others*: chosen by the times that it
        is compared on, it would look faster than it is. The value is the ratio to the fastest in all generations; the
        interval holds both.
        """
        fastest = candidates.index(self.fastest(candidates))
        parts = np.array([self._fit[1][candidate] for candidate in candidates])
        present = ~np.isnan(parts)
        others = present.sum(axis=1, keepdims=True) - present
        total = np.nansum(parts, axis=1, keepdims=True) - np.nan_to_num(parts)
        elsewhere = np.where(present & (others > 0), total / np.maximum(others, 1), math.inf)
        chosen = np.where(np.isfinite(elsewhere).any(axis=0), elsewhere.argmin(axis=0), fastest)
        if (chosen == fastest).all():
            return self.ratio(numerator, candidates[fastest])
        differences = self._fit[1][numerator] - parts[chosen, np.arange(parts.shape[1])]
        return _over_generations(differences, self._means[numerator] - self._means[candidates[fastest]])


def _joined(effects: np.ndarray) -> np.ndarray:
    """Return log times of a generation's points from those of its sessions, rows, whose shared points are equal."""
    if len(effects) == 1:
        return effects[0]
    counts = (~np.isnan(effects)).sum(axis=0)
    shared = effects[:, counts > 1]
    apart = shared - np.nanmean(shared, axis=0)
    own = (~np.isnan(apart)).sum(axis=1)
    sessions = np.nansum(apart, axis=1) / np.maximum(own, 1)
    return np.nansum(effects - sessions[:, None], axis=0) / np.where(counts, counts, math.nan)


def _over_generations(differences: np.ndarray, value: float) -> Estimate:
    """Return the estimate of a log value, whose interval also holds the mean of the differences."""
    known = differences[~np.isnan(differences)]
    if not len(known):
        return NOTHING
    return _around(value, half_width(known) + abs(float(np.mean(known)) - value), len(known))


def verdict(time_ratio: Estimate, band: float = EQUIVALENCE_BAND) -> str:
    """Judge a ratio of times: "faster" or "slower" where its interval says so, else "same" where the interval lies
    within [1 / (1 + band), 1 + band], else "undecided"."""
    if time_ratio.high < 1:
        return FASTER
    if time_ratio.low > 1:
        return SLOWER
    return SAME if matters_not(time_ratio, band) else UNDECIDED


def matters_not(time_ratio: Estimate, band: float = EQUIVALENCE_BAND) -> bool:
    """Return whether a difference, if there is any, is too small to matter: below the band."""
    return 1 / (1 + band) <= time_ratio.low and time_ratio.high <= 1 + band


def amount(time_ratio: Estimate, band: float = EQUIVALENCE_BAND) -> str:
    """Say by how much a time differs from another: "0.4 to 1.2 %, too little to matter", "within 2 %", "-0.8 to
    +3.0 %" of what is undecided; or how many generations an answer takes."""
    if not time_ratio.known:
        return f"{time_ratio.count} of {MIN_GENERATIONS} generations"
    low, high = 100 * (time_ratio.low - 1), 100 * (time_ratio.high - 1)
    answer = verdict(time_ratio, band)
    if answer == SAME:
        return f"within {100 * band:g} %"
    if answer == UNDECIDED:
        return f"{low:+.1f} to {high:+.1f} %"
    least, most = (-high, -low) if answer == FASTER else (low, high)
    little = ", too little to matter" if matters_not(time_ratio, band) else ""
    return f"{least:.1f} to {most:.1f} %{little}"
