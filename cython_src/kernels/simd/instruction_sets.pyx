"""Which forms of the compiled kernels this processor can run, which one is used, and the lanes they all count in."""

from libc.stdint cimport uintptr_t

from simd_c cimport LANES as LANES_IN_C

import os

from ...errors import UsageError

ENVIRONMENT_VARIABLE = "FORKTASK_ISA"


cdef extern from *:
    """
    #include "cython_src/kernels/simd/micro_kernels.h"

    static const MicroKernels *forktask_micro_table(int which)
    {
    #if defined(__x86_64__)
        __builtin_cpu_init();
        if (which == 1 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
            return &forktask_micro_avx2;
        if (which >= 2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")
            && __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq")
            && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx2")
            && __builtin_cpu_supports("fma"))
            return which == 2 ? &forktask_micro_avx512_narrow : &forktask_micro_avx512;
    #endif
        return which == 0 ? &forktask_micro_generic : NULL;
    }
    """
    const void *forktask_micro_table(int which) nogil


# "avx512_narrow" multiplies matrices in tiles of 12 x 32 alone, which some processors may prefer to 6 x 64; same bits.
NAMES = ("generic", "avx2", "avx512_narrow", "avx512")
# Floats of a vector, on every instruction set; simd/lanes.h says what they are in each layout.
LANES = LANES_IN_C


def available():
    """Names of the instruction sets that were compiled in and that this processor has, slowest first."""
    return [name for i, name in enumerate(NAMES) if forktask_micro_table(i) != NULL]


def choose(name=None):
    """The instruction set to use: `name`, else the environment variable FORKTASK_ISA, else the best
    available.

    Raises
    ------
    UsageError
        A name that is unknown, or that this processor cannot run.
    """
    source = "instruction set"
    if name is None and os.environ.get(ENVIRONMENT_VARIABLE):
        name, source = os.environ[ENVIRONMENT_VARIABLE], ENVIRONMENT_VARIABLE
    present = available()
    if name is None:
        return present[len(present) - 1]
    if name not in present:
        raise UsageError(f"{source} must be one this processor has ({', '.join(present)}), got {name!r}")
    return name


def micro_kernels_address(name):
    """Address of the table of inner loops for an instruction set that `available` lists."""
    return <uintptr_t> forktask_micro_table(NAMES.index(choose(name)))
