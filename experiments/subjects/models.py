"""Execution models by name: specs such as `forkjoin:region=persistent`, how they are checked, and their executors."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...cython_src.binding.execution_model import ExecutionModel
from ...cython_src.errors import UsageError, check_choice, did_you_mean
from ...cython_src.gpu import device as gpu_device
from ...cython_src.gpu.launches import GPU_ALGORITHMS
from ...cython_src.plan.barriers import BARRIERS
from ...forkjoin import models as forkjoin
from ...tasking import models as tasking

# The three switches of task models, as the spec `tasking` takes them.
CREATIONS = ("eager", "replayed")
PLACEMENTS = tasking.TASKITER.fields["placement"].choices
TASKING_OPTIONS = ("creation", "barrier", "placement")

# Every model that there is, in the order of tables and legends.
MODELS: dict[str, ExecutionModel] = {
    model.name: model
    for model in (
        forkjoin.SERIAL,
        forkjoin.FORKJOIN,
        forkjoin.JOBLIB,
        tasking.TASKS,
        tasking.TASKGRAPH,
        tasking.TASKITER,
        forkjoin.OPENMP_TASKS,
        forkjoin.TBB,
        forkjoin.TASKFLOW,
        forkjoin.STARPU,
        forkjoin.GPU_FORKJOIN,
        forkjoin.GPU_STREAM,
        tasking.GPU_TASKS,
        tasking.GPU_TASKGRAPH,
        tasking.GPU_TASKITER,
        forkjoin.GPU_HOSTLOAD,
        forkjoin.GPU_OFFLOAD,
        tasking.GPU_BOTH,
    )
}
MODELS_OF_GPU = frozenset(name for name, model in MODELS.items() if model.device == "gpu")
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
    return [name for name, model in MODELS.items() if model.device == device and model.is_built]


def models_on(device: str | None, texts: list[str], default: tuple[str, ...]) -> list[str]:
    """Return the specs that a command with `--device` runs: on a GPU `taskiter` stands for `gpu_taskiter`; `serial` is
    that of the CPU. On the CPU its models alone.

    Parameters
    ----------
    device : {"cpu", "gpu"}, optional
        Default: each model where its name says.
    texts : list of str
        Specs from the command line; equal to `default` if there were none.
    default : tuple of str
        Specs that the command runs on a CPU by default.

    Raises
    ------
    UsageError
        No GPU can be used, or no model is for the CPU.
    """
    if device != "gpu":
        return list(keep_device(texts, device)) if texts else []
    gpu_device.count_gpus()
    if tuple(texts) == tuple(default):
        return list(DEFAULT_GPU_MODELS)
    return [text if text == "serial" or text.partition(":")[0] in MODELS_OF_GPU else f"gpu_{text}" for text in texts]


def describe_models() -> str:
    """List models and their options in one line, for help pages."""
    parts = []
    for name in built_models() + built_models("gpu"):
        options = [
            f"{option}={'|'.join(field.choices) or ('N' if field.kind is int else 'PATH')}"
            for option, field in MODELS[name].fields.items()
        ]
        parts.append(f"{name} ({', '.join(options)})" if options else name)
    parts.append(
        f"tasking (creation={'|'.join(CREATIONS)}, barrier={'|'.join(BARRIERS)}, placement={'|'.join(PLACEMENTS)}): "
        f"the task model that these switches make"
    )
    return "; ".join(parts)


AGAIN = "again"


@dataclass(frozen=True)
class ModelSpec:
    """A model with its options. `str(spec)` is the canonical form: options in the records' order, defaults left out.

    Attributes
    ----------
    options, binding : Record
        Of the model's types.
    again : int
        Above 0: a further contestant of the same model, written `again=1`, with which the model is compared (A/A).
    """

    model: ExecutionModel
    options: Any
    binding: Any
    again: int = 0

    def __str__(self) -> str:
        chosen = {**self.options.differences(), **self.binding.differences()}
        chosen |= {AGAIN: self.again} if self.again else {}
        return ":".join([self.model.name, *(f"{name}={value}" for name, value in chosen.items())])

    def with_options(self, **changes: Any) -> ModelSpec:
        """Return the model with other options of the executor."""
        return replace(self, options=self.options.with_changes(**changes))

    def option(self, name: str, default: Any = None) -> Any:
        """Return the value of an option of the executor; `default` for a model without it."""
        return getattr(self.options, name, default)

    @property
    def barrier(self) -> str:
        """The point at which the model waits: "loop", "phase", "iteration" or "none"."""
        return self.option("taskwait", self.option("barrier", self.model.barrier))


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
    if not model.is_built:
        raise UsageError(
            f"model {name!r} is in installations whose build found its library, got one without; install the library, "
            f"then forktask again (forkjoin/README.md), or take one of {', '.join(built_models())}"
        )
    given: dict[str, Any] = {}
    again = 0
    for pair in pairs:
        option, equals, value = pair.partition("=")
        if option == AGAIN and value.isdecimal() and not again:
            again = int(value)
            continue
        if not equals or option not in model.fields:
            known = ", ".join(model.fields) or "none"
            raise UsageError(
                f"options of model {name!r} are written option=value and may be {known}; got {pair!r} in {text!r}"
            )
        if option in given:
            raise UsageError(f"option {option!r} may be given once, got it twice in {text!r}")
        given[option] = replace(model.fields[option], name=f"option {option!r} of model {name!r}").parse(value)
    options, binding = (
        record(**{name: value for name, value in given.items() if name in record.__struct_fields__})
        for record in (model.options, model.binding)
    )
    return ModelSpec(model, options, binding, again)


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
    if spec.option("runtime", "libgomp") == "libgomp":
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
    cpus : list of int, optional
        Logical CPU of each thread, and more that the process may use; None: do not pin.
    event_capacity : int
        Events that each worker can log; 0: no log.
    """
    spec = parse_model(spec) if isinstance(spec, str) else spec
    check_counts([spec], [num_threads])
    options = spec.options.differences()
    cpus = None if cpus is None else cpus[:num_threads]
    return spec.model.executor_class()(num_threads, cpus=cpus, event_capacity=event_capacity, **options)


