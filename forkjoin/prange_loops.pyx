"""Fork-join with OpenMP: a `prange` with its barrier for each block loop, or one parallel region for the whole run.

Cython makes the index of a `prange` both firstprivate and lastprivate. gcc then puts a barrier before the worksharing
loop, so that no thread's write-back overtakes another's copy-in; with the join at the end of the parallel region that
is two barriers per loop, where C's `#pragma omp parallel for` has one (seen as GOMP_barrier in the compiled code of
gcc 12). `region="persistent"` has one, and neither forks nor joins between loops.
"""

cimport openmp
from cython.parallel cimport parallel, prange, threadid
from libc.stdint cimport int32_t, int64_t, uint8_t

from ..cython_src.binding.bind cimport BoundPlan, Workers, kept
from .serial_loops cimport check_signals
from prange_loops_c cimport *

import numpy as np

from ..cython_src.binding.storage import aligned_empty


# Blocks that have not begun when one fails are left out: a thread must not go on with its share after Ctrl-C has ended
# the block of another. A relaxed look suffices, since what it misses only runs a block more.
cdef void _loop_static(const LoopRecord *loop, int64_t replay, WorkerState *workers, int num_threads,
                       int *failed) noexcept nogil:
    cdef int block
    for block in prange(loop.num_blocks, schedule="static", num_threads=num_threads):
        if failed[0] == 0 and run_block(loop, block, replay, &workers[threadid()]) != 0:
            failed[0] = 1


cdef void _loop_static_chunk(const LoopRecord *loop, int64_t replay, WorkerState *workers, int num_threads,
                             int *failed, int chunk_size) noexcept nogil:
    cdef int block
    for block in prange(loop.num_blocks, schedule="static", chunksize=chunk_size, num_threads=num_threads):
        if failed[0] == 0 and run_block(loop, block, replay, &workers[threadid()]) != 0:
            failed[0] = 1


cdef void _loop_dynamic(const LoopRecord *loop, int64_t replay, WorkerState *workers, int num_threads,
                        int *failed, int chunk_size) noexcept nogil:
    cdef int block
    for block in prange(loop.num_blocks, schedule="dynamic", chunksize=chunk_size, num_threads=num_threads):
        if failed[0] == 0 and run_block(loop, block, replay, &workers[threadid()]) != 0:
            failed[0] = 1


cdef void _loop_guided(const LoopRecord *loop, int64_t replay, WorkerState *workers, int num_threads,
                       int *failed, int chunk_size) noexcept nogil:
    cdef int block
    for block in prange(loop.num_blocks, schedule="guided", chunksize=chunk_size, num_threads=num_threads):
        if failed[0] == 0 and run_block(loop, block, replay, &workers[threadid()]) != 0:
            failed[0] = 1


