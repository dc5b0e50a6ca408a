"""Exports of a results folder, read back as the tools would read them."""

import csv
import json

import pytest
from experiments.synthetic_results import synthetic_rows, trace_row, write_rows

from forktask.experiments.analysis.load import load
from forktask.experiments.commands.main import main
from forktask.experiments.report.exports import export_folder, sample_frame


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
    sweep = load(folder)
    assert len(rows) == len(sweep.samples) == len(sample_frame(sweep))
    assert {row["batch"] for row in rows} == {"16", "64"}
    total = sum(float(row["step_time_s"]) for row in rows)
    assert total == pytest.approx(sweep.samples["step_time_s"].sum(), rel=1e-6)


@pytest.mark.pyarrow
def test_parquet_is_the_csv(folder):
    """Check that Parquet, read by pyarrow itself, holds the rows, columns and numbers of the samples."""
    import pyarrow.parquet

    (path,) = export_folder(folder, ["parquet"])
    table = pyarrow.parquet.read_table(path)
    frame = sample_frame(load(folder))
    assert table.num_rows == len(frame) and table.column_names == list(frame.columns)
    assert table["step_time_s"].to_pylist() == frame["step_time_s"].tolist()
    assert table["model"].to_pylist() == frame["model"].tolist()
    assert pyarrow.types.is_integer(table.schema.field("threads").type)


def test_extra_p_has_a_point_for_each_number_of_threads_and_batch(folder):
    """Check parameters, call paths, points and values."""
    (path,) = export_folder(folder, ["extra-p"])
    result = json.loads(path.read_text())
    assert result["parameters"] == ["threads", "batch"]
    entries = result["measurements"]["taskiter"]["time"]
    assert [entry["point"] for entry in entries] == [[1, 16], [1, 64], [2, 16], [2, 64]]
    assert all(len(entry["values"]) == 10 for entry in entries)


def test_talp_factors_multiply(folder):
    """Check load balance and scheduling of two workers that are busy for 0.6 of the time."""
    (path,) = export_folder(folder, ["talp"])
    region = next(v for k, v in json.loads(path.read_text())["popMetrics"].items() if "taskiter on 2" in k)
    assert region["ompLoadBalance"] == pytest.approx(0.75)
    assert region["ompSchedulingEfficiency"] == pytest.approx(0.8)
    assert region["parallelEfficiency"] == pytest.approx(region["usefulTime"] / region["elapsedTime"] / 2, rel=1e-6)
