"""Promised and measured gains of taskiter, from formulas."""

import pytest
from experiments.synthetic_results import plan_row, step_time, synthetic_rows

from forktask.experiments.analysis.gains import gain_table
from forktask.experiments.analysis.limits import bound_table
from forktask.experiments.analysis.load import study_from_rows
from forktask.experiments.report import figures
from forktask.experiments.report.sections import build


def test_gains_are_quotients_of_bounds_and_of_times():
    """Check promise and gain of two plans against bounds and formulas, and that one thread promises nothing."""
    rows = synthetic_rows(threads=(1, 4), granularities=(8, 16), noise=0.0)
    study = study_from_rows(rows)
    table, limits = gain_table(study), bound_table(study)
    assert set(table["threads"]) == {4} and len(table) == 2
    for row, images in zip(table.to_dict("records"), (8, 16), strict=True):
        bound = limits[(limits["plan_id"] == row["plan_id"]) & (limits["threads"] == 4)].iloc[0]
        assert row["promised"] == pytest.approx(bound["forkjoin_s"] / bound["taskiter_s"])
        plan = plan_row(64, images)
        best = min(step_time(plan, m, 4) for m in ("forkjoin", "forkjoin:region=persistent"))
        assert row["gained"] == pytest.approx(best / step_time(plan, "taskiter", 4), rel=1e-6)
        assert row["gained_low"] <= row["gained"] <= row["gained_high"]
    assert "gain" in figures.available_figures(study, study.plan_ids()[0])
    assert any(section.figures == ("gain",) for section in build(study).sections)
    one = study_from_rows(synthetic_rows())
    assert "gain" not in figures.available_figures(one, one.plan_ids()[0])
