"""The curves of the notes: the ladder, run time of phases over threads, memory over the batch, layer times."""

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
def test_wall_and_busy_times_of_a_phase_share_a_panel(ladder, serial):
    """Check the values of each panel over the batch, without a serial run too, that busy times are hollow, and that
    two numbers of threads have a line."""
    models = ("serial",) * serial + RUNGS
    sweep = sweep_of(synthetic_rows(models=models, batches=(16, 64), repeats=7))
    speeds = speed_table(sweep).query("threads == 2 or model == 'serial'")
    table = speeds.merge(phase_table(sweep), on=["plan_id", "model", "threads"])
    busy = {model for model, timed in zip(table["model"], table["timed"], strict=True) if timed == "busy"}
    for column in ("double", "single"):
        axes = figures.draw(sweep, "run_time_over_batch", column=column).axes
        panels = {axis.get_title(loc="left").split("$ ")[1]: axis for axis in axes}
        assert set(panels) == {"step", "forward", "backward"}
        for name, axis in panels.items():
            of = speeds[["batch", "time_s"]] if name == "step" else table[["batch", f"{name}_s"]]
            expected = {(float(n), round(1e3 * s, 9)) for n, s in of.to_numpy()}
            assert {(at, round(y, 9)) for at, y in drawn_points(axis)} == expected
            hollow = [line for line in axis.lines if line.get_marker() and line.get_markerfacecolor() == "white"]
            assert len(hollow) == (0 if name == "step" else len(busy))
    rows = figures.figure_data(ladder, "run_time").query("panel == 'step'")
    of_step = {(str(row.model), row.threads): 1e3 * row.time_s for row in speed_table(ladder).itertuples()}
    drawn = {(str(row.model), row.x): row.value for row in rows.itertuples() if (str(row.model), row.x) in of_step}
    assert {threads for _, threads in drawn} == {1, 2} and drawn == pytest.approx({key: of_step[key] for key in drawn})


def test_memory_over_the_batch_is_that_of_the_table():
    """Check measured and planned bytes in figure and summary, a batch that did not fit, and the machine's limit."""
    models = ("serial", "forkjoin:region=persistent", "taskiter")
    rows = synthetic_rows(models=models, batches=(16, 32, 64), repeats=3)
    plans = {row["options"]["batch"]: row for row in rows if row["kind"] == "plan"}
    for batch, plan in plans.items():
        plan["memory_bytes"] = {"parameter": 2**20, "activation": batch * 2**20}
    rows = [row for row in rows if row["kind"] != "sample" or row["plan_id"] != plans[64]["plan_id"]]
    for row in rows:
        if row["kind"] == "run":
            row["environment"]["memory"] = {"total_bytes": 2**33}
        if row["kind"] == "sample":
            row["max_resident_bytes"] = 2**27 if row["plan_id"] == plans[16]["plan_id"] else 2**28
    sweep = sweep_of(rows)
    (axis,) = figures.draw(sweep, "memory").axes
    libraries, graph = 40_000_000, 100_000
    wanted = {(float(b), (libraries + graph * (b < 64)) / 2**20 + 1 + b) for b in plans}
    assert {(16.0, 128.0), (32.0, 256.0)} | {max(wanted)} == drawn_points(axis)
    grey = {line.get_marker() for line in axis.lines if line.get_color() == "0.45"}
    assert "X" in grey and "x" not in grey  # a stroke would be its white edge alone
    dashed = next(line for line in axis.lines if line.get_linestyle() == "--" and line.get_color() == "0.45")
    assert set(zip(map(float, dashed.get_xdata()), dashed.get_ydata(), strict=True)) == wanted
    assert any(np.allclose(line.get_ydata(), 2**13) for line in axis.lines)
    summary = summary_table(sweep)
    assert set(summary["peak_bytes"]) == {2**27, 2**28}
    assert set(summary["planned_bytes"]) == {libraries + graph + (1 + b) * 2**20 for b in (16, 32)}


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
