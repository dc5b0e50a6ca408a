"""Parts of a step's time: layers, phases, and the rest that the blocks of a run do not explain.

A profile is a process of its own with the event log on. It gives parts, never times: the part of a
layer in the time of all blocks, the part of the threads' time that is spent in blocks, and by how much the run took
longer than the floor computed from its own blocks. Each part is the median (of layers the mean, so that they add up)
over the repeated profiles; times are parts of the step times that the tables show. So the wall times of phases add up
to the step, and the times of the serial run are the sums of its layers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from ...cython_src.plan.model import PHASES
from ..results.rows import Loop, ProfileRow
from ..subjects.models import SERIAL, ModelSpec
from .costs import memory_table
from .estimates import NOTHING, Estimate, estimate
from .limits import bound_of
from .names import NETWORK, value_text, with_texts
from .speeds import best_serial, interval_columns, speed_table
from .sweep import Point, Sweep, kept

OTHER_RUNS = "The runs with the event log took another time than the timed ones, so that nothing is said of their parts"
# So far above its floor, and what the same barriers or tasks cost with empty kernels, a step may take.
MOST_OVER = 0.05
WITHIN, BEYOND, UNDECIDED = "within", "beyond", "undecided"
# Runs with the log stand for the timed ones as long as they take this many times as long at most, or at least.
ALIKE = 1.1


def is_alike(profile: ProfileRow, timed_s: float) -> bool:
    """Return whether logged steps took about as long as timed ones; true where the time of these is NaN."""
    return math.isnan(timed_s) or 1 / ALIKE < profile.pass_time_s / timed_s < ALIKE


@kept
def alike_profiles(sweep: Sweep, point: Point) -> dict[int, ProfileRow]:
    """Return by repetition the profiles of a point that took as long as tables show; others do not stand for it."""
    timed_s = sweep.times.time(point).value
    return {repetition: row for repetition, row in sweep.profiles_of(point).items() if is_alike(row, timed_s)}


def shown_profiles(sweep: Sweep, point: Point) -> list[ProfileRow]:
    """Return the profiles that shares of a point's time are of: those like its timed runs, or all where none is."""
    return [*(alike_profiles(sweep, point) or sweep.profiles_of(point)).values()]


def unlike_text(sweep: Sweep, plan_id: str) -> list[str]:
    """Return a sentence about the points of a plan that have profiles, but none like their timed runs."""
    own = [point for point in sweep.points() if point.plan_id == plan_id and sweep.profiles_of(point)]
    named = [f"{sweep.label(p.model)} on {p.threads}" for p in own if not alike_profiles(sweep, p)]
    return [f"{OTHER_RUNS}: {', '.join(named)}."] if named else []


def _parts_of(sweep: Sweep, point: Point, part) -> Estimate:
    """Return the mean of `part`, a positive number, over a point's profiles."""
    return estimate(part(profile) for profile in alike_profiles(sweep, point).values())


def _busy_part(profile: ProfileRow) -> float:
    """Return the part of the threads' time that a profile spent in blocks."""
    return sum(profile.loop_time_s.values()) / (profile.pass_time_s * profile.threads)


def busy_against_serial(sweep: Sweep, point: Point) -> Estimate:
    """Return the part of the threads' time in blocks over that of the plan's serial run.

    So what the serial run spends between blocks, most of it on the log itself, counts as work. Without a serial run of
    the plan it is the part in blocks as logged.
    """
    serial = (point[0], SERIAL, 1)
    if point == serial:
        return Estimate(1.0, math.nan, math.nan, len(sweep.profiles_of(point)))
    own, base = _parts_of(sweep, point, _busy_part), _parts_of(sweep, serial, _busy_part)
    return own.over(base) if own.count and base.count else own


def busy_time(sweep: Sweep, point: Point) -> Estimate:
    """Return the seconds that a step of a point spends in blocks, all threads together; the serial run all its time."""
    step, part = sweep.times.time(point), busy_against_serial(sweep, point)
    if not (step.count and part.count):
        return NOTHING
    return step.over(part.inverse()).divided_by(1 / point[2])


def inflation(sweep: Sweep, point: Point) -> Estimate:
    """Return a point's time in blocks over that of the plan's serial run; above 1 where blocks slow each other."""
    serial = (point[0], SERIAL, 1)
    if point == serial:
        return Estimate(1.0, math.nan, math.nan, len(sweep.profiles_of(point)))
    steps = sweep.times.ratio(point, serial) if {point, serial} <= set(sweep.turns) else NOTHING
    busy = busy_against_serial(sweep, point)
    if not (steps.count and busy.count and alike_profiles(sweep, serial)):
        return NOTHING
    return steps.over(busy.inverse()).divided_by(1 / point[2])


