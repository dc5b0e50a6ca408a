"""Cython's view of kernels/convolution/lanes_winograd_loops.h."""

from ..maps.lanes_loops cimport LanesReduction


cdef extern from "cython_src/kernels/convolution/lanes_winograd_loops.h" nogil:
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

    ctypedef struct LanesWinogradLoops:
        void (*weights)(const float *, Py_ssize_t, Py_ssize_t, int, int, int, float *, Py_ssize_t,
                        Py_ssize_t) noexcept nogil
        void (*input)(const WinogradTransform *) noexcept nogil
        void (*gradient)(const WinogradTransform *) noexcept nogil
        void (*multiply)(const WinogradProduct *) noexcept nogil
        void (*output)(const float *, Py_ssize_t, int, float, float *, Py_ssize_t) noexcept nogil
        void (*reduce)(const LanesReduction *) noexcept nogil
        void (*gradient_output)(const float *, Py_ssize_t, int, float *, Py_ssize_t, int) noexcept nogil
