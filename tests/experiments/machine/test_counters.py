"""Counters: threads that are started later are counted, what is missing says so, and the report shows either."""

import threading
import time

import pytest
from experiments.synthetic_results import study_of, synthetic_rows

from forktask.experiments.analysis.counters import counter_sentences, counter_table
from forktask.experiments.machine.perf_counters import EVENTS, PerfCounters
from forktask.experiments.report.render_text import render_text
from forktask.experiments.report.sections import build


def spin(seconds):
    """Use CPU time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_threads_that_start_later_are_counted():
    """Check that CPU time of another thread is counted between start and stop, and only there."""
    with PerfCounters({"task_clock_ns": (1, 1)}) as counters:
        if counters.error:
            assert counters.read() == {"task_clock_ns": None}
            return
        spin(0.02)
        counters.start()
        thread = threading.Thread(target=spin, args=(0.05,))
        thread.start()
        thread.join()
        counters.stop()
        spin(0.05)
        assert 0.045 < counters.read()["task_clock_ns"] * 1e-9 < 0.09


def test_what_cannot_be_counted_has_a_reason():
    """Check hardware events, and one that no kernel knows."""
    with PerfCounters() as counters:
        counters.start()
        spin(0.01)
        counters.stop()
        counts = counters.read()
    assert set(counts) == set(EVENTS)
    assert counters.error or all(counts[name] > 0 for name in EVENTS)
    assert not any(counts.values()) or counts["cycles"] is None or counts["cycles"] > 0
    with PerfCounters({"nonsense": (77, 77)}) as counters:
        assert counters.error and counters.read() == {"nonsense": None}


@pytest.mark.parametrize("available", [True, False])
def test_the_report_shows_counts_or_says_that_there_are_none(available):
    """Check counts of a step, and the sentence where the machine has none."""
    rows = synthetic_rows(repeats=5)
    for row in rows:
        if row["kind"] == "sample":
            counts = {"cycles": 4e6, "instructions": 8e6, "llc_misses": None} if available else dict.fromkeys(EVENTS)
            row["counters"] = {**counts, "error": "No such file or directory"}
    study = study_of(rows)
    text = render_text(build(study))
    if available:
        table = counter_table(study)
        assert (table["cycles"] == 4e6 / 50).all() and (table["per_cycle"] == 2).all()
        assert "instructions a cycle" in text
        assert "not available on this machine: llc_misses (No such file" in text
    else:
        assert not len(counter_table(study))
        sentence, _ = counter_sentences(study)
        assert "not available on this machine: cycles, instructions, llc_misses (No such file" in sentence
        assert "Hardware counters not available" in text
