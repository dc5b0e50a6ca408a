"""Maximum, average and global average pooling, forward and backward, with the channels in the vector lanes.

The maximum keeps which element of its window it was (ky kernel + kx, the first of equals). What lies outside the map
never is a maximum, and counts as zero in an average, which always divides by kernel^2 (PyTorch's default). Backward
passes gather: each element of the gradient adds up what the windows it lies in send it, row by row, in order.

With the images in the lanes windows are 2 x 2. The forward pass keeps which element each maximum was (0 to 3); 4 means
that ReLU stopped it, so that the backward pass needs no activations.
"""

from libc.stdint cimport int32_t, uint8_t, uintptr_t

from ..interface.block_kernel cimport KernelArgs, TaskContext
from ..maps.channels cimport ChannelsMap, channel_end, clear_channel_halo, clear_pixels, pixel, read_channels_map
from ..maps.channels_planes cimport ChannelsTask, set_block, set_plane
from ..maps.channels_windows cimport WindowTask, set_windows
from ..maps.lanes cimport Map, clear_halo, offset, read_map
from .lanes_loops cimport LanesPoolingLoops

import numpy as np

from ..interface.kernel_spec import KernelSpec, register
from ..maps import channels as channels_maps
from ..maps import lanes as lanes_maps
from ..maps.channels import BOX, all_rows, channels_attributes, inside, scatter_windows, window_of, windows, write_block
from ..maps.lanes import box, clear_box_halo, interior, map_attributes


cdef extern from "cython_src/kernels/pooling/channels_loops.h" nogil:
    ctypedef struct ChannelsPoolingLoops:
        void (*max_pool)(const WindowTask *) noexcept nogil
        void (*max_pool_backward)(const WindowTask *) noexcept nogil
        void (*average_pool)(const WindowTask *) noexcept nogil
        void (*average_pool_backward)(const WindowTask *) noexcept nogil
        void (*global_mean)(const ChannelsTask *, float *, Py_ssize_t) noexcept nogil
        void (*spread)(const ChannelsTask *, const float *, Py_ssize_t, float) noexcept nogil


cdef extern from "cython_src/kernels/simd/micro_kernels.h" nogil:
    ctypedef struct Micro "MicroKernels":  # what is used here of the table of inner loops
        const ChannelsPoolingLoops *channels_pooling
        const LanesPoolingLoops *lanes_pooling


ctypedef void (*WindowLoop)(const WindowTask *) noexcept nogil


cdef const ChannelsPoolingLoops *loops(const void *args) noexcept nogil:
    return (<const Micro *> (<const KernelArgs *> args).micro).channels_pooling


cdef int pool(const void *args, Py_ssize_t block, WindowLoop loop, int index, int output, int backward) noexcept nogil:
    """A block of windows, from operand 0 to operand `output`; the maximum's places are operand `index`, or -1.
    bounds: images, rows of the output, channels."""
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef ChannelsMap source, target
    cdef const ChannelsMap *small = &source if backward else &target
    cdef WindowTask task
    cdef int n
    read_channels_map(&source, a.integers)
    read_channels_map(&target, a.integers + 5)
    set_windows(&task, a.operand[0], &source, a.operand[output], &target, backward, a.integers + 10, b)
    if index >= 0:
        task.index = <uint8_t *> a.operand[index] + <Py_ssize_t> b[0] * small.height * small.width * small.pitch + b[4]
    if backward:
        task.accumulate = <int> a.integers[13]
    loop(&task)
    if not task.accumulate:
        for n in range(b[0], b[1]):
            clear_channel_halo(&target, <float *> a.operand[output], n, b[2], b[3], b[4], channel_end(&target, b[5]))
    return 0


