"""Execution models by name: specs such as `forkjoin:region=persistent`, how they are checked, and their executors."""

from __future__ import annotations

import glob
import itertools
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache, partial, total_ordering
from typing import Annotated, Any

from ...cython_src.binding.execution_model import ExecutionModel
from ...cython_src.errors import UsageError, check_choice, did_you_mean, refusals
from ...cython_src.gpu import device as gpu_device
from ...cython_src.kernels.convolution.specs import FORMS_OF_A_PORT
from ...cython_src.lowering.options import Granularity
from ...cython_src.plan.barriers import BARRIERS
from ...cython_src.records import Record, about, fields_of
from ...forkjoin import models as forkjoin
from ...tasking import models as tasking
from ..machine.build_info import BUILD
from ..machine.topology import places_of
from .own_models import own_model, split_spec
from .peer_models import FUNCTION, GPU_TORCH, JAX, PROGRAM, TORCH

# The three switches of task models, as the spec `tasking` takes them.
CREATIONS = ("eager", "replayed")
PLACEMENTS = tasking.TASKITER.fields["placement"].choices
TASKING_OPTIONS = ("creation", "barrier", "placement")

# Every model that there is, in the order of tables and legends.
MODELS: dict[str, ExecutionModel] = {
    model.name: model
    for model in (
        *(forkjoin.SERIAL, forkjoin.FORKJOIN, forkjoin.JOBLIB, tasking.TASKS, tasking.TASKGRAPH, tasking.TASKITER),
        *(forkjoin.OPENMP_TASKS, forkjoin.TBB, forkjoin.TASKFLOW, forkjoin.STARPU, forkjoin.OMPSS2),
        *(forkjoin.GPU_FORKJOIN, forkjoin.GPU_STREAM, tasking.GPU_TASKS, tasking.GPU_TASKGRAPH, tasking.GPU_TASKITER),
        *(forkjoin.GPU_HOSTLOAD, tasking.GPU_BOTH, TORCH, GPU_TORCH, JAX, FUNCTION, PROGRAM),
    )
}
DEFAULT_GPU_MODELS = (
    *("gpu_forkjoin", "gpu_stream"),
    *("gpu_tasks", "gpu_tasks:taskwait=none", "gpu_taskgraph", "gpu_taskiter"),
)
# In place of models: all forms of fork-join, of which the fastest is the reference; all outside runtimes that are here.
REFERENCE, OUTSIDE = "reference", "outside"
CHUNKS = (0, 2, 8)  # blocks that its dynamic and guided forms hand out at once; 0: the schedule's own number
DEFAULT_MODELS = ("serial", "forkjoin", "forkjoin:region=persistent", "joblib", "tasks", "taskgraph", "taskiter")


def model_of_factors(creation: str, barrier: str, placement: str) -> ModelSpec:
    """Return the task model with these three switches. Raises `UsageError`: a value that no model has, or eager tasks
    with partitioned placement."""
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
        return _spec(tasking.TASKS, taskwait=barrier)
    if barrier == "none":
        return _spec(tasking.TASKITER, placement=placement)
    return _spec(tasking.TASKGRAPH, barrier=barrier, placement=placement)


def _spec(model: ExecutionModel, **options: Any) -> ModelSpec:
    return ModelSpec(model, model.options(**options), model.binding())


def _by_factors(pairs: list[str], text: str) -> list[str]:
    """Return the parts of the spec that `tasking:creation=..:barrier=..:placement=..` stands for."""
    given = dict(pair.partition("=")[::2] for pair in pairs if pair.partition("=")[0] in TASKING_OPTIONS)
    rest = [pair for pair in pairs if pair.partition("=")[0] not in TASKING_OPTIONS]
    if len(given) + len(rest) < len(pairs):
        raise UsageError(f"an option may be given once, got one twice in {text!r}")
    creation = given.get("creation", "replayed")
    placement = given.get("placement", "stealing" if creation == "eager" else "partitioned")
    return str(model_of_factors(creation, given.get("barrier", "none"), placement)).split(":") + rest


def built_models(device: str = "cpu") -> list[str]:
    """Return the names of a device's own models (no other program) whose executor is part of this installation."""
    models = (model for model in MODELS.values() if model.device == device and not model.is_peer)
    return [model.name for model in models if model.is_built]


