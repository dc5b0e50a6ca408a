"""Cython's view of the loops of layer normalisation."""


cdef extern from "cython_src/kernels/norm/tokens_loops.h" nogil:
    ctypedef struct LayerNormTask:
        const float *input "in"
        const float *residual
        float *sum
        const float *weight
        const float *bias
        float *out
        float *statistics
        Py_ssize_t features
        int rows
        float eps

    ctypedef struct LayerNormGradientTask:
        const float *gradient
        const float *input "in"
        const float *weight
        const float *statistics
        const float *residual
        float *out
        float *weight_gradient
        float *bias_gradient
        Py_ssize_t features
        int rows

    ctypedef struct LayerNormLoops:
        void (*forward)(const LayerNormTask *) noexcept nogil
        void (*backward)(const LayerNormGradientTask *) noexcept nogil
        void (*no_norm_forward)(const LayerNormTask *) noexcept nogil
        void (*no_norm_backward)(const LayerNormGradientTask *) noexcept nogil
