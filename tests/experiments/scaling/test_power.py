"""Measured and resampled error rates, on a machine that takes no time."""

import json
import random
import re
from pathlib import Path

import pytest
from experiments.scaling.fakes import FakeMachine

from forktask.experiments.analysis.statistics import binomial_interval
from forktask.experiments.commands.main import main
from forktask.experiments.scaling import power

COMMAND = ["scaling-power", "--threads", "1", "--tests", "6", "--slowed", "3"]


def test_tests_are_measured_in_turns_and_gone_on_with(tmp_path, monkeypatch, capsys):
    """Check that both kinds take turns, that rows are appended, and that the same command goes on."""
    machine = FakeMachine({"taskiter": 1.0}, noise=0.02).install(monkeypatch)
    out = str(tmp_path / "power.jsonl")
    assert main([*COMMAND, "--file", out, "--seconds", "0"]) == 0
    assert not machine.samples
    assert main([*COMMAND, "--file", out, "--tests", "4", "--slowed", "2"]) == 0
    assert main([*COMMAND, "--file", out]) == 0
    rows = [json.loads(line) for line in Path(out).read_text().splitlines()]
    assert [row["slowdown"] for row in rows].count(0) == 6 and len(rows) == 9
    assert {row["slowdown"] for row in rows[:3]} == {0, 0.1}
    assert [row["verdict"] for row in rows if row["slowdown"]] == ["fail"] * 3
    text = capsys.readouterr().out
    assert re.search(r"A/A +6 +0 +0.0%  \[0.0%, 45.9%\] +6 +0 ", text)
    assert re.search(r"slowed by 10% +3 +3 +100.0%  \[29.2%, 100.0%\] +0 +0 ", text)
    assert re.search(r"resampled .*\nA/A +1 +0\.\d+%|A/A +1.05 +0.00% +100.0% +0.0%", text)


def test_several_slowdowns_take_turns(tmp_path, monkeypatch, capsys):
    """Check that each slowdown has tests of its own, counted apart, and that gross ones fail."""
    FakeMachine({"taskiter": 1.0}, noise=0.02).install(monkeypatch)
    out = str(tmp_path / "power.jsonl")
    command = [*COMMAND, "--file", out, "--tests", "2", "--slowed", "1", "--slowdown", "0.5,2,999"]
    assert main(command) == 0
    text = capsys.readouterr().out
    for what in ("slowed by 50%", "3 times as long", "1000 times as long"):
        assert re.search(rf"{what} +1 +1 +100.0% ", text), text
    for wrong in ("0", "-1", "0.5,nan", "1e7", ""):
        assert main([*COMMAND, "--file", out, f"--slowdown={wrong}"]) == 2
        assert "slowdown" in capsys.readouterr().err
    assert len(Path(out).read_text().splitlines()) == 5


def test_resampled_rates():
    """Check that resampling finds no alarm in A/A rounds, and the slowdown, and rarely fails at the limit itself."""
    rng = random.Random(1)
    rounds = [rng.gauss(0, 0.03) for _ in range(200)]
    assert power.resampled(rounds, 0.0, 1.05, 40)["fail"] == 0
    assert power.resampled(rounds, 0.1, 1.05, 40)["fail"] > 0.95
    assert power.resampled(rounds, 0.0, 1.0, 40)["fail"] <= 0.006


def test_simulated_rates(capsys):
    """Check that the simulation prints a row for each noise and ratio, and that known ones come out right."""
    assert main(["scaling-power", "--simulate", "100", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == 3 * len(power.NOISES)
    assert [rows[0][k] for k in ("ratio", "fail", "pass")] == [1.0, 0.0, 1.0]
    assert rows[2]["ratio"] == pytest.approx(1.05**2) and rows[2]["fail"] == 1.0
    assert all(row["fail"] + row["pass"] + row["inconclusive"] == pytest.approx(1) for row in rows)
    assert main(["scaling-power", "--simulate", "0"]) == 2


@pytest.mark.parametrize(
    "count, total, low, high",  # values of Clopper and Pearson's tables
    [(0, 100, 0.0, 0.0362), (1, 20, 0.0013, 0.2487), (60, 60, 0.9404, 1.0), (5, 10, 0.1871, 0.8129), (0, 0, 0.0, 1.0)],
)
def test_binomial_interval(count, total, low, high):
    """Check the exact interval of a rate against known values."""
    assert binomial_interval(count, total) == pytest.approx((low, high), abs=1e-4)


@pytest.mark.parametrize("text", ["{}\n", "no row\n", '{"kind": "sample"}\n'])
def test_other_files_are_refused(tmp_path, capsys, text):
    """Check that a file of something else is not appended to."""
    path = tmp_path / "x.jsonl"
    path.write_text(text)
    assert main([*COMMAND, "--file", str(path)]) == 2
    assert "must be a new file or one of this command" in capsys.readouterr().err
    assert path.read_text() == text
