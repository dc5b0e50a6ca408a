"""`forktask metg`: from samples to METG, and one tiny run of it."""

import csv
import itertools
import json
import math

import pytest
from experiments.synthetic_results import typed

from forktask.experiments.commands.main import main
from forktask.experiments.metg.figure import chart, draw
from forktask.experiments.metg.measure import work_ladder
from forktask.experiments.metg.table import as_frame, format_table, metg_s, summarise
from forktask.experiments.report.figures.style import CROSSED

GRAPH = {"pattern": "fft", "width": 4, "steps": 4, "radix": 5, "kernel": "compute", "check": True}
UNIT_S = 2e-9


def row(model="taskiter", threads=2, repetition=0, overhead_s=20e-9, prepare_s=1e-4, **more):
    """A process of a runtime that costs `overhead_s` of one thread's time for each task."""

    def point(work):
        times = [16 * (work * UNIT_S + overhead_s) / threads] * 3
        result = {"work": work, "mean_work": float(work), "num_tasks": 16}
        return {**result, "iteration_times_s": times, "prepare_s": prepare_s}

    requested = {
        "model": model,
        "threads": threads,
        "graph": GRAPH,
        "repetition": repetition,
        "position": 0,
        "quick": False,
        "variables": {},
        "cpus": [*range(threads)],
    }
    result = {
        "parallel": threads,
        "disturbance": {"pressure_some_us": 20000},
        "wall_s": 1.0,
        "unit_s": UNIT_S * (1 + repetition),
        "record_s": 1.6e-5,
        "close_s": None,
        "points": [point(work) for work in itertools.takewhile(lambda w: w < 1000, work_ladder(1))],
        "empty": point(0),
    }
    if "reason" in more:
        return {"kind": "metg_failure", **requested, **more}
    return {"kind": "metg", **requested, **result, **more}


def table_of(rows):
    return summarise(typed(rows))


def test_metg_is_twice_the_overhead():
    """Check the definition: with a constant cost a task, half of the rate is reached where the work takes as long."""
    table = table_of([row(repetition=0), row(repetition=1, overhead_s=30e-9)])
    assert table["unit_s"] == {"compute": UNIT_S}
    entry = table["results"][0]
    assert entry["metg_s"]["low"] == pytest.approx(40e-9, rel=0.03)
    assert entry["metg_s"]["high"] == pytest.approx(60e-9, rel=0.03)
    assert entry["empty_task_s"]["low"] == pytest.approx(10e-9)
    assert entry["record_s"]["median"] == pytest.approx(1e-6)
    assert entry["close_s"] is None
    assert all(0 < p["efficiency_low"] <= p["efficiency"] <= p["efficiency_high"] < 1 for p in entry["curve"])


def test_processes_that_found_the_cpus_elsewhere_are_left_out():
    """Check that a repetition whose hand-overs took longer in most rounds is no part of a median, and that it is
    counted."""
    near, far = [1.3e-7, 1.2e-7, 9e-7], [1.2e-7, 2.9e-7, 2.9e-7]
    apart = [row(repetition=0, handover_s=near), row(repetition=1, overhead_s=60e-9, handover_s=far)]
    table = table_of([*apart, row(repetition=2, handover_s=near), row(repetition=3)])
    (entry,) = table["results"]
    assert entry["repeats"] == 3 and entry["metg_s"]["high"] == pytest.approx(40e-9, rel=0.03)
    assert "1 of 4 generations found the CPUs elsewhere" in format_table(table)
    assert "290 ns in place of 130 ns" in format_table(table)


def test_metg_between_points_and_where_it_is_not_reached():
    """Check interpolation, the first point, and curves that stay below."""
    assert metg_s([1, 4], [0.25, 0.75], 1.0) == pytest.approx(4.0)
    assert metg_s([2, 4], [0.8, 0.9], 1.0) == pytest.approx(2.5)
    assert metg_s([1, 2, 4], [0.1, 0.2, 0.4], 1.0) is None
    table = table_of([{**row(), "points": row()["points"][:2]}])
    assert table["results"][0]["metg_s"] is None
    assert "not reached" in format_table(table)


