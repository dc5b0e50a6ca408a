"""Hardware counters and energy of the timed runs, by model and number of threads, and counters of blocks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from .estimates import NOTHING, estimate
from .speeds import better_forkjoin, interval_columns
from .sweep import Point, Sweep, kept

COUNTERS = ("cycles", "instructions", "llc_misses")


@kept
def counter_table(sweep: Sweep) -> pd.DataFrame:
    """Return counts of a step, medians over the samples, a row for each point that has any.

    Columns: plan_id, model, threads, each of `COUNTERS` and joules (NaN where the machine has it not), per_cycle
    (instructions per cycle), and energy, energy_low, energy_high: joules over those of the better fork-join form on as
    many threads, taken generation by generation.
    """
    result, joules_of = [], {}
    for point in sweep.points():
        values, by_take = [], joules_of.setdefault(point, {})
        for row in sweep.samples_of(point).to_dict("records"):
            counts, joules, steps = row["counters"], row["energy"]["joules_per_step"], row["num_steps"] or math.nan
            each = [math.nan if counts[name] is None else counts[name] / steps for name in COUNTERS]
            values.append([*each, math.nan if joules is None else joules])
            if joules:
                by_take[row["repetition"]] = joules
        known = [each for each in values if not all(map(math.isnan, each))]
        if known:
            middle = dict(zip((*COUNTERS, "joules"), np.median(known, axis=0).tolist(), strict=True))
            per_cycle = middle["instructions"] / middle["cycles"] if middle["cycles"] else math.nan
            result.append({**point._asdict(), **middle, "per_cycle": per_cycle})
    for row in result:
        reference = better_forkjoin(sweep, row["plan_id"], row["threads"])
        own, others = (joules_of.get(Point(row["plan_id"], m, row["threads"]), {}) for m in (row["model"], reference))
        ratios = [own[take] / others[take] for take in own if take in others]
        row |= interval_columns("energy", NOTHING if row["model"] == reference else estimate(ratios))
    return pd.DataFrame(result)


def block_counts(sweep: Sweep, plan_id: str) -> tuple[list[dict], list[dict]]:
    """Return events in the blocks of a step: rows by kernel, and by thread; medians over profiles.

    Each row has model, threads, `kernel` or `thread`, a number for each event that was counted, and per_cycle.
    """
    by_kernel, by_thread = [], []
    for point in sweep.points():
        counts = [row.counts for row in sweep.profiles_of(point).values() if row.counts and row.counts.by_kernel]
        if point.plan_id != plan_id or not counts:
            continue
        own = {"model": point.model, "threads": point.threads}
        for kernel in counts[0].by_kernel:
            by_kernel.append({**own, "kernel": kernel, **_medians([each.by_kernel[kernel] for each in counts])})
        for thread in range(len(counts[0].by_thread)):
            by_thread.append({**own, "thread": thread, **_medians([each.by_thread[thread] for each in counts])})
    return by_kernel, by_thread


def remote_rows(sweep: Sweep, plan_id: str) -> list[dict]:
    """Return how many bytes the blocks of each kernel access in a pass, and the share of these on another NUMA node
    than the CPU that ran the block: medians over profiles, in rows with model, threads, kernel, bytes and share."""
    result = []
    for point in (each for each in sweep.points() if each.plan_id == plan_id):
        profiles = [row.remote_bytes for row in sweep.profiles_of(point).values() if row.remote_bytes]
        for kernel in profiles[0] if profiles else ():
            total, remote = np.median([each[kernel] for each in profiles], axis=0).tolist()
            if total:
                own = {"model": point.model, "threads": point.threads, "kernel": kernel}
                result.append({**own, "bytes": total, "share": remote / total})
    return result


def _medians(counts: Sequence[Mapping[str, float | None]]) -> dict[str, float]:
    """Return the median of each event, and instructions per cycle."""
    known = {name: [each[name] for each in counts if each.get(name) is not None] for name in counts[0]}
    result = {name: float(np.median(values)) if values else math.nan for name, values in known.items()}
    cycles = result.get("cycles", 0.0)
    return {**result, "per_cycle": result.get("instructions", math.nan) / cycles if cycles else math.nan}


def block_sentences(sweep: Sweep) -> list[str]:
    """Say that blocks could not be counted, or not by all events, and why."""
    counts = [row.counts for row in sweep.profiles if row.counts and row.counts.error]
    if not counts:
        return []
    some = next((each.by_kernel for each in counts if each.by_kernel), {})
    names = ", ".join(next(iter(some.values()), ()))
    return [
        f"Blocks could be counted by {names} alone on this machine ({counts[0].error})."
        if names
        else f"Events in blocks could not be counted on this machine ({counts[0].error})."
    ]


def counter_sentences(sweep: Sweep) -> list[str]:
    """Say that counters or energy are not available, or only in part, and why, and what the energy is of."""

    def missing(field: str, names: Sequence[str]) -> tuple[list[str], str]:
        requested = list(sweep.samples.get(field, ()))
        absent = [name for name in names if requested and all(result[name] is None for result in requested)]
        return absent, next((result["error"] for result in requested if result["error"]), "no reason given")

    sentences = []
    absent, reason = missing("counters", COUNTERS)
    if absent:
        sentences.append(f"Hardware counters not available on this machine: {', '.join(absent)} ({reason}).")
    absent, reason = missing("energy", ("joules",))
    if absent:
        sentences.append(f"Energy not available on this machine: {reason}.")
    sources = {result["source"] for result in sweep.samples.get("energy", ())} - {""}
    if sources and not absent:
        sentences.append(f"Energy is that of the whole machine during the timed runs ({'; '.join(sorted(sources))}).")
    return sentences
