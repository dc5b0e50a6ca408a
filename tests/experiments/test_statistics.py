"""Statistics: coverage on known distributions, the rules of the verdict."""

import numpy as np
import pytest

from forktask.experiments.analysis import statistics
from forktask.experiments.analysis.statistics import FASTER, NOT_ENOUGH_DATA, SAME, SLOWER, Estimate
from forktask.experiments.analysis.typical import TypicalTimes


@pytest.mark.parametrize("n", [6, 7, 9, 20])
@pytest.mark.parametrize("draw", ["normal", "lognormal", "exponential"])
def test_median_interval_covers_the_true_median(n, draw):
    """Check that at least 93 % of 95 % intervals hold the distribution's median, and not all of them."""
    rng = np.random.default_rng(n)
    true = {"normal": 0.0, "lognormal": 1.0, "exponential": np.log(2)}[draw]
    hits, trials = 0, 400
    for _ in range(trials):
        estimate = statistics.median_interval(getattr(rng, draw)(size=n), num_resamples=300)
        hits += estimate.low <= true <= estimate.high
    assert 0.93 <= hits / trials <= 0.998


@pytest.mark.parametrize(("n", "rank"), [(2, 0), (5, 0), (6, 0), (8, 0), (9, 1), (20, 5)])
def test_sign_test_rank_is_that_of_the_tables(n, rank):
    """Check the order statistics against published tables of the sign test."""
    assert statistics.sign_test_rank(n) == rank


def test_same_samples_give_the_same_interval():
    """Check that the bootstrap is seeded and does not depend on the order of samples."""
    values = np.random.default_rng(1).normal(size=12)
    assert statistics.median_interval(values) == statistics.median_interval(values)
    assert statistics.median_interval(values) == statistics.median_interval(values[::-1])


def test_ratios_are_paired_by_repetition():
    """Check that a disturbance common to a block cancels, and that blocks with one side only are left out."""
    blocks = 1 + np.random.default_rng(2).exponential(size=9)
    a = {r: 0.9 * b for r, b in enumerate(blocks)}
    b = dict(enumerate(blocks)) | {99: 1e6}
    estimate = statistics.ratio_interval(a, b)
    assert estimate.count == 9
    assert estimate.low == pytest.approx(0.9) and estimate.high == pytest.approx(0.9)


NOISES = {
    "normal": lambda rng, n: rng.normal(size=n),
    "Student t(2)": lambda rng, n: rng.standard_t(2, size=n),
    "Cauchy": lambda rng, n: rng.standard_cauchy(size=n),
    # A machine that slows down by one unit from one run to the next: whichever came first looks faster.
    "drift": lambda rng, n: rng.choice((-1.0, 1.0), size=n) + 0.3 * rng.normal(size=n),
}


@pytest.mark.parametrize("n", [6, 7, 11, 16])
@pytest.mark.parametrize("noise", NOISES)
def test_intervals_of_ratios_cover_the_true_ratio(n, noise):
    """Check that 95 % intervals of ratios hold the true one in 95 % of draws, for any noise (four standard errors)."""
    rng = np.random.default_rng(n)
    hits, trials = 0, 300
    for _ in range(trials):
        low, high = statistics.toss_interval(0.01 * NOISES[noise](rng, n))
        hits += low <= 0 <= high
    assert hits / trials >= 0.95 - 4 * (0.95 * 0.05 / trials) ** 0.5


@pytest.mark.parametrize("n", [7, 11])
def test_intervals_of_ratios_are_narrower_than_those_of_medians(n):
    """Check the width beside the interval of the median that any distribution allows."""
    rng = np.random.default_rng(n)
    widths = []
    for _ in range(50):
        x = 0.01 * rng.normal(size=n)
        estimate = statistics.median_interval(x)
        low, high = statistics.toss_interval(x)
        widths.append((high - low) / (estimate.high - estimate.low))
    assert np.median(widths) < 0.75


def test_one_wild_repetition_does_not_veto_ten():
    """Check that of eleven repetitions one that is far off leaves a verdict."""
    x = 0.004 * np.random.default_rng(5).normal(size=11)
    x[3] = 0.4
    low, high = statistics.toss_interval(x)
    assert -0.02 < low < 0 < high < 0.02


def test_few_or_equal_ratios():
    """Check that of fewer than six the extremes are given, and that equal ratios have no width."""
    assert statistics.toss_interval([0.1, 0.3, 0.2]) == (0.1, 0.3)
    assert statistics.toss_interval([0.1] * 8) == (0.1, 0.1)


def test_the_fastest_is_chosen_by_other_samples():
    """Check that a model that equals three forms is not found slower than the fastest of them: in the middle of draws
    the paired ratio is 1 within its error, where choosing by the same samples puts it above."""
    rng = np.random.default_rng(7)
    points = ["model", "a", "b", "c"]
    fair, biased = [], []
    for _ in range(200):
        times = TypicalTimes({point: dict(enumerate(np.exp(0.05 * rng.normal(size=11)))) for point in points})
        estimate = times.ratio_to_fastest(points[0], points[1:])
        fair.append(np.log(estimate.low) + np.log(estimate.high))
        direct = statistics.ratio_interval(times.points[points[0]], times.points[times.fastest(points[1:])])
        biased.append(np.log(direct.low) + np.log(direct.high))
    error = np.std(fair) / np.sqrt(200)
    assert abs(np.mean(fair)) < 4 * error < np.mean(biased)