cdef class ForkJoinTeam:
    """An OpenMP team of the calling thread, and the runs it makes; chunk size 0: the default of the schedule."""

    cdef readonly int num_threads
    cdef readonly int schedule
    cdef readonly int chunk_size
    cdef readonly int team_size      # threads that came to the last run
    cdef int *cpus
    cdef ThreadState *threads
    cdef TreePlace *tree             # NULL: the barrier is the OpenMP library's
    cdef list keep

    def __cinit__(self, int num_threads, cpus, str schedule, int chunk_size, bint by_tree):
        self.num_threads = num_threads
        self.chunk_size = max(chunk_size, 1)
        self.schedule = {
            "static": FORKTASK_STATIC_CHUNK if chunk_size else FORKTASK_STATIC,
            "dynamic": FORKTASK_DYNAMIC,
            "guided": FORKTASK_GUIDED,
        }[schedule]
        self.keep = []
        threads = np.zeros(num_threads * sizeof(ThreadState), np.uint8)
        self.threads = <ThreadState *> kept(self.keep, threads, np.uint8)
        if by_tree:
            places = aligned_empty((num_threads * sizeof(TreePlace),), np.uint8, alignment=sizeof(TreePlace))
            self.tree = <TreePlace *> kept(self.keep, places, np.uint8)
        if cpus is not None:
            self.cpus = <int *> kept(self.keep, cpus, np.intc)

    cdef int _error(self) noexcept nogil:
        cdef int i
        for i in range(self.num_threads):
            if self.threads[i].error:
                return self.threads[i].error
        return 0

    def run_loops(self, BoundPlan bound, Workers workers, int64_t first_replay, int64_t num_replays,
                  bint poll_signals):
        """A parallel region for each loop. Returns (errno of the pinning, errors raised by signal handlers)."""
        cdef SignalPoll poll
        cdef int64_t replay
        cdef int k, num_threads = self.num_threads, schedule = self.schedule, chunk_size = self.chunk_size
        cdef int failed = 0
        cdef unsigned former_control
        cdef LoopRecord *loop
        cdef list errors = []
        forktask_start_poll(&poll, check_signals, <void *> errors, poll_signals)
        with nogil:
            # LLVM's runtime gives each region the floating-point mode that the caller has outside of it.
            former_control = forktask_flush_denormals()
            # A region of its own sets up each thread and counts them; the team stays the same for all that follow.
            with parallel(num_threads=num_threads):
                if threadid() == 0:
                    self.team_size = openmp.omp_get_num_threads()
                forktask_enter_thread(
                    &self.threads[threadid()], self.cpus[threadid()] if self.cpus != NULL else -1)
            failed = self.team_size != num_threads or self._error() != 0
            replay = first_replay
            while replay < first_replay + num_replays and not failed:
                for k in range(bound.num_loops):
                    loop = &bound.loops[k]
                    if forktask_must_stop(&poll):
                        failed = 1
                        break
                    if schedule == FORKTASK_STATIC:
                        _loop_static(loop, replay, workers.states, num_threads, &failed)
                    elif schedule == FORKTASK_STATIC_CHUNK:
                        _loop_static_chunk(loop, replay, workers.states, num_threads, &failed, chunk_size)
                    elif schedule == FORKTASK_DYNAMIC:
                        _loop_dynamic(loop, replay, workers.states, num_threads, &failed, chunk_size)
                    else:
                        _loop_guided(loop, replay, workers.states, num_threads, &failed, chunk_size)
                    if failed:
                        break
                replay = replay + 1
            with parallel(num_threads=num_threads):
                forktask_leave_thread(&self.threads[threadid()])
            forktask_restore_denormals(former_control)
        return self._error(), errors

    def run_persistent(self, BoundPlan bound, Workers workers, int64_t first_replay, int64_t num_replays,
                       bint poll_signals, const int32_t[::1] order=None, const uint8_t[::1] barrier_after=None):
        """One parallel region for the run. `order`: the tasks of each loop as its schedule counts them, None: as the
        plan does. `barrier_after`: of each loop, None: all; only with static shares, of equal size if there is no chunk
        size. Returns (errno of the pinning, errors raised by signal handlers)."""
        cdef PersistentRun run
        cdef list errors = []
        run.loops = bound.loops
        run.num_loops = bound.num_loops
        run.num_threads = self.num_threads
        run.schedule = self.schedule
        run.chunk_size = self.chunk_size
        run.first_replay = first_replay
        run.num_replays = num_replays
        run.workers = workers.states
        run.threads = self.threads
        run.cpus = self.cpus
        run.tree = self.tree
        run.barrier_after = NULL
        if barrier_after is not None and bound.num_loops:
            run.barrier_after = &barrier_after[0]
            run.chunk_size = 0 if self.schedule == FORKTASK_STATIC else self.chunk_size
            run.schedule = FORKTASK_STATIC_CHUNK
        run.order = NULL if order is None or not bound.num_tasks else &order[0]
        forktask_start_poll(&run.poll, check_signals, <void *> errors, poll_signals)
        with nogil:
            forktask_run_persistent(&run)
        self.team_size = run.team_size
        return self._error(), errors


cdef extern from "dlfcn.h" nogil:
    ctypedef struct Dl_info:
        const char *dli_fname
    int dladdr(const void *address, Dl_info *info)


def runtime_file():
    """Return the path of the OpenMP library that calls of this process reach, preloaded or not."""
    cdef Dl_info info
    return info.dli_fname.decode() if dladdr(<const void *> &openmp.omp_get_dynamic, &info) else ""


def dynamic_teams():
    """Whether OpenMP may choose smaller teams than asked for (OMP_DYNAMIC)."""
    return bool(openmp.omp_get_dynamic())
