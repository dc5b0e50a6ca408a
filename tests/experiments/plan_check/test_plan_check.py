"""The check of plans that are not shipped: what it finds, what it costs, and where it is kept."""

import os
import sys

import pytest

import forktask as ft
from forktask.cython_src.errors import UnsoundPlan
from forktask.cython_src.lowering.lower import lower
from forktask.cython_src.lowering.options import PlanOptions
from forktask.cython_src.networks.own import make_own
from forktask.cython_src.networks.registry import get_network
from forktask.experiments.commands.main import main
from forktask.experiments.plan_check import checking, worker
from forktask.experiments.plan_check.checking import check_plans
from forktask.experiments.results.folder import read_results
from forktask.experiments.results.rows import SampleRow
from forktask.experiments.subjects.models import parse_model

PROGRAM = """
import os
import numpy as np
import forktask as ft
from forktask.plans import Block, PlanBuilder, write
from forktask.cython_src.kernels.interface.kernel_spec import KernelSpec

def network(channels=8):
    return ft.Network("small", (3, 32, 32), (
        ft.Conv2d("conv1", channels), ft.ReLU("relu1"), ft.MaxPool("pool1"), ft.Linear("fc", 10),
        ft.SoftmaxCrossEntropy(),
    ))

def double(source, target):
    target[...] = 2 * source

def accumulate(source, target):
    target += 2 * source

def spoil(source, target):
    os.abort()

def fail(source, target):
    raise ZeroDivisionError("as planned")

def graph(kernel="double"):
    recorded = ft.UserGraph("doubling")
    x, y = recorded.array("x", np.ones(64)), recorded.array("y", np.zeros(64))
    for i in recorded.taskloop(64, grainsize=16):
        recorded.task(globals()[kernel], reads=x[i], writes=y[i])
    return recorded

def shift(operands, attributes, bounds, iteration):
    out = operands["out"]
    out[bounds["start"] : bounds["stop"] + attributes["extra"]] = out[8 - attributes["reads"] :].sum() + iteration

def plan(extra=0, reads=0):
    builder = PlanBuilder("shifts")
    spec = KernelSpec("mine.shift", ("out",), ("extra", "reads"), bounds=("start", "stop"), reference=shift)
    builder.attributes["kernels"] = {spec.name: spec}
    builder.buffer("out", (8,), "float32", role="dataset")
    blocks = [Block((start, start + 3), (write("out", (start, start + 3)),)) for start in (0, 4)]
    builder.loop("shift", spec.name, {"out": "out"}, blocks, attributes={"extra": extra, "reads": reads})
    return builder.build()
"""
QUICK = ["--quick", "--models", "serial,taskiter", "--threads", "2", "--no-profile"]


@pytest.fixture
def program(tmp_path, monkeypatch):
    """A folder with the user's program, the current one; an empty cache."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("forktask.experiments.report.figures.available_figures", lambda *_: [])
    monkeypatch.setattr(checking, "_found", {})
    monkeypatch.setattr(checking, "LIMIT_S", 60.0)  # however slow the machine is
    (tmp_path / "mine.py").write_text(PROGRAM)
    make_own.cache_clear()
    get_network.cache_clear()
    return tmp_path


@pytest.fixture
def started(monkeypatch):
    """The jobs of the processes that check."""
    jobs, run = [], checking.measure_in_process
    monkeypatch.setattr(checking, "measure_in_process", lambda job, *rest: jobs.append(job) or run(job, *rest))
    return jobs


def asked(name, models=(("taskiter", 2),), **options):
    graph = not name.startswith("mine.py:network")
    options = PlanOptions(batch=1 if graph else 8).with_changes(**options)
    return {"network": name, **options.as_dict()}, [(parse_model(model), threads) for model, threads in models]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("mine.py:graph(kernel='accumulate')", ("'accumulate.0'", "kernel 'accumulate/0'", "'y'", "not fully over")),
        ("mine.py:graph(kernel='spoil')", ("SIGABRT",)),
        ("mine.py:plan(extra=1)", ("'shift'", "kernel 'mine.shift'", "'out'", "undeclared write by block shift[0]")),
        ("mine.py:plan(reads=1)", ("'shift'", "kernel 'mine.shift'", "'out'", "undeclared read by block shift[0]")),
    ],
)
def test_a_wrong_declaration_is_refused_by_name(program, name, said):
    """Check that a user's graph and a plan that declare too little are refused: loop, kernel, buffer, the fault."""
    with pytest.raises(UnsoundPlan) as caught:
        check_plans([asked(name)])
    for words in (name, *said, "mend what the tasks declare", "--no-check"):
        assert words in str(caught.value)
    assert not list(program.glob("cache/**/*.tmp")) and not (program / "cache" / "forktask" / "checked").exists()


