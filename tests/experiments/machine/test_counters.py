"""Counters: threads that are started later are counted, what is missing says so, and the report shows either."""

import threading
import time

from forktask.experiments.machine.perf_counters import EVENTS, PerfCounters


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
