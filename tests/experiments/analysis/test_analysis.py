"""Analysis: what its tables hold, and what it refuses."""

import math
import re
import types
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import pytest
from experiments.synthetic_results import block_times, plan_row, step_time, sweep_of, synthetic_rows

from forktask.cython_src import records
from forktask.cython_src.errors import UsageError
from forktask.cython_src.lowering import options as lowering_options
from forktask.experiments.analysis import accounting, speeds
from forktask.experiments.analysis.accounting import accounting_table, busy_time, inflation, layer_table, phase_table
from forktask.experiments.analysis.comparisons import axis_table, own_best_table
from forktask.experiments.analysis.costs import counter_table, gpu_table
from forktask.experiments.analysis.limits import bound_table, floor_table
from forktask.experiments.analysis.load import load
from forktask.experiments.analysis.speeds import speed_table
from forktask.experiments.report.figures import figure_data
from forktask.experiments.report.rendering import render_json, render_text
from forktask.experiments.report.sections import build
from forktask.experiments.report.verdicts import scope_note
from forktask.experiments.results import rows as result_rows
from forktask.experiments.results.disturbance import disturbed_share
from forktask.experiments.subjects.models import parse_model, runnable

ROOT = Path(__file__).parents[3]


def sweep(**options):
    return sweep_of(synthetic_rows(**options))


def first(rows, kind, **wanted):
    return next(r for r in rows if r["kind"] == kind and all(r[k] == v for k, v in wanted.items()))


def samples_of(rows, **wanted):
    """Step times by repetition of the samples that have these values."""
    return {
        r["repetition"]: r["step_time_s"]
        for r in rows
        if r["kind"] == "sample" and all(r[key] == value for key, value in wanted.items())
    }


def test_table_holds_a_row_per_point():
    """Check times, speedups and efficiency of every point against the samples."""
    rows = synthetic_rows(threads=(1, 2))
    table = speeds.speed_table(sweep_of(rows))
    assert len(table) == 1 + 6 * 2
    serial = np.exp(np.mean(np.log(list(samples_of(rows, model="serial").values()))))
    for row in table.to_dict("records"):
        mine = list(samples_of(rows, model=row["model"], threads=row["threads"]).values())
        assert row["time_s"] == pytest.approx(np.exp(np.mean(np.log(mine))), rel=1e-3)
        assert row["speedup"] == pytest.approx(serial / row["time_s"], rel=1e-3)
        assert row["efficiency"] == pytest.approx(row["speedup"] / row["threads"])
        assert row["low_s"] <= row["time_s"] <= row["high_s"]
        assert (row["generations"], row["rounds"]) == (9, 18)


def test_another_program_states_no_costs_of_a_gpu():
    """Check that PyTorch's samples of a real device, which lack them, stand beside ours."""
    table = gpu_table(load(ROOT / "results" / "xeon_16_cores" / "h200_peers")).set_index("model")
    assert table["context_s"].isna().to_dict() == {model: model.is_peer for model in table.index}
    assert len(table) == 6 and (table.loc[["gpu_stream"], "context_s"] > 0).all()


@pytest.mark.parametrize(("granularity", "said"), [("auto", True), ("threads=16", False), ("images=16", False)])
def test_a_plan_for_fewer_threads_is_named(granularity, said):
    """Check that a report says what to do where "auto" has cut loops for fewer threads than were measured."""
    warnings = sweep(threads=(1, 2, 16), options=({"granularity": granularity},)).warnings
    sentence = "Loops were divided into blocks for 8 threads, and 16 were measured"
    assert any(text.startswith(sentence) and "--granularity threads=16" in text for text in warnings) == said


