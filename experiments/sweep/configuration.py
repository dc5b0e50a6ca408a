"""Configuration of a sweep, from a TOML file or the command line, expanded to a grid.

A file has a title, a comment on how to read its curve, and two tables, or three; one more, [slurm], is for
`cluster/slurm.py`:

    title = "Strong scaling of a training step"

    [grid]                     # each key takes one value or a list; the grid is their product
    network = "cifar10_cnn"
    batch = 64
    models = ["serial", "forkjoin", "taskiter"]
    threads = "cores"          # 1, 2, 4, ... up to the physical cores of this process; "all": these alone; or numbers

    [measure]                  # how
    repeats = 11

    [quick]                    # if need be: keys of [grid] that --quick has in place of these
    models = ["forkjoin", "taskiter"]

Keys of [grid] are those of `Running` and every field of `PlanOptions`, keys of [measure] those of `Measure`. Unknown
keys fail. A function of the user's that makes the network or graph may have a table [grid.arguments]: each of its keys
is an axis too.
"""

from __future__ import annotations

import itertools
import math
import os
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from ...cython_src.errors import UsageError, check_choice, did_you_mean, refusals
from ...cython_src.gpu import device as gpu_device
from ...cython_src.lowering.lower import check_shapes, default_batch
from ...cython_src.lowering.options import PlanOptions, check_images, plan_options
from ...cython_src.networks.own import is_own, name_call
from ...cython_src.networks.registry import named_network
from ...cython_src.reading import check_keys, check_title
from ...cython_src.records import Record, about, fields, fields_of
from ...cython_src.typed_text import MOST_SECONDS, MOST_THREADS
from ..machine.perf_counters import BLOCK_EVENTS, block_events
from ..machine.placement import Check, Placement
from ..machine.topology import core_counts
from ..results.folder import short_id
from ..results.grids import TABLES, check_table, read_grid, small_form, values_of
from ..results.nodes import NODES
from ..results.turns import SESSION_PAUSE_S
from ..sampling.child import TIME_LIMIT_S, WAIT_POLICIES
from ..sampling.generation import LEAST_ROUNDS
from ..sampling.hogs import INJECTIONS, MOST_HOGS
from ..subjects.calls import CALLS, check_call, is_calls, label
from ..subjects.memory import parse_bytes
from ..subjects.models import (
    DEFAULT_MODELS,
    ModelSpec,
    check_counts,
    convolution_for,
    counts_for,
    keep_device,
    parse_models,
    process_environment,
    read_model,
    runnable,
)
from ..tables.numbers import plural

if TYPE_CHECKING:
    from ..analysis.sweep import Sweep

QUICK_BATCH = 8  # the largest of several in a small form, unless there are more
MOST_SAMPLES = 1_000_000
# Iterations after which results are compared: they cost most of what a generation of long steps takes.
CHECKED, CHECKED_OF_LONG, LONG_FLOPS = 20, 3, 5e9
# Of a comparison, where nothing else is asked for.
BUDGET_S, MOST_REPEATS = 180.0, 60
CORES = {"cores": slice(None), "all": slice(-1, None)}  # names of numbers of threads
ARGUMENTS = "arguments"  # table of a grid: those of the functions that make its networks


class Running(Record, frozen=True):
    """Axes of a grid besides the options of a plan; one value of each."""

    network: Annotated[str, about("name of a network; `forktask plan` lists them")] = "cifar10_cnn"
    models: Annotated[str, about("execution model, name[:option=value...]")] = "taskiter"
    threads: Annotated[
        int, about("threads; models of one thread take part at 1 only", least=1, below=MOST_THREADS + 1)
    ] = 1
    interference: Annotated[
        int,
        about(
            "competing processes, which spin on the CPUs of the measured threads, from the last one on",
            least=0,
            below=MOST_HOGS + 1,
        ),
    ] = 0


AXES = {f.name: f for f in (*fields(Running)[:1], *fields(PlanOptions), *fields(Running)[1:])}
_DEFAULTS: dict[str, Any] = {"models": lambda: DEFAULT_MODELS, "threads": core_counts}

# The axes. Every attribute is a tuple; the configurations are their product.
Grid = make_dataclass(
    "Grid",
    [
        (name, tuple, field(default_factory=_DEFAULTS.get(name, lambda value=axis.default: (value,))))
        for name, axis in AXES.items()
    ],
    frozen=True,
)


