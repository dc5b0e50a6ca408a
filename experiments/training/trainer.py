"""One network in training with one seed: epochs, evaluation, checkpoints."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ...cython_src.closing import Closing
from ...cython_src.errors import UsageError
from ...cython_src.gpu.bind import device_bytes
from ...cython_src.lowering.lower import initialise, lower
from ...cython_src.networks.registry import get_network
from ...cython_src.plan.model import Plan
from ...cython_src.records import LARGEST
from ..images.source import Augmentation, ImageSource
from ..machine.disturbance import Disturbance, own_and_free_bytes, peak_resident_bytes, resident_bytes
from ..machine.energy import EnergyMeter
from ..machine.numa import FIRST_TOUCH, memory_nodes, set_memory_policy
from ..results.training_rows import EpochRow, TrainedRow
from ..subjects.memory import (
    allowed_bytes,
    check_fits,
    check_least,
    format_bytes,
    parse_bytes,
    planned_bytes,
    what_fits_gpu,
)
from ..subjects.models import bind_for, make_executor, options_for, storage_for
from ..subjects.subject import homes_of, kept_names
from ..tables.progress import say
from .checkpoints import State, read_checkpoint, set_arrays, share_data, write_checkpoint
from .config import TrainingConfig, learning_rate_table
from .dataset import Dataset, random_order
from .evaluations import Evaluations, evaluation_batch, load_weights, number_positions, own_bytes, run_steps
from .gpu_sampling import GpuSampler
from .phase_times import PhaseLog, phase_medians
from .safetensors import write_safetensors
from .text import LabelledText, Text
from .weights import write_hugging_face

EVALUATING = "evaluating plans"


class Trainer(Closing):
    """One network in training with one seed. A context manager; it owns executors and memory.

    Parameters
    ----------
    seed : int
        Seed of the initial parameters and of the order of images.

    Attributes
    ----------
    history : list of EpochRow
        A row for each epoch done.
    started : str
        What was loaded from a file of parameters, and what was not.
    needed_bytes : int
        Bytes that the plan of a step, its data, evaluating and the libraries need.
    evaluations : Evaluations
        What evaluates, on the parameters of the training.
    """

    def __init__(self, config: TrainingConfig, data: Dataset | Text, seed: int):
        self.config, self.data, self.seed = config, data, seed
        self.history: list[EpochRow] = []
        self.started = ""
        self.network = data.fit(get_network(config.network))
        self.num_batches = len(data.train) // config.batch
        self._executors = ExitStack()
        nodes = memory_nodes()
        if refused := set_memory_policy(config.memory_policy, nodes):
            say(f"memory_policy={config.memory_policy} is without effect, since the system refuses it: {refused}")
        self._executors.callback(set_memory_policy, FIRST_TOUCH, nodes)  # of what the process takes afterwards
        placed = {"memory_policy": config.memory_policy, "memory_nodes": nodes, "cpus": config.cpus}
        self.storage = storage_for(config.spec, homes_of(placed))
        batch = evaluation_batch(config, data)
        self.evaluations = self._executors.enter_context(Evaluations(config, data, self.network, self.storage, batch))
        self.sampler = GpuSampler() if config.spec.is_gpu else None
        share_data(self.storage, data)
        self.augmentation = None
        if isinstance(data, Dataset) and config.augmentations:
            self.augmentation = Augmentation(config.augmentations, seed, data.num_samples, *data.images.shape[2:])
        source = _source(config, data, self.augmentation)
        self.plan, self.needed_bytes = _fitting_plan(config, data, source)
        make = partial(_training_plan, config, data, source)
        advice = what_fits_gpu(config.plan.as_dict(), self.storage, make)
        self.bound = bind_for(config.spec, self.plan, self.storage, advice)
        number_positions(self.bound, "")
        initialise(self.bound, seed)
        if config.start:
            self.started = load_weights(Path(config.start), self.network, self.bound, new_head=True)
        spec = config.spec
        self.phases = PhaseLog(spec, self.plan, self.num_batches, config.threads) if self.sampler is None else None
        capacity = self.phases.event_capacity if self.phases else 0
        executor = make_executor(spec, config.threads, cpus=config.cpus, event_capacity=capacity)
        self.executor = self._executors.enter_context(executor)
        self.executor.prepare(self.bound)
        if self.sampler and not config.memory_limit:
            self._bind_evaluations()

    def _bind_evaluations(self) -> None:
        """Bind what evaluates before anything is trained: a GPU has memory for all of it, or the run is refused now."""
        try:
            for indices in (self.data.valid, self.data.test):
                self.evaluations.prepare(indices)
        except MemoryError:
            self.close()
            raise

    @property
    def on_gpu(self) -> str:
        """What the plan of a step, with its data, takes of a GPU's memory; empty for a model of the CPU."""
        if self.bound.target != "gpu":
            return ""
        taken = format_bytes(device_bytes(self.plan))
        return f"its memory holds {taken}, {format_bytes(self.bound.device.free_bytes())} are left"

    @property
    def epoch(self) -> int:
        """Epochs done."""
        return len(self.history)

    def close(self) -> None:
        """End all threads; memory that this process takes from now on goes where the system puts it."""
        self._executors.close()

    def train_epoch(self) -> EpochRow:
        """Run one epoch, evaluate, and return a row of the history.

        The order of images depends on seed and epoch alone. Images that fill no whole batch are left out; these differ
        from epoch to epoch.
        """
        config, arrays, count, epoch = self.config, self.bound.arrays, self.num_batches, self.epoch
        if isinstance(self.data, LabelledText):
            self.data.start_epoch(self.seed, epoch)
        order = self.data.train[random_order(len(self.data.train), self.seed, epoch)]
        arrays["batch_order"][:] = order[: count * config.batch].reshape(count, config.batch)
        rates = learning_rate_table(config, epoch, count)
        arrays["learning_rates"][:] = rates
        if self.augmentation:
            self.augmentation.begin(epoch)
        run, first = partial(run_steps, self.executor), epoch * count
        disturbance = Disturbance()
        before = disturbance.read()
        phases: dict[str, float] = {}
        with self.sampler or nullcontext(), EnergyMeter() as energy:
            start = time.perf_counter()
            if self.phases:
                phases = self.phases.run(self.executor, run, first)
            else:
                run(count, first)
            seconds = time.perf_counter() - start
        disturbed = disturbance.since(before)
        losses = arrays["losses"].astype(np.float64)
        self._check_losses(f"{epoch + 1}, iteration", losses)
        valid_loss, error_rate = self.evaluations.evaluate(self.data.valid)
        self._check_losses(f"{epoch + 1}, validation", np.array([valid_loss]))
        row = EpochRow(
            seed=self.seed,
            epoch=epoch + 1,
            time_s=(self.history[-1].time_s if self.history else 0.0) + seconds,
            train_loss=float(losses.mean()),
            train_error_rate=1 - int(arrays["correct"].sum()) / (count * config.batch * self.data.answers),
            valid_loss=valid_loss,
            error_rate=error_rate,
            learning_rate=float(rates[-1]),
            resident_bytes=resident_bytes(),
            joules=energy.joules(),
            disturbance=disturbed,
            **phases,
            **(self.sampler.summary() if self.sampler else {}),
        )
        self.history.append(row)
        return row

    def _check_losses(self, where: str, losses: np.ndarray) -> None:
        if not (sound := np.abs(losses) < LARGEST).all():
            number = int(np.argmin(sound))
            loss = f"{losses[number]:.3g}" if np.isfinite(losses[number]) else "not finite"
            raise UsageError(
                f"the loss of epoch {where} {number + 1} is {loss} with --learning-rate {self.config.learning_rate}; "
                f"lower it"
            )

    def save(self, path: Path) -> None:
        """Write parameters, momenta and epoch, from which training continues bit by bit."""
        state = State(
            network=self.config.network, seed=self.seed, epoch=self.epoch, iteration=self.epoch * self.num_batches
        )
        write_checkpoint(path, {name: self.bound.arrays[name] for name in self._state_names()}, state)

    def load(self, path: Path, history: Sequence[EpochRow]) -> None:
        """Continue from a checkpoint, before which these epochs were trained. Raises `UsageError`: damaged, or of
        another network or seed."""
        arrays, _ = read_checkpoint(path, self.config.network, self.seed)
        set_arrays(self.bound.arrays, arrays, self._state_names(), path)
        self.history = [*history]

    def finish(self, path: Path, libraries_bytes: int = 0, loader_bytes: int = 0) -> TrainedRow:
        """Test, write the parameters under PyTorch's names, and return the final metrics; `*_bytes`: resident memory
        before training."""
        parameters = {name: self.bound.arrays[name] for name in kept_names(self.plan)}
        write_safetensors(path, parameters, {"network": self.config.network, "data": self.data.name})
        if self.config.export != "none":
            write_hugging_face(path.with_name(f"model-seed-{self.seed}.safetensors"), parameters, self.network)
        test_loss, test_error = self.evaluations.evaluate(self.data.test)
        return TrainedRow(
            seed=self.seed,
            epochs=self.epoch,
            samples_per_epoch=self.num_batches * self.config.batch,
            time_s=self.history[-1].time_s,
            phase_s=phase_medians(self.history),
            phases_timed=self.phases.timed if self.phases else "",
            test_loss=test_loss,
            test_accuracy=1 - test_error,
            peak_bytes=peak_resident_bytes(),
            libraries_bytes=libraries_bytes,
            loader_bytes=loader_bytes,
            planned_bytes={**planned_bytes(self.plan, self.config.threads), EVALUATING: self.evaluations.largest_bytes},
            started=self.started,
            parameters=path.name,
            parameters_sha256=hashlib.sha256(b"".join(p.tobytes() for p in parameters.values())).hexdigest()[:16],
        )

    def _state_names(self) -> list[str]:
        """Return the names of the buffers in a checkpoint."""
        roles = ("parameter", "optimizer_state", "statistic")
        return [name for name, buffer in self.plan.buffers.items() if buffer.role in roles]


