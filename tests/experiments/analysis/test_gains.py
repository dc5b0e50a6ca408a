"""Promised and measured gains of taskiter, from formulas."""

import math

import numpy as np
import pytest
from experiments.analysis.test_analysis import made_up_machine
from experiments.synthetic_results import block_times, plan_row, step_time, sweep_of, synthetic_rows

from forktask.experiments.analysis.estimates import Estimate
from forktask.experiments.analysis.gains import gain_table, promise
from forktask.experiments.analysis.limits import bound_table, serial_profiles
from forktask.experiments.bounds.bounds import GraphBounds
from forktask.experiments.report import figures
from forktask.experiments.report.sections import build

ENDS = (("high", "low"), ("low", "high"))


def test_gains_are_quotients_of_bounds_and_of_times():
    """Check promise and gain of two plans against bounds and formulas, and that one thread promises nothing."""
    rows = synthetic_rows(threads=(1, 4), granularities=(8, 16), noise=0.0)
    sweep = sweep_of(rows)
    table, limits = gain_table(sweep), bound_table(sweep)
    assert set(table["threads"]) == {4} and len(table) == 2
    for row, images in zip(table.to_dict("records"), (8, 16), strict=True):
        bound = limits[(limits["plan_id"] == row["plan_id"]) & (limits["threads"] == 4)].iloc[0]
        assert row["promised"] == pytest.approx(bound["forkjoin_s"] / bound["taskiter_s"])
        plan = plan_row(64, images)
        best = min(step_time(plan, m, 4) for m in ("forkjoin", "forkjoin:region=persistent"))
        assert row["gained"] == pytest.approx(best / step_time(plan, "taskiter", 4), rel=1e-6)
        assert row["gained_low"] <= row["gained"] <= row["gained_high"]
    assert "gain" in figures.available_figures(sweep, sweep.plan_ids()[0])
    assert any(section.figures == ("gain",) for section in build(sweep).sections)
    one = sweep_of(synthetic_rows())
    assert "gain" not in figures.available_figures(one, one.plan_ids()[0])


@pytest.mark.parametrize(
    ("low", "value", "high", "expected"),
    [
        # Work 14, cycle mean 7: up to a capacity of 2 the area binds taskiter, from there on its cycle mean.
        (1.5, 1.6, 2.0, ((12 / 1.6 + 2) / (14 / 1.6), (12 / 1.5 + 2) / (14 / 1.5), 8 / 7)),
        (2.0, 2.4, 3.0, ((12 / 2.4 + 2) / 7, (12 / 3 + 2) / 7, 8 / 7)),
        (1.6, 1.8, 2.4, ((12 / 1.8 + 2) / (14 / 1.8), (12 / 2.4 + 2) / 7, 8 / 7)),
        (math.nan, 2.0, math.nan, (8 / 7, math.nan, math.nan)),
    ],
)
def test_the_interval_of_a_promise_takes_one_capacity_for_both_bounds(low, value, high, expected):
    """Check ends that are worked out by hand, also where the promise is highest inside of the capacity's interval."""
    profile = [[1.0] * 12, [2.0]], GraphBounds(14.0, 3.0, 7.0)
    found = promise([profile], 4, Estimate(value, low, high, 5))
    assert (found.value, found.low, found.high) == pytest.approx(expected, nan_ok=True)


def test_promises_of_made_up_machines_are_in_their_intervals():
    """Check that intervals hold the true promise in 95 % of machines whose capacity is noisy, and that they are at most
    half as wide as if both bounds had capacities of their own."""
    rng = np.random.default_rng(5)
    blocks = list(block_times(plan_row()).values())
    work = sum(map(sum, blocks))
    held, widths = [], []
    for _ in range(20):
        sweep = sweep_of(made_up_machine(rng, 6, models=("serial", "forkjoin", "taskiter")))
        row, limits = gain_table(sweep).iloc[0], bound_table(sweep).set_index("threads").loc[2]
        (_, graph), *_ = serial_profiles(sweep, row["plan_id"])
        truth = sum(max(sum(b) / 1.8, max(b)) for b in blocks) / max(work / 1.8, graph.cycle_mean_s)
        held.append(row["promised_low"] <= truth <= row["promised_high"])
        apart = [limits[f"forkjoin_s_{end}"] / limits[f"taskiter_s_{other}"] for end, other in ENDS]
        widths.append((row["promised_high"] - row["promised_low"]) / (apart[0] - apart[1]))
    assert np.mean(held) >= 0.95 and np.median(widths) <= 0.5