def describe_gpu_convolutions(conv: str) -> str:
    """Say in one line what `convolution_for` returns for an option on a GPU."""
    if conv == "winograd2":
        return "convolutions on the GPU: Winograd's F(2x2, 3x3) where it applies, weight gradients direct"
    return f"convolutions on the GPU: direct{' (what auto means there)' if conv == 'auto' else ''}"


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


def options_for(spec: ModelSpec | str, conv: str, granularity: str) -> dict[str, str]:
    """Return the options that `lower` gets where they suit the device: see `convolution_for`; where only streams of a
    GPU run a plan, and none of them a block alone, granularity "auto" is "device".

    Raises
    ------
    UsageError
        What `convolution_for` refuses.
    """
    spec = parse_model(spec) if isinstance(spec, str) else spec
    whole = spec.model.device == "gpu" and not spec.model.mixes_devices and spec.option("unit") != "block"
    conv = convolution_for(spec, conv)
    return {"conv": conv, "granularity": "device" if whole and granularity == "auto" else granularity}


def bind_for(spec: ModelSpec | str, plan, storage=None, advice: Callable[[int], str] | None = None):
    """Bind a plan where a model runs it.

    Parameters
    ----------
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

    options = spec.binding
    return GpuBoundPlan(
        plan,
        storage,
        gpu_device.default_gpu(),
        convolution=options.convolution,
        products=options.products,
        advice=advice,
    )


def storage_for(spec: ModelSpec | str):
    """Make a storage for plans of a model: in ordinary memory, or of the kind that a GPU model asks for."""
    from ...cython_src.binding.storage import Storage

    spec = parse_model(spec) if isinstance(spec, str) else spec
    if spec.model.device == "cpu":
        return Storage()
    from ...cython_src.gpu.bind import device_storage

    return device_storage(gpu_device.default_gpu(), spec.binding.memory)


def keep_device(models: Sequence[str], device: str | None) -> tuple[str, ...]:
    """Return those of some models that run on a device; None: all.

    Raises
    ------
    UsageError
        None of them does.
    """
    kept = tuple(model for model in models if device in (None, parse_model(model).model.device))
    if not kept:
        remedy = "that takes a machine with a GPU" if device == "cpu" else "leave it out"
        raise UsageError(f"--device must leave a model, but none of {', '.join(models)} is for {device}; {remedy}")
    return kept
