"""What a run costs besides the time of its steps: one-time costs; peak memory, split into what the plan needs and the
rest; launches and idle time of a GPU; hardware counters and energy of the timed runs, and counters of blocks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from ..subjects.memory import GRAPH, KINDS
from .estimates import NOTHING, estimate
from .speeds import better_forkjoin, interval_columns
from .sweep import Point, Sweep, kept

ONCE = ("prepare_s", "record_s", "close_s", "first_replay_s")
GPU_ONCE = ("context", "compilation")
LIBRARIES = "Python and libraries"
REST = "rest"
# Parts of a process's memory besides the buffers -> their fields in samples.
_FIELDS = {LIBRARIES: "libraries_bytes", GRAPH: "graph_bytes"}


@kept
def cost_table(sweep: Sweep) -> pd.DataFrame:
    """Return one-time costs: plan_id, model, threads, prepare_s, record_s, close_s, first_replay_s (medians; NaN where
    a model has no such step), and step_s."""
    rows = []
    for point in sweep.points():
        here = sweep.samples_of(point)
        row = point._asdict() | {column: float(pd.to_numeric(here[column]).median()) for column in ONCE}
        rows.append(row | {"step_s": sweep.times.time(point).value})
    return pd.DataFrame(rows)


@kept
def memory_table(sweep: Sweep) -> pd.DataFrame:
    """Return the peak memory of each point.

    Columns: plan_id, model, threads, peak_bytes (median over the samples of the most memory that was resident in the
    process), planned_bytes (all but the rest, below), the bytes of the plan's buffers by kind (the values of `KINDS`),
    `LIBRARIES`: what was resident before the plan was made, `GRAPH`: about what plan and task graph take, and `REST`:
    the difference, none where planned buffers were never touched, and so are not resident.
    """
    rows = []
    for point in sweep.points():
        here, parts = sweep.samples_of(point), {}
        for role, size in sweep.plans[point.plan_id].memory_bytes.items():
            parts[KINDS[role]] = parts.get(KINDS[role], 0) + size
        parts |= {part: float(here[field].median()) for part, field in _FIELDS.items()}
        peak, planned = float(here["max_resident_bytes"].median()), sum(parts.values())
        parts |= {REST: max(peak - planned, 0.0)}
        rows.append({**point._asdict(), "peak_bytes": peak, "planned_bytes": planned, **parts})
    return pd.DataFrame(rows)


def gpu_names(sweep: Sweep) -> list[str]:
    """Return the names of the GPUs that samples came from."""
    return sorted({gpu["name"] for gpu in sweep.samples.get("gpu", ()) if isinstance(gpu, dict)})


@kept
def gpu_table(sweep: Sweep) -> pd.DataFrame:
    """Return a row for each plan and model of a GPU.

    Columns: plan_id, model, threads, vs_stream, vs_stream_low, vs_stream_high (time of gpu_stream over this model's;
    above 1: faster), overhead_s (a step of empty kernels), busy_s (kernels of a step, one after the other), idle_share
    (1 - busy / step, below 0 where kernels overlap), context_s, compilation_s, prepare_s. NaN: not measured, or not of
    the device alone: a model that computes on the host too is not idle while the device is.
    """
    rows = []
    for point in sweep.points():
        if not point.model.is_gpu:
            continue
        stream, samples = (point.plan_id, "gpu_stream", 1), sweep.samples_of(point)
        compared = stream in sweep.turns and point != stream
        profiles = list(sweep.gpu_profiles_of(point).values())
        mixed = point.model.model.mixes_devices
        costs = [gpu["costs_s"] for gpu in samples["gpu"] if gpu is not None]  # another program states none
        busy = _middle([row.busy_s for row in profiles])
        rows.append(
            {
                **point._asdict(),
                **interval_columns("vs_stream", sweep.times.ratio(stream, point) if compared else NOTHING),
                "overhead_s": _middle([row.runtime_cost_s for row in profiles]),
                "busy_s": busy,
                "idle_share": math.nan if mixed else 1 - busy / sweep.times.time(point).value,
                **{f"{name}_s": _middle([each.get(name) for each in costs]) for name in GPU_ONCE},
                "prepare_s": _middle(samples["prepare_s"].tolist()),
            }
        )
    return pd.DataFrame(rows)


def _middle(values) -> float:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return float(np.median(known)) if known else math.nan


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
