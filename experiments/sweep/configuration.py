"""What a sweep measures: a configuration from a TOML file or from the command line, expanded to a grid.

A file has a title, a comment on how to read its curve, and two tables:

    title = "Strong scaling of a training step"

    [grid]                     # each key takes one value or a list; the grid is their product
    network = "cifar10_cnn"
    batch = 64
    models = ["serial", "forkjoin", "taskiter"]
    threads = "cores"          # 1, 2, 4, ... up to the cores of this process; or numbers

    [measure]                  # how
    repeats = 7

Keys and defaults are those of `Grid` and `Measure`. Unknown keys fail.
"""

from __future__ import annotations

import itertools
import os
import random
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from ...cython_src.errors import UsageError
from ...cython_src.gpu import device as gpu_device
from ..sampling.memory import parse_bytes
from ..sampling.models import DEFAULT_MODELS, check_threads, convolution_for, parse_models, process_environment
from .results import short_id
from .tune import problem_id, read_tuned

QUICK_BATCH = 8
QUICK_VALUES = 2


def core_counts(available: int | None = None) -> tuple[int, ...]:
    """1, 2, 4, ... and the number of cores this process may use."""
    if available is None:
        available = len(os.sched_getaffinity(0))
    counts = [1]
    while 2 * counts[-1] < available:
        counts.append(2 * counts[-1])
    return tuple(dict.fromkeys((*counts, available)))


@dataclass(frozen=True)
class Grid:
    """The axes. Every attribute is a tuple; the configurations are their product.

    Attributes
    ----------
    network, batch, phase, granularity, weight_gradients, memory, fusion, conv, layout, optimizer, recompute
        What is computed: arguments of `lower`, one plan for each combination.
    models : of str
        Model specs (models.py).
    threads : of int
        "cores" stands for 1, 2, 4, ... up to the cores. Models that run on one thread only take part at 1.
    interference : of int
        Hogs: processes that spin on the CPUs of the measured threads, from the last one on.
    """

    network: tuple[str, ...] = ("cifar10_cnn",)
    batch: tuple[int, ...] = (64,)
    phase: tuple[str, ...] = ("train",)
    granularity: tuple[str, ...] = ("auto",)
    weight_gradients: tuple[str, ...] = ("partial",)
    memory: tuple[str, ...] = ("full",)
    fusion: tuple[bool | str, ...] = (True,)
    conv: tuple[str, ...] = ("auto",)
    layout: tuple[str, ...] = ("auto",)
    optimizer: tuple[str, ...] = ("sgd",)
    recompute: tuple[bool, ...] = (False,)
    models: tuple[str, ...] = DEFAULT_MODELS
    threads: tuple[int, ...] = field(default_factory=core_counts)
    interference: tuple[int, ...] = (0,)


PLAN_AXES = (
    "network",
    "batch",
    "phase",
    "granularity",
    "weight_gradients",
    "memory",
    "fusion",
    "conv",
    "layout",
    "optimizer",
    "recompute",
)


@dataclass(frozen=True)
class Measure:
    """How each configuration is measured.

    Attributes
    ----------
    repeats : int
        Fresh processes for each configuration.
    seed : int
        Of data, initial weights and the order of measurements.
    check_iterations : int
        Iterations after which weights and losses are hashed and compared over all models.
    target_s : float
        About how long the timed runs of one sample last together.
    warmup_s : float
        Longest warm-up before them.
    time_limit_s : float
        Longest time for one sample; what takes longer becomes a row that says so.
    profile : bool
        Also run each configuration with the event log on, for times of blocks and layers.
    profile_repeats : int
        How often: each right after a sample, so that both meet the same machine; `repeats` times at most.
    pin : bool
        Pin each thread to a CPU.
    wait_policy : {"active", "passive", "auto"}
        Whether idle OpenMP threads spin. "auto": they do, unless there are more threads than cores or hogs.
    oversubscribe : bool
        Allow more threads than cores.
    tuned : str
        File of `forktask tune`: each model also takes part at the granularity found for it; "": none.
    memory_limit : str
        A plan that needs more, such as "1.5GiB", becomes a row that says so and what would fit; "": what is free.
    """

    repeats: int = 7
    seed: int = 1
    check_iterations: int = 20
    target_s: float = 0.3
    warmup_s: float = 1.0
    time_limit_s: float = 120.0
    profile: bool = True
    profile_repeats: int = 3
    pin: bool = True
    wait_policy: str = "auto"
    oversubscribe: bool = False
    memory_limit: str = ""
    tuned: str = ""

    @property
    def profiles(self) -> int:
        """Profiles of each configuration."""
        return min(self.profile_repeats, self.repeats) if self.profile else 0

    def __post_init__(self):
        for name, least in (("repeats", 1), ("seed", 0), ("check_iterations", 1), ("profile_repeats", 1)):
            if getattr(self, name) < least:
                raise UsageError(f"{name} must be at least {least}, got {getattr(self, name)}")
        for name in ("target_s", "warmup_s", "time_limit_s"):
            if not 0 < getattr(self, name) < 1e7:
                raise UsageError(f"{name} must be a positive number of seconds, got {getattr(self, name)}")
        if self.memory_limit:
            parse_bytes(self.memory_limit)
        if self.wait_policy not in ("active", "passive", "auto"):
            raise UsageError(f"wait_policy must be active, passive or auto; got {self.wait_policy!r}")


