"""Cython's view of the element-wise loops over tokens."""


cdef extern from "cython_src/kernels/elementwise/tokens_loops.h" nogil:
    ctypedef struct TokenElementLoops:
        void (*gelu)(const float *, float *, Py_ssize_t) noexcept nogil
        void (*gelu_backward)(const float *, const float *, float *, Py_ssize_t) noexcept nogil
        void (*add)(const float *, const float *, float *, Py_ssize_t) noexcept nogil