def check_plan(config: TrainingConfig, data: Dataset) -> None:
    """Raise `UsageError` where these data, whose images need not be there yet, cannot be trained on: a GPU would have
    to read images in each step, or the plans need more than the limit of memory."""
    source = _source(config, data)
    if config.memory_limit:
        _fitting_plan(config, data, source)


def _source(
    config: TrainingConfig, data: Dataset | Text, augmentation: Augmentation | None = None
) -> ImageSource | None:
    """Return where each step reads its images one by one; None: they are in an array, or there are none."""
    source = data.source if isinstance(data, Dataset) else None
    if config.augmentations and isinstance(data, Dataset):
        source = replace(source or ImageSource(data.images.__getitem__), augmentation=augmentation)
    if source is not None and config.spec.is_gpu:
        raise UsageError(
            f"images are read in each step by the processor alone, got model {config.model!r}; use --load memory "
            f"without --augment"
        )
    return source


def _training_plan(config: TrainingConfig, data: Dataset | Text, source: ImageSource | None, **options: Any) -> Plan:
    """Return the plan of a step, with other options for what would fit."""
    config = config.with_changes(**options)
    num_batches = len(data.train) // config.batch
    return lower(
        data.fit(get_network(config.network)),
        config.plan,
        **options_for(config.spec, config.conv, config.granularity),
        num_images=data.num_samples,
        num_batches=num_batches,
        num_iterations_logged=num_batches,
        num_learning_rates=num_batches,
        read_image=source and source.read,
    )


