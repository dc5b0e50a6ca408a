"""Times of a step's phases under every model: wall time where a barrier stands between them, busy time elsewhere.

Profiles give the part of a step that each phase takes; its time is this part of the step time that all tables show. So
the wall times of phases add up to the step, and the times of the serial run are the sums of its layers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd

from ...cython_src.plan.model import PHASES
from .accounting import alike_profiles, busy_against_serial, busy_by
from .costs import memory_table
from .estimates import NOTHING, Estimate, estimate
from .names import with_texts
from .speeds import best_serial, interval_columns, speed_table
from .sweep import Point, Sweep, kept

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
                    ratio, quotient = sweep.ratio(serial, point), _share_of_serial(base, own, number)
                    speedup = ratio if point == serial else ratio.over(inside).over(quotient.inverse())
                row |= interval_columns(f"{phase}_s", sweep.typical_time(point).over(part.inverse()))
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
