"""Cython's view of kernels/elementwise/channels_loops.h."""

from libc.stdint cimport uint32_t, uint64_t

from ..maps.channels_planes cimport ChannelsTask


cdef extern from "cython_src/kernels/elementwise/channels_loops.h" nogil:
    ctypedef struct ChannelsElementwiseLoops:
        void (*activate)(const ChannelsTask *) noexcept nogil
        void (*activate_backward)(const ChannelsTask *) noexcept nogil
        void (*dropout)(const ChannelsTask *, int, int, uint64_t, uint32_t, uint32_t, uint32_t, float) noexcept nogil
