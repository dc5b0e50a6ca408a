"""The search for block sizes."""

import json
import subprocess
import sys

import pytest

from forktask.cython_src.lowering.lower import lower
from forktask.cython_src.lowering.options import PlanOptions
from forktask.experiments.commands.main import main
from forktask.experiments.results.turns import GroupTurns, MeasuredGroup, Rounds, Turns
from forktask.experiments.sweep import tune as tuning
from forktask.experiments.sweep.configuration import Configuration, Grid, Measure
from forktask.experiments.sweep.tune import FINAL_REPEATS, FINALISTS, best_of, candidates, search
from forktask.experiments.sweep.tuned import keep_tuned, read_tuned

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
    times["c", 1] = dict.fromkeys(("auto", "x", "y", "z"))  # nothing of it runs
    calls, groups = [], []

    def measure(contestant, granularities, repetition):
        calls.extend(contestant[0] for _ in granularities)
        # The host moves the CPUs in the last generation but one, in which the slowest cut is the fastest.
        moved = repetition == FINAL_REPEATS - 1
        rounds = Rounds([], [], [[1.0]], [3e-7 if moved else 1e-7], [1.0], [0], [0])
        seconds = {g: 1 / t if moved else t for g in granularities if (t := times[contestant][g])}
        turns = {(contestant, g): Turns([0], [t], [2 * t], 1, 2) for g, t in seconds.items()}
        return [GroupTurns(repetition, contestant, rounds, turns)]

    for job in search(list(times), ["auto", "x", "y", "z"], measure, groups):
        groups.extend(job.measure())
    rows = best_of(groups)
    assert [(row["model"], row["granularity"]) for row in rows] == [("a", "y"), ("b", "auto")]
    assert [(row["step_time_s"], row["auto_time_s"]) for row in rows] == [pytest.approx((1, 3)), pytest.approx((1, 1))]
    assert calls.count("c") == 4
    assert calls.count("a") == 4 + FINAL_REPEATS * FINALISTS and calls.count("b") <= calls.count("a")


def test_what_is_found_is_used_by_compare(tmp_path, capsys):
    """Check the command from end to end, the file, and the points that a sweep with it has."""
    out = tmp_path / "tuned.json"
    command = ["tune", "--batch", "16", "--models", "serial", "--threads", "1", "--budget", "2", "--seconds", "0.01"]
    assert main([*command, "--file", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    row = found["rows"][0]
    row["granularity"] = found["candidates"][1]
    out.write_text(json.dumps({"format_version": 1, "problems": [found]}))
    assert list(read_tuned(out).values()) == [row["granularity"]]
    grid = Grid(batch=(16,), models=("serial", "taskiter"), threads=(1,))
    points = Configuration(grid=grid, measure=Measure(tuned=str(out))).points()
    cuts = sorted((point.model, point.plan["granularity"]) for point in points)
    assert cuts == sorted([("serial", "auto"), ("serial", row["granularity"]), ("taskiter", "auto")])


def problem(*rows, **options):
    """What a search leaves: rows of (model, threads, granularity)."""
    named = [dict(zip(("model", "threads", "granularity"), row, strict=True)) for row in rows]
    return {"plan": {"network": NETWORK, **OPTIONS.with_changes(**options).as_dict()}, "candidates": [], "rows": named}


def test_rows_of_other_models_stay(tmp_path):
    """Check that a search replaces the rows of its own models, threads and options only."""
    out = tmp_path / "tuned.json"
    keep_tuned(out, problem(("serial", 1, "rows=1"), ("taskiter", 2, "rows=2")))
    keep_tuned(out, problem(("taskiter", 2, "rows=4"), ("taskiter", 4, "rows=8")))
    keep_tuned(out, problem(("taskiter", 2, "rows=16"), batch=8))
    assert sorted((model, threads, cut) for (_, model, threads), cut in read_tuned(out).items()) == [
        ("serial", 1, "rows=1"),
        ("taskiter", 2, "rows=16"),
        ("taskiter", 2, "rows=4"),
        ("taskiter", 4, "rows=8"),
    ]


def test_searches_side_by_side_keep_each_others_rows(tmp_path):
    """Check that none of the rows that several processes keep at once is lost."""
    out = tmp_path / "tuned.json"
    program = """if True:
        import sys
        from forktask.experiments.sweep.tuned import keep_tuned
        from forktask.cython_src.lowering.options import PlanOptions
        plan = {"network": "cifar10_cnn", **PlanOptions(batch=32).as_dict()}
        for threads in range(1, 11):
            row = {"model": sys.argv[2], "threads": threads, "granularity": "rows=1"}
            keep_tuned(sys.argv[1], {"plan": plan, "candidates": [], "rows": [row]})
    """
    processes = [subprocess.Popen([sys.executable, "-P", "-c", program, out, name]) for name in ("serial", "taskiter")]
    assert [process.wait(60) for process in processes] == [0, 0]
    assert len(read_tuned(out)) == 20


def test_a_search_that_found_nothing_changes_nothing(tmp_path, capsys, monkeypatch):
    """Check the file, the exit code and what is said where every candidate failed."""
    out = tmp_path / "tuned.json"
    keep_tuned(out, problem(("serial", 1, "rows=1")))
    before = out.read_bytes()
    failed = {"failure": "timeout", "message": "took longer"}

    def measure_generation(generation):
        names = [c.name for c in generation.contestants]
        return [MeasuredGroup(Rounds(names, [], [], [], [], [], []), dict.fromkeys(names, failed))]

    monkeypatch.setattr(tuning, "measure_generation", measure_generation)
    command = ["tune", "--batch", "32", "--models", "serial", "--threads", "1", "--budget", "2", "--file", str(out)]
    assert main(command) == 1
    assert "stays as it was" in capsys.readouterr().out and out.read_bytes() == before


def test_a_file_that_cannot_be_written_is_found_before_measuring(tmp_path, capsys, monkeypatch):
    """Check a folder that does not exist, and a folder in the place of the file."""
    monkeypatch.setattr(tuning, "measure_generation", lambda *arguments: pytest.fail("it was measured"))
    for out in (tmp_path / "none" / "tuned.json", tmp_path):
        assert main(["tune", "--models", "serial", "--threads", "1", "--budget", "2", "--file", str(out)]) == 2
        assert str(out) in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
