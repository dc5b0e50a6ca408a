"""Cython's view of kernels/convolution/lanes_loops.h."""


cdef extern from "cython_src/kernels/convolution/lanes_loops.h" nogil:
    const int TAPS
    const int KERNEL

    ctypedef struct ConvTask:
        const float *input "in"
        const float *w
        const float *bias
        float *out
        Py_ssize_t in_channel, in_row, w_out, w_in, out_channel, out_row
        int channels_in, channels_out, rows, vectors, pixel, flip

    ctypedef struct WeightGradientTask:
        const float *dy
        const float *x
        float *out
        Py_ssize_t dy_group, dy_channel, dy_row, x_group, x_channel, x_row, out_channel
        int groups, channels_in, channels_out, rows, vectors, pixel, accumulate

    ctypedef struct LanesConvolutionLoops:
        void (*convolve)(const ConvTask *) noexcept nogil
        void (*weight_gradient)(const WeightGradientTask *) noexcept nogil
