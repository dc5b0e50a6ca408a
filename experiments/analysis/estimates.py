"""Times and their ratios, with intervals that hold at every look: value, interval and verdict come from here alone.

The contestants of a group take turns in rounds. A process keeps what placement gave it (about 1 %), so a *generation*
of processes is the unit of an interval, and its rounds make one log time of each point:

    log time (point, round) = point in this generation + round + noise        fitted by medians
    log time (point, generation) = point + generation + placement             likewise; wild placements are clipped

The value of a ratio is a difference of points' means over generations, so that all ratios and times agree with each
other. Its interval is a t interval of these differences, with the boundary of a mixture in place of Student's quantile:
it holds at all looks together, so that measuring may stop as soon as it answers.

A machine is in another state an hour later, so an interval over generations holds for the *session* in which they were
measured. From `MIN_SESSIONS` on the means of sessions take the place of generations, in the same procedure.

References
----------
Tukey, "Exploratory Data Analysis" (1977), chapter 11 (median polish). Lai, Annals of Statistics 4 (1976), and Wang and
Ramdas, "Anytime-valid t-tests and confidence sequences" (2024) (the mixture; its height is calibrated to 5 % by
simulation, and little is spent after HORIZON generations: docs/notes/intervals_of_ratios.md).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np

from ..results.turns import Turn
from ..tables.numbers import EQUIVALENCE_BAND, beside

FASTER, SLOWER, SAME, UNDECIDED = "faster", "slower", "same", "undecided"
NOT_USABLE = "not usable"  # in place of a verdict on a time that must not be used
MIN_GENERATIONS, MIN_SESSIONS = 6, 3
# Undisturbed rounds behind a verdict, and their share; chosen by simulation (docs/notes/intervals_of_ratios.md).
LEAST_ROUNDS, UNDISTURBED_SHARE = 12, 1 / 3
IN_SIGHT = 1000  # generations
# Least ratio to the fastest, in each generation and in half of the rounds that a verdict needs, of a model that is no
# contender, although there is no interval yet: placement changes a time by 1 %, a session by less than 15 %.
FAR_BEHIND = 1.3
# The boundary: the prior's weight in generations, or in sessions, its height, and where it begins to rise.
PRIOR, SESSION_PRIOR, LEVEL, HORIZON = 2.0, 0.1, 10.0, 40.0
STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}  # 97.5 % quantiles by number of takes
CLIPPED_AT = 5.0  # of the distances of a point's generations from their median, in robust standard deviations
POLISHING = 10  # passes of median polish; later ones move effects by less than a tenth of a standard error
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Estimate:
    """A positive value with its 95 % interval."""

    value: float  # NaN without samples
    # low, high: NaN of turns in fewer than `MIN_GENERATIONS` generations, and of a single take
    low: float
    high: float
    # generations, or takes of what is measured once in each
    count: int
    rounds: int | None = None  # undisturbed rounds behind it, where turns were taken
    needed: int = LEAST_ROUNDS  # undisturbed rounds that a verdict needs
    sessions: int = 1  # in which these were; from `MIN_SESSIONS` on the interval is over them
    # distance between the values of the sessions that are furthest apart, in logarithms; NaN of one session
    apart: float = math.nan

    @property
    def known(self) -> bool:
        """Whether there is an interval."""
        return math.isfinite(self.low)

    @property
    def half_width(self) -> float:
        """Half of the interval, in logarithms."""
        return math.log(self.high / self.low) / 2

    @property
    def enough(self) -> bool:
        """Whether a verdict may rest on it: it has an interval, and enough undisturbed rounds where it has any."""
        return self.known and (self.rounds is None or self.rounds >= self.needed)

    def divided_by(self, number: float) -> Estimate:
        """Return the estimate of a positive multiple."""
        return replace(self, value=self.value / number, low=self.low / number, high=self.high / number)

    def inverse(self) -> Estimate:
        """Return the estimate of the inverse."""
        return replace(self, value=1 / self.value, low=1 / self.high, high=1 / self.low)

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
            min((each.rounds for each in (self, other) if each.rounds is not None), default=None),
            max(self.needed, other.needed),
            min(self.sessions, other.sessions),
        )


NOTHING = Estimate(math.nan, math.nan, math.nan, 0)


def half_width(differences: np.ndarray, least: int = MIN_GENERATIONS, prior: float = PRIOR) -> float:
    """Return the half-width of the interval of a mean, valid at all looks together; infinite for few values.
    `differences`: one from each generation, or session, in logarithms."""
    n = len(differences)
    return math.inf if n < least else float(np.std(differences)) * boundary(n, prior)


def boundary(n: int, prior: float = PRIOR) -> float:
    """Return the half-width of the interval of a mean of n values, in their standard deviations."""
    level = LEVEL * math.hypot(1, n / HORIZON)
    growth = (level * math.sqrt((n + prior) / prior)) ** (2 / n)
    # t^2 / (n - 1), where the mixture of likelihood ratios reaches the level
    return math.sqrt((growth - 1) / (1 - growth * prior / (n + prior)))


def estimate(values: Iterable[float], value: float | None = None) -> Estimate:
    """Return what takes of a positive value have in common: their mean in logarithms, or `value`.

    Few takes, whose number was fixed before, have Student's interval; NaN where one is not known or not positive.
    """
    result = np.array([*values], dtype=float)
    if not len(result) or not (np.isfinite(result) & (result > 0)).all():
        return NOTHING
    logs = clipped(np.log(result))
    half = half_width(logs)
    if len(logs) in STUDENT:
        half = STUDENT[len(logs)] * float(np.std(logs, ddof=1)) / math.sqrt(len(logs))
    return _around(float(np.mean(logs)) if value is None else math.log(value), half, len(logs))


def _around(log_value: float, half: float, count: int, *behind: Any) -> Estimate:
    value = math.exp(log_value)
    if not math.isfinite(half):
        return Estimate(value, math.nan, math.nan, count, *behind)
    return Estimate(value, value * math.exp(-half), value * math.exp(half), count, *behind)


def clipped(values: np.ndarray) -> np.ndarray:
    """Return values that lie no further than `CLIPPED_AT` robust standard deviations from their column's median.

    The standard deviation of a column comes from its differences to the others, or is that of all columns where this is
    larger: that of six values alone is too often too small. Where no deviation is known, since values are single or
    mostly equal, nothing is clipped. NaN stay.
    """
    middle = _median(values)
    if values.ndim == 1:
        deviation = _deviation(values)
    else:
        apart = _deviation(values[:, :, None] - values[:, None, :]) / math.sqrt(2)
        np.fill_diagonal(apart, math.nan)
        apart = np.where(np.isnan(apart).all(axis=1, keepdims=True), _deviation(values)[:, None], apart)
        deviation = np.fmax(_median(apart.T), _median(apart.ravel()))
    reach = CLIPPED_AT * np.where(deviation > 0, deviation, math.inf)
    return np.clip(values, middle - reach, middle + reach)


def _deviation(values: np.ndarray) -> np.ndarray:
    """Return the robust standard deviation along the first axis; NaN of a single value, which has none."""
    deviation = 1.4826 * _median(np.abs(values - _median(values)))
    return np.where((~np.isnan(values)).sum(axis=0) > 1, deviation, math.nan)


def _median(values: np.ndarray) -> np.ndarray:
    """Return the median along the first axis of what is not NaN, and NaN of nothing; `np.nanmedian` does so a tenth as
    fast."""
    ordered = np.sort(values, axis=0)  # NaN come last
    count = (~np.isnan(ordered)).sum(axis=0)
    middle = np.stack([(count - 1) // 2, count // 2])
    return np.take_along_axis(ordered, middle, axis=0).mean(axis=0)


def median_polish(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the effects of rows and of columns of a table, which may have gaps: table = row + column + rest.

    Effects of rows have the median 0; every row and column has a value. A column with a single value fits any effect of
    its row, so it has no part in them; a row of such values alone has the effect 0.
    """
    rows, before = np.zeros(table.shape[0]), None
    several = table[:, (~np.isnan(table)).sum(axis=0) > 1]
    for _ in range(POLISHING if several.size else 0):
        if before is not None and (rows == before).all():
            break
        before, columns = rows, _median(several - rows[:, None])
        rows = np.nan_to_num(_median((several - columns).T))
        rows = rows - _median(rows)
    return rows, _median(table - rows[:, None])


