"""A survey: what it leaves, what it lacks when it is interrupted or short of time, how it goes on, several joined."""

import errno
import json
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
from experiments.synthetic_results import synthetic_rows, write_rows

from forktask.cython_src.errors import UsageError
from forktask.experiments.commands.main import main
from forktask.experiments.results.files import locked_file
from forktask.experiments.results.folder import SAMPLES, read_results
from forktask.experiments.survey import handovers, page, stages
from forktask.experiments.survey.stages import Stage

MODELS = ["serial", "forkjoin:region=persistent", "taskiter"]
SMALL = (
    Stage("lenet5", "A small network", 0.9, {"network": ("lenet5",), "batch": (4,)}),
    Stage("gpu", "A GPU", 0.1, {"network": ("lenet5",), "batch": (4,), "conv": ("direct",)}),
)


@pytest.fixture
def small(monkeypatch):
    """Surveys of one small network under three models."""
    for module in (stages, page):
        monkeypatch.setattr(module, "STAGES", SMALL)
    monkeypatch.setattr(stages, "surveyed_models", lambda: MODELS)
    monkeypatch.setattr(stages, "core_counts", lambda: (1, 2))
    measure = stages.measure_comparison
    once = lambda configuration, *rest: measure(configuration.with_measure(repeats=1), *rest)  # noqa: E731
    monkeypatch.setattr(stages, "measure_comparison", once)


def test_a_survey_leaves_a_page_and_says_how_far_the_simulator_is_off(small, tmp_path, capsys):
    """Check page, JSON and text: the machine, hand-overs, the answers of each network, the simulator's error."""
    assert main(["survey", "--budget", "1h", "--out", str(tmp_path / "survey")]) == 0
    result = json.loads((tmp_path / "survey" / "survey.json").read_text())
    text, html = capsys.readouterr().out, (tmp_path / "survey" / "report.html").read_text()
    assert "Simulated step times differ from measured ones by" in text and "on 2 threads" in text
    assert {row["threads"] for row in result["simulator"]} == {2}
    assert 'href="lenet5/report.html"' in html and result["title"] in html
    assert len(handovers.read_handovers(tmp_path / "survey")) == 1 and result["limits"][0]["threads"] == 1
    assert (tmp_path / "survey" / "lenet5" / SAMPLES).exists()
    assert main(["report", str(tmp_path / "survey")]) == 0 and capsys.readouterr().out == text
    assert main(["report", str(tmp_path / "survey"), "--json"]) == 0 and json.loads(capsys.readouterr().out) == result
    assert main(["report", str(tmp_path / "survey"), "--format", "png"]) == 2
    assert "--format is for a sweep or a study" in capsys.readouterr().err


def test_what_does_not_fit_into_the_time_is_left_out_and_named(small, tmp_path, capsys):
    """Check that a short survey says what it lacks, and that the machine alone makes a page."""
    assert main(["survey", "--budget", "1s", "--out", str(tmp_path / "survey")]) == 0
    captured = capsys.readouterr()
    assert "lenet5: no time left" in captured.err
    assert "Not measured yet: lenet5. The same command continues in this folder." in captured.out


@pytest.mark.parametrize("begun", [False, True])
def test_an_interrupted_survey_has_a_page_of_what_is_there(begun, small, tmp_path, monkeypatch, capsys):
    """Check that Ctrl-C during a network leaves the machine's part on a page, also before its first sample."""

    def interrupted(configuration, out, command):
        if begun:
            write_rows(Path(out), [row for row in synthetic_rows() if row["kind"] != "sample"])
        raise KeyboardInterrupt

    monkeypatch.setattr(stages, "measure_comparison", interrupted)
    assert main(["survey", "--budget", "1h", "--out", str(tmp_path / "survey")]) == 130
    assert "Not measured yet: lenet5" in (tmp_path / "survey" / "report.html").read_text()


