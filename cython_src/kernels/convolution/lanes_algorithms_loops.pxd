"""Cython's view of kernels/convolution/lanes_algorithms_loops.h."""

from .lanes_loops cimport ConvTask, WeightGradientTask


cdef extern from "cython_src/kernels/convolution/lanes_algorithms_loops.h" nogil:
    ctypedef struct Extent:
        int top, bottom, left, right

    ctypedef struct LanesAlgorithmsLoops:
        void (*plain)(const ConvTask *, const Extent *) noexcept nogil
        void (*tested)(const ConvTask *, const Extent *) noexcept nogil
        void (*copy_taps)(const float *, Py_ssize_t, Py_ssize_t, int, int, int, float *) noexcept nogil
        void (*product)(const ConvTask *) noexcept nogil
        void (*gradient_plain)(const WeightGradientTask *, const Extent *) noexcept nogil
        void (*gradient_tested)(const WeightGradientTask *, const Extent *) noexcept nogil
        void (*gradient_product)(const WeightGradientTask *) noexcept nogil
