"""Analysis: what its tables hold, and what it refuses."""

import math

import numpy as np
import pytest
from experiments.synthetic_results import block_times, plan_row, synthetic_rows, write_rows

from forktask.cython_src.errors import UsageError
from forktask.experiments.analysis import study as analysis


def study(**options):
    return analysis.study_from_rows(synthetic_rows(**options))


def first(rows, kind, **wanted):
    return next(r for r in rows if r["kind"] == kind and all(r[k] == v for k, v in wanted.items()))


def test_table_holds_a_row_per_point():
    """Check medians, paired speedups, efficiency and reference of every point against the samples."""
    rows = synthetic_rows(threads=(1, 2))
    table = analysis.speed_table(analysis.study_from_rows(rows))
    assert len(table) == 1 + 6 * 2
    serial = {r["repetition"]: r["step_time_s"] for r in rows if r["kind"] == "sample" and r["model"] == "serial"}
    for row in table.to_dict("records"):
        mine = {
            r["repetition"]: r["step_time_s"]
            for r in rows
            if r["kind"] == "sample" and (r["model"], r["threads"]) == (row["model"], row["threads"])
        }
        assert row["median_s"] == pytest.approx(np.median(list(mine.values())))
        assert row["speedup"] == pytest.approx(np.median([serial[k] / mine[k] for k in mine]))
        assert row["efficiency"] == pytest.approx(row["speedup"] / row["threads"])
        assert row["low_s"] <= row["median_s"] <= row["high_s"]
        assert row["repetitions"] == 9


def test_reference_is_the_better_forkjoin_form():
    """Check that verdicts are against the fork-join form with the smaller median on the same threads."""
    s = study(threads=(1, 2), noise=0.001)
    table = analysis.speed_table(s)
    joins = table[table["model"].str.startswith("forkjoin") & (table["threads"] == 2)]
    best = joins.loc[joins["median_s"].idxmin(), "model"]
    others = table[(table["threads"] == 2) & (table["model"] != best)]
    assert set(others["reference"]) == {best}
    assert table.loc[(table["threads"] == 2) & (table["model"] == best), "verdict"].tolist() == [""]
    assert table.loc[(table["threads"] == 2) & (table["model"] == "joblib"), "verdict"].tolist() == ["slower"]


def test_speedup_is_against_the_best_serial_run_of_any_granularity():
    """Check that a plan with slow serial blocks does not get a slow baseline."""
    s = study(granularities=(2, 16), noise=0.001)
    table = analysis.speed_table(s)
    serial = table[table["model"] == "serial"].set_index("granularity")
    assert serial.loc["images=16", "speedup"] == pytest.approx(1.0)
    assert serial.loc["images=2", "speedup"] < 0.99
    assert analysis.best_serial(s, table["plan_id"].iloc[0]) == analysis.best_serial(s, table["plan_id"].iloc[-1])
    own = analysis.own_best_table(s)
    assert set(own["model"]) == set(table["model"])
    fine = table[(table["model"] == "taskiter") & (table["threads"] == 2)].set_index("granularity")["median_s"]
    assert own.loc[(own["model"] == "taskiter") & (own["threads"] == 2), "granularity"].item() == fine.idxmin()


def test_few_repetitions_are_not_enough():
    """Check that four pairs never give a verdict, however clear."""
    table = analysis.speed_table(study(repeats=4))
    assert set(table["verdict"]) == {"", "not enough data"}


@pytest.mark.parametrize("where", ["sample", "run", "profile"])
def test_mixed_environments_are_refused(where):
    """Check that rows of another environment make every comparison an error."""
    rows = synthetic_rows()
    first(rows, where)["environment_id"] = "elsewhere"
    if where == "run":
        rows.insert(1, {**rows[0], "environment_id": "e0"})
    with pytest.raises(UsageError, match="one environment, got 2"):
        analysis.study_from_rows(rows)


def test_mixed_instruction_sets_are_refused():
    """Check that samples of two instruction sets are not compared."""
    rows = synthetic_rows()
    first(rows, "sample")["instruction_set"] = "avx2"
    with pytest.raises(UsageError, match="one instruction set, got avx2, avx512"):
        analysis.study_from_rows(rows)


