"""Predicted times of a sweep's models on any number of threads, the measured ones, and by how much they err."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ...cython_src.errors import UsageError
from ...cython_src.lowering.lower import lower
from ..analysis.estimates import NOTHING, Estimate
from ..analysis.limits import Profile, bound_rows, serial_profiles
from ..analysis.names import INTERFERENCE
from ..analysis.speeds import best_serial, row_is_usable
from ..analysis.sweep import Sweep, kept
from ..bounds.bounds import graph_bounds_of
from ..machine.numa import INTERLEAVE
from ..results.files import write_atomically
from ..results.folder import read_results
from ..results.rows import MachineRow
from ..subjects.calls import NOT_PLANNED
from ..subjects.models import SERIAL, ModelSpec
from .machine_model import MAX_CORES, MachineModel, continued, read_machine
from .policies import Subject, can_simulate, simulate

MACHINE = "machine.toml"  # the machine that measured a folder, in the folder
FAR = 4  # times the measured threads, beyond which a prediction is drawn on request only
HARDWARE = ("architecture", "cpu", "caches", "affinity")  # parts of an environment in which machines differ


class OtherMachine(UsageError):
    """A folder was measured on another machine than this one."""


def missing(sweep: Sweep, plan_id: str) -> str:
    """Return why a plan's runs cannot be simulated."""
    if sweep.reference_call:
        return NOT_PLANNED
    if sweep.records[plan_id][INTERFERENCE]:
        return "runs with competing processes are not simulated; choose a plan without interference"
    if not sweep.profiles_of((plan_id, SERIAL, 1)):
        return "a simulation needs the block durations of serial runs, got none; add `serial`, without --no-profile"
    if not any(simulated_models(sweep, plan_id)):
        return "none of the measured models can be simulated; add forkjoin or taskiter to --models"
    return ""


def simulated_models(sweep: Sweep, plan_id: str) -> list[ModelSpec]:
    """Return the measured models of a plan whose policy can be simulated, in their fixed order, without serial."""
    models = {model for model, _ in sweep.points_of(plan_id) if not model.is_serial}
    return [m for m in sorted(models, key=sweep.rank) if can_simulate(m)]


def knows_machine(sweep: Sweep) -> bool:
    """Return whether the machine that measured a sweep is described in its folder."""
    return sweep.folder is not None and (sweep.folder / MACHINE).exists()


@kept
def machine_of_sweep(sweep: Sweep) -> MachineModel:
    """Return the machine that measured a sweep. Raises `UsageError`: the folder does not hold it, or a file that is
    none."""
    if not knows_machine(sweep):
        raise UsageError(
            "the folder must hold the machine's latencies and overheads, but it does not; give `forktask simulate DIR` "
            "on the machine that measured it"
        )
    machine = read_machine(str(sweep.folder / MACHINE))
    capacity = {n: sweep.capacity(n).value for n in machine.capacity}
    return replace(machine, capacity=capacity, memory_policy=sweep.config.get("memory_policy", INTERLEAVE))


def measure_for(folder: str | os.PathLike, then: Mapping[str, Any], limits: MachineRow | None) -> MachineModel:
    """Measure this machine for simulations of what was measured in a folder, in an environment and with limits of then.

    Raises
    ------
    OtherMachine
    """
    from ..machine.environment import collect
    from .measured_machine import measure_this_machine

    environment = collect()
    here = json.loads(json.dumps({part: environment[part] for part in HARDWARE}))
    for part in HARDWARE:
        if here[part] != then.get(part):
            raise OtherMachine(
                f"{str(folder)!r} was measured on another machine ({part}: {_difference(then.get(part), here[part])}), "
                f"so this one's latencies and overheads say nothing of it; give `forktask simulate` or `diagnose` "
                f"there first"
            )
    return measure_this_machine(environment, limits)


def _difference(then: Any, here: Any) -> str:
    """Name the first thing in which two descriptions of a machine's part differ."""
    if isinstance(then, Mapping) and isinstance(here, Mapping):
        name = next(name for name in {**then, **here} if then.get(name) != here.get(name))
        return f"{name} {_difference(then.get(name), here.get(name))}"
    return f"{str(then)[:80]} in place of {str(here)[:80]}"


def keep_machine(out_dir: str | os.PathLike) -> None:
    """Measure this machine for simulations and describe it in a results folder, unless that was done. Raises
    `UsageError`: no results there, or the file cannot be written."""
    path = Path(out_dir) / MACHINE
    if path.exists():
        return
    results = read_results(out_dir)
    limits = results.of(MachineRow)
    machine = measure_for(out_dir, results.run.environment, limits[-1] if limits else None)
    write_atomically(path, machine.to_toml() + "\n")


@kept
def subject_of(sweep: Sweep, plan_id: str, measured_on: MachineModel) -> Subject:
    """Return a plan with the typical durations of its blocks in serial runs, scaled so that they add up to its serial
    time. Raises `UsageError`: this version lowers the plan's options to other loops than those that were measured."""
    row = sweep.plans[plan_id]
    plan = lower(**row.options)
    measured = [(loop.name, loop.num_blocks) for loop in row.loops]
    if measured != [(loop.name, loop.num_blocks) for loop in plan.loops]:
        raise UsageError(
            f"plan {plan_id} must have the loops that were measured, but this forktask lowers its options to others; "
            f"measure again"
        )
    profiles = sweep.profiles_of((plan_id, SERIAL, 1)).values()
    times = [[t for loop in sweep.loop_times(profile) for t in loop] for profile in profiles]
    seconds = np.median(times, axis=0)
    serial = sweep.times.time((plan_id, SERIAL, 1)).value
    if math.isfinite(serial):
        seconds = seconds * (serial / seconds.sum())
    return Subject(plan, seconds, measured_on)


