"""Maximum, average and global average pooling, forward and backward, with the channels in the vector lanes.

The maximum keeps which element of its window it was (ky kernel + kx, the first of equals). What lies outside the map
never is a maximum, and counts as zero in an average, which always divides by kernel^2 (PyTorch's default). Backward
passes gather: each element of the gradient adds up what the windows it lies in send it, row by row, in order.

With the images in the lanes windows are 2 x 2. The forward pass keeps which element each maximum was (0 to 3); 4 means
that ReLU stopped it, so that the backward pass needs no activations.
"""

from pooling_c cimport *

from ..maps.nchw cimport clear_halo, offset
from ..maps.nhwc cimport block_task, channel_end, clear_channel_halo, clear_pixels, pixel, set_plane, windows_task

import numpy as np

from ..interface.kernel_spec import implement
from ..maps.nchw import box, clear_box_halo, interior, pooling_windows, unpool
from ..maps.nhwc import all_rows, channels_of, inside, scatter_windows, window_of, windows, write_block
from .specs import KERNELS


cdef inline uint8_t *index_of(uint8_t *index, const NhwcMap *m, const Box *b) noexcept nogil:
    """Places of the maxima of a block's images, in a map without halo; NULL of means."""
    return index + b.n0 * <Py_ssize_t> m.height * m.width * m.pitch + b.c0 if index != NULL else NULL