class Measure(Placement, frozen=True):
    """Options of measuring, the same for all configurations."""

    repeats: Annotated[int, about("processes for each configuration: generations", least=1, below=100_001)] = 11
    seed: Annotated[int, about("of data, initial weights and the order of measurements", least=0)] = 1
    check_iterations: Annotated[
        int,
        about(
            f"iterations after which weights and losses must be the same in all models; 0: {CHECKED}, and "
            f"{CHECKED_OF_LONG} of a plan with more than {LONG_FLOPS / 1e9:g} GFLOP",
            least=0,
            below=1_000_001,
        ),
    ] = 0
    target_s: Annotated[
        float,
        about("approximate duration of all timed runs of one sample, over all its turns", above=0, below=MOST_SECONDS),
    ] = 0.3
    least_rounds: Annotated[
        int, about("turns that a sample has at least, each of a short and a long timed run", least=1, below=1001)
    ] = LEAST_ROUNDS
    warmup_s: Annotated[float, about("longest warm-up before the timed runs", above=0, below=MOST_SECONDS)] = 1.0
    time_limit_s: Annotated[
        float,
        about(
            "longest time for a sample; one that takes longer becomes a row that says so", above=0, below=MOST_SECONDS
        ),
    ] = TIME_LIMIT_S
    profile: Annotated[
        bool, about("also run each configuration with the event log on, for times of blocks and layers")
    ] = True
    profile_repeats: Annotated[
        int,
        about(
            "profiles of each configuration, each right after a sample: at most one per generation",
            least=1,
            below=100_001,
        ),
    ] = 3
    budget_s: Annotated[
        float,
        about(
            "time after which no generation begins; where only some plans fit into the rest, the quicker ones get "
            "further generations; ends earlier when every comparison is decided and its interval is within 1 %, and "
            "after `repeats` generations; 0: no budget",
            least=0,
            below=MOST_SECONDS,
        ),
    ] = 0.0
    sessions: Annotated[
        int,
        about(
            "sessions in the folder when the command ends, at least one more; with three or more, intervals are over "
            "them",
            least=1,
            below=1001,
        ),
    ] = 1
    every_s: Annotated[
        float,
        about(
            "time from the start of a session to that of the next one; there are at least 6 minutes between them, "
            "since what follows sooner counts as one",
            least=SESSION_PAUSE_S,
            below=MOST_SECONDS,
        ),
    ] = 1200.0
    simulate: Annotated[
        int,
        about(
            "highest number of threads of the simulated curve; 0: four times the measured ones, once the folder holds "
            "the machine's latencies",
            least=0,
            below=1025,
        ),
    ] = 0
    counters: Annotated[
        tuple[str, ...],
        about(
            f"events by which a profile counts blocks, by kernel and thread, instead of {', '.join(BLOCK_EVENTS)}; "
            "r3f24: a processor's own number"
        ),
    ] = ()
    inject: Annotated[
        tuple[str, ...],
        about(f"causes of outliers, some of {', '.join(INJECTIONS)}: each model on most threads is traced with each"),
    ] = ()
    wait_policy: Annotated[
        str,
        about(
            "whether idle OpenMP threads spin; auto: unless there are more threads than cores, or competing processes",
            choices=WAIT_POLICIES,
        ),
    ] = "auto"
    memory_limit: Annotated[
        str, about("such as 1.5GiB: a plan that needs more becomes a row that says so; empty: the free memory")
    ] = ""
    check: Check = True
    nodes: Annotated[
        str,
        about(
            "one: rows of a second node are refused; pooled: generations may lie on several nodes of one kind, and "
            "ratios are taken within nodes",
            choices=NODES,
        ),
    ] = "one"
    rtol: Annotated[
        float,
        about("of functions: what they return may differ by this share of the largest value; 0: not at all", least=0),
    ] = 0.0
    compare_results: Annotated[bool, about("compare what functions return")] = True
    tuned: Annotated[str, about("folder of a sweep over granularities: each model also takes part at its fastest")] = ""

    @property
    def profiles(self) -> int:
        """Number of profiles of each configuration."""
        return min(self.profile_repeats, self.repeats) if self.profile else 0

    def checked(self, flops: float) -> int:
        """Return after how many iterations results are compared, of a plan whose step takes `flops`."""
        return self.check_iterations or (CHECKED_OF_LONG if flops > LONG_FLOPS else CHECKED)

    def __post_init__(self) -> None:
        super().__post_init__()
        for cause in self.inject:
            if cause not in INJECTIONS:
                near = did_you_mean(str(cause), INJECTIONS)
                raise UsageError(f"inject must be some of {', '.join(INJECTIONS)}, got {cause!r}{near}")
        block_events(self.counters)
        if self.memory_limit:
            parse_bytes(self.memory_limit)


