"""Runs of a plan by a library that runs task graphs (flow.h)."""

from libc.stdint cimport int32_t, int64_t, uintptr_t

from ..cython_src.kernels.interface.block_kernel cimport LoopRecord, WorkerState
from ..cython_src.binding.bind cimport BoundPlan, Workers
from .serial_loops cimport check_signals
from .thread_state cimport SignalPoll, ThreadState, forktask_start_poll

import numpy as np

from ..cython_src.errors import MachineError


cdef extern from "forkjoin/flow.h" nogil:
    ctypedef struct FlowRun:
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

    ctypedef struct FlowLibrary:
        void *(*prepare)(FlowRun *run) noexcept nogil
        int (*run)(void *graph) noexcept nogil
        void (*close)(void *graph) noexcept nogil


cdef class FlowGraph:
    """A library's graph of a bound plan, and runs of it.

    Parameters
    ----------
    bound : BoundPlan
    graph : TaskGraph
        Not closed.
    workers : Workers
    cpus : list of int or None
    library : int
        Address of its `FlowLibrary`.
    name : str
        Of the library.
    """

    cdef FlowRun record
    cdef list keep
    cdef const FlowLibrary *library
    cdef void *flow

    def __cinit__(self):
        self.flow = NULL

    def __init__(self, BoundPlan bound, graph, Workers workers, cpus, uintptr_t library, str name):
        cdef uintptr_t address
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
        self.library = <const FlowLibrary *> library
        with nogil:
            self.flow = self.library.prepare(&self.record)
        if self.flow == NULL:
            raise MemoryError
        if self.record.team_size != workers.num_workers:
            self.close()
            raise MachineError(
                f"{name} must run {workers.num_workers} threads but did not start so many within seconds; use fewer")

    def run(self, int64_t first_replay, int64_t num_replays, bint poll_signals):
        """Returns (errno of the pinning, errors raised by signal handlers)."""
        cdef list errors = []
        cdef int errno
        self.record.first_replay = first_replay
        self.record.num_replays = num_replays
        forktask_start_poll(&self.record.poll, check_signals, <void *> errors, poll_signals)
        with nogil:
            errno = self.library.run(self.flow)
        return errno, errors

    def close(self):
        if self.flow != NULL:
            with nogil:
                self.library.close(self.flow)
            self.flow = NULL

    def abandon(self):
        """Leave the graph as it is, in a process that was forked from the one with its threads."""
        self.flow = NULL

    def __dealloc__(self):
        if self.flow != NULL:
            self.library.close(self.flow)
