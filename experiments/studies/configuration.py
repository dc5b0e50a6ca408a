"""Configuration of a training study, from a TOML file, expanded to its runs.

A file has a title, a comment on how to read its curves, and these tables:

    title = "Accuracy over time"

    [train]                    # each key takes one value or a list; the runs are the product
    network = ["lenet5", "cifar10_cnn"]
    model = ["forkjoin", "taskiter"]
    epochs = 8
    seeds = 3                  # of each combination

    [study]
    accuracy = [0.9, 0.97]     # the time to each is reported

    [[stages]]                 # optional: one after the other in each run, with changes of [train]
    frozen = "conv1,conv2"
    epochs = 2

    [[stages]]
    learning_rate = 0.001

    [quick]                    # what --quick puts in place of values of [train]
    epochs = 1

Keys of [train], [quick] and [[stages]] are the fields of `TrainingConfig`.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from ...cython_src.errors import UsageError
from ...cython_src.networks.registry import get_network
from ...cython_src.reading import check_keys
from ...cython_src.records import Record, about, fields
from ...cython_src.typed_text import MOST_SECONDS
from ..results.folder import short_id
from ..results.grids import check_table, read_grid, small_form, values_of
from ..results.rows import RunRow
from ..subjects.models import check_counts, convolution_for, keep_device, parse_models
from ..training.config import DEFAULTS_OF_TOKENS, TrainingConfig
from ..training.data import SPECS
from ..training.dataset import check_spec
from ..training.text import check_text

# What a study says in other ways, or one run of a study alone.
NOT_IN_FILES = ("seed", "out", "export")
MOST_RUNS = 10_000
# Fields that change no weight: runs that differ in nothing else must leave the same bits.
WITHOUT_EFFECT = ("model", "threads", "places", "bind", "memory_policy", "cache", "memory_limit", "out")


class StudyOptions(Record, frozen=True):
    """Options of a study, in addition to its runs."""

    accuracy: Annotated[tuple, about("test accuracies in (0, 1], the time to which is reported")] = ()
    time_limit_s: Annotated[float, about("longest time of one run", above=0, below=MOST_SECONDS)] = 86400.0
    loaders: Annotated[bool, about("also measure loading alone, where runs load image files in their steps")] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for value in self.accuracy:
            if type(value) not in (int, float) or not 0 < value <= 1:
                raise UsageError(f"accuracy must be numbers in (0, 1], got {value!r}")


@dataclass(frozen=True)
class Training:
    """One training of a study: a combination of [train], a seed."""

    stages: tuple[TrainingConfig, ...]  # one after the other, each from the parameters that the one before it left
    axes: Mapping[str, Any]  # fields with several values in the study -> their value here

    @property
    def seed(self) -> int:
        return self.stages[0].seed

    @property
    def label(self) -> str:
        """Name of the run among others of the study, without its seed."""
        return ", ".join(f"{name} {axis_text(value)}" for name, value in self.axes.items()) or self.stages[0].network

    @property
    def run_id(self) -> str:
        """Name of the run's folder: readable, and with a hash of all options."""
        words = [str(value) for value in self.axes.values()] or [self.stages[0].network]
        readable = re.sub(r"[^A-Za-z0-9]+", "-", "-".join(words)).strip("-")[:60]
        identity = [
            {k: v for k, v in stage.as_dict().items() if k not in ("out", "start", "check")} for stage in self.stages
        ]
        return f"{readable}-seed-{self.seed}-{short_id({'stages': identity, 'start': self.stages[0].start})}"


def axis_text(value: Any) -> str:
    """Write a value of an axis, such as `start` without a file."""
    return str(value) or "none"