KEYS = (*AXES, ARGUMENTS, *(option.name for option in fields(Measure)))  # of the tables [grid] and [measure]


def measure_given(given: Mapping[str, Any], where: str) -> Measure:
    """Make the options of measuring from requested ones. Raises `UsageError`: an unknown one, or a value that a field
    refuses; more profiles than generations."""
    measure = Measure.from_mapping(given, where)
    if "profile_repeats" in given and measure.profile_repeats > measure.repeats:
        raise UsageError(
            f"profile_repeats must be at most repeats, which is {measure.repeats}, got {measure.profile_repeats}; "
            f"each profile follows a sample"
        )
    return measure


@dataclass(frozen=True)
class GridPoint:
    """One configuration of the grid: a model on a number of threads, running one plan."""

    model: ModelSpec
    threads: int
    network: str
    options: PlanOptions
    interference: int = 0  # number of competing processes

    @property
    def plan(self) -> dict[str, Any]:
        """Arguments of `lower` in the form in which rows and jobs hold them."""
        return {"network": self.network, **self.options.as_dict()}

    @property
    def plan_id(self) -> str:
        """Identity of the plan."""
        return short_id(self.plan)

    @property
    def config_id(self) -> str:
        """Identity of the configuration."""
        identity = {"model": str(self.model), "threads": self.threads, "plan": self.plan}
        if self.interference:
            identity["interference"] = self.interference
        return short_id(identity)

    @property
    def identity(self) -> dict[str, Any]:
        """Fields that name the configuration in rows, besides its plan."""
        names = ("config_id", "model", "threads", "interference")
        return {name: getattr(self, name) for name in names}

    def __str__(self) -> str:
        beside = (
            f", {plural(self.interference, 'competing process', 'competing processes')}" if self.interference else ""
        )
        return f"{label(self.model)} on {plural(self.threads, 'thread')}{beside}"


