"""Cython's view of kernels/convolution/channels_loops.h."""

from libc.stdint cimport int32_t


cdef extern from "cython_src/kernels/convolution/channels_loops.h" nogil:
    const int GROUP_PIXELS

    ctypedef struct Tap:
        Py_ssize_t a, b

    ctypedef struct PixelGroup:
        Py_ssize_t a, c
        int32_t first, count

    ctypedef struct ProductTask:
        const float *a
        const float *b
        const float *bias
        float *c
        const Tap *taps
        const PixelGroup *groups
        const int32_t *panel_input
        Py_ssize_t pixel, out_pixel, panel
        int num_taps, k, num_groups, num_panels, last_columns, activation, accumulate, store_columns
        int more_groups

    void request_writes(const float *at, int n)

    ctypedef struct Request:
        const float *at
        Py_ssize_t image, row, pixel
        int lines

    ctypedef struct OuterTask:
        const float *a
        const float *b
        float *c
        Py_ssize_t image, row, pixel
        int images, rows, columns, m, width
        Request ahead[2]

    ctypedef struct ChannelsConvolutionLoops:
        void (*product)(const ProductTask *) noexcept nogil
        void (*outer)(const OuterTask *) noexcept nogil
        void (*transpose_rows)(const float *, const int32_t *, int, int, float *, Py_ssize_t, int) noexcept nogil
        void (*spread_rows)(const float *, Py_ssize_t, int, int, const int32_t *, int, float *) noexcept nogil
        void (*gather)(const float *, Py_ssize_t, int, int, float *) noexcept nogil
        void (*shifted_sums)(const float *, Py_ssize_t, int, const float *, float *, float *) noexcept nogil
