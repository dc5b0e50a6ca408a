"""Execution models by name: specs such as `forkjoin:region=persistent`, how they are checked, and their executors."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec

from ...cython_src.errors import UsageError, check_choice, did_you_mean
from ...cython_src.gpu import device as gpu_device
from ...cython_src.gpu.launches import GPU_ALGORITHMS


@dataclass(frozen=True)
class Option:
    """An option of a model, and the values that it takes.

    Parameters
    ----------
    default : str or int
        The executor's own default; a spec that names it is the same as one that leaves it out.
    values : tuple of str
        Allowed words; empty for a number, or for any text where the default is a text.
    minimum : int
        Smallest allowed number.
    what : str
        Placeholder of a text on help pages.
    """

    default: str | int
    values: tuple[str, ...] = ()
    minimum: int = 0
    what: str = "N"

    def parse(self, model: str, name: str, text: str) -> str | int:
        """Return the value that `text` stands for, or raise `UsageError`."""
        if self.values:
            if text not in self.values:
                raise UsageError(
                    f"option {name!r} of model {model!r} must be one of {', '.join(self.values)}; got {text!r}"
                )
            return text
        if isinstance(self.default, str):
            return text
        if not re.fullmatch("[0-9]{1,9}", text) or int(text) < self.minimum:
            raise UsageError(
                f"option {name!r} of model {model!r} must be a whole number from {self.minimum} on, of nine digits at "
                f"most, got {text!r}"
            )
        return int(text)


@dataclass(frozen=True)
class Model:
    """An execution model.

    Parameters
    ----------
    name, module, class_name : str
        The executor's module, relative to the package, and class. The module is imported when an executor is made.
    options : mapping of str to Option
        Keyword arguments of the executor that a spec may set.
    max_threads : int or None
        1 for the serial baseline.
    barrier : {"loop", "phase", "iteration", "none"}
        The point at which the model waits by default; with "loop" each loop has a wall time of its own.
    records : bool
        Whether `prepare` records a task graph.
    closes : bool
        Whether it also closes the graph over iterations.
    device : {"cpu", "gpu"}
        Where plans are bound for it.
    binding : mapping of str to Option
        Options of a spec that binding takes, not the executor.
    moves_data : bool
        Whether every step copies between host and device, so that the model means nothing without data.
    mixes_devices : bool
        Whether some kernels run on the host and some on the device; its bits then differ from both.
    reproducible : bool
        Whether two runs of a deterministic plan give the same bits.
    """

    name: str
    module: str
    class_name: str
    options: Mapping[str, Option] = field(default_factory=dict)
    max_threads: int | None = None
    barrier: str = "none"
    records: bool = False
    closes: bool = False
    device: str = "cpu"
    binding: Mapping[str, Option] = field(default_factory=dict)
    moves_data: bool = False
    mixes_devices: bool = False
    reproducible: bool = True

    @property
    def all_options(self) -> dict[str, Option]:
        """Return all options that a spec may set."""
        return {**self.options, **self.binding}


# The three switches of task models, as the spec `tasking` takes them.
CREATIONS = ("eager", "replayed")
BARRIERS = ("loop", "phase", "iteration", "none")
PLACEMENTS = ("stealing", "partitioned")
TASKING_OPTIONS = ("creation", "barrier", "placement")
_PREEMPTION = {"preemption": Option("stay", ("stay", "swap"))}
_REPLAY_OPTIONS = {
    "placement": Option("partitioned", PLACEMENTS),
    "priority": Option("none", ("none", "path")),
    "profile": Option("", what="FOLDER"),  # tasks are placed by the durations in this results folder
    **_PREEMPTION,
}
_UNIT = {"unit": Option("loop", ("loop", "block")), "streams": Option(8, minimum=1)}
_HOST_MEMORY = Option("pageable", ("pageable", "pinned", "managed"))
_COPIED_MEMORY = Option("pageable", ("pageable", "pinned"))
_CONVOLUTION = Option("tiled", ("tiled", "if", "pad", "if_reduction", "pad_reduction"))
_PRODUCTS = Option("cublas", ("cublas", "tf32", "own"))


def _gpu(name: str, module: str, class_name: str, options=None, memory=_HOST_MEMORY, max_threads=1, **rest) -> Model:
    return Model(
        f"gpu_{name}",
        module,
        class_name,
        options or {},
        max_threads=max_threads,
        device="gpu",
        binding={"memory": memory, "convolution": _CONVOLUTION, "products": _PRODUCTS},
        **rest,
    )


MODELS: dict[str, Model] = {
    model.name: model
    for model in (
        Model("serial", ".forkjoin.executor", "SerialExecutor", max_threads=1, barrier="loop"),
        Model(
            "forkjoin",
            ".forkjoin.executor",
            "ForkJoinExecutor",
            {
                "region": Option("loop", ("loop", "persistent")),
                "schedule": Option("static", ("static", "dynamic", "guided")),
                "chunk_size": Option(0),
            },
            barrier="loop",
        ),
        Model("joblib", ".forkjoin.executor", "JoblibExecutor", barrier="loop"),
        Model(
            "tasks",
            ".tasking.executor",
            "TasksExecutor",
            {
                "taskwait": Option("iteration", ("loop", "phase", "iteration", "none")),
                "window": Option(1024, minimum=1),
                **_PREEMPTION,
            },
            barrier="iteration",
        ),
        Model(
            "taskgraph",
            ".tasking.executor",
            "TaskGraphExecutor",
            {"barrier": Option("iteration", ("loop", "phase", "iteration")), **_REPLAY_OPTIONS},
            barrier="iteration",
            records=True,
        ),
        Model(
            "taskiter",
            ".tasking.executor",
            "TaskIterExecutor",
            {**_REPLAY_OPTIONS, "unroll": Option(1, minimum=1), "slots": Option(1, minimum=1)},
            records=True,
            closes=True,
        ),
        Model(
            "openmp_tasks",
            ".forkjoin.openmp_executor",
            "OpenMPTasksExecutor",
            {
                "taskwait": Option("none", ("loop", "phase", "iteration", "none")),
                "runtime": Option("libgomp", ("libgomp", "libomp")),
            },
        ),
        Model("tbb", ".forkjoin.tbb_executor", "TBBExecutor", {}, barrier="iteration", records=True),
        Model("taskflow", ".forkjoin.taskflow_executor", "TaskflowExecutor", {}, barrier="iteration", records=True),
        Model(
            "starpu",
            ".forkjoin.starpu_executor",
            "StarPUExecutor",
            {
                "scheduler": Option("lws", ("lws", "eager", "ws", "prio", "dmda", "dmdas")),
                "taskwait": Option("none", ("loop", "phase", "iteration", "none")),
            },
        ),
        _gpu("forkjoin", ".forkjoin.gpu_executor", "GpuForkJoinExecutor", barrier="loop"),
        _gpu("stream", ".forkjoin.gpu_executor", "GpuStreamExecutor"),
        _gpu(
            "tasks",
            ".tasking.gpu_executor",
            "GpuTasksExecutor",
            {"taskwait": Option("iteration", ("iteration", "none")), **_UNIT},
            barrier="iteration",
        ),
        _gpu("taskgraph", ".tasking.gpu_executor", "GpuTaskGraphExecutor", _UNIT, barrier="iteration"),
        _gpu("taskiter", ".tasking.gpu_executor", "GpuTaskIterExecutor", {"unroll": Option(4, minimum=1), **_UNIT}),
        _gpu(
            "hostload",
            ".forkjoin.gpu_transfers",
            "GpuHostLoadExecutor",
            {"copies": Option("prefetch", ("synchronous", "prefetch"))},
            memory=_COPIED_MEMORY,
            moves_data=True,
        ),
        _gpu(
            "offload",
            ".forkjoin.gpu_transfers",
            "GpuOffloadExecutor",
            {
                "kernels": Option(
                    "conv", ("conv", "fc", "pool", "relu", "softmax", "sgd", "depthwise", "norm", "optimizer")
                )
            },
            barrier="loop",
            moves_data=True,
            mixes_devices=True,
        ),
        _gpu(
            "both",
            ".tasking.gpu_both",
            "GpuBothExecutor",
            {
                "policy": Option("dmda", ("dmda", "cpu", "gpu")),
                "split": Option(4, minimum=1),
                "models": Option("", what="FILE"),
            },
            max_threads=None,
            moves_data=True,
            mixes_devices=True,
            reproducible=False,
        ),
    )
}
DEFAULT_GPU_MODELS = (
    "gpu_forkjoin",
    "gpu_stream",
    "gpu_tasks",
    "gpu_tasks:taskwait=none",
    "gpu_taskgraph",
    "gpu_taskiter",
)
DEFAULT_MODELS = ("serial", "forkjoin", "forkjoin:region=persistent", "joblib", "tasks", "taskgraph", "taskiter")


def model_of_factors(creation: str, barrier: str, placement: str) -> str:
    """Return the canonical spec of the task model with these three switches.

    Raises
    ------
    UsageError
        A value that no model has, or eager tasks with partitioned placement.
    """
    for name, value, known in (
        ("creation", creation, CREATIONS),
        ("barrier", barrier, BARRIERS),
        ("placement", placement, PLACEMENTS),
    ):
        check_choice(f"option {name!r} of model 'tasking'", value, known)
    if creation == "eager" and placement == "partitioned":
        raise UsageError(
            "tasks created anew cannot be partitioned, which takes a program compiled from the recorded graph, got "
            "creation=eager:placement=partitioned; use placement=stealing or creation=replayed"
        )
    if creation == "eager":
        text = f"tasks:taskwait={barrier}"
    elif barrier == "none":
        text = f"taskiter:placement={placement}"
    else:
        text = f"taskgraph:barrier={barrier}:placement={placement}"
    return str(parse_model(text))


def _by_factors(pairs: list[str], text: str) -> list[str]:
    """Return the parts of the spec that `tasking:creation=..:barrier=..:placement=..` stands for."""
    given = dict(pair.partition("=")[::2] for pair in pairs if pair.partition("=")[0] in TASKING_OPTIONS)
    rest = [pair for pair in pairs if pair.partition("=")[0] not in TASKING_OPTIONS]
    if len(given) + len(rest) < len(pairs):
        raise UsageError(f"an option may be given once, got one twice in {text!r}")
    creation = given.get("creation", "replayed")
    placement = given.get("placement", "stealing" if creation == "eager" else "partitioned")
    return model_of_factors(creation, given.get("barrier", "none"), placement).split(":") + rest


def built_models(device: str = "cpu") -> list[str]:
    """Return the names of a device's models whose executor is part of this installation."""
    package = __package__.partition(".")[0]
    return [n for n, model in MODELS.items() if model.device == device and find_spec(model.module, package) is not None]


