"""The conformance kit: runtimes broken on purpose are found, the models of this installation conform."""

import re

import numpy as np
import pytest
from kinds import LONG, forms_of_models
from own_runtime import build

from forktask.cython_src.binding.bind import EVENT_DTYPE
from forktask.cython_src.plan.dependences import record_graph
from forktask.cython_src.plan.model import COMMUTATIVE, CONCURRENT, READ, UPDATE, WRITE
from forktask.experiments.commands import check_model as check_model_command
from forktask.experiments.commands.main import main
from forktask.experiments.conformance.cases import SEEDS, SIZES, Violation, check_log, check_model, random_plan
from forktask.experiments.subjects.models import MODELS, outside_models, parse_model

LIMIT_S = 8.0
FREES = "    free(s->threads);\n    free(s->missing);\n    free(s->queue);\n    free(s);\n"
LEAKS = "    volatile char *lost = malloc(2 << 20);\n    for (int i = 0; i < 2 << 20; i++)\n        lost[i] = 1;\n"
WAITS = "\n        if (!is_caller && !pthread_cond_wait(&s->changed, &s->mutex))\n            continue;"
TAKES = "while (is_caller ? s->left > 0 : !s->closing) {"
RUNS = "forktask_run_task(s->run, node, s->replay, worker, is_caller);"
REPLAY = "s->replay = run->first_replay + i"
# name: changes of the guide's runtime, and words of the fault
BROKEN = {
    "a lost successor": (
        [("i < run->successor_split[node]; i++", "i < run->successor_split[node] - (node == 2); i++")],
        "timeout",
    ),
    "a task run twice": (
        [(RUNS, f"for (int twice = 0; twice < 1 + (node == 1); twice++)\n                {RUNS}")],
        "must run once in iteration 0, ran 2 times",
    ),
    "an edge ignored": (
        [("= run->num_predecessors[v]) == 0", "= run->num_predecessors[v]) < 2")],
        r"must run once|run\(\) returned before|started .* µs before .* had ended, on which it depends",
    ),
    "a stale iteration number": ([(REPLAY, "s->replay = run->first_replay")], "must run once in iteration 1"),
    "a first iteration ignored": ([(REPLAY, "s->replay = i")], "ran as of iteration"),
    "too early a return": ([("s->left > 0", "s->left > 1")], "must run once|before .* had ended"),
    "one thread only": ([(TAKES, TAKES + WAITS)], r"2 threads must run blocks, workers \[0\] of them did"),
    "one number for two threads": (
        [("worker, is_caller);", "0, is_caller);")],
        "two threads ran blocks as worker 0 at once|must run once",
    ),
    "a leaked thread": (
        [("closing = 1;", "closing = 0;"), ("pthread_join(s->threads[i], NULL)", "(void)0"), (FREES, "")],
        r"close\(\) must end all threads",
    ),
    "leaked memory": ([(FREES, LEAKS + FREES)], "must give memory back"),
    "a fork noticed": (
        [
            (
                "Session *s = calloc(1, sizeof *s);",
                "Session *s = calloc(1, sizeof *s);\n    pthread_atfork(abort, NULL, NULL);",
            )
        ],
        "crash",
    ),
    "a session shared by all": (
        [("Session *s = calloc(1, sizeof *s);", "static Session shared, *s = &shared;"), ("    free(s);\n", "")],
        "crash|timeout|must run once|as worker",
    ),
    "signals ignored": (
        [("&& !forktask_poll_waiting(s->run); i++", "; i++"), ("worker, is_caller);", "worker, 0);")],
        "timeout",
    ),
    "a crash": ([(REPLAY, f"{REPLAY} + (run->num_replays == 7 ? *(volatile int *)NULL : 0)")], "crash"),
}


@pytest.mark.cc
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_runtime_is_found(tmp_path, name):
    """Check that the kit says of each which rule it breaks, and where."""
    changes, words = BROKEN[name]
    spec = parse_model(build(tmp_path, *changes))
    faults = (row["fault"] for row in check_model(spec, (2,), LIMIT_S) if row["fault"])
    fault = next(faults, None)
    assert fault is not None and re.search(words, fault), fault


