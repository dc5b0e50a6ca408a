"""Rows of trainings and of studies, made where they are measured and read back by the same class."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal

from msgspec import Meta

from ...cython_src.reading import Amount, Count, Name, Number, Real, Text
from .disturbance import undisturbed
from .nodes import Part, Row, says


class EpochRow(Row, frozen=True, kw_only=True, tag="epoch"):
    """An epoch of a training. After a resumption the last row of an epoch counts."""

    seed: Annotated[Count, says("of parameters and order")]
    epoch: Annotated[Number, says("from 1 on")]
    time_s: Annotated[Amount, says("training alone, summed up from the first epoch on")]
    train_loss: Annotated[Real, says("mean over the epoch's steps")]
    train_error_rate: Annotated[Real, says("of the same")]
    valid_loss: Annotated[Real, says("on the validation samples, after the epoch")]
    error_rate: Annotated[Real, says("of the same")]
    learning_rate: Annotated[Real, says("of the last step")]
    resident_bytes: Annotated[Amount, says("of the process, after the epoch")]
    joules: Annotated[Amount | None, says("of the epoch, whole machine; null where nothing measures it")] = None
    load_s: Annotated[Amount | None, says("of the epoch; null, as in the next four, where phases are not timed")] = None
    forward_s: Annotated[Amount | None, says("of the epoch")] = None
    backward_s: Annotated[Amount | None, says("of the epoch")] = None
    update_s: Annotated[Amount | None, says("of the epoch")] = None
    other_s: Annotated[Amount | None, says("of the epoch")] = None
    gpu_memory_bytes: Annotated[Amount | None, says("most in use on the GPU, by all; null: not sampled")] = None
    gpu_utilisation: Annotated[Amount | None, says("mean part of the driver's periods in which a kernel ran")] = None
    disturbance: Annotated[dict[str, Real | None], says("as in a sample, during the epoch")]


def epoch_times(history: Iterable[EpochRow]) -> Iterator[tuple[EpochRow, float, bool]]:
    """Yield the epochs of a training, each with its own seconds, and whether others left it undisturbed."""
    rows = list(history)
    times_s = [row.time_s - before for before, row in zip([0.0, *(row.time_s for row in rows)], rows, strict=False)]
    yield from zip(rows, times_s, undisturbed(times_s, [row.disturbance for row in rows]), strict=True)


class TrainedRow(Row, frozen=True, kw_only=True, tag="trained"):
    """A training with one seed, at its end."""

    seed: Annotated[Count, says("of parameters and order")]
    epochs: Annotated[Number, says("all")]
    samples_per_epoch: Annotated[Number, says("that are trained on")]
    time_s: Annotated[Amount, says("training alone")]
    phase_s: Annotated[dict[str, Amount], says("by phase: median over undisturbed epochs, or over all")]
    phases_timed: Annotated[Literal["", "wall", "busy"], says("how: wall times, or times in blocks, mean over threads")]
    test_loss: Annotated[Real, says("on the test samples")]
    test_accuracy: Annotated[Real, says("of the same")]
    peak_bytes: Annotated[Amount, says("most memory that was resident in the process")]
    libraries_bytes: Annotated[Amount, says("resident before the data: Python and libraries")]
    loader_bytes: Annotated[Amount, says("what came with the data")]
    planned_bytes: Annotated[dict[str, Amount], says("by purpose")]
    started: Annotated[Text, says("what was loaded from a file of parameters, and what was not")]
    parameters: Annotated[Name, says("file of the final parameters")]
    parameters_sha256: Annotated[Name, says("hash of their values")]


class EvaluatedRow(Row, frozen=True, kw_only=True, tag="evaluated"):
    """Given weights, evaluated on samples with one form of convolutions: the passes of `forktask evaluate`."""

    conv: Annotated[Name, says("form of the convolutions")]
    samples: Annotated[Number, says("that each pass evaluates")]
    loss: Annotated[Real, says("mean over the samples")]
    accuracy: Annotated[Real, says("part of the predictions that are right")]
    time_s: Annotated[list[Amount], Meta(min_length=1), says("of each pass")]
    layer_s: Annotated[
        dict[str, list[Amount]], says("by layer: in blocks, sum over threads, of each pass; empty on a GPU")
    ]


class Summary(Part, frozen=True, kw_only=True):
    """A training with all of its seeds."""

    title: Text
    config: dict[str, Any]
    data: Text
    data_note: Text
    smoke_test: bool
    energy: Text
    check: Text
    test_accuracy_median: Real
    test_accuracy_min: Real
    test_accuracy_max: Real
    seeds: Annotated[list[TrainedRow], Meta(min_length=1)]


class Stage(Part, frozen=True, kw_only=True):
    """A stage of a study's training, which has one seed."""

    summary: Summary
    history: Annotated[list[EpochRow], Meta(min_length=1)]

    @property
    def end(self) -> TrainedRow:
        """The stage's only seed."""
        return self.summary.seeds[0]


class TrainingRow(Row, frozen=True, kw_only=True, tag="training"):
    """A training of a study, in a process of its own."""

    run_id: Annotated[Name, says("name of its folder, with a hash of its options")]
    stages: Annotated[list[Stage], Meta(min_length=1), says("of each: summary, and a row of each epoch")]


class TrainingFailureRow(Row, frozen=True, kw_only=True, tag="training_failure"):
    """A training of a study that did not end, or did not fit."""

    run_id: Annotated[Name, says("as in `training`")]
    reason: Annotated[Name, says("usage, crash, memory or timeout")]
    message: Annotated[Text, says("what it said")]


class OfLoading(Row, frozen=True, kw_only=True):
    """What all rows of loading alone have."""

    way: Annotated[Name, says("loop, joblib or DataLoader")]
    count: Annotated[Count, says("of its threads or worker processes")]
    config: Annotated[dict[str, Any], says("options of a training that loading depends on")]


class LoadingRow(OfLoading, frozen=True, kw_only=True, tag="loading"):
    """Loading the images of an epoch alone, several times."""

    ALIKE = (("epoch_time_s", "usable"),)

    images_per_s: Annotated[Amount, says("rate, from the median of the undisturbed epochs, or of all")]
    epoch_time_s: Annotated[list[Amount], Meta(min_length=1), says("of each epoch")]
    usable: Annotated[list[bool], says("of each: whether others left it undisturbed")]
    peak_bytes: Annotated[Amount, says("most memory that was resident in the process")]
    libraries_bytes: Annotated[Amount, says("resident before the data: Python and libraries")]
    loader_bytes: Annotated[Amount, says("what came with data and loader")]
    workers_bytes: Annotated[Amount, says("of the largest worker process, times their number")]


class LoadingFailureRow(OfLoading, frozen=True, kw_only=True, tag="loading_failure"):
    """A way of loading that could not be measured."""

    reason: Annotated[Name, says("usage, crash, memory or timeout")]
    message: Annotated[Text, says("what it said")]


StudyRow = TrainingRow | TrainingFailureRow | LoadingRow | LoadingFailureRow
