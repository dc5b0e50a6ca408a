"""Read a results folder and check that its rows may be compared."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from msgspec import structs

from ...cython_src.errors import UsageError
from ...cython_src.lowering.options import Granularity
from ...cython_src.networks.own import look_above
from ..results import turns
from ..results.disturbance import DISTURBED_SHARE, disturbed_share, stopped_text
from ..results.folder import read_results, wrong_models
from ..results.nodes import check_nodes
from ..results.rows import (
    KINDS,
    NOT_MEASURED,
    CapacityRow,
    FailureRow,
    GpuProfileRow,
    MachineRow,
    Measured,
    PlanRow,
    ProfileRow,
    RoundsRow,
    Row,
    RunRow,
    SampleRow,
    TraceRow,
    values_of,
)
from ..subjects.models import counts_for
from ..tables.numbers import format_time, moved_text, plural
from .agreement import first_disagreement
from .names import axis_label, model_label, plan_beside, value_text
from .speeds import IMPLAUSIBLE_EFFICIENCY, best_serial, disturbed_serial, speed_table
from .sweep import Point, Sweep, capacities_of

# The capacity is the best of three takes; between quiet takes it changes by 2 %.
CAPACITY_CHANGE = 0.1
CLOCK_CHANGE, LEAST_CLOCKS = 0.1, 20  # between most samples; and the fewest that show it


def load(out_dir: str | os.PathLike) -> Sweep:
    """Read and check a results folder. Raises `UsageError`: see `sweep_from_rows` and `read_results`."""
    results = read_results(out_dir, "samples")
    look_above(out_dir)
    sweep = sweep_from_rows(results.rows, results.partial)
    sweep.folder = Path(out_dir)
    return sweep


def sweep_from_rows(rows: Sequence[Row], partial: str = "") -> Sweep:
    """Check rows and put them in order. Raises `UsageError`: no run row; samples of several environments, of nodes that
    may not be pooled, or of several instruction sets of the CPU; other weights than the rest of a plan on its device;
    devices whose losses differ by more than rounding; a row of an unknown plan."""
    by_kind: dict[type, list[Any]] = {kind: [] for kind in KINDS.values()}
    rows, session_of = turns.separate_sessions(rows)
    for row in _separate_interference(rows):
        by_kind[type(row)].append(row)
    wrong = wrong_models(by_kind[SampleRow], by_kind[FailureRow])
    for kind in (SampleRow, ProfileRow, GpuProfileRow, TraceRow) if wrong else ():
        by_kind[kind] = [row for row in by_kind[kind] if (row.plan_id, row.model) not in wrong]
    runs, profiles, failures = by_kind[RunRow], by_kind[ProfileRow], by_kind[FailureRow]
    if not runs:
        raise UsageError("results must begin with a run row, got none; measure with `forktask compare` or `run`")
    warnings = []
    if partial:
        warnings.append("The last line of samples.jsonl is half-written (the run was killed); it was left out.")
    plans = {row.plan_id: row for row in by_kind[PlanRow]}
    samples = list({(row.config_id, row.repetition, row.group): row for row in by_kind[SampleRow]}.values())
    measured = [*samples, *profiles, *by_kind[GpuProfileRow]]
    for row in (*measured, *failures, *by_kind[TraceRow]):
        if row.plan_id not in plans:
            raise UsageError(f"what was measured must belong to a plan row, got plan_id {row.plan_id!r}; measure again")
    _check_environments(runs, measured)
    _check_results(samples, plans)
    _check_devices([row for row in samples if row.answer])
    _check_profiles(profiles, plans)
    timed = [row for row in samples if row.step_time_s > 0]
    untimed = [row for row in samples if row.step_time_s <= 0]
    quiet = turns.quiet_times(turns.groups_of(timed, by_kind[RoundsRow]))
    times = {(plan_id, model, threads): own for (plan_id, _, model, threads), own in quiet.times.items()}
    sweep = Sweep(
        run=runs[-1],
        plans=plans,
        machine=by_kind[MachineRow][-1] if by_kind[MachineRow] else NOT_MEASURED,
        samples=pd.DataFrame([{**values_of(row), "model": row.model, "node": row.node.name} for row in timed]),
        profiles=[row for row in profiles if not _is_left_out(row, quiet)],
        gpu_profiles=[row for row in by_kind[GpuProfileRow] if not _is_left_out(row, quiet)],
        failures=failures,
        traces=by_kind[TraceRow],
        turns=times,
        quiet=quiet,
        session_of=session_of,
        rounds=by_kind[RoundsRow],
        capacities=by_kind[CapacityRow],
        machines=by_kind[MachineRow],
        nodes={row.node.name: row for row in runs if row.node.name in {sample.node.name for sample in samples}},
        node_of={row.repetition: row.node.name for row in samples},
        disturbed_points=turns.mostly_in(times, quiet.disturbed),
        partial=partial,
        warnings=warnings,
    )
    for row in untimed:
        plan = f", {sweep.problem_name(row.plan_id)}," if len(plans) > 1 else ""
        warnings.append(
            f"Generation {row.repetition + 1} of {row.model} on {plural(row.threads, 'thread')}{plan} has no positive "
            f"step time (its two run lengths differ by less than the noise); it was left out."
        )
    for plan_id, model in sorted(wrong):
        warnings.append(
            f"All times of {model_label(model)}, {sweep.problem_name(plan_id)}, are left out: it computed something "
            "else than the others, and no time of a wrong computation is shown."
        )
    alone = {(plan_id, model, threads) for plan_id, _, model, threads in quiet.elsewhere} - times.keys()
    for plan_id, points in groupby(sorted(alone), itemgetter(0)):
        named = _points_text(sweep, plan_id, points)
        warnings.append(f"No row of {named}: only generations that are left out have measured it.")
    taken = {(row.plan_id, row.model, row.threads, row.repetition) for row in samples}
    warnings.extend(_missing_points(sweep, Counter(row[:3] for row in taken)))
    warnings.extend(disturbance_warnings(sweep))
    warnings.extend(_check_efficiency(sweep))
    warnings.extend(coarse_plans(sweep))
    return sweep


def _is_left_out(row: ProfileRow | GpuProfileRow, quiet: turns.QuietTimes) -> bool:
    """Return whether the times of a profile's generation are left out: it is of another state of the host."""
    own = quiet.elsewhere.get((row.plan_id, row.interference, row.model, row.threads), ())
    return any(generation == row.repetition for generation, *_ in own)


