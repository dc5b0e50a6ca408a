"""Tables of a study: its runs over seeds, its epochs, and what differs between models."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ..sampling.memory import GRAPH, KINDS
from ..training.checkpoints import OPTIONAL_COLUMNS
from ..training.phase_times import COLUMNS as PHASE_COLUMNS
from ..training.trainer import EVALUATING
from .configuration import WITHOUT_EFFECT, Run
from .loaders import CONDITIONS
from .running import Results

# Kinds of memory that a run's plans have to themselves; the data lie in what the loader took.
PLANNED = (*(kind for kind in dict.fromkeys(KINDS.values()) if kind != "data and logs"), GRAPH, EVALUATING)


def epoch_table(results: Results) -> pd.DataFrame:
    """Return a row for each run and epoch, stages joined: the axes, label, seed, stage, epoch (over all stages), and
    the columns of `epochs.csv`, with the time summed over stages; `epoch_time_s` is that of the epoch alone."""
    rows = []
    for run, result in results.done():
        epochs, seconds = 0, 0.0
        for number, stage in enumerate(result["stages"]):
            before = 0.0
            for row in stage["history"]:
                rows.append(
                    {
                        **run.axes,
                        "label": run.label,
                        "stage": number + 1,
                        **row,
                        "seed": run.seed,
                        "epoch": epochs + int(row["epoch"]),
                        "epoch_time_s": row["time_s"] - before,
                        "time_s": seconds + row["time_s"],
                    }
                )
                before = row["time_s"]
            epochs += len(stage["history"])
            seconds += stage["history"][-1]["time_s"]
    return pd.DataFrame(rows)


def run_table(results: Results) -> list[dict[str, Any]]:
    """Return a row for each combination of the axes, over its seeds: medians, lowest and highest test accuracy, time to
    each accuracy that was asked for, energy where the machine measures it, and memory."""
    epochs = epoch_table(results)
    groups: dict[str, list[tuple[Run, Mapping[str, Any]]]] = defaultdict(list)
    for run, result in results.done():
        groups[run.label].append((run, result))
    rows = []
    for label, found in groups.items():
        here = epochs[epochs["label"] == label]
        last = here[here["epoch"] == here["epoch"].max()]
        (run, _), *_ = found
        finals = [result["stages"][-1]["seeds"][0] for _, result in found]
        accuracies = [final["test_accuracy"] for final in finals]
        epoch_time = float(np.median(last["time_s"]) / here["epoch"].max())
        gpu = [name for name in OPTIONAL_COLUMNS if name.startswith("gpu_") and name in here]
        rows.append(
            {
                **run.axes,
                "label": label,
                "seeds": len(found),
                "epochs": int(here["epoch"].max()),
                "epoch_time_s": epoch_time,
                "samples_per_s": finals[0]["samples_per_epoch"] / epoch_time,
                "joules_per_epoch": float(here["joules"].median()) if "joules" in here else np.nan,
                **{name: float(here[name].median()) for name in gpu},
                "train_loss": float(last["train_loss"].median()),
                "valid_loss": float(last["valid_loss"].median()),
                "valid_error": float(last["error_rate"].median()),
                "test_accuracy": float(np.median(accuracies)),
                "test_accuracy_min": min(accuracies),
                "test_accuracy_max": max(accuracies),
                "peak_bytes": float(np.median([final["memory_bytes"]["peak resident"] for final in finals])),
                "loader_bytes": float(np.median([final["memory_bytes"].get("loader", np.nan) for final in finals])),
                "phases_timed": finals[0].get("phases_timed", ""),
                **{name: _mean_over_epochs(here, name) for name in PHASE_COLUMNS if name in here},
                "libraries_bytes": float(np.median([result["libraries_bytes"] for _, result in found])),
                **{f"time_to_{accuracy:g}": _time_to(here, accuracy) for accuracy in results.study.options.accuracy},
            }
        )
    return rows


def _mean_over_epochs(epochs: pd.DataFrame, name: str) -> float:
    """Median over seeds of a column's mean over epochs, like the time of an epoch."""
    return float(epochs.groupby("seed")[name].mean().median())


def _time_to(epochs: pd.DataFrame, accuracy: float) -> float:
    """Median over seeds of the training time after the first epoch with this validation accuracy; NaN where half of
    the seeds or more never have it."""
    times = []
    for _, history in epochs.groupby("seed"):
        reached = history[1 - history["error_rate"] >= accuracy]
        times.append(reached["time_s"].min() if len(reached) else np.inf)
    median = float(np.median(times))
    return median if np.isfinite(median) else np.nan


def epoch_medians(results: Results) -> list[dict[str, Any]]:
    """Return a row for each combination and epoch: medians over seeds."""
    epochs = epoch_table(results)
    if not len(epochs):
        return []
    names = ["stage", "train_loss", "valid_loss", "error_rate", "epoch_time_s", "time_s", "resident_bytes"]
    names += [name for name in ("joules",) if name in epochs]
    medians = epochs.groupby(["label", "epoch"], sort=False)[names].median().reset_index()
    axes = {run.label: run.axes for run, _ in results.done()}
    return [{**axes[row["label"]], **row} for row in medians.to_dict("records")]


