"""CPU time that other programs and the hypervisor took from a run, as the kernel counts it."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from operator import itemgetter
from statistics import median

from ..results.disturbance import DISTURBED_SHARE, disturbed_share
from ..results.turns import judge_rounds, moved_sessions
from ..tables.numbers import format_time, plural
from .names import axis_label, model_label, value_text
from .sweep import Sweep, capacities_of

# The capacity is the best of three takes; between quiet takes it changes by 2 %.
CAPACITY_CHANGE = 0.1


def disturbance_warnings(sweep: Sweep) -> list[str]:
    """Return sentences about a machine and samples that others disturbed."""
    sentences = []
    machine = sweep.machine
    if disturbed_share(machine.disturbance, machine.elapsed_s) > DISTURBED_SHARE:
        sentences.append(
            "The machine's limits were measured while others used it: peak, bandwidth and capacity may be "
            "too low, so that floors and bounds are too weak."
        )
    for threads in sorted({int(n) for row in sweep.capacities for n in row.capacity}):
        takes = capacities_of((machine, *sweep.capacities), threads)
        if max(takes) > (1 + CAPACITY_CHANGE) * min(takes):
            sentences.append(
                f"{threads} threads did the work of {min(takes):.2f} to {max(takes):.2f} single ones, depending on the "
                f"repetition: CPUs shared a core, sank their clock or had other work for a while. Times of several "
                f"threads, their bounds and simulations hold for the median of the repetitions; measure again on a "
                f"machine that does not change."
            )
    disturbed = sum(len(judge_rounds(row).disturbed) for row in sweep.rounds)
    total = sum(len(row.wall_s) for row in sweep.rounds)
    if disturbed:
        sentences.append(
            f"{disturbed} of {plural(total, 'round')} were disturbed and are left out, by what is the same for all: a "
            f"calibration kernel between turns, stolen time, threads that waited for a CPU."
        )
    if moved := moved_sessions(sweep.rounds):
        there, usual = (format_time(median(seconds)) for seconds in zip(*moved.values(), strict=True))
        sentences.append(
            f"{len(moved)} of {plural(len(sweep.rounds), 'generation')} found the CPUs elsewhere than most did and are "
            f"left out: the host had moved them; a hand-over through a cache line took {there} in place of {usual}."
        )
    if sweep.disturbed_points:
        named = "; ".join(_points_text(sweep, *each) for each in groupby(sorted(sweep.disturbed_points), itemgetter(0)))
        sentences.append(f"Most samples had too few undisturbed rounds; do not use {named}.")
    hot = sum(bool(seen.get("thermal_throttles")) for seen in sweep.samples.get("disturbance", ()))
    if hot:
        sentences.append(
            f"Heat or low voltage slowed the CPUs during {hot} of {len(sweep.samples)} samples. Cool the machine, give "
            f"it a stronger supply or lower its frequency, and measure again."
        )
    return sentences


def _points_text(sweep: Sweep, plan_id: str, points: Iterable[tuple[str, str, int]]) -> str:
    """Name the points of a plan, and the plan by its swept options, where there are several."""
    named = ", ".join(f"{model_label(model)} on {plural(threads, 'thread')}" for _, model, threads in points)
    record = sweep.records[plan_id]
    swept = ", ".join(f"{axis_label(axis)} {value_text(record[axis])}" for axis in sweep.axes)
    return f"{named} ({swept})" if swept else named
