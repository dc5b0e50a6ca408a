"""Whole commands on a made-up machine: the intervals that they print hold the truth, whatever they leave unmeasured.

`FORKTASK_LONG_TESTS=1 pytest -s --timeout=0` runs each command 300 times, with five sessions 100 times, and prints how
many intervals missed: the numbers of docs/notes/intervals_of_ratios.md.
"""

import math
import os
from collections import Counter
from functools import partial

import numpy as np
import pytest
from experiments.made_up_machine import MadeUpBench, MadeUpMachine, means_of

from forktask.experiments.analysis.accounting import accounting_table, alike_profiles
from forktask.experiments.analysis.load import load, sweep_from_rows
from forktask.experiments.report.rendering import render_json
from forktask.experiments.report.sections import build
from forktask.experiments.results.folder import ResultsWriter, read_results
from forktask.experiments.results.rows import ProfileRow, SampleRow
from forktask.experiments.scaling.bench import Side
from forktask.experiments.scaling.clock import run_clock_test
from forktask.experiments.subjects.models import DEFAULT_MODELS, parse_model
from forktask.experiments.sweep.configuration import Configuration, Grid, Measure
from forktask.experiments.sweep.runner import SweepRunner
from forktask.experiments.sweep.status import undecided

LONG = bool(os.environ.get("FORKTASK_LONG_TESTS"))
# Seconds of a step on two threads; on one everything takes 1.9 times as long.
TRUTH_S = {
    "serial": 1e-3,
    "forkjoin": 1.04e-3,
    "forkjoin:region=persistent": 1e-3,
    "joblib": 4e-3,
    "tasks": 0.995e-3,
    "taskgraph": 0.98e-3,
    "taskiter": 0.96e-3,
}
TIED_S = {**TRUTH_S, "forkjoin": 1e-3}  # both forms of fork-join alike
COMMANDS = {
    "compare": ({"repeats": 60, "budget_s": 180.0}, 1, TRUTH_S),
    "compare, forms alike": ({"repeats": 60, "budget_s": 180.0}, 1, TIED_S),
    "run": ({"repeats": 8}, 1, TRUTH_S),
    "compare, long steps": ({"repeats": 6}, 1, {model: 500 * seconds for model, seconds in TRUTH_S.items()}),
    "sessions": ({"repeats": 60, "budget_s": 90.0, "sessions": 5}, 5, TRUTH_S),
    "sessions, forms alike": ({"repeats": 60, "budget_s": 90.0, "sessions": 5}, 5, TIED_S),
}


def truth_s(job, of_model=TRUTH_S):
    return of_model[str(job["model"])] * (1.9 if job["threads"] == 1 else 1.0)


def most_missed(count, questions):
    """How many of `count` intervals of 95 % may miss, for one of several questions, in all but one of 1,000 cases."""
    term, total = 0.95**count, 0.0
    for missed in range(count + 1):
        total += term
        if total >= 1 - 1e-3 / questions:
            return missed
        term *= (count - missed) / (missed + 1) * 0.05 / 0.95
    return count


def run_command(folder, options, machine):
    """Run a comparison whole, and return its report as JSON."""
    measure = Measure(**options, target_s=0.06, profile=False, oversubscribe=True, bind="none")
    grid = Grid(models=DEFAULT_MODELS, threads=(1, 2))
    SweepRunner(Configuration(grid=grid, measure=measure), folder, "compare", means_of(machine), undecided).run()
    return render_json(build(load(folder)))


def true_log(machine, model, threads, over):
    """The logarithm of a step time: with what the one session brought, or of the machine."""
    spec = parse_model(model)
    brought = [one.get((spec, threads), 0.0) for one in machine.sessions] if over == 1 else [0.0]
    return math.log(machine.truth_s({"model": spec, "threads": threads})) + np.mean(brought)


def true_reference(machine, row, over):
    """The logarithm of the time that a row is compared with: of the truly fastest form of fork-join, or of a model."""
    forms = [row["reference"]]
    if row["reference"].startswith("forkjoin") and row["against"] == "forkjoin":
        forms = [form for form in ("forkjoin", "forkjoin:region=persistent") if form != row["model"]]
    return min(true_log(machine, form, 1 if form == "serial" else row["threads"], over) for form in forms)


@pytest.mark.parametrize("command", COMMANDS)
def test_printed_intervals_hold_the_truth(command, tmp_path, monkeypatch):
    """Check all intervals of the table of answers: those of one session hold what is true of the session, those over
    five what is true of the machine; contestants that answer no open question are measured once."""
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    options, sessions, of_model = COMMANDS[command]
    count = (300 if sessions == 1 else 100) if LONG else 10 if sessions == 1 else 6
    missed, known, widths = Counter(), Counter(), []
    for seed in range(count):
        machine = MadeUpMachine(partial(truth_s, of_model=of_model), seed)
        report = run_command(tmp_path / str(seed), options, machine)
        assert len(machine.sessions) == sessions and report["in_short"]
        assert report["scope"] == ("in this session" if sessions == 1 else "over 5 sessions")
        for row in report["in_short"]:
            if row["ratio_low"] is None or (sessions > 1 and row["sessions"] < sessions):
                continue
            one, other = (
                true_log(machine, row["model"], row["threads"], sessions),
                true_reference(machine, row, sessions),
            )
            known[row["question"]] += 1
            missed[row["question"]] += not row["ratio_low"] <= math.exp(one - other) <= row["ratio_high"]
            widths.append(math.log(row["ratio_high"] / row["ratio_low"]) / 2)
    if LONG:
        share = sum(missed.values()) / sum(known.values())
        print(f"\n{command}: {share:.1%} of {sum(known.values())} missed, half-width {np.median(widths):.2%}: {missed}")
    assert len(known) >= 5 and max(known.values()) >= 0.9 * count  # eight generations may be too few
    for question, taken in known.items():
        assert missed[question] <= most_missed(taken, len(known)), question


