"""Cython's view of thread_state.h and persistent_region.h."""

from libc.stdint cimport int64_t

from ..cython_src.kernels.interface.block_kernel cimport LoopRecord, WorkerState


cdef extern from "forkjoin/thread_state.h" nogil:
    const int FORKTASK_MAX_CPUS

    ctypedef struct ThreadState:
        int error

    ctypedef struct SignalPoll:
        pass

    void forktask_enter_thread(ThreadState *state, int cpu)
    void forktask_leave_thread(ThreadState *state)
    unsigned forktask_flush_denormals()
    void forktask_restore_denormals(unsigned former)
    void forktask_start_poll(SignalPoll *poll, int (*check)(void *) noexcept, void *context, bint enabled)
    bint forktask_must_stop(SignalPoll *poll)


cdef extern from "forkjoin/persistent_region.h" nogil:
    enum:
        FORKTASK_STATIC
        FORKTASK_STATIC_CHUNK
        FORKTASK_DYNAMIC
        FORKTASK_GUIDED

    ctypedef struct PersistentRun:
        const LoopRecord *loops
        int num_loops
        int num_threads
        int schedule
        int chunk_size
        int64_t first_replay
        int64_t num_replays
        WorkerState *workers
        ThreadState *threads
        const int *cpus
        SignalPoll poll
        int team_size

    void forktask_run_persistent(PersistentRun *run)