@pytest.mark.cc
def test_the_guides_runtime_conforms(tmp_path, capsys):
    """Check the command, its output and exit code, for a model that is whole and one that is not."""
    assert main(["check-model", build(tmp_path), "--threads", "1,2"]) == 0
    assert "conforms" in capsys.readouterr().out
    model = build(tmp_path, *BROKEN["a task run twice"][0], name="twice")
    assert main(["check-model", model, "--threads", "2", "--time-limit", "10"]) == 1
    assert "ran 2 times" in capsys.readouterr().out


@pytest.mark.parametrize("name", forms_of_models(has=lambda model: LONG or not model.is_reference))
def test_models_of_this_installation_conform(name):
    """Check ours; FORKTASK_LONG_TESTS=1 checks outside references, too."""
    assert [row["fault"] for row in check_model(parse_model(name), (2,)) if row["fault"]] == []


def test_outside_is_each_installed_runtime(monkeypatch, capsys):
    """Check that every one of them is checked and named, and that one that breaks a rule gives exit code 1."""
    names = [str(spec) for spec in outside_models()]
    faults = dict.fromkeys(names) | {names[-1]: "ran 2 times"}
    checked = lambda spec, *_: [{"case": "order", "rule": "Once", "fault": faults[str(spec)]}]  # noqa: E731
    monkeypatch.setattr(check_model_command, "check_model", checked)
    assert main(["check-model", "outside"]) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[-len(names) :] == [*(f"{name} conforms" for name in names[:-1]), f"{names[-1]} breaks 1 rules"]


def test_models_that_run_no_plans_on_threads_are_refused(capsys):
    """Check the sentence for a GPU's model."""
    assert main(["check-model", next(name for name in MODELS if name.startswith("gpu_"))]) == 2
    assert capsys.readouterr().err


def test_random_graphs_have_every_kind_of_access():
    """Check that the kit's graphs hold all kinds, joins, and edges to the next iteration."""
    plans = [random_plan(size, seed) for size in SIZES for seed in range(SEEDS)]
    assert {*np.concatenate([plan.accesses.access_kind for plan in plans]).tolist()} == {
        *(READ, WRITE, UPDATE, CONCURRENT, COMMUTATIVE)
    }
    graphs = [record_graph(plan.accesses) for plan in plans]
    assert max(graph.num_joins for graph in graphs) > 0 and max(graph.num_cross.max() for graph in graphs) > 1


def test_a_log_is_refused_for_each_rule():
    """Check a log by hand: whole, then with one rule broken at a time."""
    plan = random_plan(16, 0)
    graph = record_graph(plan.accesses)
    whole = np.zeros(2 * plan.num_tasks, EVENT_DTYPE)
    whole["start_ns"] = 10 * np.arange(len(whole))
    whole["stop_ns"] = whole["start_ns"] + 5
    whole["iteration"], whole["task"] = np.divmod(np.arange(len(whole)), plan.num_tasks)
    check_log(plan, graph, whole, 0, 2, 10**6)

    def change(name, index, value):
        log = whole.copy()
        log[name][index] = value
        return log

    for log, returned_ns, words in (
        (whole, 100, "run\\(\\) returned before"),
        (change("task", 3, 4), 10**6, "must run once"),
        (change("iteration", 0, 7), 10**6, "as of iteration 7"),
        (change("stop_ns", 0, 15), 10**6, "two threads ran blocks as worker 0"),
    ):
        with pytest.raises(Violation, match=words):
            check_log(plan, graph, log, 0, 2, returned_ns)
    backwards = whole.copy()
    backwards["start_ns"], backwards["stop_ns"] = whole["start_ns"][::-1], whole["stop_ns"][::-1]
    with pytest.raises(Violation, match="on which it depends"):
        check_log(plan, graph, backwards, 0, 2, 10**6)
