"""CPU time that other programs and the hypervisor took from a run, as the kernel counts it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..results.turns import disturbed_rounds
from ..tables.numbers import plural
from .study import Study, capacities_of

# The machine was disturbed if a runnable thread waited, or its CPU was stolen or throttled, for a larger share of time.
DISTURBED_SHARE = 0.05
# The capacity is the best of three takes; between quiet takes it changes by 2 %.
CAPACITY_CHANGE = 0.1

TICK_S = 0.01


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
    disturbed, total = sum(len(disturbed_rounds(row)) for row in study.rounds), sum(len(r.wall_s) for r in study.rounds)
    if disturbed:
        sentences.append(
            f"{disturbed} of {plural(total, 'round')} were disturbed and are left out, by what is the same for all: a "
            f"calibration kernel between turns, stolen time, threads that waited for a CPU."
        )
    hot = sum(bool(seen.get("thermal_throttles")) for seen in study.samples.get("disturbance", ()))
    if hot:
        sentences.append(
            f"Heat or low voltage slowed the CPUs during {hot} of {len(study.samples)} samples. Cool the machine, give "
            f"it a stronger supply or lower its frequency, and measure again."
        )
    return sentences
