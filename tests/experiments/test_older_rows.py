"""Results folders of earlier versions are read and reported.

`stored/samples_version_1.jsonl.gz` holds rows that `forktask run` of commit 5cf0455 wrote: LeNet-5 with two values each
of `weight_gradients` and `fusion`, without what names the machine.
"""

import contextlib
import csv
import gzip
from pathlib import Path

import pytest

from forktask.experiments.analysis.accounting import accounting_table, busy_time, inflation
from forktask.experiments.analysis.load import load, study_from_rows
from forktask.experiments.analysis.names import option_defaults
from forktask.experiments.commands.main import main
from forktask.experiments.sampling.older_rows import present_rows
from forktask.experiments.sampling.results import read_results

STORED = Path(__file__).parent / "stored" / "samples_version_1.jsonl.gz"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A results folder as version 1 left it, reported anew, with what the command printed."""
    path = tmp_path_factory.mktemp("version_1")
    (path / "samples.jsonl").write_bytes(gzip.decompress(STORED.read_bytes()))
    with open(path / "printed.txt", "w") as printed, contextlib.redirect_stdout(printed):
        assert main(["report", str(path)]) == 0
    return path


def test_the_report_names_what_was_swept(folder):
    """Check tables, files and columns: each plan under its options, in today's spelling."""
    text = (folder / "printed.txt").read_text()
    assert "Along weight gradients: time with one value over that with another" in text
    assert "Along fusion: time with one value over that with another" in text
    assert (folder / "report.html").exists() and (folder / "figures" / "options.pdf").exists()
    with open(folder / "summary.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {(row["weight_gradients"], row["fusion"]) for row in rows} == {
        ("partial", "all"),
        ("chain", "all"),
        ("partial", "none"),
    }
    assert {row["model"] for row in rows} == {"serial", "forkjoin", "taskiter:unroll=2"}


def test_records_have_every_option(folder):
    """Check that options which version 1 did not have take their defaults, so that plans stay comparable."""
    study = load(folder)
    assert study.axes == ("weight_gradients", "fusion")
    for record in study.records.values():
        assert set(option_defaults()) <= set(record)
        assert record["dropout_seed"] == 0 and record["network"] == "lenet5"


def test_profiles_tell_busy_parts_but_no_floors(folder):
    """Check what follows from profiles of version 1, and that the table that needs more is left out with a warning."""
    study = load(folder)
    profiles = [row for row in read_results(folder).rows if row["kind"] == "profile"]
    assert len(profiles) == 9
    for row in profiles:
        assert row["pass_time_s"] == row["step_time_s"]  # plans of one step
        point = (row["plan_id"], row["model"], row["threads"])
        assert busy_time(study, point).value > 0 and inflation(study, point).value > 0
    assert not len(accounting_table(study))
    assert any("without the floors of their own runs" in text for text in study.warnings)


def test_a_folder_of_version_1_is_not_continued(folder, capsys):
    """Check the sentence: ids of configurations were others."""
    assert main(["status", str(folder)]) == 2
    assert "begun by an older forktask (schema version 1" in capsys.readouterr().err
    rows = [row for row in read_results(folder).rows if row["kind"] != "sample" or row["repetition"] == 0]
    assert any("measure it again in another folder" in text for text in study_from_rows(rows).warnings)


def test_former_names():
    """Check the dropout's seed, and the time of a pass through an unrolled plan."""
    plan = {"kind": "plan", "plan_id": "p", "iteration_stride": 4, "options": {"batch": 8, "seed": 3}}
    profile = {"kind": "profile", "plan_id": "p", "step_time_s": 0.5}
    plan, profile = present_rows([plan, profile])
    assert plan["options"] == {"batch": 8, "dropout_seed": 3}
    assert profile["pass_time_s"] == 2.0
