"""Measured limits of this machine: arithmetic peak, memory bandwidth, capacity of several threads, clock.

Everything here runs on threads of its own, without OpenMP and without the GIL, for a fraction of a second. A
figure is the best of several short windows: interruptions can only lower a rate. The medians come along,
because a median far below the best says that the machine is disturbed now.
"""

import os
import statistics
from array import array

from ...cython_src.affinity import may_pin, start_remedy
from ...cython_src.errors import MachineError
from ...cython_src.kernels.simd.instruction_sets import choose


cdef extern from "experiments/machine/machine_peaks.h" nogil:
    int PEAKS_FMA, PEAKS_TRIAD, PEAKS_UPDATE, PEAKS_CHAIN, PEAKS_ADDS
    int peaks_run_team(int kind, int isa, int num_threads, const int *cpus, size_t bytes_per_thread,
                       int num_windows, double window_s, double *rates)
    void peaks_clock(double *cost_ns, double *step_ns)


# A window is shorter than the slice that a busy scheduler gives a thread, so that some windows are undisturbed; for
# memory it is long enough to pass through more than any cache holds.
_WINDOW_S = 0.002
_MEMORY_WINDOW_S = 0.01


_ISAS = ("generic", "avx2", "avx512")  # as in machine_peaks.h


def _isa_index(instruction_set):
    return _ISAS.index(choose(instruction_set).removesuffix("_narrow"))


def _run_team(int kind, int isa, int threads, cpus, size_t bytes_per_thread, double seconds):
    """Return the rates (units per second of the team) of the windows that fit into `seconds`, at least three. Where the
    system forbids pinning, threads run anywhere.

    Raises
    ------
    MachineError
        A CPU that this process may not use, or no thread could be started.
    """
    cdef double wanted_s = _MEMORY_WINDOW_S if bytes_per_thread > 32 << 20 else _WINDOW_S
    cdef int num_windows = max(3, round(seconds / wanted_s)), error
    cdef double[::1] rates = array("d", bytes(8 * num_windows))
    cdef int[::1] places = array("i", cpus if cpus is not None and may_pin() else [-1] * threads)
    with nogil:
        error = peaks_run_team(kind, isa, threads, &places[0], bytes_per_thread, num_windows, seconds / num_windows,
                               &rates[0])
    if error:
        raise MachineError(
            f"{threads} threads must be able to start on their CPUs, and the system refused ({os.strerror(error)}); "
            f"{start_remedy(error)}")
    return list(rates)


def measure_peak_flops(double seconds=0.1, instruction_set=None, cpu=None):
    """Measure the highest float32 multiply-add rate of one thread.

    Twelve independent chains x -> a x + b in vector registers; each step counts 2 flops a lane. The generic
    instruction set of x86-64 has no fused multiply-add: there a step is a multiplication and an addition.

    Parameters
    ----------
    seconds : float
        Half of it for the chains, half for the frequency.
    instruction_set : {"generic", "avx2", "avx512"}, optional
        Default: that of the kernels, see `instruction_sets.choose`.
    cpu : int, optional
        Logical CPU to pin to.

    Returns
    -------
    dict
        "flops_per_s", "median_flops_per_s", "instruction_set", "frequency_hz" (see `measure_frequency`, taken
        in between), "flops_per_cycle" (their ratio: 2 pipes x 16 lanes x 2 = 64 on a full AVX-512 core).

    Raises
    ------
    UsageError
        For an instruction set this CPU lacks.
    """
    isa = _isa_index(instruction_set)
    cpus = None if cpu is None else [cpu]
    rates = []
    frequency = 0.0
    for _ in range(3):  # They take turns, so that both see the same frequency.
        rates += _run_team(PEAKS_FMA, isa, 1, cpus, 0, seconds / 6)
        frequency = max(frequency, measure_frequency(seconds / 6, cpu))
    return {
        "flops_per_s": max(rates),
        "median_flops_per_s": statistics.median(rates),
        "instruction_set": _ISAS[isa],
        "frequency_hz": frequency,
        "flops_per_cycle": max(rates) / frequency,
    }