@pytest.mark.parametrize("option", ["weight_gradients", "tiling"])
def test_a_swept_option_is_named_and_compared(option, monkeypatch):
    """Check table, columns and names for an option of `PlanOptions`, and for one that nobody thought of."""
    if option == "tiling":
        text = Annotated[str, records.about("how tiles lie", choices=("partial", "chain"))]
        namespace = {"__annotations__": {"tiling": text}, "tiling": "partial", "__module__": __name__}
        larger = types.new_class(
            "Larger", (lowering_options.PlanOptions,), {"frozen": True}, lambda n: n.update(namespace)
        )
        for module in (lowering_options, result_rows):
            monkeypatch.setattr(module, "PlanOptions", larger)
    s = sweep(options=({option: "partial"}, {option: "chain"}), slowdowns=(1.0, 1.25), noise=0.001)
    label = option.replace("_", " ")
    assert s.axes == (option,)
    assert [s.problem_name(p) for p in s.plan_ids()] == [
        f"cifar10_cnn, batch 64, train, {label} {value}" for value in ("partial", "chain")
    ]
    table = axis_table(s)
    assert set(table["axis"]) == {option} and set(table["value"]) == {"chain"} and set(table["baseline"]) == {"partial"}
    assert len(table) == 13 and set(table["verdict"]) == {"slower"}
    assert table["ratio"].to_numpy() == pytest.approx(1.25, rel=0.01)
    assert ((table["ratio_low"] <= table["ratio"]) & (table["ratio"] <= table["ratio_high"])).all()
    assert list(speeds.speed_table(s)[option].unique()) == ["partial", "chain"]
    assert all(speeds.best_serial(s, p) == (p, "serial", 1) for p in s.plan_ids())


def test_only_plans_that_differ_in_one_option_are_compared():
    """Check that of two swept options each is compared with the other one held, and what is compared along batches."""
    options = [{"weight_gradients": w, "memory": m} for w in ("partial", "chain") for m in ("full", "shared")]
    s = sweep(options=options, slowdowns=(1.0, 1.5, 2.0, 3.0), noise=1e-4, models=("serial", "forkjoin"))
    table = axis_table(s)
    for row in table.to_dict("records"):
        ours, base = s.records[row["plan_id"]], s.records[row["baseline_plan_id"]]
        assert [name for name in ours if ours[name] != base[name]] == [row["axis"]]
        assert row["ratio"] == pytest.approx(1.5 if row["axis"] == "memory" else 2.0, rel=0.01)
    assert len(table) == 2 * 2 * 3
    s = sweep(batches=(16, 64), models=("serial", "forkjoin"))
    batches = axis_table(s)
    assert set(batches["axis"]) == {"batch"} and len(batches) == 3
    for row in batches.to_dict("records"):
        small = s.times.time((row["baseline_plan_id"], row["model"], row["threads"])).value
        assert row["ratio"] == pytest.approx(row["time_s"] / 64 / (small / 16))  # of an image


def test_the_baseline_of_an_axis_is_the_first_value_asked_for():
    """Check that the order of the configuration decides, not that of the rows."""
    rows = synthetic_rows(options=({"memory": "full"}, {"memory": "shared"}), slowdowns=(1.0, 1.5), noise=1e-4)
    rows[0]["config"]["memory"] = ["shared", "full"]
    table = axis_table(sweep_of(rows))
    assert set(table["baseline"]) == {"shared"}
    assert table["ratio"].to_numpy() == pytest.approx(1 / 1.5, rel=0.01)


def test_speedup_is_against_the_best_serial_run_of_any_granularity():
    """Check that a plan with slow serial blocks does not get a slow baseline."""
    s = sweep(granularities=(2, 16), noise=0.001)
    table = speeds.speed_table(s)
    serial = table[table["model"] == "serial"].set_index("granularity")
    assert serial.loc["images=16", "speedup"] == pytest.approx(1.0)
    assert serial.loc["images=2", "speedup"] < 0.99
    assert speeds.best_serial(s, table["plan_id"].iloc[0]) == speeds.best_serial(s, table["plan_id"].iloc[-1])
    own = own_best_table(s)
    assert set(own["model"]) == set(table["model"])
    fine = table[(table["model"] == "taskiter") & (table["threads"] == 2)].set_index("granularity")["time_s"]
    assert own.loc[(own["model"] == "taskiter") & (own["threads"] == 2), "granularity"].item() == fine.idxmin()


@pytest.mark.parametrize("where", ["sample", "run", "profile"])
def test_mixed_environments_are_refused(where):
    """Check that rows of another environment make every comparison an error."""
    rows = synthetic_rows()
    first(rows, where)["environment_id"] = "elsewhere"
    if where == "run":
        rows.insert(1, {**rows[0], "environment_id": "e0"})
    with pytest.raises(UsageError, match="one environment, got 2"):
        sweep_of(rows)