def models_on(device: str | None, texts: Sequence[str], default: Sequence[str]) -> tuple[ModelSpec, ...]:
    """Return the models that a command with `--device` runs: on a GPU `taskiter` stands for `gpu_taskiter`; `serial` is
    that of the CPU. On the CPU its models alone.

    Parameters
    ----------
    device : {"cpu", "gpu"}, optional
        Default: each model where its name says.
    texts : sequence of str
        Specs from the command line; equal to `default` if there were none.
    default : sequence of str
        Specs that the command runs on a CPU by default.

    Raises
    ------
    UsageError
        No GPU can be used, no model is for the CPU, or what `parse_models` refuses.
    """
    if device != "gpu":
        return keep_device(texts, device)
    gpu_device.count_gpus()
    if tuple(texts) == tuple(default):
        return parse_models(DEFAULT_GPU_MODELS)
    here = {text for text in texts if text == forkjoin.SERIAL.name or text.startswith("gpu_")}
    return parse_models(text if text in here else f"gpu_{text}" for text in texts)


def describe_models() -> str:
    """List models and their options in one line, for help pages."""
    parts = []
    for name in (name for name, model in MODELS.items() if model.is_built):
        options = [
            f"{option}={'|'.join(field.choices) or ('N' if field.kind is int else 'PATH')}"
            for option, field in MODELS[name].fields.items()
        ]
        parts.append(f"{name} ({', '.join(options)})" if options else name)
    parts.append(
        f"tasking (creation={'|'.join(CREATIONS)}, barrier={'|'.join(BARRIERS)}, placement={'|'.join(PLACEMENTS)}): "
        f"the task model that these switches make"
    )
    parts.append(
        f"{REFERENCE}: all forms of forkjoin, every schedule and OpenMP library, the fastest of which is the reference;"
        f" {OUTSIDE}: all runtimes of others that are built in"
    )
    return "; ".join(parts)


AGAIN = "again"


@total_ordering
class ModelSpec:
    """A model with its options. It equals its canonical text, by which tables can be searched: options in the records'
    order, defaults left out. Specs are in the order of `MODELS`, plain ones before their variants.

    Attributes
    ----------
    model : ExecutionModel
    options, binding : Record
        Of the model's types.
    again : int
        Above 0: a further contestant of the same model, written `again=1`, with which the model is compared (A/A).
    chosen : dict
        Options that differ from their defaults.
    rank : tuple
        Sort key.
    """

    def __init__(self, model: ExecutionModel, options: Any, binding: Any, again: int = 0):
        self.model, self.options, self.binding, self.again = model, options, binding, again
        self.chosen = {**options.differences(), **binding.differences()}
        written = {**self.chosen, AGAIN: again} if again else self.chosen
        texts = (f"{name}={value}".replace(":", "::") for name, value in written.items())
        self._text = ":".join([model.name, *texts])
        self.rank = ([*MODELS, model.name].index(model.name), len(written), self._text)

    def __str__(self) -> str:
        return self._text

    __repr__ = __str__

    def __format__(self, form: str) -> str:
        return format(self._text, form)

    def __hash__(self) -> int:
        return hash(self._text)

    def __eq__(self, other: object) -> bool:
        return self._text == str(other) if isinstance(other, ModelSpec | str) else NotImplemented

    def __lt__(self, other: ModelSpec) -> bool:
        return self.rank < other.rank

    def __reduce__(self) -> tuple:
        return read_model, (self._text,)

    def is_far_behind(self, threads: int) -> bool:
        """Return whether one round of long steps, in the first generation alone, is enough on these threads."""
        return self.model.far_behind and threads > 1

    def with_options(self, **changes: Any) -> ModelSpec:
        """Return the model with other options of the executor."""
        return ModelSpec(self.model, self.options.with_changes(**changes), self.binding, self.again)

    def option(self, name: str, default: Any = None) -> Any:
        """Return the value of an option of the executor; `default` for a model without it."""
        return getattr(self.options, name, default)

    @property
    def name(self) -> str:
        """Name of the model, without options."""
        return self.model.name

    @property
    def is_serial(self) -> bool:
        """Whether it is the run with which speedups compare."""
        return self.model is forkjoin.SERIAL

    @property
    def is_gpu(self) -> bool:
        """Whether it computes on a GPU."""
        return self.model.is_gpu

    @property
    def is_peer(self) -> bool:
        """Whether it is another program, with kernels of its own."""
        return self.model.is_peer

    @property
    def binds_on_gpu(self) -> bool:
        """Whether its plans are bound for a GPU; another program takes data and weights from the host."""
        return self.is_gpu and not self.is_peer

    @property
    def takes_tasks(self) -> bool:
        """Whether it is a task model of the CPU."""
        return self.model.runs_tasks and not self.is_gpu

    @property
    def repeated(self) -> ModelSpec:
        """The model that a second contestant repeats."""
        return ModelSpec(self.model, self.options, self.binding)

    @property
    def barrier(self) -> str:
        """The point at which the model waits: "loop", "phase", "iteration" or "none"."""
        barrier = self.option("taskwait", self.option("barrier", self.model.barrier))
        return "iteration" if barrier == "needed" else barrier  # the one that stands in every plan


