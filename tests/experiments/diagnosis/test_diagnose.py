"""Findings on folders of known faults: chains, imbalance, creation, outliers, and none where there is none."""

import json

import numpy as np
import pytest
from experiments.simulate.folders import MACHINE, results_folder
from kinds import forms_of_models, threads_of

from forktask.cython_src.binding.bind import EVENT_DTYPE, SPELL_DTYPE
from forktask.cython_src.lowering.lower import lower
from forktask.cython_src.plan.dependences import record_graph
from forktask.experiments.analysis.load import load
from forktask.experiments.analysis.losses import losses_of
from forktask.experiments.commands.main import main
from forktask.experiments.diagnosis.case import Case, find_chains
from forktask.experiments.diagnosis.diagnose import diagnose
from forktask.experiments.diagnosis.event_logs import diagnose_log, lost_by_loop
from forktask.experiments.events.event_states import (
    IN_BLOCK,
    PREEMPTED,
    RUNNING,
    SCHEDULING,
    STATE_DTYPE,
    instances,
    worker_states,
)
from forktask.experiments.events.events import EventLog, write_events
from forktask.experiments.report import findings
from forktask.experiments.report.findings import diagnose_folder
from forktask.experiments.simulate.policies import Subject, can_simulate, simulate
from forktask.experiments.subjects.models import parse_model
from forktask.experiments.traces.sweep import file_name, plan_folder


@pytest.mark.parametrize("batch", [30, 60, 120])
def test_the_chain_of_the_checkerboard_is_found(batch):
    """Check that weight gradients of `starpu_cnn` in one buffer are found with layer and buffer, and others are not."""
    for form in ("chain", "commutative", "partial", "tree"):
        plan = lower("starpu_cnn", batch=batch, weight_gradients=form)
        chains = find_chains(plan, np.full(plan.num_tasks, 1e-3))
        named = {(c.layer, c.phase) for c in chains if "weight" in c.kernel}
        if form in ("partial", "tree"):
            assert not named
            continue
        assert named >= {("conv1", "backward"), ("conv2", "backward"), ("conv3", "backward")}
        conv1 = next(c for c in chains if c.layer == "conv1" and "weight" in c.kernel)
        assert conv1.buffer.startswith("conv1.weight")
        blocks = [loop.num_blocks for loop in plan.loops if loop.layer == "conv1" and loop.kernel == conv1.kernel]
        assert conv1.links <= sum(blocks)
        assert conv1.seconds == pytest.approx(conv1.links * 1e-3)
        assert conv1.links >= sum(blocks) / 4


def test_the_diagnosis_begins_with_the_chain(tmp_path, capsys):
    """Check the first finding of a folder with chained gradients, what it would bring, and text and JSON."""

    def block_s(loop, _):
        return {"conv1": 400e-6}.get(loop.layer, 200e-6) if "weight_gradient" in loop.name else 20e-6

    folder, _ = results_folder(tmp_path / "chain", weight_gradients="chain", block_s=block_s)
    first = diagnose(Case(load(folder), "p0"))[0]
    assert first.kind == "chain" and "bind. conv1 backward: 4 blocks update 'conv1." in first.text
    assert "partial" in first.attempt and "times as fast" in first.brings
    folder, _ = results_folder(tmp_path / "partial", weight_gradients="partial", block_s=block_s)
    assert "chain" not in {finding.kind for finding in diagnose(Case(load(folder), "p0"))}
    assert main(["diagnose", str(tmp_path / "chain")]) == 0
    assert "1. Dependency chains bind." in capsys.readouterr().out
    assert main(["diagnose", str(tmp_path / "chain"), "--json"]) == 0
    costs = [f["cost_s"] for f in json.loads(capsys.readouterr().out)["cases"][0]["findings"]]
    assert costs == sorted(costs, reverse=True)


