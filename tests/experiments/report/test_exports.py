"""Exports of a results folder, read back as the tools would read them."""

import csv

import pytest
from experiments.synthetic_results import synthetic_rows, trace_row, write_rows

from forktask.experiments.analysis.load import load
from forktask.experiments.commands.main import main
from forktask.experiments.report.exports import sample_frame


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    rows = synthetic_rows(threads=(1, 2), batches=(16, 64), repeats=5)
    plan_id = next(row["plan_id"] for row in rows if row["kind"] == "plan")
    return write_rows(tmp_path_factory.mktemp("results"), [*rows, trace_row(plan_id)])


def test_every_sample_is_a_row_of_the_csv(folder, capsys):
    """Check the number of rows, the swept option and the times of the CSV."""
    assert main(["report", str(folder), "--csv"]) == 0
    path = capsys.readouterr().out.strip()
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    study = load(folder)
    assert len(rows) == len(study.samples) == len(sample_frame(study))
    assert {row["batch"] for row in rows} == {"16", "64"}
    total = sum(float(row["step_time_s"]) for row in rows)
    assert total == pytest.approx(study.samples["step_time_s"].sum(), rel=1e-6)