@pytest.mark.parametrize("key", ["weights_hash", "losses_hash"])
def test_disagreeing_results_are_refused(key):
    """Check that one sample with other weights or losses stops every figure, and is named."""
    rows = synthetic_rows()
    first(rows, "sample", model="taskiter", threads=2, repetition=3)[key] = "other"
    with pytest.raises(UsageError, match=f"same {key[:-5]}, but .*taskiter.* on 2"):
        analysis.study_from_rows(rows)


def test_missing_hash_is_refused():
    """Check that a sample without a hash is no sample."""
    rows = synthetic_rows()
    first(rows, "sample", model="tasks", threads=1)["weights_hash"] = None
    with pytest.raises(UsageError, match="hash of the weights, repetition . of tasks on 1 threads has none"):
        analysis.study_from_rows(rows)


def test_mismatch_row_is_refused():
    """Check that a mismatch found while measuring stops every figure."""
    rows = synthetic_rows()
    rows.append(
        {
            "kind": "failure",
            "config_id": "x",
            "model": "tasks",
            "threads": 2,
            "plan_id": rows[2]["plan_id"],
            "repetition": 0,
            "reason": "mismatch",
            "message": "weights differ",
        }
    )
    with pytest.raises(UsageError, match="tasks on 2 threads did not"):
        analysis.study_from_rows(rows)


def test_plans_that_are_not_deterministic_are_not_compared_by_hash():
    """Check that a plan that says so may differ in its bits."""
    rows = synthetic_rows()
    first(rows, "plan")["deterministic"] = False
    first(rows, "sample")["weights_hash"] = "other"
    assert len(analysis.study_from_rows(rows).samples)


def test_implausible_efficiency_is_refused():
    """Check that efficiency above 1.5 is an error, not a figure."""
    rows = synthetic_rows()
    for row in rows:
        if row["kind"] == "sample" and row["model"] == "taskiter" and row["threads"] == 2:
            row["step_time_s"] /= 2
    with pytest.raises(UsageError, match="efficiency must not exceed 1.5, got .* for taskiter on 2"):
        analysis.study_from_rows(rows)


def test_an_uncertain_implausible_efficiency_is_told():
    """Check that one sample above the limit, which has no interval, comes with a warning."""
    rows = [row for row in synthetic_rows() if row["kind"] != "sample" or row["repetition"] == 0]
    assert not any("which no computer" in text for text in analysis.study_from_rows(rows).warnings)
    for row in rows:
        if row["kind"] == "sample" and row["model"] == "taskiter" and row["threads"] == 2:
            row["step_time_s"] /= 4
    assert any(
        "taskiter on 2 threads" in text and "which no computer" in text
        for text in analysis.study_from_rows(rows).warnings
    )


def test_resumed_run_takes_the_last_of_equal_rows():
    """Check that a repetition measured twice counts once."""
    rows = synthetic_rows()
    again = dict(first(rows, "sample", model="serial", repetition=0))
    again["step_time_s"] *= 1.01
    s = analysis.study_from_rows([*rows, again])
    assert s.step_times(again["plan_id"], "serial", 1)[0] == again["step_time_s"]
    assert len(s.step_times(again["plan_id"], "serial", 1)) == 9


def test_half_written_last_line_is_tolerated(tmp_path):
    """Check that the partial line is left out and said."""
    folder = write_rows(tmp_path, synthetic_rows(), partial='{"kind": "sample", "model": "ta')
    s = analysis.load(folder)
    assert "half-written" in s.warnings[0] and len(s.samples) == 13 * 9


def test_interrupted_run_says_how_much_is_there():
    """Check the sentence about missing samples."""
    rows = synthetic_rows(repeats=9)
    kept = [r for r in rows if r["kind"] != "sample" or r["repetition"] < 6]
    assert any("78 of 117 samples" in text for text in analysis.study_from_rows(kept).warnings)
    assert not any("not complete" in text for text in analysis.study_from_rows(rows).warnings)


def test_missing_samples_beside_hogs_are_counted():
    """Check that a run asked for only beside spinning processes is complete without quiet samples."""
    rows = [{**r, "interference": 1} if r["kind"] == "sample" else r for r in synthetic_rows()]
    rows[0]["config"]["interference"] = [1]
    assert not any("not complete" in text for text in analysis.study_from_rows(rows).warnings)
    rows[0]["config"]["interference"] = [0, 1]
    assert any("117 of 234 samples" in text for text in analysis.study_from_rows(rows).warnings)


