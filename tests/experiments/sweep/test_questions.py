"""Which questions of a comparison are decided."""

import numpy as np
import pytest
from experiments.synthetic_results import synthetic_rows, typed

from forktask.experiments.analysis.questions import questions
from forktask.experiments.results.folder import Results
from forktask.experiments.subjects.models import SERIAL, parse_models
from forktask.experiments.sweep.status import undecided


@pytest.mark.parametrize("decided, scatter", [(True, 0.0), (False, 0.3), (False, 0.03)])
def test_only_what_is_open_is_measured_again(tmp_path, decided, scatter):
    """Check the configurations of questions that are open, or answered in too wide an interval, on most threads: the
    model, what it is compared with, and serial."""
    rng = np.random.default_rng(2)
    models = ("serial", "forkjoin", "forkjoin:again=1", "tasks", "taskiter")
    rows = synthetic_rows(models=models, noise=0.001, repeats=20)
    for row in rows:
        if row["kind"] == "sample" and row["model"] == "tasks" and row["threads"] == 2:
            row["step_time_s"] *= np.exp(scatter * rng.normal()) * (2 if scatter == 0.03 else 1)  # 0.03: surely slower
    ids = {(row["model"], row["threads"]): row["config_id"] for row in rows if row["kind"] == "sample"}
    open_ones = {ids["tasks", 2], ids["forkjoin", 2], ids["serial", 1]}
    assert undecided(Results(tmp_path, typed(rows))) == (set() if decided else open_ones)
    for model, open_ones in (("forkjoin", set()), ("taskiter", None)):
        own = [row for row in rows if row["kind"] != "sample" or row["model"].startswith(model)]
        assert undecided(Results(tmp_path, typed(own))) == open_ones, "a model twice is a question, one alone is none"


def test_an_answer_in_a_wide_interval_is_measured_beside_open_questions(tmp_path):
    """Check that a model which is surely slower, by nobody knows how much, goes on beside one that is undecided."""
    rng = np.random.default_rng(2)
    rows = synthetic_rows(models=("serial", "forkjoin", "tasks", "taskiter"), noise=0.001, repeats=20)
    for row in rows:
        if row["kind"] == "sample" and row["threads"] == 2 and row["model"] in ("tasks", "taskiter"):
            open_one = row["model"] == "tasks"
            row["step_time_s"] *= np.exp((0.3 if open_one else 0.03) * rng.normal()) * (1 if open_one else 2)
    ids = {(row["model"], row["threads"]): row["config_id"] for row in rows if row["kind"] == "sample"}
    going_on = {ids[model, 2] for model in ("forkjoin", "tasks", "taskiter")} | {ids["serial", 1]}
    assert undecided(Results(tmp_path, typed(rows))) == going_on


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
    rng = np.random.default_rng(2)
    forms = ("forkjoin", "forkjoin:region=persistent", "forkjoin:schedule=dynamic")
    rows = synthetic_rows(models=("serial", *forms, "tasks"), noise=0.001, repeats=20)
    for row in rows:
        if row["kind"] == "sample" and row["threads"] == 2:
            row["step_time_s"] = {"forkjoin": 0.02, "tasks": 0.01 * np.exp(0.3 * rng.normal())}.get(row["model"], 0.01)
            row["step_time_s"] *= np.exp(0.001 * rng.normal())
    ids = {(row["model"], row["threads"]): row["config_id"] for row in rows if row["kind"] == "sample"}
    near = {ids[model, 2] for model in ("tasks", *forms[1:])} | {ids["serial", 1]}
    assert undecided(Results(tmp_path, typed(rows))) == near


def test_many_forms_of_the_reference_come_last():
    """Check that where fork-join takes part in all its forms the answers begin with what is compared with them."""
    contestants = [(model, 2) for model in parse_models(["reference", "tasks", "taskiter"])]
    requested = [question.contestant[0].name for question in questions(contestants, lambda some: some[0])]
    assert requested[:2] == ["tasks", "taskiter"] and requested.count("forkjoin") == len(contestants) - 3
