"""Floors of the machine and bounds of the graph, which hold for runs whose blocks take as long."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import pandas as pd

from ..bounds import bounds
from .names import base_model, is_gpu, model_label
from .speeds import best_serial, interval_columns, speed_table
from .statistics import Estimate, median_interval
from .study import Study
from .typical import NOTHING

BOUNDS = ("area", "forkjoin", "forkjoin_static", "taskgraph", "taskiter", "brent")
BOUND_NAMES = {
    "area": "area bound",
    "forkjoin": "fork-join bound",
    "forkjoin_static": "fork-join bound of a static schedule",
    "taskgraph": "max(area, span)",
    "taskiter": "max(area, cycle mean)",
    "brent": "Brent's bound",
}


@lru_cache(maxsize=4)
def floor_table(study: Study) -> pd.DataFrame:
    """Return the machine's floor of each plan beside its serial time T1.

    Columns: plan_id, t1_s (best serial run of the problem), serial_s (serial run of this plan), flop_floor_s = flops /
    peak, roofline_floor_s = sum over loops of max(flops / peak, bytes / bandwidth), and t1_s over each
    (flop_floor_ratio, roofline_floor_ratio; 1.0 is the floor). NaN where peak or bandwidth were not measured.
    """
    peak = study.machine.get("peak_flops_per_s_1thread") or math.nan
    bandwidth = (study.machine.get("bandwidth_bytes_per_s") or {}).get("1") or math.nan
    rows = []
    for plan_id in study.plan_ids():
        plan = study.plans[plan_id]
        serial = best_serial(study, plan_id)
        t1 = study.typical_time(serial).value if serial else math.nan
        flops_floor = plan["flops"] / peak
        roofline = bounds.roofline_floor(plan["loops"], peak, bandwidth)
        rows.append(
            {
                "plan_id": plan_id,
                "t1_s": t1,
                "serial_s": study.typical_time((plan_id, "serial", 1)).value,
                "flop_floor_s": flops_floor,
                "roofline_floor_s": roofline,
                "flop_floor_ratio": t1 / flops_floor if flops_floor else math.nan,
                "roofline_floor_ratio": t1 / roofline if roofline else math.nan,
            }
        )
    return pd.DataFrame(rows)


@lru_cache(maxsize=4)
def bound_table(study: Study) -> pd.DataFrame:
    """Return bounds per plan and number of threads, from the block durations of the serial run.

    Every serial profile gives each bound as a part of its work; the median over the profiles times the plan's serial
    time is the bound. So the work is the serial time itself, and an interval holds the spread of the profiles and that
    of the serial samples. The capacity of the machine was measured once and has none.

    Columns: plan_id, threads, capacity, and for each of `BOUNDS`: <name>_s, <name>_s_low, <name>_s_high and
    <name>_speedup (_low, _high) against the best serial run; the last three bounds are NaN where the rows carry no span
    or cycle mean.
    """
    rows = []
    for plan_id in study.plan_ids():
        own, serial = (plan_id, "serial", 1), best_serial(study, plan_id)
        profiles = list(study.profiles_of(own).values())
        if not profiles or own not in study.points or serial is None:
            continue
        work, advantage = study.typical_time(own), study.ratio(serial, own)
        blocks = [study.loop_times(profile) for profile in profiles]
        counts = study.samples.loc[study.samples["plan_id"] == plan_id, "threads"].unique()
        for threads in sorted({1, *map(int, counts)}):
            capacity = study.capacity(threads)
            row = {"plan_id": plan_id, "threads": threads, "capacity": capacity}
            parts = [
                _all_bounds(loops, threads, capacity, bounds.GraphBounds.of_row(profile))
                for loops, profile in zip(blocks, profiles, strict=True)
            ]
            works = [sum(map(sum, loops)) for loops in blocks]
            for name in BOUNDS:
                row |= _bound_columns(name, work, advantage, [p.get(name, math.nan) for p in parts], works)
            rows.append(row)
    return pd.DataFrame(rows)


def _all_bounds(loops, threads: int, capacity: float, graph: bounds.GraphBounds | None) -> dict[str, float]:
    """Return the floors of a profile and Brent's bound, which is none but says what a greedy schedule takes at most."""
    found = bounds.predicted_times(loops, threads, capacity, graph)
    if graph is not None:
        found["brent"] = bounds.brent_bound(sum(map(sum, loops)), graph.span_s, threads, capacity)
    return found


