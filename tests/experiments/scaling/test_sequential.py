"""The sequential test keeps its errors, whatever the noise, and decides soon."""

import itertools
import math

import numpy as np
import pytest

from forktask.experiments.scaling.sequential import FAIL, FALSE_ALARM, FALSE_PASS, GO_ON, PASS, decide, log_stakes

NOISE = {
    "normal": lambda rng, n: rng.standard_normal(n),
    "cauchy": lambda rng, n: rng.standard_cauchy(n),
    "two speeds": lambda rng, n: rng.choice([-1.0, 1.0], n) * rng.choice([0.2, 5.0], n),
    "drifting scale": lambda rng, n: rng.standard_normal(n) * np.geomspace(1, 50, n),
}


def first_verdict(log_ratios, limit):
    """The verdict of the first look that decides; `judge` looks at the last round alone."""
    differences = np.asarray(log_ratios) - math.log(limit)
    failed = log_stakes(differences) >= -math.log(FALSE_ALARM)
    passed = log_stakes(-differences) >= -math.log(FALSE_PASS)
    ended = np.flatnonzero(failed | passed)
    return GO_ON if not len(ended) else FAIL if failed[ended[0]] else PASS


def test_bets_on_fair_coins_win_nothing():
    """Check exactly, over all signs of given magnitudes: mean stake 1, and the chance ever to reach 1/a at most a."""
    sizes = np.random.default_rng(3).standard_cauchy(11)
    stakes = np.array([log_stakes(np.array(signs) * np.abs(sizes)) for signs in itertools.product((-1, 1), repeat=11)])
    assert np.allclose(np.exp(stakes).mean(axis=0), 1)
    for error in (0.2, 0.05, 0.01):
        assert 0 < (stakes.max(axis=1) >= -math.log(error)).mean() <= error


@pytest.mark.parametrize("name", NOISE)
def test_false_alarms_at_the_limit_are_rare(name):
    """Check that a ratio of exactly the limit fails no more often than allowed, for any noise, over 60 looks."""
    rng, limit = np.random.default_rng(7), 1.05
    verdicts = [first_verdict(math.log(limit) + 0.05 * NOISE[name](rng, 60), limit) for _ in range(400)]
    # 99.9 % quantile of the binomial with the allowed error.
    assert verdicts.count(FAIL) <= 400 * FALSE_ALARM + 3.1 * math.sqrt(400 * FALSE_ALARM)


def test_rounds_that_resemble_each_other_do_no_harm():
    """Check that strongly correlated noise, which the toss turns over, gives no more false alarms."""
    rng, limit, alarms = np.random.default_rng(11), 1.05, 0
    for _ in range(500):
        drift = np.cumsum(rng.standard_normal(60)) * 0.02
        toss = rng.choice([-1, 1], 60)
        alarms += first_verdict(math.log(limit) + toss * drift, limit) == FAIL
    assert alarms <= 8


@pytest.mark.parametrize("true, verdict", [(1.0, PASS), (1.1, FAIL)])
@pytest.mark.parametrize("name, size", [("normal", 0.05), ("normal", 0.01), ("cauchy", 0.02)])
def test_power(true, verdict, name, size):
    """Check that 5 % either side of the limit are seen within 60 rounds, in 95 % of 300 tests."""
    rng = np.random.default_rng(5)
    done = [first_verdict(math.log(true) + size * NOISE[name](rng, 60), 1.05) for _ in range(300)]
    assert done.count(verdict) >= 285


def test_interval_agrees_with_the_verdict():
    """Check that a test fails when the interval lies beyond the limit, and passes when it lies within."""
    rng = np.random.default_rng(2)
    for true in (0.9, 1.0, 1.05, 1.2):
        x = math.log(true) + 0.03 * rng.standard_normal(30)
        for n in range(1, 31):
            now = decide(x[:n], 1.05)
            assert now.low <= now.ratio <= now.high
            assert (now.verdict == FAIL) == (now.low > 1.05 or (now.low == 1.05 and now.verdict == FAIL))
            assert {PASS: now.high <= 1.05, FAIL: now.low >= 1.05, GO_ON: now.low <= 1.05 <= now.high}[now.verdict]


def test_interval_covers_at_all_looks():
    """Check that the interval misses the true ratio at any of 40 looks in at most 3 % of tests, and gets narrow."""
    rng, missed, widths = np.random.default_rng(8), 0, []
    for _ in range(60):
        x = 0.03 * rng.standard_normal(40)
        looks = [decide(x[:n], 1.05) for n in range(5, 41, 5)]
        missed += any(not look.low <= 1 <= look.high for look in looks)
        widths.append(looks[-1].high / looks[-1].low)
    assert missed <= 5
    assert np.median(widths) < 1.05


def test_nothing_to_tell_apart():
    """Check that no rounds, and rounds exactly at the limit, decide nothing."""
    assert decide([], 1.05).verdict == GO_ON
    assert decide([0.0] * 50, 1.0).verdict == GO_ON


def test_one_wild_round_does_not_decide():
    """Check that an outlier against seven quiet rounds leaves the test open or passes, but never fails it."""
    assert decide([0.0] * 7 + [50.0], 1.05).verdict != FAIL
