"""`forktask train`: train a network under any execution model, with checkpoints, curves and a figure."""

from __future__ import annotations

import argparse
import csv
import hashlib
import io
import json
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...cython_src.binding.storage import Storage
from ...cython_src.errors import UsageError
from ..sampling.gpu_sampling import GpuSampler, draw_samples, write_samples
from ..sampling.memory import check_fits, parse_bytes
from ..sampling.progress import ProgressBar, format_seconds
from .data import Dataset, load_data, random_order
from .safetensors import read_safetensors, write_atomically, write_safetensors

SCHEDULES = ("constant", "cosine", "step")
MARKER = "training.json"
FORMAT_VERSION = 1
EVALUATION_BATCH = 64
HISTORY_COLUMNS = (
    "seed",
    "epoch",
    "time_s",
    "train_loss",
    "train_error_rate",
    "valid_loss",
    "error_rate",
    "learning_rate",
)
# Only where a GPU was sampled.
GPU_COLUMNS = ("gpu_memory_bytes", "gpu_utilisation")
# Of these, resuming may change the value: results are bit-identical over models and thread counts.
CHANGEABLE = ("model", "threads", "epochs", "seeds", "out")


@dataclass(frozen=True)
class TrainingConfig:
    """What a training run is, as the command line gives it.

    Parameters
    ----------
    network, data, model : str
        Name of a network, spec of a data set (`load_data`), spec of an execution model.
    threads, epochs, batch : int
    optimizer : {"sgd", "adam", "adamw"}
    learning_rate, momentum, weight_decay : float
        Of the optimiser, in PyTorch's convention.
    schedule : {"constant", "cosine", "step"}
        Cosine: down to 0 at the last iteration. Step: a tenth after 60 % and again after 85 % of the epochs.
    warmup : float
        Epochs over which the learning rate first rises from near 0, times the schedule.
    label_smoothing, clip_norm, frozen, memory, recompute
        As `lower` explains them.
    start : str
        Safetensors file of parameters to begin with, "": random ones. Its last layer may be missing or have another
        number of classes; then that layer begins at random: fine-tuning.
    memory_limit : str
        Such as "1.5GiB": a plan that needs more is refused, with what would fit.
    seed, seeds : int
        First seed, and how many consecutive ones.
    granularity : str
        How layers are cut into blocks.
    conv : str
        Form of the convolutions.
    out : str
        Folder for the results.
    """

    network: str = "cifar10_cnn"
    data: str = "digits"
    model: str = "taskiter"
    threads: int = field(default_factory=lambda: min(2, len(os.sched_getaffinity(0))))
    epochs: int = 8
    batch: int = 32
    optimizer: str = "sgd"
    learning_rate: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 5e-4
    schedule: str = "constant"
    warmup: float = 0.0
    label_smoothing: float = 0.0
    clip_norm: float = 0.0
    frozen: str = ""
    start: str = ""
    memory: str = "full"
    recompute: bool = False
    memory_limit: str = ""
    seed: int = 0
    seeds: int = 1
    granularity: str = "auto"
    conv: str = "auto"
    out: str = "training"

    def check(self) -> None:
        """Raise `UsageError` for an impossible value; names are checked later."""
        for name, low, high in (
            ("threads", 1, 4096),
            ("epochs", 1, 1_000_000),
            ("batch", 1, 65_536),
            ("seed", 0, 2**31 - 1),
            ("seeds", 1, 1000),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise UsageError(f"--{name} must be in [{low}, {high}], got {value}")
        if not (math.isfinite(self.learning_rate) and self.learning_rate > 0):
            raise UsageError(f"--learning-rate must be a positive number, got {self.learning_rate}; try 0.01")
        if not 0 <= self.momentum < 1:
            raise UsageError(f"--momentum must be in [0, 1), got {self.momentum}; try 0.9")
        if not (math.isfinite(self.weight_decay) and self.weight_decay >= 0):
            raise UsageError(f"--weight-decay must not be negative, got {self.weight_decay}; try 0.0005")
        if self.schedule not in SCHEDULES:
            raise UsageError(f"--schedule must be one of {', '.join(SCHEDULES)}; got {self.schedule!r}")
        if not 0 <= self.warmup <= self.epochs:
            raise UsageError(f"--warmup must be in [0, {self.epochs}], the number of epochs; got {self.warmup}")


def learning_rate_table(config: TrainingConfig, epoch: int, num_batches: int) -> np.ndarray:
    """Learning rates of one epoch's iterations: float64, shape (num_batches,)."""
    rates = np.full(num_batches, config.learning_rate)
    done = epoch * num_batches + np.arange(num_batches)
    if config.schedule == "step":
        rates *= 0.1 ** ((epoch >= 0.6 * config.epochs) + (epoch >= 0.85 * config.epochs))
    elif config.schedule == "cosine":
        rates *= 0.5 * (1 + np.cos(np.pi * done / (config.epochs * num_batches)))
    if config.warmup:
        rates *= np.minimum(1.0, (done + 1) / (config.warmup * num_batches))
    return rates


class Trainer:
    """One network in training with one seed. A context manager; it owns executors and memory.

    Parameters
    ----------
    config : TrainingConfig
    data : Dataset
    seed : int
        Of the initial parameters and of the order of images.

    Attributes
    ----------
    epoch : int
        Epochs done.
    history : list of dict
        A row for each epoch done.
    """

    def __init__(self, config: TrainingConfig, data: Dataset, seed: int):
        from ...cython_src.lowering.lower import initialise, lower
        from ..sampling.models import bind_for, convolution_for, make_executor, parse_model, storage_for

        self.config, self.data, self.seed = config, data, seed
        self.epoch, self.history = 0, []
        self.num_batches = len(data.train) // config.batch
        self._executors = ExitStack()
        self._evaluations: dict[int, tuple[str, Any, Any]] = {}
        self.storage = storage_for(config.model)
        self.sampler = GpuSampler() if parse_model(config.model).model.device == "gpu" else None
        share_images(self.storage, data)
        self.plan = lower(
            config.network,
            batch=config.batch,
            phase="train",
            granularity=config.granularity,
            conv=convolution_for(config.model, config.conv),
            num_images=len(data.labels),
            num_batches=self.num_batches,
            num_iterations_logged=self.num_batches,
            num_learning_rates=self.num_batches,
            momentum=config.momentum,
            weight_decay=config.weight_decay,
            **{
                name: getattr(config, name)
                for name in ("optimizer", "label_smoothing", "clip_norm", "frozen", "memory", "recompute")
            },
        )
        if config.memory_limit:
            options = {"network": config.network, "batch": config.batch, "memory": config.memory}
            try:
                check_fits(self.plan, options, parse_bytes(config.memory_limit), None, config.threads)
            except MemoryError as error:
                raise UsageError(str(error)) from None
        self.bound = bind_for(config.model, self.plan, self.storage)
        initialise(self.bound, seed)
        if config.start:
            self._start_from(Path(config.start))
        self.executor = self._executors.enter_context(make_executor(config.model, config.threads))
        self.executor.prepare(self.bound)

    def _start_from(self, path: Path) -> None:
        """Take parameters and statistics from a file, but for a last layer that does not fit."""
        arrays, _ = read_safetensors(path)
        names = self._kept_names()
        last = names_of_last_layer(self.plan.attributes["parameters"])
        fitting = [n for n in names if n not in last or (n in arrays and arrays[n].shape == self.bound.arrays[n].shape)]
        set_arrays(self.bound.arrays, arrays, fitting, path)

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *error) -> None:
        self.close()

    def close(self) -> None:
        """End all threads."""
        self._executors.close()

    def train_epoch(self) -> dict[str, Any]:
        """Run one epoch and evaluate: a row of the history.

        The order of images depends on seed and epoch alone; images that fill no whole batch are left out,
        other ones in each epoch.
        """
        config, arrays, count = self.config, self.bound.arrays, self.num_batches
        order = self.data.train[random_order(len(self.data.train), self.seed, self.epoch)]
        arrays["batch_order"][:] = order[: count * config.batch].reshape(count, config.batch)
        rates = learning_rate_table(config, self.epoch, count)
        arrays["learning_rates"][:] = rates
        sampled = len(self.sampler.samples) if self.sampler else 0
        if self.sampler:
            self.sampler.start()
        start = time.perf_counter()
        try:
            self.executor.run(count, first_iteration=self.epoch * count)
        finally:
            if self.sampler:
                self.sampler.stop()
        seconds = time.perf_counter() - start
        losses = arrays["losses"].astype(np.float64)
        if not np.isfinite(losses).all():
            raise UsageError(
                f"the loss of epoch {self.epoch + 1}, iteration {int(np.argmin(np.isfinite(losses))) + 1} "
                f"is not finite with "
                f"--learning-rate {config.learning_rate}; lower it"
            )
        valid_loss, error_rate = self.evaluate(self.data.valid)
        self.epoch += 1
        row = {
            "seed": self.seed,
            "epoch": self.epoch,
            "time_s": (self.history[-1]["time_s"] if self.history else 0.0) + seconds,
            "train_loss": float(losses.mean()),
            "train_error_rate": 1 - int(arrays["correct"].sum()) / (count * config.batch),
            "valid_loss": valid_loss,
            "error_rate": error_rate,
            "learning_rate": float(rates[-1]),
            **(self.sampler.summary(sampled) if self.sampler else {}),
        }
        self.history.append(row)
        return row

    def evaluate(self, indices: np.ndarray) -> tuple[float, float]:
        """Mean loss and error rate over images, at the current parameters.

        Whole batches first; what is left over goes through a plan with a batch of its own, on the same
        parameters.
        """
        total_loss, total_correct = 0.0, 0
        whole = len(indices) // EVALUATION_BATCH * EVALUATION_BATCH
        for part, batch in ((indices[:whole], EVALUATION_BATCH), (indices[whole:], len(indices) - whole)):
            if not len(part):
                continue
            num_batches = len(part) // batch
            prefix, bound, executor = self._evaluation(batch, num_batches)
            bound.arrays[f"{prefix}batch_order"][:] = part.reshape(num_batches, batch)
            executor.run(num_batches)
            total_loss += batch * float(bound.arrays[f"{prefix}losses"].astype(np.float64).sum())
            total_correct += int(bound.arrays[f"{prefix}correct"].sum())
        return total_loss / len(indices), 1 - total_correct / len(indices)

    def _evaluation(self, batch: int, num_batches: int):
        """Prefix, bound plan and executor that evaluate `num_batches` batches at the present parameters."""
        from ...cython_src.lowering.lower import lower
        from ..sampling.models import bind_for, convolution_for, make_executor

        key = (batch, num_batches)
        if key not in self._evaluations:
            # Logs and order have other sizes than in training: a name of their own for each of these plans.
            prefix = f"evaluate{num_batches}x{batch}."
            share_images(self.storage, self.data, prefix)
            plan = lower(
                self.config.network,
                batch=batch,
                phase="evaluate",
                conv=convolution_for(self.config.model, self.config.conv),
                num_images=len(self.data.labels),
                num_batches=num_batches,
                num_iterations_logged=num_batches,
                prefix=prefix,
            )
            bound = bind_for(self.config.model, plan, self.storage)
            executor = self._executors.enter_context(make_executor(self.config.model, self.config.threads))
            executor.prepare(bound)
            self._evaluations[key] = (prefix, bound, executor)
        return self._evaluations[key]

    def save(self, path: Path) -> None:
        """Write parameters, momenta, epoch and history: all that training needs to go on bit by bit."""
        state = {
            "format_version": FORMAT_VERSION,
            "network": self.config.network,
            "seed": self.seed,
            "epoch": self.epoch,
            "iteration": self.epoch * self.num_batches,
            "history": self.history,
        }
        arrays = {name: self.bound.arrays[name] for name in self._state_names()}
        write_safetensors(path, arrays, {"forktask": json.dumps(state)})

    def load(self, path: Path) -> None:
        """Go on from a checkpoint.

        Raises
        ------
        UsageError
            Damaged, or of another network or seed.
        """
        arrays, state = read_checkpoint(path, self.config.network, self.seed)
        set_arrays(self.bound.arrays, arrays, self._state_names(), path)
        self.epoch, self.history = state["epoch"], state["history"]

    def finish(self, path: Path) -> dict[str, Any]:
        """Test, write the parameters under PyTorch's names, and return a row of the summary."""
        parameters = {name: self.bound.arrays[name] for name in self._kept_names()}
        write_safetensors(path, parameters, {"network": self.config.network, "data": self.data.name})
        test_loss, test_error = self.evaluate(self.data.test)
        return {
            "seed": self.seed,
            "epochs": self.epoch,
            "time_s": self.history[-1]["time_s"],
            "test_loss": test_loss,
            "test_accuracy": 1 - test_error,
            "parameters": path.name,
            "parameters_sha256": hashlib.sha256(b"".join(p.tobytes() for p in parameters.values())).hexdigest()[:16],
        }

    def _kept_names(self) -> list[str]:
        """Parameters and running statistics: what a network needs to be used."""
        statistics = [name for name, buffer in self.plan.buffers.items() if buffer.role == "statistic"]
        return [*self.plan.attributes["parameters"], *statistics]

    def _state_names(self) -> list[str]:
        """Buffers that a checkpoint holds."""
        roles = ("parameter", "optimizer_state", "statistic")
        return [name for name, buffer in self.plan.buffers.items() if buffer.role in roles]


