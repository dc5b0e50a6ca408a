"""Cython's view of kernels/pooling/channels_loops.h."""

from ..maps.channels_planes cimport ChannelsTask
from ..maps.channels_windows cimport WindowTask


cdef extern from "cython_src/kernels/pooling/channels_loops.h" nogil:
    ctypedef struct ChannelsPoolingLoops:
        void (*max_pool)(const WindowTask *) noexcept nogil
        void (*max_pool_backward)(const WindowTask *) noexcept nogil
        void (*average_pool)(const WindowTask *) noexcept nogil
        void (*average_pool_backward)(const WindowTask *) noexcept nogil
        void (*global_mean)(const ChannelsTask *, float *, Py_ssize_t) noexcept nogil
        void (*spread)(const ChannelsTask *, const float *, Py_ssize_t, float) noexcept nogil