def test_mixed_instruction_sets_are_refused():
    """Check that samples of two instruction sets are not compared."""
    rows = synthetic_rows()
    first(rows, "sample")["instruction_set"] = "avx2"
    with pytest.raises(UsageError, match="one instruction set, got avx2, avx512"):
        sweep_of(rows)
    first(rows, "sample")["instruction_set"] = "avx512_narrow"  # another tile of the same
    sweep_of(rows)


@pytest.mark.parametrize("key", ["weights_hash", "losses_hash"])
def test_disagreeing_results_are_refused(key):
    """Check that one sample with other weights or losses stops every figure, and is named."""
    rows = synthetic_rows()
    first(rows, "sample", model="taskiter", threads=2, repetition=3)[key] = "other"
    with pytest.raises(UsageError, match=f"same {key[:-5]}, but .*taskiter.* on 2"):
        sweep_of(rows)


def mismatch(rows, *models):
    about = {"kind": "failure", "config_id": "x", "plan_id": rows[2]["plan_id"], "threads": 2, "message": "not those"}
    rows += [{**about, "model": model, "reason": "mismatch"} for model in models]
    return rows


def test_a_model_with_other_bits_is_left_out_and_the_others_are_shown():
    """Check that no time of it is shown on any number of threads, that warnings name it, and that times of the others
    stay as they were."""
    sweep, whole = sweep_of(mismatch(synthetic_rows(), "taskiter")), sweep_of(synthetic_rows())
    table, before = speed_table(sweep), speed_table(whole)
    assert "taskiter" in set(before["model"]) and set(before["model"]) - set(table["model"]) == {"taskiter"}
    assert list(table["time_s"]) == pytest.approx(list(before[before["model"] != "taskiter"]["time_s"]), rel=1e-3)
    assert [text for text in sweep.warnings if text.startswith("All times of taskiter") and "something else" in text]
    assert render_json(build(sweep))["failures"][0]["reason"] == "mismatch"


def test_beside_a_disturbed_serial_run_no_efficiency_above_one_is_usable():
    """Check that a serial run that takes longer than the same blocks on one thread under another model is named, and
    that only points of which it makes too much are crossed out."""
    rows = synthetic_rows(threads=(1, 2))
    usable = speed_table(sweep_of(rows))["usable"]
    for row in rows:
        if row["kind"] == "sample" and row["model"] == "serial":
            row["step_time_s"] *= 1.3
    sweep = sweep_of(rows)
    table = speed_table(sweep)
    assert usable.all() and 0 < table["usable"].sum() < len(table)
    assert list(table["usable"]) == list(table["efficiency"] <= 1)
    assert [text for text in sweep.warnings if re.search(r"serial run of cifar10_cnn.* takes 1\.\d\d times", text)]


def test_without_a_right_side_no_time_is_shown():
    """Check that a serial run whose bits are not those of the rest stops every figure where as many models are wrong as
    right."""
    rows = [row for row in synthetic_rows() if row.get("model") in (None, "serial", "taskiter")]
    with pytest.raises(UsageError, match="serial on 2 threads did not .*before it is known which are right"):
        sweep_of(mismatch(rows, "serial"))


def test_rows_of_a_model_that_is_not_known_here_are_read():
    """Check that a model, and an option, of another installation has the times of its rows, and cannot run."""
    rows = synthetic_rows()
    for row in rows:
        if row.get("model") in ("taskiter", "tasks"):
            row["model"] = {"taskiter": "coroutines:depth=3", "tasks": "tasks:colour=red"}[row["model"]]
    sweep = sweep_of(rows)
    times = speed_table(sweep).set_index(["model", "threads"])["time_s"]
    before = speed_table(sweep_of(synthetic_rows())).set_index(["model", "threads"])["time_s"]
    assert (
        times["coroutines:depth=3", 2] == before["taskiter", 2] and times["tasks:colour=red", 2] == before["tasks", 2]
    )
    assert "coroutines, depth 3" in render_text(build(sweep), True)
    assert figure_data(sweep, "speedup")["model"].isin(["coroutines:depth=3"]).any()
    with pytest.raises(UsageError, match="no model is called 'coroutines'"):
        runnable(sweep.points()[-1].model)


