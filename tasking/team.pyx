"""A team of plain threads, and how it is driven through a run: signals, progress, the end."""

from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int32_t, int64_t
from libc.string cimport memset
from posix.unistd cimport getpid

from ..cython_src.kernels.interface.block_kernel cimport WorkerState, forktask_now_ns
from ..cython_src.binding.bind cimport BoundPlan, Workers
from .headers cimport (
    RUN_STOPPED, CpuSwap, Scheduler, TeamJob, cpu_swap_restore, ft_register_membarrier, load_i32, load_i64,
    scheduler_end, team_allow_swaps, team_close, team_open, team_start, team_wait,
)

import os

import numpy as np

from ..cython_src.errors import UsageError

# How often the waiting caller looks for signals and for progress. A tenth of a second is what a user notices.
CALLER_WAKES_NS = 20_000_000
cdef int64_t POLL_NS = CALLER_WAKES_NS
# Registered at import, while the process most likely has one thread: with several the kernel waits 15 ms for the
# others, and the first executor would pay for it.
HAS_MEMBARRIER = bool(ft_register_membarrier())


cdef extern from *:
    """
    /* First touch of its scratch memory by the worker that uses it. */
    typedef struct { WorkerState *states; size_t scratch_bytes; } TouchJob;
    static void touch_work(void *argument, int32_t worker)
    {
        TouchJob *job = argument;
        memset(job->states[worker].context.scratch, 0, job->scratch_bytes);
    }
    """
    ctypedef struct TouchJob:
        WorkerState *states
        size_t scratch_bytes
    void touch_work(void *argument, int32_t worker) noexcept nogil


class StuckGraph(RuntimeError):
    """The watchdog found no progress: no block ran or finished for the given time. The message holds the state."""


cdef class Team:
    """Plain threads that run blocks; the thread that starts a run waits and polls for signals.

    Parameters
    ----------
    num_threads : int
    cpus : sequence of int, optional
        Logical CPU of each thread; default: not pinned.
    spin_ns : int
        How long an idle thread looks for work before it sleeps.
    preemption : {"stay", "swap"}
        `swap`: a thread that waits exchanges CPUs with one that another process has pushed off its own.

    Raises
    ------
    UsageError
        Threads that cannot be started; swaps between threads that are not pinned to a CPU of their own.
    """

    def __cinit__(self, int num_threads, cpus=None, int64_t spin_ns=50_000, str preemption="stay"):
        cdef int32_t[::1] list_of_cpus
        cdef const int32_t *pinned = NULL
        cdef int error
        memset(&self.team, 0, sizeof(self.team))
        self.owner_pid = getpid()
        if cpus is not None:
            list_of_cpus = np.array(cpus, dtype=np.int32)
            pinned = &list_of_cpus[0]
        if preemption == "swap" and (cpus is None or len(set(cpus)) < num_threads):
            raise UsageError(
                f"preemption=swap needs each of {num_threads} threads pinned to a CPU of its own, got cpus={cpus}; "
                f"give different cpus, or use preemption=stay")
        self.num_threads = num_threads
        self.spin_ns = spin_ns
        self.preemption = preemption
        error = team_open(&self.team, num_threads, pinned, spin_ns)
        if not error and preemption == "swap":
            error = team_allow_swaps(&self.team, pinned)
        if error:
            raise UsageError(
                f"{num_threads} threads must be available, but starting them failed: {os.strerror(error)}; use fewer")

    def __dealloc__(self):
        # After a fork the threads are the parent's; there is nothing here to end.
        if self.owner_pid == getpid():
            with nogil:
                team_close(&self.team)

    def close(self):
        """End the threads."""
        if self.owner_pid == getpid():
            with nogil:
                team_close(&self.team)

    cdef int touch(self, Workers workers, Py_ssize_t scratch_bytes) except -1:
        cdef TouchJob job
        job.states = workers.states
        job.scratch_bytes = scratch_bytes
        with nogil:
            team_start(&self.team, touch_work, &job)
            while not team_wait(&self.team, -1):
                pass
        return 0

    cdef object drive(self, TeamJob job, void *argument, Scheduler *scheduler, object dump, double watchdog_s):
        """Run a job to its end; poll for signals and progress. Returns the exception that stopped it, or None."""
        cdef bint done
        cdef int64_t executed, last_executed = -1, last_progress_ns = 0, now
        cdef int w
        cdef bint in_kernel
        error = None
        with nogil:
            team_start(&self.team, job, argument)
            done = team_wait(&self.team, POLL_NS)
        while not done:
            try:
                PyErr_CheckSignals()
            except BaseException as raised:  # KeyboardInterrupt, or whatever a handler raises
                if error is None:
                    error = raised
                scheduler_end(scheduler, RUN_STOPPED)
            if watchdog_s > 0 and error is None:
                executed = 0
                in_kernel = False
                for w in range(scheduler.num_workers):
                    executed += load_i64(&scheduler.workers[w].num_executed)
                    in_kernel |= load_i32(&scheduler.workers[w].current) >= 0
                now = forktask_now_ns()
                if executed != last_executed or in_kernel:
                    last_executed = executed
                    last_progress_ns = now
                elif now - last_progress_ns > watchdog_s * 1e9:
                    error = StuckGraph(
                        f"no block ran or finished for {watchdog_s:g} s; this is an error of the runtime or of the "
                        f"graph, please report it with the state that follows\n{dump()}")
                    scheduler_end(scheduler, RUN_STOPPED)
            with nogil:
                done = team_wait(&self.team, POLL_NS)
        if self.team.cpu_swap != NULL:
            cpu_swap_restore(self.team.cpu_swap)
        return error

    cdef CpuSwap *cpu_swap(self, BoundPlan bound) except? NULL:
        """What a runtime needs for swaps of CPUs; NULL: its workers stay."""
        if self.team.cpu_swap != NULL and bound.needs_gil:
            raise UsageError(
                f"preemption=swap finds preempted threads by CPU time that stands still, but blocks of plan "
                f"{bound.plan.name!r} also wait for Python's lock; use preemption=stay")
        return self.team.cpu_swap

    @property
    def num_swaps(self):
        """How often a worker gave its CPU to one that had lost its own."""
        return 0 if self.team.cpu_swap == NULL else self.team.cpu_swap.num_swaps
