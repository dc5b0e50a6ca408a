"""The curves of the notes: the ladder, run time of phases over threads, layer times."""

import math

import numpy as np
import pytest
from experiments.synthetic_results import sweep_of, synthetic_rows

from forktask.cython_src.errors import UsageError
from forktask.experiments.analysis.accounting import summary_table
from forktask.experiments.analysis.comparisons import ladder_table
from forktask.experiments.analysis.speeds import speed_table
from forktask.experiments.report import figures
from forktask.experiments.report.sections import build

RUNGS = (
    *("forkjoin", "forkjoin:region=persistent", "tasks:taskwait=phase", "tasks", "tasks:taskwait=none"),
    *("taskgraph:barrier=phase", "taskgraph", "taskiter"),
)


@pytest.fixture(scope="module")
def ladder():
    return sweep_of(synthetic_rows(models=("serial", *RUNGS), repeats=7))


def drawn_points(axis):
    """Coordinates of an axis's markers."""
    return {
        (float(x), float(y))
        for line in axis.lines
        if line.get_marker() not in ("", "None", None)
        for x, y in zip(*map(np.atleast_1d, (line.get_xdata(), line.get_ydata())), strict=True)
        if math.isfinite(y)
    }


def test_a_ladder_has_a_row_for_each_rung_in_the_order_of_the_file(ladder):
    """Check order, waits, both ratios and their intervals against the sweep, in the table and in the figure."""
    plan_id = ladder.plan_ids()[0]
    rows = ladder_table(ladder, plan_id).to_dict("records")
    assert [row["model"] for row in rows] == list(RUNGS)
    assert [row["takes"] for row in rows[1:]] == [
        "− start of threads",
        "− waits after loops; + creation of tasks",
        "− waits after phases",
        "− waits after steps",
        "− creation of tasks; + waits after phases, waits after steps",
        "− waits after phases",
        "− waits after steps",
    ]
    speeds = speed_table(ladder).query("threads == 2").set_index("model")
    for above, row in zip([None, *rows], rows, strict=False):
        assert row["ratio"] == pytest.approx(speeds["ratio"][row["model"]], nan_ok=True)
        if above:
            ratio = ladder.times.ratio((plan_id, row["model"], 2), (plan_id, above["model"], 2))
            assert (row["above"], row["above_low"], row["above_high"]) == (ratio.value, ratio.low, ratio.high)
    to_join, to_above = figures.draw(ladder, "ladder").axes
    assert {(row["above"], float(place)) for place, row in enumerate(rows) if place} <= drawn_points(to_above)
    assert {(r["ratio"], float(i)) for i, r in enumerate(rows) if r["ratio"] == r["ratio"]} <= drawn_points(to_join)
    assert any(table.name == "ladder" and table.rows for part in build(ladder).sections for table in part.tables)


def test_models_without_a_wait_for_phases_are_no_ladder():
    """Check that other comparisons are shown no ladder, with a sentence that says what one needs."""
    sweep = sweep_of(synthetic_rows())
    assert "ladder" not in figures.available_figures(sweep, sweep.plan_ids()[0])
    with pytest.raises(UsageError, match="gpt2_ladder"):
        figures.draw(sweep, "ladder")


def test_peak_and_planned_memory_are_in_the_summary():
    """Check measured bytes, and planned ones: buffers, task graph and libraries."""
    rows = synthetic_rows(models=("serial", "taskiter"), batches=(16, 32), repeats=3)
    plans = {row["plan_id"]: row["options"]["batch"] for row in rows if row["kind"] == "plan"}
    for row in rows:
        if row["kind"] == "plan":
            row["memory_bytes"] = {"parameter": 2**20, "activation": plans[row["plan_id"]] * 2**20}
        if row["kind"] == "sample":
            row["max_resident_bytes"] = 2**23 * plans[row["plan_id"]]
    summary = summary_table(sweep_of(rows))
    assert set(summary["peak_bytes"]) == {2**27, 2**28}
    assert set(summary["planned_bytes"]) == {40_000_000 + 100_000 + (1 + b) * 2**20 for b in (16, 32)}
