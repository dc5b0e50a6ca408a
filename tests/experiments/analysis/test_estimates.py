"""The estimator: values, intervals and verdicts, against made-up machines of which the truth is known."""

import math

import numpy as np
import pytest

from forktask.experiments.analysis import estimates
from forktask.experiments.analysis.estimates import Estimate, Estimates, amount, verdict


def made_up(rng, generations, rounds=6, truth=(0.0, 0.0, 0.03), placement=0.01, noise=0.01, session=0):
    """Turns of points on a machine with drift, steps, wild turns and processes that differ."""
    points = {key: {} for key in range(len(truth))}
    level = 0.0
    for generation in range(generations):
        placed = rng.normal(0, placement / math.sqrt(2), len(truth))
        for number in range(rounds):
            for key in rng.permutation(len(truth)):
                level += rng.normal(0, 0.003)
                if rng.random() < 0.02:
                    level = rng.normal(0, 0.05)
                wild = rng.exponential(0.4) if rng.random() < 0.1 else 0.0
                log = truth[key] + placed[key] + level + rng.normal(0, noise) + wild
                points[int(key)][generation, session, number] = math.exp(log)
    return points


def test_intervals_hold_the_truth_at_every_look():
    """Check 200 machines with drift, steps and 10 % wild turns at all looks from 6 to 20 generations, and the width."""
    rng = np.random.default_rng(1)
    missed, widths = 0, []
    for _ in range(200):
        logs = np.array([estimates.median_polish(_table(made_up(rng, 1)))[1] for _ in range(20)])
        bad = False
        for n in range(estimates.MIN_GENERATIONS, 21):
            common, _ = estimates.median_polish(logs[:n])
            parts = estimates.clipped(logs[:n] - common[:, None])
            differences = parts[:, 2] - parts[:, 0]
            half = estimates.half_width(differences)
            bad |= abs(np.mean(differences) - 0.03) > half
        missed += bad
        widths.append(half)
    assert missed <= 10
    assert np.median(widths) < 0.0105


def _table(points):
    turns = sorted(points[0])
    return np.log([[points[key][turn] for key in points] for turn in turns])


def test_values_are_quotients_and_lie_inside():
    """Check that ratios multiply, that a time times a ratio is a time, and inverse and quotient of estimates."""
    times = Estimates(made_up(np.random.default_rng(2), 8))
    one, two, both = times.ratio(1, 0), times.ratio(2, 1), times.ratio(2, 0)
    assert both.value == pytest.approx(one.value * two.value)
    assert times.time(2).value == pytest.approx(times.time(0).value * both.value)
    for each in (one, two, both, times.time(1)):
        assert each.low < each.value < each.high and each.count == 8
    inverse = times.ratio(0, 2)
    assert (inverse.value, inverse.low) == pytest.approx((1 / both.value, 1 / both.high))
    assert times.ratio(1, 1) == Estimate(1.0, 1.0, 1.0, 8, 48, 16)
    assert both.over(both).low == pytest.approx(both.low / both.high)
    assert times.contrast({2: 1, 1: -2, 0: 1}).value == pytest.approx(two.value / one.value)


def test_few_generations_have_no_interval():
    """Check one generation of many rounds, and that a point measured in none has no time."""
    times = Estimates(made_up(np.random.default_rng(3), 5))
    ratio = times.ratio(2, 0)
    assert math.isfinite(ratio.value) and math.isnan(ratio.low) and ratio.count == 5
    assert verdict(ratio) == "undecided" and amount(ratio).startswith("5 of 6")
    assert math.isnan(times.time("unknown").value) and times.generations("unknown") == 0


def test_a_verdict_needs_undisturbed_rounds():
    """Check that disturbed rounds count for the interval and for no verdict, and what is said then: twelve undisturbed
    ones are needed, and a third of all."""
    points = made_up(np.random.default_rng(5), 8, placement=1e-4, noise=1e-4, truth=(0.0, 0.0, 0.2))
    assert verdict(Estimates(points).ratio(2, 0)) == "slower"
    loud = {turn for turn in points[0] if turn[0] or turn[2] == 5}
    few = Estimates(points, dict.fromkeys(points, loud)).ratio(2, 0)
    assert few.low > 1 and few.rounds == 5 and not few.enough
    assert verdict(few) == "undecided" and amount(few) == "5 of 16 undisturbed rounds"
    assert estimates.exceeds(few, 1.1) is None and estimates.exceeds(few.inverse(), 1.1) is None
    assert Estimates(points, {1: loud}).ratio(2, 0).enough, (
        "what disturbs another contestant's turns counts for it alone"
    )
    later = {turn for turn in loud if turn[0] > 2}
    many = Estimates(points, dict.fromkeys(points, later)).ratio(2, 0)
    assert [estimates.exceeds(many, limit) for limit in (1.1, many.value, 1.3)] == [True, None, False]


def test_a_slow_round_and_a_wild_placement_move_nothing():
    """Check a round that is slow for all, and one process that is three times as slow as in all other generations."""
    points = made_up(np.random.default_rng(4), 12, noise=1e-4, placement=1e-4)
    before = Estimates(points).ratio(2, 0)
    for times in points.values():
        times[3, 0, 2] *= 5
    assert Estimates(points).ratio(2, 0).value == pytest.approx(before.value, rel=1e-4)
    points[2] = {turn: time * (3 if turn[0] == 7 else 1) for turn, time in points[2].items()}
    after = Estimates(points).ratio(2, 0)
    assert after.value == pytest.approx(before.value, rel=0.002) and after.low < before.value < after.high