@dataclass(frozen=True)
class Point:
    """One configuration of the grid: a model on a number of threads, running one plan.

    Attributes
    ----------
    model : str
        Canonical spec.
    plan : mapping
        Arguments of `lower`.
    """

    model: str
    threads: int
    plan: Mapping[str, Any]
    interference: int = 0

    @property
    def plan_id(self) -> str:
        return short_id(dict(self.plan))

    @property
    def config_id(self) -> str:
        identity = {"model": self.model, "threads": self.threads, "plan": dict(self.plan)}
        if self.interference:
            identity["interference"] = self.interference
        return short_id(identity)

    def __str__(self) -> str:
        hogs = f", {self.interference} hogs" if self.interference else ""
        return f"{self.model} on {self.threads} thread{'s' * (self.threads > 1)}{hogs}"


@dataclass(frozen=True)
class Configuration:
    """A whole sweep. `forktask compare` makes one from its arguments, `forktask run` from a file."""

    title: str = "Comparison of execution models"
    grid: Grid = field(default_factory=Grid)
    measure: Measure = field(default_factory=Measure)

    def __post_init__(self):
        specs = parse_models(self.grid.models)
        object.__setattr__(self, "grid", replace(self.grid, models=tuple(str(spec) for spec in specs)))
        for hogs in self.grid.interference:
            if hogs < 0:
                raise UsageError(f"interference must be a number of hogs from 0 on, got {hogs}")

    def check_machine(self) -> None:
        """Raise `UsageError` unless this machine can run every model and number of threads of the grid."""
        for spec in parse_models(self.grid.models):
            process_environment(spec)  # raises where a library is missing
        if self.uses_gpu:
            gpu_device.count_gpus()  # raises where there is none
            for model, conv in itertools.product(self.grid.models, self.grid.conv):
                convolution_for(model, conv)  # raises where a form has no CUDA kernels
        for threads in self.grid.threads:
            check_threads(threads, oversubscribe=self.measure.oversubscribe)

    @property
    def uses_gpu(self) -> bool:
        """Whether some model of the grid runs on a GPU."""
        return any(spec.model.device == "gpu" for spec in parse_models(self.grid.models))

    def plans(self) -> list[dict[str, Any]]:
        """Arguments of `lower` for every plan of the grid."""
        axes = [getattr(self.grid, axis) for axis in PLAN_AXES]
        return [dict(zip(PLAN_AXES, values, strict=True)) for values in itertools.product(*axes)]

    def points(self) -> list[Point]:
        """All configurations, in the order of the grid, each once.

        A model limited to one thread takes part once, whatever the thread counts.
        """
        points: dict[str, Point] = {}
        tuned = read_tuned(self.measure.tuned) if self.measure.tuned else {}
        for plan in self.plans():
            for hogs in self.grid.interference:
                for spec in parse_models(self.grid.models):
                    limit = spec.model.max_threads
                    counts = self.grid.threads if limit is None else (limit,)
                    for threads in counts:
                        point = Point(str(spec), threads, plan, hogs)
                        points.setdefault(point.config_id, point)
                        own = tuned.get((problem_id(plan), str(spec), threads))
                        if own:
                            point = Point(str(spec), threads, {**plan, "granularity": own}, hogs)
                            points.setdefault(point.config_id, point)
        return list(points.values())

    def order(self) -> list[tuple[int, Point]]:
        """(repetition, configuration) of all samples: blocks of one repetition each, shuffled within by the seed.

        Whatever drifts over the sweep hits all configurations alike.
        """
        order = []
        for repetition in range(self.measure.repeats):
            points = self.points()
            random.Random(f"{self.measure.seed}/{repetition}").shuffle(points)
            order.extend((repetition, point) for point in points)
        return order

    def quick(self) -> Configuration:
        """The same sweep at small sizes: one short repeat, small batches, two values on an axis, the most threads."""
        grid = self.grid
        batches = dict.fromkeys(min(batch, QUICK_BATCH * (k + 1)) for k, batch in enumerate(grid.batch[:QUICK_VALUES]))
        shortened = {axis: getattr(grid, axis)[:QUICK_VALUES] for axis in ("network", "granularity", "interference")}
        return replace(
            self,
            grid=replace(grid, batch=tuple(batches), threads=(max(grid.threads),), **shortened),
            measure=replace(
                self.measure,
                repeats=1,
                target_s=0.02,
                warmup_s=0.05,
                check_iterations=min(self.measure.check_iterations, 4),
            ),
        )

    def as_dict(self) -> dict[str, Any]:
        """For the "run" row: {"title", "data", every axis of the grid, every option of the measurement}."""
        return {
            "title": self.title,
            "data": "synthetic",
            **{name: list(values) for name, values in asdict(self.grid).items()},
            **asdict(self.measure),
        }


