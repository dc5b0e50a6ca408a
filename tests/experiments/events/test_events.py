"""Event logs: states of workers cover a run without gaps, ready times follow the graph, files are read as written."""

import dataclasses
import itertools
import json
import os
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from kinds import forms_of_models, threads_of

from forktask.cython_src.binding.bind import SPELL_DTYPE, SPELL_KINDS, bind
from forktask.cython_src.errors import UsageError
from forktask.cython_src.graphs.task_bench import task_bench
from forktask.cython_src.plan.dependences import record_graph
from forktask.experiments.commands.main import main
from forktask.experiments.events.event_states import CAUSES, STATES, instances, ready_times, worker_states
from forktask.experiments.events.events import EventLog, events_files, read_events, write_events
from forktask.experiments.report import figures
from forktask.experiments.results.folder import read_results
from forktask.experiments.results.rows import PlanRow, TraceRow
from forktask.experiments.sampling.trace import trace_run
from forktask.experiments.subjects.models import MODELS as MODELS_BY_NAME
from forktask.experiments.subjects.models import parse_model
from forktask.experiments.traces.sweep import traced
from forktask.forkjoin.executor import SerialExecutor

EVENTS = np.dtype([("start_ns", "<i8"), ("stop_ns", "<i8"), ("iteration", "<i8"), ("task", "<i4"), ("worker", "<i4")])
MODELS = forms_of_models("region", "schedule", "taskwait", "placement", "unroll")


def small_plan():
    """A stencil of 4 x 5 blocks of some microseconds."""
    return task_bench("stencil_1d", 4, 5, kernel="busy_wait", work=2000)


def trace_of(model, threads=2, plan=None):
    job = {
        "model": parse_model(model),
        "threads": threads_of(model, threads),
        "cpus": None,
        "plan": {},
        "warmup_s": 0.01,
        "target_s": 1e-6,
    }
    return trace_run(job, bind(small_plan() if plan is None else plan))


@pytest.mark.parametrize("model", MODELS)
def test_states_cover_the_run_and_hold_each_block_once(model):
    """Check for every model that the events of each worker follow each other from the run's start to its end."""
    log = trace_of(model)
    for worker in range(log.about["threads"]):
        own = log.events[log.events["worker"] == worker]
        assert own["start_ns"][0] == log.about["run_start_ns"] and own["stop_ns"][-1] == log.about["run_stop_ns"]
        assert (own["start_ns"][1:] == own["stop_ns"][:-1]).all() and (own["stop_ns"] > own["start_ns"]).all()
    length = log.events["stop_ns"] - log.events["start_ns"]
    assert length.sum() == log.about["threads"] * log.wall_ns
    first = log.about["first_iteration"]
    ran = sorted(zip(log.blocks["iteration"].tolist(), log.blocks["task"].tolist(), strict=True))
    assert ran == list(itertools.product(range(first, first + log.about["iterations"]), range(20)))
    assert log.about["lost"] == 0 and len(log.about["overheads"]) == 5


def brute_force_ready(graph, stop, run_start):
    """Times by walking back over all edges of each node."""
    before = [[] for _ in range(graph.num_nodes)]
    for source, target, token in zip(*graph.edges(), strict=True):
        before[target].append((source, token))

    def finished(node, k):
        if k < 0:
            return run_start
        if node < graph.num_tasks:
            return stop[k, node]
        return max((finished(u, k - token) for u, token in before[node]), default=run_start)

    return [
        [max((finished(u, k - token) for u, token in before[v]), default=run_start) for v in range(graph.num_tasks)]
        for k in range(len(stop))
    ]


@pytest.mark.parametrize("pattern", ["stencil_1d", "all_to_all", "spread", "trivial"])
def test_ready_times_equal_brute_force(pattern):
    """Check ready times against a walk over the graph, with joins and edges between passes."""
    graph = record_graph(task_bench(pattern, 6, 4).accesses, closed=True)
    stop = np.random.default_rng(1).integers(100, 1000, (3, graph.num_tasks))
    assert ready_times(graph, stop, 100).tolist() == brute_force_ready(graph, stop, 100)