def test_sound_plans_pass_once(program, started):
    """Check network, graph and plan: a process checks each the first time, later none, and another model alone."""
    plans = [asked("mine.py:network"), asked("mine.py:graph"), asked("mine.py:plan")]
    assert check_plans(plans) == ["passed"] * 3
    assert [job["accesses"] for job in started] == [True] * 3 and started[0]["models"] == [("taskiter", 2)]
    checking._found.clear()  # as a new process
    assert check_plans(plans) == ["passed"] * 3 and len(started) == 3
    assert check_plans([asked("mine.py:network", [("taskiter", 2), ("taskgraph", 2)])]) == ["passed"]
    assert not started[3]["accesses"] and started[3]["models"] == [("taskgraph", 2)]


def test_shipped_networks_are_not_checked(program, started):
    """Check names of the registry, and the same network as an object."""
    network = get_network("cifar10_cnn")
    assert check_plans([asked("cifar10_cnn"), ({**asked("lenet5")[0], "network": network}, ())]) == ["shipped"] * 2
    assert ft.run("lenet5", batch=4, iterations=1, threads=1).iterations == 1
    assert not started


@pytest.mark.parametrize("broken", ["corrupt", "a folder", "unwritable", "no folder"])
def test_a_broken_cache_is_survived(program, started, monkeypatch, broken):
    """Check that a cache that cannot be read or written leads to one more check, and to no error."""
    if broken == "unwritable":
        (program / "cache").write_text("a file where the folder should be")
    elif broken == "no folder":
        monkeypatch.setenv("XDG_CACHE_HOME", os.fspath(program / "\0none".replace("\0", "x" * 300)))
    else:
        assert check_plans([asked("mine.py:graph")]) == ["passed"]
        (kept,) = (program / "cache" / "forktask" / "checked").iterdir()
        kept.unlink()
        kept.mkdir() if broken == "a folder" else kept.write_bytes(b'{"accesses": 3')
        started.clear()
        checking._found.clear()
    assert check_plans([asked("mine.py:graph")]) == ["passed"] and len(started) == 1
    assert check_plans([asked("mine.py:graph")]) == ["passed"] and len(started) == 1


def test_a_changed_kernel_is_checked_again(program, started):
    """Check that editing the body of a kernel, which the plan does not show, leads to another check."""
    assert check_plans([asked("mine.py:graph")]) == ["passed"]
    (program / "mine.py").write_text(PROGRAM.replace("target[...] = 2 * source", "target += source"))
    make_own.cache_clear()
    with pytest.raises(UnsoundPlan, match=r"double\.0"):
        check_plans([asked("mine.py:graph")])


