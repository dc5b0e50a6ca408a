"""Profile of a GPU model: time of kernels, copies and driver calls, and the cost of profiling itself.

Kernels are timed one by one between two events on a single stream, whatever the model: a captured graph hides the times
of its kernels, and the kernels are the same. Before each pass the stream waits for as long as the host takes to issue
it: otherwise short kernels would wait for the host between their events. The median time of an empty kernel between two
events, of which a pass has as many, is subtracted. Copies and calls are those of the model.
"""

from __future__ import annotations

import math
import os
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from ...cython_src.lowering.options import PlanOptions
from ...forkjoin.gpu_executor import GpuStreamExecutor
from ..subjects.models import check_ours, describe_gpu_convolutions, make_executor, models_on
from ..subjects.subject import build
from ..tables import Column, number, number_column, percent_column, text_column, text_table
from .profile import EVENT_LOG_WARMUP, MAX_PROFILE_EVENTS, measure_runtime_cost
from .timing import Stepper

AHEAD = 1.5  # times the duration of issuing a pass that the stream waits before it
# Driver calls that wait, or may wait, for the device.
WAITING = ("synchronize", "copy_to_host", "copy_to_device")


class CallTimes:
    """Wrapper of a device that records how long each call blocks the host: `times_s`, by name of the call."""

    def __init__(self, device):
        self._device = device
        self.times_s: dict[str, list[float]] = defaultdict(list)

    def __getattr__(self, name):
        value = getattr(self._device, name)
        if not callable(value):
            return value

        def timed(*arguments, **options):
            start = time.perf_counter()
            try:
                return value(*arguments, **options)
            finally:
                self.times_s[name].append(time.perf_counter() - start)

        return timed


def _row(name: str, times_s: Sequence[float], passes: int, total_s: float) -> dict[str, Any]:
    """Return a table row: time and calls of a step, and extremes of single calls."""
    times = np.asarray(times_s)
    return {
        "name": name,
        "time_s": float(times.sum()) / passes,
        "share": float(times.sum()) / total_s if total_s else 0.0,
        "calls": len(times) / passes,
        "mean_s": float(times.mean()),
        "min_s": float(times.min()),
        "max_s": float(times.max()),
    }


class _IssuedAhead(GpuStreamExecutor):
    """A single stream that begins with a pass when all of it has been issued, with two events for each launch, and for
    each of as many empty kernels.

    `events`: loops, event before, event after, of each launch; no loops: of an empty kernel.
    """

    clock = staticmethod(time.perf_counter)
    issue_s = 0.0  # how long the host took for the pass before

    def __init__(self):
        super().__init__()
        self.events: list[tuple[tuple[int, ...], Any, Any]] = []

    def _run_on(self, bound, first_replay, num_replays):
        for replay in range(first_replay, first_replay + num_replays):
            bound.spin(self._stream, round(AHEAD * 1e9 * self.issue_s))
            start = self.clock()
            for loops in (*bound.groups, *[()] * len(bound.groups)):
                before, after = (bound.device.event(timing=True) for _ in range(2))
                bound.device.record(before, self._stream)
                if loops:
                    bound.launch(loops, self._stream, replay)
                else:
                    bound.spin(self._stream, 0)
                bound.device.record(after, self._stream)
                self.events.append((loops, before, after))
            self.issue_s = self.clock() - start


