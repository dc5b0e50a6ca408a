"""Cython's view of kernels/norm/channels_loops.h."""

from ..maps.channels_planes cimport ChannelsTask


cdef extern from "cython_src/kernels/norm/channels_loops.h" nogil:
    ctypedef struct ChannelsNormLoops:
        void (*statistics)(const ChannelsTask *, float *, Py_ssize_t) noexcept nogil
        void (*merge_statistics)(const float *, int, Py_ssize_t, int, float, float *, float *) noexcept nogil
        void (*sum_partials)(const float *, int, Py_ssize_t, int, float *) noexcept nogil
        void (*apply)(const ChannelsTask *) noexcept nogil
        void (*backward_statistics)(const ChannelsTask *, float *, Py_ssize_t) noexcept nogil
        void (*backward_apply)(const ChannelsTask *) noexcept nogil
