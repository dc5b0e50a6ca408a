"""Executors that run a plan loop by loop: serial, fork-join with OpenMP, and joblib."""

from __future__ import annotations

import ctypes
import os
import resource
import threading
import time
from abc import abstractmethod
from contextlib import suppress
from typing import Any

import numpy as np

from ..cython_src.affinity import kept_affinity, start_remedy
from ..cython_src.binding.bind import BoundPlan, Workers
from ..cython_src.binding.execution_model import Conduct
from ..cython_src.binding.executor import BaseExecutor
from ..cython_src.errors import MachineError, UsageError
from ..cython_src.plan.barriers import needed_barriers, order_by_place
from .models import DIST_BARRIER, FORKJOIN, JOBLIB, SERIAL
from .serial_loops import EnteredThread, run_serial, touch_scratch

with kept_affinity():
    from .prange_loops import ForkJoinTeam, dynamic_teams, runtime_file

JOBLIB_WAKES_NS = 10_000_000  # how often joblib looks for results
BLOCK_WAIT_S = 0.0005
STOPPED = 1  # status of a block that was left out


class ForkGuard:
    """Notes in which process a library has started threads. They do not survive a fork, but the library's book-keeping
    does: a child would wait for them for ever. `library`: its name, for messages."""

    def __init__(self, library: str):
        self.library = library
        self._process: int | None = None

    def enter(self) -> None:
        """Raise `MachineError` in a process that was forked from one in which the library has started threads."""
        if self._process not in (None, os.getpid()):
            raise MachineError(
                f"threads of {self.library} do not survive a fork, and this process was forked from one that ran them; "
                f"start processes with the method 'spawn'"
            )
        self._process = os.getpid()


OPENMP = ForkGuard("OpenMP")
_TEAM_LIMITS = ("OMP_THREAD_LIMIT", "OMP_MAX_ACTIVE_LEVELS")


def enter_openmp() -> None:
    """Raise `MachineError` where OpenMP cannot run as asked: after a fork, or with teams of any size."""
    OPENMP.enter()
    if dynamic_teams():
        raise MachineError(
            "OMP_DYNAMIC must be off, or OpenMP may run fewer threads than were asked for; unset OMP_DYNAMIC"
        )


def openmp_conduct(pinned: str) -> Conduct:
    """Return the `Conduct` of executors whose threads are OpenMP's."""
    return Conduct(
        caller_executes=True,
        threads_start="first run",
        pinned=pinned,
        idle_runtime=loaded_runtime(),
        wait_policy=os.environ.get("OMP_WAIT_POLICY", ""),
    )


def loaded_runtime() -> str:
    """Return the OpenMP runtime that this process calls: "libgomp", or "libomp", LLVM's or Intel's."""
    return "libgomp" if "libgomp" in runtime_file() else "libomp"


def check_runtime(wanted: str) -> None:
    """Raise `UsageError` if this process calls another OpenMP runtime than the one asked for."""
    if wanted != (loaded := loaded_runtime()):
        remedy = "set LD_PRELOAD to the path of libomp.so"
        if wanted == "libgomp":
            preloaded = "omp" in os.environ.get("LD_PRELOAD", "")
            remedy = "take that out of LD_PRELOAD" if preloaded else "build forktask with gcc"
        raise UsageError(
            f"runtime={wanted} must be the OpenMP runtime that this process calls, which is {loaded} "
            f"({runtime_file()}); name runtime={loaded}, or {remedy}"
        )


def check_team(team_size: int, num_threads: int) -> None:
    """Raise `MachineError` if the team has another number of threads than requested."""
    if team_size != num_threads:
        limits = [f"{name}={os.environ[name]}" for name in _TEAM_LIMITS if name in os.environ]
        unset = f"change {' or '.join(limits)}, or " if limits else ""
        raise MachineError(
            f"OpenMP must run {num_threads} threads but ran {team_size}; {unset}do not call run() from within a "
            f"parallel region"
        )