def simulated_log(plan, model, threads=2):
    """Return the event log of two simulated steps: blocks of weight gradients take 200 us, others 20."""
    loop_s = [200e-6 if "conv_backward_weights" in loop.kernel else 20e-6 for loop in plan.loops]
    subject = Subject(plan, np.array(loop_s)[plan.task_loop], MACHINE)
    result = simulate(subject, parse_model(model), threads, run_lengths=(1, 2), keep_schedule=True).schedule
    blocks = np.zeros(2 * plan.num_tasks, EVENT_DTYPE)
    blocks["iteration"], blocks["task"] = np.divmod(np.arange(len(blocks)), plan.num_tasks)
    for name, times in (("start_ns", result["start"]), ("stop_ns", result["finish"])):
        blocks[name] = np.rint(times.ravel() * 1e9)
    blocks["worker"] = result["worker"].ravel()
    blocks = blocks[np.argsort(blocks["start_ns"], kind="stable")]
    barrier, run_ns = parse_model(model).barrier, (0, int(blocks["stop_ns"].max()))
    graph = record_graph(plan.accesses, closed=True)
    times = instances(plan, graph, blocks, np.zeros(0, SPELL_DTYPE), barrier, 0)
    spells = [np.zeros(0, SPELL_DTYPE)] * threads
    events = worker_states(plan, times, blocks, spells, parse_model(model).model, barrier, run_ns)
    about = {"model": model, "threads": threads, "plan": {}, "plan_name": plan.name, "run_start_ns": 0}
    about |= {"run_stop_ns": run_ns[1], "first_iteration": 0, "iterations": 2, "stride": 1, "barrier": barrier}
    about |= {"overhead": 0.0, "overheads": [0.0], "lost": 0}
    loops = {name: [getattr(loop, name) for loop in plan.loops] for name in ("name", "layer", "phase", "first_task")}
    loops["num_blocks"] = [loop.num_blocks for loop in plan.loops]
    return EventLog(about, events, loops, np.array(graph.edges(), np.int32))


def traced_folder(path, models, **options):
    """Write a results folder of `starpu_cnn` with simulated logs of some models and the durations of their blocks."""

    def block_s(loop, _):
        return 200e-6 if "conv_backward_weights" in loop.kernel else 20e-6

    chosen = {"network": "starpu_cnn", "batch": 4, "granularity": "auto"}
    folder, plan = results_folder(path, models=models, block_s=block_s, **chosen, **options)
    for model in models:
        threads = 1 if model == "serial" else 2
        place = plan_folder(folder, next(iter(load(folder).plans.values())))
        write_events(place / "events" / file_name(model, threads), simulated_log(plan, model, threads))
    return folder


@pytest.mark.parametrize("form", ["chain", "partial"])
def test_event_logs_name_the_chain(form, tmp_path, capsys):
    """Check that fork-join's waits behind barriers are traced to chains, with buffer and gain, where there are any."""
    folder = traced_folder(tmp_path, ("serial", "forkjoin:region=persistent", "taskiter"), weight_gradients=form)
    assert main(["diagnose", str(folder), "--json"]) == 0
    plan, *logs = json.loads(capsys.readouterr().out)["cases"]
    assert len(logs) == 3 and not plan["skipped"]
    assert ("chain" in {finding["kind"] for finding in plan["findings"]}) == (form == "chain")
    joins = next(case for case in logs if "forkjoin" in case["title"])["findings"]
    waits = {finding["kind"]: finding for finding in joins}.get("barrier", {"text": "", "attempt": "", "brings": ""})
    assert ("These are chains" in waits["text"]) == (form == "chain")
    if form == "chain":
        assert waits is joins[0] and "while another thread runs conv" in waits["text"]
        assert "'conv1.weight.partials' (4 blocks)" in waits["text"]
        assert waits["attempt"].startswith("--weight-gradients partial") and "times as fast" in waits["brings"]
    costs = [finding["cost_s"] for finding in joins]
    assert costs == sorted(costs, reverse=True)


