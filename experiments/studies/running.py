"""Run the missing trainings of a study; each result is written as it comes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ...cython_src.errors import UsageError, refusals
from ...cython_src.gpu import device as gpu_device
from ...cython_src.reading import Amount, Name, Real, Text, checked, decode_json, read_json, read_regular
from ..machine.environment import collect, environment_id
from ..machine.topology import available_cpus
from ..results.files import check_writable_folder, locked_file, write_atomically
from ..sampling.child import clean_environment, measure_in_process, sample_environment
from ..sampling.models import check_threads, parse_model
from ..sampling.progress import ProgressBar
from ..training.checkpoints import EpochMeasurements
from ..training.dataset import check_there
from .configuration import Run, Study
from .loaders import COMMAND as LOADERS_COMMAND
from .loaders import measure_loaders
from .one_run import COMMAND

MARKER = "study.json"
RESULT = "result.json"
FORMAT_VERSION = 1


class Marker(msgspec.Struct, kw_only=True):
    """Content of the file that marks a folder as that of a study."""

    title: Text
    environment_id: Text


class EpochResult(EpochMeasurements, kw_only=True):
    """Fields of an epoch that reports read."""

    epoch: Amount
    time_s: Amount
    train_loss: Real
    valid_loss: Real
    error_rate: Real


class SeedResult(msgspec.Struct, kw_only=True):
    """Fields of a stage's only seed that reports read."""

    test_accuracy: Real
    samples_per_epoch: Amount
    time_s: Amount
    memory_bytes: dict[str, Amount]
    phases_timed: Literal["", "wall", "busy"] | UnsetType = UNSET
    parameters_sha256: Text
    started: Text | UnsetType = UNSET

    def __post_init__(self) -> None:
        if "peak resident" not in self.memory_bytes:
            raise ValueError("memory_bytes must have the key 'peak resident'")


class StageResult(msgspec.Struct, kw_only=True):
    """Fields of a stage that reports read."""

    seeds: Annotated[list[SeedResult], Meta(min_length=1, max_length=1)]
    history: Annotated[list[EpochResult], Meta(min_length=1)]
    smoke_test: bool
    data: Text | UnsetType = UNSET
    data_note: Text | UnsetType = UNSET


class Result(msgspec.Struct, kw_only=True):
    """What a run left that was trained to its end."""

    stages: Annotated[list[StageResult], Meta(min_length=1)]
    libraries_bytes: Amount


class FailedResult(msgspec.Struct, kw_only=True):
    """What a run left that failed."""

    failure: Name
    message: Text


@dataclass(frozen=True)
class Results:
    """Results of a study's runs, in their order.

    Attributes
    ----------
    study : Study
    found : list of (Run, dict)
        What `train_stages` returned, or "failure" and "message".
    environment_id : str
    loaders : list of dict
        Rows of `measure_loaders`, where the study asks for them.
    """

    study: Study
    found: Sequence[tuple[Run, Mapping[str, Any]]]
    environment_id: str
    loaders: Sequence[Mapping[str, Any]] = ()

    def done(self) -> list[tuple[Run, Mapping[str, Any]]]:
        """Runs that were trained to their end."""
        return [(run, result) for run, result in self.found if "failure" not in result]

    def failed(self) -> list[tuple[Run, Mapping[str, Any]]]:
        """Runs that were not."""
        return [(run, result) for run, result in self.found if "failure" in result]


def obstacles(study: Study) -> list[str]:
    """Return what keeps this machine from running a study: cores, GPUs, data, a sentence each."""
    configs = [stage for run in study.runs() for stage in run.stages]
    counts = sorted({config.threads for config in configs})
    checks: list[Callable[[], object]] = [partial(check_threads, n, None, False) for n in counts]
    if any(parse_model(config.model).model.device == "gpu" for config in configs):
        checks.append(gpu_device.count_gpus)
    checks += [partial(check_there, data) for data in dict.fromkeys(config.data for config in configs)]
    return refusals(checks)