def check_threads_start(num_threads: int) -> None:
    """Raise `MachineError` unless `num_threads` can live at once; some libraries would end the process instead.

    Starts and ends as many, and an eighth more, since libraries start threads of their own and take memory. That takes
    some 20 us per thread, so it is left out unless there are more threads than CPUs, or address space is limited.
    """
    limited = resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY
    if num_threads <= (1 if limited else os.cpu_count() or 1):
        return
    wanted = num_threads + num_threads // 8 + 1
    c = ctypes.CDLL(None)
    gate = ctypes.create_string_buffer(64)  # a sem_t; threads of Python's own would take memory that stays taken
    c.sem_init(gate, 0, 0)
    threads = (ctypes.c_ulong * wanted)()
    number = ctypes.sizeof(ctypes.c_ulong)
    started = error = 0
    while started < wanted and not error:
        error = c.pthread_create(ctypes.byref(threads, started * number), None, c.sem_wait, gate)
        started += not error
    for _ in range(started):
        c.sem_post(gate)
    for thread in threads[:started]:
        c.pthread_join(ctypes.c_ulong(thread), None)
    if error:
        raise MachineError(
            f"{num_threads} threads must be able to start and leave room, got {started} ({os.strerror(error)}); "
            f"{start_remedy(error)}"
        )


class LoopExecutor(BaseExecutor):
    """Base of executors whose caller executes blocks: binding, turning a stopped run into an exception. The calling
    thread is one of `num_threads`; its own affinity and floating-point control word are restored after each run."""

    def _prepare(self, bound: BoundPlan) -> None:
        self._workers = Workers(self.num_threads, bound.scratch_bytes, self.event_capacity)
        touch_scratch(self._workers, bound.scratch_bytes, self.cpus)
        check_threads_start(self.num_threads)  # now that all memory of theirs is there

    def _run(self, bound: BoundPlan, first_replay: int, num_replays: int) -> None:
        bound.check_unchanged()
        poll_signals = threading.current_thread() is threading.main_thread()
        try:
            errno, errors = self._run_loops(bound, first_replay, num_replays, poll_signals)
        except BaseException:
            bound.discard_failure(self._workers)
            raise
        if errno:
            raise UsageError(f"cpus must be CPUs this process may use, got {self.cpus} ({os.strerror(errno)})")
        if errors:
            bound.discard_failure(self._workers)
            raise errors[0]
        bound.raise_failure(self._workers)

    @abstractmethod
    def _run_loops(self, bound, first_replay, num_replays, poll_signals):
        """Run passes; return (errno of pinning or 0, Python exceptions of signal handlers)."""

    def conduct(self) -> Conduct:
        """Return what this executor does besides running blocks."""
        return Conduct(caller_executes=True, pinned=self._pinned())

    def _pinned(self):
        return "no" if self.cpus is None else "each run"


class SerialExecutor(LoopExecutor):
    """Blocks in plan order on the calling thread, without any runtime: the baseline of every speedup."""

    about = SERIAL

    def _run_loops(self, bound, first_replay, num_replays, poll_signals):
        cpu = -1 if self.cpus is None else self.cpus[0]
        return run_serial(bound, self._workers, first_replay, num_replays, cpu, poll_signals)