def test_intervals_of_scaling_tests_hold_the_truth(tmp_path):
    """Check the ratio of a scaling test or a gate, whose generations go on until the claim is decided."""
    count, missed, known = 300 if LONG else 20, 0, 0
    for seed in range(count):
        machine = MadeUpMachine(truth_s, seed)
        sides = tuple(Side(parse_model(model), 2, {}) for model in ("taskiter", "forkjoin:region=persistent"))
        result = run_clock_test("claim", sides, 0.98, budget_s=60.0, bench=MadeUpBench(machine))
        true = math.exp(true_log(machine, "taskiter", 2, 1) - true_log(machine, "forkjoin:region=persistent", 2, 1))
        known += result.ratio.known
        missed += result.ratio.known and not result.ratio.low <= true <= result.ratio.high
    if LONG:
        print(f"\nscaling tests: {missed / known:.1%} of {known} missed")
    assert known == count and missed <= most_missed(count, 1)


def test_the_same_folder_resumes_or_gets_a_session(tmp_path, capsys):
    """Check a session that was interrupted, one that is added later, and one that follows at once: what is measured
    anew, what is said, and how many sessions count."""
    machine = MadeUpMachine(truth_s, 1, moved=0.0)
    options = {"repeats": 6}
    appended = ResultsWriter.append

    def interrupted(writer, row):
        appended(writer, row)
        if type(row).__name__ == "SampleRow" and row.repetition == 3:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ResultsWriter, "append", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run_command(tmp_path, options, machine)
    report = run_command(tmp_path, options, machine)
    assert "continuing session 1" in capsys.readouterr().err
    assert {row["sessions"] for row in report["in_short"]} == {1}
    assert {row["generations"] for row in report["in_short"]} == {6}
    report = run_command(tmp_path, options, machine)
    assert "adding session 2" in capsys.readouterr().err
    assert {(row["generations"], row["sessions"]) for row in report["in_short"]} == {(12, 1)}, "it follows at once"
    for sessions in (2, 3):
        machine.sleep(3600)
        report = run_command(tmp_path, options, machine)
        assert {row["sessions"] for row in report["in_short"]} == {sessions}
        assert all(row["apart"] > 0 for row in report["in_short"])
    assert report["scope"] == "over 3 sessions"
    assert {row["generations"] for row in report["in_short"]} == {24}


@pytest.mark.parametrize("disturbance", ["moved_in", "slow_log_in"])
def test_a_generation_that_counts_is_logged(tmp_path, disturbance):
    """Check that where the host had moved the CPUs in the generation with the event log, or logged runs took longer
    than timed ones, a later one is logged too, once, and that the page is of that alone."""
    machine = MadeUpMachine(truth_s, 1, moved=0.0, **{disturbance: (1,)})
    measure = Measure(repeats=6, profile_repeats=1, target_s=0.06, oversubscribe=True, bind="none")
    grid = Grid(models=("serial", "forkjoin", "taskiter"), threads=(2,))
    configuration = Configuration(grid=grid, measure=measure)
    results = SweepRunner(configuration, tmp_path, "compare", means_of(machine), undecided).run()
    assert set(Counter(row.config_id for row in results.of(ProfileRow)).values()) == {2}
    sweep = load(tmp_path)
    assert (0 in {row.repetition for row in sweep.profiles}) == (disturbance == "slow_log_in")
    kept = [repetition for point in sweep.points() for repetition in alike_profiles(sweep, point)]
    assert len(kept) == 3 and 0 not in kept and len(accounting_table(sweep)) == 2


def test_repeats_count_generations_that_are_not_left_out(tmp_path):
    """Check that one more is measured for each that is left out, that one thread takes part in all of them, and that
    the same command then has nothing to add."""
    machine = MadeUpMachine(truth_s, 1, moved=0.0, moved_in=(1, 4))
    measure = Measure(repeats=6, profile=False, target_s=0.06, oversubscribe=True, bind="none")
    configuration = Configuration(grid=Grid(models=("serial", "forkjoin"), threads=(1, 2)), measure=measure)
    for _ in range(2):
        SweepRunner(configuration, tmp_path, "compare", means_of(machine), adds_sessions=False).run()
    sweep = load(tmp_path)
    assert len(sweep.quiet.moved) == 2
    assert {sweep.times.generations(point) for point in sweep.points()} == {6} and len(sweep.points()) == 3
    assert Counter(row.repetition for row in read_results(tmp_path).of(SampleRow)) == dict.fromkeys(range(8), 3)


def test_a_point_of_which_all_is_left_out_is_measured_anew(tmp_path):
    """Check that with a budget one thread, which has no question, is measured until one of its generations counts; and
    the sentence where the budget ends before."""
    machine = MadeUpMachine(truth_s, 1, moved=0.0, moved_in=(1,))
    measure = Measure(repeats=9, budget_s=1e4, profile=False, target_s=0.06, oversubscribe=True, bind="none")
    configuration = Configuration(grid=Grid(models=("serial", "forkjoin", "taskiter"), threads=(1, 2)), measure=measure)
    results = SweepRunner(configuration, tmp_path, "compare", means_of(machine), undecided).run()
    sweep = load(tmp_path)
    assert {point.threads for point in sweep.points()} == {1, 2} and sweep.quiet.moved
    kept = [row for row in results.rows if not (isinstance(row, SampleRow) and row.threads == 1 and row.repetition)]
    sweep = sweep_from_rows(kept)
    assert any(text.startswith("No row of ") and "on 1 thread: only" in text for text in sweep.warnings)
