"""Training studies: their files, runs, resumption, tables and figures."""

import json
import sys

import msgspec
import numpy as np
import pytest
from experiments.synthetic_results import typed

from forktask.cython_src.binding.bind import bind
from forktask.cython_src.lowering.lower import initialise, lower
from forktask.cython_src.networks.registry import get_network
from forktask.experiments.commands.main import main
from forktask.experiments.machine.environment import version_text
from forktask.experiments.report.figures.style import CROSSED
from forktask.experiments.results.folder import SAMPLES
from forktask.experiments.results.grids import given_or_shipped, kind_of, shipped
from forktask.experiments.results.training_rows import EpochRow, Stage, Summary, TrainedRow, TrainingRow, epoch_times
from forktask.experiments.studies import figures, loaders, running, tables
from forktask.experiments.studies.configuration import read_study
from forktask.experiments.studies.report import drawn_figure
from forktask.experiments.studies.running import StudyResults
from forktask.experiments.training.safetensors import read_safetensors

(STUDY_RUN,) = typed([{"kind": "run", "holds": "study"}])
FILE = """\
# Two stages. How to read it: down is better.
title = "A small study"

[train]
data = "digits"
network = "lenet5"
batch = [32, 2048]
model = ["serial", "taskiter"]
threads = 1
epochs = 1
schedule = "cosine"

[study]
accuracy = [0.05, 1.0]

[[stages]]
frozen = "conv1"

[[stages]]
learning_rate = 0.001
epochs = 2
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(FILE)
    return path


def test_a_study_trains_reports_and_goes_on(file, tmp_path, capsys, monkeypatch):
    """Check results, stages, tables, figures, what did not run, and that a second call trains nothing that is done."""
    out = tmp_path / "out"
    train, trained = running._train, []

    def interrupted(run, folder, *arguments):
        if len(trained) == 1:
            raise KeyboardInterrupt
        trained.append(run.run_id)
        return train(run, folder, *arguments)

    monkeypatch.setattr(running, "_train", interrupted)
    monkeypatch.setattr(sys, "argv", ["forktask", "run", str(file)])
    assert main(["run", str(file), "--out", str(out)]) == 130
    assert f"forktask run {file} --out {out}" in capsys.readouterr().err
    before = (out / SAMPLES).read_text()
    assert main(["status", str(out)]) == 2 and f"`forktask report {out}`" in capsys.readouterr().err
    monkeypatch.setattr(running, "_train", train)
    assert main(["run", str(file), "--out", str(out)]) == 1  # a batch of 2048 images is refused
    text = capsys.readouterr().out
    assert (out / SAMPLES).read_text().startswith(before) and text.count("seed 0: test") == 1
    assert "bit-identical parameters (1 comparison of 2 runs" in text
    assert "Data: UCI" in text and "Pretrained" not in text
    assert "--batch must not exceed the 1258 training images" in text and "not reached" in text
    report = json.loads((out / "report.json").read_text())
    assert [(row["batch"], row["model"], row["epochs"]) for row in report["runs"]] == [
        (32, "serial", 3),
        (32, "taskiter", 3),
    ]
    for row in report["runs"]:
        assert row["time_to_0.05"] > 0 and row["time_to_1"] is None
        assert row["peak_bytes"] > row["libraries_bytes"] > 1e7
        assert row["loader_bytes"] > 1e6 and row["load_s"] > 0 and row["forward_s"] > 0
        assert row["rest_s"] < row["epoch_time_s"]
        assert row["phases_timed"] == ("wall" if row["model"] == "serial" else "busy")
    assert len(report["failures"]) == 2
    paths = sorted(out.glob("runs/32-serial*/stage-*/parameters*"))
    frozen, tuned = [read_safetensors(path)[0]["conv1.weight"] for path in paths]
    bound = bind(lower(get_network("lenet5"), batch=32))
    initialise(bound, 0)
    assert np.array_equal(frozen, bound.arrays["conv1.weight"]) and not np.array_equal(frozen, tuned)
    page = (out / "report.html").read_text()
    assert "How to read it: down is better" in page and f"forktask {version_text()} · " in page
    assert {path.name for path in (out / "figures").iterdir()} == {
        f"{name}.{end}" for name in ("accuracy_over_time", "by_batch") for end in ("svg", "txt")
    }
    caption, method = (out / "figures" / "accuracy_over_time.txt").read_text().split("\n\n")
    assert len(caption.split()) <= 60 and "Data: " in method and "Machine: " in method
    assert main(["report", str(out), "--format", "pdf"]) == 0 and (out / "figures" / "accuracy_over_time.pdf").exists()
    epochs = (out / "epochs.csv").read_text().splitlines()
    assert len(epochs) == 1 + 2 * 3


def history(errors, step):
    """Epochs of a training."""
    same = dict.fromkeys(("train_loss", "train_error_rate", "valid_loss", "learning_rate", "resident_bytes"), 1.0)
    same["disturbance"] = {"pressure_some_us": 0.2e6 * step}
    return [
        EpochRow(seed=0, epoch=i + 1, time_s=step * (i + 1), error_rate=error, **same) for i, error in enumerate(errors)
    ]


def test_threads_that_wait_for_their_own_process_disturb_no_epoch():
    """Check that waiting counts as far as others had the CPU, within spans longer than the kernel's ticks."""
    waiting = {"pressure_some_us": 1e4, "steal_ticks": 0}

    def usable(others_us):
        epochs = history([0.5] * len(others_us), 0.1)
        counts = [waiting | {"others_us": others} for others in others_us]
        rows = [msgspec.structs.replace(row, disturbance=d) for row, d in zip(epochs, counts, strict=True)]
        return [quiet for *_, quiet in epoch_times(rows)]

    assert all(usable([1e4, -1e4] * 12))  # ticks alone: some are counted early, some late
    assert usable([0.0] * 10 + [1e4] * 10) == [True] * 10 + [False] * 10
    assert usable([1e4] * 10 + [0.0] * 13) == [False] * 10 + [True] * 13  # a rest below a second is no span
    assert not any(usable([None] * 3)) and not any(usable([1e4] * 3))  # a training below a second