def models_on(device: str, texts: list[str], default: tuple[str, ...]) -> list[str]:
    """Return the specs that a command with `--device` runs: on a GPU `taskiter` stands for `gpu_taskiter`; `serial` is
    that of the CPU.

    Parameters
    ----------
    device : {"cpu", "gpu"}
    texts : list of str
        Specs from the command line; equal to `default` if there were none.
    default : tuple of str
        Specs that the command runs on a CPU by default.

    Raises
    ------
    UsageError
        No GPU can be used.
    """
    if device == "cpu":
        return list(texts)
    gpu_device.count_gpus()
    if tuple(texts) == tuple(default):
        return list(DEFAULT_GPU_MODELS)
    return [text if text.startswith("gpu_") or text == "serial" else f"gpu_{text}" for text in texts]


def describe_models() -> str:
    """List models and their options in one line, for help pages."""
    parts = []
    for name in built_models() + built_models("gpu"):
        options = [
            f"{option}={'|'.join(known.values) or known.what}" for option, known in MODELS[name].all_options.items()
        ]
        parts.append(f"{name} ({', '.join(options)})" if options else name)
    parts.append(
        f"tasking (creation={'|'.join(CREATIONS)}, barrier={'|'.join(BARRIERS)}, placement={'|'.join(PLACEMENTS)}): "
        f"the task model that these switches make"
    )
    return "; ".join(parts)