def states_of(model, barrier, blocks, spells=(), run=(0, 100)):
    """Rows (worker, state, cause, start, stop) of hand-made blocks (worker, task, start, stop) in one iteration."""
    plan = task_bench("trivial", 2, 2)
    result = np.zeros(len(blocks), EVENTS)
    for row, (worker, task, start, stop) in zip(result, blocks, strict=True):
        row["worker"], row["task"], row["start_ns"], row["stop_ns"] = worker, task, start, stop
    parts = [np.zeros(0, SPELL_DTYPE), np.zeros(0, SPELL_DTYPE)]
    for worker, kind, start, stop in spells:
        row = np.zeros(1, SPELL_DTYPE)
        row["kind"], row["start_ns"], row["stop_ns"], row["task"] = SPELL_KINDS.index(kind), start, stop, -1
        parts[worker] = np.concatenate([parts[worker], row])
    graph = record_graph(plan.accesses, closed=True)
    times = instances(plan, graph, result, np.zeros(0, SPELL_DTYPE), barrier, run[0])
    events = worker_states(plan, times, result, parts, MODELS_BY_NAME[model], barrier, run)
    return [
        (int(e["worker"]), STATES[e["state"]], CAUSES[e["cause"]], int(e["start_ns"]), int(e["stop_ns"]))
        for e in events
    ]


def test_a_fork_join_worker_waits_at_the_barrier_behind_its_last_block():
    """Check a loop of unequal blocks: the worker that is done first waits, and the data of the next loop are there."""
    us = 1000
    rows = states_of(
        "forkjoin",
        "loop",
        [(0, 0, 10 * us, 20 * us), (1, 1, 10 * us, 60 * us), (0, 2, 70 * us, 80 * us), (1, 3, 75 * us, 80 * us)],
        run=(0, 100 * us),
    )
    assert [row for row in rows if row[0] == 0] == [
        (0, "scheduling", "dependence", 0, 10 * us),
        (0, "running", "dependence", 10 * us, 20 * us),
        (0, "barrier", "barrier", 20 * us, 60 * us),
        (0, "scheduling", "dependence", 60 * us, 70 * us),
        (0, "running", "dependence", 70 * us, 80 * us),
        (0, "scheduling", "dependence", 80 * us, 100 * us),
    ]


