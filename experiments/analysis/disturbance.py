"""CPU time that other programs and the hypervisor took from a run, as the kernel counts it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from .names import model_rank
from .study import Study, capacities_of

# A sample is disturbed if a runnable thread waited, or its CPU was stolen or throttled, for a larger share of time.
DISTURBED_SHARE = 0.05
# The capacity is the best of three takes; between quiet takes it changes by 2 %.
CAPACITY_CHANGE = 0.1

TICK_S = 0.01

DISTURBANCES = ("pressure_some_us", "steal_ticks", "nonvoluntary_switches", "throttled_us", "thermal_throttles")


def disturbed_share(disturbance: Mapping[str, Any], seconds: float, threads: int = 1) -> float:
    """Return the share of `seconds` lost to others: the largest of the kernel's counts; NaN without any."""
    lost = [
        (disturbance.get("pressure_some_us"), 1e-6),
        (disturbance.get("throttled_us"), 1e-6),
        (disturbance.get("steal_ticks"), TICK_S / threads),
    ]
    known = [value * unit for value, unit in lost if value is not None]
    return max(known) / seconds if known and seconds > 0 else math.nan


def disturbance_warnings(study: Study) -> list[str]:
    """Return sentences about a machine and samples that others disturbed."""
    sentences = []
    machine = study.machine
    if disturbed_share(machine.disturbance, machine.elapsed_s) > DISTURBED_SHARE:
        sentences.append(
            "The machine's limits were measured while others used it: peak, bandwidth and capacity may be "
            "too low, so that floors and bounds are too weak."
        )
    for threads in sorted({int(n) for row in study.capacities for n in row.capacity}):
        takes = capacities_of((machine, *study.capacities), threads)
        if max(takes) > (1 + CAPACITY_CHANGE) * min(takes):
            sentences.append(
                f"{threads} threads did the work of {min(takes):.2f} to {max(takes):.2f} single ones, depending on the "
                f"repetition: CPUs shared a core, sank their clock or had other work for a while. Times of several "
                f"threads, their bounds and simulations hold for the median of the repetitions; measure again on a "
                f"machine that does not change."
            )
    disturbed = sum(
        disturbed_share(record["disturbance"], record["timed_wall_s"], record["threads"]) > DISTURBED_SHARE
        for record in study.samples.to_dict("records")
        if not record["interference"]
    )
    if disturbed:
        sentences.append(
            f"{disturbed} of {len(study.samples)} samples were disturbed: for more than {DISTURBED_SHARE:.0%} of the "
            f"timed runs a thread waited for a CPU, or the CPU was taken away. Measure again on a quiet machine before "
            f"drawing conclusions."
        )
    hot = sum(bool(seen.get("thermal_throttles")) for seen in study.samples.get("disturbance", ()))
    if hot:
        sentences.append(
            f"Heat or low voltage slowed the CPUs during {hot} of {len(study.samples)} samples. Cool the machine, give "
            f"it a stronger supply or lower its frequency, and measure again."
        )
    return sentences


@lru_cache(maxsize=4)
def disturbance_table(study: Study) -> pd.DataFrame:
    """Sum the disturbances of each point over its repetitions. Columns: plan_id, model, threads, `DISTURBANCES`, and
    temperature_c, the highest one."""
    rows: dict[tuple, dict] = {}
    for record in study.samples.to_dict("records"):
        key = (record["plan_id"], record["model"], record["threads"])
        row = rows.setdefault(
            key,
            {"plan_id": key[0], "model": key[1], "threads": key[2]}
            | dict.fromkeys((*DISTURBANCES, "temperature_c"), math.nan),
        )
        temperature = record["temperature_c"]
        if temperature is not None:
            row["temperature_c"] = np.fmax(row["temperature_c"], temperature)
        for name in DISTURBANCES:
            value = record["disturbance"].get(name)
            if value is not None:
                row[name] = value if math.isnan(row[name]) else row[name] + value
    return pd.DataFrame(sorted(rows.values(), key=lambda r: (r["plan_id"], model_rank(r["model"]), r["threads"])))
