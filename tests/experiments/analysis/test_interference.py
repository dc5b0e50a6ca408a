"""Loss beside other processes: capacity, table, figure, and the shipped experiment."""

import math
import os

import pytest

from experiments import synthetic_results
from forktask.experiments.analysis.comparisons import interference_table
from forktask.experiments.report import figures
from forktask.experiments.report.figures.style import save
from forktask.experiments.report.rendering import render_text
from forktask.experiments.report.sections import build
from forktask.experiments.sampling import hogs

SLOWDOWN = {"forkjoin": 2.0, "taskiter": 1.4}


@pytest.fixture(scope="module")
def sweep():
    """Every sample once more beside a hog, slower by a known factor."""
    rows = synthetic_results.synthetic_rows(models=("serial", *SLOWDOWN), threads=(1, 2), noise=0.0)
    beside = [
        {
            **row,
            "interference": 1,
            "config_id": row["config_id"] + "h",
            "step_time_s": row["step_time_s"] * SLOWDOWN[row["model"]],
        }
        for row in rows
        if row["kind"] == "sample" and row["model"] in SLOWDOWN
    ]
    rows = [{**row, "capacity_beside": {"2": {"1": 0.75}}} if row["kind"] == "machine" else row for row in rows]
    return synthetic_results.sweep_of([*rows, *beside])


def test_the_loss_is_what_the_capacity_does_not_explain(sweep, tmp_path):
    """Check slowdown and loss of each model without a measured capacity, and that table, figure and caption show it."""
    table = interference_table(sweep)
    of = {(r["model"], r["threads"]): r for r in table[table["hogs"] == 1].to_dict("records")}
    assert of["forkjoin", 2]["loss"] == pytest.approx(0.5)
    assert of["taskiter", 2]["loss"] == pytest.approx(0.05)
    assert of["taskiter", 1]["slowdown"] == pytest.approx(1.4) and math.isnan(of["taskiter", 1]["loss"])
    assert ("serial", 1) not in of
    assert set(table[table["hogs"] == 0]["loss"]) == {0.0}
    plan_id = table["plan_id"].iloc[0]
    assert "interference" in figures.available_figures(sweep, plan_id)
    figure = figures.draw(sweep, "interference", plan_id)
    data = figures.figure_data(sweep, "interference", plan_id)
    assert dict(zip(data["model"], data["value"], strict=True)) == pytest.approx({"forkjoin": 50.0, "taskiter": 5.0})
    save(figure, tmp_path / "f.svg")
    report = build(sweep)
    shown = [part for section in report.sections for part in section.tables if part.name == "interference"]
    assert {row["hogs"] for part in shown for row in part.rows} == {1}
    assert "With competing processes" in render_text(report)


def test_a_hog_takes_part_of_a_core():
    """Check that spinning threads keep between a fifth and all of what they do alone; the machine may be busy."""
    cpus = sorted(os.sched_getaffinity(0))[:2]
    assert 0.2 < hogs.measure_capacity_beside(1, cpus, 0.1) <= 1.0
