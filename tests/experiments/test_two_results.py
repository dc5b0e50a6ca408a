"""Two folders side by side: which plans meet, ratios, machines and the figure."""

import dataclasses
import json
import shutil

import pytest
from experiments.synthetic_results import synthetic_rows, write_rows
from experiments.test_events import trace_of

from forktask.cython_src.errors import UsageError
from forktask.cython_src.graphs.task_bench import task_bench
from forktask.experiments.analysis.windows import typical
from forktask.experiments.commands.main import main
from forktask.experiments.report.gantt import draw_gantt
from forktask.experiments.report.two_results import overlay_folders
from forktask.experiments.sampling.events import read_events, write_events
from forktask.experiments.traces.collect import write_machine


def test_two_folders_meet_in_the_plan_that_they_share(tmp_path, capsys):
    """Check the plan chosen, ratios of times, both machines, and points that one folder alone has."""
    first = write_rows(tmp_path / "a", synthetic_rows(threads=(1, 2), granularities=(16,), noise=0.0))
    rows = synthetic_rows(threads=(1, 4), granularities=(8, 16), slowdowns=(2.0,), noise=0.0)
    second = write_rows(tmp_path / "b", rows)
    out = tmp_path / "figure.svg"
    assert main(["overlay", str(first), str(second), "--json", "--file", str(out)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["differing"] == []
    of = {(row["model"], row["threads"]): row for row in found["rows"]}
    assert of["serial", 1]["ratio"] == pytest.approx(2.0, rel=0.05)
    assert of["taskiter", 2]["second_s"] is None and of["taskiter", 4]["first_s"] is None
    assert all("Example CPU 9000" in text and "235 GFLOP/s" in text for text in found["machines"])
    assert out.read_text().startswith("<?xml")
    assert main(["overlay", str(first), str(second), "--file", str(out)]) == 0
    assert "no interval" in capsys.readouterr().out


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    """Two folders of traces of one model, the second of another machine."""
    folders = [tmp_path_factory.mktemp("traces") / name for name in ("here", "there")]
    plan = task_bench("stencil_1d", 4, 5, kernel="busy_wait", work=3000)
    for folder, peak in zip(folders, (1e11, 2e11), strict=True):
        log = trace_of("taskiter", plan=plan)
        log.about["plan"] = {"network": "stencil", "batch": 1, "phase": "train", "seed": peak}
        write_events(folder / "events" / "taskiter-2.npz", log)
        machine = {"peak_flops_per_s_1thread": peak, "capacity": {"2": 1.5}}
        write_machine(folder, {"cpu": {"model": "Example CPU"}}, machine)
    return folders


def test_two_traces_share_one_time_axis(traces, tmp_path, capsys):
    """Check names on both axes, peak and capacity of both machines, the ratio, and other options."""
    out = tmp_path / "figure.svg"
    assert main(["overlay", *map(str, traces), "--json", "--file", str(out)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [text.split(", ")[1] for text in found["machines"]] == ["100 GFLOP/s a thread", "200 GFLOP/s a thread"]
    assert all("2 threads do the work of 1.50" in text for text in found["machines"])
    (row,) = found["rows"]
    assert row["ratio"] == pytest.approx(row["second_s"] / row["first_s"]) and found["differing"] == ["seed"]
    assert out.read_text().startswith("<?xml") and "one time axis" in out.with_suffix(".txt").read_text()
    logs = [read_events(folder / "events" / "taskiter-2.npz") for folder in traces]
    figure, _ = draw_gantt([typical(log, 3) for log in logs], names=["here", "there"], head="machines")
    first, second = figure.axes
    assert [a.get_title(loc="left").split(",")[0] for a in (first, second)] == ["here: taskiter", "there: taskiter"]
    assert first.get_xlim() == second.get_xlim() and figure.get_suptitle() == "machines"


def test_traces_of_other_work_are_refused(traces, tmp_path, capsys):
    """Check one sentence for results beside traces, for another network, for no shared model, and for no logs."""
    results = write_rows(tmp_path / "results", synthetic_rows())
    log = read_events(traces[0] / "events" / "taskiter-2.npz")
    other, alone = tmp_path / "other", tmp_path / "alone"
    write_events(other / "events" / "x.npz", dataclasses.replace(log, about={**log.about, "plan": {"network": "b"}}))
    write_events(alone / "events" / "x.npz", dataclasses.replace(log, about={**log.about, "model": "tasks"}))
    (tmp_path / "empty" / "events").mkdir(parents=True)
    for second, said in (
        (results, "both traces"),
        (other, "same network, batch and phase"),
        (alone, "one model at least"),
        (tmp_path / "empty", "must hold logs"),
    ):
        assert main(["overlay", str(traces[0]), str(second)]) == 2
        error = capsys.readouterr().err
        assert said in error and error.count("\n") == 1


@pytest.mark.parametrize("text", ["{}", '{"machine": {}}', "[]"])
def test_a_machine_that_was_not_kept_by_trace_is_refused(traces, tmp_path, capsys, text):
    """Check one sentence that names the file, for JSON without the parts that every trace keeps."""
    shutil.copytree(traces[0], tmp_path / "broken")
    (tmp_path / "broken" / "machine.json").write_text(text)
    assert main(["overlay", str(traces[1]), str(tmp_path / "broken")]) == 2
    error = capsys.readouterr().err
    assert "machine.json" in error and "trace again" in error and error.count("\n") == 1


def test_other_work_is_refused(tmp_path):
    """Check that folders of different batches are not compared."""
    first = write_rows(tmp_path / "a", synthetic_rows(batches=(16,)))
    second = write_rows(tmp_path / "b", synthetic_rows(batches=(64,)))
    with pytest.raises(UsageError, match="same network, batch and phase"):
        overlay_folders(first, second)