def names_of_last_layer(parameters: Sequence[str]) -> set[str]:
    """Parameters of the layer that comes last."""
    layer = parameters[-1].rpartition(".")[0]
    return {name for name in parameters if name.rpartition(".")[0] == layer}


def read_checkpoint(path: Path, network: str, seed: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Arrays and state of a checkpoint, as `Trainer.save` wrote them.

    Raises
    ------
    UsageError
        Missing, damaged, or of another network or seed.
    """
    arrays, metadata = read_safetensors(path)
    try:
        state = json.loads(metadata["forktask"])
        found = (state["format_version"], state["network"], state["seed"])
        rows = [(row["epoch"], set(row) - set(GPU_COLUMNS)) for row in state["history"]]
        if rows != [(epoch, set(HISTORY_COLUMNS)) for epoch in range(1, state["epoch"] + 1)]:
            raise ValueError("its history does not fit its epoch")
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"{path} must be a checkpoint of forktask train ({error!r}); delete it to start again"
        ) from None
    if found != (FORMAT_VERSION, network, seed):
        raise UsageError(
            f"{path} must be a checkpoint of format {FORMAT_VERSION}, network {network}, seed {seed}; got "
            f"{found}; "
            f"delete it to start again"
        )
    return arrays, state


def share_images(storage: Storage, data: Dataset, prefix: str = "") -> None:
    """Let a storage use the arrays of a data set, without a copy.

    Raises
    ------
    UsageError
        Managed memory, which the arrays do not lie in.
    """
    if storage.managed:
        raise UsageError("training uses the data set where it lies, which managed memory forbids; use memory=pinned")
    storage.arrays[f"{prefix}dataset.images"] = data.images
    storage.arrays[f"{prefix}dataset.labels"] = data.labels


def set_arrays(target, source, names, path) -> None:
    """Copy arrays by name, after all of them were found to fit.

    Raises
    ------
    UsageError
        One is missing, or has another shape or dtype.
    """
    for name in names:
        if name not in source:
            raise UsageError(f"{path} must hold {name!r} and does not; is it of another network?")
        if source[name].shape != target[name].shape or source[name].dtype.kind != "f":
            raise UsageError(
                f"{name!r} in {path} must be float of shape {target[name].shape}, got {source[name].dtype} "
                f"of shape "
                f"{source[name].shape}; is it of another network?"
            )
    for name in names:
        target[name][...] = source[name]


def train(config: TrainingConfig, resume: bool = False, report: Callable[[str], None] = print) -> dict[str, Any]:
    """Train, and leave curves, a figure, checkpoints and final parameters in `config.out`.

    Parameters
    ----------
    config : TrainingConfig
    resume : bool
        Go on after the last checkpoint of each seed; a seed without one starts at the beginning.
    report : callable
        Takes each line of the running report.

    Returns
    -------
    dict
        What `summary.json` holds: test accuracy of each seed and their median, times, hashes of the
        parameters.

    Raises
    ------
    UsageError
        Bad values, unknown network, data or model, a foreign folder, a run in the folder without `resume`, or
        a loss that is no longer finite.
    """
    from ...cython_src.networks.registry import get_network

    config.check()
    network = get_network(config.network)
    data = load_data(config.data, network).with_channels(network.input_shape[0])
    _check_data_fits(config, data)
    out = _open_folder(config, resume)
    checkpoints = {
        seed: out / f"checkpoint-seed-{seed}.safetensors" for seed in range(config.seed, config.seed + config.seeds)
    }
    histories: dict[int, list[dict]] = {}
    if resume:
        for seed, path in checkpoints.items():
            if path.exists():
                histories[seed] = read_checkpoint(path, config.network, seed)[1]["history"]
                if len(histories[seed]) > config.epochs:
                    raise UsageError(
                        f"seed {seed} has {len(histories[seed])} epochs behind it already, so --epochs must "
                        f"be at least as "
                        f"many, got {config.epochs}"
                    )
    results = []
    gpu_samples: dict[int, list] = {}
    with ProgressBar(config.epochs * config.seeds, "training") as bar:
        for number, (seed, checkpoint) in enumerate(checkpoints.items()):
            with Trainer(config, data, seed) as trainer:
                if seed in histories:
                    trainer.load(checkpoint)
                histories[seed] = trainer.history
                while trainer.epoch < config.epochs:
                    bar.show(number * config.epochs + trainer.epoch, f"seed {seed}, epoch {trainer.epoch + 1}")
                    row = trainer.train_epoch()
                    trainer.save(checkpoint)
                    write_history(out / "epochs.csv", histories)
                    bar.clear()
                    report(
                        f"seed {seed}  epoch {row['epoch']:3d}/{config.epochs}  train loss "
                        f"{row['train_loss']:.4f}  "
                        f"valid loss {row['valid_loss']:.4f}  error rate {100 * row['error_rate']:6.2f} %  "
                        f"{row['time_s']:.2f} s"
                    )
                results.append(trainer.finish(out / f"parameters-seed-{seed}.safetensors"))
                if trainer.sampler and trainer.sampler.samples:
                    gpu_samples[seed] = trainer.sampler.samples
                if trainer.sampler and trainer.sampler.problem and number == 0:
                    report(trainer.sampler.problem)
    if gpu_samples:
        write_samples(out / "gpu.csv", gpu_samples)
        draw_samples(out / "gpu", gpu_samples)
    write_history(out / "epochs.csv", histories)
    summary = _summarise(config, data, results)
    write_atomically(out / "summary.json", (json.dumps(summary, indent=1) + "\n").encode())
    draw_accuracy(out / "accuracy", histories, summary)
    return summary


def _check_data_fits(config: TrainingConfig, data: Dataset) -> None:
    """Raise `UsageError` if the network cannot learn these data."""
    from ...cython_src.networks.registry import get_network

    network = get_network(config.network)
    if network.input_shape != data.images.shape[1:] or network.num_classes != data.num_classes:
        raise UsageError(
            f"network {config.network!r} takes images of shape {network.input_shape} in "
            f"{network.num_classes} classes; "
            f"--data {data.name} has {data.images.shape[1:]} in {data.num_classes}; choose another, or synthetic:N"
        )
    if config.batch > len(data.train):
        raise UsageError(
            f"--batch must not exceed the {len(data.train)} training images of {data.name}, got {config.batch}"
        )


def write_history(path: Path, histories: dict[int, list[dict]]) -> None:
    """Write the rows of all seeds as CSV; the file is replaced as a whole."""
    text = io.StringIO()
    sampled = any(name in row for history in histories.values() for row in history for name in GPU_COLUMNS)
    columns = HISTORY_COLUMNS + (GPU_COLUMNS if sampled else ())
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    for history in histories.values():
        writer.writerows(history)
    write_atomically(path, text.getvalue().encode())


def draw_accuracy(path: Path, histories: dict[int, list[dict]], summary: dict[str, Any]) -> None:
    """Draw validation accuracy over training time to `path`.pdf and .png, its caption to `path`.txt.

    Of several seeds: the median, and a band from the lowest to the highest. Their points are matched by
    epoch; the time of an epoch is the median over seeds.
    """
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt
    import pandas as pd
    import seaborn as sns

    table = pd.DataFrame([row for history in histories.values() for row in history])
    table["accuracy"] = 100 * (1 - table["error_rate"])
    table["epoch_time_s"] = table.groupby("epoch")["time_s"].transform("median")
    several = len(histories) > 1
    with (
        sns.axes_style("ticks"),
        plt.rc_context(
            {
                "font.size": 8,
                "axes.labelsize": 8,
                "axes.titlesize": 8,
                "xtick.labelsize": 8,
                "ytick.labelsize": 8,
                "pdf.fonttype": 42,
            }
        ),
    ):
        figure, axes = plt.subplots(figsize=(3.5, 2.4), layout="constrained")
        sns.lineplot(
            table,
            x="epoch_time_s",
            y="accuracy",
            estimator="median",
            errorbar=("pi", 100) if several else None,
            marker="o",
            markersize=3,
            color=sns.color_palette("colorblind")[0],
            ax=axes,
        )
        axes.set(xlabel="training time (s)", ylabel="validation accuracy (%)", title=summary["title"])
        axes.set_xlim(left=0)
        sns.despine(figure)
        figure.savefig(path.with_suffix(".pdf"))
        figure.savefig(path.with_suffix(".png"), dpi=200)
        plt.close(figure)
    shown = f"Median of {len(histories)} seeds, band from lowest to highest." if several else "One seed."
    caption = (
        f"Validation accuracy over training time, evaluation not counted: {summary['title']}, model "
        f"{summary['config']['model']}, {summary['config']['threads']} threads, batch "
        f"{summary['config']['batch']}. {shown} "
        f"Test accuracy {100 * summary['test_accuracy_median']:.2f} %.\n"
    )
    write_atomically(path.with_suffix(".txt"), caption.encode())


def _summarise(config: TrainingConfig, data: Dataset, results: list[dict]) -> dict[str, Any]:
    """The content of summary.json."""
    accuracies = [result["test_accuracy"] for result in results]
    return {
        "title": f"{config.network} on {data.name}" + (" (smoke test)" if data.smoke_test else ""),
        "config": asdict(config),
        "data": data.description,
        "smoke_test": data.smoke_test,
        "test_accuracy_median": float(np.median(accuracies)),
        "test_accuracy_min": min(accuracies),
        "test_accuracy_max": max(accuracies),
        "seeds": results,
    }


def _open_folder(config: TrainingConfig, resume: bool) -> Path:
    """Make or check the output folder and write its marker."""
    out = Path(config.out)
    marker = out / MARKER
    stored = read_marker(out) if resume else None
    if not resume and marker.exists():
        raise UsageError(f"{out} holds a training run already; add --resume to go on with it, or choose another --out")
    if not resume and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"--out must be a new or empty folder, got {out}; choose another")
    if stored is not None:
        check_resumable(stored, config)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out {out} cannot be made ({error.strerror}); choose another folder") from None
    content = {"format_version": FORMAT_VERSION, "config": asdict(config)}
    write_atomically(marker, (json.dumps(content, indent=1) + "\n").encode())
    return out


def read_marker(out: Path) -> TrainingConfig:
    """The configuration that a training folder was made with."""
    marker = out / MARKER
    if not marker.exists():
        raise UsageError(f"--resume needs a folder with {MARKER}, and {out} has none; start without --resume")
    try:
        content = json.loads(marker.read_text())
        known = {field.name for field in fields(TrainingConfig)}
        stored = TrainingConfig(**{name: value for name, value in content["config"].items() if name in known})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{marker} cannot be read ({error}); start again in another folder") from None
    return stored


def check_resumable(stored: TrainingConfig, config: TrainingConfig) -> None:
    """Raise `UsageError` if going on would mix two different runs."""
    from ..sampling.models import parse_model

    devices = [parse_model(c.model).model.device for c in (stored, config)]
    if devices[0] != devices[1]:
        raise UsageError(
            f"a resumed run must stay on the {devices[0]}, got the {devices[1]}: their results differ in the last bits; "
            f"use a new folder"
        )
    for field in fields(TrainingConfig):
        old, new = getattr(stored, field.name), getattr(config, field.name)
        if field.name not in CHANGEABLE and old != new:
            raise UsageError(
                f"a resumed run must keep --{field.name.replace('_', '-')} {old}, got {new}; leave it out "
                f"or use a new folder"
            )
    if stored.schedule != "constant" and stored.epochs != config.epochs:
        raise UsageError(
            f"with --schedule {stored.schedule} the learning rate depends on --epochs, so a resumed run "
            f"must keep "
            f"{stored.epochs}, got {config.epochs}"
        )


def run_command(arguments: argparse.Namespace) -> int:
    """`forktask train`."""
    from ..sampling.models import check_threads, convolution_for, describe_gpu_convolutions, models_on, parse_model

    given = {field.name: getattr(arguments, field.name) for field in fields(TrainingConfig) if field.name in arguments}
    start = read_marker(Path(given.get("out", TrainingConfig.out))) if arguments.resume else TrainingConfig()
    config = replace(start, **given)
    if arguments.device == "gpu":
        (model,) = models_on("gpu", [config.model], ())
        config = replace(config, model=model, threads=given.get("threads", 1))
    config.check()
    parse_model(config.model)
    check_threads(config.threads, oversubscribe=arguments.oversubscribe)
    stream = sys.stderr if arguments.json else sys.stdout

    def report(line: str) -> None:
        print(line, file=stream, flush=True)

    if parse_model(config.model).model.device == "gpu":
        convolution_for(config.model, config.conv)  # raises where a form has no CUDA kernels
        report(describe_gpu_convolutions(config.conv))
    try:
        summary = train(config, arguments.resume, report)
    except KeyboardInterrupt:
        print(
            f"\nstopped; the last whole epoch is kept, go on with: forktask train --resume --out {config.out}",
            file=sys.stderr,
        )
        raise
    if arguments.json:
        print(json.dumps(summary, indent=1))
        return 0
    seconds = sum(result["time_s"] for result in summary["seeds"])
    spread = f", {100 * summary['test_accuracy_min']:.2f} to {100 * summary['test_accuracy_max']:.2f} %" * (
        config.seeds > 1
    )
    print(
        f"{summary['title']}: test accuracy {100 * summary['test_accuracy_median']:.2f} %{spread}; trained "
        f"in "
        f"{format_seconds(seconds)} with {config.model} on {config.threads} threads"
    )
    print(f"{config.out}: epochs.csv, accuracy.pdf, summary.json, checkpoints and parameters (safetensors)")
    return 0


def add_parser(subparsers) -> None:
    """Add `train` to the command line."""
    parser = subparsers.add_parser(
        "train",
        help="train a network and draw its accuracy over time",
        description="Train a network and leave, for each epoch, losses, error rate and time, a figure of accuracy "
        "over time, checkpoints, and the final parameters as safetensors.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    default = TrainingConfig()
    # Suppressed defaults: what was not given comes from the stored run with --resume, else from
    # TrainingConfig.
    for name, kind, text in (
        ("network", str, "network to train"),
        ("data", str, "digits, cifar10:FOLDER, cifar100:FOLDER, idx:FOLDER or synthetic:N"),
        ("model", str, "execution model with its options, e.g. forkjoin:schedule=dynamic"),
        ("threads", int, "number of threads"),
        ("epochs", int, "passes over the training images"),
        ("batch", int, "images a step"),
        ("learning_rate", float, "learning rate of the optimiser"),
        ("momentum", float, "its momentum"),
        ("weight_decay", float, "its weight decay"),
        ("optimizer", str, "sgd, adam or adamw"),
        ("schedule", str, "how the learning rate changes: constant, cosine or step"),
        ("warmup", float, "epochs over which the learning rate rises at first"),
        ("label_smoothing", float, "share of the target that is spread over all classes"),
        ("clip_norm", float, "largest global norm of the gradients; 0: not clipped"),
        ("frozen", str, "layers that are not trained, with commas between: conv1 or all of layer1"),
        ("start", str, "safetensors file of parameters to begin with; a last layer that does not fit stays random"),
        ("memory", str, "full, or shared: activations and gradients overlay each other"),
        ("memory_limit", str, "such as 1.5GiB: refuse what needs more, and say what would fit"),
        ("seed", int, "first seed of parameters and order"),
        ("seeds", int, "train with so many consecutive seeds"),
        ("granularity", str, "how layers are cut into blocks: auto, or ranges such as images=16"),
        ("conv", str, "form of the convolutions: auto, direct, winograd, im2col, if, if_blocked, pad, pad_blocked"),
        ("out", str, "folder for curves, figure and checkpoints"),
    ):
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            type=kind,
            default=argparse.SUPPRESS,
            metavar=name.upper(),
            help=f"{text} (default: {getattr(default, name)})",
        )
    parser.add_argument(
        "--device",
        choices=("cpu", "gpu"),
        default="cpu",
        help="gpu: --model taskiter stands for gpu_taskiter, on one thread",
    )
    parser.add_argument(
        "--recompute",
        action="store_true",
        default=argparse.SUPPRESS,
        help="compute activations again in the backward pass; with --memory shared",
    )
    parser.add_argument("--resume", action="store_true", help="go on after the last checkpoint in --out")
    parser.add_argument("--oversubscribe", action="store_true", help="allow more threads than cores")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    parser.set_defaults(run=run_command)
