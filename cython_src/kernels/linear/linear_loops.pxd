"""Cython's view of the inner loops of linear layers."""


cdef extern from "cython_src/kernels/linear/linear_loops.h" nogil:
    Py_ssize_t LINEAR_FLOATS(Py_ssize_t terms, Py_ssize_t columns)
    Py_ssize_t LINEAR_GRADIENT_FLOATS(Py_ssize_t rows, Py_ssize_t outputs, Py_ssize_t inputs)
    const int LINEAR_COLUMNS
    const int LINEAR_RELU
    const int LINEAR_GELU

    ctypedef struct LinearTask:
        const float *a
        const float *b
        float *c
        Py_ssize_t a_row, b_row, c_row
        int rows, columns, terms, accumulate
        const float *bias
        const float *residual
        float *before
        const float *gelu_of
        const float *relu_of
        Py_ssize_t residual_row
        int activation
        float *scratch

    ctypedef struct LinearGradientTask:
        const float *gradient
        const float *input
        float *c
        float *bias
        Py_ssize_t gradient_row, input_row, c_row
        int rows, outputs, inputs, accumulate
        float *scratch

    ctypedef struct LinearLoops:
        void (*forward)(const LinearTask *) noexcept nogil
        void (*backward_data)(const LinearTask *) noexcept nogil
        void (*backward_weights)(const LinearGradientTask *) noexcept nogil