def kernel_times(bound, target_s: float) -> tuple[dict[tuple[int, ...], list[float]], int, float, float]:
    """Time every launch on a single stream.

    Returns
    -------
    times_s : dict of loops to list of float
        Without the time of an empty kernel; none is below zero.
    passes : int
    step_time_s : float
        Time of a step with these events and the waits for the host.
    empty_s : float
        Median time of an empty kernel.
    """
    with _IssuedAhead() as executor:
        executor.prepare(bound)
        stepper = Stepper(executor, bound.iteration_stride)
        pass_s = min(stepper.run(1) for _ in range(EVENT_LOG_WARMUP))
        passes = int(min(max(target_s / pass_s, 3), MAX_PROFILE_EVENTS // (2 * len(bound.groups)), 200))
        executor.events.clear()
        wall = stepper.run(passes)
        spans = [(loops, bound.device.elapsed_s(before, after)) for loops, before, after in executor.events]
    empty_s = float(np.median([span for loops, span in spans if not loops]))
    times: dict[tuple[int, ...], list[float]] = {loops: [] for loops in bound.groups}
    for loops, span in spans:
        if loops:
            times[loops].append(max(0.0, span - empty_s))
    return times, passes, wall / (passes * bound.iteration_stride), empty_s


def describe_gpu(bound, clocks_hz: Sequence[float] = ()) -> dict[str, Any]:
    """Describe the device of a bound plan: name, one-time costs, copies so far, and the median of its clocks.

    Copies are {"to_host", "to_device"}, each [number, bytes].
    """
    return {
        "name": bound.device.name,
        "architecture": bound.device.architecture,
        "peak_flops_per_s": bound.device.peak_flops_per_s,
        "peak_bytes_per_s": bound.device.peak_bytes_per_s,
        "costs_s": dict(bound.device.costs_s),
        "clock_hz": float(np.median(clocks_hz)) if clocks_hz else None,
        "copies": {f"to_{place}": list(count) for place, count in bound.copies.items()},
    }


def measure_gpu_profile(job: Mapping[str, Any], bound=None) -> dict[str, Any]:
    """Profile one GPU model: see the module's docstring.

    Returns
    -------
    dict
        kernels, calls: tables of a step (`_row`); busy_s: kernels of a step; empty_kernel_s: subtracted from each;
        loop_time_s: {launch: seconds of a step};
        copies: {"to_host", "to_device": [number, bytes] of a step}; step_time_s: without profiling;
        profiled_step_s: {"kernels", "calls"}: with; runtime_cost_s: a step of empty kernels, None for a model that
        moves data.
    """
    spec = job["model"]
    started = time.time()
    bound = build(job, spec) if bound is None else bound
    stride = bound.iteration_stride
    times, kernel_passes, kernels_step_s, empty_s = kernel_times(bound, job["target_s"])
    total_s = sum(map(sum, times.values()))
    with make_executor(spec, job["threads"], cpus=job["cpus"]) as executor:
        executor.prepare(bound)
        stepper = Stepper(executor, stride)
        pass_s = min(stepper.run(1) for _ in range(EVENT_LOG_WARMUP))
        passes = int(min(max(job["target_s"] / pass_s, 3), 1000))
        step_time_s = min(stepper.run(passes) for _ in range(3)) / (passes * stride)
        plain = bound.device
        bound.device = CallTimes(plain)
        before = {place: tuple(count) for place, count in bound.copies.items()}
        try:
            wall = stepper.run(passes)
        finally:
            calls, bound.device = bound.device.times_s, plain
        copies = {
            f"to_{place}": [(now - then) / passes for now, then in zip(count, before[place], strict=True)]
            for place, count in bound.copies.items()
        }
    loops = bound.plan.loops
    names = {k: loops[k[0]].name + (f" and {len(k) - 1} more" if len(k) > 1 else "") for k in times}
    kernels = []
    for k, values in times.items():
        row = _row(f"{names[k]} ({loops[k[0]].kernel})", values, kernel_passes, total_s)
        traffic = sum(sum(bound.plan.least_traffic(loops[loop])) for loop in k)
        kernels.append({**row, "flops": sum(loops[loop].flops for loop in k), "bytes": traffic})
    return {
        "kernels": kernels,
        "busy_s": total_s / (kernel_passes * stride),
        "empty_kernel_s": empty_s,
        "loop_time_s": {names[k]: sum(values) / kernel_passes for k, values in times.items()},
        "calls": [_row(name, values, passes, wall) for name, values in calls.items()],
        "copies": copies,
        "runtime_cost_s": None if spec.model.moves_data else measure_runtime_cost(job, bound.plan),
        "step_time_s": step_time_s,
        "profiled_step_s": {"kernels": kernels_step_s, "calls": wall / (passes * stride)},
        "iterations": passes * stride,
        "instruction_set": bound.instruction_set,
        "gpu": describe_gpu(bound),
        "pid": os.getpid(),
        "started": started,
    }


def _us(name: str, heading: str, digits: int = 2) -> Column:
    return Column(heading, lambda r: f"{r[name] * 1e6:.{digits}f}", True)


def _of_limit(gpu: Mapping[str, Any], r: Mapping[str, Any]) -> str:
    """Least time of a launch, by the device's peaks of float32 and of its memory, over its own."""
    least_s = r["flops"] / gpu["peak_flops_per_s"], r["bytes"] / gpu["peak_bytes_per_s"]
    return f"{100 * max(least_s) / r['mean_s']:.0f}%" if r["mean_s"] and not math.isnan(sum(least_s)) else ""


def format_profile(row: Mapping[str, Any]) -> str:
    """Format the result of `measure_gpu_profile` for a terminal."""
    idle = 1 - row["busy_s"] / row["step_time_s"]
    lines = [
        f"{row['gpu']['name']} ({row['gpu']['architecture']}): a step takes {row['step_time_s'] * 1e6:.1f} µs, its "
        f"kernels {row['busy_s'] * 1e6:.1f} µs one after the other, idle {100 * idle:.0f} %"
        + (" (kernels overlap)" if idle < 0 else "")
    ]
    calls = sorted(row["calls"], key=lambda r: -r["time_s"])
    rate = Column("TFLOP/s", lambda r: number(1e-12 * r["flops"] / (r["mean_s"] or math.nan), 2), True)
    rates = rate, Column("of limit", partial(_of_limit, row["gpu"]), True)
    for title, table, more in (("kernel", row["kernels"], rates), ("call of the driver", calls, ())):
        columns = (
            text_column("name", title),
            percent_column("share", digits=1),
            _us("time_s", "µs per step", 1),
            number_column("calls", digits=1),
            *(_us(f"{name}_s", heading) for name, heading in (("mean", "mean µs"), ("min", "min"), ("max", "max"))),
            *more,
        )
        lines += ["", *text_table(columns, table)]
    waits = sum(r["time_s"] for r in row["calls"] if r["name"] in WAITING)
    lines += ["", f"in calls that may wait for the device: {waits * 1e6:.1f} µs per step"]
    for place, text in (("to_device", "host to device"), ("to_host", "device to host")):
        copies, size = row["copies"][place]
        lines.append(f"copies {text}: {copies:.1f} a step, {size / 1e3:.1f} kB")
    if row["runtime_cost_s"] is not None:
        lines.append(f"a launch of an empty kernel for each loop: {row['runtime_cost_s'] * 1e6:.1f} µs per step")
    lines.append(f"subtracted from each kernel's time: {row['empty_kernel_s'] * 1e6:.2f} µs of an empty kernel")
    flops, traffic = (1e-12 * row["gpu"][f"peak_{what}_per_s"] for what in ("flops", "bytes"))
    lines.append(f"limit: {flops:.3g} TFLOP/s of float32 or {traffic:.3g} TB/s, by the clocks that the driver names")
    lines.append("once: " + ", ".join(f"{name} {s:.2f} s" for name, s in row["gpu"]["costs_s"].items()))
    for what, seconds in row["profiled_step_s"].items():
        lines.append(
            f"timing {what} itself: a step takes {seconds * 1e6:.1f} µs meanwhile"
            + (" (on a single stream)" if what == "kernels" else "")
        )
    return "\n".join(lines)


def profile_network(network: str, options: PlanOptions, model: str, seconds: float) -> dict[str, Any]:
    """Profile a network under one model of a GPU, each part for about `seconds`; see `measure_gpu_profile`."""
    (spec,) = check_ours(models_on("gpu", [model], ()))
    plan = {"network": network, **options.as_dict()}
    row = measure_gpu_profile({"model": spec, "threads": 1, "cpus": None, "plan": plan, "seed": 1, "target_s": seconds})
    return {**row, "convolutions": describe_gpu_convolutions(options.conv)}
