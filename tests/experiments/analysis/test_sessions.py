"""Sessions: which starts of a command count as one, and intervals over them, on made-up rows and on published runs."""

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from experiments.synthetic_results import plan_row, typed

from forktask.experiments.analysis.estimates import (
    MIN_SESSIONS,
    SESSION_PRIOR,
    Estimate,
    Estimates,
    boundary,
    half_width,
    verdict,
)
from forktask.experiments.results.rows import SampleRow
from forktask.experiments.results.turns import SESSION_PAUSE_S, separate_sessions

A_A = Path(__file__).parents[3] / "results" / "epyc_2_cores" / "a_a"
PUBLISHED = {"runs.json": 175.0, "runs_100_s.json": 100.0}  # seconds of a run, one right after the other


def starts(begins_s, lasting_s=175.0, generations=2):
    """Rows of starts of a command, each with some generations of two models."""
    plan = plan_row()
    rows = [{"kind": "run"}, plan]
    for number, begin_s in enumerate(begins_s):
        rows += [{"kind": "run"}] if number else []
        for k in range(generations):
            started = begin_s + lasting_s * k / generations
            repetition = number * generations + k
            sample = {"kind": "sample", "plan_id": plan["plan_id"], "threads": 2, "repetition": repetition}
            rows += [
                {**sample, "model": model, "config_id": model, "started": started} for model in ("forkjoin", "tasks")
            ]
    return typed(rows)


def in_turn(points, sessions):
    """Estimates of points whose generations are of each session in turn."""
    return Estimates(points, sessions={t[0]: t[0] % sessions for own in points.values() for t in own})


@pytest.mark.parametrize(
    ("begins_s", "sessions"),
    [
        ([0], 1),
        ([0, 180], 1),
        ([0, 180, 360, 540, 720], 1),  # five that follow each other
        ([0, 720, 1440, 2160, 2880], 5),  # five over the hour
        ([0, 180, 3600, 3780], 2),
    ],
)
def test_starts_that_follow_each_other_closely_are_one_session(begins_s, sessions):
    """Check the number of sessions, that each generation is of one, and that generations of one keep their order."""
    rows, session_of = separate_sessions(starts(begins_s))
    of_session = {}
    for row in (row for row in rows if isinstance(row, SampleRow)):
        of_session.setdefault(session_of.get(row.repetition, 0), []).append((row.repetition, row.started))
    assert len(of_session) == sessions
    for own in of_session.values():
        assert own == sorted(own)
        gaps = np.diff(sorted(started for _, started in own))
        assert (gaps <= SESSION_PAUSE_S).all()


def points_of(rng, sessions, generations, apart=0.02, truth=0.05):
    """Turns of two points in sessions that differ."""
    points = {"a": {}, "b": {}}
    for session in range(sessions):
        brought = rng.normal(0, apart)
        for k in range(generations):
            level, placed = rng.normal(0, 0.05), rng.normal(0, 0.005)
            for number in range(6):
                turn = (k * sessions + session, 0, number)
                points["a"][turn] = math.exp(level + rng.normal(0, 0.003))
                points["b"][turn] = math.exp(truth + brought + level + placed + rng.normal(0, 0.003))
    return points


def of_session(points, number, sessions):
    """The turns of one session."""
    return {key: {turn: s for turn, s in own.items() if turn[0] % sessions == number} for key, own in points.items()}


def test_from_three_sessions_on_the_interval_is_over_them():
    """Check that two sessions have the interval of their generations, three and more one that sessions' spread alone
    makes, and what lies between sessions; a session of many generations counts once."""
    rng = np.random.default_rng(3)
    points = points_of(rng, 4, 8)
    two = {key: {turn: s for turn, s in own.items() if turn[0] % 4 < 2} for key, own in points.items()}
    few, many = in_turn(two, 4).ratio("b", "a"), in_turn(points, 4).ratio("b", "a")
    assert (few.sessions, many.sessions, many.count) == (2, 4, 32)
    assert few.half_width == pytest.approx(Estimates(two).ratio("b", "a").half_width, rel=0.05)
    logs = [math.log(Estimates(of_session(points, n, 4)).ratio("b", "a").value) for n in range(4)]
    assert math.log(many.value) == pytest.approx(np.mean(logs), abs=1e-3)
    assert many.half_width == pytest.approx(np.std(logs) * boundary(4, SESSION_PRIOR), rel=0.05)
    assert many.apart == pytest.approx(np.ptp(logs), rel=0.05)
    thinned = {key: {t: s for t, s in own.items() if t[0] % 4 or t[0] < 4} for key, own in points.items()}
    assert in_turn(thinned, 4).ratio("b", "a").value == pytest.approx(many.value, rel=0.005)


def test_intervals_over_sessions_hold_at_every_look():
    """Check normal sessions, looks from three to ten: at most one machine in twenty is missed at any."""
    rng, count = np.random.default_rng(1), 4000
    draws = rng.normal(size=(count, 10))
    missed = np.zeros(count, bool)
    for n in range(MIN_SESSIONS, 11):
        own = draws[:, :n]
        missed |= np.abs(own.mean(axis=1)) > own.std(axis=1) * boundary(n, SESSION_PRIOR)
    assert missed.mean() < 0.05 + 3 * math.sqrt(0.05 * 0.95 / count)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_runs_spread_over_the_hour_hold_the_mean_of_the_others(name):
    """Check forty runs published before, as sessions: intervals over five with three others between hold the mean of
    the rest in at least 93 of 100 choices."""
    runs = json.loads((A_A / name).read_text())["over persistent fork-join"]
    held = []
    for model in ("tasks", "taskgraph", "taskiter"):
        logs = np.log([run["ratio"] for run in runs[model]])
        for chosen in itertools.combinations(range(len(logs)), 5):
            if min(np.diff(chosen)) < 4:
                continue
            own, others = logs[list(chosen)], np.delete(logs, chosen)
            held.append(abs(own.mean() - others.mean()) <= half_width(own, MIN_SESSIONS, SESSION_PRIOR))
    assert len(held) == 3 * 56 and np.mean(held) >= 0.93


@pytest.mark.parametrize(("name", "run_s"), PUBLISHED.items())
def test_published_runs_that_follow_each_other_are_fewer_sessions(name, run_s):
    """Check that five consecutive ones of the forty published runs count as one session."""
    begins_s = [number * (run_s + 5) for number in range(5)]
    assert len({*separate_sessions(starts(begins_s, run_s))[1].values()}) <= 1


def test_a_verdict_of_one_session_is_not_that_of_the_machine():
    """Check a machine whose sessions differ by more than its generations: one session says slower, five undecided."""
    points = points_of(np.random.default_rng(5), 5, 8, apart=0.05, truth=0.0)
    alone = [verdict(Estimates(of_session(points, n, 5)).ratio("b", "a")) for n in range(5)]
    assert {"faster", "slower"} & {each.partition(",")[0] for each in alone}
    assert verdict(in_turn(points, 5).ratio("b", "a")) == "undecided"
    assert Estimate(1.0, 1.0, 1.0, 3).sessions == 1
