"""What the runtimes use of a team of threads."""

from libc.stdint cimport int64_t

from ..cython_src.binding.bind cimport BoundPlan, Workers
from .headers cimport CpuSwap, CTeam, Scheduler, TeamJob


cdef class Team:
    cdef CTeam team
    cdef readonly int num_threads
    cdef readonly int64_t spin_ns
    cdef readonly str preemption
    cdef int owner_pid

    cdef int touch(self, Workers workers, Py_ssize_t scratch_bytes) except -1
    cdef object drive(self, TeamJob job, void *argument, Scheduler *scheduler, object dump, double watchdog_s)
    cdef CpuSwap *cpu_swap(self, BoundPlan bound) except? NULL
