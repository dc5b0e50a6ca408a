"""Cython's view of kernels/dense/dense_loops.h."""


cdef extern from "cython_src/kernels/dense/dense_loops.h" nogil:
    ctypedef struct DenseLoops:
        void (*forward)(const float *, const float *, const float *, float *, int, int, int) noexcept nogil
        void (*backward_data)(const float *, const float *, float *, int, int, int) noexcept nogil
        void (*backward_weights)(const float *, const float *, float *, int, int, int, int, int) noexcept nogil