def test_a_granularity_of_one_model_is_no_gap():
    """Check that what `tune` found for one model is not asked of the others."""
    rows = synthetic_rows()
    plan = next(r for r in rows if r["kind"] == "plan")
    rows[0]["config"]["granularity"] = [plan["granularity"]]
    own = [
        {**r, "plan_id": "own", "config_id": f"own {r['config_id']}"}
        for r in rows
        if r["kind"] == "sample" and r["plan_id"] == plan["plan_id"] and r["model"] == "taskiter" and r["threads"] == 2
    ]
    assert own
    rows += [{**plan, "plan_id": "own", "granularity": "images=3"}, *own]
    assert not any("not complete" in text for text in analysis.study_from_rows(rows).warnings)


def test_step_times_lost_in_noise_are_left_out_and_said():
    """Check that a slope of zero or less is no sample."""
    rows = synthetic_rows()
    first(rows, "sample", model="tasks", threads=2, repetition=1)["step_time_s"] = -1e-9
    s = analysis.study_from_rows(rows)
    assert len(s.step_times(rows[2]["plan_id"], "tasks", 2)) == 8
    assert any("no positive step time" in text for text in s.warnings)


def test_disturbed_samples_are_counted():
    """Check the share of time lost to others, and its sentence."""
    assert analysis.disturbed_share({"pressure_some_us": 2e5, "steal_ticks": 10}, 1.0, 2) == pytest.approx(0.2)
    assert math.isnan(analysis.disturbed_share(None, 1.0))
    rows = synthetic_rows()
    first(rows, "sample")["disturbance"]["pressure_some_us"] = 10**9
    assert any(text.startswith("1 of 117 samples were disturbed") for text in analysis.study_from_rows(rows).warnings)


def test_interference_is_compared_with_itself_only():
    """Check that samples beside spinning processes get a baseline and a reference of their own."""
    rows = synthetic_rows()
    slow = [
        {**r, "interference": 1, "config_id": r["config_id"] + "h", "step_time_s": 2 * r["step_time_s"]}
        for r in rows
        if r["kind"] == "sample"
    ]
    s = analysis.study_from_rows([*rows, *slow])
    table = analysis.speed_table(s)
    quiet, beside = (table[table["plan_id"] == p].reset_index() for p in s.plan_ids())
    assert beside["median_s"].to_numpy() == pytest.approx(2 * quiet["median_s"].to_numpy())
    assert beside["speedup"].to_numpy() == pytest.approx(quiet["speedup"].to_numpy())
    assert "beside 1 spinning process" in analysis.problem_name(s.plans[s.plan_ids()[1]])


def test_layer_table_accounts_for_all_time():
    """Check shares, rates and fractions of peak against the profile row."""
    s = study()
    plan_id = s.plan_ids()[0]
    table = analysis.layer_table(s, plan_id)
    times = block_times(s.plans[plan_id])
    assert table["time_s"].sum() == pytest.approx(sum(map(sum, times.values())))
    assert table["share"].sum() == pytest.approx(1.0)
    conv2 = table[(table["layer"] == "conv2") & (table["phase"] == "backward")].iloc[0]
    assert conv2["gflops"] == pytest.approx(8.2e-3 * 64 / sum(times["conv2.backward"]))
    assert conv2["peak_fraction"] == pytest.approx(conv2["gflops"] / 235)
    assert not len(analysis.layer_table(s, plan_id, "joblib", 2))


def test_floor_table_is_flops_over_peak_and_its_roofline():
    """Check both floors by hand, and that an unmeasured machine gives NaN."""
    rows = synthetic_rows()
    plan = first(rows, "plan")
    row = analysis.floor_table(analysis.study_from_rows(rows)).iloc[0]
    assert row["flop_floor_s"] == pytest.approx(plan["flops"] / 235e9)
    assert row["roofline_floor_s"] == pytest.approx(
        sum(max(loop["flops"] / 235e9, loop["bytes"] / 18e9) for loop in plan["loops"])
    )
    assert row["flop_floor_ratio"] == pytest.approx(row["t1_s"] / row["flop_floor_s"])
    unmeasured = analysis.study_from_rows([r for r in rows if r["kind"] != "machine"])
    assert math.isnan(analysis.floor_table(unmeasured).iloc[0]["flop_floor_ratio"])