def faster_blocks(sweep: Sweep, point: Point, efficiency: float) -> str:
    """Say why an efficiency is above 1: by how much blocks ran faster than in the serial run; else nothing."""
    if not efficiency > 1 or point[2] < 2:
        return ""
    own = inflation(sweep, point)
    if not own.count:
        return "not profiled"
    return f"blocks {1 - own.value:.1%} faster than serial" if own.value < 1 else "not by faster blocks; measure again"


def busy_by(sweep: Sweep, point: Point, key, profiles: Iterable[ProfileRow]) -> tuple[list[Any], np.ndarray]:
    """Return the seconds in blocks of some profiles of a point by `key` of each loop: keys in plan order, and float64
    of shape (profiles, keys)."""
    names: dict[Any, dict[str, None]] = {}  # loops of a chain share a name
    for loop in sweep.plans[point[0]].loops:
        names.setdefault(key(loop), {})[loop.name] = None
    rows = [row.loop_time_s for row in profiles]
    return list(names), np.array([[sum(row[name] for name in own) for own in names.values()] for row in rows])


def layer_table(sweep: Sweep, plan_id: str, model: ModelSpec = SERIAL, threads: int = 1) -> pd.DataFrame:
    """Return the busy time by layer and phase.

    Columns: layer, phase, loops, blocks, flops, profiles (how many), share (their mean), share_low, share_high (their
    extremes), time_s, gflops, peak_fraction (of one thread's measured peak), grain (mean time of a block over what a
    task costs in the same graph with empty kernels, threads x wall time; NaN of serial runs). Times add up to the
    point's `busy_time`, those of the serial run to its step time; without a sample of the point they are those of the
    profiles. Empty if the point was not profiled. Rows are in plan order.
    """
    point = (plan_id, model, threads)
    profiles = shown_profiles(sweep, point)
    if not profiles:
        return pd.DataFrame()
    peak = sweep.machine.peak_flops_per_s_1thread or math.nan
    groups: dict[tuple[str, str], dict] = {}

    def key_of(loop: Loop) -> tuple[str, str]:
        return (loop.layer or loop.name, loop.phase)

    for loop in sweep.plans[plan_id].loops:
        key = key_of(loop)
        group = groups.setdefault(key, {"layer": key[0], "phase": key[1], "loops": 0, "blocks": 0, "flops": 0.0})
        group["loops"] += 1
        group["blocks"] += loop.num_blocks
        group["flops"] += loop.flops
    _, busy = busy_by(sweep, point, key_of, profiles)
    shares = busy / busy.sum(axis=1, keepdims=True)
    total = busy_time(sweep, point).value
    if not math.isfinite(total):
        total = float(np.median(busy.sum(axis=1)))
    table = pd.DataFrame(groups.values())
    table["share"] = shares.mean(axis=0)
    table["share_low"], table["share_high"] = shares.min(axis=0), shares.max(axis=0)
    table["profiles"] = len(profiles)
    table["time_s"] = table["share"] * total
    rate = table["flops"] / table["time_s"].where(table["time_s"] > 0)
    table["gflops"] = rate / 1e9
    table["peak_fraction"] = rate / peak
    task_s = threads * np.median([_runtime_cost(row) for row in profiles]) / table["blocks"].sum()
    table["grain"] = table["time_s"] / table["blocks"] / (math.nan if model.is_serial else task_s)
    return table


def layers_of_all(sweep: Sweep) -> pd.DataFrame:
    """Return the rows of `layer_table` of every point that was profiled, with what identifies it in front: network,
    batch, what was swept, plan_id, model, threads."""
    tables = []
    for point in sweep.points():
        record = sweep.records[point.plan_id]
        axes = {name: value_text(record[name]) for name in dict.fromkeys((NETWORK, "batch", *sweep.axes))}
        tables.append(pd.DataFrame([axes | point._asdict()]).merge(layer_table(sweep, *point), how="cross"))
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


