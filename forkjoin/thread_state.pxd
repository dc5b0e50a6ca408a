"""Cython's view of thread_state.h."""


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