def thread_counts(sweep: Sweep, plan_id: str, highest: int | None = None) -> list[int]:
    """Return the measured thread counts and powers of two up to `highest`, by default what the run asked for, or four
    times the measured ones."""
    measured = sorted({threads for _, threads in sweep.points_of(plan_id)})
    highest = highest or int(sweep.config.get("simulate") or 0) or FAR * measured[-1]
    return sorted({*(n for n in measured if n <= highest), *(1 << i for i in range(11) if 1 << i <= highest), highest})


@kept
def prediction_table(
    sweep: Sweep,
    plan_id: str,
    threads: Sequence[int],
    machine: MachineModel | None = None,
    models: Sequence[ModelSpec] | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """Simulate the models of a plan, by default those that were measured. On another machine than the one that measured
    nothing measured stands beside their times.

    Columns: plan_id, model, threads, step_s, speedup (over the best serial run, simulated on the same machine),
    speedup_high (with bandwidth in proportion to the threads and barriers as trees beyond the points of the machine's
    file), efficiency, inflation, runtime, idle (parts of threads x time), measured_s, measured_speedup, error (of the
    prediction, less 1; NaN where nothing was measured), usable (whether what was measured is), far (beyond four
    times the measured threads).
    """
    here = machine_of_sweep(sweep)
    target = machine or here
    subject = subject_of(sweep, plan_id, here)
    serial = best_serial(sweep, plan_id)
    own = sweep.times.time((plan_id, SERIAL, 1)).value
    t1 = simulate(subject, SERIAL, 1, target).step_s * (sweep.times.time(serial).value / own if serial else 1.0)
    most = max(n for _, n in sweep.points_of(plan_id))
    best = replace(target, bandwidth_beyond="proportional", barrier_beyond="tree")
    known = max((*target.bandwidth_bytes_per_s, *target.overheads.barrier_s), default=MAX_CORES)
    rows = []
    for model in models or simulated_models(sweep, plan_id):
        for n in threads:
            result = simulate(subject, model, n, target, seed=seed)
            measured = sweep.times.time((plan_id, model, n)).value if machine is None else math.nan
            high = simulate(subject, model, n, best, seed=seed) if n > known else result
            total = result.useful_s + result.inflation_s + result.runtime_s + result.idle_s
            point = {"plan_id": plan_id, "model": model, "threads": n}
            rows.append(
                {
                    **point,
                    "step_s": result.step_s,
                    "speedup": t1 / result.step_s,
                    "speedup_high": t1 / high.step_s,
                    "efficiency": t1 / result.step_s / n,
                    **{part: getattr(result, f"{part}_s") / total for part in ("inflation", "runtime", "idle")},
                    "measured_s": measured,
                    "measured_speedup": t1 / measured,
                    "error": result.step_s / measured - 1,
                    "usable": machine is not None or row_is_usable(sweep, point),
                    "far": n > (FAR * most if machine is None else machine.cores),
                }
            )
    return pd.DataFrame(rows)


def simulated_bounds(
    sweep: Sweep, plan_id: str, threads: Sequence[int], machine: MachineModel | None = None
) -> pd.DataFrame:
    """Return the rows of `analysis.limits.bound_table` for any number of threads, and for another machine."""
    here = machine_of_sweep(sweep)
    target = machine or here
    most = dict(zip(threads, continued(target.capacity or {1: 1.0}, np.array(threads)), strict=True))
    known = sweep.capacity(max(target.capacity, default=1)) if target is here else NOTHING

    def capacity(n: int) -> Estimate:
        """Return the capacity, beyond the measured threads in proportion, with the interval of the last one."""
        value = min(float(most[n]), float(n))
        low, high = (value * end / known.value if n > 1 else math.nan for end in (known.low, known.high))
        return Estimate(value, low, min(high, float(n)), known.count)

    profiles = serial_profiles(sweep, plan_id)
    if target is not here:
        subject = subject_of(sweep, plan_id, here)
        profiles = [_profile_on(target, subject, loops) for loops, _ in profiles]
    rows = bound_rows(sweep, plan_id, threads, capacity, profiles)
    return pd.DataFrame(rows)


def _profile_on(target: MachineModel, subject: Subject, loops: list[list[float]]) -> Profile:
    """Return the durations of a profile's blocks on another machine, with the bounds of the graph."""
    measured = np.array([t for blocks in loops for t in blocks])
    seconds, _ = subject.on(target, measured * (subject.seconds.sum() / measured.sum()))
    ends = np.cumsum([len(blocks) for blocks in loops])[:-1]
    return [part.tolist() for part in np.split(seconds, ends)], graph_bounds_of(subject.graph("none"), seconds)


def error_text(table: pd.DataFrame) -> str:
    """Return a sentence on the errors at the usable measured points with more than one thread."""
    known = table[table["error"].notna() & table["usable"] & (table["threads"] > 1)]
    if not len(known):
        return "Nothing usable was measured on more than one thread, so the error of the simulation is not known."
    each = known.loc[known["error"].abs().groupby(known["model"]).idxmax()]
    worst = each.loc[each["error"].abs().idxmax()]
    median = known["error"].abs().median()
    return (
        f"Error of the simulation at points measured on several threads ({len(known)}): median {median:.1%}, at most "
        f"{worst['error']:+.1%} ({worst['model']} on {worst['threads']} threads)."
    )
