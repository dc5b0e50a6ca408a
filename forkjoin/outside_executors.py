"""The plan in other libraries, by the interface of outside.h: OpenMP tasks, oneTBB, Taskflow, StarPU and OmpSs-2, as
outside references, and libraries of the user's own.

OpenMP's compiled code runs on any runtime with GCC's interface. LLVM's libomp has it: start the process with LD_PRELOAD
naming libomp.so (Debian: libomp5, libomp-dev), and ask for `runtime="libomp"`, which refuses to run on anything else.
"""

from __future__ import annotations

import errno as errors_of_system
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from ..cython_src.affinity import usable_cpus
from ..cython_src.binding.execution_model import Conduct
from ..cython_src.errors import MachineError, UsageError
from ..cython_src.plan.barriers import barrier_after
from ..cython_src.plan.dependences import record_graph
from .executor import OPENMP, ForkGuard, LoopExecutor, check_runtime, check_team, enter_openmp, openmp_conduct
from .models import OMPSS2, OPENMP_TASKS, STARPU, TASKFLOW, TBB
from .outside_runs import NOT_STARTED, OutsideRuns, describe_library

LOOKS_FOR_SIGNALS_NS = 20_000_000  # a caller that waits
# OmpSs-2 keeps its tasks in a file of /dev/shm, up to this size in what was tried.
SHARED_MEMORY_BYTES = 160 << 20


class OutsideExecutor(LoopExecutor):
    """Base of executors that leave a plan to another library, whose threads start when a plan is prepared."""

    guard: ClassVar[ForkGuard]
    _runs: OutsideRuns | None = None

    def _prepare(self, bound) -> None:
        self.guard.enter()
        self._make(bound)

    def _make(self, bound) -> None:
        super()._prepare(bound)
        address = self._library_address()
        self._library = describe_library(address)
        takes = self._library["takes"]
        waits = barrier_after(bound.plan, self.options.taskwait) if takes == "tasks" else None
        graph = record_graph(bound.plan.accesses, closed=takes == "closed graph") if "graph" in takes else None
        options = {name: str(value) for name, value in self.options.as_dict().items()}
        self._runs = OutsideRuns(
            bound, self._workers, self.cpus, address, wait_after=waits, graph=graph, options=options
        )
        if self._runs.team_size != NOT_STARTED:
            self._check_team(self._runs.team_size)

    def _library_address(self) -> int:
        return self.about.library_address()

    def _check_team(self, team_size: int) -> None:
        """Raise `MachineError` if another number of threads than requested has started."""
        if team_size != self.num_threads:
            raise MachineError(
                f"{self.guard.library} must run {self.num_threads} threads but did not start so many within seconds; "
                f"use fewer"
            )

    def _run_loops(self, bound, first_replay, num_replays, poll_signals):
        self.guard.enter()
        result = self._runs.run(first_replay, num_replays, poll_signals)
        self._check_team(self._runs.team_size)
        return result

    def _forget(self) -> None:
        if self._runs is not None:
            if self._pid == os.getpid():
                self._runs.close()
            else:
                self._runs.abandon()
        self._runs = None

    def _conduct(self, **conduct: Any) -> Conduct:
        pinned = "no" if self.cpus is None else "at start"
        about = {"threads_start": "prepare", "pinned": pinned, "release": self._library["release"]}
        return Conduct(**{"caller_executes": False, **about} | conduct)


class LibraryExecutor(OutsideExecutor):
    """Runtime of a library of the user's own, loaded from its file."""

    def __init__(self, num_threads: int, **settings: Any):
        super().__init__(num_threads, **settings)
        self.guard = _guards.setdefault(self.model, ForkGuard(self.model))  # type: ignore[misc]

    def _make(self, bound) -> None:
        try:
            super()._make(bound)
        except OSError as error:
            raise RuntimeError(
                f"prepare() of {self.model} must return a session, got NULL ({error.strerror})"
            ) from None

    def _check_team(self, team_size: int) -> None:
        if team_size != self.num_threads:
            number = "did not set team_size" if team_size == NOT_STARTED else f"started {team_size}"
            raise MachineError(f"{self.model} must run {self.num_threads} threads but {number}; look at its prepare()")

    def conduct(self) -> Conduct:
        """Return what this executor does besides running blocks, as far as its library says so."""
        return self._conduct(
            caller_executes=self._library["caller_executes"], idle_runtime=Path(self.about.library).stem
        )