@kept
def accounting_table(sweep: Sweep) -> pd.DataFrame:
    """Return the time of a step against the floor from the block durations of the same runs.

    Own durations hold the slowdown from sharing caches and memory, so what is left is the runtime: barriers, task
    handling, waiting. A run and its floor come from one process: by how much it took longer is the excess, median over
    the repeated profiles. The floor in seconds is the step time less this excess.

    Columns: plan_id, model, threads, profiles, measured_s, logged (_low, _high; time of the logged runs over that of
    the timed ones), inflation (_low, _high; see there), floor (name), floor_s, excess_s, excess (_low, _high; relative
    to the floor), per_unit_s (excess per barrier for fork-join; excess times threads per task for task models),
    runtime_cost_s (the same graph with empty kernels under the same model), over_expected (_low, _high; time of a run
    over its floor and its runtime_cost_s), overhead (`WITHIN`, `BEYOND` or `UNDECIDED`: whether that is less than
    `MOST_OVER` above 1). Points whose logged runs took another time than the timed ones have no row.
    """
    rows = []
    for point in sweep.points():
        plan_id, model, threads = point
        if model.is_serial or not alike_profiles(sweep, point):
            continue
        name = bound_of(model)
        over = _parts_of(sweep, point, lambda row, name=name: row.pass_time_s / getattr(row.floors, name))
        excess = Estimate(over.value - 1, over.low - 1, over.high - 1, over.count)
        expected = _parts_of(
            sweep, point, lambda row, name=name: row.pass_time_s / (getattr(row.floors, name) + _runtime_cost(row))
        )
        measured = sweep.times.time(point).value
        logged = estimate(row.pass_time_s / measured for row in alike_profiles(sweep, point).values())
        floor_s = measured / (1 + excess.value)
        excess_s = measured - floor_s
        plan = sweep.plans[plan_id]
        units = len(plan.loops) if model.model.joins_loops else plan.num_tasks / threads
        rows.append(
            {
                **point._asdict(),
                "profiles": excess.count,
                "measured_s": measured,
                **interval_columns("logged", logged),
                **interval_columns("inflation", inflation(sweep, point)),
                "floor": name,
                "floor_s": floor_s,
                "excess_s": excess_s,
                **interval_columns("excess", excess),
                "per_unit_s": excess_s / units,
                "runtime_cost_s": _parts_of(sweep, point, _runtime_cost).value,
                **interval_columns("over_expected", expected),
                "overhead": _overhead(expected),
            }
        )
    return pd.DataFrame(rows)


def _runtime_cost(profile: ProfileRow) -> float:
    """Return the seconds of a profile's graph with empty kernels; NaN where they were not measured."""
    cost = profile.runtime_cost_s
    return math.nan if cost is None else cost


def _overhead(expected: Estimate) -> str:
    """Say whether an interval lies below 1 + `MOST_OVER`, above it, or neither."""
    if expected.high <= 1 + MOST_OVER:
        return WITHIN
    return BEYOND if expected.low > 1 + MOST_OVER else UNDECIDED


WALL, BUSY = "wall", "busy"
ALL_OF_IT = Estimate(1.0, math.nan, math.nan, 1)


def phases_of(sweep: Sweep, plan_id: str) -> list[str]:
    """Return the phases of a plan, in their order."""
    present = {loop.phase for loop in sweep.plans[plan_id].loops}
    return [phase for phase in PHASES if phase in present]


def timed(sweep: Sweep, point: Point) -> str:
    """Return how the phases of a point are timed: "wall", "busy", or "" without a profile.

    A serial run waits for nothing: its busy time, counted with what lies between blocks, is its wall time.
    """
    profiles = alike_profiles(sweep, point).values()
    if not profiles:
        return ""
    walls = all(set(phases_of(sweep, point[0])) <= set(row.phase_wall_s or ()) for row in profiles)
    return WALL if point[1].is_serial or walls else BUSY


def _shares(sweep: Sweep, point: Point) -> dict[int, np.ndarray]:
    """Return by repetition the shares of the phases in all phases' wall time, or in all blocks' time; they sum to 1."""
    profiles = alike_profiles(sweep, point)
    phases, busy = busy_by(sweep, point, lambda loop: loop.phase, profiles.values())
    if timed(sweep, point) == WALL and not point[1].is_serial:
        busy = np.array([[row.phase_wall_s[phase] for phase in phases] for row in profiles.values()])
    order = [phases.index(phase) for phase in phases_of(sweep, point[0])]
    return {repetition: times[order] / times.sum() for repetition, times in zip(profiles, busy, strict=True)}


def _part(shares: Iterable[float]) -> Estimate:
    """Return the mean of a phase's shares over the profiles, so that phases add up."""
    values = list(shares)
    return estimate(values, float(np.mean(values)))