def measure_frequency(double seconds=0.02, cpu=None):
    """Measure the effective core frequency in Hz: the rate of a chain of dependent one-cycle additions."""
    return max(_run_team(PEAKS_CHAIN, 0, 1, None if cpu is None else [cpu], 0, seconds))


def measure_additions(double seconds=0.02, cpu=None):
    """Measure how many independent integer additions a CPU does in a clock cycle: what it can issue.

    A virtual CPU whose sibling hyperthread works for another guest has half of it, while its multiply-adds, of which a
    few at a time fill the vector units, hardly slow down: the peak does not show it. The median of the windows counts.
    """
    cpus = None if cpu is None else [cpu]
    cdef double additions = statistics.median(_run_team(PEAKS_ADDS, 0, 1, cpus, 0, seconds / 2))
    return additions / statistics.median(_run_team(PEAKS_CHAIN, 0, 1, cpus, 0, seconds / 2))


_STREAMS = {"triad": PEAKS_TRIAD, "update": PEAKS_UPDATE}


def measure_bandwidth(int threads=1, double seconds=0.1, Py_ssize_t working_set_bytes=256 << 20, cpus=None,
                      stream="triad"):
    """Measure the memory bandwidth of a loop over arrays, in bytes per second of all threads together.

    The loop is a triad a[i] = b[i] + s c[i], or it updates an array in place. As in STREAM, each array counts once, and
    twice if it is updated; the line fill that a store causes is not counted.

    Parameters
    ----------
    threads : int
    seconds : float
        Measured time; allocating and first touch come on top (about 0.1 s for 256 MiB).
    working_set_bytes : int
        Of all threads and arrays together. Several times the last-level cache gives memory bandwidth; half of
        a cache level gives that level's.
    cpus : sequence of int, optional
        One logical CPU for each thread.
    stream : {"triad", "update"}

    Returns
    -------
    float
    """
    return max(_run_team(_STREAMS[stream], _isa_index(None), threads, cpus, working_set_bytes // threads, seconds))


def measure_capacity(int threads, double seconds=0.1, cpus=None):
    """Measure the arithmetic of `threads` spinning threads together, in multiples of a single thread's.

    2.0 for two threads on two cores; 1.0 if two logical CPUs are one core. One thread and `threads` threads
    take turns and the best of each counts, so that a slow drift of the machine does not enter the ratio.

    Parameters
    ----------
    threads : int
    seconds : float
        Split evenly between one thread and all.
    cpus : sequence of int, optional
        One logical CPU for each thread; the single thread runs on the first.

    Returns
    -------
    float
    """
    isa = _isa_index(None)
    first = None if cpus is None else list(cpus)[:1]
    alone, together = 0.0, 0.0
    for _ in range(3):
        alone = max(alone, *_run_team(PEAKS_FMA, isa, 1, first, 0, seconds / 6))
        together = max(together, *_run_team(PEAKS_FMA, isa, threads, cpus, 0, seconds / 6))
    return together / alone


def measure_memory(int threads=1, double seconds=0.1, Py_ssize_t working_set_bytes=256 << 20, cpus=None):
    """Measure the highest rate at which threads get data from memory and bring them back, as in `measure_bandwidth`.

    The higher one of a triad and an update in place. No line is fetched for an update that is not counted: so it stands
    for optimizers, and only data in caches are faster than both.
    """
    return max(measure_bandwidth(threads, seconds / 2, working_set_bytes, cpus, stream)
               for stream in ("update", "triad"))


def measure_clock():
    """Measure the cost of reading the monotonic clock and its smallest step seen: (cost_ns, step_ns)."""
    cdef double cost_ns, step_ns
    with nogil:
        peaks_clock(&cost_ns, &step_ns)
    return cost_ns, step_ns