class Estimates(Generic[Key]):
    """Times of points that took turns, and their ratios.

    Parameters
    ----------
    points : mapping of point to {(generation, group, round): seconds}
        Points of one group took turns in its rounds; groups of one generation that share a point are compared through
        it, others by their times.
    disturbed : mapping of point to set of (generation, group, round)
        Rounds among these on which no verdict about the point may rest.
    sessions : mapping of generation to int, optional
        In which each was measured; default: one.
    """

    def __init__(
        self,
        points: Mapping[Key, Mapping[Turn, float]],
        disturbed: Mapping[Key, Set[Turn]] | None = None,
        sessions: Mapping[int, int] | None = None,
    ):
        self.points, self.disturbed, self._session_of = points, disturbed or {}, sessions or {}

    @cached_property
    def _logs(self) -> tuple[list[int], np.ndarray]:
        """Generations, and log times, a row for each and a column for each point; NaN where it was not measured."""
        groups: dict[int, dict[Hashable, dict[Key, dict[int, float]]]] = {}
        for key, turns in self.points.items():
            for (generation, group, number), seconds in turns.items():
                own = groups.setdefault(generation, {}).setdefault(group, {})
                own.setdefault(key, {})[number] = math.log(seconds)
        columns = {key: column for column, key in enumerate(self.points)}
        table = np.full((len(groups), len(columns)), math.nan)
        for row, generation in enumerate(sorted(groups)):
            effects = np.full((len(groups[generation]), len(columns)), math.nan)
            for line, turns in zip(effects, groups[generation].values(), strict=True):
                numbers = sorted(set().union(*turns.values()))
                logs = np.array([[turns[key].get(number, math.nan) for key in turns] for number in numbers])
                line[[columns[key] for key in turns]] = median_polish(logs)[1]
            table[row] = _joined(effects)
        return sorted(groups), table

    @cached_property
    def _fit(self) -> tuple[np.ndarray, dict[Key, np.ndarray]]:
        """What the log times of each generation have in common, and each point's part in it, clipped."""
        _, table = self._logs
        if not table.size:
            return np.zeros(0), {}
        common, _ = median_polish(table)
        parts, middle = table - common[:, None], np.zeros(table.shape)
        if len(self._sessions) >= MIN_SESSIONS:  # what sessions differ by is what their interval is about
            for own in self._sessions:
                middle[own] = np.nan_to_num(_median(parts[own]))
        return common, dict(zip(self.points, (middle + clipped(parts - middle)).T, strict=True))

    @cached_property
    def _sessions(self) -> list[np.ndarray]:
        """Rows of the table of each session."""
        own = np.array([self._session_of.get(generation, 0) for generation in self._logs[0]])
        return [np.flatnonzero(own == session) for session in np.unique(own)]

    def _by_session(self, values: np.ndarray) -> np.ndarray:
        """Return the mean over the generations of each session that has some of the values."""
        return np.array([np.nanmean(values[own]) for own in self._sessions if not np.isnan(values[own]).all()])

    def _takes(self, values: np.ndarray) -> np.ndarray:
        """Return what an interval is over: means of sessions, or the values of few sessions themselves."""
        by_session = self._by_session(values)
        return by_session if len(by_session) >= MIN_SESSIONS else values[~np.isnan(values)]

    @cached_property
    def _means(self) -> dict[Key, float]:
        return {key: float(np.mean(self._takes(part))) for key, part in self._fit[1].items()}

    def generations(self, *points: Key) -> int:
        """Return in how many generations all of some points were measured."""
        return len(set.intersection(*({turn[0] for turn in self.points.get(point, ())} for point in points)))

    def rounds(self, *points: Key) -> int:
        """Return in how many undisturbed rounds each of some points had a turn, over the generations they share."""
        return self._shared(points, self.disturbed)

    def left_alone(self, point: Key) -> bool:
        """Return whether enough of a point's rounds were undisturbed for its time to stand for this machine's."""
        return self.rounds(point) >= UNDISTURBED_SHARE * self._shared([point], {})

    def _behind(self, *points: Key) -> tuple[int, int]:
        """Return in how many undisturbed rounds some points took part, and how many a verdict about them needs."""
        needed = max(LEAST_ROUNDS, math.ceil(UNDISTURBED_SHARE * self._shared(points, {})))
        return self.rounds(*points), needed

    def _shared(self, points: Sequence[Key], left_out: Mapping[Key, Set[Turn]]) -> int:
        counts = [
            Counter(turn[0] for turn in self.points.get(point, ()) if turn not in left_out.get(point, ()))
            for point in points
        ]
        return sum(min(count[generation] for count in counts) for generation in counts[0])

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
        value = float(np.mean(self._takes(common))) + self._means[point]
        return self._estimate(common + parts[point], value, point, beside=0.0)

    def contrast(self, weights: Mapping[Key, float]) -> Estimate:
        """Return the product of points' times to the power of their weights, which add up to 0; NaN if no generation
        has them all."""
        if not all(point in self.points for point in weights):
            return NOTHING
        differences = np.sum([weight * self._fit[1][point] for point, weight in weights.items()], axis=0)
        value = sum(weight * self._means[point] for point, weight in weights.items())
        return self._estimate(differences, value, *weights)

    def ratio(self, numerator: Key, denominator: Key) -> Estimate:
        """Return the ratio of two points' times; NaN if they share no generation, or one was not measured."""
        return self.contrast({numerator: 1, denominator: -1} if numerator != denominator else {numerator: 0})

    def fastest(self, candidates: Sequence[Key]) -> Key:
        """Return the candidate with the shortest time."""
        return min(candidates, key=self._means.__getitem__)

    def contenders(self, candidates: Sequence[Key]) -> list[Key]:
        """Return the candidates that may be the fastest: all but those that are certainly slower than another, or far
        behind."""
        best = self.fastest(candidates)
        return [
            each
            for each in candidates
            if not exceeds(self.ratio(each, best), 1.0) and not self.is_far_behind(each, best)
        ]

    def is_far_behind(self, point: Key, best: Key) -> bool:
        """Return whether a point took `FAR_BEHIND` times as long as another in each generation."""
        own, least = self.times(point), self.times(best)
        apart = all(own[generation] > FAR_BEHIND * least[generation] for generation in own.keys() & least.keys())
        return apart and self.rounds(point, best) >= LEAST_ROUNDS / 2

    def ratio_to_fastest(self, numerator: Key, candidates: Sequence[Key]) -> Estimate:
        """Return the ratio of a point's time and that of the fastest candidate.

        Which one is the fastest is known no better than their times are. So the interval spans those of the ratios to
        all candidates that may be the fastest: whichever it is, it holds the ratio to it, and a point is faster only
        where it is faster than each of them. NaN if the point or all candidates were not measured.
        """
        candidates = [candidate for candidate in candidates if candidate in self.points]
        if numerator not in self.points or not candidates:
            return NOTHING
        ratio = self.ratio(numerator, self.fastest(candidates))
        if not ratio.known:
            return ratio
        others = [self.ratio(numerator, each) for each in self.contenders(candidates) if each != numerator]
        ends = [(each.low, each.high) for each in (ratio, *others) if each.known]
        return replace(ratio, low=min(low for low, _ in ends), high=max(high for _, high in ends))

    def _estimate(self, values: np.ndarray, value: float, *points: Key, beside: float | None = None) -> Estimate:
        """Return the estimate of a log value from what its points gave in each generation; its interval holds the mean
        of these too, or reaches `beside` further."""
        known, by_session, takes = values[~np.isnan(values)], self._by_session(values), self._takes(values)
        if not len(known):
            return NOTHING
        half = half_width(known)
        if len(by_session) >= MIN_SESSIONS:  # whose few means may agree by chance, better than their generations allow
            of_sessions = half_width(takes, MIN_SESSIONS, SESSION_PRIOR)
            half = max(of_sessions, half) if math.isfinite(half) else of_sessions
        half += abs(float(np.mean(takes)) - value) if beside is None else beside
        apart = float(np.ptp(by_session)) if len(by_session) > 1 else math.nan
        return _around(value, half, len(known), *self._behind(*points), len(by_session), apart)


