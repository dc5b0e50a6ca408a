"""The kernels of a network's step on one core: rates of each loop and kernel, and the step against its floors."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...cython_src.binding.bind import bind
from ...cython_src.lowering.lower import initialise, lower
from ...cython_src.lowering.options import PlanOptions, describe
from ...cython_src.plan.model import Plan
from ...forkjoin.executor import SerialExecutor
from ..bounds.bounds import roofline_floor
from .kernel_timing import Limits, format_rows, loop_times

WINDOW_S = 2e-3  # so short that some windows lie between two interruptions, also on a busy machine
MEMORY_BYTES = 1 << 28  # of loops whose data come from memory
BATCHES = 4  # batches that take turns


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
    plan = lower(network, options, num_images=max(options.batch, 64), num_batches=BATCHES)
    bound = bind(plan, instruction_set=instruction_set)
    initialise(bound, seed=1)
    rng = np.random.default_rng(1)
    arrays = bound.arrays
    num_images, num_classes = max(options.batch, 64), plan.attributes["num_classes"]
    if "dataset.images" in arrays:
        arrays["dataset.images"][...] = rng.standard_normal(arrays["dataset.images"].shape)
    answers = arrays["dataset.labels" if "dataset.labels" in arrays else "dataset.tokens"]
    answers[...] = rng.integers(0, num_classes, answers.shape)
    arrays["batch_order"][...] = rng.integers(0, num_images, arrays["batch_order"].shape)
    if "learning_rates" in arrays:
        arrays["learning_rates"][...] = 1e-4
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