def _split(text: str) -> tuple[str, list[str]]:
    """Return the name of a model, and its options. After the name each part has a "="; names of the user's own models
    have two parts, of which the first is none of `MODELS`."""
    name, *pairs = text.split(":")
    return (name, pairs) if name in MODELS or name == "tasking" else split_spec(text)


@cache
def parse_model(text: str) -> ModelSpec:
    """Parse `name[:option=value]*`; `tasking` with creation=, barrier= and placement= is the task model they make. A
    colon in a value is written twice. Other names are of the user's own: `lib:FILE.so`, `module:OBJECT`,
    `file.py:OBJECT`, or an installed package's.

    Results may be of a model that this installation was built without; see `runnable`. Raises `UsageError`: unknown
    model, option or value, an option given twice, or options that exclude each other.
    """
    name, pairs = _split(text.strip().replace("::", "\0"))
    pairs = [pair.replace("\0", ":") for pair in pairs]
    if name == "tasking":
        name, *pairs = _by_factors(pairs, text)
    model = MODELS.get(name) or own_model(name)
    if model is None:
        known = [name for name, model in MODELS.items() if model.is_built]
        raise UsageError(
            f"no model is called {name!r}; known: {', '.join(known)}{did_you_mean(name, known)}; or name one of your "
            f"own as lib:FILE.so or module:OBJECT"
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
    options, binding = (record(**fields_of(record, given)) for record in (model.options, model.binding))
    return ModelSpec(model, options, binding, again)


@cache
def read_model(text: str) -> ModelSpec:
    """Return the model that a text of a file names; one that this installation does not know has its name and options
    as they stand there, and cannot run. Raises `UsageError`: the text does not have the form of a model's."""
    try:
        return parse_model(text)
    except UsageError:
        name, pairs = _split(text)
        if not (re.fullmatch(r"[\w./-]+(:[^:]+)?", name) and all(re.fullmatch(r"[a-z]\w*=[^:=]+", p) for p in pairs)):
            raise
    written = dict(pair.split("=") for pair in pairs)
    values: dict[str, Any] = {key: int(value) if value.isdecimal() else value for key, value in written.items()}
    again = values.pop(AGAIN, 0)
    annotations = {key: Annotated[type(value), about("not known here")] for key, value in values.items()}
    defaults = {key: "" if isinstance(value, str) else -1 for key, value in values.items()}
    record = type(Record)("Unknown", (Record,), {"__annotations__": annotations, **defaults}, frozen=True)
    model = ExecutionModel(name, "", record, device="gpu" if name.startswith("gpu_") else "cpu")
    return ModelSpec(MODELS.get(name, model), record(**values), model.binding(), again)


def model_in_file(_: type, text: Any) -> ModelSpec:
    """Return the model that a text of a file names; a `dec_hook` of msgspec. Raises `ValueError`: something else than a
    model, or its text."""
    if not isinstance(text, ModelSpec | str):
        raise ValueError(f"a model must be named by a text, got {text!r:.60}")
    return text if isinstance(text, ModelSpec) else read_model(text)


def runnable(spec: ModelSpec | str) -> ModelSpec:
    """Return a model that is about to run, parsed. Raises `UsageError`: this installation was built without it."""
    spec = parse_model(str(spec))
    if spec.model.is_call and not (spec.option("call") or spec.option("command")):
        raise UsageError(
            f"model {spec.name!r} must name what is called, got {str(spec)!r}; compare functions and programs by "
            f"--function and --program"
        )
    if not spec.model.is_built:
        if lack := spec.model.lacking_package():
            package = spec.model.package
            raise UsageError(f"model {spec.name!r} needs {package}, {lack}; pip install '{package}'")
        raise UsageError(
            f"forktask must be built with the library of model {spec.name!r}, and was built without; install the "
            f"library (forkjoin/README.md), then forktask again, or take one of {', '.join(built_models())}"
        )
    for variable, pattern in spec.model.clashes.items():
        if re.search(pattern, value := os.environ.get(variable, "")):
            raise UsageError(
                f"model {spec.name!r} must run on the CPU with as many threads as the others, and {variable}={value} "
                f"changes that; unset it, or leave the model out"
            )
    return spec


SERIAL, PERSISTENT = _spec(forkjoin.SERIAL), _spec(forkjoin.FORKJOIN, region="persistent")
TASKGRAPH, TASKITER = _spec(tasking.TASKGRAPH), _spec(tasking.TASKITER)


def forkjoin_forms() -> tuple[ModelSpec, ...]:
    """Return what `REFERENCE` stands for: fork-join in both regions, with every schedule, some sizes of what dynamic
    and guided hand out, under each OpenMP library that is found; persistent regions with a tree as their barrier,
    whose schedules hand out their own number; static shares by place, with needed barriers alone, and with libomp's
    distributed one."""
    options = {name: forkjoin.FORKJOIN.fields[name].choices for name in ("region", "schedule", "runtime", "join")}
    result = []
    for *values, chunk in itertools.product(*options.values(), CHUNKS):
        region, schedule, runtime, join = values
        if (join != "omp" and region == "loop") or (chunk and (join != "omp" or schedule == "static")):
            continue
        if join == "dist" and (runtime, schedule) != ("libomp", "static"):
            continue
        shares = (region, schedule, join) == ("persistent", "static", "omp")
        orders = itertools.product(("plan", "place"), ("loop", "needed")) if shares else [("plan", "loop")]
        for order, barrier in orders:
            form = dict(zip(options, values, strict=True))
            spec = _spec(forkjoin.FORKJOIN, **form, order=order, barrier=barrier, chunk_size=chunk)
            if not refusals([partial(process_environment, spec)]):
                result.append(spec)
    return tuple(result)


def outside_models() -> tuple[ModelSpec, ...]:
    """Return what `OUTSIDE` stands for: the outside runtimes that this installation was built with, in each of their
    constructs."""
    result = (MODELS[name] for name in built_models())
    chosen = [model for model in result if model.is_reference and not model.far_behind]
    constructs = {model: getattr(model.fields.get("construct"), "choices", ()) for model in chosen}
    return tuple(
        spec
        for model in chosen
        for spec in ([_spec(model, construct=each) for each in constructs[model]] or [_spec(model)])
    )


def parse_models(texts: Iterable[ModelSpec | str]) -> tuple[ModelSpec, ...]:
    """Return models that are about to run, `REFERENCE` and `OUTSIDE` as what they stand for; the same twice counts
    once."""
    several = {REFERENCE: forkjoin_forms, OUTSIDE: outside_models}
    each = [several[text]() if text in several else (runnable(text),) for text in texts]
    specs = tuple(dict.fromkeys(itertools.chain.from_iterable(each)))
    if not specs:
        raise UsageError("at least one model must be named, got none; try serial,forkjoin,taskiter")
    return specs


def check_ours(specs: Sequence[ModelSpec]) -> Sequence[ModelSpec]:
    """Return models whose blocks can be logged or trained with. Raises `UsageError`: one of them is another
    program, with kernels of its own."""
    for spec in specs:
        if spec.is_peer:
            raise UsageError(f"{spec} is another program, whose time alone can be compared; use it in compare or run")
    return specs


def process_environment(spec: ModelSpec) -> dict[str, str]:
    """Return environment variables for a process that runs this model: the runtime to preload, if any, and its barrier.
    Raises `UsageError`: LLVM's libomp was asked for and is not installed."""
    if spec.model is forkjoin.OMPSS2 and spec.model.is_built:  # which has loaded the library that it was built with
        with open("/proc/self/maps") as maps:
            return {"LD_PRELOAD": next(line.split()[-1] for line in maps if "/libnosv" in line)}
    if spec.option("runtime") == "libgomp" and BUILD["compiler"] == "clang":
        raise UsageError(
            f"model {spec} needs libgomp, but forktask was built with clang; add :runtime=libomp, or build with gcc"
        )
    if spec.option("runtime", "libgomp") == "libgomp":
        return {}
    folders = ("/usr/lib/*-linux-gnu", "/usr/lib/llvm-*/lib", "/usr/lib64", "/usr/lib", "/usr/local/lib")
    result = [path for folder in folders for path in sorted(glob.glob(f"{folder}/libomp.so*"), reverse=True)]
    if not result:
        raise UsageError(f"model {spec} needs LLVM's libomp.so, found none in {', '.join(folders)}; install libomp5")
    return {"LD_PRELOAD": result[0]} | (forkjoin.DIST_BARRIER if spec.option("join") == "dist" else {})


def counts_for(spec: ModelSpec, requested: Sequence[int]) -> Sequence[int]:
    """Return the numbers of threads, of those asked for, on which a model runs; one of a single thread runs on one."""
    limit = spec.model.max_threads
    return requested if limit is None else (limit,)


def check_counts(specs: Sequence[ModelSpec], requested: Sequence[int]) -> Sequence[int]:
    """Return numbers of threads that were asked for by name, if some model runs on the largest. Raises `UsageError`:
    all models run on fewer threads."""
    if max(requested) > 1 and all(spec.model.max_threads == 1 for spec in specs):
        raise UsageError(
            f"{' and '.join(spec.name for spec in specs)} must run on one thread, got {max(requested)} threads; ask "
            f"for 1, or name a model of several threads, such as "
            f"{'gpu_both' if any(spec.is_gpu for spec in specs) else 'forkjoin'}"
        )
    return requested


def make_executor(spec: ModelSpec | str, num_threads: int, *, cpus: list[int] | None = None, event_capacity: int = 0):
    """Make an executor of the model, a context manager with `prepare`, `run` and `close`. `cpus`: logical CPU of each
    thread, and more that the process may use; None: do not pin; `event_capacity`: events that each worker can log; 0:
    no log."""
    spec = runnable(spec)
    check_counts([spec], [num_threads])
    options = spec.options.differences()
    cpus = None if cpus is None else cpus[:num_threads]
    if spec.model.runs_tasks and cpus is not None and num_threads > 2:  # two have no choice whom to steal from
        options["places"] = places_of(cpus)
    return spec.model.executor_class()(num_threads, cpus=cpus, event_capacity=event_capacity, **options)


def describe_gpu_convolutions(conv: str) -> str:
    """Say in one line what `convolution_for` returns for an option on a GPU."""
    return f"convolutions on the GPU: {'direct (what auto means there)' if conv == 'auto' else conv}"


def convolution_for(spec: ModelSpec | str, conv: str) -> str:
    """Return the convolution algorithm that `lower` gets; "auto" suits the device. Raises `UsageError`: an algorithm
    without a CUDA kernel, on a GPU."""
    spec = runnable(spec)
    if not spec.binds_on_gpu:
        return conv
    forms = ("auto", "direct", *FORMS_OF_A_PORT)
    if conv not in forms:
        raise UsageError(f"convolutions on a GPU must be one of {', '.join(forms)}, got --conv {conv}; leave it out")
    return "direct" if conv == "auto" else conv


def options_for(spec: ModelSpec | str, conv: str, granularity: str) -> dict[str, str]:
    """Return the options that `lower` gets where they suit the device: see `convolution_for`, which holds for all
    convolutions of a GPU; where only streams of it run a plan, a granularity by cost is "device". Raises `UsageError`:
    what `convolution_for` refuses."""
    spec = runnable(spec)
    whole = spec.binds_on_gpu and not spec.model.mixes_devices
    conv = convolution_for(spec, conv)
    by_cost = Granularity.parse(granularity).is_auto
    suited = {"conv": conv, "granularity": "device" if whole and by_cost else granularity}
    return {**suited, "algorithms": ""} if spec.binds_on_gpu else suited


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

    spec = runnable(spec)
    storage = storage_for(spec) if storage is None else storage
    if not spec.binds_on_gpu:
        return bind(plan, storage)
    from ...cython_src.gpu.bind import GpuBoundPlan

    options, device = spec.binding, gpu_device.default_gpu()
    return GpuBoundPlan(plan, storage, device, options.products, options.epilogues, advice=advice)


def storage_for(spec: ModelSpec | str, homes: Sequence[int] = ()):
    """Make a storage for plans of a model: in ordinary memory, which is touched first on `homes`, or of the kind that a
    GPU model asks for."""
    from ...cython_src.binding.storage import Storage

    spec = runnable(spec)
    if not spec.binds_on_gpu:
        return Storage(homes=homes)
    from ...cython_src.gpu.bind import device_storage

    return device_storage(gpu_device.default_gpu(), spec.binding.memory)


def keep_device(models: Iterable[ModelSpec | str], device: str | None) -> tuple[ModelSpec, ...]:
    """Return the models that run on a device; None: all. Raises `UsageError`: none of them does."""
    specs = parse_models(models)
    kept = tuple(spec for spec in specs if device in (None, spec.model.device))
    if not kept:
        remedy = "that takes a machine with a GPU" if device == "cpu" else "leave it out"
        named = ", ".join(map(str, specs))
        raise UsageError(f"--device must leave a model, but none of {named} is for {device}; {remedy}")
    return kept
