"""Blocks in plan order on one thread, without any runtime; and what executors written in Python need of C."""

from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int64_t
from libc.string cimport memset

from ..cython_src.binding.bind cimport BoundPlan, Workers
from serial_loops_c cimport *


cdef int check_signals(void *errors) noexcept with gil:
    """Run pending signal handlers; keep what they raise in the list `errors` and ask for a stop."""
    try:
        PyErr_CheckSignals()
    except BaseException as error:
        (<list> errors).append(error)
        return 1
    return 0


cdef void _run_loops(const LoopRecord *loops, int num_loops, int64_t first_replay, int64_t num_replays,
                     WorkerState *state, SignalPoll *poll) noexcept nogil:
    """Run blocks in order until one fails, or a signal asks for a stop."""
    cdef int64_t replay
    cdef int k, block
    for replay in range(first_replay, first_replay + num_replays):
        for k in range(num_loops):
            if forktask_must_stop(poll):
                return
            for block in range(loops[k].num_blocks):
                if run_block(&loops[k], block, replay, state) != 0:
                    return


def run_serial(BoundPlan bound, Workers workers, int64_t first_replay, int64_t num_replays, int cpu, bint poll_signals):
    """Run all loops `num_replays` times on the calling thread, pinned to a logical CPU during the run, -1: to none;
    `poll_signals`: the caller is the main thread, look for signals between loops. Returns the errno of the pinning, 0
    when it succeeded, and what signal handlers raised."""
    cdef ThreadState state
    cdef SignalPoll poll
    cdef list errors = []
    forktask_start_poll(&poll, check_signals, <void *> errors, poll_signals)
    with nogil:
        forktask_enter_thread(&state, cpu)
        if state.error == 0:
            _run_loops(bound.loops, bound.num_loops, first_replay, num_replays, workers.states, &poll)
        forktask_leave_thread(&state)
    return state.error, errors


def touch_scratch(Workers workers, Py_ssize_t scratch_bytes, cpus):
    """Touch each worker's scratch memory for the first time on its CPU: the page then belongs to that CPU's node.

    The calling thread visits the CPUs in turn. One that it may not use is left to `run`, which names it.
    """
    cdef ThreadState state
    cdef int w
    for w in range(workers.num_workers):
        forktask_enter_thread(&state, -1 if cpus is None else cpus[w])
        memset(workers.states[w].context.scratch, 0, scratch_bytes)
        forktask_leave_thread(&state)


cdef class EnteredThread:
    """The calling thread, pinned and flushing denormals until `leave()` is called on the same thread."""

    cdef ThreadState state

    def __init__(self, int cpu):
        forktask_enter_thread(&self.state, cpu)

    @property
    def errno(self):
        return self.state.error

    def leave(self):
        forktask_leave_thread(&self.state)
