"""Time of a hand-over from one thread to another: through a cache line, and through a futex on which one sleeps.

Functions raise `OSError` for a CPU that this process may not use, or where no thread could be started.
"""

import os


cdef extern from "experiments/machine/core_latency.h" nogil:
    int measure_handover(int first_cpu, int second_cpu, int sleeps, int rounds, size_t num_bytes, double *seconds)


def measure_transfer(int first_cpu, int second_cpu, size_t num_bytes, int rounds=50, int windows=40):
    """Measure by how many seconds a byte that another core wrote takes longer than one in the own core's cache.

    A thread reads data and writes them anew, in turns with a thread on another CPU, and by itself; the least of several
    windows of both counts. The hand-over itself is left out.

    Parameters
    ----------
    first_cpu, second_cpu : int
    num_bytes : int
        A small part of a core's own cache: a window is then shorter than the slice that a busy system gives a thread.
    rounds, windows : int
    """
    apart = _least(first_cpu, second_cpu, 0, rounds, num_bytes, windows)
    empty = _least(first_cpu, second_cpu, 0, rounds, 0, windows)
    alone = _least(first_cpu, first_cpu, 0, rounds, num_bytes, windows)
    return max(apart - empty - alone, 0.0) / num_bytes


def measure_latency(int first_cpu, int second_cpu, *, bint sleeps=False, int rounds=20000, int windows=7):
    """Measure the seconds of a hand-over between threads on two CPUs; the least of several windows.

    Parameters
    ----------
    first_cpu, second_cpu : int
    sleeps : bool
        False: both spin, so it takes a cache line's way from core to core; True: each sleeps until the other wakes it.
    rounds, windows : int
    """
    return _least(first_cpu, second_cpu, sleeps, rounds, 0, windows)


cdef double _least(int first_cpu, int second_cpu, int sleeps, int rounds, size_t num_bytes, int windows) except -1:
    """Return the least seconds of a hand-over in several windows."""
    cdef double seconds, least = float("inf")
    cdef int error
    for _ in range(windows):
        with nogil:
            error = measure_handover(first_cpu, second_cpu, sleeps, rounds, num_bytes, &seconds)
        if error:
            raise OSError(error, f"{os.strerror(error)} (CPUs {first_cpu} and {second_cpu})")
        least = min(least, seconds)
    return least
