"""Time of a hand-over from one thread to another: through a cache line, and through a futex on which one sleeps."""

import os

from ...cython_src.errors import UsageError


cdef extern from "experiments/machine/core_latency.h" nogil:
    int measure_handover(int first_cpu, int second_cpu, int sleeps, int rounds, double *seconds)


def measure_latency(int first_cpu, int second_cpu, *, bint sleeps=False, int rounds=20000, int windows=7):
    """Measure the seconds of a hand-over between threads on two CPUs; the least of several windows.

    Parameters
    ----------
    first_cpu, second_cpu : int
    sleeps : bool
        False: both spin, so it takes a cache line's way from core to core; True: each sleeps until the other wakes it.
    rounds, windows : int

    Raises
    ------
    UsageError
        The same CPU twice, or impossible numbers.
    OSError
        A CPU that this process may not use, or no thread could be started.
    """
    cdef double seconds
    cdef int error
    if first_cpu == second_cpu or min(first_cpu, second_cpu) < 0:
        raise UsageError(f"a hand-over needs two CPUs, got {first_cpu} and {second_cpu}")
    if rounds < 1 or windows < 1:
        raise UsageError(f"rounds and windows must be at least 1, got {rounds} and {windows}")
    found = []
    for _ in range(windows):
        with nogil:
            error = measure_handover(first_cpu, second_cpu, sleeps, rounds, &seconds)
        if error:
            raise OSError(error, f"{os.strerror(error)} (CPUs {first_cpu} and {second_cpu})")
        found.append(seconds)
    return min(found)
