"""Train a network under any execution model, with checkpoints, curves and a figure."""

from __future__ import annotations

import hashlib
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ...cython_src.errors import UsageError
from ...cython_src.lowering.lower import check_shapes
from ...cython_src.lowering.options import PlanOptions
from ...cython_src.networks.own import is_own
from ...cython_src.networks.registry import get_network
from ..images.decoding import BrokenImage
from ..machine.disturbance import own_and_free_bytes, resident_bytes
from ..machine.energy import energy_text
from ..machine.environment import described_environment
from ..machine.topology import cpu_order
from ..plan_check.checking import check_together
from ..results.disturbance import stopped_text
from ..results.files import check_writable_folder, list_folder, unfinished, write_atomically
from ..results.folder import SAMPLES, ResultsWriter, check_same, new_run, read_results
from ..results.rows import RunRow
from ..results.training_rows import EpochRow, Summary, TrainedRow, epoch_times
from ..subjects.memory import needs_text
from ..subjects.models import check_ours, convolution_for, models_on
from ..tables.numbers import plural
from ..tables.progress import ProgressBar, format_seconds
from .checkpoints import read_checkpoint
from .config import DEFAULTS_OF_TOKENS, TrainingConfig
from .curves import draw_accuracy, write_history
from .data import load_data
from .dataset import Dataset
from .phase_times import phases_text
from .text import Text, load_text
from .trainer import Trainer, check_plan
from .weights import check_export

# A resumed run may change these fields: results are bit-identical over models and thread counts.
CHANGEABLE = ("model", "threads", "places", "bind", "memory_policy", "epochs", "seeds", "export", "out", "check")
# What networks of tokens have no use for, and networks of images.
OF_IMAGES = ("image_size", "load", "broken", "decoder", "cache", "augment")
OF_TOKENS = ("tokenizer", "sequence")
FOUND = ("samples", "layers")  # fingerprints of what the options lead to, which a resumed run must find again


def train(
    config: TrainingConfig, resume: bool = False, report: Callable[[str], None] = print, draw: bool = True
) -> Summary:
    """Train, and leave curves, a figure, checkpoints and final parameters in `config.out`.

    Parameters
    ----------
    resume : bool
        Go on after the last checkpoint of each seed; a seed without one starts at the beginning.
    report : callable
        Takes each line of the running report.
    draw : bool
        Whether to draw the accuracy.

    Returns
    -------
    Summary
        The content of `summary.json`: test accuracy of each seed and their median, times, hashes of the parameters.

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
    result = _described(data), get_network(config.network).layers_id
    requested = {**config.as_dict(), **dict(zip(FOUND, result, strict=True))}
    run = new_run("training", requested, shlex.join(["forktask", *sys.argv[1:]]), **described_environment())
    histories = _kept_histories(run, config) if resume else {}
    checkpoints = {seed: _checkpoint(out, seed) for seed in range(config.seed, config.seed + config.seeds)}
    checked = check_plans(config, data, [config.plan, config.evaluation(config.batch)])
    results: list[TrainedRow] = []
    with ExitStack() as folder, ProgressBar(config.epochs * config.seeds, "training", lines=False) as bar:
        for number, (seed, checkpoint) in enumerate(checkpoints.items()):
            with Trainer(config, data, seed) as trainer:
                if seed in histories:
                    trainer.load(checkpoint, histories[seed])
                if number == 0:  # from here on nothing refuses the run any more
                    rows = folder.enter_context(_begun(run, out))
                    report(f"the training {needs_text(trainer.needed_bytes, own_and_free_bytes())}")
                    if trainer.on_gpu:
                        report(f"on the GPU {trainer.on_gpu}")
                    if trainer.started and seed not in histories:
                        report(trainer.started)
                histories[seed] = trainer.history
                with _unreadable_images_named(out):
                    while trainer.epoch < config.epochs:
                        bar.show(number * config.epochs + trainer.epoch, f"seed {seed}, epoch {trainer.epoch + 1}")
                        row = trainer.train_epoch()
                        rows.append(row)
                        trainer.save(checkpoint)
                        write_history(out / "epochs.csv", histories)
                        bar.clear()
                        report(_epoch_text(trainer, row))
                    end = trainer.finish(out / f"parameters-seed-{seed}.safetensors", libraries, loader)
                rows.append(end)
                results.append(end)
                if trainer.sampler and trainer.sampler.problem and number == 0:
                    report(trainer.sampler.problem)
    write_history(out / "epochs.csv", histories)
    usable = [usable for history in histories.values() for *_, usable in epoch_times(history)]
    if disturbed := usable.count(False):
        epochs = plural(len(usable), "epoch")
        stopped = stopped_text(row.disturbance for history in histories.values() for row in history)
        cause = f"{stopped} Disturbed were" if stopped else "others disturbed"
        report(f"{cause} {disturbed} of {epochs}, whose times may be too long: column `usable` of epochs.csv")
    summary = _summarise(config, data, results, checked)
    write_atomically(out / "summary.json", msgspec.json.format(msgspec.json.encode(summary), indent=1), "\n")
    if draw:
        draw_accuracy(out / "accuracy", histories, summary)
    return summary


def _checkpoint(out: Path, seed: int) -> Path:
    return out / f"checkpoint-seed-{seed}.safetensors"


def histories_of(out: Path) -> dict[int, list[EpochRow]]:
    """Return the rows of each seed's epochs, in order; of an epoch that was trained again, the last one."""
    rows = {(row.seed, row.epoch): row for row in read_results(out, "training").of(EpochRow)}
    return {seed: [rows[key] for key in sorted(rows) if key[0] == seed] for seed in sorted({seed for seed, _ in rows})}


