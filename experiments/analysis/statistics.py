"""Medians, intervals, paired ratios and verdicts. NumPy only; the same input always gives the same output.

Repetitions are measured in blocks: block r holds one run of every configuration, in random order, so what disturbs
the machine for a while meets all of them alike. Configurations are therefore compared block by block (paired), and
the random order is what the interval of a ratio rests on; see `toss_interval`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from math import comb

import numpy as np

FASTER, SLOWER, SAME, NOT_ENOUGH_DATA = "faster", "slower", "same", "not enough data"

EQUIVALENCE_BAND = 0.02
# With fewer pairs no interval of order statistics comes near 95 % (5 pairs: 93.75 %, 4 pairs: 87.5 %).
MIN_PAIRS = 5
# Of a block's distance in an interval of ratios, in medians. Above 2, a single wild block of eleven vetoes the others
# (simulated: docs/notes/intervals_of_ratios.md).
LARGEST_WEIGHT = 1.5
ALL_TOSSES = 13  # up to so many blocks every outcome is counted
CONFIDENCE = 0.95
NUM_RESAMPLES = 4000
SEED = 20260101


@dataclass(frozen=True)
class Estimate:
    """A median with its interval.

    Attributes
    ----------
    value : float
        Median; NaN without samples.
    low, high : float
        95 % interval; NaN with fewer than two samples.
    count : int
        Samples or pairs.
    """

    value: float
    low: float
    high: float
    count: int

    def divided_by(self, number: float) -> Estimate:
        """Return the estimate of a positive multiple."""
        return Estimate(self.value / number, self.low / number, self.high / number, self.count)

    def inverse(self) -> Estimate:
        """Return the estimate of the inverse of a positive number."""
        return Estimate(1 / self.value, 1 / self.high, 1 / self.low, self.count)

    def over(self, other: Estimate) -> Estimate:
        """Return the quotient of two positive estimates, its interval as wide as both intervals allow.

        An estimate without an interval counts as exact.
        """
        low, high = (other.low, other.high) if np.isfinite(other.low) else (other.value, other.value)
        own_low, own_high = (self.low, self.high) if np.isfinite(self.low) else (self.value, self.value)
        known = np.isfinite(self.low) or np.isfinite(other.low)
        return Estimate(
            self.value / other.value,
            own_low / high if known else np.nan,
            own_high / low if known else np.nan,
            min(self.count, other.count),
        )


@dataclass(frozen=True)
class Spread:
    """Median, quartiles and extremes of samples, in their unit."""

    median: float
    lower_quartile: float
    upper_quartile: float
    minimum: float
    maximum: float
    count: int

    @property
    def iqr(self) -> float:
        """Distance between the quartiles."""
        return self.upper_quartile - self.lower_quartile


def spread(samples) -> Spread:
    """Return order statistics of samples, shape (n,), n >= 1."""
    values = _as_samples(samples)
    low, median, high = np.quantile(values, [0.25, 0.5, 0.75])
    return Spread(float(median), float(low), float(high), float(values.min()), float(values.max()), len(values))


def median_interval(samples, num_resamples: int = NUM_RESAMPLES) -> Estimate:
    """Return the median of samples with a bootstrap interval.

    The interval is the wider of two: the percentile bootstrap of the median, and the pair of order statistics of the
    sign test, whose coverage holds for any continuous distribution.

    Parameters
    ----------
    samples : array_like, shape (n,)
    num_resamples : int

    Notes
    -----
    The percentile bootstrap of a median alone is too narrow for some small n: at n = 7 it covers 87.5 %.
    """
    return _median_interval(tuple(np.sort(_as_samples(samples)).tolist()), num_resamples)


@lru_cache(maxsize=10_000)  # tables and figures of one report ask for the same
def _median_interval(ordered: tuple[float, ...], num_resamples: int) -> Estimate:
    values = np.array(ordered)
    n = len(values)
    if n < 2:
        return Estimate(float(values[0]), np.nan, np.nan, n)
    draws = np.random.default_rng(SEED).integers(0, n, size=(num_resamples, n))
    medians = np.median(values[draws], axis=1)
    tail = (1 - CONFIDENCE) / 2
    # Order statistics are observed ones, not interpolated: few samples have few distinct medians.
    low = np.quantile(medians, tail, method="lower")
    high = np.quantile(medians, 1 - tail, method="higher")
    rank = sign_test_rank(n)
    return Estimate(float(np.median(values)), float(min(low, values[rank])), float(max(high, values[-1 - rank])), n)


def sign_test_rank(n: int) -> int:
    """Return the largest k such that [x_(k), x_(n-1-k)] covers the median with `CONFIDENCE`; 0 if none does.

    The coverage is 1 - 2 P(Binomial(n, 1/2) <= k).
    """
    rank, below = 0, 1
    for k in range(1, n // 2):
        below += comb(n, k)
        if 1 - 2 * below / 2**n < CONFIDENCE:
            break
        rank = k
    return rank


def paired_ratios(numerator: Mapping[int, float], denominator: Mapping[int, float]) -> np.ndarray:
    """Return the ratios of the repetition blocks that hold both, in block order.

    Parameters
    ----------
    numerator, denominator : mapping of repetition to value
    """
    common = sorted(set(numerator) & set(denominator))
    return np.array([numerator[r] / denominator[r] for r in common], dtype=float)


def toss_interval(log_ratios) -> tuple[float, float]:
    """Return the ends of a 95 % interval of the middle of paired log ratios; of fewer than six, the extremes.

    Parameters
    ----------
    log_ratios : array_like, shape (n,)

    Notes
    -----
    If one side takes m times as long as the other and nothing else tells them apart, their random order in a block
    makes the sign of each log ratio - log m a fair coin, whatever the noise, its tails and its drift. So the
    distribution of the sum of these signs, each weighted by its distance, is known without any assumption: it is taken
    over all tosses.
    The interval holds every m at which the sum is not among the 2.5 % largest or smallest. Weights are distances in
    units of their median, of at most `LARGEST_WEIGHT`: a wild block counts as little more than another one.

    References
    ----------
    Fisher, "The Design of Experiments" (1935), section 21; Huber, Annals of Mathematical Statistics 35 (1964).
    """
    return _toss_interval(tuple(np.asarray(log_ratios, dtype=float).tolist()))


@lru_cache(maxsize=10_000)
def _toss_interval(log_ratios: tuple[float, ...]) -> tuple[float, float]:
    x = np.array(log_ratios)
    tail = (1 - CONFIDENCE) / 2
    if 2.0 ** -len(x) > tail or np.ptp(x) == 0:
        return float(x.min()), float(x.max())
    tosses = _tosses(len(x))
    return _lower_end(x, tosses, tail), -_lower_end(-x, tosses, tail)


@cache
def _tosses(n: int) -> np.ndarray:
    """All outcomes of n tosses, or many of them, as signs; shape (outcomes, n)."""
    if n <= ALL_TOSSES:
        return 1.0 - 2.0 * (np.arange(2**n)[:, None] >> np.arange(n) & 1)
    drawn = np.random.default_rng(SEED).choice((-1.0, 1.0), size=(2**ALL_TOSSES, n))
    drawn[0] = 1.0  # what was measured is one of the outcomes
    return drawn


def _lower_end(x: np.ndarray, tosses: np.ndarray, tail: float) -> float:
    """Return the largest m, from below, at which x lies too far above m for chance."""

    def too_far(m: float) -> bool:
        distances = np.abs(x - m)
        unit = np.median(distances)
        weights = np.minimum(distances / unit, LARGEST_WEIGHT) if unit > 0 else 0 * x
        return np.mean(tosses @ weights >= np.sign(x - m) @ weights - 1e-9) <= tail

    out, inside = float(x.min()) - float(np.ptp(x)), float(np.median(x))
    for _ in range(40):
        middle = (out + inside) / 2
        out, inside = (middle, inside) if too_far(middle) else (out, middle)
    return out


def ratio_interval(numerator: Mapping[int, float], denominator: Mapping[int, float]) -> Estimate:
    """Return the median of the paired ratios with its interval; NaN if no block holds both."""
    ratios = paired_ratios(numerator, denominator)
    if len(ratios) < 2:
        return Estimate(float(ratios[0]) if len(ratios) else np.nan, np.nan, np.nan, len(ratios))
    low, high = toss_interval(np.log(ratios))
    return Estimate(float(np.median(ratios)), float(np.exp(low)), float(np.exp(high)), len(ratios))


def including(estimate: Estimate, value: float) -> Estimate:
    """Return an estimate with another value; its interval is widened so that it holds this value."""
    if not np.isfinite(estimate.low):
        return replace(estimate, value=value)
    return replace(estimate, value=value, low=min(estimate.low, value), high=max(estimate.high, value))


def block_factors(points: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """Return by how much each repetition block was slower than the middle one.

    A step of Tukey's median polish, in logarithms: the factor of a block is the median, over all points with a sample
    in it, of the sample over its point's median. A block that is slow as a whole gets a factor above 1; one disturbed
    point does not move it.

    Parameters
    ----------
    points : sequence of mapping of repetition to seconds

    References
    ----------
    Tukey, "Exploratory Data Analysis" (1977), chapter 11.
    """
    residuals: dict[int, list[float]] = {}
    for times in points:
        middle = float(np.median(np.log(list(times.values()))))
        for repetition, time in times.items():
            residuals.setdefault(repetition, []).append(float(np.log(time)) - middle)
    effects = {repetition: float(np.median(values)) for repetition, values in residuals.items()}
    middle = float(np.median(list(effects.values()))) if effects else 0.0
    return {repetition: float(np.exp(effect - middle)) for repetition, effect in effects.items()}


def verdict(time_ratio: Estimate, band: float = EQUIVALENCE_BAND, min_pairs: int = MIN_PAIRS) -> str:
    """Judge the candidate by a ratio of times (candidate / reference).

    The rules, in this order:

    1. fewer than `min_pairs` pairs: "not enough data";
    2. the whole interval within [1 / (1 + band), 1 + band]: "same" (a difference, if any, is too small to matter);
    3. the whole interval below 1: "faster";
    4. the whole interval above 1: "slower";
    5. otherwise, the interval holds 1 and reaches out of the band: "not enough data".

    Each verdict stands alone: among twenty comparisons of equals, about one will not be called so.
    """
    if time_ratio.count < min_pairs or not np.isfinite([time_ratio.low, time_ratio.high]).all():
        return NOT_ENOUGH_DATA
    if 1 / (1 + band) <= time_ratio.low and time_ratio.high <= 1 + band:
        return SAME
    if time_ratio.high < 1:
        return FASTER
    if time_ratio.low > 1:
        return SLOWER
    return NOT_ENOUGH_DATA


def _as_samples(samples) -> np.ndarray:
    values = np.asarray(samples, dtype=float)
    if values.ndim != 1 or not len(values) or not np.isfinite(values).all():
        raise ValueError(f"samples must be a non-empty list of finite numbers, got {samples!r}")
    return values
