"""Which loops of a step are bound by arithmetic and which by memory, and how near the serial run comes to its roof.

The floor of a loop is the longer of two times: its floating-point operations at the measured peak, and its bytes, each
region once, at the measured bandwidth of memory. Loops are summed by kernel and phase.
"""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from ...cython_src.typed_text import rounded
from ..bounds.bounds import least_times
from ..results.rows import Loop
from ..subjects.models import SERIAL, ModelSpec
from ..tables.numbers import plural
from .accounting import busy_by, shown_profiles
from .sweep import Point, Sweep, kept

ARITHMETIC, MEMORY = "arithmetic", "memory"
EXPLAINED = 1.25  # times the floor, above which a step is not said to be bound by it
MOST_NAMED = 3  # kernels that explain the rest


def _cpu_points(sweep: Sweep, plan_id: str) -> list[tuple[ModelSpec, int]]:
    """Return the models of the CPU, with their threads, that ran a plan."""
    return [(model, threads) for model, threads in sweep.points_of(plan_id) if not model.is_gpu]


def kernel_of(loop: Loop) -> tuple[str, str]:
    """Return kernel and phase of a loop of a plan's row."""
    return loop.kernel, loop.phase


@kept
def roofline_table(sweep: Sweep, plan_id: str) -> pd.DataFrame:
    """Return kernels by phase against the roofline of one thread.

    Columns: plan_id, kernel, phase, loops, flops, bytes (least), intensity (FLOP a byte; NaN without bytes), floor_s,
    memory_share (of the floor: loops whose bytes take longer than their arithmetic), bound ("arithmetic" or "memory":
    what takes more of the floor), time_s and share (of the serial step, from the profiles; NaN without any), roof =
    floor_s / time_s. Empty where peak or bandwidth were not measured, or no model of the CPU was: the peaks are the
    CPU's. Rows are by falling time, or floor.
    """
    flops_per_s, bytes_per_s = sweep.rates(1)
    if not _cpu_points(sweep, plan_id) or not (math.isfinite(flops_per_s) and math.isfinite(bytes_per_s)):
        return pd.DataFrame()
    loops = sweep.plans[plan_id].loops
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for loop in loops:
        kernel, phase = kernel_of(loop)
        row = rows.setdefault(
            (kernel, phase),
            {"plan_id": plan_id, "kernel": kernel, "phase": phase, "loops": 0, "flops": 0.0, "bytes": 0.0}
            | {"floor_s": 0.0, "memory_s": 0.0},
        )
        arithmetic_s, memory_s = least_times((loop.flops, loop.least_bytes), flops_per_s, bytes_per_s)
        row["loops"] += 1
        row["flops"] += loop.flops
        row["bytes"] += memory_s * bytes_per_s
        row["floor_s"] += max(arithmetic_s, memory_s)
        row["memory_s"] += memory_s if memory_s > arithmetic_s else 0.0
    point = Point(plan_id, SERIAL, 1)
    step_s = sweep.times.time(point).value
    table = pd.DataFrame(rows.values())
    _, busy = busy_by(sweep, point, kernel_of, shown_profiles(sweep, point))
    table["share"] = (busy / busy.sum(axis=1, keepdims=True)).mean(axis=0) if len(busy) else math.nan
    table["time_s"] = table["share"] * step_s
    table["intensity"] = table["flops"] / table["bytes"].where(table["bytes"] > 0)
    table["memory_share"] = table["memory_s"] / table["floor_s"].where(table["floor_s"] > 0)
    table["bound"] = [MEMORY if share > 0.5 else ARITHMETIC for share in table["memory_share"]]
    table["roof"] = table["floor_s"] / table["time_s"]
    by = "time_s" if table["time_s"].notna().any() else "floor_s"
    return table.sort_values(by, ascending=False, kind="stable", ignore_index=True).drop(columns="memory_s")


@kept
def floors_by_phase(sweep: Sweep, plan_id: str, threads: int) -> dict[str, tuple[float, float]]:
    """Return phase -> (floor in loops that arithmetic bounds, floor in loops that memory bounds), in seconds.

    Empty where peak or bandwidth on these threads were not measured, or no model of the CPU was.
    """
    flops_per_s, bytes_per_s = sweep.rates(threads)
    if not _cpu_points(sweep, plan_id) or not (math.isfinite(flops_per_s) and math.isfinite(bytes_per_s)):
        return {}
    floors: dict[str, list[float]] = {}
    for loop in sweep.plans[plan_id].loops:
        arithmetic_s, memory_s = least_times((loop.flops, loop.least_bytes), flops_per_s, bytes_per_s)
        floors.setdefault(loop.phase, [0.0, 0.0])[memory_s > arithmetic_s] += max(arithmetic_s, memory_s)
    return {phase: (both[0], both[1]) for phase, both in floors.items() if sum(both)}


def memory_share(sweep: Sweep, plan_id: str) -> float | None:
    """Return the part of a plan's floor on one thread that memory bounds; None without a floor."""
    floors = floors_by_phase(sweep, plan_id, 1).values()
    return sum(memory for _, memory in floors) / sum(map(sum, floors)) if floors else None


def bound_sentences(sweep: Sweep, plan_id: str) -> list[str]:
    """Say for each number of threads which phases arithmetic bounds and which memory, and how near the step comes."""
    sentences = []
    for threads in sorted({threads for _, threads in _cpu_points(sweep, plan_id)}):
        floors = floors_by_phase(sweep, plan_id, threads)
        if not floors:
            continue
        total = sum(map(sum, floors.values()))
        texts = []
        for bound, index in ((ARITHMETIC, 0), (MEMORY, 1)):
            parts = [(phase, both[index] / sum(both)) for phase, both in floors.items()]
            named = [f"{phase} ({share:.0%} of its floor)" for phase, share in parts if share > 0.5 and phase != "load"]
            if named:
                texts.append(f"{', '.join(named)} by {bound}")
        memory = sum(both[1] for both in floors.values()) / total
        here = [(plan_id, model, count) for model, count in _cpu_points(sweep, plan_id) if count == threads]
        fastest = sweep.times.fastest(here)
        factor = sweep.times.time(fastest).value / total
        sentences.append(
            f"Bound by model on {plural(threads, 'thread')}: {'; '.join(texts)}; loops that memory bounds are "
            f"{memory:.0%} of the roofline floor of {rounded(total * 1e3)} ms; a step of {sweep.label(fastest[1])} "
            f"takes {factor:.2f} times that floor."
        )
    return sentences + unexplained(sweep, plan_id)


def unexplained(sweep: Sweep, plan_id: str) -> list[str]:
    """Say which kernels hold the time that the floor does not explain."""
    table = roofline_table(sweep, plan_id)
    if not len(table) or table["time_s"].isna().any() or table["time_s"].sum() < EXPLAINED * table["floor_s"].sum():
        return []
    over = (table["time_s"] - table["floor_s"]).clip(lower=0)
    named = [
        f"{row['kernel']}, {row['phase']} ({over[place] / over.sum():.0%}, {1 / row['roof']:.1f} times its floor)"
        for place, row in table.loc[over.nlargest(MOST_NAMED).index].iterrows()
    ]
    return [
        f"The floor does not explain the step: perfect kernels would take it, these take {over.sum() * 1e3:.3g} ms "
        f"more (serial), most in {'; '.join(named)}. Only hardware counters tell whether these wait for caches or run "
        f"slow instructions."
    ]