@dataclass(frozen=True)
class ModelSpec:
    """A model with its options. `str(spec)` is the canonical form: options in the table's order, defaults left out.

    Parameters
    ----------
    model : Model
    options : tuple of (str, str or int)
        Those that differ from the default.
    """

    model: Model
    options: tuple[tuple[str, str | int], ...] = ()

    def __str__(self) -> str:
        return ":".join([self.model.name, *(f"{name}={value}" for name, value in self.options)])

    @property
    def barrier(self) -> str:
        """The point at which the model waits: "loop", "phase", "iteration" or "none"."""
        options = dict(self.options)
        return options.get("taskwait", options.get("barrier", self.model.barrier))


def parse_model(text: str) -> ModelSpec:
    """Parse `name[:option=value]*`; `tasking` with creation=, barrier= and placement= is the task model they make.

    Raises
    ------
    UsageError
        Unknown model, option or value, an option given twice, options that exclude each other, or a model that this
        installation was built without.
    """
    name, *pairs = text.strip().split(":")
    if name == "tasking":
        name, *pairs = _by_factors(pairs, text)
    if name not in MODELS:
        known = [*built_models(), *built_models("gpu")]
        raise UsageError(f"no model is called {name!r}; known: {', '.join(known)}{did_you_mean(name, known)}")
    model = MODELS[name]
    if name not in built_models(model.device):
        raise UsageError(f"model {name!r} is not part of this installation; available: {', '.join(built_models())}")
    given: dict[str, str | int] = {}
    for pair in pairs:
        option, equals, value = pair.partition("=")
        if not equals or option not in model.all_options:
            known = ", ".join(model.all_options) or "none"
            raise UsageError(
                f"options of model {name!r} are written option=value and may be {known}; got {pair!r} in {text!r}"
            )
        if option in given:
            raise UsageError(f"option {option!r} may be given once, got it twice in {text!r}")
        given[option] = model.all_options[option].parse(name, option, value)
    slots, unroll = (given.get(name, 1) for name in ("slots", "unroll"))
    if slots > unroll:
        raise UsageError(f"slots must not exceed unroll, which is {unroll} in {text!r}; add unroll={slots}")
    return ModelSpec(
        model,
        tuple((o, given[o]) for o, known in model.all_options.items() if o in given and given[o] != known.default),
    )


