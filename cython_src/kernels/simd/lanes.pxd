"""Cython's view of kernels/simd/lanes.h."""


cdef extern from "cython_src/kernels/simd/lanes.h" nogil:
    enum:
        LANES
