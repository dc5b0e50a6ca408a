"""Runs of a plan as OpenMP tasks with depend clauses (openmp_tasks.h)."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uintptr_t

from ..cython_src.kernels.interface.block_kernel cimport LoopRecord, WorkerState
from ..cython_src.binding.bind cimport BoundPlan, Workers
from .serial_loops cimport check_signals
from .thread_state cimport SignalPoll, ThreadState, forktask_start_poll

import numpy as np

from ..cython_src.plan.model import COMMUTATIVE, CONCURRENT, READ, UPDATE, WRITE


cdef extern from "forkjoin/openmp_tasks.h" nogil:
    ctypedef struct OpenMPTaskRun:
        const LoopRecord *loops
        int num_loops
        int num_threads
        const uint8_t *wait_after
        const int32_t *read_offsets
        const int32_t *write_offsets
        const int32_t *update_offsets
        const int32_t *concurrent_offsets
        const int32_t *commutative_offsets
        const int32_t *read_cells
        const int32_t *write_cells
        const int32_t *update_cells
        const int32_t *concurrent_cells
        const int32_t *commutative_cells
        char *cells
        int64_t first_replay
        int64_t num_replays
        WorkerState *workers
        ThreadState *threads
        const int *cpus
        SignalPoll poll
        int team_size

    void forktask_run_openmp_tasks(OpenMPTaskRun *run)


def depend_lists(table):
    """Cells of each task by the clause they go into, each cell once.

    A cell that a task both reads and writes goes into `inout`.

    Returns
    -------
    list of (offsets, cells) for in, out, inout, inoutset, mutexinoutset; int32 arrays, offsets of shape
    (num_tasks + 1,)
    """
    lengths = np.diff(table.list_offsets)[table.access_list]
    task_of_access = np.repeat(np.arange(table.num_tasks), np.diff(table.task_offsets))
    task = np.repeat(task_of_access, lengths).astype(np.int64)
    kind = np.repeat(table.access_kind, lengths)
    within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    cell = table.list_cells[np.repeat(table.list_offsets[:-1][table.access_list], lengths) + within]
    key, inverse = np.unique(task * max(table.num_cells, 1) + cell, return_inverse=True)
    touched = np.zeros((len(key), 2), dtype=bool)
    touched[inverse[kind != WRITE], 0] = True
    touched[inverse[kind != READ], 1] = True
    clause = np.where(touched.all(axis=1), UPDATE, np.where(touched[:, 1], WRITE, READ))
    in_any_order = kind >= CONCURRENT  # a task's other accesses to the cell, if any, are of the same kind
    clause[inverse[in_any_order]] = kind[in_any_order]
    lists = []
    for wanted in (READ, WRITE, UPDATE, CONCURRENT, COMMUTATIVE):
        chosen = key[clause == wanted]
        counts = np.bincount(chosen // max(table.num_cells, 1), minlength=table.num_tasks)
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        # One number more than needed, so that an empty array has an address too.
        cells = np.append(chosen % max(table.num_cells, 1), 0).astype(np.int32)
        lists.append((offsets, cells))
    return lists


cdef const int32_t *numbers(array) except NULL:
    """Address of an int32 array, which must outlive its use."""
    cdef uintptr_t address = array.ctypes.data
    return <const int32_t *> address


cdef class OpenMPTaskTeam:
    """Depend lists of a bound plan, and runs with them.

    Parameters
    ----------
    bound : BoundPlan
    num_threads : int
    cpus : list of int or None
    wait_after : sequence of bool
        For each loop: taskwait after it.
    """

    cdef OpenMPTaskRun record
    cdef list keep
    cdef object threads
    cdef BoundPlan bound

    def __init__(self, BoundPlan bound, int num_threads, cpus, wait_after):
        cdef uintptr_t address
        table = bound.plan.accesses
        (reads, writes, updates, concurrents, commutatives) = depend_lists(table)
        waits = np.array(wait_after, dtype=np.uint8)
        cells = np.zeros(max(table.num_cells, 1), dtype=np.uint8)
        threads = np.zeros(num_threads * sizeof(ThreadState), dtype=np.uint8)
        pins = None if cpus is None else np.array(cpus, dtype=np.intc)
        self.keep = [reads, writes, updates, concurrents, commutatives, waits, cells, threads, pins]
        self.bound = bound
        self.record.loops = bound.loops
        self.record.num_loops = bound.num_loops
        self.record.num_threads = num_threads
        address = waits.ctypes.data
        self.record.wait_after = <const uint8_t *> address
        self.record.read_offsets = numbers(reads[0])
        self.record.read_cells = numbers(reads[1])
        self.record.write_offsets = numbers(writes[0])
        self.record.write_cells = numbers(writes[1])
        self.record.update_offsets = numbers(updates[0])
        self.record.update_cells = numbers(updates[1])
        self.record.concurrent_offsets = numbers(concurrents[0])
        self.record.concurrent_cells = numbers(concurrents[1])
        self.record.commutative_offsets = numbers(commutatives[0])
        self.record.commutative_cells = numbers(commutatives[1])
        address = cells.ctypes.data
        self.record.cells = <char *> address
        address = threads.ctypes.data
        self.record.threads = <ThreadState *> address
        address = 0 if pins is None else pins.ctypes.data
        self.record.cpus = <const int *> address

    @property
    def team_size(self):
        """Threads that came to the last run."""
        return self.record.team_size

    def run(self, Workers workers, int64_t first_replay, int64_t num_replays, bint poll_signals):
        """Returns (errno of the pinning, errors raised by signal handlers)."""
        cdef list errors = []
        cdef int i
        self.record.first_replay = first_replay
        self.record.num_replays = num_replays
        self.record.workers = workers.states
        forktask_start_poll(&self.record.poll, check_signals, <void *> errors, poll_signals)
        with nogil:
            forktask_run_openmp_tasks(&self.record)
        for i in range(self.record.num_threads):
            if self.record.threads[i].error:
                return self.record.threads[i].error, errors
        return 0, errors