def test_disturbed_figures_are_said_to_be():
    """Check the warning, and that the fastest run counts."""
    quiet, pressed = row(), row(disturbance={"pressure_some_us": 500000})
    assert "disturbed" not in format_table(table_of([quiet]))
    assert "up to 50%" in format_table(table_of([pressed]))
    # METG of disturbed runs and of quick checks is withheld, in every form.
    for entry, why in ((pressed, "disturbed"), (row(quick=True), "quick")):
        table = table_of([entry])
        assert table["results"][0]["metg_s"] is None and why in format_table(table).splitlines()[-1]
        (line,) = as_frame(table).to_dict("records")
        assert math.isnan(line["metg_s"]) and line["withheld"] == why and line["usable"] == (entry is not pressed)
        figure = draw(table["results"], "single")
        crosses = [one for axis in figure.axes for one in axis.lines if one.get_gid() == CROSSED]
        assert bool(crosses) == ("Crossed out" in chart(table["results"]).text) == (entry is pressed)
    uneven = row()
    uneven["empty"]["iteration_times_s"] = [16 * t for t in (10e-9, 20e-9, 90e-9)]
    assert table_of([uneven])["results"][0]["empty_task_s"]["median"] == pytest.approx(10e-9)


def test_a_failure_is_named_below_its_graph():
    """Check the message of a model that was not measured, beside one that was."""
    text = format_table(table_of([row("taskiter"), row("openmp_tasks", reason="crash", message="lost")]))
    assert "crash: lost" in text and "fft, 4 x 4 tasks" in text


def test_a_tiny_run_prints_and_draws(tmp_path, capsys):
    """Check the command from processes to figure, caption, table and samples."""
    out = tmp_path / "metg"
    command = "metg --quick --models serial,forkjoin:schedule=dynamic --threads 1 --width 4 --steps 4"
    command = [*command.split(), "--pattern", "fft,trivial", "--json", "--out", str(out)]
    assert main(command) == 0
    table = json.loads(capsys.readouterr().out)
    assert [(e["graph"]["pattern"], e["model"]) for e in table["results"]] == [
        (p, m) for p in ("fft", "trivial") for m in ("serial", "forkjoin:schedule=dynamic")
    ]
    serial = table["results"][0]
    assert serial["empty_task_s"]["median"] > 0 and serial["curve"]
    figures = {f"metg_{p}{ending}" for p in ("fft", "trivial") for ending in (".svg", "-single.svg", ".txt")}
    assert {p.name for p in out.iterdir()} == {"samples.jsonl", "metg.csv", *figures}
    kinds = [json.loads(line)["kind"] for line in (out / "samples.jsonl").read_text().splitlines()]
    assert kinds == ["run"] + ["metg"] * 4
    assert len(list(csv.DictReader((out / "metg.csv").open()))) == 4
    assert "METG(50 %)" in (out / "metg_fft.txt").read_text()
    # Interrupted: the last row is missing, the one before is half-written. The same command measures those two.
    lines = (out / "samples.jsonl").read_text().splitlines(keepends=True)
    (out / "samples.jsonl").write_text("".join(lines[:3]) + lines[3][:100])
    assert main(command) == 0
    captured = capsys.readouterr()
    again = json.loads(captured.out)
    assert "2 measurements are there" in captured.err
    assert [(e["model"], e["repeats"]) for e in again["results"]] == [(e["model"], 1) for e in table["results"]]
    rows = [json.loads(line) for line in (out / "samples.jsonl").read_text().splitlines()]
    assert [row["kind"] for row in rows] == ["run", "metg", "metg", "run", "metg", "metg"]
    assert main(command) == 0  # nothing is missing
    assert json.loads(capsys.readouterr().out) == again
    assert main([*command, "--width", "5"]) == 2
    assert "another configuration: width differ" in capsys.readouterr().err


def test_the_graph_of_a_network_is_run_with_its_durations(capsys, tmp_path, monkeypatch):
    """Check `--network`: the graph has as many tasks as the network's plan, whatever the work; a folder by date."""
    monkeypatch.chdir(tmp_path)
    command = "metg --quick --models serial --threads 1 --network cifar10_cnn --batch 16 --json"
    assert main(command.split()) == 0
    entry = json.loads(capsys.readouterr().out)["results"][0]
    assert entry["graph"]["network"] == "cifar10_cnn"
    assert entry["empty_task_s"]["median"] > 0 and entry["curve"]