@dataclass(frozen=True)
class Study:
    """A study: its file, checked.

    Attributes
    ----------
    train, quick_values : mapping of str to tuple
        Values of the keys of the tables [train] and [quick].
    how_to_read : str
        Comment at the head of the file.
    left_out : str
        Of a small form: what it has in place of what.
    """

    title: str
    train: Mapping[str, tuple]
    stages: tuple[Mapping[str, Any], ...]
    options: StudyOptions
    quick_values: Mapping[str, tuple]
    how_to_read: str = ""
    left_out: str = ""

    def quick(self) -> Study:
        """Return the small form of the study, which shares no folder with the whole one.

        Its title says that it is small, and the head of `how_to_read` what was put in place of what.
        """
        stages = tuple({**stage, "epochs": 1} if "epochs" in stage else stage for stage in self.stages)
        changed = {name: (self.train.get(name, ("the default",)), now) for name, now in self.quick_values.items()}
        epochs = ", ".join(str(stage["epochs"]) for stage in self.stages if "epochs" in stage)
        more = [f"1 epoch of each stage in place of {epochs}"] if stages != self.stages else []
        return replace(
            self,
            **small_form(self.title, self.how_to_read, changed, *more),
            train={**self.train, **self.quick_values},
            stages=stages,
        )

    def on(self, device: str | None) -> Study:
        """Return the study with its models of a device alone; None: of all."""
        model = tuple(map(str, keep_device(self.train.get("model", (TrainingConfig().model,)), device)))
        return self if device is None else replace(self, train={**self.train, "model": model})

    def as_dict(self) -> dict[str, Any]:
        """Content of the "run" row of the study's folder."""
        return {"title": self.title, "train": self.train, "stages": self.stages, "study": self.options.as_dict()}

    @property
    def axes(self) -> dict[str, tuple]:
        """Fields with several values -> these."""
        return {name: values for name, values in self.train.items() if len(values) > 1}

    def trainings(self) -> list[Training]:
        """Return the runs in their order: all combinations of a seed before the next seed. Raises `UsageError`: options
        that no training can have."""
        grid = {"seeds": (1,), **self.train}
        counts = grid.pop("seeds")
        size = max(counts) * math.prod(map(len, grid.values()))
        if len(counts) > 1 or size > MOST_RUNS:
            raise UsageError(
                f"a study must have one number of seeds and at most {MOST_RUNS} runs, the product of its lists and "
                f"seeds, got seeds {', '.join(map(str, counts))} and {size} runs; shorten them"
            )
        if "threads" in grid:
            check_counts(parse_models(grid.get("model", (TrainingConfig().model,))), grid["threads"])
        result = []
        for seed in range(*counts):
            for values in itertools.product(*grid.values()):
                chosen = dict(zip(grid, values, strict=True))
                stages = tuple(_config({**chosen, **stage, "seed": seed}) for stage in self.stages or ({},))
                result.append(Training(stages, {name: chosen[name] for name in self.axes}))
        return result


def _config(given: Mapping[str, Any]) -> TrainingConfig:
    """Return the options of a stage, on as many threads as its model can use, once its data are known to suit it."""
    network = get_network(given.get("network", TrainingConfig().network))
    config = TrainingConfig(**{**(DEFAULTS_OF_TOKENS if network.tokens else {}), **given})
    if network.tokens:
        check_text(config.data, network)
    else:
        check_spec(config.data, SPECS)
    if config.spec.model.max_threads == 1:
        config = config.with_changes(threads=1)
    convolution_for(config.spec, config.conv)
    return config


def read_study(path: Path | str) -> Study:
    """Read a study from a TOML file. Raises `UsageError`: a file that cannot be read, an unknown key, or a value that a
    field refuses."""
    values, comment = read_grid(path, "study")
    values["title"] = values.get("title") or Path(path).stem
    study = _parsed(values, path, " ".join(comment.split()))
    for form in (study, study.quick()):
        loads = {stage.load for run in form.trainings() for stage in run.stages}
        if study.options.loaders and loads == {"memory"}:
            raise UsageError(
                f"loaders in [study] of {path} needs a load of cache or files in [train], got memory; add one"
            )
    return study


def study_of(run: RunRow) -> Study:
    """Return the study that the first row of its folder names."""
    return _parsed(run.config, "the run row", run.how_to_read)


def _parsed(values: Mapping[str, Any], where: Path | str, how_to_read: str) -> Study:
    """Return the study that tables describe, of a file or as `Study.as_dict` has them."""
    stages, options = values.get("stages", []), values.get("study", {})
    if not isinstance(stages, list):
        raise UsageError(f"stages in {where} must be a list of tables, got {stages!r:.60}; write [[stages]] above each")
    check_table(options, f"[study] of {where}")
    train, quick = (_listed(values.get(name, {}), f"[{name}] of {where}") for name in ("train", "quick"))
    chosen = [_listed(stage, f"[[stages]] of {where}") for stage in stages]
    for number, stage in enumerate(chosen):
        for name, several in stage.items():
            if len(several) > 1:
                raise UsageError(f"{name} in [[stages]] of {where} must have one value, got {len(several)}; name one")
        if number and "start" in stage:
            raise UsageError(
                f"start must be in [train] or the first of [[stages]] of {where}, got it in a later one, which goes on "
                f"from the weights of the one before; leave it out there"
            )
    return Study(
        title=values["title"],
        train=train,
        stages=tuple({name: one for name, (one,) in stage.items()} for stage in chosen),
        options=StudyOptions.from_mapping(options, f"[study] of {where}"),
        quick_values=quick,
        how_to_read=how_to_read,
    )


def _listed(table: Any, where: str) -> dict[str, tuple]:
    """Return the values of each key of a table, which are fields of `TrainingConfig`."""
    known = {field.name: field for field in fields(TrainingConfig) if field.name not in NOT_IN_FILES}
    check_table(table, where)
    check_keys(table, known, where)
    return {name: values_of(known[name], value, where) for name, value in table.items()}
