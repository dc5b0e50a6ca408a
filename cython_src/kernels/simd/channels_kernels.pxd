"""Cython's view of the inner loops over maps with the channels in the vector lanes."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from ..maps.channels cimport ChannelsMap, channel_end, pixel


cdef extern from "cython_src/kernels/simd/channels_kernels.h" nogil:
    const int MASK_NONE, MASK_RESULT, MASK_ARGUMENT
    const int RESIDUAL_NONE, RESIDUAL_PLAIN, RESIDUAL_SCALED
    const int BRANCH_NONE, BRANCH_WRITE, BRANCH_ADD
    const int STRIP_FLOATS

    ctypedef struct ChannelPlane:
        float *p
        Py_ssize_t image, row

    ctypedef struct ChannelsTask:
        ChannelPlane plane[5]
        const float *vector[6]
        Py_ssize_t pitch
        int images, rows, pixels, channels
        int activation, mask, residual, accumulate, streamed

    ctypedef struct OptimizerTask:
        const float *partial
        float *gradient
        float *parameter
        float *first
        float *second
        Py_ssize_t partial_stride, row_length, row_stride, start, stop
        int partials
        float scale, rate, momentum, decay, shrink, beta1, beta2, eps, correction, step

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

    ctypedef struct ChannelsKernels:
        void (*statistics)(const ChannelsTask *, float *, Py_ssize_t) noexcept nogil
        void (*merge_statistics)(const float *, int, Py_ssize_t, int, float, float *, float *) noexcept nogil
        void (*sum_partials)(const float *, int, Py_ssize_t, int, float *) noexcept nogil
        void (*norm_apply)(const ChannelsTask *) noexcept nogil
        void (*norm_backward_statistics)(const ChannelsTask *, float *, Py_ssize_t) noexcept nogil
        void (*norm_backward_apply)(const ChannelsTask *) noexcept nogil
        void (*activate)(const ChannelsTask *) noexcept nogil
        void (*activate_backward)(const ChannelsTask *) noexcept nogil
        void (*dropout)(const ChannelsTask *, int, int, uint64_t, uint32_t, uint32_t, uint32_t, float) noexcept nogil
        void (*global_mean)(const ChannelsTask *, float *, Py_ssize_t) noexcept nogil
        void (*spread)(const ChannelsTask *, const float *, Py_ssize_t, float) noexcept nogil
        void (*sgd)(const OptimizerTask *) noexcept nogil
        void (*adam)(const OptimizerTask *) noexcept nogil
        float (*gradient_sum)(const OptimizerTask *) noexcept nogil
        void (*max_pool)(const WindowTask *) noexcept nogil
        void (*max_pool_backward)(const WindowTask *) noexcept nogil
        void (*average_pool)(const WindowTask *) noexcept nogil
        void (*average_pool_backward)(const WindowTask *) noexcept nogil
        void (*depthwise_pack)(const float *, int, int, int, int, float *) noexcept nogil
        void (*depthwise)(const WindowTask *) noexcept nogil
        void (*depthwise_backward_data)(const WindowTask *) noexcept nogil
        void (*depthwise_backward_weights)(const WindowTask *, float *) noexcept nogil
        void (*depthwise_backward)(const DepthwiseBackwardTask *) noexcept nogil


cdef inline ChannelsMap with_halo(const ChannelsMap *m, int halo) noexcept nogil:
    """A map that differs from another in its halo alone."""
    cdef ChannelsMap other = m[0]
    other.halo = halo
    return other


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