def result(digest):
    """What a run of two stages leaves."""
    end = TrainedRow(
        **dict.fromkeys(("seed", "loader_bytes"), 0),
        **dict.fromkeys(("epochs", "time_s", "test_loss"), 1),
        **dict.fromkeys(("phases_timed", "started"), ""),
        phase_s={},
        planned_bytes={},
        samples_per_epoch=100,
        test_accuracy=0.5,
        peak_bytes=9,
        libraries_bytes=5,
        parameters="p",
        parameters_sha256=digest,
    )
    texts = dict.fromkeys(("title", "data", "data_note", "energy", "check"), "")
    accuracy = dict.fromkeys(("test_accuracy_median", "test_accuracy_min", "test_accuracy_max"), 0.5)
    summary = Summary(**texts, **accuracy, config={}, smoke_test=True, seeds=[end])
    histories = history([0.99], 2.0), history([0.97, 0.2], 1.0)
    return TrainingRow(run_id="r", stages=[Stage(summary=summary, history=rows) for rows in histories])


def test_times_of_stages_add_up_and_time_to_accuracy_is_a_median(file):
    """Check joined epochs and times, medians over seeds, seeds that never get there, and differing weights."""
    study = read_study(file)
    runs = [run for run in study.trainings() if run.axes["batch"] == 32]
    results = StudyResults(study, [(runs[0], result("a")), (runs[1], result("a"))], STUDY_RUN)
    epochs = tables.epoch_table(results)
    assert epochs["time_s"].tolist() == [2.0, 3.0, 4.0] * 2
    assert epochs["epoch_time_s"].tolist() == [2.0, 1.0, 1.0] * 2 and epochs["epoch"].tolist() == [1, 2, 3] * 2
    rows = tables.run_table(results)
    assert not epochs["usable"].any() and rows[0]["disturbed_epochs"] == 3 and rows[0]["usable"] is False
    assert (rows[0]["epoch_time_s"], rows[0]["epoch_time_max_s"]) == (1.0, 2.0)  # a median, and no mean
    memory, time = figures.by_batch(results).panels
    assert memory.rows["value"].tolist() == [row["peak_bytes"] / 2**20 for row in rows] and "usable" not in memory.rows
    assert time.rows["value"].tolist() == [1.0, 1.0] and not time.rows["usable"].any()
    text = tables.disturbance_warnings(results, rows)
    assert "(3 epochs)" in text[0] and "do not use" in text[1]
    history = results.done()[0][1].stages[0].history
    history[0] = msgspec.structs.replace(history[0], disturbance={**history[0].disturbance, "throttled_us": 1.5e6})
    text = tables.disturbance_warnings(results, rows)
    assert text[0].startswith("The CPU quota stopped this container for 1.50 s") and text[1].startswith(
        "The CPU quota or"
    )
    assert rows[0]["time_to_0.05"] == 4.0 and np.isnan(rows[0]["time_to_1"])
    assert tables.agreement(results)[0] and not tables.agreement(results)[1]
    results = StudyResults(study, [(runs[0], result("a")), (runs[1], result("b"))], STUDY_RUN)
    assert not tables.agreement(results)[0] and "must leave the same parameters" in tables.agreement(results)[1][0]