def test_sessions_are_compared_through_the_point_they_share():
    """Check two groups of one generation, the second at half the machine's speed, with gaps in each."""
    first = {"join": {}, "a": {}}
    points = {"join": {}, "a": {}, "b": {}}
    for generation in range(7):
        for number in range(3):
            points["join"][generation, 0, number], points["a"][generation, 0, number] = 1.0, 1.1
            points["join"][generation, 1, number], points["b"][generation, 1, number] = 2.0, 2.4
            first["join"][generation, 0, number], first["a"][generation, 0, number] = 1.0, 1.1
    both = Estimates(points)
    assert both.ratio("a", "join").value == pytest.approx(1.1)
    assert both.ratio("b", "join").value == pytest.approx(1.2)
    assert both.ratio("b", "a").value == pytest.approx(1.2 / 1.1)
    assert Estimates(first).ratio("a", "join").value == pytest.approx(1.1)
    assert both.rounds("a", "join") == 21 and both.generations("a", "b") == 7


@pytest.mark.parametrize(("forms", "apart"), [(2, 0.0), (2, 0.005), (6, 0.0), (6, 0.002)])
def test_the_interval_holds_the_ratio_to_the_fastest_whichever_it_is(forms, apart):
    """Check 60 machines whose forms are equal or nearly so, at all looks: the ratio to the truly fastest is in the
    interval, the value is a quotient of the times, and a form beside the others is not faster than they are."""
    rng = np.random.default_rng(6)
    missed, candidates = 0, list(range(1, forms + 1))
    for _ in range(60):
        truth = (-0.03, *(apart * form for form in range(forms)), 0.0)
        logs = np.array(truth)[:, None] + rng.normal(0, 0.01, (forms + 2, 20)) + rng.normal(0, 0.01, 20)
        bad = False
        for last in (6, 8, 12, 20):
            times = Estimates(
                {key: {(g, 0, 0): math.exp(logs[key, g]) for g in range(last)} for key in range(forms + 2)}
            )
            ratio = times.ratio_to_fastest(0, candidates)
            assert ratio.value == pytest.approx(times.time(0).value / times.time(times.fastest(candidates)).value)
            assert all(
                ratio.low <= other.low and other.high <= ratio.high
                for other in (times.ratio(0, form) for form in times.contenders(candidates))
            )
            bad |= not ratio.low <= math.exp(-0.03) <= ratio.high
            bad |= times.ratio_to_fastest(forms + 1, candidates).high < 1
        missed += bad
    assert missed <= 3


def test_a_form_that_is_slower_does_not_widen_the_interval():
    """Check a scattered form that is certainly slower than the fastest one, and one of which this is not known."""
    rng = np.random.default_rng(7)
    logs = {0: -0.03, 1: 0.0, 2: 0.5, 3: 0.01}
    scatter = {0: 0.002, 1: 0.002, 2: 0.05, 3: 0.03}
    points = {key: {(g, 0, 0): math.exp(logs[key] + rng.normal(0, scatter[key])) for g in range(16)} for key in logs}
    times = Estimates(points)
    assert times.contenders([1, 2]) == [1] and times.contenders([1, 2, 3]) == [1, 3]
    assert times.ratio_to_fastest(0, [1, 2]) == times.ratio(0, 1)
    assert times.ratio_to_fastest(0, [1, 2, 3]).half_width > 2 * times.ratio(0, 1).half_width


@pytest.mark.parametrize(
    ("low", "high", "answer", "said"),
    [
        (0.988, 0.996, "faster, by less than 2 %", "0.4 to 1.2 %"),
        (0.947, 0.979, "faster", "2.1 to 5.3 %"),
        (0.974, 0.9998, "faster", "0.02 to 2.6 %"),
        (0.9803, 0.99, "faster", "1.0 to 1.97 %"),
        (1.05, 1.10, "slower", "5.0 to 10.0 %"),
        (1.0004, 1.0196, "slower, by less than 2 %", "0.04 to 1.96 %"),
        (0.99, 1.01, "same", "within 2 %"),
        (1.0, 1.0, "same", "within 2 %"),
        (0.992, 1.03, "undecided", "-0.8 to +3.0 %"),
        (0.97, 1.0002, "undecided", "-3.0 to +0.02 %"),
    ],
)
def test_verdicts_say_by_how_much(low, high, answer, said):
    """Check the answers, what lies within the band in words of its own, and digits that show on which side of a limit
    an end lies."""
    ratio = Estimate(math.sqrt(low * high), low, high, 9)
    assert verdict(ratio) == answer and amount(ratio) == said


@pytest.mark.parametrize("seed", range(40))
def test_no_interval_is_narrower_than_its_generations_allow(seed):
    """Check contestants of which some take part in few generations or one, as `compare` measures what answers no open
    question: half of the scatter of a ratio's own generations, at least, is in its interval."""
    rng = np.random.default_rng(seed)
    several, once, generations = int(rng.integers(2, 7)), int(rng.integers(0, 9)), int(rng.integers(6, 13))
    points = made_up(rng, generations, rounds=4, truth=(0.0,) * (several + once), placement=0.2, noise=0.05)
    for key in range(several + once):
        share = 1.0 if key < 2 else rng.choice([0.5, 1.0])
        took_part = {0} if key >= several else {n for n in range(generations) if rng.random() < share}
        points[key] = {turn: time for turn, time in points[key].items() if turn[0] in took_part}
    times = Estimates({key: turns for key, turns in points.items() if turns})
    for first in times.points:
        for second in times.points:
            ratio = times.ratio(first, second)
            if first == second or not ratio.known:
                continue
            own, other = times.times(first), times.times(second)
            logs = np.array([math.log(own[n] / other[n]) for n in own.keys() & other.keys()])
            scatter = np.median(np.abs(logs - np.median(logs)))
            assert ratio.half_width >= 0.5 * scatter * estimates.boundary(len(logs)), (first, second)