def test_spells_within_spells_and_blocks_go_first():
    """Check precedence: without a CPU before asleep before running before waiting, each cut out of what it lies in."""
    us = 1000
    rows = states_of(
        "taskiter",
        "none",
        [(0, 0, 10 * us, 30 * us), (0, 1, 30 * us, 40 * us), (0, 2, 40 * us, 50 * us), (0, 3, 50 * us, 60 * us)],
        spells=[
            (0, "preempted", 20 * us, 25 * us),
            (0, "waiting", 60 * us, 100 * us),
            (1, "waiting", 0, 100 * us),
            (1, "asleep", 70 * us, 90 * us),
        ],
        run=(0, 100 * us),
    )
    assert [(row[1], row[3] // us, row[4] // us) for row in rows if row[0] == 0] == [
        ("scheduling", 0, 10),
        ("running", 10, 20),
        ("preempted", 20, 25),
        ("running", 25, 30),
        ("running", 30, 40),
        ("running", 40, 50),
        ("running", 50, 60),
        ("waiting_none", 60, 100),
    ]
    assert [(row[1], row[2], row[3] // us, row[4] // us) for row in rows if row[0] == 1] == [
        ("waiting_ready", "ready", 0, 50),
        ("waiting_none", "dependence", 50, 70),
        ("asleep", "dependence", 70, 90),
        ("waiting_none", "dependence", 90, 100),
    ]


def test_a_worker_that_shares_its_cpu_is_preempted():
    """Check that a spinning process on the same CPU appears as time without a CPU."""
    cpu = min(os.sched_getaffinity(0))
    hog = subprocess.Popen(
        [sys.executable, "-c", f"import os\nos.sched_setaffinity(0, {{{cpu}}})\nprint(1, flush=True)\nwhile 1: pass"],
        stdout=subprocess.PIPE,
    )
    try:
        hog.stdout.readline()
        plan = task_bench("trivial", 1, 2, kernel="busy_wait", work=1_000_000)
        with SerialExecutor(cpus=[cpu], event_capacity=1000) as executor:
            executor.prepare(bind(plan))
            executor.workers.log_spells(1000)
            executor.run(100)
            spells, _ = executor.workers.spells()
    finally:
        hog.kill()
        hog.wait()
        hog.stdout.close()
    lost = spells[0][spells[0]["kind"] == SPELL_KINDS.index("preempted")]
    assert (lost["stop_ns"] - lost["start_ns"]).sum() > 10e6  # of 200 ms or more, at half of a CPU


def test_logs_are_read_as_written(tmp_path):
    """Check the file format in both directions, and that other files are refused in one sentence."""
    log = trace_of("taskiter")
    path = write_events(tmp_path / "events" / "a.npz", log)
    again = read_events(path)
    assert isinstance(again, EventLog) and (again.events == log.events).all() and (again.edges == log.edges).all()
    assert again.loops == log.loops and again.about["model"] == "taskiter" and again.title == log.title
    assert events_files(tmp_path) == [path] and again.task_name(5) == log.task_name(5)
    less = {key: value for key, value in log.about.items() if key != "stride"}
    for wrong, words in (
        (dataclasses.replace(log, about=less), "missing required field `stride`"),
        (dataclasses.replace(log, about={**log.about, "threads": "2"}), "Expected `int`, got `str`"),
        (dataclasses.replace(log, about={**log.about, "iterations": 0}), ">= 1"),
        (dataclasses.replace(log, events=log.events[1:]), "do not sum to threads x wall time"),
        (dataclasses.replace(log, edges=log.edges[:2]), "not whole"),
    ):
        with pytest.raises(UsageError, match=words):
            read_events(write_events(tmp_path / "wrong.npz", wrong))
    np.savez(tmp_path / "other.npz", a=np.zeros(3))
    for file in (tmp_path / "other.npz", tmp_path / "none.npz"):
        with pytest.raises(UsageError, match=file.name):
            read_events(file)


TRACE = ["trace", "--network", "lenet5", "--batch", "4", "--models", "serial,taskiter", "--threads", "1"]


def test_trace_leaves_a_results_folder_that_every_command_reads(tmp_path, capsys, monkeypatch):
    """Check rows, a log for each model, pictures in the report, and that diagnosis, simulation and comparison need
    nothing else; the same command adds nothing, another plan is refused and the logs stay."""
    monkeypatch.setattr(figures, "available_figures", lambda *_: [])  # those of any results folder
    out = tmp_path / "out"
    command = [*TRACE, "--seconds", "0.000001", "--out", str(out)]
    assert main(command) == 0
    text = capsys.readouterr()
    assert text.err.count("iterations of") == 2 and "Wall time per iteration" in text.out
    results = read_results(out)
    kinds = Counter(type(row).__struct_config__.tag for row in results.rows)
    once, twice = ("run", "machine", "plan", "rounds", "session"), ("sample", "profile", "trace")
    assert kinds == dict.fromkeys(once, 1) | dict.fromkeys(twice, 2)
    ((plan_id, folder, logs),) = traced(out, results.of(PlanRow))
    assert [log.about["model"] for log in logs] == ["serial", "taskiter"]
    assert plan_id == results.of(PlanRow)[0].plan_id and plan_id not in folder.name and "batch4" in folder.name
    assert all(log.about["iterations"] == 3 and log.about["plan"]["batch"] == 4 for log in logs)
    assert {str(out / row.path) for row in results.of(TraceRow)} == set(map(str, events_files(folder)))
    assert f'id="{plan_id}-gantt' in (out / "report.html").read_text() and (folder / "trace.json.gz").exists()
    for words in (["diagnose"], ["simulate"], ["report"], ["status"]):
        assert main([*words, str(out)]) == 0, words
    assert len(read_results(out).rows) == sum(kinds.values()) and (out / "machine.toml").exists()
    assert "event log of taskiter" in capsys.readouterr().out
    for path in (events_files(folder)[0], folder / "gantt.svg"):  # one bit of what diagnose and report read
        whole = path.read_bytes()
        path.write_bytes(whole[:100] + bytes([whole[100] ^ 0x80]) + whole[101:])
        assert main(["diagnose" if path.suffix == ".npz" else "report", str(out)]) == 2
        error = capsys.readouterr().err
        assert path.name in error and error.count("\n") == 1
        path.write_bytes(whole)
    rows, written = read_results(out).rows, [path.read_bytes() for path in events_files(folder)]
    capsys.readouterr()
    assert main([*command, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["folder"] == str(out) and [row["model"] for row in result["losses"]] == ["serial", "taskiter"]
    assert read_results(out).rows == rows
    assert main([*command, "--batch", "8"]) == 2 and "batch was [4], is now [8]" in capsys.readouterr().err
    assert main([*TRACE, "--out", str(out), "--network", "starpu_cnn"]) == 2
    assert [path.read_bytes() for path in events_files(folder)] == written
