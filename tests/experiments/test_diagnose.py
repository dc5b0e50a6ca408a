"""Findings on folders of known faults: chains, imbalance, creation, outliers, and none where there is none."""

import json
import re

import numpy as np
import pytest
from experiments.simulate.folders import MACHINE, results_folder

from forktask.cython_src.graphs.walks import PARTS
from forktask.cython_src.lowering.lower import lower
from forktask.experiments.analysis.load import load
from forktask.experiments.commands.main import main
from forktask.experiments.diagnosis.chains import find_chains
from forktask.experiments.diagnosis.diagnose import diagnose, diagnose_log
from forktask.experiments.diagnosis.outliers import find_outliers
from forktask.experiments.sampling.event_states import IN_BLOCK, PREEMPTED, RUNNING, SCHEDULING, STATE_DTYPE
from forktask.experiments.sampling.events import EventLog, events_files, read_events
from forktask.experiments.sampling.injections import INJECTIONS
from forktask.experiments.sweep.configuration import config_folder


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
    first = diagnose(load(folder), "p0")[0]
    assert first.kind == "chain" and "bind. conv1 backward: 4 blocks update 'conv1." in first.text
    assert "partial" in first.attempt and "times as fast" in first.brings
    folder, _ = results_folder(tmp_path / "partial", weight_gradients="partial", block_s=block_s)
    assert "chain" not in {finding.kind for finding in diagnose(load(folder), "p0")}
    assert main(["diagnose", str(tmp_path / "chain")]) == 0
    assert "1. Dependency chains bind." in capsys.readouterr().out
    assert main(["diagnose", str(tmp_path / "chain"), "--json"]) == 0
    costs = [f["cost_s"] for f in json.loads(capsys.readouterr().out)["cases"][0]["findings"]]
    assert costs == sorted(costs, reverse=True)


def test_imbalance_names_the_layer(tmp_path):
    """Check that one long block of a loop is found, and tasks are proposed."""
    folder, _ = results_folder(tmp_path, block_s=lambda loop, b: 2e-3 if loop.name == "conv2" and b == 0 else 20e-6)
    found = next(f for f in diagnose(load(folder), "p0") if f.kind == "imbalance")
    assert "Most in conv2 forward" in found.text


def test_creation_by_one_thread_is_found(tmp_path):
    """Check tasks of 2 us on a machine that takes 2 us to create one."""
    from dataclasses import replace

    machine = replace(MACHINE, overheads=replace(MACHINE.overheads, create_task_s=2e-6))
    folder, _ = results_folder(
        tmp_path, block_s=lambda *_: 2e-6, models=("serial", "forkjoin", "tasks", "taskiter"), machine=machine
    )
    found = {f.kind: f for f in diagnose(load(folder), "p0")}
    assert "One thread creates all" in found["creation"].text and "too fine" not in found


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
    about["page_faults"] = page_faults
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
    found = diagnose_log(log_of(seconds, workers, preempted, pause_before=7 if cause == "evicted" else -1))
    if not cause:
        assert not found
        return
    words = {
        "first touch": "touches memory for the first time",
        "preempted": "taken away",
        "always": "slow in every pass",
        "worker": "on worker 0; all ran on one worker",
        "cold cache": "another core's cache",
        "evicted": "others used the caches: cold caches (slow were 8 of 8 such runs, and 0 of 152 others)",
        "none": "nothing that the log holds",
    }
    assert words[cause] in found[0].text, found[0].text


def test_causes_in_one_loop_are_told_apart():
    """Check a first touch, emptied caches, a preempted block and blocks that another worker took over, in one log."""
    rng = np.random.default_rng(1)
    seconds, workers = rng.uniform(0.9e-4, 1.1e-4, (40, 8)), np.tile(np.arange(8) % 2, (40, 1))
    seconds[0] = 5e-3
    seconds[10] = 1e-3
    seconds[20, 3] = 4e-3
    workers[21:24, 5] = 0
    seconds[[21, 24], 5] = 1e-3
    workers[30:33, 1] = 0
    seconds[[30, 33], 1] = 1e-3
    log = log_of(seconds, workers, ((20, 3),), pause_before=10, page_faults=4096)
    found = {one.cause: one for one in find_outliers(log)}
    assert {cause: one.count for cause, one in found.items()} == {
        "first touch": 8,
        "evicted": 8,
        "preempted": 1,
        "cold cache": 4,
    }
    assert "4096 page faults" in found["first touch"].evidence
    attempts = {finding.attempt for finding in diagnose_log(log)}
    assert len(attempts) == 4 and "" not in attempts


def test_a_first_pass_without_page_faults_touches_nothing_for_the_first_time():
    """Check that a slow first pass is a cold cache, not a first touch, where the run had fewer page faults than slow
    blocks."""
    seconds = np.full((20, 8), 1e-4)
    seconds[0] = 1e-3
    assert [one.cause for one in find_outliers(log_of(seconds, page_faults=7))] == ["evicted"]
    assert [one.cause for one in find_outliers(log_of(seconds, page_faults=8))] == ["first touch"]


def test_the_shipped_experiment_injects_each_cause_and_the_diagnosis_reads_it(tmp_path, capsys):
    """Check the small form of `outliers` with one task model: a log of each cause, its page faults, and findings."""
    text = (config_folder() / "outliers.toml").read_text()
    few = re.sub(r"models = .*", 'models = ["taskiter"]', text.replace('threads = "cores"', "threads = 2"), count=1)
    (tmp_path / "few.toml").write_text(few)
    folder = tmp_path / "outliers"
    assert main(["run", str(tmp_path / "few.toml"), "--quick", "--out", str(folder)]) == 0, capsys.readouterr().err
    for cause in INJECTIONS:
        ((log,),) = [map(read_events, events_files(place)) for place in folder.glob(f"traces/*/{cause}")]
        assert log.about["injected"] == cause
        if cause == "first-touch":
            assert log.about["page_faults"] >= PARTS  # with huge pages a part may be one page
    capsys.readouterr()
    assert main(["diagnose", str(folder)]) == 0
    said = capsys.readouterr().out
    assert all(f"event log of taskiter, 2 threads, {cause} injected" in said for cause in INJECTIONS)


def test_what_can_be_injected_is_said(tmp_path, capsys):
    """Check unknown causes in a file and on the command line, and options of networks for a plan that is none."""
    (tmp_path / "wrong.toml").write_text('[measure]\ninject = ["first_touch"]\n')
    assert main(["run", str(tmp_path / "wrong.toml"), "--dry-run"]) == 2
    assert "inject must be some of first-touch, cold-cache, preemption" in capsys.readouterr().err
    assert main(["compare", "--network", "forktask.cython_src.graphs.walks:walks", "--batch", "4", "--out", "no"]) == 2
    assert "a plan that is no network has no options but batch 1, got batch 4" in capsys.readouterr().err