def test_surveys_of_two_machines_are_joined(small, monkeypatch, tmp_path, capsys):
    """Check copies, table, page and JSON of two machines, one of them another machine's whose stages differ from ours;
    that each survey is there once, whatever is joined again; and what is refused in a sentence."""
    here, there, joined = (str(tmp_path / name) for name in ("here", "there", "joined"))
    assert main(["survey", "--budget", "1h", "--out", here]) == 0
    shutil.copytree(here, there)
    for name in ("info.json", "survey.json"):
        result = json.loads((tmp_path / "there" / name).read_text())
        result["environment"]["node"] = {"host": "other", "scheduler": "", "boot_id": "0"}
        result["environment"]["cpu"]["model"] = "Other (R) CPU"
        result["environment"]["topology"] |= {"cores": 64, "sockets": 2, "nodes": 4}
        result["machine"]["peak_flops_per_s_1thread"] = 77e9
        (tmp_path / "there" / name).write_text(json.dumps({**result, "stages": ["lenet5", "gpu"]}))
    capsys.readouterr()
    assert main(["merge", here, there, here, "--out", joined]) == 0
    text, html = capsys.readouterr().out, (tmp_path / "joined" / "report.html").read_text()
    assert all(part in text for part in ("Other (R) CPU", "64, 2, 4", " 77 "))
    assert 'href="other_r_cpu/report.html"' in html
    rows = json.loads((tmp_path / "joined" / "surveys.json").read_text())
    assert len(rows) == 2 and all((tmp_path / "joined" / row["folder"] / "lenet5" / SAMPLES).exists() for row in rows)
    assert main(["merge", joined, there, "--out", joined, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == rows
    assert main(["report", joined]) == 0 and capsys.readouterr().out == text
    monkeypatch.setattr(stages, "stages", lambda: SMALL[:1])  # of the machine that writes the page
    assert main(["report", str(tmp_path / "joined" / "other_r_cpu")]) == 0
    assert "Not measured yet: gpu." in capsys.readouterr().out
    (tmp_path / "empty").mkdir()
    for arguments, said in (
        ([here, str(tmp_path / "empty"), "--out", joined], "must all be surveys or all results folders"),
        ([here, "--out", there], "--out must be a folder for several surveys"),
        ([here, "--out", joined, "--nodes", "pooled"], "--nodes is for results folders"),
        ([here, "--out", str(tmp_path)], "the output folder must be empty or hold results"),
        ([here, "--out", f"{here}/inner"], "which is a survey or in one"),
    ):
        assert main(["merge", *arguments]) == 2
        assert said in capsys.readouterr().err
    for cause in (
        OSError(errno.ENOSPC, "No space"),
        shutil.Error([("a", "b", "[Errno 28] No space: 'a' -> 'b'")] * 99),
    ):
        monkeypatch.setattr(shutil, "copytree", Mock(side_effect=cause))
        assert main(["merge", here, there, "--out", str(tmp_path / "full")]) == 2
        assert "(No space); choose another folder" in (text := capsys.readouterr().err) and text.count("\n") == 1
    (tmp_path / "there" / "handovers.csv").write_text("cpu,other\n0,1\n")
    assert main(["merge", here, there, "--out", str(tmp_path / "new")]) == 2
    assert "must be a whole table of hand-overs, got: no 'seconds'" in capsys.readouterr().err
    with locked_file(there):
        assert main(["survey", "--out", there]) == 2
    assert "only one process may use" in capsys.readouterr().err
    (tmp_path / "there" / "survey.json").write_text("{}")
    assert main(["merge", here, there, "--out", str(tmp_path / "new")]) == 2
    assert "write it again with forktask report" in capsys.readouterr().err and not (tmp_path / "new").exists()


@pytest.mark.parametrize("content", ["{", '{"created": "2026-11-27", "machine": {}}', "[]"])
def test_a_damaged_or_older_description_is_refused_in_a_sentence(content, tmp_path, capsys):
    """Check a half-written file, one without the stages that were planned, and one that is no object."""
    (tmp_path / "info.json").write_text(content)
    assert main(["report", str(tmp_path)]) == 2
    text = capsys.readouterr().err
    assert "must be a whole description of a machine" in text and "forktask survey again" in text


def test_folders_that_hold_no_survey_are_refused(tmp_path):
    """Check the sentence about a folder with other files."""
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="the output folder must be empty or hold results of forktask"):
        stages.take_survey(tmp_path, 1.0, "")


def test_a_stage_fits_its_first_generation_into_the_budget(monkeypatch, tmp_path):
    """Check that little time leaves out joblib first, then numbers of threads and the models of others, and the stage
    where none would be left for all; and that a stage that goes on keeps what it had."""
    monkeypatch.setattr(stages, "core_counts", lambda: (1, 2))
    monkeypatch.setattr(stages, "surveyed_models", lambda: [*stages.DEFAULT_MODELS, "openmp_tasks"])
    stage = Stage("gpt2_small", "", 1.0, {"network": ("gpt2_small",), "batch": (4,)})
    result = []
    for budget_s in (1000.0, 65.0, 45.0, 1.0):
        grid = stages.fitting(stage, budget_s, 1000.0, tmp_path).grid
        result.append((tuple(grid.threads), *(name in map(str, grid.models) for name in ("joblib", "openmp_tasks"))))
    assert result == [((1, 2), True, True), ((1, 2), False, True), ((2,), False, True), ((2,), False, False)]
    assert stages.fitting(stage, 1.0, 2.0, tmp_path) is None
    write_rows(tmp_path, synthetic_rows())
    grid, config = stages.fitting(stage, 1000.0, 1000.0, tmp_path).grid, read_results(tmp_path).run.config
    assert (list(map(str, grid.models)), list(grid.threads)) == (config["models"], config["threads"])
