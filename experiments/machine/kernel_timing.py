"""Times of single kernels on one core, and the limits that they are compared with."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...cython_src.binding.bind import BoundPlan
from ...forkjoin.executor import SerialExecutor
from ..tables import Column, text_table
from .machine_peaks import measure_bandwidth, measure_memory, measure_peak_flops

ROUNDS = 10  # rounds of a measurement, in turns with the loops that it is compared with
EVENTS_A_ROUND = 200_000
PEAK_S = 0.06
BANDWIDTH_S = 0.01
SMALLEST_SET = 1 << 14  # bytes, less than any first-level cache


def loop_times(bound: BoundPlan, seconds: float, cpu: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Run a plan on one thread for about so long, in rounds, and return the times of its loops in seconds.

    Returns
    -------
    fastest : float64, shape (loops,)
        Sum over the blocks of each block's fastest iteration: other programs' load adds, never subtracts.
    median : float64, shape (loops,)
        Median time of whole loops.
    """
    plan = bound.plan
    capacity = max(EVENTS_A_ROUND, plan.num_tasks)
    starts = [loop.first_task for loop in plan.loops]
    fastest, of_loops = np.full(plan.num_tasks, np.inf), []
    with SerialExecutor(1, cpus=None if cpu is None else [cpu], event_capacity=capacity) as executor:
        executor.prepare(bound)
        executor.run(2)
        start = time.perf_counter()
        executor.run(1)
        once = time.perf_counter() - start
        iterations = int(np.clip(round(seconds / once / ROUNDS), 1, capacity // plan.num_tasks))
        for _ in range(ROUNDS if seconds > 0 else 1):
            executor.workers.clear_events()
            executor.run(iterations)
            events = executor.workers.events()
            durations = np.zeros((iterations, plan.num_tasks))
            durations[events["iteration"], events["task"]] = (events["stop_ns"] - events["start_ns"]) * 1e-9
            fastest = np.minimum(fastest, durations.min(axis=0))
            of_loops.append(np.add.reduceat(durations, starts, axis=1))
    return np.add.reduceat(fastest, starts), np.median(np.concatenate(of_loops), axis=0)


class Limits:
    """The multiply-add peak, and the bandwidth of a triad over arrays of some size, of one core.

    Without an instruction set they are those of the processor's best.
    """

    def __init__(self, instruction_set: str | None = None, cpu: int | None = None):
        self.instruction_set, self.cpu = instruction_set, cpu
        self._cpus = None if cpu is None else [cpu]
        self._triads: dict[int, float] = {}
        self.peak_flops_per_s = 0.0
        for _ in range(3):
            self.measure_peak()

    def measure_peak(self) -> None:
        """Measure the peak once more and keep the highest."""
        found = measure_peak_flops(PEAK_S, self.instruction_set, self.cpu)["flops_per_s"]
        self.peak_flops_per_s = max(self.peak_flops_per_s, found)

    def memory(self, size: int) -> float:
        """Measure the highest rate over so many bytes (`measure_memory`)."""
        return max(measure_memory(1, 4 * BANDWIDTH_S, size, self._cpus) for _ in range(3))

    def bandwidth(self, size: float) -> float:
        """Return bytes per second of a triad over about so many bytes (to the next power of two), measured once."""
        rounded = 1 << max(int(size) - 1, SMALLEST_SET - 1).bit_length()
        if rounded not in self._triads:
            self._triads[rounded] = max(measure_bandwidth(1, BANDWIDTH_S, rounded, self._cpus) for _ in range(3))
        return self._triads[rounded]

    def row(self, name: str, time_s: float, median_s: float, flops: float, size: float, bandwidth: float) -> dict:
        """Return a kernel's row: rates, and the share of its limit.

        The limit is the longer of two times: its operations at the peak, and its bytes at a bandwidth.
        """
        limit_s = max(flops / self.peak_flops_per_s, size / bandwidth if size else 0.0)
        return {
            "name": name,
            "time_s": time_s,
            "median_time_s": median_s,
            "flops": flops,
            "bytes": size,
            "flops_per_s": flops / time_s,
            "bytes_per_s": size / time_s,
            "bandwidth_bytes_per_s": bandwidth,
            "share_of_limit": limit_s / time_s,
        }


KERNELS = (
    Column("kernel", lambda r: r["name"]),
    Column("us", lambda r: f"{r['time_s'] * 1e6:.1f}", True),
    Column("median", lambda r: f"{r['median_time_s'] * 1e6:.1f}", True),
    Column("share", lambda r: f"{r['share']:.1%}", True),
    Column("GFLOP/s", lambda r: f"{r['flops_per_s'] / 1e9:.1f}" if r["flops"] else "", True),
    Column("GB/s", lambda r: f"{r['bytes_per_s'] / 1e9:.1f}", True),
    Column("of limit", lambda r: f"{r['share_of_limit']:.0%}", True),
)


def format_rows(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Format a table: time, GFLOP/s and GB/s of each kernel, and its share of the measured limit."""
    total = sum(row["time_s"] for row in rows)
    return text_table(KERNELS, ({**row, "share": row["time_s"] / total} for row in rows))
