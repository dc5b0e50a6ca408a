"""Counters around every block of a run, by worker and loop: each thread opens and reads its own.

While a bound plan is counted, its loops' kernels are called through `_run_counted`; a plan that is not counted has no
part of this. Reading the counters costs some microseconds a block, so that nobody times such a run.
"""

from libc.errno cimport errno
from libc.stdint cimport int32_t, int64_t
from posix.unistd cimport close, read

from interface_c cimport *
from ...cython_src.binding.bind cimport BoundPlan, kept

import numpy as np

from ..machine.perf_counters import CLOSE_ON_EXEC, MOST_EVENTS, NUMBERS, attribute

cdef extern from "<sys/syscall.h>" nogil:
    long SYS_gettid, SYS_perf_event_open

cdef extern from "<unistd.h>" nogil:
    long syscall(long number, ...)


cdef struct Counting:
    int num_events, num_loops
    int error                # of the last event that a thread could not open
    long flags
    const char **attributes  # of each event
    int64_t *threads         # of each worker; 0: none yet
    int32_t *files           # shape (workers, events)
    int64_t *sums            # shape (workers, loops, events, 3)


cdef struct CountedLoop:
    BlockKernel kernel
    const void *args
    Counting *counting
    int loop


cdef int _run_counted(const void *record, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    cdef const CountedLoop *own = <const CountedLoop *> record
    cdef Counting *c = own.counting
    cdef int64_t before[24]  # 3 numbers of MOST_EVENTS
    cdef int64_t after[3]
    cdef int32_t *files = c.files + context.worker * c.num_events
    cdef int64_t *sums = c.sums + (<int64_t> context.worker * c.num_loops + own.loop) * c.num_events * 3
    cdef int64_t thread = syscall(SYS_gettid)
    cdef int e, i, status
    if c.threads[context.worker] != thread:
        for e in range(c.num_events):
            if files[e] >= 0:
                close(files[e])
            files[e] = <int32_t> syscall(SYS_perf_event_open, c.attributes[e], 0, -1, -1, c.flags)
            if files[e] < 0:
                c.error = errno
        c.threads[context.worker] = thread
    for e in range(c.num_events - 1, -1, -1):  # so that the first event counts least of the other reads
        if files[e] < 0 or read(files[e], &before[3 * e], 24) != 24:
            before[3 * e] = -1
    status = own.kernel(own.args, block, context)
    for e in range(c.num_events):
        if before[3 * e] >= 0 and read(files[e], after, 24) == 24:
            for i in range(3):
                sums[3 * e + i] += after[i] - before[3 * e + i]
    return status


cdef class BlockCounters:
    """Context manager in which the blocks of a bound plan are counted; executors are prepared inside.

    Parameters
    ----------
    bound : BoundPlan
    num_workers : int
    events : sequence of (int, int)
        Kind and number of each, `MOST_EVENTS` at most.

    Attributes
    ----------
    sums : int64, shape (num_workers, num_loops, num_events, 3)
        Of each event its count, and the times for which it was enabled and running.
    error : int
        Number of the reason why a thread could not open an event, 0 if all could.
    """

    cdef BoundPlan bound
    cdef Counting counting
    cdef CountedLoop *loops
    cdef list keep
    cdef object files
    cdef readonly object sums

    def __init__(self, BoundPlan bound, int num_workers, events):
        cdef Counting *c = &self.counting
        cdef int e, k
        assert len(events) <= MOST_EVENTS
        self.bound, self.keep = bound, [attribute(*event) for event in events]
        shape = (num_workers, bound.num_loops, len(events), len(NUMBERS))
        self.files, self.sums = np.full(shape[::2], -1, np.int32), np.zeros(shape, np.int64)
        c.num_events, c.num_loops, c.flags = len(events), bound.num_loops, CLOSE_ON_EXEC
        c.files = <int32_t *> kept(self.keep, self.files, np.int32)
        c.sums = <int64_t *> kept(self.keep, self.sums, np.int64)
        c.threads = <int64_t *> kept(self.keep, np.zeros(num_workers, np.int64), np.int64)
        c.attributes = <const char **> kept(self.keep, np.zeros(max(len(events), 1), np.uintp), np.uintp)
        for e in range(len(events)):
            c.attributes[e] = <const char *> self.keep[e]
        records = np.zeros(bound.num_loops * sizeof(CountedLoop), np.uint8)
        self.loops = <CountedLoop *> kept(self.keep, records, np.uint8)
        for k in range(bound.num_loops):
            self.loops[k] = CountedLoop(bound.loops[k].kernel, bound.loops[k].args, c, k)

    @property
    def error(self):
        return self.counting.error

    def __enter__(self):
        cdef int k
        for k in range(self.bound.num_loops):
            self.bound.loops[k].kernel, self.bound.loops[k].args = <BlockKernel> _run_counted, &self.loops[k]
        return self

    def __exit__(self, *_):
        cdef int k
        for k in range(self.bound.num_loops):
            self.bound.loops[k].kernel, self.bound.loops[k].args = self.loops[k].kernel, self.loops[k].args
        for file in self.files[self.files >= 0]:
            close(file)
