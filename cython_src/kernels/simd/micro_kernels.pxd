"""Cython's view of the inner loops that are compiled once per instruction set."""

from libc.stdint cimport uint8_t

from ..attention.attention_loops cimport AttentionLoops
from ..depthwise.channels_loops cimport ChannelsDepthwiseLoops
from ..elementwise.channels_loops cimport ChannelsElementwiseLoops
from ..elementwise.tokens_loops cimport TokenElementLoops
from ..linear.linear_loops cimport LinearLoops
from ..loss.vocabulary_loops cimport VocabularyLoops
from ..norm.channels_loops cimport ChannelsNormLoops
from ..norm.tokens_loops cimport LayerNormLoops
from ..optimizer.optimizer_loops cimport OptimizerLoops
from ..pooling.channels_loops cimport ChannelsPoolingLoops
from .matrix_kernels cimport Matrix, Winograd


cdef extern from "cython_src/kernels/simd/micro_kernels.h" nogil:
    const int UNIT
    const int TAPS
    const int KERNEL

    ctypedef struct ConvTask:
        const float *input "in"
        const float *w
        const float *bias
        float *out
        Py_ssize_t in_channel, in_row, w_out, w_in, out_channel, out_row
        int channels_in, channels_out, rows, units, pixel, flip

    ctypedef struct WeightGradientTask:
        const float *dy
        const float *x
        float *out
        Py_ssize_t dy_group, dy_channel, dy_row, x_group, x_channel, x_row, out_channel
        int groups, channels_in, channels_out, rows, units, pixel, accumulate


cdef extern from "cython_src/kernels/convolution/lanes_forms_loops.h" nogil:
    ctypedef struct Extent:
        int top, bottom, left, right

    ctypedef struct ConvForms:
        void (*plain)(const ConvTask *, const Extent *) noexcept nogil
        void (*tested)(const ConvTask *, const Extent *) noexcept nogil
        void (*copy_taps)(const float *, Py_ssize_t, Py_ssize_t, int, int, int, float *) noexcept nogil
        void (*product)(const ConvTask *) noexcept nogil
        void (*gradient_plain)(const WeightGradientTask *, const Extent *) noexcept nogil
        void (*gradient_tested)(const WeightGradientTask *, const Extent *) noexcept nogil
        void (*gradient_product)(const WeightGradientTask *) noexcept nogil


cdef extern from "cython_src/kernels/simd/micro_kernels.h" nogil:
    const int WINOGRAD_TILE
    const int WINOGRAD_POINTS
    const int WINOGRAD_STRIP

    ctypedef struct WinogradTransform:
        const float *input "in"
        float *out
        Py_ssize_t in_channel, in_row, in_pixel, out_point, out_channel, out_tile
        int channels, tiles, rows, columns

    ctypedef struct WinogradProduct:
        const float *u
        const float *v
        float *m
        Py_ssize_t u_point, u_in, v_point, v_in, m_point, m_out
        int inputs, outputs, tiles

    ctypedef struct WinogradReduction:
        const float *a
        const float *b
        float *out
        Py_ssize_t a_point, a_row, b_point, out_point, out_row
        int rows, length, accumulate

    ctypedef struct Micro "MicroKernels":
        const char *name
        const Matrix *matrix
        const Winograd *winograd
        void (*conv)(const ConvTask *) noexcept nogil
        void (*weight_gradient)(const WeightGradientTask *) noexcept nogil
        void (*pool_row)(const float *, const float *, int, int, int, float *, uint8_t *) noexcept nogil
        void (*unpool_row)(const float *, const uint8_t *, int, int, float *, float *) noexcept nogil
        void (*relu)(const float *, float *, Py_ssize_t) noexcept nogil
        void (*relu_backward)(const float *, const float *, float *, Py_ssize_t) noexcept nogil
        void (*fc_forward)(const float *, const float *, const float *, float *, int, int, int) noexcept nogil
        void (*fc_backward_data)(const float *, const float *, float *, int, int, int) noexcept nogil
        void (*fc_backward_weights)(const float *, const float *, float *, int, int, int, int,
                                    int) noexcept nogil
        void (*sgd)(const float *, Py_ssize_t, int, float *, float *, float *, Py_ssize_t, float, float,
                    float) noexcept nogil
        void (*interleave_row)(const float *const *, int, float *) noexcept nogil
        const ChannelsDepthwiseLoops *channels_depthwise
        const ChannelsElementwiseLoops *channels_elementwise
        const ChannelsNormLoops *channels_norm
        const ChannelsPoolingLoops *channels_pooling
        const OptimizerLoops *optimizer
        void (*winograd_weights)(const float *, Py_ssize_t, Py_ssize_t, int, int, int, float *, Py_ssize_t,
                                 Py_ssize_t) noexcept nogil
        void (*winograd_input)(const WinogradTransform *) noexcept nogil
        void (*winograd_gradient)(const WinogradTransform *) noexcept nogil
        void (*winograd_multiply)(const WinogradProduct *) noexcept nogil
        void (*winograd_output)(const float *, Py_ssize_t, int, float, float *, Py_ssize_t) noexcept nogil
        void (*transpose_unit)(const float *, Py_ssize_t, int, float *, Py_ssize_t) noexcept nogil
        void (*winograd_reduce)(const WinogradReduction *) noexcept nogil
        void (*winograd_gradient_output)(const float *, Py_ssize_t, int, float *, Py_ssize_t,
                                         int) noexcept nogil
        float (*sum_rows)(const float *, int, Py_ssize_t, Py_ssize_t) noexcept nogil
        const ConvForms *forms
        const LinearLoops *linear
        const AttentionLoops *attention
        const LayerNormLoops *layernorm
        const TokenElementLoops *token_elements
        const VocabularyLoops *vocabulary