_guards: dict[str, ForkGuard] = {}


class OpenMPTasksExecutor(OutsideExecutor):
    """`#pragma omp task depend(...)` for each block, over the plan's cells, created anew in each iteration.

    Notes
    -----
    With `taskwait=none` iterations overlap as far as their dependences let them. `prepare` refuses a plan where this
    process has loaded another OpenMP runtime than the one asked for. The calling thread looks for signals, when it
    creates or runs a task.
    """

    about = OPENMP_TASKS

    guard = OPENMP

    def _prepare(self, bound) -> None:
        check_runtime(self.options.runtime)
        self._make(bound)

    def conduct(self) -> Conduct:
        return openmp_conduct(self._pinned())

    def _run_loops(self, bound, first_replay, num_replays, poll_signals):
        enter_openmp()
        return super()._run_loops(bound, first_replay, num_replays, poll_signals)

    def _check_team(self, team_size: int) -> None:
        check_team(team_size, self.num_threads)


class TBBExecutor(OutsideExecutor):
    """A continue_node for each task and join, made once; each iteration starts the roots and waits for the graph.

    Notes
    -----
    `prepare` raises MachineError where the library does not start as many threads as asked for.
    The calling thread is one of `num_threads`; it looks for signals when it runs a task and between iterations.
    """

    about = TBB
    guard = ForkGuard("oneTBB")

    def _make(self, bound) -> None:
        try:
            super()._make(bound)
        except OSError as error:
            if error.errno != errors_of_system.ENOTSUP:
                raise
            raise UsageError(
                "construct=phase needs oneTBB 2023, and forktask was built with an older one; leave it out"
            ) from None

    def conduct(self) -> Conduct:
        # oneTBB's threads are pinned when they enter the arena, the caller for each run.
        return self._conduct(caller_executes=True, pinned=self._pinned(), idle_runtime="onetbb")


class TaskflowExecutor(OutsideExecutor):
    """A static task of a Taskflow for each task; see `TBBExecutor`.

    Notes
    -----
    The calling thread executes no block: it waits, and looks for signals every 20 ms.
    """

    about = TASKFLOW
    guard = ForkGuard("Taskflow")

    def conduct(self) -> Conduct:
        return self._conduct(caller_wakes_ns=LOOKS_FOR_SIGNALS_NS, idle_runtime="taskflow")


# StarPU starts once in a process, with these settings, for executors that have the same.
_open: set[StarPUExecutor] = set()


