"""Exports of a results folder, read back as the tools would read them."""

import csv
import json
import re
from pathlib import Path

import pytest
from experiments.synthetic_results import synthetic_rows, write_rows

from forktask.experiments.analysis.load import load
from forktask.experiments.commands.main import main
from forktask.experiments.report.exports import export_folder, sample_frame


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    rows = synthetic_rows(threads=(1, 2), batches=(16, 64), repeats=7)
    return write_rows(tmp_path_factory.mktemp("results"), rows)


def test_every_sample_is_a_row_of_the_csv(folder, capsys):
    """Check the number of rows, the swept option and the times of the CSV."""
    assert main(["report", str(folder), "--csv"]) == 0
    path = capsys.readouterr().out.strip()
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    sweep = load(folder)
    assert len(rows) == len(sweep.samples) == len(sample_frame(sweep))
    assert {row["batch"] for row in rows} == {"16", "64"}
    total = sum(float(row["step_time_s"]) for row in rows)
    assert total == pytest.approx(sweep.samples["step_time_s"].sum(), rel=1e-6)


def test_dashboards_get_times_and_intervals(folder):
    """Check names, units and the order of ends of what Bencher and github-action-benchmark read."""
    bmf, action = (json.loads(path.read_text()) for path in export_folder(folder, ["bmf", "github-action-benchmark"]))
    assert [row["name"] for row in action] == list(bmf) and len(bmf) == len({*bmf}) > 4
    (name,) = (name for name in bmf if name.startswith("taskiter, 2 threads") and "batch 16" in name)
    latency = bmf[name]["latency"]
    assert latency["lower_value"] < latency["value"] < latency["upper_value"]
    (row,) = (row for row in action if row["name"] == name)
    assert row["unit"] == "ms" and row["value"] == pytest.approx(latency["value"] / 1e6)
    assert re.fullmatch(r"\[[\d.]+, [\d.]+\]", row["range"])


def test_exports_have_the_models_that_were_asked_for(folder, capsys):
    """Check the rows and names of one model and the serial run."""
    words = ["--csv", "--github-action-benchmark", "--models", "taskiter", "--names", "Closed graph"]
    assert main(["report", str(folder), *words]) == 0
    table, action = (Path(path).read_text() for path in capsys.readouterr().out.split("\n")[:2])
    assert {row["model"] for row in csv.DictReader(table.splitlines())} == {"serial", "taskiter"}
    assert any(row["name"].startswith("Closed graph, 2 threads") for row in json.loads(action))