def test_an_efficiency_above_one_and_a_half_is_a_warning():
    """Check that it is shown with what may cause it: caches of several cores hold more than one's."""
    rows = synthetic_rows()
    for row in rows:
        if row["kind"] == "sample" and row["model"] == "taskiter" and row["threads"] == 2:
            row["step_time_s"] /= 2
    (warning,) = [text for text in sweep_of(rows).warnings if "efficiency" in text]
    assert re.match(r"taskiter on 2 threads has an efficiency of \d+%: either the data of this plan fit into", warning)


def test_resumed_run_takes_the_last_of_equal_rows():
    """Check that a repetition measured twice counts once."""
    rows = synthetic_rows()
    again = dict(first(rows, "sample", model="serial", repetition=0))
    again["step_time_s"] *= 1.01
    s = sweep_of([*rows, again])
    assert s.times.times((again["plan_id"], "serial", 1))[0] == pytest.approx(again["step_time_s"])
    assert len(s.times.times((again["plan_id"], "serial", 1))) == 9


def test_interrupted_run_says_how_much_is_there():
    """Check the sentence about missing samples."""
    rows = synthetic_rows(repeats=9)
    kept = [r for r in rows if r["kind"] != "sample" or r["repetition"] < 6]
    assert any("78 of 117 samples" in text for text in sweep_of(kept).warnings)
    assert not any("not complete" in text for text in sweep_of(rows).warnings)


def test_step_times_lost_in_noise_are_left_out_and_said():
    """Check that a slope of zero or less is no sample."""
    rows = synthetic_rows()
    first(rows, "sample", model="tasks", threads=2, repetition=1)["step_time_s"] = -1e-9
    s = sweep_of(rows)
    assert len(s.times.times((rows[2]["plan_id"], "tasks", 2))) == 8
    assert any("no positive step time" in text for text in s.warnings)


@pytest.mark.parametrize("moved_s, usual_s", [(190e-9, 75e-9), (75e-9, 190e-9)])
def test_generations_that_found_cpus_elsewhere_are_left_out(moved_s, usual_s):
    """Check that times of the rarer state of the machine are gone for all models and counted, whichever it is."""
    rows = synthetic_rows(models=("serial", "forkjoin", "tasks"))
    about = {"kind": "rounds", "plan_id": first(rows, "plan")["plan_id"]}
    times_s = [moved_s if k == 2 else usual_s * (1 + k / 20) for k in range(9)]
    rounds = [{**about, "repetition": k, "handover_s": [time_s]} for k, time_s in enumerate(times_s)]
    sweep = sweep_of([*rows, *rounds])
    assert not any("not complete" in text for text in sweep.warnings)
    assert {turn[0] for turns in sweep.turns.values() for turn in turns} == {0, 1, 3, 4, 5, 6, 7, 8}
    (said,) = (text for text in sweep.warnings if "elsewhere" in text)
    assert said.startswith("1 of 9 generations") and f"took {moved_s * 1e9:.0f}" in said
    assert "generation 2" not in said and {turn[0] for own in sweep.quiet.elsewhere.values() for turn in own} == {2}
    assert not any("elsewhere" in text for text in sweep_of([*rows, *rounds[:2]]).warnings)
    assert len(sweep_of([*rows, *(row | {"interference": 1} for row in rounds)]).turns) == len(sweep.turns)
    two = sweep_of([*(row for row in rows if row.get("repetition", 0) < 2), *rounds[2:0:-1]])
    assert len(two.turns) == len(sweep.turns)


def test_hand_overs_beside_load_move_no_generation():
    """Check that where more than a third of the generations differ all stay, with the range of their hand-overs; that
    generations whose threads waited are not judged by them; and that a generation of two plans counts once."""
    rows = synthetic_rows(models=("serial", "forkjoin", "tasks"), granularities=(4, 16))
    plans = [row["plan_id"] for row in rows if row["kind"] == "plan"]

    def with_handovers(times_s, **about):
        return sweep_of(
            [*rows]
            + [
                {"kind": "rounds", "plan_id": plan_id, "repetition": k, "handover_s": [time_s], **about}
                for k, time_s in enumerate(times_s)
                for plan_id in plans
            ]
        )

    scattered = [1e-7, 2e-7, 4e-7, 8e-7, 2e-7, 9e-7, 2e-7, 1e-6, 2e-6]
    sweep = with_handovers(scattered)
    assert not sweep.quiet.moved and {turn[0] for own in sweep.turns.values() for turn in own} == {*range(9)}
    (said,) = (text for text in sweep.warnings if "hand-over" in text)
    assert "took 100 ns to 2.00 µs" in said and "moved" not in said
    few = [*[2e-7] * 7, 8e-7, 9e-7]
    (said,) = (text for text in with_handovers(few).warnings if "hand-over" in text)
    assert said.startswith("2 of 9 generations")
    sweep = with_handovers(few, pressure_us=[80_000])  # of rounds of 100 ms
    assert not sweep.quiet.moved and not any("hand-over" in text for text in sweep.warnings)
    assert any("in 9 of 9 generations: other programs ran meanwhile" in text for text in sweep.warnings)