cdef int pool(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    cdef nhwc_pool_args a = read_nhwc_pool(args, block)
    cdef WindowTask task = windows_task(a.input, &a.in_map, a.output, &a.out_map, False, &a.window, &a.box)
    task.index = index_of(a.index, &a.out_map, &a.box)
    if a.index != NULL:
        nhwc_pooling_loops(a.micro).max_pool(&task)
    else:
        nhwc_pooling_loops(a.micro).average_pool(&task)
    clear_channel_halo(&a.out_map, a.output, &a.box)
    return 0


cdef int pool_backward(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    cdef nhwc_pool_backward_args a = read_nhwc_pool_backward(args, block)
    cdef WindowTask task = windows_task(a.gradient, &a.in_map, a.output, &a.out_map, True, &a.window, &a.box)
    task.index = index_of(a.index, &a.in_map, &a.box)
    task.accumulate = a.accumulate
    if a.index != NULL:
        nhwc_pooling_loops(a.micro).max_pool_backward(&task)
    else:
        nhwc_pooling_loops(a.micro).average_pool_backward(&task)
    if not a.accumulate:
        clear_channel_halo(&a.out_map, a.output, &a.box)
    return 0


cdef int global_pool(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    cdef nhwc_global_pool_args a = read_nhwc_global_pool(args, block)
    cdef NhwcTask task
    a.box.y0, a.box.y1 = 0, a.in_map.height
    task = block_task(&a.in_map, &a.box)
    task.channels = a.box.c1 - a.box.c0
    set_plane(&task, 0, a.input, &a.in_map, &a.box)
    nhwc_pooling_loops(a.micro).global_mean(
        &task, a.output + <Py_ssize_t> a.box.n0 * a.in_map.channels + a.box.c0, a.in_map.channels)
    return 0


cdef int global_pool_backward(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    cdef nhwc_global_pool_backward_args a = read_nhwc_global_pool_backward(args, block)
    cdef NhwcMap *m = &a.out_map
    cdef int n, y
    cdef NhwcTask task = block_task(m, &a.box)
    task.channels = a.box.c1 - a.box.c0
    task.accumulate = a.accumulate
    set_plane(&task, 0, a.output, m, &a.box)
    nhwc_pooling_loops(a.micro).spread(
        &task, a.gradient + <Py_ssize_t> a.box.n0 * m.channels + a.box.c0, m.channels,
        <float> (1.0 / (m.height * m.width)))
    if a.accumulate:
        return 0
    clear_channel_halo(m, a.output, &a.box)
    for n in range(a.box.n0, a.box.n1):
        for y in range(a.box.y0, a.box.y1):
            clear_pixels(m, a.output + pixel(m, n, y, 0), m.width, a.box.c1, channel_end(m, a.box.c1))
    return 0


# index: uint8, (batch, output height, output width, pitch), of maxima. Backward bounds: rows of the input's gradient.
@implement(KERNELS, "nhwc_pool", <uintptr_t> &pool)
def _pool_reference(operands, attributes, bounds, iteration):
    maximum = "index" in operands
    x = all_rows(operands["input"], attributes, "in", bounds)
    y0, y1 = bounds["y0"], bounds["y1"]
    taps = windows(x, *window_of(attributes), y0, y1, attributes["out_width"], -np.inf if maximum else 0)
    values = np.stack([part for _, part in taps])
    if maximum:
        index = operands["index"][bounds["n0"] : bounds["n1"], y0:y1]
        channels_of(index, bounds, attributes["out_pitch"])[...] = values.argmax(axis=0)
    write_block(operands["output"], attributes, "out", bounds, values.max(axis=0) if maximum else values.mean(axis=0))


@implement(KERNELS, "nhwc_pool_backward", <uintptr_t> &pool_backward)
def _pool_backward_reference(operands, attributes, bounds, iteration):
    """Add up the output's gradients as they go to each tap's element."""
    dy = all_rows(operands["gradient"], attributes, "in", bounds)
    shape, share = all_rows(operands["output"], attributes, "out", bounds).shape, dy / attributes["kernel"] ** 2
    index = None
    if "index" in operands:
        index = channels_of(operands["index"][bounds["n0"] : bounds["n1"]], bounds, attributes["in_pitch"])
    total = scatter_windows(lambda tap: share if index is None else np.where(index == tap, dy, 0), shape,
                            *window_of(attributes), operands["output"].dtype)
    write_block(operands["output"], attributes, "out", bounds, total[:, bounds["y0"] : bounds["y1"]],
                accumulate=attributes["accumulate"])


# The pooled side is (batch, channels, 1), what the fully connected layer takes with lanes = 1.
@implement(KERNELS, "nhwc_global_pool", <uintptr_t> &global_pool)
def _global_reference(operands, attributes, bounds, iteration):
    everything = {name: bounds[name] for name in ("n0", "n1")}
    mean = inside(operands["input"], attributes, "in", everything).mean(axis=(1, 2))
    c = slice(bounds["c0"], bounds["c1"])
    operands["output"][bounds["n0"] : bounds["n1"], c, 0] = mean[:, c]


@implement(KERNELS, "nhwc_global_pool_backward", <uintptr_t> &global_pool_backward)
def _global_backward_reference(operands, attributes, bounds, iteration):
    n, c = slice(bounds["n0"], bounds["n1"]), slice(bounds["c0"], bounds["c1"])
    g = operands["gradient"][n, c, 0][:, None, None] / (attributes["out_height"] * attributes["out_width"])
    write_block(operands["output"], attributes, "out", bounds, g, accumulate=attributes["accumulate"])


cdef int nchw_pool_forward(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """Y = maximum of each window of X."""
    cdef pool_forward_args a = read_pool_forward(args, block)
    cdef int g, c, y
    cdef Py_ssize_t at
    for g in range(a.box.g0, a.box.g1):
        for c in range(a.box.c0, a.box.c1):
            for y in range(a.box.y0, a.box.y1):
                at = (<Py_ssize_t> g * a.out_map.channels + c) * a.out_map.height + y
                nchw_pooling_loops(a.micro).pool_row(
                    a.input + offset(&a.in_map, g, c, 2 * y), a.input + offset(&a.in_map, g, c, 2 * y + 1),
                    a.out_map.width, a.out_map.lanes, 0, a.output + offset(&a.out_map, g, c, y),
                    a.index + at * a.out_map.width * a.out_map.lanes)
            clear_halo(&a.out_map, a.output, g, c, a.box.y0, a.box.y1)
    return 0


cdef int nchw_pool_backward(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """dX = dY where the index points, else zero. Bounds: pooled rows."""
    cdef pool_backward_args a = read_pool_backward(args, block)
    cdef int g, c, y
    cdef Py_ssize_t at
    for g in range(a.box.g0, a.box.g1):
        for c in range(a.box.c0, a.box.c1):
            for y in range(a.box.y0, a.box.y1):
                at = (<Py_ssize_t> g * a.in_map.channels + c) * a.in_map.height + y
                nchw_pooling_loops(a.micro).unpool_row(
                    a.gradient + offset(&a.in_map, g, c, y), a.index + at * a.in_map.width * a.in_map.lanes,
                    a.in_map.width, a.in_map.lanes, a.output + offset(&a.out_map, g, c, 2 * y),
                    a.output + offset(&a.out_map, g, c, 2 * y + 1))
            clear_halo(&a.out_map, a.output, g, c, 2 * a.box.y0, 2 * a.box.y1)
    return 0


@implement(KERNELS, "pool_forward", <uintptr_t> &nchw_pool_forward)
def _pool_forward_reference(operands, attributes, bounds, iteration):
    x = interior(operands["input"], attributes, "in")[box(bounds, 2)]
    values = pooling_windows(x)
    operands["index"][box(bounds)] = values.argmax(axis=0)
    interior(operands["output"], attributes, "out")[box(bounds)] = values.max(axis=0)
    clear_box_halo(operands["output"], attributes, bounds)


@implement(KERNELS, "pool_backward", <uintptr_t> &nchw_pool_backward)
def _nchw_pool_backward_reference(operands, attributes, bounds, iteration):
    dy = interior(operands["gradient"], attributes, "in")[box(bounds)]
    unpool(interior(operands["output"], attributes, "out")[box(bounds, 2)], operands["index"][box(bounds)], dy)
    clear_box_halo(operands["output"], attributes, bounds, 2)