RATES = (("runs", "samples_per_s"), ("loaders", "images_per_s"))
LOADING = """\
[train]
data = "thumbnails:24:48x64"
image_size = "32x40"
network = "starpu_cnn"
load = ["memory", "files"]
model = ["serial", "taskiter:unroll=2:slots=2"]
threads = 1
batch = 4
learning_rate = 0.001
epochs = 1

[study]
loaders = true
"""


@pytest.fixture
def loading(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "loading.toml").write_text(LOADING)
    return tmp_path / "loading.toml"


@pytest.mark.parametrize("way", ["loop", "joblib", pytest.param("DataLoader", marks=pytest.mark.torch)])
def test_each_way_of_loading_is_measured(loading, way):
    """Check rate and memory of a way, in this process."""
    job = next(job for job in loaders.jobs(read_study(loading)) if job["way"] == way)
    row = loaders.measure_loader(job)
    assert row["images_per_s"] > 1 and row["workers_bytes"] == 0
    assert row["peak_bytes"] == row["libraries_bytes"] + row["loader_bytes"] >= row["libraries_bytes"] > 10e6


def test_loading_in_the_step_is_set_beside_loading_and_training_alone(loading, tmp_path, capsys, monkeypatch):
    """Check both shares against the rates in the report, and that what was measured is not measured again."""
    assert main(["run", str(loading), "--out", str(tmp_path / "out")]) == 0
    assert "of both" in capsys.readouterr().out
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    alone = {row["way"]: row["images_per_s"] for row in report["loaders"] if row["way"] != "DataLoader"}
    rates = {(row["load"], row["model"]): row["samples_per_s"] for row in report["runs"]}
    assert [*alone] == ["loop", "joblib"] and [row["load"] for row in report["loading"]] == ["files", "files"]
    page = (tmp_path / "out" / "report.html").read_bytes()
    assert main(["report", str(tmp_path / "out")]) == 0
    assert page == (tmp_path / "out" / "report.html").read_bytes() and "of both" in capsys.readouterr().out
    one = ["report", str(tmp_path / "out"), "--figure", "loading", "--format", "svg", "--column", "single"]
    assert main([*one, "--file", str(tmp_path / "one.svg")]) == 0
    assert (tmp_path / "one.svg").exists()
    assert main([*one, "--plan", "a"]) == 2 and "--plan is for figures of samples" in capsys.readouterr().err
    assert main(["report", str(tmp_path / "out"), "--figure", "by_batch"]) == 2
    data = figures.loading(running.results_of(tmp_path / "out")).data()
    rate, memory = data[data["panel"] == "rate"], data[data["panel"] == "memory"]
    assert rate["value"].tolist() == [row[name] for key, name in RATES for row in report[key]]
    peaks = [row["peak_bytes"] / 2**20 for key, _ in RATES for row in report[key]]
    assert memory["value"].tolist()[: len(peaks)] == peaks
    assert rate["usable"].tolist() == [row["usable"] for key, _ in RATES for row in report[key]]
    figure, _ = drawn_figure(running.results_of(tmp_path / "out"), "loading", "double")
    crosses = sum(len(line.get_xdata()) for line in figure.axes[0].lines if line.get_gid() == CROSSED)
    assert crosses == sum(not usable for usable in rate["usable"])
    assert (tmp_path / "out" / "figures" / "loading.svg").exists()
    for row in report["loading"]:
        loads = max(found["images_per_s"] for found in report["loaders"])
        trains, both = rates["memory", row["model"]], rates["files", row["model"]]
        assert row["of_lower"] == pytest.approx(both / min(loads, trains))
        assert row["of_both"] == pytest.approx(both / (1 / (1 / loads + 1 / trains)))
    monkeypatch.setattr(
        running, "measure_in_process", lambda job, *rest: {"failure": "usage", "message": f"no {job['way']}"}
    )
    assert main(["run", str(loading), "--out", str(tmp_path / "out")]) == 0
    again = json.loads((tmp_path / "out" / "report.json").read_text())
    assert [row["images_per_s"] for row in again["loaders"]] == [row["images_per_s"] for row in report["loaders"]]
    kept = (tmp_path / "out" / SAMPLES).read_text().splitlines(keepends=True)
    (tmp_path / "out" / SAMPLES).write_text("".join(line for line in kept if '"kind":"loading"' not in line))
    assert main(["run", str(loading), "--out", str(tmp_path / "out")]) == 0
    again = json.loads((tmp_path / "out" / "report.json").read_text())
    assert not again["loaders"] and {"loop, 1: no loop", "joblib, 1: no joblib"} <= {
        row["message"] for row in again["failures"]
    }


