"""Traces for other tools, checked against the rules of their formats; pictures; losses that add up."""

import csv
import gzip
import itertools
import json
import re
from collections import defaultdict

import matplotlib.image
import numpy as np
import pytest
from experiments.events.test_events import trace_of
from experiments.synthetic_results import synthetic_rows, trace_row, write_rows
from kinds import forms_of_models

from forktask.cython_src.errors import UsageError
from forktask.cython_src.graphs.task_bench import task_bench
from forktask.experiments.analysis.load import load
from forktask.experiments.analysis.losses import (
    FACTORS,
    LOSSES,
    all_losses,
    as_rows,
    as_text,
    had_cpus,
    is_undisturbed,
    losses_of,
)
from forktask.experiments.analysis.sweep import chosen
from forktask.experiments.analysis.windows import LogWindow, typical
from forktask.experiments.events.event_states import STATE_DTYPE, STATES
from forktask.experiments.events.events import EventLog, write_events
from forktask.experiments.report.files import draw_folder, write_trace_files
from forktask.experiments.report.gantt import draw_traces
from forktask.experiments.results.folder import read_results
from forktask.experiments.subjects.models import parse_models
from forktask.experiments.traces.formats import write_paraver, write_perfetto
from forktask.experiments.traces.sweep import LOSSES_TABLE, trace_sweep

TRACED = forms_of_models()


@pytest.fixture(scope="module")
def logs():
    plan = task_bench("stencil_1d", 4, 5, kernel="busy_wait", work=3000)
    return [trace_of(model, plan=plan) for model in TRACED]


def handmade(model="taskiter", threads=2, rows=(), stop=100):
    """A log of two tasks, 0 before 1, from rows (worker, state, cause, task, start, stop)."""
    events = np.zeros(len(rows), STATE_DTYPE)
    for event, (worker, state, cause, task, start, end) in zip(events, rows, strict=True):
        event["worker"], event["state"], event["cause"] = worker, STATES.index(state), cause
        event["task"], event["start_ns"], event["stop_ns"] = task, start, end
    about = {
        "model": model,
        "threads": threads,
        "plan_name": "two",
        "run_start_ns": 0,
        "run_stop_ns": stop,
        "first_iteration": 0,
        "iterations": 1,
        "stride": 1,
        "overhead": 0.0,
        "overheads": [0.0],
    }
    loops = {
        "name": ["a", "b"],
        "layer": ["", "conv"],
        "phase": ["forward", "backward"],
        "first_task": [0, 1],
        "num_blocks": [1, 1],
    }
    return EventLog(about, events, loops, np.array([[0, 1], [1, 0], [0, 1]], np.int32))


HANDMADE = [
    (0, "running", 0, 0, 0, 30),
    (0, "preempted", 4, 0, 30, 40),
    (0, "scheduling", 0, 0, 40, 45),
    (0, "waiting_none", 0, 0, 45, 100),
    (1, "asleep", 1, 1, 0, 20),
    (1, "barrier", 2, 1, 20, 45),
    (1, "running", 0, 1, 45, 80),
    (1, "lock", 0, 1, 80, 90),
    (1, "waiting_none", 3, 1, 90, 100),
]


@pytest.mark.parametrize(("iterations", "shown"), [(1, range(2, 3)), (3, range(3)), (9, range(5))])
def test_the_window_shown_is_of_median_length(iterations, shown):
    """Check it among passes of 50, 10, 30, 40 and 20 ns, of which three together take 90, 80 and 90."""
    ends = np.cumsum([0, 50, 10, 30, 40, 20]).tolist()
    log = handmade(rows=[(0, "running", 0, task, ends[k], ends[k + 1]) for k in range(5) for task in (0, 1)])
    log.about["iterations"] = 5
    log.events["iteration"] = np.repeat(range(5), 2)
    assert typical(log, iterations).passes == shown


