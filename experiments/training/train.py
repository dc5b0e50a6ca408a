"""Train a network under any execution model, with checkpoints, curves and a figure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from ...cython_src.errors import UsageError
from ...cython_src.networks.own import is_own
from ...cython_src.networks.registry import get_network
from ...cython_src.reading import read_json
from ...cython_src.records import fields
from ..images.decoding import BrokenImage
from ..machine.disturbance import read_memory
from ..machine.energy import energy_text
from ..results.files import check_writable_folder, list_folder, locked_file, unfinished, write_atomically
from ..sampling.measured_memory import resident_bytes
from ..sampling.memory import needs_text
from ..sampling.models import check_threads, convolution_for, models_on, parse_model
from ..sampling.plan_check import check_together
from ..sampling.progress import ProgressBar, format_seconds
from .checkpoints import FORMAT_VERSION, read_checkpoint
from .config import DEFAULTS_OF_TOKENS, TrainingConfig
from .curves import draw_accuracy, draw_gpu_samples, write_gpu_samples, write_history
from .data import load_data
from .dataset import Dataset
from .phase_times import phases_text
from .text import Text, load_text
from .trainer import Trainer, check_plan
from .weights import check_export

MARKER = "training.json"
# A resumed run may change these fields: results are bit-identical over models and thread counts.
CHANGEABLE = ("model", "threads", "epochs", "seeds", "export", "out", "check")


def train(
    config: TrainingConfig, resume: bool = False, report: Callable[[str], None] = print, draw: bool = True
) -> dict[str, Any]:
    """Train, and leave curves, a figure, checkpoints and final parameters in `config.out`.

    Parameters
    ----------
    config : TrainingConfig
    resume : bool
        Go on after the last checkpoint of each seed; a seed without one starts at the beginning.
    report : callable
        Takes each line of the running report.
    draw : bool
        Whether to draw the accuracy.

    Returns
    -------
    dict
        The content of `summary.json`: test accuracy of each seed and their median, times, hashes of the
        parameters.

    Raises
    ------
    UsageError
        Bad values, unknown network, data or model, a foreign folder, a run in the folder without `resume`, other data
        than those it began with, an image that can no longer be read, a loss that is no longer finite, or an
        unsound plan.
    """
    libraries = resident_bytes()
    data = data_for(config, report)
    loader = max(resident_bytes() - libraries, 0)
    out = Path(config.out)
    _check_folder(config, resume)
    if resume:
        _check_same_data(out, data)
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
                        f"seed {seed} has {len(histories[seed])} epochs behind it already, so --epochs must be at "
                        f"least as many, got {config.epochs}"
                    )
    checked = _check_plans(config, data)
    results = []
    gpu_samples: dict[int, list] = {}
    with ExitStack() as folder, ProgressBar(config.epochs * config.seeds, "training", lines=False) as bar:
        for number, (seed, checkpoint) in enumerate(checkpoints.items()):
            with Trainer(config, data, seed) as trainer:
                if seed in histories:
                    trainer.load(checkpoint)
                if number == 0:  # from here on nothing refuses the run any more
                    folder.enter_context(_folder_begun(config, data))
                    report(f"the training {needs_text(trainer.needed_bytes, read_memory()['available_bytes'])}")
                    if trainer.on_gpu:
                        report(f"on the GPU {trainer.on_gpu}")
                    if trainer.started and seed not in histories:
                        report(trainer.started)
                histories[seed] = trainer.history
                while trainer.epoch < config.epochs:
                    bar.show(number * config.epochs + trainer.epoch, f"seed {seed}, epoch {trainer.epoch + 1}")
                    with _unreadable_images_named(out):
                        row = trainer.train_epoch()
                    trainer.save(checkpoint)
                    write_history(out / "epochs.csv", histories)
                    bar.clear()
                    report(
                        f"seed {seed}  epoch {row['epoch']:3d}/{config.epochs}  train loss {row['train_loss']:.4f}  "
                        f"valid loss {row['valid_loss']:.4f}  error rate {100 * row['error_rate']:6.2f} %  "
                        f"{row['time_s']:.2f} s{_token_rate(trainer, row)}{_energy(row)}"
                    )
                with _unreadable_images_named(out):
                    results.append(trainer.finish(out / f"parameters-seed-{seed}.safetensors"))
                results[-1]["memory_bytes"] |= {"Python": libraries, "loader": loader}
                if trainer.sampler and trainer.sampler.samples:
                    gpu_samples[seed] = trainer.sampler.samples
                if trainer.sampler and trainer.sampler.problem and number == 0:
                    report(trainer.sampler.problem)
    if gpu_samples:
        write_gpu_samples(out / "gpu.csv", gpu_samples)
        draw_gpu_samples(out / "gpu", gpu_samples)
    write_history(out / "epochs.csv", histories)
    summary = {**_summarise(config, data, results), "check": checked}
    write_atomically(out / "summary.json", json.dumps(summary, indent=1) + "\n")
    if draw:
        draw_accuracy(out / "accuracy", histories, summary)
    return summary


def data_for(config: TrainingConfig, report: Callable[[str], None] = print) -> Dataset | Text:
    """Load the data of a run; `report` takes what a user should know about them.

    Raises
    ------
    UsageError
        Unknown or missing data, or such as the network cannot learn.
    """
    network = get_network(config.network)
    if config.export != "none":
        check_export(network)
    if network.tokens:
        if config.augmentations or config.image_size or config.load != "memory":
            raise UsageError(
                f"--augment, --image-size and --load are for networks of images, got {config.network!r}; leave them out"
            )
        data = load_text(config.data, network, config.sequence, config.tokenizer)
        if config.batch > len(data.train):
            raise UsageError(
                f"--batch must not exceed the {len(data.train)} training samples of {data.name}, got {config.batch}"
            )
        return data
    with ProgressBar(1, "images") as bar:

        def progress(done: int, total: int) -> None:
            bar.total = total
            bar.show(done, "decoded")

        def check(images: Dataset) -> None:
            images.fit(network)  # raises if the network cannot read them
            if config.batch > len(images.train):
                raise UsageError(
                    f"--batch must not exceed the {len(images.train)} training images of {images.name}, got "
                    f"{config.batch}"
                )

        def check_unread(images: Dataset) -> None:
            images = images.with_channels(network.input_shape[0])
            check(images)
            check_plan(config, images)

        images = load_data(config.data, network, config.image_options(progress=progress, check=check_unread))
    images = images.with_channels(network.input_shape[0])
    check(images)
    if images.note:
        report(images.note)
    return images


def _check_plans(config: TrainingConfig, data: Dataset | Text) -> str:
    """Check the plans of a run whose network is not shipped: those of a step and of its evaluation."""
    network = data.fit(get_network(config.network)) if is_own(config.network) else config.network
    plans = [{"network": network, **one.as_dict()} for one in (config.plan, config.evaluation(config.batch))]
    return check_together(plans, [(config.model, config.threads)], config.check)


def _token_rate(trainer: Trainer, row: Mapping[str, Any]) -> str:
    """Tokens a second in the epoch of a row of the history, for the report; empty for images."""
    if not isinstance(trainer.data, Text):
        return ""
    before = trainer.history[row["epoch"] - 2]["time_s"] if row["epoch"] > 1 else 0.0
    tokens = trainer.num_batches * trainer.config.batch * trainer.data.sequence
    return f"  {tokens / (row['time_s'] - before):,.0f} tokens/s"


def _energy(row: Mapping[str, Any]) -> str:
    """Energy of the epoch of a row of the history, for the report; empty where nothing measures it."""
    return f"  {row['joules']:,.1f} J" if "joules" in row else ""


def _summarise(config: TrainingConfig, data: Dataset | Text, results: list[dict]) -> dict[str, Any]:
    """Return the content of summary.json."""
    accuracies = [result["test_accuracy"] for result in results]
    return {
        "title": f"{config.network} on {data.name}" + (" (smoke test)" if data.smoke_test else ""),
        "config": config.as_dict(),
        "data": data.description,
        **({"data_note": data.note} if isinstance(data, Dataset) and data.note else {}),
        "smoke_test": data.smoke_test,
        "energy": energy_text(),
        "test_accuracy_median": float(np.median(accuracies)),
        "test_accuracy_min": min(accuracies),
        "test_accuracy_max": max(accuracies),
        "seeds": results,
    }


def _check_folder(config: TrainingConfig, resume: bool) -> None:
    """Raise `UsageError` unless the output folder can take this run; the folder stays as it is."""
    out = Path(config.out)
    marker = out / MARKER
    if resume:
        check_resumable(read_marker(out), config)
    elif out.exists():
        # A run that was stopped before its first epoch ended leaves no more than its marker, or a part of it.
        if not out.is_dir():
            raise UsageError(f"--out must be a new or empty folder, got {out}; choose another")
        if {*list_folder(out)} - {marker, *unfinished(out)}:
            raise UsageError(
                f"{out} holds a training run already; add --resume to go on with it, or choose another --out"
                if marker.exists()
                else f"--out must be a new or empty folder, got {out}; choose another"
            )
    check_writable_folder(out)


@contextmanager
def _unreadable_images_named(out: Path) -> Iterator[None]:
    """Say how a run goes on after an image that could no longer be read; removing it would make other data."""
    try:
        yield
    except BrokenImage as error:
        remedy = str(error).replace("repair or remove it", "repair it")
        raise UsageError(
            f"{remedy}; whole epochs are kept, so then go on with forktask train --resume --out {out}"
        ) from None


def _check_same_data(out: Path, data: Dataset | Text) -> None:
    """Raise `UsageError` where a run began with other samples, classes or splits."""
    stored = read_json(out / MARKER, "marker of a training run", Marker, "start again in another folder").data
    now = _described(data)
    if stored and stored != now:
        raise UsageError(
            f"a resumed run must keep the samples, classes and splits that it began with "
            f"({stored.rpartition(', ')[0]}), got others ({now.rpartition(', ')[0]}); restore them or use a new folder"
        )


def _described(data: Dataset | Text) -> str:
    """Description of data, and a checksum of their labels, classes and splits."""
    parts = [data.train, data.valid, data.test]
    names = ""
    if isinstance(data, Dataset):
        parts.append(data.labels)
        names = "|".join(data.class_names)
    found = hashlib.sha256(names.encode(errors="surrogateescape"))
    for part in parts:
        found.update(f"|{len(part)}|".encode() + np.ascontiguousarray(part).tobytes())
    return f"{data.description}, {found.hexdigest()[:16]}"


@contextmanager
def _folder_begun(config: TrainingConfig, data: Dataset | Text) -> Iterator[None]:
    """Make the output folder and write its marker; other processes are kept out of the folder until the end."""
    out = Path(config.out)
    marker = out / MARKER
    content = {"format_version": FORMAT_VERSION, "config": config.as_dict(), "data": _described(data)}
    with ExitStack() as held:
        try:
            out.mkdir(parents=True, exist_ok=True)
            if marker.exists():
                held.enter_context(locked_file(marker))
            for part in unfinished(out):
                part.unlink()
        except OSError as error:
            raise UsageError(f"--out {out} cannot be made ({error.strerror}); choose another folder") from None
        write_atomically(marker, json.dumps(content, indent=1) + "\n")
        held.enter_context(locked_file(marker))
        yield


class Marker(msgspec.Struct, kw_only=True):
    """Content of a training folder's marker."""

    format_version: Literal[1]
    config: dict[str, Any]
    data: str = ""  # description and checksum; older folders have none


