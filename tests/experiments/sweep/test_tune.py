"""The search for block sizes."""

import json

import pytest
from experiments.synthetic_results import sweep_of, synthetic_rows

from forktask.cython_src.errors import UsageError
from forktask.cython_src.lowering.lower import lower
from forktask.cython_src.lowering.options import PlanOptions
from forktask.experiments.commands.main import main
from forktask.experiments.sweep.configuration import Configuration, Grid, Measure
from forktask.experiments.sweep.tune import candidates
from forktask.experiments.sweep.tuned import best_rows, read_tuned

NETWORK, OPTIONS = "cifar10_cnn", PlanOptions(batch=32)


def test_candidates_differ_and_can_be_lowered():
    """Check that "auto" comes first, that none repeats another's cut, and that the seed fixes them."""
    result = candidates(NETWORK, OPTIONS, 6, 1)
    assert result[0] == "auto" and len(result) == 6 == len(set(result))
    assert result == candidates(NETWORK, OPTIONS, 6, 1)
    cuts = {
        tuple((loop.num_blocks, loop.blocks[0].bounds) for loop in lower(NETWORK, OPTIONS, granularity=g).loops)
        for g in result
    }
    assert len(cuts) == 6


def test_cuts_for_the_threads_that_run_are_tried():
    """Check that the first candidates are cut by cost for up to twice the threads, from 16 on."""
    assert candidates(NETWORK, OPTIONS, 4, 1, threads=16)[:2] == ["auto", "threads=16"]
    assert candidates(NETWORK, OPTIONS, 4, 1, threads=24)[:3] == ["auto", "threads=16", "threads=32"]


def test_each_model_has_its_own_best():
    """Check that the fastest granularity of each model and number of threads is found, and its time at "auto"."""
    cuts = ({"granularity": "auto"}, {"granularity": "images=16"})
    rows = best_rows(sweep_of(synthetic_rows(options=cuts, slowdowns=(1.0, 0.5), noise=0.001)))
    assert {row["granularity"] for row in rows} == {"images=16"} and len({row["problem"] for row in rows}) == 1
    assert all(row["auto_time_s"] == pytest.approx(2 * row["step_time_s"], rel=0.02) for row in rows)
    assert len({(row["model"], row["threads"]) for row in rows}) == len(rows) > 3


def test_what_is_found_is_used_by_compare(tmp_path, capsys):
    """Check the command from end to end: an ordinary folder, which goes on, and the points of a sweep with it."""
    out = tmp_path / "tune"
    command = ["tune", "--batch", "16", "--models", "serial", "--threads", "1", "--budget", "2", "--seconds", "0.01"]
    assert main([*command, "--out", str(out), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (out / "report.html").exists() and main(["report", str(out)]) == 0
    (best,) = read_tuned(out).values()
    assert best == result["rows"][0]["granularity"] and best in result["candidates"]
    grid = Grid(batch=(16,), models=("serial", "taskiter"), threads=(1,), granularity=("images=1",))
    points = Configuration(grid=grid, measure=Measure(tuned=str(out))).points()
    cuts = sorted((point.model, point.plan["granularity"]) for point in points)
    assert cuts == sorted([("serial", best), ("serial", "images=1"), ("taskiter", "images=1")])
    capsys.readouterr()
    assert main([*command, "--out", str(out)]) == 0
    assert f"--tuned {out}" in capsys.readouterr().out


def test_other_folders_are_refused(tmp_path):
    """Check the sentence about a folder that holds nothing, and about a file of before."""
    (tmp_path / "tuned.json").write_text("{}")
    for path in (tmp_path, tmp_path / "tuned.json"):
        with pytest.raises(UsageError, match="tuned must be a folder of forktask tune, got"):
            read_tuned(path)