def _joined(effects: np.ndarray) -> np.ndarray:
    """Return log times of a generation's points from those of its groups, rows, whose shared points are equal."""
    if len(effects) == 1:
        return effects[0]
    counts = (~np.isnan(effects)).sum(axis=0)
    shared = effects[:, counts > 1]
    apart = shared - np.nanmean(shared, axis=0)
    own = (~np.isnan(apart)).sum(axis=1)
    levels = np.nansum(apart, axis=1) / np.maximum(own, 1)
    return np.nansum(effects - levels[:, None], axis=0) / np.where(counts, counts, math.nan)


def verdict(time_ratio: Estimate, band: float = EQUIVALENCE_BAND) -> str:
    """Judge a ratio of times: "faster" or "slower" where its interval says so, with "by less than 2 %" where it lies
    within [1 / (1 + band), 1 + band] as a whole; "same" where it lies there and holds 1; else "undecided", as where it
    rests on too few undisturbed rounds."""
    if not time_ratio.enough:
        return UNDECIDED
    little = 1 / (1 + band) <= time_ratio.low and time_ratio.high <= 1 + band
    if time_ratio.low <= 1 <= time_ratio.high:
        return SAME if little else UNDECIDED
    return (FASTER if time_ratio.high < 1 else SLOWER) + f", by less than {100 * band:g} %" * little


