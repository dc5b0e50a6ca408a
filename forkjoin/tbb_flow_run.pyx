"""Runs of a plan as a oneTBB flow graph (tbb_flow.h)."""

from libc.stdint cimport int32_t, int64_t, uintptr_t

from ..cython_src.kernels.interface.block_kernel cimport LoopRecord, WorkerState
from ..cython_src.binding.bind cimport BoundPlan, Workers
from .serial_loops cimport check_signals
from .thread_state cimport SignalPoll, ThreadState, forktask_start_poll

import numpy as np

from ..cython_src.errors import MachineError


cdef extern from "forkjoin/tbb_flow.h" nogil:
    ctypedef struct TBBRun:
        const LoopRecord *loops
        const int32_t *task_loop
        int32_t num_tasks
        int32_t num_nodes
        const int32_t *successor_offsets
        const int32_t *successors
        const int32_t *num_predecessors
        int num_threads
        int64_t first_replay
        int64_t num_replays
        WorkerState *workers
        ThreadState *threads
        const int *cpus
        SignalPoll poll
        int team_size

    void *forktask_tbb_prepare(TBBRun *run)
    int forktask_tbb_run(void *graph)
    void forktask_tbb_close(void *graph)


cdef class TBBGraph:
    """A flow graph of a bound plan, and runs of it.

    Parameters
    ----------
    bound : BoundPlan
    graph : TaskGraph
        Not closed.
    workers : Workers
    cpus : list of int or None
    """

    cdef TBBRun record
    cdef list keep
    cdef void *flow

    def __cinit__(self):
        self.flow = NULL

    def __init__(self, BoundPlan bound, graph, Workers workers, cpus):
        cdef uintptr_t address
        if graph.closed:
            raise ValueError("a flow graph ends with its iteration: record without closing")
        threads = np.zeros(workers.num_workers * sizeof(ThreadState), dtype=np.uint8)
        pins = None if cpus is None else np.array(cpus, dtype=np.intc)
        self.keep = [bound, graph, workers, threads, pins]
        self.record.loops = bound.loops
        self.record.task_loop = bound.task_loop
        self.record.num_tasks = graph.num_tasks
        self.record.num_nodes = graph.num_nodes
        address = graph.successor_offsets.ctypes.data
        self.record.successor_offsets = <const int32_t *> address
        address = graph.successors.ctypes.data
        self.record.successors = <const int32_t *> address
        address = graph.num_intra.ctypes.data
        self.record.num_predecessors = <const int32_t *> address
        self.record.num_threads = workers.num_workers
        self.record.workers = workers.states
        address = threads.ctypes.data
        self.record.threads = <ThreadState *> address
        address = 0 if pins is None else pins.ctypes.data
        self.record.cpus = <const int *> address
        with nogil:
            self.flow = forktask_tbb_prepare(&self.record)
        if self.flow == NULL:
            raise MemoryError
        if self.record.team_size != workers.num_workers:
            self.close()
            raise MachineError(
                f"oneTBB must run {workers.num_workers} threads but did not start so many within seconds; use fewer")

    def run(self, int64_t first_replay, int64_t num_replays, bint poll_signals):
        """Returns (errno of the pinning, errors raised by signal handlers)."""
        cdef list errors = []
        cdef int errno
        self.record.first_replay = first_replay
        self.record.num_replays = num_replays
        forktask_start_poll(&self.record.poll, check_signals, <void *> errors, poll_signals)
        with nogil:
            errno = forktask_tbb_run(self.flow)
        return errno, errors

    def close(self):
        if self.flow != NULL:
            with nogil:
                forktask_tbb_close(self.flow)
            self.flow = NULL

    def __dealloc__(self):
        if self.flow != NULL:
            forktask_tbb_close(self.flow)
