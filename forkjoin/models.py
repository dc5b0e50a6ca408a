"""Descriptions of the models whose executors run loops, and of the outside references; nothing is imported for them."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from ..cython_src.binding.execution_model import ExecutionModel
from ..cython_src.errors import UsageError
from ..cython_src.gpu.options import GpuOptions, Launching
from ..cython_src.records import Record, about

TASKWAIT = about("where the creating thread waits for all tasks", choices=("none", "loop", "phase", "iteration"))
# Environment variables by which libomp takes its distributed barrier, for all of its barriers or none.
DIST_BARRIER = {f"KMP_{kind}_BARRIER_PATTERN": "dist,dist" for kind in ("PLAIN", "FORKJOIN", "REDUCTION")}
_RUNTIME = about("the OpenMP library; `libomp` is preloaded", choices=("libgomp", "libomp"))


class ForkJoinOptions(Record):
    """Options of `forkjoin`."""

    region: Annotated[
        str,
        about(
            "`loop`: Cython's `prange`, a parallel region for each loop; `persistent`: one for the run, one barrier "
            "per loop",
            choices=("loop", "persistent"),
        ),
    ] = "loop"
    schedule: Annotated[
        str, about("how a loop's blocks get to threads: OpenMP's `schedule`", choices=("static", "dynamic", "guided"))
    ] = "static"
    chunk_size: Annotated[
        int, about("blocks handed out at once; 0: the schedule's own number", least=0, below=1 << 31)
    ] = 0
    join: Annotated[
        str,
        about(
            "the barrier after a loop of a persistent region: `omp`, the OpenMP library's; `tree`, in which four "
            "neighbours meet, then four such groups, and so on; `dist`, libomp's distributed barrier, whose threads "
            "have flags of their own (LLVM 13)",
            choices=("omp", "tree", "dist"),
        ),
    ] = "omp"
    order: Annotated[
        str,
        about(
            "order in which a persistent region's schedule counts the blocks of a loop: `plan`, as the plan does; "
            "`place`, each one near the blocks of earlier loops whose results it uses, so that a static schedule "
            "gives a thread its own data",
            choices=("plan", "place"),
        ),
    ] = "plan"
    barrier: Annotated[
        str,
        about(
            "`needed`: in a persistent region with static shares threads wait only where a block depends on another "
            "thread's, and after an iteration",
            choices=("loop", "needed"),
        ),
    ] = "loop"
    runtime: Annotated[str, _RUNTIME] = "libgomp"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value, other, needed in (
            ("join", "tree", "region", "persistent"),
            ("join", "dist", "region", "persistent"),
            ("join", "dist", "runtime", "libomp"),
            ("order", "place", "region", "persistent"),
            ("barrier", "needed", "region", "persistent"),
            ("barrier", "needed", "schedule", "static"),
        ):
            if getattr(self, name) == value and (got := getattr(self, other)) != needed:
                raise UsageError(f"{name}={value} needs {other}={needed}, got {other}={got}; add {other}={needed}")


class OpenMPTasksOptions(Record):
    """Options of `openmp_tasks`."""

    taskwait: Annotated[str, TASKWAIT] = "none"
    runtime: Annotated[str, _RUNTIME] = "libgomp"


class TBBOptions(Record):
    """Options of `tbb`."""

    construct: Annotated[
        str,
        about(
            "`graph`: threads without work may leave between iterations; `phase`: each run is a parallel phase, in "
            "which they stay (oneTBB 2023)",
            choices=("graph", "phase"),
        ),
    ] = "graph"


def _check_no_taskwait(options: StarPUOptions | OmpSs2Options) -> None:
    if options.taskwait != "none":
        raise UsageError(
            f"taskwait must be none with construct={options.construct}, which has no barrier, got {options.taskwait}; "
            f"use construct=tasks"
        )


class StarPUOptions(Record):
    """Options of `starpu`."""

    scheduler: Annotated[
        str,
        about(
            "StarPU's policy: which worker gets a ready task; `dmda` and `dmdas` use the durations of a loop's blocks "
            "so far, which StarPU keeps below STARPU_HOME",
            choices=("lws", "eager", "ws", "prio", "dmda", "dmdas"),
        ),
    ] = "lws"
    taskwait: Annotated[str, TASKWAIT] = "none"
    construct: Annotated[
        str,
        about(
            "`tasks`: created anew in each iteration; `tags`: made once, with tags for their dependences, and repeated "
            "without a barrier",
            choices=("tasks", "tags"),
        ),
    ] = "tasks"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.construct == "tags":
            _check_no_taskwait(self)


class OmpSs2Options(Record):
    """Options of `ompss2`."""

    construct: Annotated[
        str,
        about(
            "`taskiter`: tasks of one iteration are created once in a run, and repeated without a barrier; `tasks`: "
            "created anew in each iteration",
            choices=("taskiter", "tasks"),
        ),
    ] = "taskiter"
    taskwait: Annotated[str, TASKWAIT] = "none"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.construct == "taskiter":
            _check_no_taskwait(self)


class GpuStreamOptions(Record):
    """Options of `gpu_stream`."""

    launch: Launching = "plain"


class HostLoadOptions(Record):
    """Options of `gpu_hostload`."""

    copies: Annotated[
        str,
        about(
            "`prefetch`: the next step's input is loaded and copied while the device computes; `synchronous`: the host "
            "waits for the copy and the step",
            choices=("prefetch", "synchronous"),
        ),
    ] = "prefetch"


def _reference(name: str, executor: str, library: str, *options: type[Record], **described: Any) -> ExecutionModel:
    """Describe a model that leaves plans to another library."""
    executor, library = f".forkjoin.outside_executors:{executor}", f".forkjoin.{library}"
    return ExecutionModel(name, executor, *options, library=library, runs_tasks=True, is_reference=True, **described)


_gpu = partial(ExecutionModel, device="gpu", binding=GpuOptions, max_threads=1)

SERIAL = ExecutionModel(
    "serial",
    ".forkjoin.executor:SerialExecutor",
    barrier="loop",
    max_threads=1,
    logs_waiting=True,
    colors=("0.2",),
    markers="8",
)
FORKJOIN = ExecutionModel(
    "forkjoin",
    ".forkjoin.executor:ForkJoinExecutor",
    ForkJoinOptions,
    says="all threads wait for one another after each operation",
    barrier="loop",
    colors=("blue", "sky"),
    markers="osph8",
)
JOBLIB = ExecutionModel(
    "joblib",
    ".forkjoin.executor:JoblibExecutor",
    says="all threads wait for one another after each operation, by Python's joblib",
    barrier="loop",
    is_reference=True,
    far_behind=True,
    colors=("0.55",),
    markers="XP",
)
OPENMP_TASKS = _reference(
    "openmp_tasks", "OpenMPTasksExecutor", "openmp_tasks", OpenMPTasksOptions, colors=("brown",), markers="X"
)
TBB = _reference(
    "tbb", "TBBExecutor", "tbb_flow", TBBOptions, barrier="iteration", records=True, colors=("purple",), markers="PX"
)
TASKFLOW = _reference("taskflow", "TaskflowExecutor", "taskflow_flow", barrier="iteration", records=True, markers="p")
STARPU = _reference("starpu", "StarPUExecutor", "starpu_tasks", StarPUOptions, colors=("#882255",), markers="X")
OMPSS2 = _reference("ompss2", "OmpSs2Executor", "ompss2_tasks", OmpSs2Options, colors=("0.35", "0.6"), markers="hd")
# A model of a GPU looks like its twin on the CPU, if it has one.
GPU_FORKJOIN = _gpu("gpu_forkjoin", ".forkjoin.gpu_executor:GpuForkJoinExecutor", barrier="loop")
GPU_STREAM = _gpu(
    "gpu_stream", ".forkjoin.gpu_executor:GpuStreamExecutor", GpuStreamOptions, colors=("purple",), markers="<"
)
GPU_HOSTLOAD = _gpu(
    "gpu_hostload",
    ".forkjoin.gpu_transfers:GpuHostLoadExecutor",
    HostLoadOptions,
    moves_data=True,
    colors=("brown",),
    markers="Pp",
)
