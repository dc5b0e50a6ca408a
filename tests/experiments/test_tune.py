"""The search for block sizes."""

import json

import pytest

from forktask.cython_src.errors import UsageError
from forktask.cython_src.lowering.lower import lower
from forktask.cython_src.lowering.options import PlanOptions
from forktask.experiments.commands.main import main
from forktask.experiments.sweep.configuration import Configuration, Grid, Measure
from forktask.experiments.sweep.tune import FINAL_REPEATS, FINALISTS, candidates, search
from forktask.experiments.sweep.tuned import read_tuned

NETWORK, OPTIONS = "cifar10_cnn", PlanOptions(batch=32)


def test_candidates_differ_and_can_be_lowered():
    """Check that "auto" comes first, that none repeats another's cut, and that the seed fixes them."""
    found = candidates(NETWORK, OPTIONS, 6, 1)
    assert found[0] == "auto" and len(found) == 6 == len(set(found))
    assert found == candidates(NETWORK, OPTIONS, 6, 1)
    cuts = {
        tuple((loop.num_blocks, loop.blocks[0].bounds) for loop in lower(NETWORK, OPTIONS, granularity=g).loops)
        for g in found
    }
    assert len(cuts) == 6


def test_every_model_gets_the_same_budget_and_its_own_best():
    """Check the number of runs of each model, failures, and what is found."""
    times = {
        ("a", 1): {"auto": 3.0, "x": 2.0, "y": 1.0, "z": 4.0},
        ("b", 2): {"auto": 1.0, "x": 5.0, "y": None, "z": 2.0},
    }
    calls = []

    def measure(model, threads, granularity):
        calls.append(model)
        return times[model, threads][granularity]

    rows = search(list(times), ["auto", "x", "y", "z"], measure, 0)
    assert [(row["model"], row["granularity"], row["auto_time_s"]) for row in rows] == [
        ("a", "y", 3.0),
        ("b", "auto", 1.0),
    ]
    assert calls.count("a") == 4 + FINAL_REPEATS * FINALISTS and calls.count("b") <= calls.count("a")


def test_what_is_found_is_used_by_compare(tmp_path, capsys):
    """Check the command from end to end, the file, and the points that a sweep with it has."""
    out = tmp_path / "tuned.json"
    command = ["tune", "--batch", "16", "--models", "serial", "--threads", "1", "--budget", "2", "--seconds", "0.01"]
    assert main([*command, "--out", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    row = found["rows"][0]
    row["granularity"] = found["candidates"][1]
    out.write_text(json.dumps({"format_version": 1, "problems": [found]}))
    assert list(read_tuned(out).values()) == [row["granularity"]]
    grid = Grid(batch=(16,), models=("serial", "taskiter"), threads=(1,))
    points = Configuration(grid=grid, measure=Measure(tuned=str(out))).points()
    cuts = sorted((point.model, point.plan["granularity"]) for point in points)
    assert cuts == sorted([("serial", "auto"), ("serial", row["granularity"]), ("taskiter", "auto")])


def test_foreign_files_are_refused(tmp_path):
    """Check that a missing file and another one give one sentence."""
    with pytest.raises(UsageError, match="must be a file of forktask tune"):
        read_tuned(tmp_path / "none")
    (tmp_path / "other").write_text("{}")
    with pytest.raises(UsageError, match="run it again"):
        read_tuned(tmp_path / "other")
