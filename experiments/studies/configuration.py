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

import msgspec

from ...cython_src.errors import UsageError
from ...cython_src.lowering.options import spelled
from ...cython_src.networks.registry import get_network
from ...cython_src.reading import Text, check_keys, check_title, checked, read_toml
from ...cython_src.records import Field, Record, about, fields
from ..results.files import SHIPPED, given_or_shipped
from ..results.folder import short_id
from ..sampling.models import check_counts, convolution_for, parse_model, parse_models
from ..training.config import DEFAULTS_OF_TOKENS, TrainingConfig
from ..training.data import SPECS
from ..training.dataset import check_spec
from ..training.text import check_text

# What a study says in other ways, or one run of a study alone.
NOT_IN_FILES = ("seed", "out", "export")
MOST_RUNS = 10_000
# Fields that change no weight: runs that differ in nothing else must leave the same bits.
WITHOUT_EFFECT = ("model", "threads", "cache", "memory_limit", "out")


class StudyOptions(Record, frozen=True):
    """Options of a study beside its runs."""

    accuracy: Annotated[tuple, about("test accuracies in (0, 1], the time to which is reported")] = ()
    time_limit_s: Annotated[float, about("longest time of one run", above=0, below=1e7)] = 86400.0
    loaders: Annotated[bool, about("also measure loading alone, where runs load image files in their steps")] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for value in self.accuracy:
            if type(value) not in (int, float) or not 0 < value <= 1:
                raise UsageError(f"accuracy must be numbers in (0, 1], got {value!r}")


class StudyFile(msgspec.Struct, kw_only=True):
    """Tables of a file; the records of their options check what they say."""

    title: Text = ""
    train: dict[str, Any] = {}
    study: dict[str, Any] = {}
    stages: list[dict[str, Any]] = []
    quick: dict[str, Any] = {}


@dataclass(frozen=True)
class Run:
    """One training of a study: a combination of [train], a seed.

    Attributes
    ----------
    stages : tuple of TrainingConfig
        One after the other, each from the parameters that the one before it left.
    axes : dict
        Fields with several values in the study -> their value here.
    """

    stages: tuple[TrainingConfig, ...]
    axes: Mapping[str, Any]

    @property
    def seed(self) -> int:
        return self.stages[0].seed

    @property
    def label(self) -> str:
        """Name of the run among others of the study, without its seed."""
        return ", ".join(f"{name} {value}" for name, value in self.axes.items()) or self.stages[0].network

    @property
    def run_id(self) -> str:
        """Name of the run's folder: readable, and with a hash of all options."""
        words = [str(value) for value in self.axes.values()] or [self.stages[0].network]
        readable = re.sub(r"[^A-Za-z0-9]+", "-", "-".join(words)).strip("-")[:60]
        identity = [
            {k: v for k, v in stage.as_dict().items() if k not in ("out", "start", "check")} for stage in self.stages
        ]
        return f"{readable}-seed-{self.seed}-{short_id({'stages': identity, 'start': self.stages[0].start})}"


