"""The curves of the notes: the ladder, run time of phases over threads, layer times."""

import math

import numpy as np
import pandas as pd
import pytest
from experiments.synthetic_results import sweep_of, synthetic_rows

from forktask.cython_src.errors import UsageError
from forktask.experiments.analysis.accounting import layer_table, layers_of_all, phase_table, summary_table
from forktask.experiments.analysis.comparisons import ladder_table
from forktask.experiments.analysis.speeds import speed_table
from forktask.experiments.report import figures
from forktask.experiments.report.figures.style import TALLEST_IN
from forktask.experiments.report.sections import build
from forktask.experiments.results.files import write_table
from forktask.experiments.subjects.models import parse_model

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


def test_chosen_models_are_the_rungs_in_their_order(ladder):
    """Check the order of those that are chosen, the height of many, and that too few are refused, also in a caption."""
    chosen = {"forkjoin": "", "taskiter": "closed", "tasks:taskwait=phase": ""}
    with figures.chosen(ladder, chosen) as shown:
        assert [*ladder_table(shown, ladder.plan_ids()[0])["model"]] == [*chosen]
    for column, said in (("double", "waits after steps\nclosed"), ("single", "closed")):
        axis = figures.draw(ladder, "ladder", column=column, models=chosen).axes[0]
        first, second, _ = (text.get_text() for text in axis.get_yticklabels())
        assert first.startswith("all: start of threads" if column == "double" else "forkjoin")
        assert said in second.replace(",", "") or said in second
    several = [f"taskiter:unroll={n}" for n in (2, 3, 4)]
    many = sweep_of(synthetic_rows(models=("serial", *RUNGS, *several), threads=(2,), repeats=1))
    assert figures.draw(many, "ladder", column="single").get_figheight() <= TALLEST_IN
    for ask in (figures.draw, figures.caption):
        with pytest.raises(UsageError, match="gpt2_ladder"):
            ask(ladder, "ladder", models={"taskiter": ""})


def test_models_without_a_wait_for_phases_are_no_ladder():
    """Check that other comparisons are shown no ladder, with a sentence that says what one needs."""
    sweep = sweep_of(synthetic_rows())
    assert "ladder" not in figures.available_figures(sweep, sweep.plan_ids()[0])
    with pytest.raises(UsageError, match="gpt2_ladder"):
        figures.draw(sweep, "ladder")


@pytest.mark.parametrize("serial", [True, False])
def test_wall_and_busy_times_of_a_phase_share_a_panel(serial):
    """Check the values of each panel over threads, without a serial run too, that busy times are hollow, and that two
    numbers of threads have a line."""
    sweep = sweep_of(synthetic_rows(models=("serial",) * serial + RUNGS, repeats=7))
    speeds = speed_table(sweep)
    table = speeds.merge(phase_table(sweep), on=["plan_id", "model", "threads"])
    busy = {model for model, timed in zip(table["model"], table["timed"], strict=True) if timed == "busy"}
    for column in ("double", "single"):
        axes = figures.draw(sweep, "run_time", column=column).axes
        panels = {axis.get_title(loc="left").split("$ ")[1]: axis for axis in axes}
        assert set(panels) == {"step", "forward", "backward"}
        for name, axis in panels.items():
            of = speeds[["threads", "time_s"]] if name == "step" else table[["threads", f"{name}_s"]]
            expected = {(float(n), round(1e3 * s, 9)) for n, s in of.to_numpy()}
            assert {(at, round(y, 9)) for at, y in drawn_points(axis)} == expected
            hollow = [line for line in axis.lines if line.get_marker() and line.get_markerfacecolor() == "white"]
            assert len(hollow) == (0 if name == "step" else len(busy))


def test_layers_of_every_model_are_those_of_the_table(ladder):
    """Check each model's busy time of every layer that takes a twentieth of a step, and of the step."""
    plan_id = ladder.plan_ids()[0]
    data = figures.figure_data(ladder, "layers")
    assert {*data["model"]} == {str(row.model) for row in ladder.profiles} and [*data["x"]][-1] == "all"
    for model, drawn in data.groupby("model"):
        threads = 1 if model == "serial" else 2
        table = layer_table(ladder, plan_id, parse_model(model), threads).groupby("layer")["time_s"].sum()
        known = {**(1e3 * table), "all": 1e3 * table.sum()}
        assert dict(zip(drawn["x"], drawn["value"], strict=True)) == pytest.approx({x: known[x] for x in drawn["x"]})


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


def test_layer_times_and_their_csv_are_those_of_the_table(tmp_path):
    """Check each form's times of the step and of layers that take a twentieth of one, and all rows in layers.csv."""
    forms = ({"conv": "direct"}, {"conv": "pad"})
    sweep = sweep_of(synthetic_rows(models=("serial", "taskiter"), options=forms, slowdowns=(1.0, 3.0), repeats=6))
    plan_id = sweep.plan_ids()[0]
    drawn = drawn_points(figures.draw(sweep, "layer_times", column="single").axes[0])
    tables = {plan: layer_table(sweep, plan).groupby("layer", sort=False)["time_s"].sum() for plan in sweep.plan_ids()}
    large = {layer for table in tables.values() for layer in table.index if table[layer] >= 0.05 * table.sum()}
    assert 0 < len(large) < len(tables[plan_id])
    for plan, whole in tables.items():
        table = whole[whole.index.isin(large)]
        expected = {(1e3 * seconds, float(place)) for place, seconds in enumerate(table)}
        expected.add((1e3 * sweep.times.time((plan, "serial", 1)).value, float(len(table))))
        assert all(any(point == pytest.approx(other) for other in drawn) for point in expected)
    assert len(drawn) == 2 * (len(table) + 1)
    rows = layers_of_all(sweep)
    write_table(tmp_path / "layers.csv", rows)
    again = pd.read_csv(tmp_path / "layers.csv")
    assert set(again["conv"]) == {"direct", "pad"} and set(again["threads"]) == {1, 2}
    mine = again[(again["plan_id"] == plan_id) & (again["model"] == "serial")]
    assert mine["time_s"].to_numpy() == pytest.approx(layer_table(sweep, plan_id)["time_s"].to_numpy())
    with pytest.raises(UsageError, match="two forms"):
        figures.draw(sweep_of(synthetic_rows()), "layer_times")
