"""Networks of users in every command: as module:function, as file.py:function, as an object."""

import csv
import json
import sys

import pytest
from programs import run_forktask

import forktask as ft
from forktask.cython_src.networks.own import make_own, own_network, write_network
from forktask.cython_src.networks.registry import get_network, network_names
from forktask.experiments.commands.main import main
from forktask.experiments.results.folder import read_results
from forktask.experiments.results.rows import PlanRow, SampleRow

PROGRAM = """
import numpy as np

import forktask as ft
from sizes_of_mine import CHANNELS

def network():
    return ft.Network("small", (3, 32, 32), (
        ft.Conv2d("conv1", CHANNELS), ft.ReLU("relu1"), ft.MaxPool("pool1"), ft.Linear("fc", 10),
        ft.SoftmaxCrossEntropy(),
    ))

def no_network():
    return 3

def fails():
    raise ZeroDivisionError("nothing to divide by")

def leaves():
    raise SystemExit(3)

ready = network()

def double(source, target):
    target[...] = 2 * source

def graph(grain, length=64):
    recorded = ft.UserGraph("doubling")
    x, y = recorded.array("x", np.ones(length)), recorded.array("y", np.zeros(length))
    for i in recorded.taskloop(length, grainsize=grain):
        recorded.task(double, reads=x[i], writes=y[i])
    return recorded

class Module:
    def named_parameters(self):
        "As PyTorch's modules have."
"""
SWEEP = """
[grid]
network = "nets.py:graph"
models = ["serial", "taskgraph"]
threads = 1

[grid.arguments]
grain = [16, 32]

[measure]
repeats = 1
profile = false
target_s = 0.01
warmup_s = 0.01
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    """A folder with the user's program and a module that it imports; the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("forktask.experiments.report.figures.available_figures", lambda *_: [])
    monkeypatch.setattr("forktask.experiments.plan_check.checking.LIMIT_S", 0.5)
    (tmp_path / "nets.py").write_text(PROGRAM)
    (tmp_path / "sizes_of_mine.py").write_text("CHANNELS = 8\n")
    make_own.cache_clear()
    get_network.cache_clear()
    sys.modules.pop("nets", None)
    sys.modules.pop("sizes_of_mine", None)
    return tmp_path


COMMANDS = [
    "plan --batch 4",
    "train --data synthetic:32 --batch 8 --epochs 1 --threads 1 --model serial --out trained",
    "compare --quick --models serial --threads 1 --no-profile --out compared",
    "metg --quick --models serial --threads 1 --batch 4",
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.split()[0])
def test_commands_take_networks_of_ones_own(program, command, capsys):
    """Check each command with a network from a file."""
    assert main([*command.split(), "--network", "nets.py:network"]) == 0, capsys.readouterr().err