def test_rounds_on_whole_cores_are_counted():
    """Check the sentence below the answers: one half core makes a round half, unknown ones do not count, and without
    any, as in folders from before there was the field, nothing is said."""
    rows = synthetic_rows()
    about = {"kind": "rounds", "plan_id": first(rows, "plan")["plan_id"], "order": [[0]] * 4, "spin_s": [[1e-3]] * 4}
    about |= {"handover_s": [7e-8] * 4, "wall_s": [0.1] * 4, "steal_ticks": [0] * 4, "pressure_us": [0] * 4}
    assert "ores were" not in scope_note(sweep_of([*rows, about]))
    about["additions_per_cycle"] = {"0": [4.8, 4.7, 2.6, 0.0], "1": [4.5, 2.3, 4.9, 4.8]}
    assert scope_note(sweep_of([*rows, about])).endswith(" Cores were whole in 1 of 3 rounds.")
    about["additions_per_cycle"] = {"0": [0.0] * 4}
    assert "ores were" not in scope_note(sweep_of([*rows, about]))


def test_disturbed_rounds_are_left_out_and_counted():
    """Check the share of time lost to others, the sentence, and that the turns of the round are gone."""
    assert disturbed_share({"pressure_some_us": 2e5, "steal_ticks": 10}, 1.0) == pytest.approx(0.2)
    assert disturbed_share({"pressure_some_us": 2e5, "others_us": 3e4, "steal_ticks": 1}, 1.0) == pytest.approx(0.03)
    assert disturbed_share({"pressure_some_us": 2e5, "others_us": -1e4, "steal_ticks": None}, 1.0) == 0
    assert math.isnan(disturbed_share({}, 1.0))
    rows = synthetic_rows()
    about = {"kind": "rounds", "plan_id": first(rows, "plan")["plan_id"]}
    about |= {"contestants": ["a", "b"], "order": [[0, 1]] * 4, "spin_s": [[1e-3, 1e-3]] * 4, "wall_s": [0.1] * 4}
    about |= {"handover_s": [0.0] * 4, "steal_ticks": [0] * 4, "pressure_us": [0] * 4}
    assert not any("disturbed" in text for text in sweep_of([*rows, about]).warnings)
    sample = first(rows, "sample", repetition=0)
    sample |= {"rounds": [0, 1, 2, 3], "short_times_s": [0.0] * 4, "long_times_s": [0.02, 0.02, 0.02, 9.0]}
    about["pressure_us"] = [0, 0, 0, 50_000]
    s = sweep_of([*rows, about])
    assert any(text.startswith("1 of 4 rounds was disturbed and left out") for text in s.warnings)
    turns = s.turns[sample["plan_id"], sample["model"], sample["threads"]]
    assert [number for generation, _, number in turns if generation == 0] == [0, 1, 2]
    for waited_us, said in (([0, 0, 80_000, 90_000], 0), ([60_000] * 4, 1)):  # of rounds of 100 ms
        about["pressure_us"] = waited_us
        warnings = sweep_of([*rows, about]).warnings
        assert sum("other programs ran meanwhile" in text for text in warnings) == said
    sample["disturbance"] = {**sample["disturbance"], "throttled_us": 1_800_000}
    warnings = sweep_of([*rows, about]).warnings
    assert not any("other programs" in text for text in warnings)
    named = [text for text in warnings if "quota" in text]
    assert warnings.index(named[0]) < warnings.index(named[1]) and "for 1.80 s" in named[0]
    rows[0]["config"]["oversubscribe"] = True  # then they wait for each other
    assert not any("other programs" in text for text in sweep_of([*rows, about]).warnings)


