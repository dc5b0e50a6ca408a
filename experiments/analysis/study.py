"""From sample rows to tables. No clock and no executor here: everything is redrawn from `samples.jsonl`.

Words: a *problem* is a network, batch and phase; a *plan* is a problem at one granularity with its options; a *point*
is a model on a number of threads, running a plan. Each point has one sample per repetition block.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import pandas as pd

from ...cython_src.errors import UsageError
from ..bounds import bounds
from ..sampling.results import read_results
from .statistics import FASTER, SLOWER, Estimate, median_interval, ratio_interval, spread, verdict

IMPLAUSIBLE_EFFICIENCY = 1.5
TASK_MODELS = ("tasks", "taskgraph", "taskiter", "openmp_tasks", "tbb")
MODEL_ORDER = ("serial", "forkjoin", "joblib", *TASK_MODELS)
SMOKE_TEST_DATA = ("digits", "synthetic")
# `compare` and `run` feed networks with random images: step times do not depend on what is in them.
DEFAULT_DATA = "synthetic"
# A sample is called disturbed above this share of time in which a runnable thread waited, or was stolen or throttled.
DISTURBED_SHARE = 0.05
TICK_S = 0.01
DISTURBANCES = ("pressure_some_us", "steal_ticks", "nonvoluntary_switches", "throttled_us")


def base_model(model: str) -> str:
    """The model's name without its options."""
    return model.partition(":")[0]


def model_label(model: str) -> str:
    """Short readable form of a model spec: `forkjoin:region=persistent` gives "forkjoin, persistent"."""
    name, *options = model.split(":")
    words = []
    for option in options:
        key, _, value = option.partition("=")
        words.append(f"{key.replace('_', ' ')} {value}" if value.isdecimal() else value)
    return ", ".join([name, *words])


def model_rank(model: str) -> tuple[int, int, str]:
    """Sort key: serial, fork-join forms, then task models from eager to closed; plain specs before their variants."""
    base = base_model(model)
    return (MODEL_ORDER.index(base) if base in MODEL_ORDER else len(MODEL_ORDER), model.count(":"), model)


@dataclass(eq=False)
class Study:
    """Checked rows of one results folder.

    Attributes
    ----------
    run : dict
        The latest "run" row.
    plans : dict of plan_id to "plan" row
    machine : dict
        The latest "machine" row, or empty.
    samples : DataFrame
        One row per sample; columns plan_id, model, threads, repetition, step_time_s, ...
    profiles, failures : list of dict
    partial : str
        Half-written last line that was left out.
    warnings : list of str
        What a reader of the tables must know.
    """

    run: dict
    plans: dict[str, dict]
    machine: dict
    samples: pd.DataFrame
    profiles: list[dict]
    failures: list[dict]
    partial: str = ""
    warnings: list[str] = field(default_factory=list)

    @property
    def config(self) -> Mapping[str, Any]:
        """What was asked for."""
        return self.run.get("config") or {}

    @property
    def environment(self) -> Mapping[str, Any]:
        """Where it was measured."""
        return self.run.get("environment") or {}

    @property
    def data(self) -> str:
        """What the network was fed with, as on the command line."""
        return str(self.config.get("data") or DEFAULT_DATA)

    @property
    def smoke_test(self) -> bool:
        """Whether the data are too small or artificial to stand for a real training set."""
        return self.data.partition(":")[0] in SMOKE_TEST_DATA

    @property
    def physical_cores(self) -> int | None:
        """Physical cores of the machine; threads beyond them share a core (SMT)."""
        return (self.environment.get("topology") or {}).get("cores")

    @cached_property
    def points(self) -> dict[tuple[str, str, int], dict[int, float]]:
        """Seconds per step by repetition, of each (plan_id, model, threads)."""
        found: dict[tuple[str, str, int], dict[int, float]] = {}
        if len(self.samples):
            columns = self.samples[["plan_id", "model", "threads", "repetition", "step_time_s"]]
            for plan_id, model, threads, repetition, step in columns.itertuples(index=False):
                found.setdefault((plan_id, model, int(threads)), {})[int(repetition)] = float(step)
        return found

    def capacity(self, threads: int) -> float:
        """How many single threads' work P threads do at once on this machine, in [1, P]; P where not measured."""
        measured = (self.machine.get("capacity") or {}).get(str(threads))
        return min(max(1.0, float(measured)), float(threads)) if measured else float(threads)

    def plan_ids(self, with_samples: bool = True) -> list[str]:
        """Plans in the order in which they were written."""
        used = set(self.samples["plan_id"]) if len(self.samples) else set()
        return [plan_id for plan_id in self.plans if plan_id in used or not with_samples]

    def step_times(self, plan_id: str, model: str, threads: int) -> dict[int, float]:
        """Seconds per step of one point, by repetition."""
        return self.points.get((plan_id, model, threads), {})

    def points_of(self, plan_id: str) -> list[tuple[str, int]]:
        """(model, threads) of a plan's points, models in their fixed order."""
        found = [(model, threads) for plan, model, threads in self.points if plan == plan_id]
        return sorted(found, key=lambda p: (model_rank(p[0]), p[1]))

    def loop_times(self, profile: Mapping[str, Any]) -> list[list[float]]:
        """Mean durations of each loop's blocks in seconds, in plan order, from a profile row."""
        loops = [(loop["name"], loop["num_blocks"]) for loop in self.plans[profile["plan_id"]]["loops"]]
        return bounds.durations_by_loop(loops, profile["block_time_s"])

    def profile(self, plan_id: str, model: str, threads: int) -> dict | None:
        """The latest profile row of a point."""
        for row in reversed(self.profiles):
            if row["plan_id"] == plan_id and row["model"] == model and row["threads"] == threads:
                return row
        return None