def parse_models(texts: list[str] | tuple[str, ...]) -> list[ModelSpec]:
    """Parse several specs; the same model twice counts once."""
    specs = list({str(spec): spec for spec in map(parse_model, texts)}.values())
    if not specs:
        raise UsageError("at least one model must be named, got none; try serial,forkjoin,taskiter")
    return specs


def process_environment(spec: ModelSpec) -> dict[str, str]:
    """Return environment variables for a process that runs this model: the OpenMP runtime to preload, if not the usual.

    Raises
    ------
    UsageError
        LLVM's libomp was asked for and is not installed.
    """
    if dict(spec.options).get("runtime", "libgomp") == "libgomp":
        return {}
    folders = ("/usr/lib/*-linux-gnu", "/usr/lib/llvm-*/lib", "/usr/lib64", "/usr/lib", "/usr/local/lib")
    found = [path for folder in folders for path in sorted(glob.glob(f"{folder}/libomp.so*"), reverse=True)]
    if not found:
        raise UsageError(f"model {spec} needs LLVM's libomp.so, found none in {', '.join(folders)}; install libomp5")
    return {"LD_PRELOAD": found[0]}


def check_threads(threads: int, available: int | None = None, oversubscribe: bool = False) -> int:
    """Return `threads` if it may be used here.

    Raises
    ------
    UsageError
        Less than 1, or more than the cores this process may use unless `oversubscribe`.
    """
    if available is None:
        available = len(os.sched_getaffinity(0))
    if threads < 1:
        raise UsageError(f"the number of threads must be at least 1, got {threads}")
    if threads > available and not oversubscribe:
        raise UsageError(
            f"no more threads than the {available} available cores may run, got {threads}; "
            f"ask for fewer, or give --oversubscribe to a command that has it"
        )
    return threads


def counts_for(spec: ModelSpec, asked: Sequence[int]) -> Sequence[int]:
    """Return the numbers of threads, of those asked for, on which a model runs; one of a single thread runs on one."""
    limit = spec.model.max_threads
    return asked if limit is None else (limit,)


def check_counts(specs: Sequence[ModelSpec], asked: Sequence[int]) -> Sequence[int]:
    """Return numbers of threads that were asked for by name, if some model runs on the largest.

    Raises
    ------
    UsageError
        All models run on fewer threads.
    """
    if max(asked) > 1 and all(spec.model.max_threads == 1 for spec in specs):
        raise UsageError(
            f"{' and '.join(spec.model.name for spec in specs)} must run on one thread, got {max(asked)} threads; ask "
            f"for 1, or name a model of several threads, such as "
            f"{'gpu_both' if any(spec.model.device == 'gpu' for spec in specs) else 'forkjoin'}"
        )
    return asked


