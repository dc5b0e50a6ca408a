"""Cython's view of kernels/elementwise/relu_loops.h."""


cdef extern from "cython_src/kernels/elementwise/relu_loops.h" nogil:
    ctypedef struct ReluLoops:
        void (*forward)(const float *, float *, Py_ssize_t) noexcept nogil
        void (*backward)(const float *, const float *, float *, Py_ssize_t) noexcept nogil