def test_layer_table_accounts_for_all_time():
    """Check shares and rates against the profile rows, and that the times add up to T1 of the title."""
    s = sweep()
    plan_id = s.plan_ids()[0]
    table = layer_table(s, plan_id)
    times = block_times(msgspec.to_builtins(s.plans[plan_id]))
    share = sum(times["conv2.backward"]) / sum(map(sum, times.values()))
    t1 = floor_table(s)["t1_s"].item()
    assert table["time_s"].sum() == pytest.approx(t1)
    assert table["share"].sum() == pytest.approx(1.0)
    conv2 = table[(table["layer"] == "conv2") & (table["phase"] == "backward")].iloc[0]
    assert conv2["share"] == pytest.approx(share)
    assert conv2["gflops"] == pytest.approx(8.2e-3 * 64 / (share * t1))
    assert conv2["peak_fraction"] == pytest.approx(conv2["gflops"] / 235)
    assert not len(layer_table(s, plan_id, parse_model("joblib"), 2)) and table["grain"].isna().all()
    layers = layer_table(s, plan_id, parse_model("forkjoin"), 2)
    task_s = 2 * 2e-6 * len(s.plans[plan_id].loops) / layers["blocks"].sum()  # synthetic rows: 2 us per loop
    assert layers["grain"].to_numpy() == pytest.approx((layers["time_s"] / layers["blocks"] / task_s).to_numpy())
    fork_join = layers["time_s"].sum()
    assert fork_join == pytest.approx(t1 * inflation(s, (plan_id, "forkjoin", 2)).value)
    assert fork_join == pytest.approx(busy_time(s, (plan_id, "forkjoin", 2)).value)


def made_up_machine(rng, takes: int, models=("serial", "forkjoin")) -> list[dict]:
    """Rows of a machine on which two threads do the work of 1.8: serial runs, profiles and capacity, all with noise."""
    rows = synthetic_rows(models=models, repeats=7, noise=0.0, seed=int(rng.integers(1 << 30)))
    first(rows, "machine")["capacity"]["2"] = 1.8 * rng.lognormal(0, 0.03)
    for row in rows:
        if row["kind"] == "sample":
            row["step_time_s"] = step_time(first(rows, "plan"), "serial", 1) * rng.lognormal(0, 0.01)
    return rows + [
        {"kind": "capacity", "repetition": i, "capacity": {"2": 1.8 * rng.lognormal(0, 0.03)}} for i in range(takes)
    ]


def test_bounds_of_made_up_machines_are_in_their_intervals():
    """Check that bounds' intervals hold the true bounds in 95 % of machines whose capacity is noisy, and that with a
    capacity measured once they do not."""
    rng = np.random.default_rng(3)
    blocks = list(block_times(plan_row()).values())
    truth = {"area": sum(map(sum, blocks)) / 1.8, "forkjoin": sum(max(sum(b) / 1.8, max(b)) for b in blocks)}
    advantages = {name: sum(map(sum, blocks)) / time for name, time in truth.items()}
    for takes, least, most in ((6, 0.92, 1.0), (0, 0.0, 0.9)):
        held = []
        for _ in range(25):
            row = bound_table(sweep_of(made_up_machine(rng, takes))).set_index("threads").loc[2]
            held.append(
                [row[f"{n}_s_low"] <= truth[n] <= row[f"{n}_s_high"] for n in truth]
                + [row[f"{n}_speedup_low"] <= advantages[n] <= row[f"{n}_speedup_high"] for n in truth]
            )
        covered = np.mean(held, axis=0)
        assert ((covered >= least) & (covered <= most)).all(), (takes, covered)


