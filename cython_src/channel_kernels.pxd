"""Cython's view of the inner loops over maps with the channels in the vector lanes."""

from libc.stdint cimport int32_t

from .kernel_nhwc cimport ChannelMap, channel_end, pixel


cdef extern from "channel_kernels.h" nogil:
    const int MASK_NONE, MASK_RESULT, MASK_ARGUMENT
    const int RESIDUAL_NONE, RESIDUAL_PLAIN, RESIDUAL_SCALED
    const int BRANCH_NONE, BRANCH_WRITE, BRANCH_ADD

    ctypedef struct ChannelPlane:
        float *p
        Py_ssize_t image, row

    ctypedef struct ChannelTask:
        ChannelPlane plane[5]
        const float *vector[6]
        Py_ssize_t pitch
        int images, rows, pixels, channels
        int activation, mask, residual, accumulate

    ctypedef struct ChannelKernels:
        void (*statistics)(const ChannelTask *, float *, Py_ssize_t) noexcept nogil
        void (*merge_statistics)(const float *, int, Py_ssize_t, int, float, float *, float *) noexcept nogil
        void (*sum_partials)(const float *, int, Py_ssize_t, int, float *) noexcept nogil
        void (*norm_apply)(const ChannelTask *) noexcept nogil
        void (*norm_backward_statistics)(const ChannelTask *, float *, Py_ssize_t) noexcept nogil
        void (*norm_backward_apply)(const ChannelTask *) noexcept nogil
        void (*activate)(const ChannelTask *) noexcept nogil
        void (*activate_backward)(const ChannelTask *) noexcept nogil


cdef inline ChannelMap with_halo(const ChannelMap *m, int halo) noexcept nogil:
    """A map that differs from another in its halo alone."""
    cdef ChannelMap other = m[0]
    other.halo = halo
    return other


cdef inline void set_plane(ChannelTask *task, int number, void *p, const ChannelMap *m,
                           const int32_t *bounds, int c0) noexcept nogil:
    """Plane of a block of images bounds[0:2] and rows bounds[2:4], from channel c0; NULL stays NULL."""
    task.plane[number].p = NULL
    task.plane[number].image = pixel(m, 1, 0, 0) - pixel(m, 0, 0, 0)
    task.plane[number].row = pixel(m, 0, 1, 0) - pixel(m, 0, 0, 0)
    if p != NULL:
        task.plane[number].p = <float *> p + pixel(m, bounds[0], bounds[2], 0) + c0


cdef inline void set_block(ChannelTask *task, const ChannelMap *m, const int32_t *bounds, int c0,
                           int c1) noexcept nogil:
    """Size of a block of images bounds[0:2] and rows bounds[2:4], channels [c0, c1), padding included."""
    task.pitch = m.pitch
    task.images = bounds[1] - bounds[0]
    task.rows = bounds[3] - bounds[2]
    task.pixels = m.width
    task.channels = channel_end(m, c1) - c0
    task.activation = task.mask = task.residual = task.accumulate = 0