class StarPUExecutor(OutsideExecutor):
    """A StarPU task for each block: created anew in each iteration, with a data handle for each of the plan's cells; or
    made once, with tags for the dependences of an iteration and of the next one on it.

    Notes
    -----
    The calling thread executes no block: it creates tasks, at most one iteration ahead, or waits. StarPU is started by
    the first executor of a process that is prepared, and ended when the last one is closed. In the meantime `prepare`
    refuses executors with another number of threads, other CPUs, scheduler or construct. The calling thread looks for
    signals between loops, or every 20 ms.
    """

    about = STARPU
    guard = ForkGuard("StarPU")

    def _make(self, bound) -> None:
        for other in _open:
            if other._settings() != self._settings():
                raise MachineError(
                    "StarPU runs once in a process, and another executor has it running with other settings (threads, "
                    "CPUs, scheduler, construct); close that one first"
                )
        # StarPU reads these variables once. Its own messages would stand among those of the measurement.
        os.environ.setdefault("STARPU_SILENT", "1")
        # It would pin each worker to a core of its own choice; `cpus` says where each belongs, or that none is pinned.
        os.environ["STARPU_WORKERS_NOBIND"] = "1"
        try:
            super()._make(bound)
        except OSError as error:
            if error.errno == errors_of_system.EINVAL and self.cpus is not None:
                raise UsageError(
                    f"cpus must be CPUs this process may use, got {self.cpus} ({error.strerror})"
                ) from None
            raise RuntimeError(
                f"StarPU must start with {self.num_threads} workers on CPUs but did not ({error.strerror}); use fewer "
                f"threads, and look at variables of the environment that begin with STARPU_"
            ) from None
        _open.add(self)

    def _settings(self):
        return self.num_threads, self.cpus, self.options.scheduler, self.options.construct

    def _library_address(self) -> int:
        library = {"tasks": self.about.library, "tags": ".forkjoin.starpu_cycle"}[self.options.construct]
        return replace(self.about, library=library).library_address()

    def conduct(self) -> Conduct:
        waits = {"caller_wakes_ns": LOOKS_FOR_SIGNALS_NS} if self.options.construct == "tags" else {}
        return self._conduct(idle_runtime="starpu", **waits)

    def _run_loops(self, bound, first_replay, num_replays, poll_signals):
        errno, errors = super()._run_loops(bound, first_replay, num_replays, poll_signals)
        if errno:
            raise RuntimeError(f"StarPU must take every task but refused one ({os.strerror(errno)})")
        return 0, errors

    def _forget(self) -> None:
        super()._forget()
        _open.discard(self)


class OmpSs2Executor(OutsideExecutor):
    """OmpSs-2 tasks over the plan's cells, by NODES on nOS-V: a `taskiter` in each run, or tasks created anew.

    Notes
    -----
    The calling thread executes no block: it waits, and looks for signals every 20 ms. The library starts when the first
    plan of a process is prepared, with one worker on each of its CPUs, and ends with the process.
    """

    about = OMPSS2
    guard = ForkGuard("OmpSs-2")
    _started: ClassVar[list[int] | None] = None  # CPUs of the library's workers in this process

    def __init__(self, num_threads: int, **settings: Any):
        super().__init__(num_threads, **settings)
        if self.cpus is None:  # its workers are always pinned
            self.cpus = usable_cpus()[:num_threads]
        if len(set(self.cpus[:num_threads])) < num_threads:
            raise UsageError(
                f"ompss2 must have a CPU for each thread, got {num_threads} threads and CPUs {self.cpus}; use fewer "
                f"threads"
            )

    def _make(self, bound) -> None:
        cpus = list(self.cpus[: self.num_threads])
        if OmpSs2Executor._started not in (None, cpus):
            raise MachineError(
                f"OmpSs-2 starts once in a process, and runs here on CPUs {OmpSs2Executor._started}, got {cpus}; start "
                f"a new process"
            )
        if "libnosv" not in os.environ.get("LD_PRELOAD", ""):
            raise UsageError(
                "ompss2 must run in a process that preloads nOS-V, got LD_PRELOAD without libnosv.so; set it to "
                "its path"
            )
        if OmpSs2Executor._started is None:
            free = shutil.disk_usage("/dev/shm").free
            if free < SHARED_MEMORY_BYTES:
                raise MachineError(
                    f"OmpSs-2 must have {SHARED_MEMORY_BYTES >> 20} MiB in /dev/shm, got {free >> 20} MiB; "
                    f"enlarge it, as by `docker run --shm-size 1g`"
                )
            os.environ["NOSV_CONFIG_OVERRIDE"] = (
                "topology.binding=inherit,shared_memory.isolation_level=process,turbo.enabled=true"
            )
        super()._make(bound)

    def _check_team(self, team_size: int) -> None:
        OmpSs2Executor._started = list(self.cpus[: self.num_threads])
        if team_size != self.num_threads:
            raise MachineError(
                f"OmpSs-2 must run {self.num_threads} threads but started {team_size}; look at variables of the "
                f"environment that begin with NOSV_, and for a file nosv.toml in this folder"
            )

    def conduct(self) -> Conduct:
        return self._conduct(caller_wakes_ns=LOOKS_FOR_SIGNALS_NS, pinned="at start", idle_runtime="nos-v")
