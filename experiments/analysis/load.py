"""Read a results folder and check that its rows may be compared."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from ...cython_src.errors import UsageError
from ..sampling.models import MODELS
from ..sampling.results import SCHEMA_VERSION, read_results
from .answers import LOSS_TOLERANCES, disagreement
from .disturbance import disturbance_warnings
from .names import base_model, is_gpu, model_label, plan_beside
from .speeds import speed_table
from .study import Point, Study

IMPLAUSIBLE_EFFICIENCY = 1.5


def load(out_dir: str | os.PathLike) -> Study:
    """Read and check a results folder.

    Raises
    ------
    UsageError
        See `study_from_rows` and `read_results`.
    """
    results = read_results(out_dir)
    return study_from_rows(results.rows, results.partial)


def study_from_rows(rows: Sequence[Mapping[str, Any]], partial: str = "") -> Study:
    """Check rows and put them in order.

    Raises
    ------
    UsageError
        No run row; samples of several environments, or of several instruction sets of the CPU; a sample without a hash
        of the weights, or with another one than the rest of its plan on its device; devices whose losses differ by more
        than rounding; a sample of an unknown plan; efficiency above 1.5.
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
    _check_devices([row for row in samples if row.get("answer")])
    _check_profiles(by_kind.get("profile", []), plans)
    usable = []
    without_time: list[Mapping[str, Any]] = []
    left_out: Counter[Point] = Counter()
    for row in samples:
        if row.get("step_time_s") and row["step_time_s"] > 0:
            usable.append(row)
        else:
            left_out[row["plan_id"], row["model"], row["threads"]] += 1
            without_time.append(row)
    study = Study(
        run=dict(by_kind["run"][-1]),
        plans=plans,
        machine=dict(by_kind["machine"][-1]) if by_kind.get("machine") else {},
        samples=pd.DataFrame(usable),
        profiles=[row for row in by_kind.get("profile", []) if not is_gpu(row["model"])],
        gpu_profiles=[row for row in by_kind.get("profile", []) if is_gpu(row["model"])],
        failures=failures,
        traces=by_kind.get("trace", []),
        machine_model=dict(by_kind["machine_model"][-1]) if by_kind.get("machine_model") else {},
        capacities=by_kind.get("capacity", []),
        partial=partial,
        warnings=warnings,
    )
    if any("block_time_s" in row and not row.get("floors") for row in study.profiles):
        warnings.append(
            "An older forktask wrote these profiles, without the floors of their own runs: the table of measured time "
            "against the floor is left out. Measure again for it."
        )
    for row in without_time:
        plan = f", {study.problem_name(row['plan_id'])}," if len(plans) > 1 else ""
        warnings.append(
            f"Repetition {row['repetition']} of {row['model']} on {row['threads']} threads{plan} has no positive step "
            f"time (its two run lengths differ by less than the noise); it was left out."
        )
    warnings.extend(_missing_points(study, left_out))
    warnings.extend(disturbance_warnings(study))
    warnings.extend(_check_efficiency(study))
    return study