def test_accounting_compares_with_the_models_own_floor():
    """Check floor, excess and the cost per barrier of fork-join, which the formula put at 4 us on two threads."""
    s = sweep(noise=1e-9, models=("serial", "forkjoin", "taskiter"), profiles=6)
    plan_id = s.plan_ids()[0]
    table = accounting_table(s).set_index(["model", "threads"])
    row = table.loc["forkjoin", 2]
    assert row["floor"] == "forkjoin" and row["profiles"] == 6
    slower = row["measured_s"] / step_time(plan_row(), "forkjoin", 2)  # the level of the samples
    assert row["per_unit_s"] / slower == pytest.approx(4e-6, rel=1e-3)
    assert row["excess_s"] == pytest.approx(row["measured_s"] - row["floor_s"])
    assert row["excess_low"] <= row["excess"] <= row["excess_high"]
    assert row["inflation"] == pytest.approx(1.005, rel=1e-3)
    assert row["runtime_cost_s"] == pytest.approx(2e-6 * 17)
    profiles = s.profiles_of((plan_id, "forkjoin", 2)).values()
    ratios = [p.pass_time_s / (p.floors.forkjoin + p.runtime_cost_s) for p in profiles]
    assert row["over_expected"] == pytest.approx(np.exp(np.mean(np.log(ratios))))
    assert row["over_expected_low"] <= row["over_expected"] <= row["over_expected_high"]
    assert table.loc["taskiter", 2]["floor"] == "taskiter"
    assert busy_time(s, (plan_id, "forkjoin", 2)).value < 2 * row["measured_s"]


def test_logged_runs_of_a_generation_that_is_left_out_count_for_nothing():
    """Check that phases, floors, inflation and layers are of generations that count, and that without one there are
    none."""
    rows = synthetic_rows(models=("serial", "forkjoin"), profiles=1)
    about = {"kind": "rounds", "plan_id": first(rows, "plan")["plan_id"]}
    # The host moved the CPUs in the generation that was logged.
    rows += [{**about, "repetition": k, "handover_s": [1e-7 if k else 3e-7]} for k in range(9)]
    sweep = sweep_of(rows)
    assert not (sweep.profiles or len(accounting_table(sweep)) or len(phase_table(sweep)))
    later = [{**row, "repetition": 1} for row in rows if row["kind"] == "profile"]
    for row in rows:  # shared CPUs: its profiles took as long as its own samples
        if row["kind"] in ("sample", "profile") and row["repetition"] == 0:
            row["step_time_s" if row["kind"] == "sample" else "pass_time_s"] *= 2
    sweep = sweep_of([*rows, *later])
    assert {row.repetition for row in sweep.profiles} == {1} and len(accounting_table(sweep)) == 2
    rows = [row for row in rows if row["kind"] != "rounds"]
    assert sweep_of(rows).profiles and not len(accounting_table(sweep_of(rows)))  # compared with the reported time
    (said,) = accounting.unlike_text(sweep_of(rows), about["plan_id"])
    assert said.startswith(accounting.OTHER_RUNS)


def test_energy_is_compared_generation_by_generation():
    """Check the ratio of joules to the better fork-join form with its interval, and that it has none without meters."""
    rows = synthetic_rows(models=("serial", "forkjoin:region=persistent", "taskiter"), threads=(2,), repeats=8)
    joules = {"forkjoin:region=persistent": 2.0, "taskiter": 1.5}
    for row in rows:
        if row["kind"] == "sample" and row["model"] in joules:
            warmer = 1 + 0.1 * row["repetition"]  # which both meet alike
            each = joules[row["model"]] * warmer
            row["energy"] = {"joules": 50 * each, "joules_per_step": each, "source": "RAPL", "error": ""}
    table = counter_table(sweep_of(rows)).set_index("model")
    row = table.loc["taskiter"]
    assert row["energy"] == pytest.approx(0.75) and row["energy_low"] <= 0.75 <= row["energy_high"]
    assert row["energy_high"] - row["energy_low"] < 0.01
    assert math.isnan(table.loc["forkjoin:region=persistent"]["energy"])


def test_a_clock_that_moves_is_named():
    """Check a clock that is lower on two threads, and that a steady one is no news."""
    rows = synthetic_rows(threads=(1, 2), repeats=9)
    for row in rows:
        if row["kind"] == "sample":
            row["frequency_hz"] = 3.0e9 if row["threads"] == 1 else 2.5e9
    (text,) = [text for text in sweep_of(rows).warnings if "clock was" in text]
    assert "2.50 to 3.00 GHz" in text and "3.00 after samples on 1 thread, 2.50 after samples on 2 threads" in text
    assert not any("clock was" in text for text in sweep_of(synthetic_rows(repeats=9)).warnings)
