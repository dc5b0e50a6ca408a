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
    assert all(len(entry["values"]) == 14 for entry in entries)


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
    """Check the rows and call paths of one model and the serial run, its name in LaTeX, and intervals there of times
    and ratios."""
    words = ["--csv", "--extra-p", "--latex", "--models", "taskiter", "--names", "Closed graph"]
    assert main(["report", str(folder), *words]) == 0
    table, extra_p, latex = (Path(path).read_text() for path in capsys.readouterr().out.split("\n")[:3])
    assert {row["model"] for row in csv.DictReader(table.splitlines())} == {"serial", "taskiter"}
    assert list(json.loads(extra_p)["measurements"]) == ["taskiter", "serial"]
    rows = [line for line in latex.splitlines() if line.startswith("Closed graph")]
    assert len(rows) == 4 and not re.search("^(tasks|taskiter|forkjoin)", latex, re.MULTILINE)
    assert all(re.search(r"& [\d.]+ (ms|s) \[[\d.]+, [\d.]+\] & [\d.]+ & \[[\d.]+, [\d.]+\]", row) for row in rows)


def test_names_without_models_are_refused(folder, capsys):
    """Check the sentence of names that belong to no model."""
    assert main(["report", str(folder), "--latex", "--names", "a"]) == 2
    assert "--names must name each of --models, got 1 for 0 models" in capsys.readouterr().err
