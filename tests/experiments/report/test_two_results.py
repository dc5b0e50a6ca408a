"""Two folders side by side: which plans meet, ratios, machines and the figure."""

import json

import pytest
from experiments.synthetic_results import synthetic_rows, write_rows

from forktask.cython_src.errors import UsageError
from forktask.experiments.commands.main import main
from forktask.experiments.report.two_results import compare_folders, format_comparison


def test_two_folders_meet_in_the_plan_that_they_share(tmp_path, capsys):
    """Check the plan chosen, ratios of times, both machines, and points that one folder alone has."""
    first = write_rows(tmp_path / "a", synthetic_rows(threads=(1, 2), granularities=(16,), noise=0.0))
    rows = synthetic_rows(threads=(1, 4), granularities=(8, 16), slowdowns=(2.0,), noise=0.0)
    second = write_rows(tmp_path / "b", rows)
    out = tmp_path / "figure.svg"
    assert main(["report", str(first), "--against", str(second), "--json", "--file", str(out)]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["differing"] == []
    of = {(row["model"], row["threads"]): row for row in result["rows"]}
    assert of["serial", 1]["ratio"] == pytest.approx(2.0, rel=0.05)
    assert of["taskiter", 2]["second_s"] is None and of["taskiter", 4]["first_s"] is None
    assert all("Example CPU 9000" in text and "235 GFLOP/s" in text for text in result["machines"])
    assert out.read_text().startswith("<?xml") and "not interleaved" in out.with_suffix(".txt").read_text()
    assert all(row["usable"] for row in result["rows"])
    assert main(["report", str(first), "--against", str(second), "--file", str(out)]) == 0
    assert "no interval" in capsys.readouterr().out
    for part in (["--against", str(second)], ["--figure", "speedup"]):
        assert main(["report", str(first), *part, "--file", str(tmp_path / "no" / "x.svg")]) == 2
        assert "--file must be in a folder that is there" in capsys.readouterr().err
    assert not (tmp_path / "no").exists()


def test_what_one_folder_cannot_use_neither_can_both(tmp_path):
    """Check the column of a point that is too fast for two threads in the second folder."""
    rows = synthetic_rows(models=("serial", "forkjoin", "taskiter"), threads=(1, 2), repeats=2)
    first = write_rows(tmp_path / "a", rows)
    for row in rows:
        if row["kind"] == "sample" and (row["model"], row["threads"]) == ("taskiter", 2):
            factor = 0.3 + 0.5 * row["repetition"]  # as wide an interval as disturbed samples have
            row |= {name: [factor * time for time in row[name]] for name in ("short_times_s", "long_times_s")}
            row["step_time_s"] *= factor
    second = write_rows(tmp_path / "b", rows)
    result = compare_folders(first, second, str(tmp_path / "figure.svg"))
    assert [(r["model"], r["threads"]) for r in result["rows"] if not r["usable"]] == [("taskiter", 2)]
    lines = [line for line in format_comparison(result).splitlines() if line.startswith("taskiter")]
    assert [line.split()[-1] == "no" for line in lines] == [False, True]


def test_other_work_is_refused(tmp_path):
    """Check that folders of different batches are not compared."""
    first = write_rows(tmp_path / "a", synthetic_rows(batches=(16,)))
    second = write_rows(tmp_path / "b", synthetic_rows(batches=(64,)))
    with pytest.raises(UsageError, match="same network, batch and phase"):
        compare_folders(first, second)