def read_marker(out: Path) -> TrainingConfig:
    """Read the configuration of a training folder."""
    marker = out / MARKER
    if not marker.exists():
        raise UsageError(f"--resume needs a folder with {MARKER}, and {out} has none; start without --resume")
    content = read_json(marker, "marker of a training run", Marker, "start again in another folder")
    known = {field.name for field in fields(TrainingConfig)}
    try:
        stored = TrainingConfig(**{name: value for name, value in content.config.items() if name in known})
        parse_model(stored.model)
    except (UsageError, TypeError) as error:
        raise UsageError(f"{marker} cannot be read ({error}); start again in another folder") from None
    return stored


def check_resumable(stored: TrainingConfig, config: TrainingConfig) -> None:
    """Raise `UsageError` if continuing would mix two different runs."""
    devices = [parse_model(c.model).model.device for c in (stored, config)]
    if devices[0] != devices[1]:
        raise UsageError(
            f"a resumed run must stay on the {devices[0]}, got the {devices[1]}: their results differ in the last "
            f"bits; use a new folder"
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
            f"with --schedule {stored.schedule} the learning rate depends on --epochs, so a resumed run must keep "
            f"{stored.epochs}, got {config.epochs}"
        )


def configure(
    given: Mapping[str, Any], resume: bool, device: str = "cpu", oversubscribe: bool = False
) -> TrainingConfig:
    """Return the configuration of a run, once it is known that this machine can run it.

    Parameters
    ----------
    given : mapping
        Fields of `TrainingConfig` that were asked for; the others come from the stored run with `resume`, else from
        the defaults, which for networks of tokens are others.
    resume : bool
    device : {"cpu", "gpu"}
        On a GPU the model "taskiter" stands for "gpu_taskiter", on one thread.
    oversubscribe : bool
        Allow more threads than cores.

    Raises
    ------
    UsageError
        A value out of its range, or a library or device that this machine does not have.
    """
    if resume:
        config = read_marker(Path(TrainingConfig(**given).out)).with_changes(**given)
    else:
        tokens = get_network(given.get("network", TrainingConfig().network)).tokens
        config = TrainingConfig(**{**(DEFAULTS_OF_TOKENS if tokens else {}), **given})
    if device == "gpu":
        (model,) = models_on("gpu", [config.model], ())
        config = config.with_changes(model=model, threads=given.get("threads", 1))
    limit = parse_model(config.model).model.max_threads
    if limit is not None and "threads" not in given:
        config = config.with_changes(threads=limit)
    check_threads(config.threads, oversubscribe=oversubscribe)
    convolution_for(config.model, config.conv)  # raises if an algorithm has no CUDA kernels
    return config


def summary_text(summary: dict[str, Any]) -> str:
    """Format the result of `train` for a terminal."""
    config = summary["config"]
    seconds = sum(result["time_s"] for result in summary["seeds"])
    spread = f", {100 * summary['test_accuracy_min']:.2f} to {100 * summary['test_accuracy_max']:.2f} %" * (
        config["seeds"] > 1
    )
    threads = f"{config['threads']} thread{'s' * (config['threads'] > 1)}"
    spec = parse_model(config["model"])
    where = f" on {threads}" if spec.model.device == "cpu" else f" and {threads} of the host" * spec.model.mixes_devices
    return (
        f"{summary['title']}: test accuracy {100 * summary['test_accuracy_median']:.2f} %{spread}; trained in "
        f"{format_seconds(seconds)} with {config['model']}{where}\n"
        f"{phases_text(summary['seeds'])}"
        f"{config['out']}: epochs.csv, accuracy.pdf, summary.json, checkpoints and parameters (safetensors)"
    )
