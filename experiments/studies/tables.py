"""Tables of a study: its runs over seeds, its epochs, and what differs between models."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from msgspec import structs

from ..report.words import processor
from ..results.disturbance import DISTURBED_SHARE, stopped_text
from ..results.training_rows import LoadingFailureRow, LoadingRow, TrainingRow, epoch_times
from ..tables.numbers import plural
from ..training.config import TrainingConfig
from ..training.phase_times import COLUMNS as PHASE_COLUMNS
from .configuration import WITHOUT_EFFECT, Training
from .loaders import CONDITIONS
from .running import StudyResults

LEAST_USABLE = 0.5  # of the epochs of a usable row
GPU_COLUMNS = ("gpu_memory_bytes", "gpu_utilisation")


def epoch_table(results: StudyResults) -> pd.DataFrame:
    """Return a row for each run and epoch, stages joined: the axes, label, seed, stage, epoch (over all stages), and
    the fields of an `EpochRow`, with the time summed over stages; `epoch_time_s` is that of the epoch alone, `usable`
    whether others left it undisturbed."""
    rows = []
    for run, result in results.done():
        epochs, seconds = 0, 0.0
        for number, stage in enumerate(result.stages):
            for row, epoch_time, usable in epoch_times(stage.history):
                rows.append(
                    {
                        **run.axes,
                        "label": run.label,
                        "stage": number + 1,
                        **{k: np.nan if v is None else v for k, v in structs.asdict(row).items() if k != "disturbance"},
                        "seed": run.seed,
                        "epoch": epochs + row.epoch,
                        "epoch_time_s": epoch_time,
                        "time_s": seconds + row.time_s,
                        "usable": usable,
                    }
                )
            epochs += len(stage.history)
            seconds += stage.history[-1].time_s
    return pd.DataFrame(rows).dropna(axis="columns", how="all")


def run_table(results: StudyResults) -> list[dict[str, Any]]:
    """Return a row for each combination of the axes, over its seeds: medians, lowest and highest test accuracy, time to
    each accuracy that was asked for, energy where the machine measures it, and memory.

    The time of an epoch, and of its phases, is the median over the undisturbed epochs of all seeds, or over all where
    there is none; a row is `usable` if at least half of its epochs were undisturbed."""
    epochs = epoch_table(results)
    groups: dict[str, list[tuple[Training, TrainingRow]]] = defaultdict(list)  # over the seeds
    for run, row in results.done():
        groups[run.label].append((run, row))
    rows = []
    for label, result in groups.items():
        here = epochs[epochs["label"] == label]
        last = here[here["epoch"] == here["epoch"].max()]
        (run, _), *_ = result
        ends = [row.stages[-1].end for _, row in result]
        before = [row.stages[0].end.libraries_bytes for _, row in result]  # later stages find what the first one left
        accuracies = [end.test_accuracy for end in ends]
        quiet = here if not here["usable"].any() else here[here["usable"]]
        phases = [name for name in PHASE_COLUMNS if name in here]
        epoch_time = float(quiet["epoch_time_s"].median())
        rest = (quiet["epoch_time_s"] - quiet[phases].sum(axis=1)).clip(lower=0)
        rows.append(
            {
                **run.axes,
                "label": label,
                "seeds": len(result),
                "epochs": int(here["epoch"].max()),
                "epoch_time_s": epoch_time,
                "epoch_time_min_s": float(here["epoch_time_s"].min()),
                "epoch_time_max_s": float(here["epoch_time_s"].max()),
                "usable": bool(here["usable"].mean() >= LEAST_USABLE),
                "disturbed_epochs": int((~here["usable"]).sum()),
                "samples_per_s": ends[0].samples_per_epoch / epoch_time,
                "joules_per_epoch": float(here["joules"].median()) if "joules" in here else np.nan,
                **{name: float(here[name].median()) for name in GPU_COLUMNS if name in here},
                **{name: float(last[name].median()) for name in ("train_loss", "valid_loss")},
                "valid_error": float(last["error_rate"].median()),
                "test_accuracy": float(np.median(accuracies)),
                "test_accuracy_min": min(accuracies),
                "test_accuracy_max": max(accuracies),
                **{name: float(np.median([getattr(e, name) for e in ends])) for name in ("peak_bytes", "loader_bytes")},
                "phases_timed": ends[0].phases_timed,
                **{name: float(quiet[name].median()) for name in phases},
                **({"rest_s": float(rest.median())} if phases else {}),
                "libraries_bytes": float(np.median(before)),
                **{f"time_to_{accuracy:g}": _time_to(here, accuracy) for accuracy in results.study.options.accuracy},
            }
        )
    return rows


def _time_to(epochs: pd.DataFrame, accuracy: float) -> float:
    """Median over seeds of the training time after the first epoch with this validation accuracy; NaN where half of
    the seeds or more never have it."""
    reached = epochs[1 - epochs["error_rate"] >= accuracy].groupby("seed")["time_s"].min()
    median = float(np.median(reached.reindex(epochs["seed"].unique(), fill_value=np.inf)))
    return median if np.isfinite(median) else np.nan


def loader_table(results: StudyResults) -> list[dict[str, Any]]:
    """Return a row for each way of loading alone that could be measured: medians of its epochs, usable if at least half
    of them were undisturbed."""
    return [
        {
            **row.config,
            **structs.asdict(row),
            "epoch_time_s": float(np.median(row.epoch_time_s)),
            "usable": bool(np.mean(row.usable) >= LEAST_USABLE),
        }
        for row in results.loading
        if isinstance(row, LoadingRow)
    ]


def loading_table(results: StudyResults) -> list[dict[str, Any]]:
    """Return a row for each combination that loads in its steps, where loading alone and training on images in memory
    were measured too.

    of_lower is its rate over the lower of theirs; of_both over the rate of the two one after the other on the same
    cores.
    """
    runs = {run.label: run for run, _ in results.done()}
    table = {row["label"]: row for row in run_table(results)}
    alone: dict[tuple, list[dict[str, Any]]] = defaultdict(list)
    for row in loader_table(results):
        alone[tuple(row["config"].values())].append(row)
    in_memory = {_but_loading(run): table[label] for label, run in runs.items() if run.stages[0].load == "memory"}
    rows = []
    for label, run in runs.items():
        ways = alone.get(tuple(getattr(run.stages[0], name) for name in CONDITIONS))
        training = in_memory.get(_but_loading(run))
        if ways and training:
            rate, trains = table[label]["samples_per_s"], training["samples_per_s"]
            loads = max(way["images_per_s"] for way in ways)
            shares = {"of_lower": rate / min(loads, trains), "of_both": rate * (1 / loads + 1 / trains)}
            rates_s = {"samples_per_s": rate, "loading_per_s": loads, "training_per_s": trains}
            usable = table[label]["usable"] and training["usable"] and any(way["usable"] for way in ways)
            rows.append({**run.axes, "label": label, **rates_s, **shares, "usable": usable})
    return rows


def _but_loading(run: Training) -> str:
    return repr({name: value for name, value in run.axes.items() if name != "load"})


def pretrained_sentences(results: StudyResults) -> list[str]:
    """Say for each network what was loaded from a file of parameters, what begins at random and what was not used."""
    begun = [(run.stages[0].network, row.stages[0].end.started) for run, row in results.done()]
    return [f"{network}: {started}." for network, started in dict.fromkeys(begun) if started]


def _summaries(results: StudyResults, name: str) -> list[str]:
    """What the summaries of all stages say under a name, each once."""
    texts = [getattr(stage.summary, name) for _, row in results.done() for stage in row.stages]
    return [text for text in dict.fromkeys(texts) if text]


def data_sentences(results: StudyResults) -> list[str]:
    """Name the data of the runs."""
    texts = _summaries(results, "data")
    return [f"Data: {'; '.join(texts)}."] if texts else []


def machine_sentence(results: StudyResults) -> str:
    """Name the processor, the version of forktask and the day of the latest run."""
    environment = results.run.environment
    cpu, version = processor(environment) or "unknown processor", environment.get("forktask", "unknown")
    return f"Machine: {cpu}; forktask {version}; {results.run.created[:10]}."


def data_notes(results: StudyResults) -> list[str]:
    """Say what a reader must know of the data."""
    smoke = ["The data are too easy to compare networks on: a smoke test."]
    return (smoke if _summaries(results, "smoke_test") else []) + sorted(_summaries(results, "data_note"))


def energy_sentences(results: StudyResults) -> list[str]:
    """Say what measured the energy, or why nothing did."""
    text = _summaries(results, "energy")
    return [f"Energy of the whole machine while training: {'; '.join(sorted(text))}."] if text else []


def disturbance_warnings(results: StudyResults, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say which rows of `run_table` have epochs that a CPU quota or others disturbed."""
    stages = [stage for _, result in results.done() for stage in result.stages]
    stopped = stopped_text(row.disturbance for stage in stages for row in stage.history)
    each = [f"{row['label']} ({plural(row['disturbed_epochs'], 'epoch')})" for row in rows if row["disturbed_epochs"]]
    if not each:
        return []
    share = f"{DISTURBED_SHARE:.0%} of the time of some epochs"
    cause = "The CPU quota or other processes" if stopped else "Other processes"
    texts = [f"{cause} took more than {share}; medians leave these out where others remain: {'; '.join(each)}."]
    texts = [stopped, *texts] if stopped else texts
    if wrong := [row["label"] for row in rows if not row["usable"]]:
        texts.append(f"Most epochs were disturbed, so do not use the times of: {'; '.join(wrong)}.")
    return texts