cdef int max_pool(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    return pool(args, block, loops(args).max_pool, 2, 1, 0)


cdef int max_pool_backward(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    return pool(args, block, loops(args).max_pool_backward, 1, 2, 1)


cdef int average_pool(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    return pool(args, block, loops(args).average_pool, -1, 1, 0)


cdef int average_pool_backward(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    return pool(args, block, loops(args).average_pool_backward, -1, 1, 1)


cdef int global_pool(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """bounds: images, channels."""
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef int32_t *whole = [b[0], b[1], 0, 0]
    cdef ChannelsTask task
    cdef ChannelsMap m
    read_channels_map(&m, a.integers)
    whole[3] = m.height
    set_block(&task, &m, whole, b[2], b[3])
    task.channels = b[3] - b[2]
    set_plane(&task, 0, a.operand[0], &m, whole, b[2])
    (<const Micro *> a.micro).channels_pooling.global_mean(
        &task, <float *> a.operand[1] + <Py_ssize_t> b[0] * m.channels + b[2], m.channels)
    return 0


cdef int global_pool_backward(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """bounds: images, rows, channels."""
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef ChannelsTask task
    cdef ChannelsMap m
    cdef float *out = <float *> a.operand[1]
    cdef int n, y, end
    read_channels_map(&m, a.integers)
    end = channel_end(&m, b[5])
    set_block(&task, &m, b, b[4], b[5])
    task.channels = b[5] - b[4]
    task.accumulate = <int> a.integers[5]
    set_plane(&task, 0, out, &m, b, b[4])
    (<const Micro *> a.micro).channels_pooling.spread(
        &task, <const float *> a.operand[0] + <Py_ssize_t> b[0] * m.channels + b[4], m.channels,
        <float> (1.0 / (m.height * m.width)))
    if task.accumulate:
        return 0
    for n in range(b[0], b[1]):
        clear_channel_halo(&m, out, n, b[2], b[3], b[4], end)
        if end > b[5]:
            for y in range(b[2], b[3]):
                clear_pixels(&m, out + pixel(&m, n, y, 0), m.width, b[5], end)
    return 0


def _max_reference(operands, attributes, bounds, iteration):
    x = all_rows(operands["input"], attributes, "in", bounds)
    y0, y1 = bounds["y0"], bounds["y1"]
    taps = windows(x, *window_of(attributes), y0, y1, attributes["out_width"], -np.inf)
    values = np.stack([part for _, part in taps])
    index = values.argmax(axis=0)
    write_block(operands["output"], attributes, "out", bounds, np.take_along_axis(values, index[None], axis=0)[0])
    c = slice(bounds["c0"], channels_maps.channel_end(bounds["c1"], attributes["out_pitch"]))
    operands["index"][bounds["n0"] : bounds["n1"], y0:y1, :, c] = index


def _backward(operands, attributes, bounds, contribution):
    """Add up contribution(tap), the output's gradients as they go to the tap's element."""
    shape = all_rows(operands["output"], attributes, "out", bounds).shape
    total = scatter_windows(contribution, shape, *window_of(attributes), operands["output"].dtype)
    write_block(operands["output"], attributes, "out", bounds, total[:, bounds["y0"] : bounds["y1"]],
                accumulate=attributes["accumulate"])


def _max_backward_reference(operands, attributes, bounds, iteration):
    dy = all_rows(operands["gradient"], attributes, "in", bounds)
    c = slice(bounds["c0"], channels_maps.channel_end(bounds["c1"], attributes["in_pitch"]))
    index = operands["index"][bounds["n0"] : bounds["n1"], :, :, c]
    _backward(operands, attributes, bounds, lambda tap: np.where(index == tap, dy, 0))


def _average_reference(operands, attributes, bounds, iteration):
    x = all_rows(operands["input"], attributes, "in", bounds)
    taps = windows(x, *window_of(attributes), bounds["y0"], bounds["y1"], attributes["out_width"])
    total = sum(part for _, part in taps)
    write_block(operands["output"], attributes, "out", bounds, total / attributes["kernel"] ** 2)


def _average_backward_reference(operands, attributes, bounds, iteration):
    dy = all_rows(operands["gradient"], attributes, "in", bounds) / attributes["kernel"] ** 2
    _backward(operands, attributes, bounds, lambda tap: dy)


def _global_reference(operands, attributes, bounds, iteration):
    everything = {name: bounds[name] for name in ("n0", "n1")}
    mean = inside(operands["input"], attributes, "in", everything).mean(axis=(1, 2))
    c = slice(bounds["c0"], bounds["c1"])
    operands["output"][bounds["n0"] : bounds["n1"], c, 0] = mean[:, c]


def _global_backward_reference(operands, attributes, bounds, iteration):
    n, c = slice(bounds["n0"], bounds["n1"]), slice(bounds["c0"], bounds["c1"])
    height, width = attributes["out_height"], attributes["out_width"]
    g = operands["gradient"][n, c, 0] / (height * width)
    padding = channels_maps.channel_end(bounds["c1"], attributes["out_pitch"]) - bounds["c1"]
    g = np.pad(g, ((0, 0), (0, padding)))[:, None, None, :]
    g = np.broadcast_to(g, (g.shape[0], bounds["y1"] - bounds["y0"], width, g.shape[3]))
    write_block(operands["output"], attributes, "out", bounds, g, accumulate=attributes["accumulate"])


CHANNELS_MAPS = channels_attributes("in") + channels_attributes("out")
WINDOW = ("kernel", "stride", "padding")
# index: uint8, (batch, output height, output width, pitch). Backward bounds are rows of the input's gradient.
register(KernelSpec("channels_max_pool", ("input", "output", "index"), CHANNELS_MAPS + WINDOW, (), BOX, _max_reference,
                    <uintptr_t> &max_pool))
register(KernelSpec("channels_max_pool_backward", ("gradient", "index", "output"),
                    CHANNELS_MAPS + WINDOW + ("accumulate",), (), BOX, _max_backward_reference,
                    <uintptr_t> &max_pool_backward))
register(KernelSpec("channels_average_pool", ("input", "output"), CHANNELS_MAPS + WINDOW, (), BOX, _average_reference,
                    <uintptr_t> &average_pool))
register(KernelSpec("channels_average_pool_backward", ("gradient", "output"),
                    CHANNELS_MAPS + WINDOW + ("accumulate",), (), BOX, _average_backward_reference,
                    <uintptr_t> &average_pool_backward))
# The pooled side is (batch, channels, 1), what the fully connected layer takes with lanes = 1.
register(KernelSpec("channels_global_pool", ("input", "output"), channels_attributes("in"), (),
                    ("n0", "n1", "c0", "c1"), _global_reference, <uintptr_t> &global_pool))
register(KernelSpec("channels_global_pool_backward", ("gradient", "output"),
                    channels_attributes("out") + ("accumulate",), (), BOX, _global_backward_reference,
                    <uintptr_t> &global_pool_backward))


cdef int pool_forward(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """Y = maximum of each window of X. bounds: groups, channels, pooled rows."""
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const Micro *micro = <const Micro *> a.micro
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef const float *x = <const float *> a.operand[0]
    cdef float *out = <float *> a.operand[1]
    cdef uint8_t *index = <uint8_t *> a.operand[2]
    cdef Map source, target
    cdef int g, c, y
    cdef Py_ssize_t at
    read_map(&source, a.integers)
    read_map(&target, a.integers + 7)
    for g in range(b[0], b[1]):
        for c in range(b[2], b[3]):
            for y in range(b[4], b[5]):
                at = (<Py_ssize_t> g * target.channels + c) * target.height + y
                micro.lanes_pooling.pool_row(
                    x + offset(&source, g, c, 2 * y), x + offset(&source, g, c, 2 * y + 1), target.width, target.lanes,
                    0, out + offset(&target, g, c, y), index + at * target.width * target.lanes)
            clear_halo(&target, out, g, c, b[4], b[5])
    return 0


cdef int pool_backward(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """dX = dY where the index points, else zero. bounds: groups, channels, pooled rows."""
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const Micro *micro = <const Micro *> a.micro
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef const float *dy = <const float *> a.operand[0]
    cdef const uint8_t *index = <const uint8_t *> a.operand[1]
    cdef float *dx = <float *> a.operand[2]
    cdef Map source, target
    cdef int g, c, y
    cdef Py_ssize_t at
    read_map(&source, a.integers)
    read_map(&target, a.integers + 7)
    for g in range(b[0], b[1]):
        for c in range(b[2], b[3]):
            for y in range(b[4], b[5]):
                at = (<Py_ssize_t> g * source.channels + c) * source.height + y
                micro.lanes_pooling.unpool_row(
                    dy + offset(&source, g, c, y), index + at * source.width * source.lanes, source.width, source.lanes,
                    dx + offset(&target, g, c, 2 * y), dx + offset(&target, g, c, 2 * y + 1))
            clear_halo(&target, dx, g, c, 2 * b[4], 2 * b[5])
    return 0


def _pool_forward_reference(operands, attributes, bounds, iteration):
    x = interior(operands["input"], attributes, "in")[box(bounds, 2)]
    values = np.stack([x[:, :, i::2, j::2] for i in (0, 1) for j in (0, 1)])
    operands["index"][box(bounds)] = values.argmax(axis=0)
    interior(operands["output"], attributes, "out")[box(bounds)] = values.max(axis=0)
    clear_box_halo(operands["output"], attributes, bounds)


def _pool_backward_reference(operands, attributes, bounds, iteration):
    dy = interior(operands["gradient"], attributes, "in")[box(bounds)]
    index = operands["index"][box(bounds)]
    dx = interior(operands["output"], attributes, "out")[box(bounds, 2)]
    for i in (0, 1):
        for j in (0, 1):
            dx[:, :, i::2, j::2] = np.where(index == 2 * i + j, dy, 0)
    clear_box_halo(operands["output"], attributes, bounds, 2)


LANES_MAPS = map_attributes("in") + map_attributes("out")
register(KernelSpec("pool_forward", ("input", "output", "index"), LANES_MAPS, (), lanes_maps.BOX,
                    _pool_forward_reference, <uintptr_t> &pool_forward))
register(KernelSpec("pool_backward", ("gradient", "index", "output"), LANES_MAPS, (), lanes_maps.BOX,
                    _pool_backward_reference, <uintptr_t> &pool_backward))