def _separate_interference(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Give samples beside spinning processes plans of their own, so that only equal conditions are compared."""
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


def _check_environments(runs, samples, profiles) -> None:
    identities = {row["environment_id"] for row in (*runs, *samples) if row.get("environment_id")}
    identities |= {row["environment_id"] for row in profiles if row.get("environment_id")}
    if len(identities) > 1:
        raise UsageError(
            f"all rows must come from one environment, got {len(identities)} ({', '.join(sorted(identities))}); "
            f"measure each machine or installation into a folder of its own"
        )
    sets = {row["instruction_set"] for row in samples if row.get("instruction_set") and not is_gpu(row["model"])}
    if len(sets) > 1:
        raise UsageError(
            f"all samples of the CPU must use one instruction set, got {', '.join(sorted(sets))}; "
            f"measure them into separate folders"
        )


def _check_results(samples, failures, plans) -> None:
    """Check that all points of a plan computed the same bits, before any time is shown; devices, and forms of a GPU's
    kernels, which add in other orders, the same losses within rounding."""
    for row in failures:
        if row["reason"] == "mismatch":
            raise UsageError(
                f"all models must compute the same weights, but {row['model']} on {row['threads']} threads did not "
                f"({row['message']}); no time is shown before they agree"
            )
    first: dict[tuple, Mapping] = {}
    for row in samples:
        if row["plan_id"] not in plans:
            raise UsageError(f"samples must belong to a plan row, got plan_id {row['plan_id']!r}; measure again")
        if not row.get("weights_hash"):
            raise UsageError(
                f"every sample must carry a hash of the weights, repetition {row['repetition']} of {row['model']} on "
                f"{row['threads']} threads has none; measure it again"
            )
        if not (plans[row["plan_id"]].get("deterministic", True) and row.get("deterministic", True)):
            continue
        for key in ("weights_hash", "losses_hash"):
            if not row.get(key):
                continue
            other = first.setdefault((row["plan_id"], row.get("instruction_set"), key), row)
            if row[key] != other[key]:
                raise UsageError(
                    f"all models must compute the same {key.removesuffix('_hash')}, but {row['model']} on "
                    f"{row['threads']} threads (repetition {row['repetition']}) and {other['model']} on "
                    f"{other['threads']} (repetition {other['repetition']}) differ for "
                    f"{plans[row['plan_id']]['network']}; no time is shown before they agree"
                )


def _check_devices(samples) -> None:
    """Check that the first losses on all devices agree within rounding."""
    first: dict[str, Mapping] = {}
    for row in samples:
        other = first.setdefault(row["plan_id"], row)
        count = len(LOSS_TOLERANCES)
        if row.get("instruction_set") != other.get("instruction_set") and (
            wrong := disagreement(other["answer"][:count], row["answer"][:count])
        ):
            raise UsageError(
                f"devices must agree before times are compared, but beside {other['model']}'s answer that of "
                f"{row['model']} {wrong}; this is a fault of the program"
            )


def _check_profiles(profiles, plans) -> None:
    """Check that each profile has the time of every block, loop and phase of its plan.

    On a GPU convolutions are other loops where each device chooses its own algorithm, and loops are not compared.
    """
    for row in profiles:
        if is_gpu(row["model"]):
            continue
        loops = plans.get(row["plan_id"], {}).get("loops", ())
        counts: dict[str, int] = {}
        for loop in loops:
            counts[loop["name"]] = counts.get(loop["name"], 0) + loop["num_blocks"]
        blocks, times = row.get("block_time_s"), row.get("loop_time_s")
        phases = {loop["phase"] for loop in loops}
        known = (
            blocks is None or all(len(blocks.get(name, ())) == count for name, count in counts.items()),
            times is None or set(times) >= set(counts),
            all(set(row.get(key) or phases) >= phases for key in ("phase_wall_s", "phase_beside_s")),
        )
        if not all(known):
            raise UsageError(
                f"a profile must hold the times of all blocks, loops and phases of its plan, that of {row['model']} on "
                f"{row['threads']} threads (repetition {row['repetition']}) does not; measure it again"
            )


def _check_efficiency(study: Study) -> list[str]:
    """Refuse impossible efficiencies; return a sentence for each one that is too uncertain to refuse."""
    if not len(study.samples):
        return []
    table = speed_table(study)
    # A wide interval shows disturbed samples; only an interval that lies above the limit as a whole is a fault.
    wrong = table[table["efficiency_low"] > IMPLAUSIBLE_EFFICIENCY]
    if len(wrong):
        row = wrong.iloc[0]
        raise UsageError(
            f"efficiency must not exceed {IMPLAUSIBLE_EFFICIENCY}, got {row['efficiency']:.2f} for {row['model']} on "
            f"{row['threads']} threads; the serial baseline was disturbed or did other work: measure again"
        )
    return [
        f"{model_label(row['model'])} on {row['threads']} threads has an efficiency of {row['efficiency']:.0%}, which "
        "no computer can have: its samples or those of the serial run are too few and disturbed. Do not use this point."
        for row in table[table["efficiency"] > IMPLAUSIBLE_EFFICIENCY].to_dict("records")
    ]


def _has_one_thread(model: str) -> bool:
    known = MODELS.get(base_model(model))
    return known is not None and known.max_threads == 1


def _missing_points(study: Study, left_out: Mapping[Point, int]) -> list[str]:
    """Return sentences about points of the grid that neither were measured nor failed."""
    models, threads, repeats = (study.config.get(key) for key in ("models", "threads", "repeats"))
    if not (models and threads and repeats) or study.config.get("budget_s"):
        return []  # with a budget, points have as many samples as their verdicts needed
    failed = {(r["plan_id"], r["model"], r["threads"]) for r in study.failures}
    measured = asked = 0
    for plan_id, plan in study.plans.items():
        if plan.get("interference"):
            continue
        tuned = plan.get("granularity") not in (study.config.get("granularity") or [plan.get("granularity")])
        for hogs in study.config.get("interference") or [0]:
            this = plan_beside(plan_id, hogs)
            for model in models:
                for count in (1,) if _has_one_thread(model) else threads:
                    done = len(study.step_times(this, model, count)) + left_out.get((this, model, count), 0)
                    if tuned and not done and (this, model, count) not in failed:
                        continue  # It is the best granularity of another model or number of threads.
                    asked += repeats
                    measured += repeats if (this, model, count) in failed else min(done, repeats)
    if measured == asked:
        return []
    if study.run.get("schema_version", SCHEMA_VERSION) < SCHEMA_VERSION:
        remedy = "an older forktask began it, so measure it again in another folder"
    else:
        remedy = "give the same command again to go on"
    return [f"The run is not complete: {measured} of {asked} samples; {remedy}."]
