"""Cython's view of kernels/load/load_loops.h."""

from libc.stdint cimport int32_t, uint8_t


cdef extern from "cython_src/kernels/load/load_loops.h" nogil:
    enum:
        TAPS_STEP

    ctypedef struct ScaledAxis:
        const int32_t *first
        const float *weights
        int count, taps

    ctypedef struct LoadLoops:
        void (*interleave_row)(const float *const *, int, float *) noexcept nogil
        void (*scale)(const uint8_t *, int, int, const ScaledAxis *, const ScaledAxis *, float *,
                      uint8_t *) noexcept nogil
