"""Descriptions of the models whose executors run tasks by their dependences; nothing is imported for them."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from ..cython_src.binding.execution_model import ExecutionModel
from ..cython_src.errors import UsageError
from ..cython_src.gpu.options import GpuOptions, Launching
from ..cython_src.records import Record, about

MOST_UNROLL = 1024


# Options that several models have.
_Placement = Annotated[
    str,
    about(
        "`partitioned`: one compiled program for each worker, from which idle workers claim tasks; `stealing`: a deque "
        "for each worker",
        choices=("stealing", "partitioned"),
    ),
]
_Priority = Annotated[
    str,
    about(
        "which ready task goes first. `newest`: its data are in the cache; `auto`: the same, or in programs the one "
        "with the longest path to the end of the iteration where a simulated run is clearly shorter then",
        choices=("auto", "newest"),
    ),
]
_Streams = Annotated[int, about("streams used, at most", least=1)]


class TasksOptions(Record):
    """Options of `tasks`."""

    taskwait: Annotated[
        str, about("where the creating thread waits for all tasks", choices=("loop", "phase", "iteration", "none"))
    ] = "iteration"
    window: Annotated[
        int,
        about(
            "tasks alive at once; when there are as many, the creator helps to execute", least=1, below=(1 << 24) + 1
        ),
    ] = 1024


class TaskGraphOptions(Record):
    """Options of `taskgraph`."""

    barrier: Annotated[
        str,
        about(
            "where the recorded graph has a barrier; without any it is `taskiter`",
            choices=("loop", "phase", "iteration"),
        ),
    ] = "iteration"
    placement: _Placement = "partitioned"
    priority: _Priority = "auto"


class TaskIterOptions(Record):
    """Options of `taskiter`."""

    placement: _Placement = "partitioned"
    priority: _Priority = "auto"
    unroll: Annotated[
        int,
        about(
            "iterations that the recorded graph holds; any number may be run, the rest from a graph of one",
            least=1,
            below=MOST_UNROLL + 1,
        ),
    ] = 1
    slots: Annotated[
        int,
        about(
            "copies of each input buffer, used alternately by unrolled iterations: loading runs ahead",
            least=1,
            below=MOST_UNROLL + 1,
        ),
    ] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.slots > self.unroll:
            raise UsageError(
                f"slots must not exceed unroll, which is {self.unroll}, got {self.slots}; use unroll={self.slots}"
            )


class GpuTasksOptions(Record):
    """Options of `gpu_tasks`."""

    taskwait: Annotated[str, about("where the host waits for all launches", choices=("iteration", "none"))] = (
        "iteration"
    )
    streams: _Streams = 8


class GpuTaskGraphOptions(Record):
    """Options of `gpu_taskgraph`."""

    streams: _Streams = 8
    launch: Launching = "plain"


class GpuTaskIterOptions(Record):
    """Options of `gpu_taskiter`."""

    unroll: Annotated[int, about("iterations in one captured graph", least=1, below=MOST_UNROLL + 1)] = 4
    streams: _Streams = 8
    launch: Launching = "plain"


class GpuBothOptions(Record):
    """Options of `gpu_both`."""

    split: Annotated[int, about("tasks of a loop, at most", least=1)] = 4
    host: Annotated[int, about("of the `split` tasks of a loop those that run on the host", least=0)] = 1


_own = partial(ExecutionModel, runs_tasks=True, logs_waiting=True)
_gpu = partial(ExecutionModel, runs_tasks=True, device="gpu", binding=GpuOptions, max_threads=1)

TASKS = _own(
    "tasks",
    ".tasking.executor:TasksExecutor",
    TasksOptions,
    says="a piece starts once the pieces whose results it reads are done; each step lists them anew",
    first_creates=True,
    colors=("orange",),
    markers="^>H",
)
TASKGRAPH = _own(
    "taskgraph",
    ".tasking.executor:TaskGraphExecutor",
    TaskGraphOptions,
    says="a piece starts once the pieces whose results it reads are done; their order is recorded once",
    records=True,
    colors=("green",),
    markers="Dd",
)
TASKITER = _own(
    "taskiter",
    ".tasking.executor:TaskIterExecutor",
    TaskIterOptions,
    says="the order is recorded once, and pieces of the next step start before this one has ended",
    records=True,
    closes=True,
    colors=("red",),
    markers="v<h",
)
# A model of a GPU looks like its twin on the CPU, if it has one.
GPU_TASKS = _gpu("gpu_tasks", ".tasking.gpu_executor:GpuTasksExecutor", GpuTasksOptions)
GPU_TASKGRAPH = _gpu(
    "gpu_taskgraph", ".tasking.gpu_executor:GpuTaskGraphExecutor", GpuTaskGraphOptions, barrier="iteration"
)
GPU_TASKITER = _gpu("gpu_taskiter", ".tasking.gpu_executor:GpuTaskIterExecutor", GpuTaskIterOptions)
GPU_BOTH = _gpu(
    "gpu_both",
    ".tasking.gpu_both:GpuBothExecutor",
    GpuBothOptions,
    max_threads=None,
    moves_data=True,
    mixes_devices=True,
    reproducible=False,
    colors=("#882255",),
    markers="P",
)