def test_other_bits_than_serial_are_refused(program, monkeypatch):
    """Check the second half alone: a model whose run changes a weight is named with the first loop that writes it."""
    real = worker.make_executor

    class Wrong:
        def __init__(self, model, threads):
            self.inner, self.model = real(model, threads), model

        def __enter__(self):
            self.inner.__enter__()
            return self

        def __exit__(self, *error):
            self.inner.__exit__(*error)

        def prepare(self, bound):
            self.bound = bound
            self.inner.prepare(bound)

        def run(self, count):
            self.inner.run(count)
            if self.model == "taskiter":
                self.bound.arrays["fc.weight"][0] += 1

    monkeypatch.setattr(worker, "make_executor", Wrong)
    plan, _ = asked("mine.py:network")
    models = [["forkjoin", 2], ["taskiter", 2]]
    job = {"plan": plan, "path": sys.path, "accesses": False, "models": models, "limit_s": 0.5}
    fault = worker.check(job)["fault"]
    assert fault["buffer"] == "fc.weight" and "taskiter on 2 threads" in fault["what"]
    assert fault["layer"] == "fc" and fault["loop"] in {loop.name for loop in lower("mine.py:network").loops}
    sentence = checking._sentence("mine.py:network", plan, fault, is_graph=False)
    assert "please report it" in sentence and "batch 8" in sentence
    assert "fault" not in worker.check({**job, "models": [["forkjoin", 2]]})


def test_what_cannot_be_checked_is_said(program, capsys):
    """Check that a graph whose tasks fail is not refused here: its measurement says so."""
    assert check_plans([asked("mine.py:graph(kernel='fail')")]) == ["impossible"]
    assert "could not be checked: BlockFailure: ZeroDivisionError: as planned; fail.0[0]" in capsys.readouterr().err


def test_the_time_is_bounded(program, monkeypatch):
    """Check that what was not reached within the time is called so, and is not begun again."""
    monkeypatch.setattr(checking, "measure_in_process", lambda *_: {"failure": "timeout", "message": "too long"})
    assert check_plans([asked("mine.py:graph")]) == ["in part"]
    monkeypatch.setattr(checking, "measure_in_process", lambda *_: pytest.fail("checked again"))
    assert check_plans([asked("mine.py:graph")]) == ["in part"]
    plan, _ = asked("mine.py:network")
    job = {"plan": plan, "path": sys.path, "accesses": True, "models": [], "limit_s": 0.0}
    assert worker.check(job) == {"whole": False}


def test_a_sweep_refuses_and_no_check_lets_pass(program, capsys):
    """Check exit code, folder and rows of `compare` on a graph that declares a write in place of an update."""
    command = ["compare", "--network", "mine.py:graph(kernel='accumulate')", *QUICK, "--out", "out"]
    assert main(command) == 4
    texts = capsys.readouterr().err.splitlines()
    assert texts[-1].startswith("forktask: error: ") and sum("checking mine.py" in line for line in texts) == 1
    assert not (program / "out").exists()
    assert main([*command, "--no-check"]) == 0
    rows = read_results(program / "out").of(SampleRow)
    assert rows and {row.check for row in rows} == {"left out"}
    assert read_results(program / "out").run.config["check"] is False


@pytest.mark.parametrize(
    "command",
    [
        "train --data synthetic:32 --batch 8 --epochs 1 --threads 2 --out trained",
        "trace --batch 8 --models taskiter --threads 2 --seconds 0.01 --out traced",
    ],
    ids=lambda command: command.split()[0],
)
def test_every_command_that_measures_asks_for_the_check(program, monkeypatch, command):
    """Check that each command ends before it measures where the check fails, and runs without it where asked to."""
    monkeypatch.setattr(checking, "measure_in_process", lambda *_: {"fault": {"what": "something differs"}})
    words = [*command.split(), "--network", "mine.py:network"]
    assert main(words) == 4
    monkeypatch.setattr(checking, "measure_in_process", lambda *_: pytest.fail("checked all the same"))
    if command.split()[0] == "train":  # the others take longer
        assert main([*words, "--no-check"]) == 0


def test_run_in_python(program, monkeypatch, capsys):
    """Check `run` on a network that exists as an object alone: checked in another process, once, or not at all."""
    network = make_own("mine.py:network")
    for check in (True, True, False):
        ft.run(network, batch=4, iterations=1, model="taskiter", threads=2, check=check)
    assert capsys.readouterr().err.count("checking small") == 1
    monkeypatch.setattr(checking, "measure_in_process", lambda *_: {"failure": "crash", "message": "killed by SIGSEGV"})
    with pytest.raises(UnsoundPlan, match="SIGSEGV"):
        ft.run(network, batch=5, iterations=1, threads=2)
