"""Cython's view of kernels/maps/channels_planes.h."""

from libc.stdint cimport int32_t

from .channels cimport ChannelsMap, channel_end, pixel


cdef extern from "cython_src/kernels/maps/channels_planes.h" nogil:
    const int MASK_NONE, MASK_RESULT, MASK_ARGUMENT
    const int RESIDUAL_NONE, RESIDUAL_PLAIN, RESIDUAL_SCALED
    const int BRANCH_NONE, BRANCH_WRITE, BRANCH_ADD

    ctypedef struct ChannelPlane:
        float *p
        Py_ssize_t image, row

    ctypedef struct ChannelsTask:
        ChannelPlane plane[5]
        const float *vector[6]
        Py_ssize_t pitch
        int images, rows, pixels, channels
        int activation, mask, residual, accumulate, streamed


cdef inline void set_plane(ChannelsTask *task, int number, void *p, const ChannelsMap *m,
                           const int32_t *bounds, int c0) noexcept nogil:
    """Plane of a block of images bounds[0:2] and rows bounds[2:4], from channel c0; NULL stays NULL."""
    task.plane[number].p = NULL
    task.plane[number].image = pixel(m, 1, 0, 0) - pixel(m, 0, 0, 0)
    task.plane[number].row = pixel(m, 0, 1, 0) - pixel(m, 0, 0, 0)
    if p != NULL:
        task.plane[number].p = <float *> p + pixel(m, bounds[0], bounds[2], 0) + c0


cdef inline void set_block(ChannelsTask *task, const ChannelsMap *m, const int32_t *bounds, int c0,
                           int c1) noexcept nogil:
    """Size of a block of images bounds[0:2] and rows bounds[2:4], channels [c0, c1), padding included."""
    task.pitch = m.pitch
    task.images = bounds[1] - bounds[0]
    task.rows = bounds[3] - bounds[2]
    task.pixels = m.width
    task.channels = channel_end(m, c1) - c0
    task.activation = task.mask = task.residual = task.accumulate = task.streamed = 0
