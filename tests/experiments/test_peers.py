"""The comparison with PyTorch: what is refused, what is compared with what, and the network itself."""

import json
import math

import pytest

from forktask.cython_src.errors import UsageError
from forktask.experiments.commands.main import main
from forktask.experiments.peers.peers import as_text, differences, disagreement, summarise, wrong_modes


def rows(*step_times_s, answer=(2.3, 2.2)):
    """One sample a repetition."""
    return {r: {"step_time_s": t, "answer": list(answer)} for r, t in enumerate(step_times_s)}


def test_the_fastest_mode_at_as_many_threads_is_the_peer():
    """Check which mode a model is compared with, the paired ratio, and the floor."""
    result = summarise(
        {
            ("torch eager", 1): rows(4.0, 4.2, 4.1, 4.0, 4.0),
            ("torch channels_last", 1): rows(3.0, 3.0, 3.1, 3.0, 3.0),
            ("torch eager", 2): rows(2.0, 2.0, 2.0, 2.0, 2.0),
            ("serial", 1): rows(1.5, 1.5, 1.55, 1.5, 1.5),
            ("taskiter", 2): rows(0.8, 0.8, 0.8, 0.8, 0.8),
        },
        {"FLOP": {1: 1.0, 2: 0.5}, "roofline": {1: 1.2, 2: 0.6}},
    )
    found = {(row["name"], row["threads"]): row for row in result["rows"]}
    assert found["serial", 1]["peer"] == "torch channels_last" and found["serial", 1]["speedup"] == pytest.approx(2.0)
    assert found["taskiter", 2]["peer"] == "torch eager" and found["taskiter", 2]["speedup"] == pytest.approx(2.5)
    assert found["serial", 1]["floors_s"] == {"FLOP": 1.0, "roofline": 1.2}
    assert found["taskiter", 2]["floors_s"] == {"FLOP": 0.5, "roofline": 0.6}
    assert "speedup" not in found["torch eager", 1]


def test_without_any_time_the_table_says_what_failed():
    """Check the table when no contestant could be measured."""
    result = summarise({}, {"FLOP": {1: 1.0}}) | {
        "network": "lenet5",
        "batch": 4,
        "phase": "train",
        "environment": {"cpu": {"model": "x"}},
        "convolutions": {},
        "machine": {"peak_flops_per_s_1thread": 1e9, "instruction_set": "generic"},
        "failures": {"serial @ 1": "no memory"},
    }
    assert as_text(result).endswith("not measured: serial @ 1: no memory")


def test_no_time_is_shown_before_answers_agree():
    """Check that other losses, fewer losses and no losses are refused."""
    for answer in ((2.3, 2.25), (2.3,), (math.nan, 2.2)):
        with pytest.raises(UsageError, match="answers must agree"):
            summarise({("torch eager", 1): rows(1.0), ("serial", 1): rows(1.0, answer=answer)}, {})
    assert differences([], []) == [math.inf]
    assert differences([2.0, 1.0], [2.0, 1.001]) == pytest.approx([0, 1e-3], rel=1e-2)


def test_the_third_loss_may_differ_more():
    """Check the limits of three losses, and that probabilities have one."""
    assert disagreement((2.3, 2.0, 1.5), (2.3, 2.001, 1.51)) == ""
    assert "number 1 by 0.0099, where 0.002" in disagreement((2.3, 2.0, 1.5), (2.3, 2.02, 1.5))
    assert "number 2 by 0.02, where 0.01" in disagreement((2.3, 2.0, 1.5), (2.3, 2.0, 1.47))
    assert "number 2" in disagreement((0.3, 0.2, 0.1, 0.4), (0.3, 0.2, 0.1005, 0.4))


def test_a_wrong_mode_of_pytorch_is_no_reference():
    """Check that a mode with another second loss is named, and one that rounds differently is not."""
    eager, later = rows(1.0, answer=(2.3, 2.0, 1.5)), rows(1.0, answer=(2.3, 2.0, 1.49))
    wrong = rows(0.5, answer=(2.3, 2.1, 1.5))
    found = wrong_modes(
        {
            ("torch eager", 1): eager,
            ("torch channels_last", 1): later,
            ("torch compile", 1): wrong,
            ("serial", 1): wrong,
        }
    )
    assert (
        list(found) == [("torch compile", 1)]
        and "torch eager's, this mode's differs in number 1 by 0.048" in found["torch compile", 1]
    )
    assert wrong_modes({("serial", 1): eager}) == {}


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--modes", "jit"], "a PyTorch mode must be one of"),
        (["--models", "fastest"], "fastest"),
        (["--network", "alexnet"], "network must be one of"),
        (["--batch", "0"], "batch"),
        (["--threads", "4096"], "threads must be in"),
        (["--repeats", "0"], "repeats must be at least 1"),
    ],
)
def test_bad_input_is_refused(arguments, message, capsys, monkeypatch):
    """Check one sentence and exit code 2, before anything is measured."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *rest: object())
    assert main(["peers", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_without_pytorch_the_remedy_is_named(capsys, monkeypatch):
    """Check the sentence for users who have no PyTorch."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *rest: None)
    assert main(["peers"]) == 2
    assert "pip install" in capsys.readouterr().err


@pytest.mark.torch
@pytest.mark.parametrize("phase", ["train", "forward"])
def test_a_small_run_agrees_with_pytorch(phase, capsys):
    """Check the command from end to end: answers agree, every contestant is there."""
    assert (
        main(
            [
                "peers",
                "--batch",
                "4",
                "--phase",
                phase,
                "--threads",
                "1",
                "--models",
                "serial",
                "--modes",
                "eager,channels_last",
                "--repeats",
                "1",
                "--seconds",
                "0.05",
                "--json",
            ]
        )
        == 0
    )
    result = json.loads(capsys.readouterr().out)
    assert {row["name"] for row in result["rows"]} == {"torch eager", "torch channels_last", "serial"}
    assert result["largest_difference"] < 1e-4 and not result["failures"]
    assert "channels_last" in as_text(result)
