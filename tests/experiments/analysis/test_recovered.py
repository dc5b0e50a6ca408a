"""How busy fork-join keeps its cores, and the share of what it loses that tasks recover."""

import pytest

from experiments import synthetic_results
from forktask.experiments.analysis.comparisons import recovered_table, recovered_text
from forktask.experiments.report.rendering import render_answers
from forktask.experiments.report.sections import build

# Seconds on two threads, and serial.
TIMES = {"serial": 1.6e-3, "forkjoin": 1.0e-3, "tasks": 0.95e-3, "taskiter": 0.9e-3}


def sweep_of(times, threads=(1, 2), repeats=12, scatter=1e-4, **options):
    """A sweep in which all rounds of a model take its time, on two threads, and those on one thread the serial one."""
    rows = synthetic_results.synthetic_rows(models=tuple(times), threads=threads, noise=0.0, repeats=repeats, **options)
    for row in rows:
        if row["kind"] == "sample":
            wanted = times[row["model"]] if row["threads"] == 2 else times.get("serial", 1e-3)
            row["step_time_s"] = wanted * (
                1 + scatter * (row["repetition"] % 3) * (row["model"] == "serial" or scatter < 1e-3)
            )
    return synthetic_results.sweep_of(rows)


def test_shares_are_of_what_fork_join_loses():
    """Check E, ratio and share of two models, and that the interval of a share holds it."""
    table = recovered_table(sweep_of(TIMES)).set_index("model")
    assert list(table.index) == ["tasks", "taskiter"] and {*table["threads"]} == {2}
    assert table["busy"].tolist() == pytest.approx([0.8, 0.8], rel=1e-3)
    assert table["ratio"].tolist() == pytest.approx([0.95, 0.9], rel=1e-3)
    assert table["recovered"].tolist() == pytest.approx([0.25, 0.5], rel=1e-2)
    assert (table["recovered_low"] <= table["recovered"]).all() and (
        table["recovered"] <= table["recovered_high"]
    ).all()


def test_the_first_sentence_says_it():
    """Check the sentence, that it comes before the table of answers, and that of a fork-join that loses nothing."""
    sweep = sweep_of(TIMES)
    text = recovered_text(sweep, sweep.plan_ids()[0])
    assert text.startswith("Fork-join keeps its 2 threads 80% busy [")
    assert "can save 20% at most. tasks takes 5.0 % less [" in text and "taskiter takes 10.0 % less [" in text
    assert text.endswith("50% of that.")
    printed = " ".join(render_answers(build(sweep)).split())
    assert printed.index(text) < printed.index("question")
    busy = sweep_of({**TIMES, "serial": 1.99e-3, "tasks": 1e-3})
    nothing, faster = recovered_text(busy, busy.plan_ids()[0]).split(" faster. ")
    assert nothing.endswith("there is nothing to gain, unless blocks themselves get")
    assert faster.startswith("taskiter takes 10.0 % less [") and faster.endswith("], since blocks got faster.")


def test_what_is_not_known_is_not_said():
    """Check that no gain is said of an E without an interval, or with a wide one."""
    few, wide = sweep_of(TIMES, repeats=4), sweep_of(TIMES, scatter=0.3)
    assert recovered_text(few, few.plan_ids()[0]).endswith("is not known: that needs 6 generations.")
    text = recovered_text(wide, wide.plan_ids()[0])
    assert "can save" not in text and text.endswith("measure longer, or on a quiet machine.")


@pytest.mark.parametrize("models", [("forkjoin", "taskiter"), ("serial", "taskiter")])
def test_nothing_is_said_without_serial_or_fork_join(models):
    """Check a sweep that lacks one of them."""
    sweep = synthetic_results.sweep_of(synthetic_results.synthetic_rows(models=models))
    assert recovered_text(sweep, sweep.plan_ids()[0]) == "" and not len(recovered_table(sweep))