def _share_of_serial(base: Mapping[int, np.ndarray], own: Mapping[int, np.ndarray], number: int) -> Estimate:
    """Return a phase's share in the serial run over its share in another run, paired by repetition."""
    quotient = _part(s[number] for s in base.values()).value / _part(s[number] for s in own.values()).value
    paired = estimate((base[r][number] / own[r][number] for r in base.keys() & own.keys()), quotient)
    return paired if paired.count else Estimate(quotient, math.nan, math.nan, 0)


def beside(sweep: Sweep, point: Point, phase: str, other: str) -> float:
    """Return the part of a phase's busy time during which a block of another phase ran too; NaN if it is not known."""
    if not {phase, other} <= set(phases_of(sweep, point[0])):
        return math.nan
    profiles = alike_profiles(sweep, point).values()
    phases, busy = busy_by(sweep, point, lambda loop: loop.phase, profiles)
    both = [row.phase_beside_s[phase].get(other, 0.0) for row in profiles]
    whole = [own[phases.index(phase)] for own in busy]
    parts = [part / time for part, time in zip(both, whole, strict=True) if time > 0]
    return float(np.mean(parts)) if parts else math.nan


@kept
def phase_table(sweep: Sweep) -> pd.DataFrame:
    """Return the time, speedup and efficiency of each phase: one row for each point with a profile.

    Columns: plan_id, model, threads, profiles (how many), timed ("wall" or "busy"), update_beside_backward (part of the
    update's busy time during which a block of the backward phase ran too; NaN where a plan has neither),
    and for each phase <phase>_s, <phase>_speedup, <phase>_efficiency, all
    three with _low and _high. Wall times add up to the step time of `speed_table`. Busy times are those of a thread,
    mean over the threads: they leave out waiting, so that their efficiency says only by how much blocks slow each other
    down. Speedups are over the same phase of the best serial run of the problem. Empty where no point of a plan with
    several phases was profiled, in runs that took as long as the timed ones.
    """
    rows = []
    for plan_id in sweep.plan_ids():
        phases, serial = phases_of(sweep, plan_id), best_serial(sweep, plan_id)
        base = _shares(sweep, serial) if serial and timed(sweep, serial) else {}
        for model, threads in sweep.points_of(plan_id):
            point = Point(plan_id, model, threads)
            if len(phases) < 2 or not (kind := timed(sweep, point)):
                continue
            row = {
                **point._asdict(),
                "profiles": len(alike_profiles(sweep, point)),
                "timed": kind,
                "update_beside_backward": beside(sweep, point, "update", "backward"),
            }
            own = _shares(sweep, point)
            # The part of the threads' time that is counted.
            inside = busy_against_serial(sweep, point) if kind == BUSY else ALL_OF_IT
            for number, phase in enumerate(phases):
                part = _part(s[number] for s in own.values()).over(inside.inverse())
                speedup = NOTHING
                if base:
                    ratio, quotient = sweep.times.ratio(serial, point), _share_of_serial(base, own, number)
                    speedup = ratio if point == serial else ratio.over(inside).over(quotient.inverse())
                row |= interval_columns(f"{phase}_s", sweep.times.time(point).over(part.inverse()))
                row |= interval_columns(f"{phase}_speedup", speedup)
                row |= interval_columns(f"{phase}_efficiency", speedup.divided_by(threads))
            rows.append(row)
    return pd.DataFrame(rows)


# Columns that a reader looks for, in front of all others.
FIRST = (
    *("model", "threads", "generations", "rounds", "time_s", "low_s", "high_s"),
    *("speedup", "speedup_low", "speedup_high"),
    *("usable", "efficiency", "reference", "ratio", "ratio_low", "ratio_high", "verdict"),
    *("peak_bytes", "planned_bytes"),
)


def summary_table(sweep: Sweep) -> pd.DataFrame:
    """Return `speed_table` with the memory of `memory_table` and the columns of `phase_table` beside it: first what was
    swept, the model, its time and its verdict, last the options that are the same in all rows."""
    speeds, phases, memory = speed_table(sweep), phase_table(sweep), memory_table(sweep)
    points = ["plan_id", "model", "threads"]
    speeds = speeds.merge(memory[[*points, "peak_bytes", "planned_bytes"]], "left", points)
    columns = dict.fromkeys(("network", "batch", *sweep.axes, *FIRST))
    if len(phases):
        speeds = speeds.merge(phases.drop(columns=["profiles"]), "left", points)
    options = dict.fromkeys(name for record in sweep.records.values() for name in record)
    result = [*columns, *(name for name in speeds if name not in options), *options]
    return with_texts(speeds[[name for name in dict.fromkeys(result) if name in speeds]])
