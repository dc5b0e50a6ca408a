"""Networks of users in every command: as module:function, as file.py:function, as an object."""

import json
import subprocess
import sys

import pytest

import forktask as ft
from forktask.cython_src.errors import UsageError
from forktask.cython_src.networks.own import make_own, own_network, write_network
from forktask.cython_src.networks.registry import get_network, network_names
from forktask.experiments.commands.main import main
from forktask.experiments.sampling.results import read_results

PROGRAM = """
import forktask as ft
from sizes_of_mine import CHANNELS

def network():
    return ft.Network("small", (3, 32, 32), (
        ft.Convolution("conv1", CHANNELS), ft.ReLU("relu1"), ft.MaxPool("pool1"), ft.FullyConnected("fc", 10),
        ft.Softmax(),
    ))

def no_network():
    return 3

def fails():
    raise ZeroDivisionError("nothing to divide by")

ready = network()
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    """A folder with the user's program and a module that it imports; the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nets.py").write_text(PROGRAM)
    (tmp_path / "sizes_of_mine.py").write_text("CHANNELS = 8\n")
    make_own.cache_clear()
    get_network.cache_clear()
    sys.modules.pop("nets", None)
    sys.modules.pop("sizes_of_mine", None)
    return tmp_path


COMMANDS = [
    "memory --plan-only --batch 4",
    "train --data synthetic:32 --batch 8 --epochs 1 --threads 1 --model serial --out trained",
    "infer --batch 4 --images 8 --models serial --threads 1 --repeats 1",
    "kernels --batch 4 --seconds 0.01",
    "compare --quick --models serial --threads 1 --no-profile --out compared",
    "tune --budget 2 --seconds 0.01 --batch 8 --models serial --threads 1",
    "metg --quick --models serial --threads 1 --batch 4",
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.split()[0])
def test_commands_take_networks_of_ones_own(program, command, capsys):
    """Check each command with a network from a file."""
    assert main([*command.split(), "--network", "nets.py:network"]) == 0, capsys.readouterr().err


def test_a_module_is_found_where_the_user_is(program):
    """Check module:function, and a network that stands there ready made."""
    assert get_network("nets:network") == get_network("nets.py:ready")
    assert get_network("nets:network").name == "small"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nets.py:netwrok", "did you mean 'network'"),
        ("nets.py:no_network", "must return a Network, got int"),
        ("nets.py:fails", "ZeroDivisionError: nothing to divide by (line 15 of"),
        ("none.py:network", "no file 'none.py'"),
        ("nonexistent.module:network", "must be importable"),
        ("nets.py:", "is named as module:function"),
        (":network", "is named as module:function"),
        ("a b:network", "is named as module:function"),
        ("cifar10_cn", "did you mean 'cifar10_cnn'"),
    ],
)
def test_what_is_no_network_is_one_sentence(program, capsys, name, said):
    """Check the messages and the exit code."""
    assert main(["memory", "--plan-only", "--network", name]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_a_sweep_is_not_gone_on_with_once_the_network_has_changed(program, capsys):
    """Check that results of two networks of one name do not share a folder, which stays as it was."""
    command = [*COMMANDS[4].split(), "--network", "nets.py:network"]
    assert main(command) == 0
    before = (program / "compared" / "samples.jsonl").read_bytes()
    (program / "sizes_of_mine.py").write_text("CHANNELS = 16\n")
    again = [sys.executable, "-P", "-m", "forktask", *command]
    done = subprocess.run(again, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2 and "whose program was changed since" in done.stderr
    assert (program / "compared" / "samples.jsonl").read_bytes() == before


def test_compare_takes_a_network(program):
    """Check that an object that exists in this process only is measured in others, and that its name holds its hash."""
    network = own_network("nets.py:network")
    comparison = ft.compare(network, models="serial", threads=1, out="results/own", quick=True, profile=False)
    (row,) = read_results(comparison.folder).of_kind("plan")
    assert row["network"].startswith("results/small-") and row["network"].endswith(".py:network")
    assert own_network(row["network"]) == network
    assert json.loads(json.dumps(row["options"]))["network"] == row["network"]


@pytest.mark.parametrize("name", network_names())
def test_every_network_can_be_written_down(name, tmp_path):
    """Check that the program of a network makes the same network."""
    network = get_network(name)
    assert own_network(write_network(network, tmp_path)) == network


def test_a_layer_that_no_program_makes_again_is_refused(tmp_path):
    """Check that a layer whose text is no program is found before anything is measured."""

    class Odd(ft.ReLU):
        pass

    with pytest.raises(UsageError):
        write_network(ft.Network("odd", (3, 8, 8), (Odd("relu"), ft.FullyConnected("fc", 2), ft.Softmax())), tmp_path)