def run_study(study: Study, out: Path, report: Callable[[str], None] = print) -> Results:
    """Train what is missing in a folder, each run in a fresh process; a run that was interrupted goes on.

    Parameters
    ----------
    study : Study
    out : Path
        New, or the folder of an earlier call: runs that are done there stay, failed ones are tried again.
    report : callable
        Takes a line for each run.

    Raises
    ------
    UsageError
        More threads than this machine has cores, no GPU for a model of a GPU, or a folder that cannot take the results.
    """
    runs = study.runs()
    for text in obstacles(study):
        raise UsageError(text)
    marker = out / MARKER
    if out.exists() and (not out.is_dir() or (any(out.iterdir()) and not marker.exists())):
        raise UsageError(f"--out must be a new folder or one of an earlier study, got {out}; choose another")
    environment = collect(variables=clean_environment(os.environ, sample_environment(1, 0, len(available_cpus()))))
    described = {
        "format_version": FORMAT_VERSION,
        "title": study.title,
        "environment_id": environment_id(environment),
        "environment": environment,
    }
    if marker.exists():
        _check_same(described, marker)
    check_writable_folder(out)
    out.mkdir(parents=True, exist_ok=True)
    found, loaders = [], []
    limit_s = study.options.time_limit_s

    def measure_loader(job: Mapping[str, Any]) -> dict[str, Any]:
        report(f"loading alone: {job['way']}, {job['count']}")
        return _in_own_process(job, job["config"]["threads"], limit_s, LOADERS_COMMAND)

    with locked_file(out):
        write_atomically(marker, json.dumps(described, indent=1) + "\n")
        with ProgressBar(len(runs), "study", lines=False) as bar:
            for number, run in enumerate(runs):
                folder = out / "runs" / run.run_id
                result = read_result(folder)
                if result is None or "failure" in result:
                    bar.show(number, f"{run.label}, seed {run.seed}")
                    result = _train(run, folder, limit_s)
                    bar.clear()
                    report(f"{run.label}, seed {run.seed}: {_said(result)}")
                found.append((run, result))
        if study.options.loaders:
            loaders = measure_loaders(study, out, measure_loader)
    return Results(study, found, described["environment_id"], loaders)


def _check_same(described: Mapping[str, Any], marker: Path) -> None:
    """Raise `UsageError` if going on would mix two studies, or two machines or installations, in one report."""
    before = read_json(marker, "marker of a study", Marker, "choose another folder")
    for field, said in (("title", "study"), ("environment_id", "environment")):
        if getattr(before, field) != described[field]:
            raise UsageError(
                f"all runs in {marker.parent} must be of one {said}, {getattr(before, field)!r}, got "
                f"{described[field]!r}; choose another folder"
            )


def _train(run: Run, folder: Path, time_limit_s: float) -> dict[str, Any]:
    folder.mkdir(parents=True, exist_ok=True)
    job = {"stages": [{**stage.as_dict(), "seeds": 1} for stage in run.stages], "folder": str(folder), "cpus": None}
    result = _in_own_process(job, run.stages[0].threads, time_limit_s, COMMAND)
    write_atomically(folder / RESULT, json.dumps(result, indent=1) + "\n")
    return result


def _in_own_process(job: Mapping[str, Any], threads: int, limit_s: float, command: Sequence[str]) -> dict[str, Any]:
    settings = sample_environment(threads, 0, len(available_cpus()))
    return measure_in_process(job, clean_environment(os.environ, settings), limit_s, command)


def read_result(folder: Path) -> dict[str, Any] | None:
    """Return what a run left, or None."""
    path = folder / RESULT
    if not path.exists():
        return None
    try:
        result = decode_json(read_regular(path, "result of a run"), dict)
        checked(result, FailedResult if "failure" in result else Result)
        return result
    except ValueError as error:
        print(f"forktask: {path} cannot be read ({error}); the run is looked at again", file=sys.stderr)
        return None


def _said(result: Mapping[str, Any]) -> str:
    if "failure" in result:
        return f"{result['failure']}: {result['message']}"
    (seed,) = result["stages"][-1]["seeds"]
    return f"test accuracy {100 * seed['test_accuracy']:.2f} %, {seed['time_s']:.2f} s"
