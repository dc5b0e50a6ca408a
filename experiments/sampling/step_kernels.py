"""Speed of a network's kernels on one core: rates of each loop and kernel beside the measured limits, and the step
against its floors."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...cython_src.binding.bind import BoundPlan, bind
from ...cython_src.lowering.lower import initialise, lower
from ...cython_src.lowering.options import PlanOptions, describe
from ...cython_src.plan.model import Plan
from ...forkjoin.executor import SerialExecutor
from ..bounds.bounds import roofline_floor
from ..machine.machine_peaks import measure_bandwidth, measure_memory, measure_peak_flops
from ..subjects.subject import fill_dataset
from ..tables import Column, text_table

ROUNDS = 10  # rounds of a measurement, in turns with the loops that it is compared with
EVENTS_A_ROUND = 200_000
PEAK_S = 0.06
BANDWIDTH_S = 0.01
SMALLEST_SET = 1 << 14  # bytes, less than any first-level cache
WINDOW_S = 2e-3  # so short that some windows lie between two interruptions, also on a busy machine
MEMORY_BYTES = 1 << 28  # of loops whose data come from memory
BATCHES = 4  # batches that take turns


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


def measure_step(
    network: str, options: PlanOptions, seconds: float = 1.0, instruction_set: str | None = None, cpu: int | None = None
) -> dict[str, Any]:
    """Time all loops of a plan, and the step without any log.

    Parameters
    ----------
    network : str
    options : PlanOptions
    seconds : float
        Time to spend, apart from set-up.
    instruction_set, cpu
        See `bind` and `SerialExecutor`.

    Returns
    -------
    dict
        "title", "instruction_set", "peak_flops_per_s", "rows" (`Limits.row` of each loop); "step_time_s",
        "median_step_time_s"; "floor_s": operations of the step, convolutions in their direct form, at the peak;
        "ratio" (fastest step to floor) and "loop_ratio" (sum of loops to floor); "roofline_floor_s": sum over loops of
        the longer of operations at the peak and bytes, each region once, at the bandwidth of memory, and
        "roofline_ratio"; "kernels": a row as of `Limits.row` for all loops of a kernel and phase.
    """
    plan = lower(network, options, num_images=BATCHES * options.batch, num_batches=BATCHES)
    bound = bind(plan, instruction_set=instruction_set)
    initialise(bound, seed=1)
    fill_dataset(bound, seed=1)
    limits = Limits(instruction_set, cpu)
    windows = _windows(bound, 0.5 * seconds, cpu)
    limits.measure_peak()
    fastest, median = loop_times(bound, 0.4 * seconds, cpu)
    limits.measure_peak()
    memory = limits.memory(MEMORY_BYTES)
    rows = [
        limits.row(
            f"{loop.name} ({loop.kernel})",
            float(fastest[k]),
            float(median[k]),
            loop.flops,
            loop.bytes,
            limits.bandwidth(loop.bytes),
        )
        for k, loop in enumerate(plan.loops)
    ]
    floor = plan.flops / limits.peak_flops_per_s
    loops = [(loop.flops, plan.least_bytes(loop)) for loop in plan.loops]
    roofline = roofline_floor(loops, limits.peak_flops_per_s, memory)
    said = describe(options, leave_out=("batch",))
    return {
        "title": f"{network}, batch {options.batch}{', ' + said if said else ''}, layout {plan.attributes['layout']}, "
        f"{plan.num_tasks} blocks",
        "network": network,
        **options.as_dict(),
        "layout": plan.attributes["layout"],
        "instruction_set": bound.instruction_set,
        "peak_flops_per_s": limits.peak_flops_per_s,
        "memory_bytes_per_s": memory,
        "rows": rows,
        "kernels": _kernel_rows(plan, rows, limits),
        "roofline_floor_s": roofline,
        "roofline_ratio": min(windows) / roofline,
        "floor_s": floor,
        "step_time_s": min(windows),
        "median_step_time_s": statistics.median(windows),
        "ratio": min(windows) / floor,
        "loop_ratio": float(fastest.sum()) / floor,
    }


def _kernel_rows(plan: Plan, loops: Sequence[Mapping[str, Any]], limits: Limits) -> list[dict[str, Any]]:
    """Rows of kernels by phase, by falling time: bytes count once, at the mean bandwidth of the loops' triads."""
    sums: dict[str, np.ndarray] = {}
    for loop, row in zip(plan.loops, loops, strict=True):
        size = plan.least_bytes(loop)
        values = (row["time_s"], row["median_time_s"], loop.flops, size, size / row["bandwidth_bytes_per_s"])
        name = f"{loop.kernel}, {loop.phase}"
        sums[name] = sums.get(name, np.zeros(len(values))) + values
    rows = [
        limits.row(name, *map(float, (*of_kernel[:4], of_kernel[3] / of_kernel[4] if of_kernel[4] else 1.0)))
        for name, of_kernel in sums.items()
    ]
    return sorted(rows, key=lambda row: -row["time_s"])


def _windows(bound, seconds: float, cpu: int | None) -> list[float]:
    """Measure seconds per step in many short windows, without an event log."""
    with SerialExecutor(1, cpus=None if cpu is None else [cpu]) as executor:
        executor.prepare(bound)
        executor.run(2)
        start = time.perf_counter()
        executor.run(1)
        count = max(1, round(WINDOW_S / (time.perf_counter() - start)))
        windows: list[float] = []
        stop = start + seconds
        while start < stop or len(windows) < 5:
            start = time.perf_counter()
            executor.run(count)
            windows.append((time.perf_counter() - start) / count)
    return windows


def format_step(result: dict[str, Any], by: str = "loop") -> str:
    """Format the result of `measure_step` for a terminal, by "loop" or by "kernel"."""
    peak = f"peak {result['peak_flops_per_s'] / 1e9:.1f} GFLOP/s"
    lines = [
        f"{result['title']}, {result['instruction_set']}, one core, {peak}",
        *format_rows(result["rows" if by == "loop" else "kernels"]),
        f"step {result['step_time_s'] * 1e3:.3f} ms (median {result['median_step_time_s'] * 1e3:.3f}), floor "
        f"{result['floor_s'] * 1e3:.3f} ms: {result['ratio']:.2f} times the floor; "
        f"loops alone {result['loop_ratio']:.2f}",
        f"roofline floor {result['roofline_floor_s'] * 1e3:.3f} ms at {result['memory_bytes_per_s'] / 1e9:.1f} GB/s "
        f"from memory: {result['roofline_ratio']:.2f} times that floor",
    ]
    return "\n".join(lines)