def _kept_histories(run: RunRow, config: TrainingConfig) -> dict[int, list[EpochRow]]:
    """Return the epochs that a run can go on after, of each seed that has a checkpoint."""
    out = Path(config.out)
    check_same(read_results(out, "training").run, run, out, CHANGEABLE, same_environment=False)
    result, kept = histories_of(out), {}
    for seed in range(config.seed, config.seed + config.seeds):
        if (path := _checkpoint(out, seed)).exists():
            done = read_checkpoint(path, config.network, seed)[1].epoch
            if done > config.epochs:
                raise UsageError(
                    f"seed {seed} has {done} epochs behind it already, so --epochs must be at least as many, got "
                    f"{config.epochs}"
                )
            kept[seed] = result.get(seed, [])[:done]
            if [row.epoch for row in kept[seed]] != list(range(1, done + 1)):
                raise UsageError(
                    f"{out / SAMPLES} must have a row of each of the {done} epochs before {path.name}, and has not; "
                    f"restore it, or delete the checkpoint to start again"
                )
    return kept


def data_for(config: TrainingConfig, report: Callable[[str], None] = print) -> Dataset | Text:
    """Load the data of a run; `report` takes what a user should know about them. Raises `UsageError`: unknown or
    missing data, or such as the network cannot learn."""
    network = get_network(config.network)
    if config.export != "none":
        check_export(network)
    kind, others = ("images", OF_IMAGES) if network.tokens else ("tokens", OF_TOKENS)
    if unused := [name for name in config.differences() if name in others]:
        flag = unused[0].replace("_", "-")
        raise UsageError(f"--{flag} is for networks of {kind}, got it with {config.network!r}; leave it out")
    if network.tokens:
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

        images = load_data(config.data, network, config, progress=progress, check=check_unread)
    images = images.with_channels(network.input_shape[0])
    check(images)
    if images.note:
        report(images.note)
    return images


