"""Cython's view of kernels/pooling/lanes_loops.h."""

from libc.stdint cimport uint8_t


cdef extern from "cython_src/kernels/pooling/lanes_loops.h" nogil:
    ctypedef struct LanesPoolingLoops:
        void (*pool_row)(const float *, const float *, int, int, int, float *, uint8_t *) noexcept nogil
        void (*unpool_row)(const float *, const uint8_t *, int, int, float *, float *) noexcept nogil