def memory_table(results: Results) -> list[dict[str, Any]]:
    """Return a row for each combination: medians over seeds of the peak of its process and what it consists of.

    peak_bytes, libraries_bytes (resident before the training), loader_bytes (what reading the data added), the kinds of
    `PLANNED` as the plans need them, rest_bytes (the peak without all these: copies, what libraries allocate), and
    grown_bytes (resident after the last epoch beyond that after the second of a stage, of the last stage; NaN for
    fewer epochs).
    """
    rows: dict[str, list[dict[str, float]]] = defaultdict(list)
    axes = {run.label: run.axes for run, _ in results.done()}
    for run, result in results.done():
        stage = result["stages"][-1]
        memory = stage["seeds"][0]["memory_bytes"]
        row = {"libraries_bytes": result["libraries_bytes"], "loader_bytes": memory.get("loader", 0)}
        row |= {kind: memory.get(kind, 0) for kind in PLANNED}
        resident = [epoch["resident_bytes"] for epoch in stage["history"] if "resident_bytes" in epoch]
        rest = {"rest_bytes": memory["peak resident"] - sum(row.values())}
        rest["grown_bytes"] = resident[-1] - resident[1] if len(resident) > 2 else np.nan
        rows[run.label].append({"peak_bytes": memory["peak resident"], **row, **rest})
    return [{**axes[label], "label": label, **pd.DataFrame(found).median().to_dict()} for label, found in rows.items()]


def loader_table(results: Results) -> list[dict[str, Any]]:
    """Return a row for each way of loading alone that could be measured."""
    return [{**row["config"], **row} for row in results.loaders if "failure" not in row]


def loading_table(results: Results) -> list[dict[str, Any]]:
    """Return a row for each combination that loads in its steps, where loading alone and training on images in memory
    were measured too.

    of_lower is its rate over the lower of theirs; of_both over the rate of the two one after the other on the same
    cores.
    """
    runs = {run.label: run for run, _ in results.done()}
    rates = {row["label"]: row["samples_per_s"] for row in run_table(results)}
    alone: dict[tuple, float] = {}
    for row in loader_table(results):
        key = tuple(row["config"].values())
        alone[key] = max(alone.get(key, 0.0), row["images_per_s"])
    training = {
        _but_loading(runs[label]): rate for label, rate in rates.items() if runs[label].stages[0].load == "memory"
    }
    rows = []
    for label, rate in rates.items():
        loads = alone.get(tuple(getattr(runs[label].stages[0], name) for name in CONDITIONS))
        trains = training.get(_but_loading(runs[label]))
        if loads and trains:
            shares = {"of_lower": rate / min(loads, trains), "of_both": rate * (1 / loads + 1 / trains)}
            rates_s = {"samples_per_s": rate, "loading_per_s": loads, "training_per_s": trains}
            rows.append({**runs[label].axes, "label": label, **rates_s, **shares})
    return rows


def _but_loading(run: Run) -> str:
    return repr({name: value for name, value in run.axes.items() if name != "load"})


def pretrained_sentences(results: Results) -> list[str]:
    """Say for each network what was loaded from a file of parameters, what begins at random and what was not used."""
    said = {}
    for run, result in results.done():
        started = result["stages"][0]["seeds"][0].get("started")
        if started:
            said[f"{run.stages[0].network}: {started}."] = None
    return list(said)


def data_sentences(results: Results) -> list[str]:
    """Name the data of the runs; results of older versions do not tell."""
    said = {stage["data"]: None for _, result in results.done() for stage in result["stages"] if "data" in stage}
    return [f"Data: {'; '.join(said)}."] if said else []


def energy_sentences(results: Results) -> list[str]:
    """Say what measured the energy, or why nothing did; results of older versions do not tell."""
    said = {stage["energy"] for _, result in results.done() for stage in result["stages"] if "energy" in stage}
    return [f"Energy of the whole machine while training: {'; '.join(sorted(said))}."] if said else []


def agreement(results: Results) -> tuple[list[str], list[str]]:
    """Return sentences on runs that differ in what must not change a weight, and warnings where they differ.

    Models, numbers of threads, and loading from memory or from the cache leave the same bits on the processor.
    """
    groups: dict[Any, dict[str, str]] = defaultdict(dict)
    for run, result in results.done():
        options = [_effective(stage.as_dict()) for stage in run.stages]
        groups[repr(options)][run.label] = result["stages"][-1]["seeds"][0]["parameters_sha256"]
    several = [found for found in groups.values() if len(found) > 1]
    wrong = [found for found in several if len(set(found.values())) > 1]
    warnings = [f"these runs must leave the same parameters and do not: {'; '.join(sorted(found))}" for found in wrong]
    if not several or wrong:
        return [], warnings
    return [
        f"Runs that differ in model, threads or place of loading alone left bit-identical parameters "
        f"({len(several)} comparison{'s' * (len(several) > 1)} of {len(several[0])} runs, one for each seed and each "
        f"other combination)."
    ], []


def _effective(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options without those that change no weight. Models of a GPU sum in other orders, so they stay."""
    kept = {name: value for name, value in options.items() if name not in WITHOUT_EFFECT}
    kept["device"] = "gpu" if options["model"].startswith("gpu") else "cpu"
    kept["load"] = "files" if options["load"] == "files" else ""
    return kept


def failures(results: Results) -> list[dict[str, Any]]:
    """Return a row for each run that did not end, or did not fit."""
    runs = [
        {**run.axes, "label": run.label, "seed": run.seed, "reason": result["failure"], "message": result["message"]}
        for run, result in results.failed()
    ]
    loaders = [
        {
            **{name: row["config"].get(name, "") for name in axes_of(results)},
            "label": "loading alone",
            "seed": "",
            "reason": row["failure"],
            "message": f"{row['way']}, {row['count']}: {row['message']}",
        }
        for row in results.loaders
        if "failure" in row
    ]
    return runs + loaders


def axes_of(results: Results) -> Sequence[str]:
    """Names of the axes."""
    return tuple(name for name, values in results.study.axes.items() if len(values) > 1)