def make_executor(spec: ModelSpec | str, num_threads: int, *, cpus: list[int] | None = None, event_capacity: int = 0):
    """Make an executor of the model, a context manager with `prepare`, `run` and `close`.

    Parameters
    ----------
    spec : ModelSpec or str
    num_threads : int
    cpus : list of int, optional
        Logical CPU of each thread; None: do not pin.
    event_capacity : int
        Events that each worker can log; 0: no log.
    """
    spec = parse_model(spec) if isinstance(spec, str) else spec
    check_counts([spec], [num_threads])
    module = import_module(spec.model.module, __package__.partition(".")[0])
    executor = getattr(module, spec.model.class_name)
    options: dict = {name: value for name, value in spec.options if name in spec.model.options}
    if "profile" in options:
        options["durations_s"] = measured_durations(options.pop("profile"))
    return executor(num_threads, cpus=cpus, event_capacity=event_capacity, **options)


def measured_durations(folder: str) -> list[Mapping[str, list[float]]]:
    """Read the seconds of each block by loop from a results folder, the profiles of the serial model last; those of a
    GPU's models have none.

    Raises
    ------
    UsageError
        No such folder, or no profile in it.
    """
    from .results import read_results

    profiles = [row for row in read_results(folder).of_kind("profile") if "block_time_s" in row]
    if not profiles:
        raise UsageError(
            f"a folder of profiles must hold at least one, got none in {folder!r}; run without --no-profile"
        )
    return [row["block_time_s"] for row in sorted(profiles, key=lambda row: row["model"] == "serial")]


def describe_gpu_convolutions(conv: str) -> str:
    """Say in one line what `convolution_for` returns for an option on a GPU."""
    if conv == "winograd2":
        return "convolutions on the GPU: Winograd's F(2x2, 3x3) where it applies, weight gradients direct"
    return "convolutions on the GPU: direct" + " (what auto means there)" * (conv == "auto")


def convolution_for(spec: ModelSpec | str, conv: str) -> str:
    """Return the convolution algorithm that `lower` gets; "auto" suits the device.

    Raises
    ------
    UsageError
        An algorithm without a CUDA kernel, on a GPU.
    """
    spec = parse_model(spec) if isinstance(spec, str) else spec
    if spec.model.device == "cpu":
        return conv
    if conv not in ("auto", *GPU_ALGORITHMS):
        raise UsageError(
            f"convolutions on a GPU must be {' or '.join(GPU_ALGORITHMS)}, got --conv {conv}; leave it out"
        )
    return "direct" if conv == "auto" else conv


def bind_for(spec: ModelSpec | str, plan, storage=None, advice: Callable[[int], str] | None = None):
    """Bind a plan where a model runs it.

    Parameters
    ----------
    spec : ModelSpec or str
    plan : Plan
    storage : Storage, optional
        Made by `storage_for`; default: a new one.
    advice : callable, optional
        Function of a GPU's free bytes that says what would fit there.

    Raises
    ------
    UsageError
        A GPU model, and no GPU can be used.
    MemoryError
        The GPU has less free than the plan needs.
    """
    from ...cython_src.binding.bind import bind

    spec = parse_model(spec) if isinstance(spec, str) else spec
    storage = storage_for(spec) if storage is None else storage
    if spec.model.device == "cpu":
        return bind(plan, storage)
    from ...cython_src.gpu.bind import GpuBoundPlan

    options = {name: value for name, value in spec.options if name in ("convolution", "products")}
    return GpuBoundPlan(plan, storage, gpu_device.default_gpu(), **options, advice=advice)


def storage_for(spec: ModelSpec | str):
    """Make a storage for plans of a model: in ordinary memory, or of the kind that a GPU model asks for."""
    from ...cython_src.binding.storage import Storage

    spec = parse_model(spec) if isinstance(spec, str) else spec
    if spec.model.device == "cpu":
        return Storage()
    from ...cython_src.gpu.bind import device_storage

    return device_storage(gpu_device.default_gpu(), dict(spec.options).get("memory", "pageable"))
