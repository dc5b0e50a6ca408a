"""Cython's view of kernels/maps/lanes_loops.h."""


cdef extern from "cython_src/kernels/maps/lanes_loops.h" nogil:
    ctypedef struct LanesReduction:
        const float *a
        const float *b
        float *out
        Py_ssize_t a_point, a_row, b_point, out_point, out_row
        int rows, length, accumulate

    ctypedef struct LanesLoops:
        void (*transpose)(const float *, Py_ssize_t, int, float *, Py_ssize_t) noexcept nogil
        float (*sum_rows)(const float *, int, Py_ssize_t, Py_ssize_t) noexcept nogil
