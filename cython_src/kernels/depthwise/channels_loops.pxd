"""Cython's view of kernels/depthwise/channels_loops.h."""

from ..maps.channels_planes cimport ChannelPlane, ChannelsTask
from ..maps.channels_windows cimport WindowTask


cdef extern from "cython_src/kernels/depthwise/channels_loops.h" nogil:
    ctypedef struct DepthwiseBackwardTask:
        WindowTask window
        ChannelsTask norm
        ChannelPlane output
        const float *weight
        const float *mean
        const float *inv_std
        float *staged
        float *sums
        float *partials
        Py_ssize_t partials_stride

    ctypedef struct ChannelsDepthwiseLoops:
        void (*pack)(const float *, int, int, int, int, float *) noexcept nogil
        void (*forward)(const WindowTask *) noexcept nogil
        void (*backward_data)(const WindowTask *) noexcept nogil
        void (*backward_weights)(const WindowTask *, float *) noexcept nogil
        void (*backward)(const DepthwiseBackwardTask *) noexcept nogil
