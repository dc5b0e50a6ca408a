"""Counters of blocks: which kernel and thread an event belongs to, what the kernel refuses, names, and the report."""

import contextlib
import errno
import mmap
import os
import resource

import numpy as np
import pytest
from cython_src.python_kernels import kernel
from experiments.synthetic_results import sweep_of, synthetic_rows
from kinds import forms_of_models, threads_of

from forktask.cython_src.binding.bind import bind
from forktask.cython_src.errors import UsageError
from forktask.cython_src.plan.builder import PlanBuilder
from forktask.cython_src.plan.model import Block, update
from forktask.experiments.analysis.costs import block_counts, block_sentences
from forktask.experiments.machine import numa
from forktask.experiments.machine.perf_counters import MOST_EVENTS, PerfCounters, block_events
from forktask.experiments.report.rendering import render_text
from forktask.experiments.report.sections import build as report_of
from forktask.experiments.sampling import profile
from forktask.experiments.sampling.profile import count_blocks
from forktask.experiments.subjects.models import parse_model
from forktask.experiments.subjects.subject import build
from forktask.experiments.sweep.configuration import Measure

PAGES, PASSES = 32, 5


@kernel("test_new_pages", "cells", "start stop")
def touch(operands, attributes, bounds, iteration):
    """Write to pages that nobody has touched, as many as the first number of the block says."""
    with mmap.mmap(-1, (1 + PAGES) * mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        for page in range(PAGES if bounds["start"] % 2 else 0):
            memory[page * mmap.PAGESIZE] = 1
    operands["cells"][bounds["start"] : bounds["stop"]] += 1


@kernel("test_no_pages", "cells", "start stop")
def only_update(operands, attributes, bounds, iteration):
    operands["cells"][bounds["start"] : bounds["stop"]] += 1


def plan():
    """Two loops of four blocks; blocks 1 and 3 of the first one touch new pages."""
    builder = PlanBuilder("touching")
    builder.buffer("cells", (4,), role="parameter")
    blocks = [Block((i, i + 1), (update("cells", (i, i + 1)),)) for i in range(4)]
    for name in ("test_new_pages", "test_no_pages"):
        builder.loop(name, name, {"cells": "cells"}, blocks)
    return builder.build()


@pytest.mark.parametrize("model", forms_of_models("unroll"))
def test_events_go_to_the_kernel_and_thread_that_caused_them(model):
    """Check page faults, of which the number is known, by kernel and thread, and that counting changes no result and
    leaves the plan as it was."""
    spec, bound = parse_model(model), bind(plan(), target="numpy")
    threads = threads_of(model, 2)
    job = {"model": spec, "threads": threads, "cpus": None, "counters": ["page_faults"]}
    with PerfCounters(block_events(["page_faults"])) as tried:
        refused = tried.error  # as containers may do
    counts = count_blocks(job, bound, PASSES)
    if refused:
        assert counts == {"by_kernel": {}, "by_thread": [], "error": refused}
        return
    count_blocks(job, bound, PASSES)
    assert (bound.arrays["cells"] == 2 * 2 * (PASSES + 1) * spec.option("unroll", 1)).all()
    faults = {name: each["page_faults"] for name, each in counts["by_kernel"].items()}
    assert 2 * PAGES <= faults["test_new_pages"] < 3 * PAGES and faults["test_no_pages"] < PAGES
    each = [of_thread["page_faults"] for of_thread in counts["by_thread"]]
    assert len(each) == threads and sum(each) == pytest.approx(sum(faults.values()))
    if model == "forkjoin":  # blocks 0 and 1 are one thread's, 2 and 3 the other's
        assert min(each) >= PAGES


def test_a_thread_that_may_open_no_counter_is_not_one_without_events():
    """Check the reason where a process may open no more files, as many threads with many events make it."""
    job = {"model": parse_model("forkjoin"), "threads": 2, "cpus": None, "counters": ["page_faults"]}
    bound, limit, files = bind(plan(), target="numpy"), resource.getrlimit(resource.RLIMIT_NOFILE), []
    expected = count_blocks(job, bound, 1)["error"] or os.strerror(errno.EMFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, limit[1]))
    try:
        with contextlib.suppress(OSError):
            while True:
                files.append(os.open(os.devnull, os.O_RDONLY))
        os.close(files.pop())
        counts = count_blocks(job, bound, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
        for file in files:
            os.close(file)
    assert counts == {"by_kernel": {}, "by_thread": [], "error": expected}


def test_compiled_kernels_leave_the_same_bits_while_they_are_counted():
    """Check a training under `taskiter`: CPU time is counted in every kernel, and weights are those of a serial run."""
    weights = {}
    for model, threads in (("serial", 1), ("taskiter", 2)):
        job = {"model": parse_model(model), "threads": threads, "cpus": None, "seed": 1}
        job |= {"plan": {"network": "lenet5", "batch": 4}, "counters": ["task_clock_ns", "cycles"]}
        bound = build(job, job["model"])
        counts = count_blocks(job, bound, 3)
        weights[model] = {name: bound.view(name).copy() for name in bound.plan.attributes["parameters"]}
        assert counts["by_kernel"] or counts["error"]
        for each in (*counts["by_kernel"].values(), *counts["by_thread"]):
            assert each["task_clock_ns"] >= 0 and (counts["error"] or each["cycles"] >= 0)
    assert all(np.array_equal(weights["serial"][name], own) for name, own in weights["taskiter"].items())


def test_a_profile_says_which_kernels_ran_away_from_their_data(monkeypatch):
    """Check bytes by kernel where each worker is on a node of its own and one of them has all pages."""
    monkeypatch.setattr(profile, "places_of", lambda cpus: [(0, node, -1, node) for node, _ in enumerate(cpus)])
    monkeypatch.setattr(numa, "nodes_of_pages", one_node)
    job = {"model": parse_model("forkjoin"), "threads": 2, "cpus": None, "target_s": 0.01, "memory_nodes": [0, 1]}
    bound = bind(plan(), target="numpy")
    assert profile.measure_profile(job, bound)["remote_bytes"] is None  # threads roam
    cpus = [min(os.sched_getaffinity(0))] * 2
    result = profile.measure_profile({**job, "cpus": cpus}, bound)["remote_bytes"]
    assert result == dict.fromkeys(("test_new_pages", "test_no_pages"), (16.0, 8.0))


def one_node(arrays):
    """The pages of arrays, all on node 0."""
    pages = np.unique([page for array in arrays for page in range(*numa._pages(array))]).astype(np.uint64)
    return pages, np.zeros(len(pages), np.int32)


def test_names_of_events():
    """Check default ones, a processor's own number, and that unknown or too many are refused where they are set."""
    assert {"cycles", "instructions", "l1_misses", "llc_misses"} <= block_events().keys()
    assert block_events(["r3f24"]) == {"r3f24": (4, 0x3F24)}
    with pytest.raises(UsageError, match="counters must be some of .* got 'cycle'"):
        Measure(counters=("cycle",))
    with pytest.raises(UsageError, match="at most 8 events, got 9"):
        Measure(counters=tuple(f"r{number}" for number in range(MOST_EVENTS + 1)))


def test_the_report_has_events_by_kernel_and_thread():
    """Check tables, instructions per cycle, and a sentence where the machine has no counters, or some of them."""
    rows = synthetic_rows(models=("serial", "taskiter"), threads=(2,))
    for row in rows:
        if row["kind"] == "profile":
            counted = {"instructions": 2e6 * (1 + row["repetition"]), "cycles": 1e6 * (1 + row["repetition"])}
            by_thread = [counted] * row["threads"]
            row["counts"] = {
                "by_kernel": {"conv": {**counted, "llc_misses": None}},
                "by_thread": by_thread,
                "error": "",
            }
    sweep = sweep_of(rows)
    by_kernel, by_thread = block_counts(sweep, next(iter(sweep.plans)))
    (own,) = (row for row in by_kernel if str(row["model"]) == "taskiter")
    assert (own["kernel"], own["instructions"], own["per_cycle"]) == ("conv", 4e6, 2.0)
    assert [row["thread"] for row in by_thread if str(row["model"]) == "taskiter"] == [0, 1]
    text = render_text(report_of(sweep), whole=True)
    assert "Events in blocks, by kernel and by thread" in text and "4000000" in text and "could not" not in text
    for row in rows:
        if row["kind"] == "profile":
            row["counts"]["error"] = "Permission denied"
    assert "counted by instructions, cycles, llc_misses alone on this machine (Permission denied)" in render_text(
        report_of(sweep_of(rows)), whole=True
    )
    for row in rows:
        if row["kind"] == "profile":
            row["counts"] = {"by_kernel": {}, "by_thread": [], "error": "Permission denied"}
    (said,) = block_sentences(sweep_of(rows))
    assert said == "Events in blocks could not be counted on this machine (Permission denied)."
