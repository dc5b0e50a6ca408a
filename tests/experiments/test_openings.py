"""The first paragraphs of reports: they answer what was swept or studied, with the numbers of the tables."""

import math
import re
from types import SimpleNamespace

import pytest
from experiments.synthetic_results import study_of, synthetic_rows

from forktask.experiments.analysis.gains import gain_table
from forktask.experiments.analysis.names import TASK_MODELS, base_model
from forktask.experiments.analysis.speeds import main_plan, speed_table
from forktask.experiments.report import figures
from forktask.experiments.report.opening import opening
from forktask.experiments.report.over_sweep import over_sweep
from forktask.experiments.report.render_text import render_text
from forktask.experiments.report.sections import build
from forktask.experiments.report.words import axes_text, format_time
from forktask.experiments.studies.report import _opening as open_study

MODELS = ("serial", "forkjoin", "tasks", "taskiter")


@pytest.fixture(scope="module")
def sweep():
    """Batches and granularities on two threads, without profiles."""
    return study_of(synthetic_rows(models=MODELS, batches=(16, 64), granularities=(4, 16), repeats=6, profiles=0))


def fastest(study, plan_id, models):
    """Typical time of the fastest of some models of a plan on two threads."""
    table = speed_table(study)
    own = table[(table["plan_id"] == plan_id) & (table["threads"] == 2)]
    return own.loc[own["model"].map(base_model).isin(models), "median_s"].min()


def test_the_gain_over_all_plans_is_that_of_the_tables(sweep):
    """Check the least and greatest ratio of tasks to fork-join with their plans, and how many are decided."""
    plans = sweep.plan_ids()
    ratios = {p: fastest(sweep, p, TASK_MODELS) / fastest(sweep, p, ("forkjoin",)) for p in plans}
    least, most = min(plans, key=ratios.get), max(plans, key=ratios.get)
    told = " ".join(over_sweep(sweep))
    assert f"one of 4 plans that were measured: {axes_text(sweep, main_plan(sweep))}." in told
    assert f"takes {ratios[least]:.3f} ({axes_text(sweep, least)}) to " in told
    assert f" to {ratios[most]:.3f} times ({axes_text(sweep, most)}) as long" in told
    table = speed_table(sweep)
    decided = 0
    for plan_id in plans:
        own = table[(table["plan_id"] == plan_id) & (table["threads"] == 2)]
        tasks = own[own["model"].map(base_model).isin(TASK_MODELS)]
        decided += tasks.loc[tasks["median_s"].idxmin(), "verdict"] in ("faster", "slower")
    assert f"more than chance in {decided} of 4" in told


def test_along_an_axis_least_and_most_are_those_of_the_tables(sweep):
    """Check both sides along both axes: steps along granularity, samples along the batch."""
    told, main = " ".join(over_sweep(sweep)), main_plan(sweep)
    for axis, unit in (("granularity", "step"), ("batch", "sample")):
        plans = sweep.siblings(main, axis)
        for side, models in (("fork-join", ("forkjoin",)), ("tasks", TASK_MODELS)):
            times = {}
            for plan_id in plans:
                value = sweep.records[plan_id][axis]
                times[value] = fastest(sweep, plan_id, models) / (value if axis == "batch" else 1)
            least, most = min(times, key=times.get), max(times, key=times.get)
            text = f"{format_time(times[least])} ({least}) to {format_time(times[most])} ({most}) with {side}"
            assert re.search(rf"Along {axis} \([^)]*\) a {unit} takes .*{re.escape(text)}", told), text


def test_promises_are_those_of_the_table():
    """Check the ranges of promised and measured gains where serial runs were profiled."""
    study = study_of(synthetic_rows(models=MODELS, batches=(16, 64), granularities=(4, 16), repeats=3))
    table = gain_table(study)
    assert len(table) == 4
    told = " ".join(over_sweep(study))
    for name in ("promised", "gained"):
        assert f" {table[name].min():.2f} to {table[name].max():.2f} times as fast" in told


def test_one_plan_has_no_sweep():
    """Check that a single plan leaves the paragraph out."""
    study = study_of(synthetic_rows(models=MODELS, repeats=2, profiles=0))
    assert over_sweep(study) == []
    assert len(opening(study)) == 2