def test_bound_table_scales_the_profile_to_the_serial_run():
    """Check that one thread's bounds are the serial time, and that more threads stay below the capacity."""
    s = study(threads=(1, 2, 4))
    table = analysis.bound_table(s).set_index("threads")
    serial = float(np.median(list(s.step_times(s.plan_ids()[0], "serial", 1).values())))
    assert table.loc[1, "forkjoin_s"] == pytest.approx(serial)
    assert table.loc[2, "area_s"] == pytest.approx(serial / 1.96)
    assert (table["forkjoin_speedup"] <= table["area_speedup"] + 1e-12).all()
    without = analysis.bound_table(study(graph_bounds=False))
    assert without["taskiter_s"].isna().all()


def test_accounting_compares_with_the_models_own_floor():
    """Check floor, excess and the cost per barrier of fork-join, which the formula put at 4 us on two threads."""
    s = study(noise=1e-9, models=("serial", "forkjoin", "taskiter"))
    serial = s.step_times(s.plan_ids()[0], "serial", 1)
    disturbance = np.median(list(serial.values())) / sum(map(sum, block_times(plan_row()).values()))
    table = analysis.accounting_table(s).set_index(["model", "threads"])
    row = table.loc["forkjoin", 2]
    assert row["floor"] == "forkjoin"
    expected = row["measured_s"] / disturbance - row["floor_s"]
    assert expected / 17 == pytest.approx(4e-6, rel=0.02)
    assert row["per_unit_s"] == pytest.approx((row["measured_s"] - row["floor_s"]) / 17)
    assert row["inflation"] == pytest.approx(1.005)
    assert row["runtime_cost_s"] == pytest.approx(2e-6 * 17)
    assert row["unexplained"] == pytest.approx((row["excess_s"] - row["runtime_cost_s"]) / row["floor_s"])
    assert table.loc["taskiter", 2]["floor"] == "taskiter"


def test_break_even_is_the_smallest_number_that_pays():
    """Check n on both sides of the break-even, and the words where there is none."""
    rows = synthetic_rows(noise=1e-6, models=("serial", "forkjoin", "tasks", "taskgraph", "taskiter"))
    for row in rows:
        if row["kind"] == "sample":
            base = {"serial": 10e-3, "forkjoin": 5.0e-3, "tasks": 5.5e-3, "taskgraph": 5.2e-3, "taskiter": 4.0e-3}
            row["step_time_s"] = base[row["model"]] * (1 if row["threads"] == 2 or row["model"] == "serial" else 2)
            row["prepare_s"] = {"taskgraph": 50e-3, "taskiter": 50e-3}.get(row["model"], 1e-3)
            row["first_replay_s"] = row["step_time_s"]
    table = analysis.cost_table(analysis.study_from_rows(rows)).set_index(["model", "threads"])
    n = table.loc[("taskiter", 2), "break_even_forkjoin"]
    assert n == 49
    assert table.loc[("taskiter", 2), "break_even_tasks"] == math.ceil(49e-3 / 1.5e-3)
    assert table.loc[("taskgraph", 2), "break_even_forkjoin"] == "never"
    assert table.loc[("forkjoin", 2), "break_even_tasks"] == ""


def test_no_sample_has_no_main_plan():
    """Check the sentence when everything failed."""
    rows = [r for r in synthetic_rows(failures=True) if r["kind"] != "sample"]
    s = analysis.study_from_rows(rows)
    with pytest.raises(UsageError, match="at least one sample, got none .*no answer within 60 s"):
        analysis.main_plan(s)


@pytest.mark.parametrize(
    ("model", "label"),
    [
        ("forkjoin", "forkjoin"),
        ("forkjoin:region=persistent", "forkjoin, persistent"),
        ("forkjoin:schedule=dynamic:chunk_size=1", "forkjoin, dynamic, chunk size 1"),
    ],
)
def test_model_labels_are_short(model, label):
    """Check the readable form of specs."""
    assert analysis.model_label(model) == label