def test_a_graph_of_ones_own_is_described_and_drawn(program, capsys):
    """Check a function that returns a graph: no network, but a plan with loops and a picture."""
    words = ["plan", "--network", "nets.py:graph(grain=16)", "--graph", "own.svg"]
    assert main([*words, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["network"] == {"name": words[2]} and result["plans"][0]["phases"][0]["loops"] > 0
    assert main(words) == 0
    assert words[2] in capsys.readouterr().out and (program / "own.svg").exists()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nets.py:netwrok", "did you mean 'network'"),
        ("nets.py:no_network", "must return a Network, a UserGraph or a Plan, got int"),
        ("nets.py:Module", "must make a network, got the PyTorch module Module; return forktask.from_torch"),
        ("nets.py:fails", "ZeroDivisionError: nothing to divide by (line 17 of"),
        ("nets.py:graph(grian=16)", "arguments of nets.py:graph are grain, length; got 'grian'; did you mean 'grain'?"),
        ("nets.py:graph", "missing a required argument: 'grain'"),
        ("nets.py:graph(grain=" + "(" * 900 + ")", "are written as in"),
        ("nets.py:graph(grain=16, length='x')", "must be made without an error, got TypeError"),
        ("nets.py:leaves", "must be made without an error, got SystemExit: 3 (line 20 of"),
    ],
)
def test_what_is_no_network_is_one_sentence(program, capsys, name, said):
    """Check the messages and the exit code."""
    assert main(["plan", "--network", name]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_a_sweep_is_not_gone_on_with_once_the_network_has_changed(program, capsys):
    """Check that results of two networks of one name do not share a folder, which stays as it was; and the JSON."""
    (compared,) = (words for words in COMMANDS if words.startswith("compare "))
    command = [*compared.split(), "--network", "nets.py:network"]
    assert main([*command, "--json"]) == 0
    assert [row["model"] for row in json.loads(capsys.readouterr().out)["speed"]] == ["serial"]
    before = (program / "compared" / "samples.jsonl").read_bytes()
    changes = {"nets.py": PROGRAM.replace('ft.ReLU("relu1")', 'ft.ReLU6("relu1")'), "sizes_of_mine.py": "CHANNELS = 16"}
    for name, text in changes.items():  # other layers in the same loops, other loops
        former = (program / name).read_text()
        (program / name).write_text(text)
        done = run_forktask(*command)
        assert done.returncode == 2 and "whose program was changed since" in done.stderr
        (program / name).write_text(former)
    assert (program / "compared" / "samples.jsonl").read_bytes() == before


def test_arguments_of_a_graph_are_axes(program, capsys):
    """Check a sweep over an argument: rows with a plan each, a column and a table of ratios by its name, no batch."""
    (program / "grain.toml").write_text(SWEEP)
    assert main(["run", "grain.toml", "--out", "swept"]) == 0, capsys.readouterr().err
    capsys.readouterr()
    assert main(["report", "swept", "--all"]) == 0
    text = capsys.readouterr().out
    assert "Along grain: " in text and "nets.py:graph, grain 32; 2 tasks in 1 loops" in text and "batch" not in text
    measured = read_results(program / "swept")
    plans = [(row.network, row.num_tasks, row.plan_id) for row in measured.of(PlanRow)]
    assert [plan[:2] for plan in plans] == [("nets.py:graph(grain=16)", 4), ("nets.py:graph(grain=32)", 2)]
    grains = {plan_id: grain for (_, _, plan_id), grain in zip(plans, ("16", "32"), strict=True)}
    samples = measured.of(SampleRow)
    # Where others keep the machine busy, noise may hide so short a step, which is then left out of the table.
    timed = sorted((grains[row.plan_id], row.model) for row in samples if row.step_time_s > 0)
    assert len(samples) == 4
    with open(program / "swept" / "summary.csv", newline="") as file:
        table = [(row["network"], row["grain"], row["model"]) for row in csv.DictReader(file)]
    assert table == [("nets.py:graph", grain, model) for grain, model in timed]
    assert "nets.py:graph" in (program / "swept" / "report.html").read_text()


def test_results_are_diagnosed_from_any_folder(program, capsys, monkeypatch):
    """Check that a graph's file is found beside the results, and that a file which is gone is one sentence."""
    words = "compare --quick --network nets.py:graph(grain=16) --models serial,forkjoin --threads 1 --out results/own"
    assert main(words.split()) == 0, capsys.readouterr().err
    monkeypatch.chdir("/")
    for there in (True, False):
        make_own.cache_clear()
        assert main(["diagnose", str(program / "results/own")]) == (0 if there else 2)
        (program / "nets.py").unlink(missing_ok=True)
    assert f"no file 'nets.py' here or above {str(program / 'results')!r}" in capsys.readouterr().err


def test_compare_takes_a_network(program, monkeypatch):
    """Check that an object that exists in this process only is measured in others, and that its name holds its hash."""
    monkeypatch.setattr("forktask.experiments.plan_check.checking.LIMIT_S", 60.0)
    network = own_network("nets.py:network")
    comparison = ft.compare(network, models="serial", threads=1, out="results/own", quick=True, profile=False)
    results = read_results(comparison.folder)
    (row,) = results.of(PlanRow)
    assert {sample.check for sample in results.of(SampleRow)} == {"passed"}
    assert row.network.startswith("results/small-") and row.network.endswith(".py:network")
    assert own_network(row.network) == network
    assert json.loads(json.dumps(row.options)) == row.options


@pytest.mark.parametrize("name", network_names())
def test_every_network_can_be_written_down(name, tmp_path):
    """Check that the program of a network makes the same network."""
    network = get_network(name)
    assert own_network(write_network(network, tmp_path)) == network
