"""Runs of a plan as StarPU tasks (starpu_tasks.h)."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uintptr_t

from ..cython_src.kernels.interface.block_kernel cimport LoopRecord, WorkerState
from ..cython_src.binding.bind cimport BoundPlan, Workers
from .serial_loops cimport check_signals
from .thread_state cimport SignalPoll, ThreadState, forktask_start_poll

import errno as errors_of_system
import os

import numpy as np

from ..cython_src.errors import UsageError
from .openmp_task_run import depend_lists


cdef extern from "forkjoin/starpu_tasks.h" nogil:
    ctypedef struct CellLists:
        const int32_t *offsets
        const int32_t *cells

    ctypedef struct StarpuRun:
        const LoopRecord *loops
        int num_loops
        int num_threads
        int32_t num_tasks
        int32_t num_cells
        const uint8_t *wait_after
        CellLists *lists
        const char *scheduler
        int64_t first_replay
        int64_t num_replays
        WorkerState *workers
        ThreadState *threads
        const int *cpus
        SignalPoll poll

    void *forktask_starpu_prepare(StarpuRun *run, int *error)
    int forktask_starpu_run(void *session)
    void forktask_starpu_close(void *session)


cdef class StarpuSession:
    """StarPU, started for a bound plan, and runs with it.

    Parameters
    ----------
    bound : BoundPlan
    workers : Workers
    cpus : list of int or None
    scheduler : str
        StarPU's name of a scheduling policy.
    wait_after : sequence of bool
        For each loop: wait for all tasks after it.

    Raises
    ------
    UsageError
        A CPU that this process may not use.
    RuntimeError
        StarPU did not start.
    """

    cdef StarpuRun record
    cdef list keep
    cdef void *session

    def __cinit__(self):
        self.session = NULL

    def __init__(self, BoundPlan bound, Workers workers, cpus, str scheduler, wait_after):
        cdef uintptr_t address
        cdef int i, error = 0
        table = bound.plan.accesses
        lists = depend_lists(table)
        name = scheduler.encode()
        waits = np.array(wait_after, dtype=np.uint8)
        threads = np.zeros(workers.num_workers * sizeof(ThreadState), dtype=np.uint8)
        pins = None if cpus is None else np.array(cpus, dtype=np.intc)
        self.keep = [bound, workers, lists, name, waits, threads, pins]
        self.record.loops = bound.loops
        self.record.num_loops = bound.num_loops
        self.record.num_threads = workers.num_workers
        self.record.num_tasks = table.num_tasks
        self.record.num_cells = table.num_cells
        address = waits.ctypes.data
        self.record.wait_after = <const uint8_t *> address
        for i, (offsets, cells) in enumerate(lists):
            address = offsets.ctypes.data
            self.record.lists[i].offsets = <const int32_t *> address
            address = cells.ctypes.data
            self.record.lists[i].cells = <const int32_t *> address
        self.record.scheduler = name
        self.record.workers = workers.states
        address = threads.ctypes.data
        self.record.threads = <ThreadState *> address
        address = 0 if pins is None else pins.ctypes.data
        self.record.cpus = <const int *> address
        with nogil:
            self.session = forktask_starpu_prepare(&self.record, &error)
        if self.session == NULL:
            if error == errors_of_system.ENOMEM:
                raise MemoryError
            if error == errors_of_system.EINVAL and cpus is not None:
                raise UsageError(f"cpus must be CPUs this process may use, got {cpus} ({os.strerror(error)})")
            raise RuntimeError(
                f"StarPU must start with {workers.num_workers} workers on CPUs but did not ({os.strerror(error)}); use "
                f"fewer threads, and look at variables of the environment that begin with STARPU_")

    def run(self, int64_t first_replay, int64_t num_replays, bint poll_signals):
        """Returns (errno of a task that was not taken, errors raised by signal handlers)."""
        cdef list errors = []
        cdef int errno
        self.record.first_replay = first_replay
        self.record.num_replays = num_replays
        forktask_start_poll(&self.record.poll, check_signals, <void *> errors, poll_signals)
        with nogil:
            errno = forktask_starpu_run(self.session)
        if errno:
            raise RuntimeError(f"StarPU must take every task but refused one ({os.strerror(errno)})")
        return 0, errors

    def close(self):
        if self.session != NULL:
            with nogil:
                forktask_starpu_close(self.session)
            self.session = NULL

    def abandon(self):
        """Leave StarPU as it is, in a process that was forked from the one with its threads."""
        self.session = NULL

    def __dealloc__(self):
        if self.session != NULL:
            forktask_starpu_close(self.session)