def coarse_plans(sweep: Sweep) -> list[str]:
    """Return a sentence where models had more threads than granularity "auto" has cut their plans for."""
    most: dict[int, int] = {}
    for point in sweep.points():
        record = sweep.records[point.plan_id]
        cut = Granularity.parse(record["granularity"]) if record["phase"] else None
        if cut and cut.is_auto and point.threads > cut.for_threads:
            most[cut.for_threads] = max(point.threads, most.get(cut.for_threads, 0))
    return [
        f"Loops were divided into blocks for {cut} threads, and {threads} were measured: many loops have fewer blocks "
        f"than threads. Compare with --granularity threads={threads}, which is another plan with other bits."
        for cut, threads in most.items()
    ]


def _separate_interference(rows: Sequence[Row]) -> Iterator[Row]:
    """Give samples with competing processes plans of their own, so that only equal conditions are compared."""
    plans = {row.plan_id: row for row in rows if isinstance(row, PlanRow)}
    made: set[str] = set()
    for row in rows:
        if not isinstance(row, Measured | RoundsRow) or not row.interference:
            yield row
            continue
        plan_id = plan_beside(row.plan_id, row.interference)
        if plan_id not in made and row.plan_id in plans:
            made.add(plan_id)
            yield structs.replace(plans[row.plan_id], plan_id=plan_id, interference=row.interference)
        yield structs.replace(row, plan_id=plan_id)


def _check_environments(runs, measured) -> None:
    nodes, environments = runs[-1].config.get("nodes", "one"), {row.node.name: row.environment for row in runs}
    for row in measured:
        if row.node.name not in environments:
            raise UsageError(
                f"every node must have a run row, got measurements of {row.node.name!r} without; join folders with "
                f"`forktask merge`"
            )
    check_nodes([(row.node, row.environment) for row in runs], nodes)
    identities = {row.environment_id for row in (*runs, *measured)}
    if len(identities) > 1 and nodes == "one":
        raise UsageError(
            f"all rows must come from one environment, got {len(identities)} ({', '.join(sorted(identities))}); "
            f"measure each machine or installation into a folder of its own"
        )
    samples = [row for row in measured if isinstance(row, SampleRow)]
    own = [row.instruction_set for row in samples if not (row.model.is_gpu or row.model.is_peer)]
    sets = {name.removesuffix("_narrow") for name in own}  # sessions measure which tile is faster; bits are the same
    if len(sets) > 1:
        raise UsageError(
            f"all samples of the CPU must use one instruction set, got {', '.join(sorted(sets))}; "
            f"measure them into separate folders"
        )