def check_plans(config: TrainingConfig, data: Dataset | Text, options: Sequence[PlanOptions]) -> str:
    """Check the plans of a run whose network is not shipped."""
    network = data.fit(get_network(config.network)) if is_own(config.network) else config.network
    plans = [{"network": network, **one.as_dict()} for one in options]
    return check_together(plans, [(config.spec, config.threads)], config.check)


def _epoch_text(trainer: Trainer, row: EpochRow) -> str:
    """Return an epoch's line of the running report."""
    time_s = row.time_s - (trainer.history[row.epoch - 2].time_s if row.epoch > 1 else 0.0)
    text = (
        f"seed {row.seed}  epoch {row.epoch:3d}/{trainer.config.epochs}  train loss {row.train_loss:.4f}  "
        f"valid loss {row.valid_loss:.4f}  error rate {100 * row.error_rate:6.2f} %  {time_s:.2f} s, in all "
        f"{row.time_s:.2f} s"
    )
    if isinstance(trainer.data, Text):
        tokens = trainer.num_batches * trainer.config.batch * trainer.data.sequence
        text += f"  {tokens / time_s:,.0f} tokens/s"
    return text if row.joules is None else f"{text}  {row.joules:,.1f} J"


def _summarise(config: TrainingConfig, data: Dataset | Text, seeds: list[TrainedRow], checked: str) -> Summary:
    accuracies = [seed.test_accuracy for seed in seeds]
    return Summary(
        title=f"{config.network} on {data.name}" + (" (smoke test)" if data.smoke_test else ""),
        config=config.as_dict(),
        data=data.description,
        data_note=data.note if isinstance(data, Dataset) else "",
        smoke_test=data.smoke_test,
        energy=energy_text(),
        check=checked,
        test_accuracy_median=float(np.median(accuracies)),
        test_accuracy_min=min(accuracies),
        test_accuracy_max=max(accuracies),
        seeds=seeds,
    )


def _check_folder(config: TrainingConfig, resume: bool) -> None:
    """Raise `UsageError` unless the output folder can take this run; the folder stays as it is."""
    out = Path(config.out)
    if resume:
        _check_resumable(stored_config(out), config)
    elif out.exists():
        # A run that was stopped before its first checkpoint leaves no more than its rows.
        held = {*list_folder(out)} - {out / SAMPLES, *unfinished(out)} if out.is_dir() else {out}
        if held and not (out / SAMPLES).exists():
            raise UsageError(f"--out must be a new or empty folder, got {out}; choose another")
        if held:
            read_results(out, "training")  # raises where it holds another thing
            raise UsageError(
                f"{out} holds a training run already; add --resume to go on with it, or choose another --out"
            )
    check_writable_folder(out)


@contextmanager
def _unreadable_images_named(out: Path) -> Iterator[None]:
    """Say how a run goes on after an image that could no longer be read; removing it would make other data."""
    try:
        yield
    except BrokenImage as error:
        raise UsageError(
            f"{error}; whole epochs are kept, so then go on with forktask train --resume --out {out}"
        ) from None


def _described(data: Dataset | Text) -> str:
    """Description of data, and a checksum of their samples, labels, classes and splits; of images that are read in each
    step that of the levels' values, which come from all training images."""
    parts = [data.train, data.valid, data.test, *data.arrays.values()]
    names = ""
    if isinstance(data, Dataset):
        names = "|".join(data.class_names)
        if data.source is not None and data.source.tables is not None:
            parts.append(data.source.tables)
    result = hashlib.sha256(names.encode(errors="surrogateescape"))
    for part in parts:
        result.update(f"|{len(part)}|".encode())
        result.update(np.ascontiguousarray(part).reshape(-1).view(np.uint8))
    return f"{data.description}, {result.hexdigest()[:16]}"


@contextmanager
def _begun(run: RunRow, out: Path) -> Iterator[ResultsWriter]:
    """Make the output folder and begin its rows; other processes are kept out of the folder until the end."""
    if out.exists():
        for part in unfinished(out):
            part.unlink()
    with ResultsWriter(out) as rows:
        rows.start(run, CHANGEABLE, same_environment=False)
        yield rows