def test_a_file_says_what_it_is(tmp_path, capsys):
    """Check that `run` knows sweeps and studies by their grids, refuses files with none or both, and options of the
    other kind."""
    path = tmp_path / "own.toml"
    for text, kind in (("[grid]\nbatch = 8\n", "sweep"), ("[train]\nbatch = 8\nthreads = 1\n", "study")):
        path.write_text(text)
        assert kind_of(path) == kind and main(["run", str(path), "--dry-run", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert ("configurations" in found) == (kind == "sweep") and ("runs" in found) == (kind == "study")
    assert main(["run", str(path), "--oversubscribe"]) == 2 and "is for sweeps" in capsys.readouterr().err
    for text, said in (
        ("[measure]\nrepeats = 1\n", "[grid], of a sweep, or [train], of a study, got none"),
        ("[grid]\nbatch = 8\n[train]\nbatch = 8\n", "'train'"),
        ("[tran]\nbatch = 8\n", "did you mean 'train'"),
    ):
        path.write_text(text)
        assert main(["run", str(path)]) == 2 and said in capsys.readouterr().err


def test_a_small_study_says_what_it_leaves_out(tmp_path, capsys):
    """Check that the line names old and new values, of stages too, and stands on the terminal and on the page."""
    path = tmp_path / "own.toml"
    path.write_text(
        '# Read it so.\n[train]\nnetwork = "lenet5"\ndata = "digits"\nmodel = ["serial", "forkjoin"]\nthreads = 1\n'
        '[quick]\nmodel = "serial"\nthreads = 1\nbatch = 100\n[[stages]]\nepochs = 3\n'
    )
    whole = read_study(path)
    small = whole.quick()
    assert whole.left_out == "" and whole.how_to_read == "Read it so."
    assert small.left_out == (
        "Small form (--quick), a check that it works: model serial in place of serial, forkjoin; batch 100 in place of "
        "the default; 1 epoch of each stage in place of 3."
    )
    assert small.how_to_read == f"{small.left_out} Read it so."
    assert main(["run", str(path), "--quick", "--out", str(tmp_path / "out")]) == 0
    assert f"forktask: {small.left_out}" in capsys.readouterr().err
    assert "1 epoch of each stage in place of 3" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.parametrize("name", [path.stem for path in shipped("study")])
def test_shipped_studies_run(name, tmp_path, monkeypatch, capsys):
    """Check that each shipped study says how to read it, and runs in its small form; without a GPU, that one for it
    names its runs."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    study = read_study(given_or_shipped(name))
    assert len(study.how_to_read) > 100 and len(study.quick().trainings()) <= len(study.trainings())
    requested = ("network", "batch", "load")  # a small form keeps what the file is about
    assert [study.quick().axes.get(axis) for axis in requested] == [study.axes.get(axis) for axis in requested]
    if any(model.startswith("gpu_") for model in study.axes.get("model", ())):
        assert main(["run", name, "--quick", "--dry-run"]) == 0
        assert "model gpu_taskiter" in capsys.readouterr().out
        return
    assert main(["run", name, "--quick", "--out", str(tmp_path / "out")]) == 0, capsys.readouterr().out
    assert "bit-identical parameters" in capsys.readouterr().out
    assert (tmp_path / "out" / "report.html").stat().st_size > 10_000