@dataclass(frozen=True)
class Study:
    """A study: its file, checked.

    Attributes
    ----------
    title : str
    train, quick : mapping
        The tables of these names.
    stages : tuple of mapping
    options : StudyOptions
    how_to_read : str
        Comment at the head of the file.
    """

    title: str
    train: Mapping[str, Any]
    stages: tuple[Mapping[str, Any], ...]
    options: StudyOptions
    quick_values: Mapping[str, Any]
    how_to_read: str = ""

    def quick(self) -> Study:
        """Return the small form of the study, which says so in its title and shares no folder with the whole one."""
        title = f"{self.title}, small form"
        stages = tuple({**stage, "epochs": 1} if "epochs" in stage else stage for stage in self.stages)
        return replace(self, title=title, train={**self.train, **self.quick_values}, stages=stages)

    def as_dict(self) -> dict[str, Any]:
        """Content of the "run" row of the study's folder."""
        return {"title": self.title, "train": self.train, "stages": self.stages, "study": self.options.as_dict()}

    @property
    def axes(self) -> dict[str, tuple]:
        """Fields with several values -> these, each once."""
        several = {name: value for name, value in self.train.items() if _several(name, value)}
        return {name: tuple(v for i, v in enumerate(value) if v not in value[:i]) for name, value in several.items()}

    def runs(self) -> list[Run]:
        """Return the runs in their order: all combinations of a seed before the next seed.

        Raises
        ------
        UsageError
            Options that no training can have.
        """
        axes = self.axes
        fixed = {name: value for name, value in self.train.items() if name not in axes and name != "seeds"}
        first, count = 0, self.train.get("seeds", 1)
        if not isinstance(count, int) or not 1 <= count <= 1000:
            raise UsageError(f"seeds must be a whole number in [1, 1000], got {count!r}")
        size = count * math.prod(map(len, axes.values()))
        if size > MOST_RUNS:
            raise UsageError(
                f"a study must have at most {MOST_RUNS} runs, the product of its lists and seeds, got {size}; shorten "
                f"them"
            )
        if "threads" in self.train:
            asked = {"model": TrainingConfig().model, **self.train}
            listed = {key: asked[key] if isinstance(asked[key], list) else [asked[key]] for key in ("model", "threads")}
            check_counts(parse_models(listed["model"]), listed["threads"])
        found = []
        for seed in range(first, first + count):
            for values in itertools.product(*axes.values()):
                chosen = dict(zip(axes, values, strict=True))
                stages = []
                for stage in self.stages or ({},):
                    given = {**fixed, **chosen, **stage, "seed": seed}
                    network = get_network(given.get("network", TrainingConfig().network))
                    config = TrainingConfig(**{**(DEFAULTS_OF_TOKENS if network.tokens else {}), **given})
                    if network.tokens:
                        check_text(config.data, network)
                    else:
                        check_spec(config.data, SPECS)
                    if parse_model(config.model).model.max_threads == 1:
                        config = config.with_changes(threads=1)
                    convolution_for(config.model, config.conv)
                    stages.append(config)
                found.append(Run(tuple(stages), chosen))
        return found


def _several(name: str, value: Any) -> bool:
    return isinstance(value, list) and (
        _fields()[name].kind is not tuple or any(isinstance(part, list) for part in value)
    )


def _fields() -> dict[str, Field]:
    return {field.name: field for field in fields(TrainingConfig) if field.name not in NOT_IN_FILES}


def study_folder() -> Path:
    """Return the folder of the shipped studies."""
    return SHIPPED["study"]


def find_study(name: str) -> Study:
    """Read a study, or the shipped one with this name, with or without `.toml`."""
    return read_study(given_or_shipped(name, "study"))


def read_study(path: Path | str) -> Study:
    """Read a study from a TOML file.

    Raises
    ------
    UsageError
        A file that cannot be read, an unknown key, or a value that a field refuses.
    """
    content, comment = read_toml(path, "TOML file or a shipped study")
    check_keys(content, ("title", "train", "study", "stages", "quick"), str(path))
    if "train" not in content:
        raise UsageError(
            f"{path} must have a table [train], got none; write [train] and what to train below it, such as "
            f'network = "lenet5"'
        )
    if isinstance(content.get("stages"), dict):
        raise UsageError(f"stages in {path} must be a list of tables, got one table; write [[stages]] above each")
    try:
        tables = checked(content, StudyFile)
    except ValueError as error:
        raise UsageError(f"{path} must be a study, got: {error}; see forktask study --help") from None
    check_title(tables.title, str(path))
    train, stages, quick = tables.train, tables.stages, tables.quick
    known = _fields()
    for place, table in (("[train]", train), ("[quick]", quick), *(("[[stages]]", stage) for stage in stages)):
        check_keys(table, known, f"{place} of {path}")
        for name, value in table.items():
            if isinstance(value, list) and not value:
                raise UsageError(f"{name} in {place} of {path} must have a value, got an empty list; leave it out")
            if name == "start" and any(table is stage for stage in stages[1:]):
                raise UsageError(
                    f"start must be in [train] or the first of [[stages]] of {path}, got it in a later one, which goes "
                    f"on from the weights of the one before; leave it out there"
                )
            for one in value if _several(name, value) else [value]:
                known[name].checked(spelled(name, one))
    study = Study(
        title=tables.title or Path(path).stem,
        train=train,
        stages=tuple(stages),
        options=StudyOptions.from_mapping(tables.study, f"[study] of {path}"),
        quick_values=quick,
        how_to_read=" ".join(comment.split()),
    )
    for form in (study, study.quick()):
        loads = {stage.load for run in form.runs() for stage in run.stages}
        if study.options.loaders and loads == {"memory"}:
            raise UsageError(
                f"loaders in [study] of {path} needs a load of cache or files in [train], got memory; add one"
            )
    return study
