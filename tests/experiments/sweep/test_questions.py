"""Which questions of a comparison are decided."""

from pathlib import Path

import numpy as np
import pytest
from experiments.synthetic_results import synthetic_rows, typed

from forktask.experiments.analysis.questions import questions
from forktask.experiments.results.folder import Results
from forktask.experiments.subjects.models import SERIAL, parse_models
from forktask.experiments.sweep.status import undecided


def going_on(folder, models, change):
    """Model and threads of what is measured further, where `change` gives the time of a sample on two threads by its
    model, its time and a normal random number."""
    rng = np.random.default_rng(2)
    rows = synthetic_rows(models=models, noise=0.001, repeats=20)
    samples = [row for row in rows if row["kind"] == "sample"]
    for row in samples:
        if row["threads"] == 2:
            row["step_time_s"] = change(row["model"], row["step_time_s"], rng.normal())
    names = {row["config_id"]: (row["model"], row["threads"]) for row in samples}
    return {names[config_id] for config_id in undecided(Results(folder, typed(rows)))}


@pytest.mark.parametrize("decided, scatter", [(True, 0.0), (False, 0.3), (False, 0.03)])
def test_only_what_is_open_is_measured_again(tmp_path, decided, scatter):
    """Check the configurations of questions that are open, or answered in too wide an interval, on most threads: the
    model, what it is compared with, and serial."""
    models = ("serial", "forkjoin", "forkjoin:again=1", "tasks", "taskiter")

    def change(model, seconds, normal):
        slower = 2 if scatter == 0.03 else 1  # surely slower
        return seconds * (np.exp(scatter * normal) * slower if model == "tasks" else 1)

    open_ones = {("tasks", 2), ("forkjoin", 2), ("serial", 1)}
    assert going_on(tmp_path, models, change) == (set() if decided else open_ones)
    rows = synthetic_rows(models=models, noise=0.001, repeats=20)
    for model, open_ones in (("forkjoin", set()), ("taskiter", None)):
        own = [row for row in rows if row["kind"] != "sample" or row["model"].startswith(model)]
        assert undecided(Results(tmp_path, typed(own))) == open_ones, "a model twice is a question, one alone is none"


def test_a_model_without_fork_join_is_compared_with_the_serial_run():
    """Check that there is an answer where no fork-join form was measured, and that fork-join has it where one was."""
    for models, threads, first in (
        (("taskgraph", "tasks"), 2, "taskgraph"),
        (("taskiter", "forkjoin"), 2, "forkjoin"),
        (("taskiter",), 1, "taskiter"),
    ):
        contestants = [(SERIAL, 1), *((model, threads) for model in parse_models(models))]
        *_, last = questions(contestants, lambda some: some[0])
        assert last == ((first, threads), [("serial", 1)], f"{threads} thread{'s' * (threads > 1)}", "")


def test_a_form_that_is_surely_slower_is_no_reference_any_more(tmp_path):
    """Check that fork-join forms that are decided against the best of them are not measured beside an open question."""
    forms = ("forkjoin", "forkjoin:region=persistent", "forkjoin:schedule=dynamic")

    def change(model, seconds, normal):
        return {"forkjoin": 0.02}.get(model, 0.01) * np.exp((0.3 if model == "tasks" else 0.001) * normal)

    result = going_on(tmp_path, ("serial", *forms, "tasks"), change)
    assert result == {("tasks", 2), (forms[1], 2), (forms[2], 2), ("serial", 1)}


def test_a_form_that_is_far_behind_is_not_measured_until_that_is_certain(tmp_path):
    """Check that one of many forms leaves before there is an interval if it is far behind in all generations."""
    schedules = ("forkjoin", "forkjoin:schedule=dynamic", "forkjoin:schedule=guided")
    many = (*schedules, *(form.replace("forkjoin", "forkjoin:region=persistent") for form in schedules))

    def goes_on(*factors, forms=many):
        rows = synthetic_rows(models=("serial", *forms, "tasks"), noise=0.001, repeats=len(factors))
        own = [row for row in rows if row["kind"] == "sample" and row["model"] in forms and row["threads"] == 2]
        for row in own:
            row["step_time_s"] = 0.01 * (factors[row["repetition"]] if row["model"] == forms[0] else 1.0)
        (config_id,) = {row["config_id"] for row in own if row["model"] == forms[0]}
        return config_id in undecided(Results(tmp_path, typed(rows)))

    assert not goes_on(1.6, 1.6, 1.6)
    assert goes_on(1.6, 1.6, 1.6, forms=many[:3]), "among few each was asked for"
    assert goes_on(1.6, 1.6), "four rounds are too few"
    assert goes_on(1.6, 1.1, 1.6) and goes_on(1.1, 1.1, 1.1)


def test_points_of_curves_have_an_interval():
    """Check that what ran on fewer threads goes on until there are six generations of it, whatever is decided."""
    for repeats, goes_on in ((3, True), (6, False)):
        rows = synthetic_rows(models=("serial", "forkjoin", "taskiter"), noise=1e-6, repeats=20)
        kept = [row for row in rows if row.get("threads") != 1 or row.get("repetition", 0) < repeats]
        alone = {row["config_id"] for row in kept if row["kind"] == "sample" and row["threads"] == 1}
        serial = {row["config_id"] for row in kept if row["kind"] == "sample" and row["model"] == "serial"}
        assert bool(undecided(Results(Path(), typed(kept))) & (alone - serial)) == goes_on
