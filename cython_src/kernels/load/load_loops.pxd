"""Cython's view of kernels/load/load_loops.h."""


cdef extern from "cython_src/kernels/load/load_loops.h" nogil:
    ctypedef struct LoadLoops:
        void (*interleave_row)(const float *const *, int, float *) noexcept nogil
