"""Floors of the machine and bounds of the graph, which hold for runs whose blocks take as long."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from ..bounds import bounds
from ..subjects.models import SERIAL, ModelSpec
from .estimates import NOTHING, Estimate, estimate
from .speeds import best_serial, interval_columns
from .sweep import Sweep, kept

BOUNDS = ("area", "forkjoin", "forkjoin_static", "taskgraph", "taskiter", "brent")
BOUND_NAMES = {
    "area": "area bound",
    "forkjoin": "fork-join bound",
    "forkjoin_static": "fork-join bound of a static schedule",
    "taskgraph": "max(area, span)",
    "taskiter": "max(area, cycle mean)",
    "brent": "Brent's bound",
}
BOUND_COLUMNS = ["plan_id", "threads"] + [
    f"{name}{end}"
    for name in ("capacity", *(f"{bound}_{kind}" for bound in BOUNDS for kind in ("s", "speedup")))
    for end in ("", "_low", "_high")
]


@kept
def floor_table(sweep: Sweep) -> pd.DataFrame:
    """Return the machine's floor of each plan beside its serial time T1.

    Columns: plan_id, t1_s (best serial run of the problem), serial_s (serial run of this plan), flop_floor_s = flops /
    peak, roofline_floor_s = sum over loops of max(flops / peak, bytes / bandwidth), and t1_s over each
    (flop_floor_ratio, roofline_floor_ratio; 1.0 is the floor). NaN where peak or bandwidth were not measured.
    """
    peak, bandwidth = sweep.rates(1)
    rows = []
    for plan_id in sweep.plan_ids():
        plan = sweep.plans[plan_id]
        serial = best_serial(sweep, plan_id)
        t1 = sweep.times.time(serial).value if serial else math.nan
        roofline = bounds.roofline_floor([(loop.flops, loop.least_bytes) for loop in plan.loops], peak, bandwidth)
        floors = {"flop_floor": plan.flops / peak, "roofline_floor": roofline}
        own = {"plan_id": plan_id, "t1_s": t1, "serial_s": sweep.times.time((plan_id, SERIAL, 1)).value}
        own |= {f"{name}_s": floor for name, floor in floors.items()}
        rows.append(own | {f"{name}_ratio": t1 / floor if floor else math.nan for name, floor in floors.items()})
    return pd.DataFrame(rows)


Profile = tuple[list[list[float]], bounds.GraphBounds | None]  # durations of each loop's blocks, bounds of the graph


def serial_profiles(sweep: Sweep, plan_id: str) -> list[Profile]:
    """Return the block durations and the graph's bounds of each serial profile of a plan."""
    return [(sweep.loop_times(row), row.bounds) for row in sweep.profiles_of((plan_id, SERIAL, 1)).values()]


def bound_parts(profiles: Sequence[Profile], threads: int, capacity: Estimate) -> dict[str, Estimate]:
    """Return each of `BOUNDS` as a part of the work of the same blocks: the median over serial profiles.

    This is the one estimator of bounds. A bound is its part times a serial time, so that the work is that time itself;
    the interval of the part is as wide as the spread of the profiles and that of the capacity allow, NaN where neither
    was measured twice.
    """
    parts = _parts_at(profiles, threads, capacity.value)
    if not math.isfinite(capacity.low):
        return parts
    # More capacity makes every bound lower, so the ends of its interval give those of the parts.
    least, most = (_parts_at(profiles, threads, end) for end in (capacity.high, capacity.low))
    result = {}
    for name, part in parts.items():
        low, high = np.fmin(least[name].low, least[name].value), np.fmax(most[name].high, most[name].value)
        result[name] = replace(part, low=float(low), high=float(high))
    return result


def _parts_at(profiles: Sequence[Profile], threads: int, capacity: float) -> dict[str, Estimate]:
    parts = []
    for loops, graph in profiles:
        times, work = bounds.predicted_times(loops, threads, capacity, graph), sum(map(sum, loops))
        if graph is not None:
            times["brent"] = bounds.brent_bound(work, graph.span_s, threads, capacity)
        parts.append({name: time / work for name, time in times.items()})
    return {n: estimate([p[n] for p in parts]) if all(n in p for p in parts) else NOTHING for n in BOUNDS}


def bound_rows(
    sweep: Sweep, plan_id: str, threads: Iterable[int], capacity: Callable[[int], Estimate], profiles: Sequence[Profile]
) -> list[dict]:
    """Return the rows of `bound_table` for a plan, from the durations of its blocks; none without a serial run."""
    own, serial = (plan_id, SERIAL, 1), best_serial(sweep, plan_id)
    if not profiles or own not in sweep.turns or serial is None:
        return []
    work, advantage = sweep.times.time(own), sweep.times.ratio(serial, own)
    rows = []
    for n in threads:
        row = {"plan_id": plan_id, "threads": n, **interval_columns("capacity", capacity(n))}
        for name, part in bound_parts(profiles, n, capacity(n)).items():
            row |= interval_columns(f"{name}_s", work.over(part.inverse()))
            row |= interval_columns(f"{name}_speedup", speedup_bound(advantage, part))
        rows.append(row)
    return rows


def speedup_bound(advantage: Estimate, part: Estimate) -> Estimate:
    """Return a bound on the speedup over a run that takes `advantage` times as long as the serial run of the plan."""
    bound = advantage.over(part)
    # The ratio of a run to itself has an interval, a bound from a single profile and capacity has none.
    return bound if math.isfinite(part.low) else replace(bound, low=math.nan, high=math.nan)


@kept
def bound_table(sweep: Sweep) -> pd.DataFrame:
    """Return bounds per plan and measured number of threads, from the block durations of the serial run.

    Every serial profile gives each bound as a part of its work; the median over the profiles times the plan's serial
    time is the bound. So the work is the serial time itself, and an interval holds the spread of the profiles, that of
    the serial samples and that of the capacity, which is measured before the first repetition and in each one.

    Columns: plan_id, threads, capacity, and for each of `BOUNDS`: <name>_s and <name>_speedup against the best serial
    run, each of them with its interval (_low, _high); the last three bounds are NaN where the rows carry no span or
    cycle mean.
    """
    rows = []
    for plan_id in sweep.plan_ids():
        counts = sweep.samples.loc[sweep.samples["plan_id"] == plan_id, "threads"].unique()
        threads = sorted({1, *map(int, counts)})
        rows += bound_rows(sweep, plan_id, threads, sweep.capacity, serial_profiles(sweep, plan_id))
    return pd.DataFrame(rows, columns=BOUND_COLUMNS)


def bound_of(model: ModelSpec) -> str:
    """Return the name of the tightest bound that holds for a model, one of `BOUNDS`."""
    barrier = model.barrier
    return {"loop": "forkjoin", "none": "taskiter"}.get(barrier, "taskgraph")