def _bound_columns(name: str, work: Estimate, advantage: Estimate, times, works) -> dict[str, float]:
    if any(map(math.isnan, times)):
        nothing = Estimate(math.nan, math.nan, math.nan, 0)
        return {**interval_columns(f"{name}_s", nothing), **interval_columns(f"{name}_speedup", nothing)}
    part = median_interval([time / own for time, own in zip(times, works, strict=True)])
    seconds = work.over(part.inverse())
    return {**interval_columns(f"{name}_s", seconds), **interval_columns(f"{name}_speedup", advantage.over(part))}


def bound_of(model: str) -> str:
    """Return the name of the bound that holds for a model, one of `BOUNDS`."""
    if "barrier=loop" in model or "taskwait=loop" in model:
        return "forkjoin"
    return {"forkjoin": "forkjoin", "joblib": "forkjoin", "taskgraph": "taskgraph"}.get(base_model(model), "taskiter")


def above_bounds(study: Study, plan_id: str, inflation: dict[tuple[str, int], Estimate]) -> list[str]:
    """Return sentences on the points whose speedup lies above the bound of their model, with the reason.

    Parameters
    ----------
    study : Study
    plan_id : str
    inflation : mapping of (model, threads) to Estimate
        Time in blocks over that of the serial run.
    """
    limits, speeds = bound_table(study), speed_table(study)
    if not len(limits):
        return []
    of_threads = {row["threads"]: row for row in limits[limits["plan_id"] == plan_id].to_dict("records")}
    sentences, overlapping = [], []
    for row in speeds[(speeds["plan_id"] == plan_id) & (speeds["model"] != "serial")].to_dict("records"):
        if is_gpu(row["model"]):
            continue  # the bounds are those of the CPU's threads
        limit = of_threads.get(row["threads"])
        name = bound_of(row["model"])
        if limit is None or round(row["speedup"], 2) <= round(_speedup_bound(limit, name).value, 2):
            continue
        bound, own = _speedup_bound(limit, name), inflation.get((row["model"], row["threads"]), NOTHING)
        point = (
            f"{model_label(row['model'])} on {row['threads']} thread{'s' * (row['threads'] > 1)} "
            f"(speedup {row['speedup']:.2f}, bound {bound.value:.2f})"
        )
        if math.isnan(row["speedup_low"]):
            sentences.append(f"Above the bound in one repetition, which has no interval: {point}.")
        elif row["speedup_low"] <= np.fmax(bound.high, bound.value):
            overlapping.append(point)
        elif own.value < 1:
            sentences.append(
                f"Above the bound, for its blocks took {_text(own)} of their time in the serial run: {point}."
            )
        else:
            sentences.append(f"Above the bound, and not for faster blocks; measure again on a quiet machine: {point}.")
    if overlapping:
        sentences.append(f"Above the bound by less than the intervals of both: {'; '.join(overlapping)}.")
    return sentences


def _speedup_bound(limits: dict, name: str) -> Estimate:
    """Return the bound `name` from a row of `bound_table`, or the area bound if it is not known."""
    name = name if math.isfinite(limits[f"{name}_speedup"]) else "area"
    return Estimate(*(limits[f"{name}_speedup{end}"] for end in ("", "_low", "_high")), 0)


def _text(estimate: Estimate) -> str:
    interval = f" [{estimate.low:.3f}, {estimate.high:.3f}]" if math.isfinite(estimate.low) else ""
    return f"{estimate.value:.3f}{interval}"