class Shard(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is measured together, on one machine: a generation of a plan, and profiles of its configurations."""

    repetition: int
    plan_id: str
    interference: int  # number of competing processes
    # samples, profiles: config_id -> place in the order of the sweep. Samples take turns; profiles follow one after
    # the other.
    samples: dict[str, int]
    profiles: dict[str, int]

    @property
    def identity(self) -> dict[str, Any]:
        """Fields that name the shard in its rows."""
        return {"plan_id": self.plan_id, "interference": self.interference, "repetition": self.repetition}

    def with_only(self, requested: Callable[[str], bool]) -> Shard:
        """Return the shard with the configurations that are asked for."""
        kept = ({c: at for c, at in some.items() if requested(c)} for some in (self.samples, self.profiles))
        return Shard(**self.identity, **dict(zip(("samples", "profiles"), kept, strict=True)))


TITLE = "Comparison of execution models"  # by default; of functions and programs it names these


@dataclass(frozen=True)
class Configuration:
    """A sweep; `forktask compare` makes one from its arguments, `forktask run` from a file."""

    title: str = TITLE
    grid: Grid = field(default_factory=Grid)
    measure: Measure = field(default_factory=Measure)
    how_to_read: str = ""  # the comment at the head of a file
    quick_axes: Mapping[str, tuple] = field(default_factory=dict, compare=False)  # of the small form, those that differ
    left_out: str = ""  # what the small form leaves out
    slurm: Mapping[str, Any] = field(
        default_factory=dict
    )  # table of a file: how Slurm is asked; no part of what is measured

    def __post_init__(self):
        specs = self.grid.models
        if not all(isinstance(spec, ModelSpec) for spec in specs):
            specs = parse_models(specs)
        lengths = {name: len(values) for name, values in vars(self.grid).items()}
        size = math.prod(lengths.values()) * self.measure.repeats
        if size > MOST_SAMPLES:
            longest = max(lengths, key=lengths.get)
            raise UsageError(
                f"a sweep must have at most {MOST_SAMPLES} samples, the product of axes and repeats, got {size:.3g}; "
                f"shorten {longest!r}, which has {lengths[longest]} values, or lower repeats"
            )
        is_call = [spec.model.is_call for spec in specs]
        if any(is_call):
            if not all(is_call):
                raise UsageError(
                    f"functions and programs are compared with each other, got {', '.join(map(str, specs))}; leave the "
                    f"execution models out"
                )
            networks = tuple(filter(is_calls, self.grid.network)) or (CALLS,)
            if self.title == TITLE:
                kinds = dict.fromkeys(f"{spec.name}s" for spec in sorted(specs))
                object.__setattr__(self, "title", f"Comparison of {' and '.join(kinds)}")
            object.__setattr__(self, "measure", self.measure.with_changes(profile=False))
            object.__setattr__(self, "grid", replace(self.grid, network=networks, batch=(1,), granularity=("auto",)))
        elif self.measure.rtol or not self.measure.compare_results:
            raise UsageError(
                "rtol and compare_results are of functions, and execution models must leave the same bits; leave them "
                "out"
            )
        if self.measure.inject and all(spec.is_gpu for spec in specs):
            raise UsageError(
                f"causes of outliers are injected into models of the CPU, got inject with {', '.join(map(str, specs))} "
                f"alone; add a model of the CPU, or leave inject out"
            )
        object.__setattr__(self, "grid", replace(self.grid, models=specs))

    def cut_for_threads(self) -> Configuration:
        """Return the sweep with loops that are cut by cost cut for the most of its threads: all points have the same
        blocks."""
        cut = (f"threads={max(self.grid.threads)}" if text == "auto" else text for text in self.grid.granularity)
        return replace(self, grid=replace(self.grid, granularity=tuple(dict.fromkeys(cut))))

    def with_measure(self, **changes: Any) -> Configuration:
        """Return the same grid with other options of measuring."""
        return replace(self, measure=self.measure.with_changes(**changes))

    def check_algorithms(self) -> None:
        """Raise `UsageError` for a named convolution algorithm of a shape that no plan has."""
        if self.grid.algorithms != ("",):
            plans = replace(self, grid=replace(self.grid, algorithms=("",))).plans()
            for text in self.grid.algorithms:
                check_shapes(text, plans)

    def check_machine(self) -> None:
        """Raise `UsageError` unless this machine can run every model and number of threads of the grid."""
        for text in self.obstacles():
            raise UsageError(text)

    def obstacles(self) -> list[str]:
        """Return what keeps this machine from running the grid: libraries, GPUs, cores, a sentence each. Raises
        `UsageError`: a convolution algorithm that has no CUDA kernels."""
        checks: list[Callable[[], object]] = [partial(runnable, spec) for spec in self.grid.models]
        checks += [partial(process_environment, spec) for spec in self.grid.models]
        checks += [partial(check_call, spec, self.grid.network[0]) for spec in self.grid.models if spec.model.is_call]
        if self.uses_gpu:
            checks.append(gpu_device.count_gpus)
            for model, conv in itertools.product(self.grid.models, self.grid.conv):
                convolution_for(model, conv)  # raises
        checks += [partial(self.measure.order, n) for n in self.grid.threads]
        return refusals(checks)

    @property
    def uses_gpu(self) -> bool:
        """Whether some model of the grid runs on a GPU."""
        return any(spec.is_gpu for spec in self.grid.models)

    def plans(self) -> list[tuple[str, PlanOptions]]:
        """Return network and options of every plan of the grid."""
        names = [f.name for f in fields(PlanOptions)]
        axes = [getattr(self.grid, name) for name in names]
        return [
            (network, PlanOptions(**dict(zip(names, values, strict=True))))
            for network in self.grid.network
            for values in itertools.product(*axes)
        ]

    def points(self) -> list[GridPoint]:
        """Return all configurations, in the order of the grid, each once.

        A model limited to one thread takes part once, whatever the thread counts.
        """
        points: dict[str, GridPoint] = {}
        tuned = read_tuned(self.measure.tuned) if self.measure.tuned else {}
        for network, options in self.plans():
            problem = problem_id(network, options)
            for hogs in self.grid.interference:
                for spec in self.grid.models:
                    for threads in counts_for(spec, self.grid.threads):
                        own = tuned.get((problem, spec, threads))
                        chosen = [options, *([options.with_changes(granularity=own)] if own else [])]
                        for one in chosen:
                            point = GridPoint(spec, threads, network, one, hogs)
                            points.setdefault(point.config_id, point)
        return list(points.values())

    def shards(self, first: int = 0) -> list[Shard]:
        """Return what a session measures, in order: in each generation, from number `first` on, a shard for each plan.

        Plans, and the configurations of each, are shuffled by the seed: whatever drifts over the sweep hits all alike.
        """
        shards, position = [], count()
        points = self.points()
        logging = {point.config_id for point in points if not point.model.is_peer}
        for repetition in range(first, first + self.measure.repeats):
            generator = random.Random(f"{self.measure.seed}/{repetition}")
            generator.shuffle(points)
            together: dict[tuple[str, int], list[str]] = {}
            for point in points:
                together.setdefault((point.plan_id, point.interference), []).append(point.config_id)
            for (plan_id, hogs), some in together.items():
                samples = {config_id: next(position) for config_id in some}
                profiled = [c for c in some if c in logging] if repetition < first + self.measure.profiles else ()
                profiles = {config_id: next(position) for config_id in profiled}
                shards.append(
                    Shard(repetition=repetition, plan_id=plan_id, interference=hogs, samples=samples, profiles=profiles)
                )
        return shards

    def on(self, device: str | None) -> Configuration:
        """Return the sweep with its models of a device alone; None: of all."""
        return replace(self, grid=replace(self.grid, models=keep_device(self.grid.models, device)))

    def quick(self) -> Configuration:
        """Return the sweep with its small axes and one short repeat.

        Its title says that it is small, and the head of `how_to_read` what was left out.
        """
        grid, axes = self.grid, dict(self.quick_axes)
        if named := axes.pop("models", ()):  # of these, `on` may have left some out
            axes["models"] = tuple(model for model in parse_models(named) if model in grid.models) or grid.models
        small = replace(grid, **axes)
        changed = {axis: (getattr(grid, axis), getattr(small, axis)) for axis in axes}
        return replace(
            self,
            **small_form(self.title, self.how_to_read, changed, "one short generation"),
            grid=small,
            measure=self.measure.with_changes(
                repeats=1,
                budget_s=0.0,
                sessions=1,
                target_s=0.02,
                warmup_s=0.05,
                least_rounds=1,
                check_iterations=min(self.measure.check_iterations or 4, 4),
            ),
        )

    def as_dict(self) -> dict[str, Any]:
        """Content of the "run" row: {"title", "data", every axis of the grid, every option of the measurement}."""
        return {
            "title": self.title,
            "data": "synthetic",
            **{name: list(values) for name, values in vars(self.grid).items()},
            "models": [*map(str, self.grid.models)],
            **self.measure.as_dict(),
        }


def from_dict(values: Mapping[str, Any]) -> Configuration:
    """Inverse of `Configuration.as_dict`: the configuration of a results folder, whose models need not run here."""
    axes = {name: _axis(axis, values[name], "a run") for name, axis in AXES.items() if name in values}
    return Configuration(
        title=values.get("title", Configuration.title),
        grid=Grid(**axes | {"models": tuple(map(read_model, axes.get("models", DEFAULT_MODELS)))}),
        measure=Measure(**fields_of(Measure, values)),
    )


def _axis(axis, value: Any, where: str) -> tuple:
    """Return the checked values of an axis, each once."""
    if axis.name == "threads" and isinstance(value, str) and value in CORES:
        return core_counts()[CORES[value]]
    return values_of(axis, value, where)


def _networks(grid: Mapping[str, Any], where: str) -> tuple[str, ...]:
    """Return the networks of a grid, each with all combinations of the arguments."""
    networks = _axis(AXES["network"], grid.get("network", AXES["network"].default), where)
    arguments = grid.get(ARGUMENTS, {})
    if not isinstance(arguments, Mapping):
        raise UsageError(f"{ARGUMENTS!r} in {where} must be a table, got {arguments!r}; write [grid.{ARGUMENTS}]")
    axes = {name: value if isinstance(value, list) else [value] for name, value in arguments.items()}
    for name in networks if axes else ():
        if not is_own(name):
            raise UsageError(
                f"arguments are for a function of your own, such as file.py:function, got network {name!r}; leave them "
                f"out"
            )
    empty = next((name for name, values in axes.items() if not values), None)
    if empty is not None:
        raise UsageError(f"argument {empty!r} in {where} must have at least one value, got an empty list")
    if math.prod(map(len, axes.values())) > MOST_SAMPLES:
        raise UsageError(f"a sweep must have at most {MOST_SAMPLES} samples, got more combinations of arguments")
    combinations = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    called = [name_call(name, values) if values else name for name in networks for values in combinations]
    return tuple(dict.fromkeys(called))


def parse_configuration(values: Mapping[str, Any], where: str = "the configuration") -> Configuration:
    """Make a configuration from nested mappings, as a TOML file gives them. Raises `UsageError`: an unknown key, a
    value of the wrong type, an empty list, threads on which no model runs, or what `Configuration` refuses."""
    check_keys(values, ("title", *TABLES["sweep"]), where)
    for table in TABLES["sweep"]:
        check_table(values.get(table, {}), f"[{table}] of {where}")
    grid = values.get("grid", {})
    check_keys(grid, (*AXES, ARGUMENTS), f"table [grid] of {where}")
    networks = _networks(grid, where)
    grid = {**grid, "network": [*networks]}
    if "batch" not in grid:
        grid["batch"] = default_batch(*networks)
    grid.pop(ARGUMENTS, None)
    title = values.get("title", Configuration.title)
    check_title(title, where)
    measure = measure_given(values.get("measure", {}), f"table [measure] of {where}")
    axes = Grid(**{name: _axis(AXES[name], value, where) for name, value in grid.items()})
    for granularity in axes.granularity:
        check_images(granularity, max(axes.batch))
    if not isinstance(grid.get("threads", "cores"), str):
        check_counts(parse_models(axes.models), axes.threads)
    result = Configuration(title, axes, measure, slurm=values.get("slurm", {}))
    quick = values.get("quick", {})
    check_keys(quick, AXES, f"table [quick] of {where}")
    small = {name: _axis(AXES[name], value, f"table [quick] of {where}") for name, value in quick.items()}
    for model in parse_models(small["models"]) if "models" in small else ():
        check_choice(f"a model in table [quick] of {where}", model, result.grid.models)
    return replace(result, quick_axes={**_small_axes(axes), **small})


def _small_axes(grid: Grid) -> dict[str, tuple]:
    """Return the axes of a small form where a file names no others: small batches, each in the place of a larger one,
    and the most threads."""
    step = max(1, QUICK_BATCH // len(grid.batch))
    smaller = {batch: min(batch, step * rank) for rank, batch in enumerate(sorted(grid.batch), 1)}
    return {"batch": tuple(smaller[batch] for batch in grid.batch), "threads": (max(grid.threads),)}


def configuration_from(given: Mapping[str, Any], folder: Path, title: str = TITLE) -> Configuration:
    """Make a configuration from keys of the tables [grid] and [measure]; a network that is an object is written into a
    folder. Raises `UsageError`: what `parse_configuration` refuses."""
    axes = {name: given[name] for name in (*AXES, ARGUMENTS) if name in given}
    measure = {name: value for name, value in given.items() if name not in axes}
    grid = {n: [*v] if isinstance(v, Sequence) and not isinstance(v, str) else v for n, v in axes.items()}
    networks = grid["network"] if isinstance(grid["network"], list) else [grid["network"]]
    grid["network"] = [named_network(network, folder) for network in networks]
    return parse_configuration({"title": title, "grid": grid, "measure": measure}, "compare")


def read_configuration(path: str | os.PathLike) -> Configuration:
    """Read a TOML file. Raises `UsageError`: no such file, no TOML, or what `parse_configuration` refuses."""
    values, comment = read_grid(path, "sweep")
    return replace(parse_configuration(values, str(path)).cut_for_threads(), how_to_read=comment)


# --- the best granularity of each model, from a folder of a sweep over granularities ---


def problem_id(network: str, options: PlanOptions) -> str:
    """Return the identity of a plan's options without the granularity."""
    return short_id({"network": network, **options.with_changes(granularity="auto").as_dict()})


def best_granularities(sweep: Sweep) -> dict[tuple[str, ModelSpec, int], str]:
    """Return the granularity at which a model is fastest on a number of threads, by (problem, model, threads)."""
    result: dict[tuple[str, ModelSpec, int], dict[str, float]] = {}
    for point in sweep.points():
        plan = sweep.plans[point.plan_id]
        if not plan.interference:
            key = problem_id(plan.network, plan_options(plan.options)), point.model, point.threads
            result.setdefault(key, {})[plan.granularity] = sweep.times.time(point).value
    return {key: min(times, key=times.__getitem__) for key, times in result.items()}


def read_tuned(folder: str | os.PathLike) -> dict[tuple[str, ModelSpec, int], str]:
    """Return the `best_granularities` of a folder. Raises `UsageError`: no such folder, or one that holds something
    else."""
    from ..analysis.load import load

    try:
        return best_granularities(load(folder))
    except UsageError as error:
        raise UsageError(f"tuned must be a folder of forktask compare or run, got {str(folder)!r}: {error}") from None