def problem_of(plan: Mapping[str, Any]) -> tuple[str, int, str, int]:
    """(network, batch, phase, interference) of a plan row."""
    return plan["network"], plan["batch"], plan["phase"], plan.get("interference", 0)


def problem_name(plan: Mapping[str, Any]) -> str:
    """Readable name of a plan's problem."""
    hogs = plan.get("interference", 0)
    beside = f", beside {hogs} spinning process{'es' * (hogs > 1)}" if hogs else ""
    return f"{plan['network']}, batch {plan['batch']}, {plan['phase']}{beside}"


def _separate_interference(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Give what was measured beside spinning processes plans of its own: only equal conditions are compared."""
    plans = {row["plan_id"]: row for row in rows if row["kind"] == "plan"}
    result: list[Mapping[str, Any]] = []
    made: set[str] = set()
    for row in rows:
        hogs = row.get("interference", 0)
        if not hogs or row["kind"] == "plan":
            result.append(row)
            continue
        plan_id = plan_beside(row["plan_id"], hogs)
        if plan_id not in made and row["plan_id"] in plans:
            made.add(plan_id)
            result.append({**plans[row["plan_id"]], "plan_id": plan_id, "interference": hogs})
        result.append({**row, "plan_id": plan_id})
    return result


def load(out_dir: str | os.PathLike) -> Study:
    """Read and check a results folder.

    Raises
    ------
    UsageError
        As `study_from_rows` and `read_results`.
    """
    results = read_results(out_dir)
    return study_from_rows(results.rows, results.partial)


def study_from_rows(rows: Sequence[Mapping[str, Any]], partial: str = "") -> Study:
    """Check rows and put them in order.

    Raises
    ------
    UsageError
        No run row; samples of several environments or instruction sets; a sample without a hash of the weights, or
        with another one than the rest of its plan; a sample of an unknown plan; efficiency above 1.5.
    """
    by_kind: dict[str, list] = {}
    for row in _separate_interference(rows):
        by_kind.setdefault(row["kind"], []).append(row)
    if not by_kind.get("run"):
        raise UsageError("results must begin with a run row, got none; measure again with `forktask compare`")
    warnings = []
    if partial:
        warnings.append("The last line of samples.jsonl is half-written (the run was killed); it was left out.")
    plans = {row["plan_id"]: row for row in by_kind.get("plan", [])}
    samples = list({(r["config_id"], r["repetition"]): r for r in by_kind.get("sample", [])}.values())
    failures = by_kind.get("failure", [])
    _check_environments(by_kind["run"], samples, by_kind.get("profile", []))
    _check_results(samples, failures, plans)
    usable = []
    for row in samples:
        if row.get("step_time_s") and row["step_time_s"] > 0:
            usable.append(row)
        else:
            warnings.append(
                f"Repetition {row['repetition']} of {row['model']} on {row['threads']} threads has no positive step "
                f"time (its two run lengths differ by less than the noise); it was left out."
            )
    study = Study(
        run=dict(by_kind["run"][-1]),
        plans=plans,
        machine=dict(by_kind["machine"][-1]) if by_kind.get("machine") else {},
        samples=pd.DataFrame(usable),
        profiles=by_kind.get("profile", []),
        failures=failures,
        partial=partial,
        warnings=warnings,
    )
    warnings.extend(_missing_points(study))
    warnings.extend(_disturbance_warnings(study))
    warnings.extend(_check_efficiency(study))
    return study


def _check_environments(runs, samples, profiles) -> None:
    identities = {row["environment_id"] for row in (*runs, *samples) if row.get("environment_id")}
    identities |= {row["environment_id"] for row in profiles if row.get("environment_id")}
    if len(identities) > 1:
        raise UsageError(
            f"all rows must come from one environment, got {len(identities)} ({', '.join(sorted(identities))}); "
            f"measure each machine or installation into a folder of its own"
        )
    sets = {row["instruction_set"] for row in samples if row.get("instruction_set")}
    if len(sets) > 1:
        raise UsageError(
            f"all samples must use one instruction set, got {', '.join(sorted(sets))}; measure them into separate folders"
        )


def _check_results(samples, failures, plans) -> None:
    """Every point of a plan must have computed the same bits, before any time is shown."""
    for row in failures:
        if row["reason"] == "mismatch":
            raise UsageError(
                f"all models must compute the same weights, but {row['model']} on {row['threads']} threads did not "
                f"({row['message']}); no time is shown before they agree"
            )
    first: dict[tuple[str, str], Mapping] = {}
    for row in samples:
        if row["plan_id"] not in plans:
            raise UsageError(f"samples must belong to a plan row, got plan_id {row['plan_id']!r}; measure again")
        if not row.get("weights_hash"):
            raise UsageError(
                f"every sample must carry a hash of the weights, repetition {row['repetition']} of {row['model']} on "
                f"{row['threads']} threads has none; measure it again"
            )
        if not plans[row["plan_id"]].get("deterministic", True):
            continue
        for key in ("weights_hash", "losses_hash"):
            if not row.get(key):
                continue
            other = first.setdefault((row["plan_id"], key), row)
            if row[key] != other[key]:
                raise UsageError(
                    f"all models must compute the same {key.removesuffix('_hash')}, but {row['model']} on "
                    f"{row['threads']} threads (repetition {row['repetition']}) and {other['model']} on "
                    f"{other['threads']} (repetition {other['repetition']}) differ for {plans[row['plan_id']]['network']}; "
                    f"no time is shown before they agree"
                )


def _check_efficiency(study: Study) -> list[str]:
    """Refuse impossible efficiencies; a sentence for each point that is impossible but too uncertain to refuse."""
    if not len(study.samples):
        return []
    table = speed_table(study)
    # A few disturbed samples are told by their interval; only what lies above the limit as a whole is a fault.
    wrong = table[table["efficiency_low"] > IMPLAUSIBLE_EFFICIENCY]
    if len(wrong):
        row = wrong.iloc[0]
        raise UsageError(
            f"efficiency must not exceed {IMPLAUSIBLE_EFFICIENCY}, got {row['efficiency']:.2f} for {row['model']} on "
            f"{row['threads']} threads; the serial baseline was disturbed or did other work: measure again"
        )
    return [
        f"{model_label(row['model'])} on {row['threads']} threads has an efficiency of {row['efficiency']:.0%}, which no "
        f"computer can have: its samples or those of the serial run are too few and disturbed. Do not use this point."
        for row in table[table["efficiency"] > IMPLAUSIBLE_EFFICIENCY].to_dict("records")
    ]


def disturbed_share(disturbance: Mapping[str, Any] | None, seconds: float, threads: int = 1) -> float:
    """Share of `seconds` lost to others, as far as the kernel says: the largest of its signs; NaN without any."""
    disturbance = disturbance or {}
    lost = [
        (disturbance.get("pressure_some_us"), 1e-6),
        (disturbance.get("throttled_us"), 1e-6),
        (disturbance.get("steal_ticks"), TICK_S / threads),
    ]
    known = [value * unit for value, unit in lost if value is not None]
    return max(known) / seconds if known and seconds > 0 else math.nan


def _disturbance_warnings(study: Study) -> list[str]:
    sentences = []
    machine = study.machine
    if disturbed_share(machine.get("disturbance"), machine.get("elapsed_s") or 0.0) > DISTURBED_SHARE:
        sentences.append(
            "The machine's limits were measured while others used it: peak, bandwidth and capacity may be "
            "too low, so that floors and bounds are too weak."
        )
    disturbed = sum(
        disturbed_share(
            record.get("disturbance") if isinstance(record.get("disturbance"), Mapping) else None,
            record.get("timed_wall_s") or sum(record.get("run_times_s") or [0.0]),
            record["threads"],
        )
        > DISTURBED_SHARE
        for record in study.samples.to_dict("records")
        if not record.get("interference")
    )
    if disturbed:
        sentences.append(
            f"{disturbed} of {len(study.samples)} samples were disturbed: for more than {DISTURBED_SHARE:.0%} of the "
            f"timed runs a thread waited for a CPU, or the CPU was taken away. Measure again on a quiet machine before "
            f"drawing conclusions."
        )
    return sentences


def _missing_points(study: Study) -> list[str]:
    """Sentences about points that were asked for and are neither measured nor failed."""
    models, threads, repeats = (study.config.get(key) for key in ("models", "threads", "repeats"))
    if not (models and threads and repeats):
        return []
    failed = {(r["plan_id"], r["model"], r["threads"]) for r in study.failures}
    measured = asked = 0
    for plan_id, plan in study.plans.items():
        if plan.get("interference"):
            continue
        tuned = plan.get("granularity") not in (study.config.get("granularity") or [plan.get("granularity")])
        for hogs in study.config.get("interference") or [0]:
            this = plan_beside(plan_id, hogs)
            for model in models:
                for count in (1,) if base_model(model) == "serial" else threads:
                    done = len(study.step_times(this, model, count))
                    if tuned and not done and (this, model, count) not in failed:
                        continue  # found for another model or number of threads
                    asked += repeats
                    measured += repeats if (this, model, count) in failed else min(done, repeats)
    if measured < asked:
        return [f"The run is not complete: {measured} of {asked} samples; give the same command again to go on."]
    return []


def plan_beside(plan_id: str, hogs: int) -> str:
    """Id under which a plan's samples beside spinning processes are kept."""
    return f"{plan_id}-{hogs}" if hogs else plan_id


# --- tables ---------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def best_serial(study: Study, plan_id: str) -> tuple[str, dict[int, float]] | None:
    """(plan_id, step times by repetition) of the fastest serial run of the same problem, at any granularity."""
    problem = problem_of(study.plans[plan_id])
    candidates = []
    for other in study.plan_ids():
        if problem_of(study.plans[other]) == problem:
            times = study.step_times(other, "serial", 1)
            if times:
                candidates.append((float(np.median(list(times.values()))), other, times))
    return min(candidates, key=lambda c: c[0])[1:] if candidates else None


@lru_cache(maxsize=4096)
def better_forkjoin(study: Study, plan_id: str, threads: int) -> str | None:
    """The fork-join form with the smallest median on this plan and number of threads."""
    forms = [m for m, t in study.points_of(plan_id) if t == threads and base_model(m) == "forkjoin"]
    return min(forms, key=lambda m: (_median_step(study, plan_id, m, threads), model_rank(m)), default=None)


def _median_step(study: Study, plan_id: str, model: str, threads: int) -> float:
    return float(np.median(list(study.step_times(plan_id, model, threads).values())))


@lru_cache(maxsize=4)
def speed_table(study: Study) -> pd.DataFrame:
    """One row per point: time, speedup, efficiency, and the verdict against the better fork-join form.

    Columns: network, batch, phase, granularity, plan_id, model, threads, repetitions, median_s, lower_quartile_s,
    upper_quartile_s, low_s, high_s (95 % interval of the median), fill_s, speedup, speedup_low, speedup_high (paired
    with the best serial run of the problem), efficiency, efficiency_low, efficiency_high, reference (model), ratio,
    ratio_low, ratio_high (time / reference's time), verdict. NaN and "" where there is nothing to compare with.
    """
    rows = []
    for plan_id in study.plan_ids():
        plan = study.plans[plan_id]
        serial = best_serial(study, plan_id)
        of_plan = study.samples[study.samples["plan_id"] == plan_id]
        for model, threads in study.points_of(plan_id):
            times = study.step_times(plan_id, model, threads)
            values = list(times.values())
            s, interval = spread(values), median_interval(values)
            fill = of_plan[(of_plan["model"] == model) & (of_plan["threads"] == threads)].get("fill_time_s")
            nothing = Estimate(math.nan, math.nan, math.nan, 0)
            speedup = ratio_interval(serial[1], times) if serial else nothing
            reference = better_forkjoin(study, plan_id, threads)
            ratio = nothing
            if reference and reference != model:
                ratio = ratio_interval(times, study.step_times(plan_id, reference, threads))
            rows.append(
                {
                    "network": plan["network"],
                    "batch": plan["batch"],
                    "phase": plan["phase"],
                    "granularity": str(plan.get("granularity", "")),
                    "plan_id": plan_id,
                    "model": model,
                    "threads": threads,
                    "repetitions": s.count,
                    "median_s": s.median,
                    "lower_quartile_s": s.lower_quartile,
                    "upper_quartile_s": s.upper_quartile,
                    "low_s": interval.low,
                    "high_s": interval.high,
                    "fill_s": float(np.median(fill.dropna())) if fill is not None and len(fill.dropna()) else math.nan,
                    "speedup": speedup.value,
                    "speedup_low": speedup.low,
                    "speedup_high": speedup.high,
                    "efficiency": speedup.value / threads,
                    "efficiency_low": speedup.low / threads,
                    "efficiency_high": speedup.high / threads,
                    "reference": reference if reference and reference != model else "",
                    "ratio": ratio.value,
                    "ratio_low": ratio.low,
                    "ratio_high": ratio.high,
                    "verdict": verdict(ratio) if reference and reference != model else "",
                }
            )
    return pd.DataFrame(rows)


@lru_cache(maxsize=4)
def own_best_table(study: Study) -> pd.DataFrame:
    """Each model at its own best granularity, for problems measured at several.

    Columns: problem, threads, model, granularity, plan_id, median_s, speedup, reference,
    reference_granularity, ratio, ratio_low, ratio_high, verdict. The reference is the best fork-join form at its own
    best granularity. Choosing the best of several by the same samples flatters each side a little.
    """
    speeds = speed_table(study).copy()
    rows = []
    speeds["problem"] = [problem_name(study.plans[p]) for p in speeds["plan_id"]]
    for (problem, threads), group in speeds.groupby(["problem", "threads"], sort=False):
        if group["plan_id"].nunique() < 2:
            continue
        best = group.loc[group.groupby("model")["median_s"].idxmin()]
        joins = best[best["model"].map(base_model) == "forkjoin"]
        reference = joins.loc[joins["median_s"].idxmin()] if len(joins) else None
        for _, row in best.iterrows():
            comparable = reference is not None and row["model"] != reference["model"]
            ratio = Estimate(math.nan, math.nan, math.nan, 0)
            if comparable:
                ratio = ratio_interval(
                    study.step_times(row["plan_id"], row["model"], threads),
                    study.step_times(reference["plan_id"], reference["model"], threads),
                )
            rows.append(
                {
                    "problem": problem,
                    "threads": threads,
                    "model": row["model"],
                    "granularity": row["granularity"],
                    "plan_id": row["plan_id"],
                    "median_s": row["median_s"],
                    "speedup": row["speedup"],
                    "reference": reference["model"] if comparable else "",
                    "reference_granularity": reference["granularity"] if comparable else "",
                    "ratio": ratio.value,
                    "ratio_low": ratio.low,
                    "ratio_high": ratio.high,
                    "verdict": verdict(ratio) if comparable else "",
                }
            )
    rows.sort(key=lambda r: (r["problem"], r["threads"], model_rank(r["model"])))
    return pd.DataFrame(rows)


@lru_cache(maxsize=4)
def floor_table(study: Study) -> pd.DataFrame:
    """The machine's floor of each plan beside its serial time T1.

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
        own = study.step_times(plan_id, "serial", 1)
        t1 = float(np.median(list(serial[1].values()))) if serial else math.nan
        flops_floor = plan["flops"] / peak
        roofline = bounds.roofline_floor(plan["loops"], peak, bandwidth)
        rows.append(
            {
                "plan_id": plan_id,
                "t1_s": t1,
                "serial_s": float(np.median(list(own.values()))) if own else math.nan,
                "flop_floor_s": flops_floor,
                "roofline_floor_s": roofline,
                "flop_floor_ratio": t1 / flops_floor if flops_floor else math.nan,
                "roofline_floor_ratio": t1 / roofline if roofline else math.nan,
            }
        )
    return pd.DataFrame(rows)


def layer_table(study: Study, plan_id: str, model: str = "serial", threads: int = 1) -> pd.DataFrame:
    """Busy time by layer and phase from a profile row.

    Columns: layer, phase, loops, blocks, flops, time_s (busy, summed over workers), share, gflops, peak_fraction (of one
    thread's measured peak). Empty if the point was not profiled. Rows are in plan order.
    """
    profile = study.profile(plan_id, model, threads)
    if profile is None:
        return pd.DataFrame()
    peak = study.machine.get("peak_flops_per_s_1thread") or math.nan
    groups: dict[tuple[str, str], dict] = {}
    for loop, times in zip(study.plans[plan_id]["loops"], study.loop_times(profile), strict=True):
        key = (loop.get("layer") or loop["name"], loop.get("phase", ""))
        group = groups.setdefault(
            key, {"layer": key[0], "phase": key[1], "loops": 0, "blocks": 0, "time_s": 0.0, "flops": 0.0}
        )
        group["loops"] += 1
        group["blocks"] += loop["num_blocks"]
        group["time_s"] += float(sum(times))
        group["flops"] += loop["flops"]
    table = pd.DataFrame(groups.values())
    table["share"] = table["time_s"] / table["time_s"].sum()
    rate = table["flops"] / table["time_s"].where(table["time_s"] > 0)
    table["gflops"] = rate / 1e9
    table["peak_fraction"] = rate / peak
    return table


@lru_cache(maxsize=4)
def bound_table(study: Study) -> pd.DataFrame:
    """Floors per plan and number of threads, from the serial profile's block durations.

    Durations are scaled so that they sum to the serial run of the same plan (the event log costs a little). Columns:
    plan_id, threads, capacity, and for each of area, forkjoin, forkjoin_static, taskgraph, taskiter: <name>_s and
    <name>_speedup against the best serial run; the last two are NaN where the rows carry no span or cycle mean.
    """
    rows = []
    for plan_id in study.plan_ids():
        profile = study.profile(plan_id, "serial", 1)
        own = study.step_times(plan_id, "serial", 1)
        serial = best_serial(study, plan_id)
        if profile is None or not own:
            continue
        serial_s, t1 = float(np.median(list(own.values()))), float(np.median(list(serial[1].values())))
        blocks = study.loop_times(profile)
        scale = serial_s / sum(map(sum, blocks))
        graph = profile_graph_bounds(profile)
        counts = study.samples.loc[study.samples["plan_id"] == plan_id, "threads"].unique()
        for threads in sorted({1, *map(int, counts)}):
            times = bounds.predicted_times(blocks, threads, study.capacity(threads), graph)
            row = {"plan_id": plan_id, "threads": threads, "capacity": study.capacity(threads)}
            for name in ("area", "forkjoin", "forkjoin_static", "taskgraph", "taskiter"):
                row[f"{name}_s"] = scale * times.get(name, math.nan)
                row[f"{name}_speedup"] = t1 / row[f"{name}_s"]
            rows.append(row)
    return pd.DataFrame(rows)


def profile_graph_bounds(profile: Mapping[str, Any]) -> bounds.GraphBounds | None:
    """Span and cycle mean that were written with a profile row (`GraphBounds.as_row`), if they were."""
    values = profile.get("bounds")
    return bounds.GraphBounds(values["work_s"], values["span_s"], values.get("cycle_mean_s")) if values else None


@lru_cache(maxsize=4)
def accounting_table(study: Study) -> pd.DataFrame:
    """Measured time against the floor computed from the same point's own block durations.

    Own durations hold the slowdown from sharing caches and memory, so what is left is the runtime: barriers, task
    handling, waiting. Columns: plan_id, model, threads, measured_s, inflation (own work / serial work), floor,
    floor_s, excess_s, excess (relative to the floor), per_unit_s (excess per barrier for fork-join; excess times
    threads per task for task models), runtime_cost_s (the same graph with empty kernels under the same model),
    unexplained (excess without it, relative to the floor).
    """
    rows = []
    for plan_id in study.plan_ids():
        plan = study.plans[plan_id]
        serial_profile = study.profile(plan_id, "serial", 1)
        serial_work = sum(map(sum, study.loop_times(serial_profile))) if serial_profile else math.nan
        seen = {(row["model"], row["threads"]) for row in study.profiles if row["plan_id"] == plan_id}
        for model, threads in sorted(seen, key=lambda p: (model_rank(p[0]), p[1])):
            times = study.step_times(plan_id, model, threads)
            base = base_model(model)
            if not times or base == "serial":
                continue
            profile = study.profile(plan_id, model, threads)
            blocks = study.loop_times(profile)
            graph = profile_graph_bounds(profile)
            own = bounds.predicted_times(blocks, threads, None, graph)
            name = {"forkjoin": "forkjoin", "joblib": "forkjoin", "taskgraph": "taskgraph"}.get(base, "taskiter")
            if "barrier=loop" in model or "taskwait=loop" in model:
                name = "forkjoin"
            if name not in own:
                name = "area"
            measured = float(np.median(list(times.values())))
            excess = measured - own[name]
            units = len(plan["loops"]) if base in ("forkjoin", "joblib") else plan["num_tasks"] / threads
            cost = profile.get("runtime_cost_s")
            cost = math.nan if cost is None else float(cost)
            rows.append(
                {
                    "plan_id": plan_id,
                    "model": model,
                    "threads": threads,
                    "measured_s": measured,
                    "inflation": sum(map(sum, blocks)) / serial_work,
                    "floor": name,
                    "floor_s": own[name],
                    "excess_s": excess,
                    "excess": excess / own[name],
                    "per_unit_s": excess / units,
                    "runtime_cost_s": cost,
                    "unexplained": (excess - cost) / own[name],
                }
            )
    return pd.DataFrame(rows)


@lru_cache(maxsize=4)
def cost_table(study: Study) -> pd.DataFrame:
    """One-time costs, and after how many iterations they are earned back.

    Columns: plan_id, model, threads, prepare_s, record_s, close_s, first_replay_s (medians; NaN where a model has no
    such step), step_s, once_s = prepare + first iteration - a steady step, and break_even_tasks, break_even_forkjoin:
    the smallest number of iterations n with once + n * step <= that of eager `tasks` (of the better fork-join form)
    on the same threads; "never" if the step is slower, "undecided" if the step times do not differ clearly, "" where
    there is nothing to compare with.
    """
    rows = []
    for plan_id in study.plan_ids():
        of_plan = study.samples[study.samples["plan_id"] == plan_id]
        points = study.points_of(plan_id)
        once = {point: _once(of_plan, point) for point in points}
        for model, threads in points:
            here = of_plan[(of_plan["model"] == model) & (of_plan["threads"] == threads)]
            row = {"plan_id": plan_id, "model": model, "threads": threads}
            for column in ("prepare_s", "record_s", "close_s", "first_replay_s"):
                row[column] = _median(here, column)
            row["step_s"] = float(here["step_time_s"].median())
            row["once_s"] = once[model, threads]
            eager = [m for m, t in points if base_model(m) == "tasks" and t == threads]
            best_eager = min(eager, key=lambda m: _median_step(study, plan_id, m, threads), default=None)
            join = better_forkjoin(study, plan_id, threads)
            for column, other in (("break_even_tasks", best_eager), ("break_even_forkjoin", join)):
                row[column] = ""
                if other and other != model and base_model(model) in ("taskgraph", "taskiter"):
                    row[column] = _break_even(study, plan_id, model, other, threads, once)
            rows.append(row)
    return pd.DataFrame(rows)


def _median(samples: pd.DataFrame, column: str) -> float:
    if column not in samples:
        return math.nan
    return float(pd.to_numeric(samples[column]).median())


def _once(samples: pd.DataFrame, point: tuple[str, int]) -> float:
    here = samples[(samples["model"] == point[0]) & (samples["threads"] == point[1])]
    first, step = _median(here, "first_replay_s"), float(here["step_time_s"].median())
    return _median(here, "prepare_s") + (max(0.0, first - step) if not math.isnan(first) else 0.0)


def _break_even(study: Study, plan_id: str, model: str, other: str, threads: int, once) -> int | str:
    mine, theirs = study.step_times(plan_id, model, threads), study.step_times(plan_id, other, threads)
    answer = verdict(ratio_interval(mine, theirs))
    if answer == SLOWER:
        return "never"
    if answer != FASTER:
        return "undecided"
    gain = float(np.median(list(theirs.values())) - np.median(list(mine.values())))
    extra = once[model, threads] - once[other, threads]
    if math.isnan(extra) or gain <= 0:
        return "undecided"
    return max(1, math.ceil(extra / gain))


@lru_cache(maxsize=4)
def disturbance_table(study: Study) -> pd.DataFrame:
    """Sums over repetitions of what disturbed each point. Columns: plan_id, model, threads and `DISTURBANCES`."""
    rows: dict[tuple, dict] = {}
    for record in study.samples.to_dict("records"):
        key = (record["plan_id"], record["model"], record["threads"])
        row = rows.setdefault(
            key, {"plan_id": key[0], "model": key[1], "threads": key[2], **dict.fromkeys(DISTURBANCES, math.nan)}
        )
        seen = record.get("disturbance")
        for name in DISTURBANCES:
            value = seen.get(name) if isinstance(seen, Mapping) else None
            if value is not None:
                row[name] = value if math.isnan(row[name]) else row[name] + value
    return pd.DataFrame(sorted(rows.values(), key=lambda r: (r["plan_id"], model_rank(r["model"]), r["threads"])))


def raw_ratios(study: Study, plan_id: str, model: str, threads: int) -> np.ndarray:
    """Speedup of each repetition block against the best serial run, for the raw dots of a figure."""
    serial = best_serial(study, plan_id)
    times = study.step_times(plan_id, model, threads)
    if serial is None:
        return np.empty(0)
    return np.array([serial[1][r] / times[r] for r in sorted(set(serial[1]) & set(times))])


def main_plan(study: Study) -> str:
    """The plan that figures show unless asked otherwise: the one with most samples, the first of equals.

    Raises
    ------
    UsageError
        There is no sample yet.
    """
    if not len(study.samples):
        reasons = (
            "; ".join(sorted({f"{r['model']}: {r['message']}" for r in study.failures})) or "none was measured yet"
        )
        raise UsageError(f"tables and figures need at least one sample, got none ({reasons}); measure again")
    counts = study.samples["plan_id"].value_counts()
    return max(study.plan_ids(), key=lambda plan_id: counts[plan_id])