def _check_results(samples, plans) -> None:
    """Check that all points of a plan computed the same bits, before any time is shown; devices, and forms of a GPU's
    kernels, which add in other orders, the same losses within rounding."""
    first: dict[tuple[str, str], SampleRow] = {}
    for row in samples:
        if not (plans[row.plan_id].deterministic and row.deterministic):
            continue
        other = first.setdefault((row.plan_id, row.instruction_set), row)
        for what in ("weights", "losses"):
            if getattr(row, f"{what}_hash") != getattr(other, f"{what}_hash"):
                raise UsageError(
                    f"all models must compute the same {what}, but {row.model} on {plural(row.threads, 'thread')} "
                    f"(generation {row.repetition + 1}) and {other.model} on {other.threads} (generation "
                    f"{other.repetition + 1}) differ for {plans[row.plan_id].network}; no time is shown before they "
                    "agree"
                )


def _check_devices(samples) -> None:
    """Check that the first losses on all devices agree within rounding."""
    first: dict[str, SampleRow] = {}
    for row in samples:
        other = first.setdefault(row.plan_id, row)
        if row.instruction_set != other.instruction_set and (wrong := first_disagreement(other.answer, row.answer)):
            raise UsageError(
                f"devices must agree before times are compared, but compared with {other.model}'s answer that of "
                f"{row.model} {wrong}; this is a fault of the program"
            )


def _check_profiles(profiles, plans) -> None:
    """Check that each profile has the time of every block, loop and phase of its plan.

    On a GPU convolutions are other loops where each device chooses its own algorithm, and loops are not compared.
    """
    for row in profiles:
        loops = plans[row.plan_id].loops
        counts: Counter[str] = Counter()
        for loop in loops:
            counts[loop.name] += loop.num_blocks
        phases = {loop.phase for loop in loops}
        known = (
            {name: len(blocks) for name, blocks in row.block_time_s.items()} == counts,
            set(row.loop_time_s) == set(counts),
            row.phase_wall_s is None or set(row.phase_wall_s) >= phases,
            set(row.phase_beside_s) >= phases,
        )
        if not all(known):
            raise UsageError(
                f"a profile must hold the times of all blocks, loops and phases of its plan, that of {row.model} on "
                f"{plural(row.threads, 'thread')} (generation {row.repetition + 1}) does not; measure it again"
            )


def _check_efficiency(sweep: Sweep) -> list[str]:
    """Return a sentence for each efficiency that arithmetic alone does not explain."""
    if not len(sweep.samples) or sweep.reference_call:  # of other code than the reference nothing is implausible
        return []
    table = speed_table(sweep)
    over = {best_serial(sweep, plan): ratio for plan in sweep.plan_ids() if (ratio := disturbed_serial(sweep, plan))}
    texts = [
        f"The serial run of {sweep.problem_name(serial.plan_id)} was disturbed: it takes {ratio.value:.2f} times as "
        "long as the same blocks under another model on one thread. Efficiencies above 1 are not usable."
        for serial, ratio in over.items()
        if serial
    ]
    return texts + [
        f"{model_label(row['model'])} on {plural(row['threads'], 'thread')} has an efficiency of "
        f"{row['efficiency']:.0%}: "
        + f"either the data of this plan fit into the caches of {row['threads']} cores but not of one, or "
        * (row["threads"] > 1)
        + "samples were disturbed. Measure another session before you use this point."
        for row in table[table["efficiency"] > IMPLAUSIBLE_EFFICIENCY].to_dict("records")
    ]


def _missing_points(sweep: Sweep, taken: Mapping[Point, int]) -> list[str]:
    """Return sentences about points of the grid that neither were measured nor failed, by the samples of each."""
    models, (threads, repeats) = sweep.asked_models, (sweep.config.get(key) for key in ("threads", "repeats"))
    if not (models and threads and repeats) or sweep.config.get("budget_s"):
        return []  # with a budget, points have as many samples as their verdicts needed
    failed = {(row.plan_id, row.model, row.threads) for row in sweep.failures}
    measured = requested = 0
    for plan_id, plan in sweep.plans.items():
        if plan.interference:
            continue
        tuned = plan.granularity not in (sweep.config.get("granularity") or [plan.granularity])
        for hogs in sweep.config.get("interference") or [0]:
            this = plan_beside(plan_id, hogs)
            for model in models:
                for count in counts_for(model, threads):
                    done = taken.get((this, model, count), 0)
                    if tuned and not done and (this, model, count) not in failed:
                        continue  # It is the best granularity of another model or number of threads.
                    requested += repeats
                    measured += repeats if (this, model, count) in failed else min(done, repeats)
    if measured == requested:
        return []
    return [f"The run is not complete: {measured} of {requested} samples; give the same command again to continue."]