def test_one_repetition_is_compared_without_an_interval():
    """Check that a quick run still shows a ratio to the fastest of several forms."""
    times = TypicalTimes({name: {0: time} for name, time in (("model", 1.2), ("a", 1.0), ("b", 1.1))})
    estimate = times.ratio_to_fastest("model", ["a", "b"])
    assert estimate.value == pytest.approx(1.2) and np.isnan(estimate.low)


def test_block_factors_are_those_of_whole_blocks():
    """Check a slow block, a single disturbed point, and points that are missing from some blocks."""
    points = [{r: level * (3.0 if r == 2 else 1.0) for r in range(5)} for level in (1e-3, 2e-3, 7e-3)]
    points.append({0: 5e-3, 2: 15e-3, 4: 5e-3})
    points[1][0] *= 40
    factors = statistics.block_factors(points)
    assert factors == pytest.approx({0: 1.0, 1: 1.0, 2: 3.0, 3: 1.0, 4: 1.0})
    assert statistics.block_factors([]) == {}
    assert statistics.block_factors([{0: 0.5}]) == {0: 1.0}


def test_medians_without_block_effects_are_nearer_to_the_truth():
    """Check on drifting blocks that quotients of steady medians err less than quotients of medians, in 300 draws."""
    rng = np.random.default_rng(3)
    errors = {"plain": [], "steady": []}
    for _ in range(300):
        blocks = np.exp(0.3 * rng.normal(size=7))
        points = [dict(enumerate(blocks * np.exp(0.02 * rng.normal(size=7)))) for _ in range(8)]
        factors = statistics.block_factors(points)
        steady = [np.median([time / factors[r] for r, time in times.items()]) for times in points]
        plain = [np.median(list(times.values())) for times in points]
        errors["steady"].append(np.log(steady[0] / steady[1]))
        errors["plain"].append(np.log(plain[0] / plain[1]))
    assert np.std(errors["steady"]) < 0.8 * np.std(errors["plain"])
    assert abs(np.mean(errors["steady"])) < 4 * np.std(errors["steady"]) / np.sqrt(300)


def test_quotients_of_estimates_are_as_wide_as_both():
    """Check ends of quotients, inverses and multiples, and that an estimate without interval counts as exact."""
    a, b = Estimate(6.0, 5.0, 8.0, 7), Estimate(2.0, 1.0, 4.0, 3)
    assert a.over(b) == Estimate(3.0, 1.25, 8.0, 3)
    assert b.inverse() == Estimate(0.5, 0.25, 1.0, 3)
    assert a.divided_by(2) == Estimate(3.0, 2.5, 4.0, 7)
    exact = Estimate(2.0, np.nan, np.nan, 1)
    assert a.over(exact) == Estimate(3.0, 2.5, 4.0, 1)
    assert exact.over(a) == Estimate(2 / 6, 2 / 8, 2 / 5, 1)
    assert np.isnan(exact.over(exact).low)
    assert statistics.including(a, 9.0) == Estimate(9.0, 5.0, 9.0, 7)
    assert statistics.including(a, 5.5) == Estimate(5.5, 5.0, 8.0, 7)


def test_nothing_in_common_gives_nan():
    """Check that no pair is no crash."""
    estimate = statistics.ratio_interval({0: 1.0}, {1: 1.0})
    assert estimate.count == 0 and np.isnan(estimate.value)
    assert statistics.verdict(estimate) == NOT_ENOUGH_DATA


@pytest.mark.parametrize(
    ("low", "high", "count", "expected"),
    [
        (0.90, 0.95, 9, FASTER),
        (0.90, 0.999, 9, FASTER),
        (1.03, 1.10, 9, SLOWER),
        (1.001, 1.05, 9, SLOWER),
        (0.99, 1.01, 9, SAME),
        (0.985, 0.995, 9, SAME),
        (1 / 1.02, 1.02, 9, SAME),
        (0.97, 1.03, 9, NOT_ENOUGH_DATA),
        (0.99, 1.03, 9, NOT_ENOUGH_DATA),
        (0.90, 1.00, 9, NOT_ENOUGH_DATA),
        (0.50, 0.60, 4, NOT_ENOUGH_DATA),
        (np.nan, np.nan, 9, NOT_ENOUGH_DATA),
    ],
)
def test_verdict_follows_its_rules(low, high, count, expected):
    """Check each rule at its edges."""
    assert statistics.verdict(Estimate((low + high) / 2, low, high, count)) == expected


def test_equals_are_rarely_told_apart():
    """Check that comparisons of equals are called faster or slower in at most 5 % (and a margin) of cases."""
    rng = np.random.default_rng(3)
    wrong = 0
    for _ in range(300):
        a, b = (dict(enumerate(np.exp(0.03 * rng.normal(size=9)))) for _ in range(2))
        wrong += statistics.verdict(statistics.ratio_interval(a, b)) in (FASTER, SLOWER)
    assert wrong / 300 < 0.08


@pytest.mark.parametrize("bad", [[], [1.0, np.nan], [[1.0]]])
def test_bad_samples_are_refused(bad):
    """Check that an empty or broken list is an error, not a number."""
    with pytest.raises(ValueError, match="finite numbers"):
        statistics.spread(bad)


def test_spread_holds_quartiles():
    """Check order statistics of a simple list."""
    s = statistics.spread([1.0, 2.0, 3.0, 4.0, 5.0])
    assert (s.median, s.lower_quartile, s.upper_quartile, s.iqr, s.minimum, s.maximum) == (3, 2, 4, 2, 1, 5)