class ForkJoinExecutor(LoopExecutor):
    """A parallel loop and a barrier for each block loop, with OpenMP.

    Notes
    -----
    Each thread of the team pins itself and flushes denormals, for the time of the run. How long idle threads spin
    before they sleep is libgomp's: it reads OMP_WAIT_POLICY and GOMP_SPINCOUNT when it is loaded. Whoever measures sets
    them in the environment of the measured process.
    """

    about = FORKJOIN

    def __init__(self, num_threads: int, **settings: Any):
        super().__init__(num_threads, **settings)
        about = self.options
        self._team = ForkJoinTeam(self.num_threads, self.cpus, about.schedule, about.chunk_size, about.join == "tree")

    def _prepare(self, bound: BoundPlan) -> None:
        check_runtime(self.options.runtime)
        if self.options.join == "dist" and not DIST_BARRIER.items() <= os.environ.items():
            settings = " ".join(f"{name}={value}" for name, value in DIST_BARRIER.items())
            raise UsageError(f"join=dist needs variables that libomp reads when it is loaded, got none; set {settings}")
        super()._prepare(bound)
        self._order = order_by_place(bound.plan) if self.options.order == "place" else None
        self._barrier_after = self._needed_barriers(bound.plan) if self.options.barrier == "needed" else None

    def _needed_barriers(self, plan):
        tasks = np.arange(plan.num_tasks) if self._order is None else self._order
        thread_of = np.zeros(plan.num_tasks, np.int64)
        for loop in plan.loops:
            share = self.options.chunk_size or -(-loop.num_blocks // self.num_threads)
            threads = np.arange(loop.num_blocks) // max(share, 1) % self.num_threads
            thread_of[tasks[loop.first_task : loop.first_task + loop.num_blocks]] = threads
        return needed_barriers(plan, thread_of)

    def conduct(self) -> Conduct:
        return openmp_conduct(self._pinned())

    def _run_loops(self, bound, first_replay, num_replays, poll_signals):
        enter_openmp()
        run = (bound, self._workers, first_replay, num_replays, poll_signals)
        if self.options.region == "persistent":
            errno, errors = self._team.run_persistent(*run, self._order, self._barrier_after)
        else:
            errno, errors = self._team.run_loops(*run)
        check_team(self._team.team_size, self.num_threads)
        return errno, errors


class JoblibExecutor(LoopExecutor):
    """Block loops through `joblib.Parallel(prefer="threads")`, as a Python user would write them.

    Blocks run without the GIL; joblib's own work for each of them needs it. With more than one thread joblib looks for
    results every 10 ms only, so a loop takes about that long at least, however short its blocks are.
    """

    about = JOBLIB

    def conduct(self) -> Conduct:
        if self.num_threads == 1:  # joblib then runs blocks on the caller
            return Conduct(caller_executes=True, pinned=self._pinned(), python_lock=True)
        return Conduct(
            caller_executes=False,
            caller_wakes_ns=JOBLIB_WAKES_NS,
            threads_start="each run",
            pinned=self._pinned(),
            idle_runtime="python",
            python_lock=True,
        )

    def _run_loops(self, bound, first_replay, num_replays, poll_signals):
        from joblib import Parallel, delayed

        seats, workers = _Seats(self.num_threads, self.cpus), self._workers

        def run_block(loop, block, replay):
            worker = seats.take()
            try:
                return STOPPED if seats.stopped else bound.run_task(loop, block, replay, workers, worker)
            finally:
                seats.rise(worker)

        try:
            with Parallel(n_jobs=self.num_threads, prefer="threads") as parallel:
                for replay in range(first_replay, first_replay + num_replays):
                    for loop in range(bound.num_loops):
                        statuses = parallel(
                            delayed(run_block)(loop, block, replay)
                            for block in range(bound.plan.loops[loop].num_blocks)
                        )
                        if any(statuses):
                            return 0, []
        except _PinningError as error:
            return error.errno, []
        finally:
            seats.empty()
        return 0, []


class _PinningError(OSError):
    """A thread could not be pinned; any other OSError comes from a signal handler and is the caller's."""


class _Seats:
    """Give each new thread a worker number, its CPU, and the floating-point mode of all models."""

    def __init__(self, num_threads, cpus):
        self.stopped = False  # blocks that have not begun are left out
        self._taken = [False] * num_threads
        self._free = list(range(num_threads))
        self._cpus = cpus
        self._local = threading.local()
        self._caller = threading.get_ident()
        self._caller_state = None

    def take(self):
        """Return the worker number of the calling thread until `rise`. The threads are joblib's, and end with the run.

        The caller reads `stopped` afterwards, and `empty` sets it before it reads the seats: so no block begins unseen.
        """
        worker = getattr(self._local, "worker", None)
        if worker is None:
            worker = self._free.pop(0)
            state = EnteredThread(-1 if self._cpus is None else self._cpus[worker])
            if threading.get_ident() == self._caller:
                self._caller_state = state
            if state.errno:
                raise _PinningError(state.errno, os.strerror(state.errno))
            self._local.worker = worker
        self._taken[worker] = True
        return worker

    def rise(self, worker):
        """Note that a block has ended."""
        self._taken[worker] = False

    def empty(self):
        """Wait for blocks that joblib left running when an exception ended its call, and restore the caller's state.

        A further Ctrl-C does not shorten the wait: memory that a block uses must stay.
        """
        self.stopped = True
        while any(self._taken):
            with suppress(BaseException):
                time.sleep(BLOCK_WAIT_S)
        if self._caller_state is not None:  # joblib runs blocks on the caller if there is one thread
            self._caller_state.leave()