def test_each_event_falls_into_one_class():
    """Check the losses of a hand-made log with all classes, by phase and layer, and against a serial log."""
    log = handmade(rows=HANDMADE)
    serial = handmade("serial", 1, [(0, "running", 0, 0, 0, 25), (0, "running", 0, 1, 25, 65)], 65)
    alone, against = losses_of(log), losses_of(log, serial)
    common = {"runtime": 15, "imbalance": 20, "barrier": 25, "dependence": 65, "preemption": 10}
    assert alone.total_ns == {"useful": 65, "inflation": 0, **common} and not alone.against_serial
    assert against.total_ns == {"useful": 65, "inflation": 0, **common}
    table = against.table.set_index("layer")
    assert table["phase"].to_dict() == {"a": "forward", "conv": "backward"}
    assert table["useful"].to_dict() == {"a": 25, "conv": 40} and table["inflation"].to_dict() == {"a": 5, "conv": -5}
    assert sum(alone.total_ns.values()) == 2 * log.wall_ns
    assert sum(against.per_iteration_s().values()) == pytest.approx(100e-9)


def test_losses_sum_to_threads_times_wall_exactly(logs):
    """Check for real logs that the parts sum to threads x wall time, and the factors multiply to the efficiency."""
    result = all_losses(logs)
    for losses in result:
        assert sum(losses.total_ns.values()) == losses.log.about["threads"] * losses.log.wall_ns
        factors = losses.factors()
        assert np.prod([factors[name] for name in FACTORS]) == pytest.approx(factors["global_efficiency"])
        assert losses.against_serial
    assert result[0].total_ns["inflation"] == pytest.approx(0, abs=20)  # its own speed, but for rounding
    text = as_text(result)
    assert all(log.title in text for log in logs) and all(LOSSES[name].label in text for name in ("useful", "runtime"))


def test_perfetto_traces_keep_the_rules_of_the_format(tmp_path, logs):
    """Check phases and fields, that complete events of a track nest, and that arrows begin and end in blocks."""
    windows = [LogWindow(log, range(3)) for log in logs]
    text = write_perfetto(tmp_path / "trace.json.gz", windows)
    with gzip.open(tmp_path / "trace.json.gz", "rt") as file:
        events = json.load(file)["traceEvents"]
    assert f"{len(events)} events of {len(logs)} models" in text and {e["ph"] for e in events} == {"M", "X", "s", "f"}
    tracks, flows = defaultdict(list), defaultdict(dict)
    for event in events:
        assert {"ph", "pid", "tid", "name"} <= set(event)
        if event["ph"] == "X":
            assert event["dur"] > 0 and event["ts"] >= 0
            tracks[event["pid"], event["tid"]].append(
                (round(event["ts"] * 1000), round((event["ts"] + event["dur"]) * 1000), event["cat"])
            )
        elif event["ph"] in "sf":
            assert event["ph"] not in flows[event["id"]]
            flows[event["id"]][event["ph"]] = event
            assert event["ph"] == "s" or event["bp"] == "e"
    for track in tracks.values():
        open_ends = []
        for start, stop, _ in sorted(track, key=lambda slice_: (slice_[0], -slice_[1])):
            while open_ends and open_ends[-1] <= start:
                open_ends.pop()
            assert not open_ends or stop <= open_ends[-1]
            open_ends.append(stop)
    assert flows
    for ends in flows.values():
        assert ends["s"]["ts"] <= ends["f"]["ts"]
        for event in ends.values():
            at = round(event["ts"] * 1000)
            around = [c for start, stop, c in tracks[event["pid"], event["tid"]] if start <= at < stop]
            assert any(category not in ("idle", "iteration") for category in around)
    blocks = [e for e in events if e["ph"] == "X" and "block" in e.get("args", {})]
    assert len(blocks) == len(logs) * 3 * 20