def test_logs_of_runs_without_their_cpus_say_so_first(tmp_path, capsys, monkeypatch):
    """Check the first line where all logs were disturbed, the note of each, and that serial has no runtime to blame."""
    folder = traced_folder(tmp_path, ("serial", "taskiter"))
    for disturbed, said in (({"serial", "taskiter"}, True), ({"serial"}, False)):
        monkeypatch.setattr(findings, "had_cpus", lambda log, taken=disturbed: log.model not in taken)
        assert main(["diagnose", str(folder)]) == 0
        text = capsys.readouterr().out
        assert text.startswith("All event logs (2) were disturbed. Other programs") == said
        assert text.count("Other programs took CPUs from this run") == len(disturbed) + said
    serial = diagnose_folder(folder)["cases"][1]
    assert "serial" in serial["title"] and "runtime" not in {finding["kind"] for finding in serial["findings"]}


@pytest.mark.parametrize("gone", ["program", "machine"])
def test_a_folder_of_elsewhere_is_diagnosed_without_simulation(gone, tmp_path, capsys):
    """Check that losses are found where the file of a network of one's own is not there, and on another machine, and
    that the reason is said."""
    own = {"machine": None} if gone == "machine" else {}
    folder = traced_folder(tmp_path, ("serial", "forkjoin"), weight_gradients="chain", **own)
    reason = f"{str(folder)!r} was measured on another machine"
    if gone == "program":
        samples = folder / "samples.jsonl"
        samples.write_text(samples.read_text().replace("starpu_cnn", "gone.py:network"))
        reason = "a file of your own must be there"
    assert main(["diagnose", str(folder)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert f"not diagnosed: {reason}" in text
    assert "1. Threads wait behind barriers for" in text and "simulation on" not in text


@pytest.mark.parametrize(
    "model",
    [
        m
        for m in forms_of_models("region", "schedule", "placement")
        if can_simulate(parse_model(m)) and threads_of(m, 2) == 2
    ],
)
def test_losses_by_loop_sum_to_the_step(model):
    """Check that kinds and places of a log's losses sum to its step, less useful work."""
    plan = lower("starpu_cnn", batch=4, weight_gradients="chain")
    log, serial = simulated_log(plan, model), simulated_log(plan, "serial", 1)
    useful_s = float(serial.running_ns.sum()) * 1e-9 / 2
    lost = lost_by_loop(log, serial)
    assert sum(float(by_loop.sum()) for by_loop in lost.values()) == pytest.approx(log.step_s - useful_s, rel=1e-9)
    totals = losses_of(log, serial).per_iteration_s()
    assert all(float(lost[name].sum()) == pytest.approx(totals[name], abs=1e-12) for name in ("barrier", "imbalance"))


def test_imbalance_names_the_layer(tmp_path):
    """Check that one long block of a loop is found, and tasks are proposed."""
    folder, _ = results_folder(tmp_path, block_s=lambda loop, b: 2e-3 if loop.name == "conv2" and b == 0 else 20e-6)
    result = next(f for f in diagnose(Case(load(folder), "p0")) if f.kind == "imbalance")
    assert "Most in conv2 forward" in result.text


def test_creation_by_one_thread_is_found(tmp_path):
    """Check tasks of 2 us on a machine that takes 2 us to create one."""
    from dataclasses import replace

    machine = replace(MACHINE, overheads=replace(MACHINE.overheads, create_task_s=2e-6))
    folder, _ = results_folder(
        tmp_path, block_s=lambda *_: 2e-6, models=("serial", "forkjoin", "tasks", "taskiter"), machine=machine
    )
    result = {f.kind: f for f in diagnose(Case(load(folder), "p0"))}
    assert "One thread creates all" in result["creation"].text and "too fine" not in result


def log_of(seconds, workers=None, preempted=(), pause_before=-1, page_faults=None):
    """Return a log of one loop: seconds of shape (passes, blocks), each block on worker `workers`; 5 ms without any
    block before pass `pause_before`."""
    passes, blocks = seconds.shape
    workers = np.zeros(seconds.shape, int) if workers is None else workers
    rows, now = [], dict.fromkeys(range(workers.max() + 1), 0)
    for k in range(passes):
        for b in range(blocks):
            w, length = int(workers[k, b]), int(seconds[k, b] * 1e9)
            if k == pause_before and now[w] < (resumed := max(now.values()) + 5_000_000 * (b == 0)):
                rows.append((now[w], resumed, k, b, w, SCHEDULING, 0))
                now[w] = resumed
            start = now[w]
            if (k, b) in preempted:
                third = length // 3
                rows += [
                    (start, start + third, k, b, w, RUNNING, IN_BLOCK),
                    (start + third, start + 2 * third, k, b, w, PREEMPTED, IN_BLOCK),
                    (start + 2 * third, start + length, k, b, w, RUNNING, IN_BLOCK),
                ]
            else:
                rows.append((start, start + length, k, b, w, RUNNING, IN_BLOCK))
            rows.append((start + length, start + length + 100, k, b, w, SCHEDULING, 0))
            now[w] = start + length + 100
    events = np.array(sorted(rows, key=lambda r: (r[4], r[0])), STATE_DTYPE)
    about = {"model": "taskiter", "threads": int(workers.max()) + 1, "iterations": passes, "stride": 1}
    about |= {"page_faults": page_faults, "run_start_ns": 0, "run_stop_ns": int(events["stop_ns"].max())}
    loops = {"name": ["conv1"], "layer": ["conv1"], "phase": ["forward"], "first_task": [0], "num_blocks": [blocks]}
    return EventLog(about, events, loops, np.zeros((3, 0), np.int32))


@pytest.mark.parametrize("cause", ["first touch", "preempted", "always", "worker", "cold cache", "evicted", "none", ""])
def test_outliers_are_named_by_what_they_share(cause):
    """Check each injected cause: memory touched first, a CPU taken away, unequal work, a slow worker, a cold cache."""
    rng = np.random.default_rng(0)
    seconds = rng.uniform(0.9e-4, 1.1e-4, (20, 8))
    workers, preempted = np.tile(np.arange(8) % 2, (20, 1)), ()
    if cause == "first touch":
        seconds[0] = 29e-3
    elif cause == "preempted":
        seconds[7, 3], preempted = 4e-3, ((7, 3),)
    elif cause == "always":
        seconds[:, 5] = 1e-3
    elif cause == "worker":
        for k in range(1, 20, 4):
            seconds[k, 2 * (k % 4)] = 1e-3
    elif cause == "cold cache":
        for k in (3, 9, 14):
            workers[k, 1], seconds[k, 1] = 0, 1e-3
            workers[k + 1 :, 1] = 0
            workers[k + 2 :, 1] = 1
            seconds[k + 2, 1] = 1e-3
    elif cause == "evicted":
        seconds[7] = 1e-3
    elif cause == "none":
        for k, b in ((3, 1), (9, 2), (14, 3), (15, 4)):
            seconds[k, b] = 1e-3
    result = diagnose_log(log_of(seconds, workers, preempted, pause_before=7 if cause == "evicted" else -1))
    result = [finding for finding in result if finding.kind != "runtime"]  # the pause of the log
    if not cause:
        assert not result
        return
    words = {
        "first touch": "touches memory for the first time",
        "preempted": "lost",
        "always": "slow in every pass",
        "worker": "on worker 0; all ran on one worker",
        "cold cache": "another core's cache",
        "evicted": "others used the caches: cold caches (slow were 8 of 8 such runs, and 0 of 152 others)",
        "none": "nothing that the log holds",
    }
    assert words[cause] in result[0].text, result[0].text