class DoesNotFit(UsageError, MemoryError):
    """A training that needs more memory than its limit, or than is free."""


def _fitting_plan(config: TrainingConfig, data: Dataset | Text, source: ImageSource | None) -> tuple[Plan, int]:
    """Return the plan of a step, and the bytes that training and, beside it, evaluating need. Raises `DoesNotFit`: they
    are more than the limit of memory, or than the machine has free with what this process holds already."""
    network, options = data.fit(get_network(config.network)), config.plan.as_dict()
    limit = parse_bytes(config.memory_limit) if config.memory_limit else None
    free = own_and_free_bytes()
    try:
        check_least({**options, "network": network}, limit, free)
        plan = _training_plan(config, data, source)
        make = partial(_training_plan, config, data, source)
        check_fits(plan, options, limit, free, config.threads, make)
    except MemoryError as error:
        raise DoesNotFit(str(error)) from None
    batch = min(evaluation_batch(config, data), len(data.valid))
    needed = sum(planned_bytes(plan, config.threads).values())
    needed += own_bytes(lower(network, config.evaluation(batch)), config.threads)
    allowed, text = allowed_bytes(limit, free)
    if needed > allowed:
        less = "" if config.memory_limit else ", or give a --memory-limit, with which evaluating takes less"
        raise DoesNotFit(
            f"training and evaluating need {format_bytes(needed)}, {text} {format_bytes(allowed)}; lower the "
            f"batch{less}"
        )
    return plan, needed