def test_paraver_traces_keep_the_rules_of_the_format(tmp_path, logs):
    """Check header, order and ranges of records, states without gaps, names of all values, rows of all objects."""
    windows = [LogWindow(log, range(3)) for log in logs]
    write_paraver(tmp_path / "trace.prv", windows)
    header, *lines = (tmp_path / "trace.prv").read_text().splitlines()
    result = re.fullmatch(r"#Paraver \(\d\d/\d\d/\d\d at \d\d:\d\d\):(\d+)_ns:1\((\d+)\):(\d+):(.*)", header)
    length, cpus, applications = (int(result[i]) for i in (1, 2, 3))
    threads = [log.about["threads"] for log in logs]
    assert result[4] == ":".join(f"1({number}:1)" for number in threads)
    assert (cpus, applications) == (sum(threads), len(logs))
    names = (tmp_path / "trace.pcf").read_text()
    states = set(re.findall(r"^(\d+) \w+$", names.split("STATES_COLOR")[0].split("STATES\n")[1], re.MULTILINE))
    types = dict(re.findall(r"EVENT_TYPE\n0 (\d+) [^\n]*\n(?:VALUES\n((?:\d+ .*\n)+))?", names))
    times, ends = [], {}
    for line in lines:
        kind, *fields = line.split(":")
        numbers = [int(field) for field in fields]
        assert min(numbers) >= 0 and 1 <= numbers[0] <= cpus and 1 <= numbers[1] <= applications
        times.append(numbers[4])
        assert numbers[4] <= length
        if kind == "1":
            start, stop, state = numbers[4:]
            assert ends.get(numbers[0], start) == start and stop > start and str(state) in states
            ends[numbers[0]] = stop
        elif kind == "2":
            for event_type, value in zip(fields[5::2], fields[6::2], strict=True):
                values = types[event_type]
                assert not values or f"\n{value} " in "\n" + values
        else:
            assert kind == "3" and len(numbers) == 14 and numbers[4] <= numbers[10]
    assert times == sorted(times) and len(ends) == cpus
    rows = (tmp_path / "trace.row").read_text().split("\n\n")
    for level in rows:
        heading, *objects = level.strip().splitlines()
        assert int(heading.rpartition(" ")[2]) == len(objects)


def test_all_files_are_written_and_pictures_are_not_empty(tmp_path, logs):
    """Check that each file exists, that pictures have colours, and that the table sums to all threads' time."""
    text = "\n".join(write_trace_files(tmp_path, "lenet5, batch 4", logs, 2))
    for name in ("gantt.svg", "gantt.pdf", "gantt.txt", "losses.pdf", "trace.json.gz", "trace.prv"):
        assert (tmp_path / name).stat().st_size > 200
    caption, method = (tmp_path / "gantt.txt").read_text().split("\n\n")
    assert caption.startswith("lenet5, batch 4: ") and len(caption.split()) <= 60 and "Logging changed" in method
    for name in ("gantt-single.png", "losses-single.png"):
        assert matplotlib.image.imread(tmp_path / name).shape[1] == 990
        assert matplotlib.image.imread(tmp_path / name).shape[0] <= 1800
    for name in ("gantt.png", "losses.png"):
        picture = matplotlib.image.imread(tmp_path / name)[..., :3]
        assert len(np.unique((picture * 8).astype(int).reshape(-1, 3), axis=0)) > 12
    with open(tmp_path / "losses.csv") as file:
        rows = list(csv.DictReader(file))
    for log in logs:
        total = sum(float(row[f"{n}_s"]) for row in rows if row["model"] == log.about["model"] for n in LOSSES)
        assert total == pytest.approx(log.about["threads"] * log.wall_ns * 1e-9 / 3)
    usable = {row["model"]: str(row["preemption_s"] <= 0.05 * row["step_time_s"]) for row in as_rows(all_losses(logs))}
    assert {row["model"]: row["usable"] for row in rows} == usable
    assert "gantt" in text and "Wall time per iteration" in text
    with pytest.raises(UsageError, match="cannot be written"):
        write_trace_files(tmp_path / "none", "", logs, 2)


