"""Evaluate given weights on a data set, with one form of convolutions or several, and say where the time goes."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np

from ...cython_src.errors import UsageError
from ...cython_src.networks.layers import Network
from ...cython_src.networks.registry import get_network
from ...cython_src.records import Record, about
from ..machine.environment import described_environment
from ..results.files import csv_text, write_atomically
from ..results.folder import SAMPLES, ResultsWriter, new_run
from ..results.training_rows import EvaluatedRow
from ..subjects.models import convolution_for, storage_for
from ..tables import percent_column, text_column, text_table, time_column
from ..tables.numbers import plural
from ..tables.progress import ProgressBar
from .config import TrainingConfig
from .dataset import Dataset
from .evaluations import Evaluations, load_weights
from .text import Text
from .train import check_plans, configure, data_for

TABLE = "layer_kinds.csv"
DEFAULTS = {"bind": "close", "batch": 100, "fusion": "none"}  # which differ from those of a training


class EvaluationSettings(Record, frozen=True):
    """What is evaluated, and how often."""

    weights: Annotated[str, about("file of parameters: safetensors, or .pt and .pth of PyTorch")] = ""
    split: Annotated[
        str, about("samples of the data that are evaluated", choices=("test", "valid", "train", "all"))
    ] = "test"
    images: Annotated[int, about("the first so many of them; 0: all", least=0)] = 0
    passes: Annotated[int, about("timed passes over them; the forms take turns", least=1, below=10_001)] = 5


def configure_evaluation(
    given: Mapping[str, Any], forms: Sequence[str], device: str | None = None, oversubscribe: bool = False
) -> TrainingConfig:
    """Return the configuration of an evaluation with the first of some forms; as `configure`."""
    return configure({**DEFAULTS, **given, "conv": forms[0]}, False, device, oversubscribe)


def evaluate(
    config: TrainingConfig, forms: Sequence[str], settings: EvaluationSettings, report: Callable[[str], None] = print
) -> list[EvaluatedRow]:
    """Evaluate given weights with each form of convolutions, and leave rows and a table in `config.out`.

    Parameters
    ----------
    config : TrainingConfig
        Network, data, model and plan; `conv` is each of `forms` in turn.

    Returns
    -------
    list of EvaluatedRow
        One for each form.

    Raises
    ------
    UsageError
        Weights that do not fit the network, more images than there are, a folder in use, or as in `train`.
    """
    if not settings.weights:
        raise UsageError("evaluate needs the parameters of the network, in a file; give it as weights, --weights")
    out = Path(config.out)
    if (out / SAMPLES).exists():
        raise UsageError(f"out must be a new or empty folder, got {out}; choose another")
    data = data_for(config, report)
    indices = _samples(data, settings)
    network = data.fit(get_network(config.network))
    configs = [config.with_changes(conv=form) for form in forms]
    for each in configs:
        convolution_for(each.spec, each.conv)  # raises
    check_plans(config, data, [each.evaluation(config.batch) for each in configs])
    gpu = config.spec.is_gpu
    stored = {**config.as_dict(), **settings.as_dict(), "conv": [*forms], "data": data.description}
    command = shlex.join(["forktask", *sys.argv[1:]])
    with ExitStack() as owned:
        evaluations = [
            owned.enter_context(Evaluations(each, data, network, storage_for(each.spec), config.batch, timed=not gpu))
            for each in configs
        ]
        for evaluation in evaluations:
            text = load_weights(Path(settings.weights), network, evaluation.prepare(indices))
        report(text)
        rows = _measure(evaluations, indices, settings.passes)
        writer = owned.enter_context(ResultsWriter(out))  # from here on nothing refuses the run any more
        writer.start(new_run("evaluation", stored, command, **described_environment()))
        for row in rows:
            writer.append(row)
    table = [[row.conv, row.samples, kind, time_s] for row in rows for kind, time_s in by_kind(row, network).items()]
    write_atomically(out / TABLE, csv_text(["conv", "samples", "kind", "time_s"], table))
    return rows


def _measure(evaluations: Sequence[Evaluations], indices: np.ndarray, passes: int) -> list[EvaluatedRow]:
    """Evaluate with each form, interleaved, and return a row of each; the first pass warms up."""
    times: list[list[float]] = [[] for _ in evaluations]
    layers: list[list[dict[str, float]]] = [[] for _ in evaluations]
    results = [(0.0, 0.0)] * len(evaluations)
    with ProgressBar((passes + 1) * len(evaluations), "evaluating") as bar:
        for number in range((passes + 1) * len(evaluations)):
            turn, form = divmod(number, len(evaluations))
            bar.show(number, f"{evaluations[form].config.conv}, pass {turn} of {passes}")
            evaluations[form].times = {}
            begin = time.perf_counter()
            results[form] = evaluations[form].evaluate(indices)
            if turn:
                times[form].append(time.perf_counter() - begin)
                layers[form].append(evaluations[form].times)
    return [
        EvaluatedRow(
            conv=evaluation.config.conv,
            samples=len(indices),
            loss=loss,
            accuracy=1 - error_rate,
            time_s=own,
            layer_s={name: [one[name] for one in by_layer] for name in by_layer[0]},
        )
        for evaluation, own, by_layer, (loss, error_rate) in zip(evaluations, times, layers, results, strict=True)
    ]


def by_kind(row: EvaluatedRow, network: Network) -> dict[str, float]:
    """Return the seconds of each kind of layer in a pass, median over passes, in the order of the network."""
    kinds = {layer.name: type(layer).__name__ for layer in network.layers}
    sums: dict[str, np.ndarray] = {}
    for layer, seconds in row.layer_s.items():
        kind = kinds.get(layer, layer)
        sums[kind] = sums.get(kind, 0.0) + np.array(seconds)
    return {kind: float(np.median(seconds)) for kind, seconds in sums.items()}


def evaluation_table(rows: Sequence[EvaluatedRow], config: TrainingConfig) -> list[dict[str, Any]]:
    """Return a record for each form: accuracy, and the median seconds of a pass and of each kind of layer."""
    network = get_network(config.network)
    return [
        {"conv": row.conv, "accuracy": row.accuracy, "time_s": median(row.time_s), **by_kind(row, network)}
        for row in rows
    ]


def evaluation_text(rows: Sequence[EvaluatedRow], config: TrainingConfig) -> str:
    """Format the result of `evaluate` for a terminal."""
    records = evaluation_table(rows, config)
    columns = [
        text_column("conv", "form"),
        percent_column("accuracy", digits=2),
        time_column("time_s", "time per pass"),
    ]
    columns += [time_column(kind) for kind in list(records[0])[len(columns) :]]
    lines = text_table(columns, records)
    threads = plural(config.threads, "thread")
    where = "" if config.spec.is_gpu else f" on {threads}"
    busy = "; kinds of layers: in blocks, sum over threads" if rows[0].layer_s else ""
    head = f"{config.network} on {plural(rows[0].samples, 'sample')} of {config.data}, batch {config.batch}, "
    head += f"{config.model}{where}: median of {plural(len(rows[0].time_s), 'pass', 'passes')}{busy}"
    return "\n".join([head, "", *lines, "", f"{config.out}: {SAMPLES}, {TABLE}"])


def _samples(data: Dataset | Text, settings: EvaluationSettings) -> np.ndarray:
    """Return the indices of the samples that are evaluated."""
    splits = {"train": data.train, "valid": data.valid, "test": data.test}
    indices = np.concatenate([*splits.values()]) if settings.split == "all" else splits[settings.split]
    if settings.images > len(indices):
        raise UsageError(
            f"images must not exceed the {len(indices)} samples of split {settings.split!r}, got {settings.images}; "
            f"ask for fewer, or for split 'all'"
        )
    return indices[: settings.images or None]