def from_dict(values: Mapping[str, Any]) -> Configuration:
    """Inverse of `Configuration.as_dict`: what a results folder was measured with."""
    return Configuration(
        title=values["title"],
        grid=Grid(**{f.name: tuple(values[f.name]) for f in fields(Grid) if f.name in values}),
        measure=Measure(**{f.name: values[f.name] for f in fields(Measure) if f.name in values}),
    )


def _typed(name: str, value: Any, wanted: type, where: str) -> Any:
    """`value` if it has the type of a key, or a `UsageError`."""
    if wanted is float and type(value) is int:
        value = float(value)
    if isinstance(wanted, tuple):
        if type(value) in wanted:
            return value
        wanted = wanted[-1]
    if type(value) is not wanted:
        words = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
        raise UsageError(f"key {name!r} in {where} must be {words[wanted]}, got {value!r}")
    return value


_GRID_TYPES = {
    "network": str,
    "batch": int,
    "phase": str,
    "granularity": str,
    "weight_gradients": str,
    "memory": str,
    "fusion": (bool, str),
    "conv": str,
    "layout": str,
    "optimizer": str,
    "recompute": bool,
    "models": str,
    "threads": int,
    "interference": int,
}
_MEASURE_TYPES = {
    "repeats": int,
    "seed": int,
    "check_iterations": int,
    "target_s": float,
    "warmup_s": float,
    "time_limit_s": float,
    "profile": bool,
    "profile_repeats": int,
    "pin": bool,
    "wait_policy": str,
    "oversubscribe": bool,
    "memory_limit": str,
    "tuned": str,
}


def _check_keys(found: Mapping[str, Any], known, where: str) -> None:
    for key in found:
        if key not in known:
            raise UsageError(f"keys in {where} may be {', '.join(known)}; got {key!r}")


def parse_configuration(values: Mapping[str, Any], where: str = "the configuration") -> Configuration:
    """Make a configuration from nested mappings, as a TOML file gives them.

    Raises
    ------
    UsageError
        An unknown key, a value of the wrong type, an empty list, or what `Configuration` refuses.
    """
    _check_keys(values, ("title", "grid", "measure"), where)
    for table in ("grid", "measure"):
        if not isinstance(values.get(table, {}), Mapping):
            raise UsageError(
                f"{table!r} in {where} must be a table, got {values[table]!r}; write [{table}] above its keys"
            )
    grid, measure = values.get("grid", {}), values.get("measure", {})
    _check_keys(grid, _GRID_TYPES, f"table [grid] of {where}")
    _check_keys(measure, _MEASURE_TYPES, f"table [measure] of {where}")
    axes: dict[str, tuple] = {}
    for name, value in grid.items():
        if name == "threads" and value == "cores":
            axes[name] = core_counts()
            continue
        listed = value if isinstance(value, list) else [value]
        if not listed:
            raise UsageError(f"key {name!r} in {where} must have at least one value, got an empty list")
        axes[name] = tuple(dict.fromkeys(_typed(name, v, _GRID_TYPES[name], where) for v in listed))
    options = {name: _typed(name, value, _MEASURE_TYPES[name], where) for name, value in measure.items()}
    title = _typed("title", values.get("title", Configuration.title), str, where)
    return Configuration(title, Grid(**axes), Measure(**options))


def read_configuration(path: str | os.PathLike) -> Configuration:
    """Read a TOML file.

    Raises
    ------
    UsageError
        No such file, no TOML, or what `parse_configuration` refuses.
    """
    try:
        with open(path, "rb") as file:
            values = tomllib.load(file)
    except OSError as error:
        shipped = ", ".join(sorted(p.name for p in config_folder().glob("*.toml")))
        raise UsageError(
            f"a configuration must be a readable TOML file, got {str(path)!r}: {error.strerror}; "
            f"shipped with forktask: {shipped}"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} must be TOML, got: {error}; mend that place") from None
    return parse_configuration(values, str(path))


def config_folder() -> Path:
    """Where the shipped configurations lie."""
    return Path(__file__).parent.parent / "configs"


def find_configuration(name: str) -> Configuration:
    """A configuration by path, or by the name of a shipped one, with or without `.toml`."""
    shipped = config_folder() / (name if name.endswith(".toml") else name + ".toml")
    if not Path(name).exists() and os.sep not in name and shipped.exists():
        return read_configuration(shipped)
    return read_configuration(name)