def test_traces_of_two_plans_stand_beside_each_other(tmp_path, logs, monkeypatch):
    """Check panels, their titles and common axis, for chosen models and plans, in both widths; that titles say which
    are not usable; that as many as no picture holds are refused, and none."""
    for log in logs:
        assert had_cpus(log) == is_undisturbed(as_rows(all_losses([log]))[0])
    monkeypatch.setattr("forktask.experiments.report.gantt.had_cpus", lambda log: log.about["model"] != "forkjoin")
    forms = ({"weight_gradients": "chain"}, {"weight_gradients": "partial"})
    models = ("serial", "forkjoin", "tasks", "taskiter")
    logs = [log for log in logs if log.about["model"] in models]
    rows = synthetic_rows(models=models, threads=(2,), options=forms, slowdowns=(1.0, 1.2), repeats=3)
    plans = [row["plan_id"] for row in rows if row["kind"] == "plan"]
    for plan_id, log in itertools.product(plans, logs):
        model = log.about["model"]
        row = trace_row(plan_id) | {"model": model, "path": f"{plan_id}-{model}.npz"}
        rows.append(row | {"losses": row["losses"] | {"model": model}})
    write_rows(tmp_path, rows)
    for plan_id, log in itertools.product(plans, logs):
        write_events(tmp_path / f"{plan_id}-{log.about['model']}.npz", log)
    sweep = load(tmp_path)
    for column in ("double", "single"):
        shown = chosen(sweep, {"taskiter": "replay", "forkjoin": ""})
        figure, text = draw_traces(shown, tmp_path, plans, column)
        assert [axis.get_title(loc="left").replace("\n", " ").rpartition(",")[0] for axis in figure.axes] == [
            f"{model}, 2 threads, weight gradients {form}{said}"
            for form in ("chain", "partial")
            for model, said in (("replay", ""), ("forkjoin", " (not usable)"))
        ]
        assert len({axis.get_xlim() for axis in figure.axes}) == 1
        assert column == "double" or (figure.get_figwidth() == 3.3 and figure.get_figheight() <= 6.0)
    assert "weight gradients partial)" in text and "chain" not in text.partition(":")[0]
    path = draw_folder(tmp_path, "gantt", kind="png", models={"forkjoin": ""}, plan=",".join(plans[::-1]))
    assert path == tmp_path / "figures" / "gantt.png" and path.with_suffix(".txt").exists()
    for form, words in (
        ({}, f"at most 4 traces, got 8; choose .*plans are {plans[0]}: "),
        ({"models": {"tasks": ""}, "plan": f"{plans[0]},"}, "exactly one plan's id, got ','"),
    ):
        with pytest.raises(UsageError, match=words):
            draw_folder(tmp_path, "gantt", **form)
    with pytest.raises(UsageError, match="got none; measure with --trace"):
        draw_folder(write_rows(tmp_path / "none", [row for row in rows if row["kind"] != "trace"]), "gantt")


def test_traces_that_are_there_are_kept(tmp_path, capsys):
    """Check that a folder that goes on is traced no more where no trace is missing, that nothing is drawn anew then
    but where it is asked for, and that a line names each plan that is traced."""
    forms = ({"weight_gradients": "chain"}, {"weight_gradients": "partial"})
    rows = synthetic_rows(models=("forkjoin",), threads=(1,), options=forms, slowdowns=(1.0, 1.2), repeats=3)
    plans = [row["plan_id"] for row in rows if row["kind"] == "plan"]
    of_model = trace_row("")["losses"] | {"model": "forkjoin"}
    rows += [trace_row(plan_id) | {"model": "forkjoin", "losses": of_model} for plan_id in plans]
    results = read_results(write_rows(tmp_path, rows))

    def traced(again):
        return [folder for folder, *_ in trace_sweep(tmp_path, results, parse_models(["forkjoin"]), again, threads=1)]

    folders = traced(False)
    assert len(folders) == 2  # their files are missing
    assert "weight gradients chain, plan 1 of 2: 0 models" in capsys.readouterr().err
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / LOSSES_TABLE).touch()
    assert traced(False) == [] and capsys.readouterr().err == ""
    assert traced(True) == folders
