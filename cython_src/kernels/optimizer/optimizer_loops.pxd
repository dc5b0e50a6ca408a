"""Cython's view of kernels/optimizer/optimizer_loops.h."""

cdef extern from "cython_src/kernels/optimizer/optimizer_loops.h" nogil:
    ctypedef struct OptimizerTask:
        const float *partial
        float *gradient
        float *parameter
        float *first
        float *second
        Py_ssize_t partial_stride, row_length, row_stride, start, stop
        int partials
        float scale, rate, momentum, decay, shrink, beta1, beta2, eps, correction, step

    ctypedef struct OptimizerLoops:
        void (*sgd)(const OptimizerTask *) noexcept nogil
        void (*adam)(const OptimizerTask *) noexcept nogil
        float (*gradient_sum)(const OptimizerTask *) noexcept nogil
        void (*lanes_sgd)(const float *, Py_ssize_t, int, float *, float *, float *, Py_ssize_t, float, float,
                          float) noexcept nogil
