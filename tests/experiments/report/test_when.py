"""Figure `when`: a run's plans over the published points."""

import pandas as pd
import pytest
from experiments.analysis.test_recovered import sweep_of

from forktask.cython_src.errors import UsageError
from forktask.experiments.report import figures
from forktask.experiments.report.figures import when
from forktask.experiments.report.sections import build

TIMES = {"serial": 1.5e-3, "forkjoin:region=persistent": 1e-3, "taskiter": 0.9e-3}  # on two threads


def test_points_lie_over_the_published_ones():
    """Check the run's points, that all published ones are there, and the caption."""
    sweep = sweep_of(TIMES, granularities=(4, 16, 32))
    data = figures.figure_data(sweep, "when")
    own = data[data["group"] == when.OWN]
    assert own["x"].tolist() == pytest.approx([0.75] * 3, rel=1e-3)
    assert own["value"].tolist() == pytest.approx([0.9] * 3, rel=1e-3)
    assert (own["x_low"] <= own["x"]).all() and (own["x"] <= own["x_high"]).all()
    published = pd.read_csv(when.PUBLISHED)
    assert data[data["group"] != when.OWN]["value"].tolist() == published["ratio"].tolist() and len(published) > 30
    assert {*published["machine"]} == {*when.MACHINES}
    assert "on 2 threads" in figures.caption(sweep, "when")
    assert "when" in figures.available_figures(sweep, sweep.plan_ids()[0])
    first = build(sweep).sections[0]
    assert first.title == "When do tasks pay?" and first.figures == ("when",)  # before the plans


@pytest.mark.parametrize(
    "sweep",
    [
        sweep_of(TIMES, granularities=(4, 16)),
        sweep_of({k: v for k, v in TIMES.items() if k != "taskiter"}, granularities=(4, 16, 32)),
        sweep_of({k: v for k, v in TIMES.items() if k != "serial"}, granularities=(4, 16, 32)),
        sweep_of(TIMES, granularities=(4, 16, 32), repeats=1),
    ],
    ids=["two plans", "no tasks", "no serial run", "no intervals"],
)
def test_too_few_points_are_refused(sweep):
    """Check that the message says which models and how many plans it takes, and what measures them."""
    assert "when" not in figures.available_figures(sweep, sweep.plan_ids()[0])
    with pytest.raises(UsageError, match="needs 3 plans .*got [0-2]; `forktask run when`"):
        figures.draw(sweep, "when")