def test_beside_other_processes_the_losses_stand_in_the_opening():
    """Check slowdowns of least and most, the CPU time that is left, and that plans beside hogs count as no others."""
    rows = synthetic_rows(models=("forkjoin", "taskiter"), threads=(2,), repeats=6, noise=0, profiles=0)
    beside = []
    for row in rows:
        if row["kind"] == "machine":
            row["capacity_beside"] = {"2": {"1": 0.75}}
        if row["kind"] == "sample":
            factor = 2.5 if row["model"] == "forkjoin" else 1.5
            beside.append({**row, "interference": 1, "config_id": row["config_id"] + "1"})
            beside[-1]["step_time_s"] *= factor
    told = over_sweep(study_of(rows + beside))
    assert told == [
        "Beside 1 spinning process, which leaves 75% of the CPU time, a step on 2 threads takes 1.50 (taskiter, stay) "
        "to 2.50 times (forkjoin) as long as without."
    ]


def test_sums_in_any_order_are_not_said_to_agree():
    """Check opening and captions of a plan whose blocks add in any order, beside one whose results were compared."""
    rows = synthetic_rows(models=MODELS, repeats=2)
    for deterministic in (True, False):
        for row in rows:
            if row["kind"] == "plan":
                row["deterministic"] = deterministic
        study = study_of(rows)
        assert ("bit for bit" in opening(study)[0]) == deterministic
        caption = figures.caption(study, "speedup")
        assert ("left bit-identical weights" in caption) == deterministic
        assert ("were not compared" in caption) != deterministic


def test_one_repetition_has_no_spread():
    """Check that the column of quartiles is there for several repetitions and left out for one."""
    for repeats in (1, 3):
        text = render_text(build(study_of(synthetic_rows(models=MODELS, repeats=repeats))))
        assert bool(re.search(r"median +IQR", text)) == (repeats > 1)


def test_an_undecided_effect_is_told_in_one_bracket():
    """Check the sentences about barriers, creation and overlap for few repetitions."""
    study = study_of(synthetic_rows(models=MODELS, repeats=2))
    said = [line for line in render_text(build(study)).splitlines() if line.startswith("On 2 threads")]
    assert said
    for line in said:
        assert line.count("(") == 1 and line.endswith("a verdict needs at least 5 repetitions).")
        assert "time ratio" in line


def opened(accuracies, axes, failed=(), **columns):
    """The paragraphs of a study whose runs have these columns."""
    given = zip(*(columns[name] for name in columns), strict=True)
    fixed = {"seeds": 1, "epochs": 2, "test_accuracy": 0.9, "epoch_time_s": 0.1}
    rows = [
        {**fixed, "label": f"model {i}", **dict(zip(columns, values, strict=True))} for i, values in enumerate(given)
    ]
    study = SimpleNamespace(options=SimpleNamespace(accuracy=accuracies), axes=axes)
    results = SimpleNamespace(study=study, failed=lambda: [(SimpleNamespace(label=label), {}) for label in failed])
    return open_study(results, rows)


def test_a_study_opens_with_times_to_accuracy_memory_and_what_is_missing():
    """Check the highest accuracy that was reached, the run that never was, memory, failures, and axes of one value."""
    axes = {"network": ("lenet5",), "model": ("a", "b", "c")}
    columns = {
        "peak_bytes": [3 * 2**20, 2**20, 2 * 2**20],
        "time_to_0.9": [2.0, 1.0, 3.0],
        "time_to_0.97": [5.0, math.nan, 4.0],
        "time_to_0.99": [math.nan] * 3,
    }
    question, answer = opened((0.9, 0.97, 0.99), axes, ["d", "d", "e"], **columns)
    assert "which differ in model, were run" in question
    assert (
        "To be right for 97 % of the validation examples took 4.00 s (model 2) to 5.00 s (model 0) of training; "
        "1 of 3 ways never did."
    ) in answer
    assert "Their processes held at most 1 MiB (model 1) to 3 MiB (model 0)." in answer
    assert "2 more ways did not run, or did not fit" in answer
    answer = opened((0.9,), axes, peak_bytes=[2**20], **{"time_to_0.9": [math.nan]})[1]
    assert "None was right for 90 % of the validation examples." in answer
    assert "held" not in answer and "more way" not in answer
    assert "validation" not in opened((), axes, peak_bytes=[2**20, 2**21])[1]
