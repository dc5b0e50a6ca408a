"""Runs of a plan by another library (outside.h)."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uintptr_t

from ..cython_src.binding.bind cimport BoundPlan, Workers, kept
from .serial_loops cimport check_signals
from outside_runs_c cimport *

import errno as errors_of_system
import os

import numpy as np

from ..cython_src.plan.model import COMMUTATIVE, CONCURRENT, READ, UPDATE, WRITE


def depend_lists(table):
    """Cells of each task by the clause they go into, each cell once; one that a task both reads and writes goes into
    `inout`: list of (offsets, cells) for in, out, inout, inoutset, mutexinoutset; int32 arrays, offsets of shape
    (num_tasks + 1,)."""
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
    # Libraries take both kinds as one, which would let blocks of one kind overtake those of the other.
    both = np.intersect1d(cell[kind == CONCURRENT], cell[kind == COMMUTATIVE])
    clause[(clause == CONCURRENT) & np.isin(key % max(table.num_cells, 1), both)] = UPDATE
    lists = []
    for wanted in (READ, WRITE, UPDATE, CONCURRENT, COMMUTATIVE):
        chosen = key[clause == wanted]
        counts = np.bincount(chosen // max(table.num_cells, 1), minlength=table.num_tasks)
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        lists.append((offsets, (chosen % max(table.num_cells, 1)).astype(np.int32)))
    return lists


NOT_STARTED = -1
TAKES = ("loops", "tasks", "graph", "closed graph")  # by number


cdef text_of(const char *text):
    return None if text == NULL else text.decode()


def describe_library(uintptr_t address):
    """What a library says of itself: dict of takes (of `TAKES`), caller_executes, release ("": none) and options, a
    list of (name, default, choices or None, text). Raises `ValueError`: it is of another interface."""
    cdef const OutsideLibrary *library = <const OutsideLibrary *> address
    cdef const OutsideOption *option
    if library.version != FORKTASK_OUTSIDE_VERSION:
        raise ValueError(f"interface {FORKTASK_OUTSIDE_VERSION}, got {library.version}")
    if not 0 <= library.takes < len(TAKES):
        raise ValueError(f"a way of taking plans below {len(TAKES)}, got {library.takes}")
    if library.prepare == NULL or library.run == NULL or library.close == NULL:
        raise ValueError("functions prepare, run and close, got NULL for one")
    options = []
    option = library.options
    while option != NULL and option.name != NULL:
        options.append((
            option.name.decode(), option.value.decode(),
            text_of(option.choices), text_of(option.text) or "an option of the library"))
        option += 1
    return {
        "takes": TAKES[library.takes], "caller_executes": bool(library.caller_executes),
        "release": text_of(library.release) or "", "options": options}


cdef class OutsideRuns:
    """What a library needs for a bound plan, and runs of it.

    `library`: address of its `OutsideLibrary`; `wait_after`, of one that takes tasks: for each loop, wait for all tasks
    after it; `graph`, of one that takes a graph; `options`: texts by name. Raises `OSError`: the library could not make
    ready; `MemoryError` if memory was short.
    """

    cdef OutsideRun record
    cdef const OutsideLibrary *library
    cdef void *session
    cdef list keep

    def __cinit__(self):
        self.session = NULL

    def __init__(self, BoundPlan bound, Workers workers, cpus, uintptr_t library, *, wait_after=None, graph=None,
                 options=None):
        cdef int i, error = 0
        table = bound.plan.accesses
        texts = [text.encode() for pair in (options or {}).items() for text in pair]
        self.keep = [bound, workers, texts]
        self.library = <const OutsideLibrary *> library
        self.record.loops = bound.loops
        self.record.task_loop = bound.task_loop
        self.record.num_loops = bound.num_loops
        self.record.num_threads = workers.num_workers
        self.record.num_tasks = table.num_tasks
        self.record.num_cells = table.num_cells
        self.record.workers = workers.states
        self.record.team_size = NOT_STARTED
        threads = np.zeros(workers.num_workers * sizeof(ThreadState), np.uint8)
        self.record.threads = <ThreadState *> kept(self.keep, threads, np.uint8)
        addresses = np.zeros(len(texts) + 1, np.uintp)
        for i in range(len(texts)):
            addresses[i] = <uintptr_t> <const char *> texts[i]
        self.record.options = <const char **> kept(self.keep, addresses, np.uintp)
        if cpus is not None:
            self.record.cpus = <const int *> kept(self.keep, cpus, np.intc)
        if wait_after is not None:
            self.record.wait_after = <const uint8_t *> kept(self.keep, wait_after, np.uint8)
            for i, (offsets, cells) in enumerate(depend_lists(table)):
                self.record.lists[i].offsets = <const int32_t *> kept(self.keep, offsets, np.int32)
                self.record.lists[i].cells = <const int32_t *> kept(self.keep, cells, np.int32)
        if graph is not None:
            self.record.num_nodes = graph.num_nodes
            self.record.successor_offsets = <const int32_t *> kept(self.keep, graph.successor_offsets, np.int32)
            self.record.successor_split = <const int32_t *> kept(self.keep, graph.successor_split, np.int32)
            self.record.successors = <const int32_t *> kept(self.keep, graph.successors, np.int32)
            self.record.num_predecessors = <const int32_t *> kept(self.keep, graph.num_intra, np.int32)
            self.record.num_former_predecessors = <const int32_t *> kept(self.keep, graph.num_cross, np.int32)
        with nogil:
            self.session = self.library.prepare(&self.record, &error)
        if self.session == NULL:
            raise MemoryError if error == errors_of_system.ENOMEM else OSError(error, os.strerror(error))

    @property
    def team_size(self):
        """Threads that started when the library was made ready, or for the last run; -1: not yet."""
        return self.record.team_size

    def run(self, int64_t first_replay, int64_t num_replays, bint poll_signals):
        """Returns (errno of the library's run or of a thread that could not be pinned, errors raised by signal
        handlers)."""
        cdef list errors = []
        cdef int errno
        self.record.first_replay = first_replay
        self.record.num_replays = num_replays
        self.record.stop = 0
        forktask_start_poll(&self.record.poll, check_signals, <void *> errors, poll_signals)
        with nogil:
            errno = self.library.run(self.session)
        return errno or forktask_pinning_error(&self.record), errors

    def close(self):
        if self.session != NULL:
            with nogil:
                self.library.close(self.session)
            self.session = NULL

    def abandon(self):
        """Leave all as it is, in a process that was forked from the one with the library's threads."""
        self.session = NULL

    def __dealloc__(self):
        if self.session != NULL:
            self.library.close(self.session)