def agreement(results: StudyResults) -> tuple[list[str], list[str]]:
    """Return sentences on runs that differ in what must not change a weight, and warnings where they differ.

    Models, numbers of threads, and loading from memory or from the cache leave the same bits on the processor.
    """
    groups: dict[Any, dict[str, str]] = defaultdict(dict)
    for run, row in results.done():
        options = [_effective(stage) for stage in run.stages]
        groups[repr(options)][run.label] = row.stages[-1].end.parameters_sha256
    several = [result for result in groups.values() if len(result) > 1]
    wrong = [result for result in several if len(set(result.values())) > 1]
    warnings = [
        f"These runs must leave the same parameters and do not: {'; '.join(sorted(result))}." for result in wrong
    ]
    if not several or wrong:
        return [], warnings
    return [
        f"Runs that differ in model, threads or place of loading alone left bit-identical parameters "
        f"({plural(len(several), 'comparison')} of {len(several[0])} runs, one for each seed and each "
        f"other combination)."
    ], []


def _effective(stage: TrainingConfig) -> dict[str, Any]:
    """Options without those that change no weight. Models of a GPU sum in other orders, so they stay."""
    kept = {name: value for name, value in stage.as_dict().items() if name not in WITHOUT_EFFECT}
    kept["device"] = stage.spec.model.device
    kept["load"] = "files" if stage.load == "files" else ""
    return kept


def failures(results: StudyResults) -> list[dict[str, Any]]:
    """Return a row for each run that did not end, or did not fit."""
    rows = [
        {**run.axes, "label": run.label, "seed": run.seed, "reason": row.reason, "message": row.message}
        for run, row in results.failed()
    ]
    for row in results.loading:
        if isinstance(row, LoadingFailureRow):
            axes = {name: row.config.get(name, "") for name in results.study.axes}
            about = {"label": "loading alone", "seed": "", "reason": row.reason}
            rows.append({**axes, **about, "message": f"{row.way}, {row.count}: {row.message}"})
    return rows