def lacking(time_ratio: Estimate) -> str:
    """Say what a ratio has too few of for a verdict: "5 of 6 generations", "9 of 12 undisturbed rounds"; or nothing."""
    if not time_ratio.known:
        return f"{time_ratio.count} of {MIN_GENERATIONS} generations"
    return "" if time_ratio.enough else f"{time_ratio.rounds} of {time_ratio.needed} undisturbed rounds"


def exceeds(time_ratio: Estimate, limit: float) -> bool | None:
    """Judge whether a ratio is above a limit: where its interval lies beyond it or within; else None."""
    if not time_ratio.enough or time_ratio.low <= limit < time_ratio.high:
        return None
    return time_ratio.low > limit


def generations_to_go(time_ratio: Estimate, limit: float) -> int | None:
    """Return after how many more generations, like those so far, the interval no longer holds the limit; None where
    that is not in sight."""
    if not time_ratio.known:
        return MIN_GENERATIONS - time_ratio.count
    deviation = time_ratio.half_width / boundary(time_ratio.count)
    distance = abs(math.log(time_ratio.value / limit))
    return next((n for n in range(1, IN_SIGHT) if deviation * boundary(time_ratio.count + n) < distance), None)


def amount(time_ratio: Estimate) -> str:
    """Say by how much a time differs from another: "0.4 to 1.2 %", "within 2 %", "-0.8 to +3.0 %" of what is undecided;
    or what `lacking` says."""
    if missing := lacking(time_ratio):
        return missing
    low, high = 100 * (time_ratio.low - 1), 100 * (time_ratio.high - 1)
    band = EQUIVALENCE_BAND
    outcome, limits = verdict(time_ratio), [0.0, 100 * (1 - 1 / (1 + band)), 100 * band]
    if outcome == SAME:
        return f"within {100 * band:g} %"
    if outcome == UNDECIDED:
        return f"{'-' * (low < 0)}{beside(abs(low), 1, limits)} to +{beside(high, 1, limits)} %"
    least, most = (-high, -low) if high < 0 else (low, high)
    return f"{beside(least, 1, limits)} to {beside(most, 1, limits)} %"