def stored_config(out: Path) -> TrainingConfig:
    """Return the configuration of a training folder. Raises `UsageError`: the folder holds no training."""
    if not (out / SAMPLES).exists():
        raise UsageError(f"--resume needs a folder with {SAMPLES}, and {out} has none; start without --resume")
    results = read_results(out, "training")
    if not results.rows:
        raise UsageError(f"no row of {out / SAMPLES} has been written completely; start without --resume")
    try:
        stored = TrainingConfig(**{k: v for k, v in results.run.config.items() if k not in FOUND})
        assert stored.spec
    except (UsageError, TypeError) as error:
        raise UsageError(f"{out / SAMPLES} cannot be read ({error}); start again in another folder") from None
    return stored


def _check_resumable(stored: TrainingConfig, config: TrainingConfig) -> None:
    """Raise `UsageError` if continuing would mix two different runs; `check_same` compares the other options."""
    devices = [c.spec.model.device for c in (stored, config)]
    if devices[0] != devices[1]:
        raise UsageError(
            f"a resumed run must stay on the {devices[0]}, got the {devices[1]}: their results differ in the last "
            f"bits; use a new folder"
        )
    if stored.schedule != "constant" and stored.epochs != config.epochs:
        raise UsageError(
            f"with --schedule {stored.schedule} the learning rate depends on --epochs, so a resumed run must keep "
            f"{stored.epochs}, got {config.epochs}"
        )


def configure(
    given: Mapping[str, Any], resume: bool, device: str | None = None, oversubscribe: bool = False
) -> TrainingConfig:
    """Return the configuration of a run, once it is known that this machine can run it.

    What was not given comes from the stored run with `resume`, else from the defaults, which for networks of tokens are
    others. On a GPU the model "taskiter" stands for "gpu_taskiter", on one thread. Raises `UsageError`: a value out of
    its range, or a library or device that this machine does not have.
    """
    if resume:
        config = stored_config(Path(TrainingConfig(**given).out)).with_changes(**given)
    else:
        tokens = get_network(given.get("network", TrainingConfig().network)).tokens
        config = TrainingConfig(**{**(DEFAULTS_OF_TOKENS if tokens else {}), **given})
    if device is not None:
        (model,) = models_on(device, [config.model], ())
        threads = given.get("threads", 1) if device == "gpu" else config.threads
        config = config.with_changes(model=str(model), threads=threads)
    check_ours([config.spec])
    limit = config.spec.model.max_threads
    if limit is not None and "threads" not in given:
        config = config.with_changes(threads=limit)
    cpu_order(config.threads, places=config.places, oversubscribe=oversubscribe)  # raises
    convolution_for(config.spec, config.conv)  # raises if an algorithm has no CUDA kernels
    check_shapes(config.algorithms, [(config.network, config.plan)])
    return config


def summary_text(summary: Summary) -> str:
    """Format the result of `train` for a terminal."""
    config = TrainingConfig(**summary.config)
    spread = ""
    if len(summary.seeds) > 1:
        spread = f", {100 * summary.test_accuracy_min:.2f} to {100 * summary.test_accuracy_max:.2f} %"
    threads, spec = plural(config.threads, "thread"), config.spec
    where = f" on {threads}" if not spec.is_gpu else ""
    if spec.model.mixes_devices:
        where = f" and {threads} of the host"
    return (
        f"{summary.title}: test accuracy {100 * summary.test_accuracy_median:.2f} %{spread}; trained in "
        f"{format_seconds(sum(seed.time_s for seed in summary.seeds))} with {config.model}{where}\n"
        f"{phases_text(summary.seeds)}"
        f"{config.out}: epochs.csv, accuracy.pdf, summary.json, checkpoints and parameters (safetensors)"
    )
