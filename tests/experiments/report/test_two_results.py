"""Two folders side by side: which plans meet, ratios, machines and the figure."""

import json

import pytest
from experiments.synthetic_results import synthetic_rows, write_rows

from forktask.cython_src.errors import UsageError
from forktask.experiments.commands.main import main
from forktask.experiments.report.two_results import compare_folders


def test_two_folders_meet_in_the_plan_that_they_share(tmp_path, capsys):
    """Check the plan chosen, ratios of times, both machines, and points that one folder alone has."""
    first = write_rows(tmp_path / "a", synthetic_rows(threads=(1, 2), granularities=(16,), noise=0.0))
    rows = synthetic_rows(threads=(1, 4), granularities=(8, 16), slowdowns=(2.0,), noise=0.0)
    second = write_rows(tmp_path / "b", rows)
    out = tmp_path / "figure.svg"
    assert main(["report", str(first), "--against", str(second), "--json", "--file", str(out)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["differing"] == []
    of = {(row["model"], row["threads"]): row for row in found["rows"]}
    assert of["serial", 1]["ratio"] == pytest.approx(2.0, rel=0.05)
    assert of["taskiter", 2]["second_s"] is None and of["taskiter", 4]["first_s"] is None
    assert all("Example CPU 9000" in text and "235 GFLOP/s" in text for text in found["machines"])
    assert out.read_text().startswith("<?xml")
    assert main(["report", str(first), "--against", str(second), "--file", str(out)]) == 0
    assert "no interval" in capsys.readouterr().out


def test_other_work_is_refused(tmp_path):
    """Check that folders of different batches are not compared."""
    first = write_rows(tmp_path / "a", synthetic_rows(batches=(16,)))
    second = write_rows(tmp_path / "b", synthetic_rows(batches=(64,)))
    with pytest.raises(UsageError, match="same network, batch and phase"):
        compare_folders(first, second)