def _clock_text(sweep: Sweep) -> list[str]:
    """Say how far the clock moved, if it did, and its median by number of threads."""
    known = sweep.samples.dropna(subset="frequency_hz") if len(sweep.samples) else sweep.samples
    if len(known) < LEAST_CLOCKS:
        return []
    low, high = np.percentile(known["frequency_hz"], (5, 95)) / 1e9
    if high <= (1 + CLOCK_CHANGE) * low:
        return []
    medians = (known.groupby("threads")["frequency_hz"].median() / 1e9).items()
    listed = ", ".join(f"{hz:.2f} after samples on {plural(threads, 'thread')}" for threads, hz in medians)
    return [
        f"The clock was {low:.2f} to {high:.2f} GHz in nine of ten samples (median {listed}): times, and speedups over "
        f"the serial run, depend on it; ratios of models, which take turns, hardly do."
    ]


def disturbance_warnings(sweep: Sweep) -> list[str]:
    """Return sentences about a machine and samples that others disturbed."""
    machine, seen = sweep.machine, [*sweep.samples.get("disturbance", ())]
    stopped = stopped_text([machine.disturbance, *seen])
    sentences = [stopped] if stopped else []
    if disturbed_share(machine.disturbance, machine.elapsed_s) > DISTURBED_SHARE:
        sentences.append(
            "The machine's limits were measured while others used it: peak, bandwidth and capacity may be too low"
            + ("." if sweep.reference_call else ", so that floors and bounds are too weak.")
        )
    for threads in sorted({int(n) for row in sweep.capacities for n in row.capacity}):
        takes = capacities_of((machine, *sweep.capacities), threads)
        if max(takes) > (1 + CAPACITY_CHANGE) * min(takes):
            sentences.append(
                f"{threads} threads did the work of {min(takes):.2f} to {max(takes):.2f} single ones, depending on the "
                f"generation: vCPUs shared a core, ran at a lower clock, or served other work. Times of several "
                f"threads, their bounds and simulations hold for the median of the generations; measure again on a "
                f"machine that does not change."
            )
    sentences += _clock_text(sweep)
    disturbed = sum(len(turns.judge_rounds(row).disturbed) for row in sweep.rounds)
    total = sum(len(row.wall_s) for row in sweep.rounds)
    if disturbed:
        sentences.append(
            f"{disturbed} of {plural(total, 'round')} {'was' if disturbed == 1 else 'were'} disturbed and left out: an "
            f"indicator that does not depend on the model showed interference (calibration kernel before turns, stolen "
            f"time, threads that waited for a CPU)."
        )
    alone = [] if sweep.config.get("oversubscribe") else [row for row in sweep.rounds if not row.interference]
    if beside := {row.repetition for row in alone if turns.is_loaded(row)}:
        cause = "the CPU quota held them up" if stopped else "other programs ran meanwhile"
        sentences.append(
            f"Threads waited for a CPU for more than {turns.STEADY_LOAD:.0%} of the time in {len(beside)} of "
            f"{plural(len({row.repetition for row in alone}), 'generation')}: {cause}. Under constant load no round is "
            f"an outlier, and step times hold for such a machine alone; measure again on an idle one."
        )
    refused = {pages["error"] for pages in sweep.samples.get("pages", ()) if isinstance(pages, dict)} - {""}
    for error in sorted(refused):
        sentences.append(
            f"The kernel refused the memory policy ({error}): pages are where each process touched them first, which "
            f"may favor a model. A container needs CAP_SYS_NICE for it."
        )
    if moved := sweep.quiet.moved:
        count = len({row.repetition for row in sweep.rounds})
        sentences.append(moved_text(moved.values(), len({generation for generation, _ in moved}), count))
    for own in () if moved else turns.handovers_of(turns.groups_of((), sweep.rounds)).values():
        if (handovers := sorted(own.values()))[-1] > turns.MOVED_TIMES * handovers[0]:
            sentences.append(
                f"A hand-over through a cache line took {format_time(handovers[0])} to {format_time(handovers[-1])}, "
                f"depending on the generation. No distance of the CPUs is the usual one, so that no generation is left "
                f"out."
            )
    if sweep.disturbed_points:
        named = "; ".join(_points_text(sweep, *each) for each in groupby(sorted(sweep.disturbed_points), itemgetter(0)))
        sentences.append(f"Most samples had too few undisturbed rounds; do not use {named}.")
    hot = sum(bool(lost.get("thermal_throttles")) for lost in seen)
    if hot:
        sentences.append(
            f"Heat or low voltage slowed the CPUs during {hot} of {len(sweep.samples)} samples. Cool the machine, give "
            f"it a stronger supply or lower its frequency, and measure again."
        )
    return sentences


def _points_text(sweep: Sweep, plan_id: str, points: Iterable[Point]) -> str:
    """Name the points of a plan, and the plan by its swept options, where there are several."""
    named = ", ".join(f"{model_label(model)} on {plural(threads, 'thread')}" for _, model, threads in points)
    record = sweep.named[plan_id]
    swept = ", ".join(f"{axis_label(axis)} {value_text(record[axis])}" for axis in sweep.axes)
    return f"{named} ({swept})" if swept else named
