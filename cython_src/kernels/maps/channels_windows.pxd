"""Cython's view of kernels/maps/channels_windows.h."""

from libc.stdint cimport int32_t, int64_t, uint8_t

from .channels cimport ChannelsMap, channel_end
from .channels_planes cimport ChannelPlane, ChannelsTask, set_plane


cdef extern from "cython_src/kernels/maps/channels_windows.h" nogil:
    ctypedef struct WindowTask:
        ChannelPlane input "in"
        ChannelPlane out
        const float *weight
        const float *bias
        const float *scale
        const float *shift
        float *staged
        uint8_t *index
        float *statistics
        Py_ssize_t pitch, statistics_stride
        int num_ahead, images, y0, y1, channels, large_height, large_width, large_halo, small_height, small_width
        int kernel, stride, padding, accumulate, activation, in_activation


cdef inline void set_windows(WindowTask *task, void *source, const ChannelsMap *source_map, void *target,
                             const ChannelsMap *target_map, int backward, const int64_t *window,
                             const int32_t *bounds) noexcept nogil:
    """Windows between two maps, block bounds (images, rows of the target, channels), window = (kernel, stride,
    padding). Forward the source is the large side, backward the target."""
    cdef const ChannelsMap *large = target_map if backward else source_map
    cdef const ChannelsMap *small = source_map if backward else target_map
    cdef int32_t *box = [bounds[0], bounds[1], 0, 0]
    cdef ChannelsTask planes
    set_plane(&planes, 0, source, source_map, box, bounds[4])
    set_plane(&planes, 1, target, target_map, box, bounds[4])
    task.input = planes.plane[0]
    task.out = planes.plane[1]
    task.weight = task.bias = task.scale = task.shift = NULL
    task.staged = NULL
    task.index = NULL
    task.statistics = NULL
    task.pitch = target_map.pitch
    task.images = bounds[1] - bounds[0]
    task.y0 = bounds[2]
    task.y1 = bounds[3]
    task.channels = channel_end(target_map, bounds[5]) - bounds[4]
    task.large_height = large.height
    task.large_width = large.width
    task.large_halo = large.halo
    task.small_height = small.height
    task.small_width = small.width
    task.kernel = <int> window[0]
    task.stride = <int> window[1]
    task.padding = <int> window[2]
    task.accumulate = task.activation = task.in_activation = task.num_ahead = 0
