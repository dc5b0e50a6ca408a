"""Element-wise layers: activations, dropout and sums, forward and backward.

With the channels in the vector lanes activations are "none", "relu" and "relu6"; their
backward needs the result alone.

Dropout keeps an element with probability 1 - rate and scales it by 1 / (1 - rate). Its random numbers are a function
of place and time, Philox4x32-10 [1]: key = seed, counter = (16 k + lane, image row, layer, iteration), whose word w
decides element 64 k + 16 w + lane of the row. So the mask is the same whatever the blocks, threads and models, and
the backward pass runs the same kernel on the gradient instead of keeping masks.

[1] J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw: Parallel random numbers: as easy as 1, 2, 3 (SC 2011).
"""

from libc.stdint cimport int32_t, uint32_t, uint64_t, uintptr_t

from ..interface.block_kernel cimport KernelArgs, TaskContext
from ..maps.channels cimport ChannelsMap, channel_end, clear_channel_halo, read_channels_map, with_halo
from ..maps.channels_planes cimport RESIDUAL_PLAIN, ChannelsTask, set_block, set_plane
from ..maps.lanes cimport Map, clear_halo, offset, read_map
from .channels_loops cimport ChannelsElementwiseLoops
from .relu_loops cimport ReluLoops
from .tokens_loops cimport TokenElementLoops

import numpy as np

from ..interface.kernel_spec import KernelSpec, register
from ..maps import lanes as lanes_maps
from ..maps.channels import BOX, activate, channels_attributes, inside, passes, write_block
from ..maps.lanes import box, clear_box_halo, interior, map_attributes
from .gelu import gelu, gelu_derivative


cdef extern from "cython_src/kernels/simd/micro_kernels.h" nogil:
    ctypedef struct Micro "MicroKernels":  # what is used here of the table of inner loops
        const ChannelsElementwiseLoops *channels_elementwise
        const ReluLoops *relu
        const TokenElementLoops *token_elements


cdef void run_activation(const KernelArgs *a, const int32_t *b, void *second, int second_halo, void *output,
                         int out_halo, int activation) noexcept nogil:
    """output = activation(operand 0 [+ second])."""
    cdef ChannelsTask task
    cdef ChannelsMap m, other, out
    cdef int n
    read_channels_map(&m, a.integers)
    other = with_halo(&m, second_halo)
    out = with_halo(&m, out_halo)
    set_block(&task, &m, b, b[4], b[5])
    set_plane(&task, 0, a.operand[0], &m, b, b[4])
    set_plane(&task, 1, output, &out, b, b[4])
    set_plane(&task, 2, second, &other, b, b[4])
    task.activation = activation
    if second != NULL:
        task.residual = RESIDUAL_PLAIN
    (<const Micro *> a.micro).channels_elementwise.activate(&task)
    for n in range(b[0], b[1]):
        clear_channel_halo(&out, <float *> output, n, b[2], b[3], b[4], channel_end(&m, b[5]))


cdef int activation(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """bounds: images, rows, channels."""
    cdef const KernelArgs *a = <const KernelArgs *> args
    run_activation(a, a.bounds + block * a.bounds_width, NULL, 0, a.operand[1], <int> a.integers[5],
                   <int> a.integers[6])
    return 0


cdef int add(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """bounds: images, rows, channels."""
    cdef const KernelArgs *a = <const KernelArgs *> args
    run_activation(a, a.bounds + block * a.bounds_width, a.operand[1], <int> a.integers[5], a.operand[2],
                   <int> a.integers[6], <int> a.integers[7])
    return 0


cdef int activation_backward(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """bounds: images, rows, channels."""
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef ChannelsTask task
    cdef ChannelsMap m, activations, out
    cdef int n
    read_channels_map(&m, a.integers)
    activations = with_halo(&m, <int> a.integers[5])
    out = with_halo(&m, <int> a.integers[6])
    set_block(&task, &m, b, b[4], b[5])
    set_plane(&task, 0, a.operand[0], &m, b, b[4])
    set_plane(&task, 1, a.operand[1], &activations, b, b[4])
    set_plane(&task, 2, a.operand[2], &out, b, b[4])
    task.activation = <int> a.integers[7]
    task.accumulate = <int> a.integers[8]
    (<const Micro *> a.micro).channels_elementwise.activate_backward(&task)
    if not task.accumulate:
        for n in range(b[0], b[1]):
            clear_channel_halo(&out, <float *> a.operand[2], n, b[2], b[3], b[4], channel_end(&m, b[5]))
    return 0


cdef int dropout(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """bounds: images, rows."""
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef ChannelsTask task
    cdef ChannelsMap m, out
    cdef double threshold = min(a.reals[0] * 4294967296.0, 4294967295.0)
    cdef int n
    read_channels_map(&m, a.integers)
    out = with_halo(&m, <int> a.integers[5])
    set_block(&task, &m, b, 0, m.channels)
    set_plane(&task, 0, a.operand[0], &m, b, 0)
    set_plane(&task, 1, a.operand[1], &out, b, 0)
    (<const Micro *> a.micro).channels_elementwise.dropout(
        &task, m.height, b[0] * m.height + b[2], <uint64_t> a.integers[6], <uint32_t> a.integers[7],
        <uint32_t> context.iteration,
        <uint32_t> threshold, <float> (1 / (1 - a.reals[0])))
    for n in range(b[0], b[1]):
        clear_channel_halo(&out, <float *> a.operand[1], n, b[2], b[3], 0, m.pitch)
    return 0


def _activation_reference(operands, attributes, bounds, iteration):
    x = inside(operands["input"], attributes, "in", bounds)
    write_block(operands["output"], attributes, "in", bounds, activate(x, attributes["activation"]),
                attributes["out_halo"])


def _activation_backward_reference(operands, attributes, bounds, iteration):
    y = inside(operands["activations"], attributes, "in", bounds, attributes["activations_halo"])
    g = np.where(passes(y, attributes["activation"]), inside(operands["gradient"], attributes, "in", bounds), 0)
    write_block(operands["output"], attributes, "in", bounds, g, attributes["out_halo"], attributes["accumulate"])


def _add_reference(operands, attributes, bounds, iteration):
    total = (inside(operands["first"], attributes, "in", bounds)
             + inside(operands["second"], attributes, "in", bounds, attributes["second_halo"]))
    write_block(operands["output"], attributes, "in", bounds, activate(total, attributes["activation"]),
                attributes["out_halo"])


def philox(counter, key):
    """Philox4x32-10: four words from four counter words, arrays of integers below 2^32, and two key words."""
    c = [np.asarray(word, dtype=np.uint64) for word in counter]
    k0, k1 = key
    low = np.uint64(0xFFFFFFFF)
    for _ in range(10):
        p0, p1 = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [(p1 >> np.uint64(32)) ^ c[1] ^ np.uint64(k0), p1 & low,
             (p0 >> np.uint64(32)) ^ c[3] ^ np.uint64(k1), p0 & low]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c


def dropout_mask(attributes, n0, n1, y0, y1, iteration):
    """Which elements of interior rows [y0, y1) of images [n0, n1) are kept; shape (images, rows, width, pitch)."""
    width, pitch, height = attributes["in_width"], attributes["in_pitch"], attributes["in_height"]
    seed = attributes["seed"]
    element = np.arange(width * pitch)
    rows = (np.arange(n0, n1)[:, None] * height + np.arange(y0, y1)).reshape(-1, 1)
    counter = np.broadcast_arrays(
        element // 64 * 16 + element % 16, rows, attributes["layer"], iteration & 0xFFFFFFFF)
    words = np.stack(philox(counter, (seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF)))
    word = np.take_along_axis(words, np.broadcast_to(element % 64 // 16, words.shape[1:])[None], axis=0)[0]
    threshold = min(int(attributes["rate"] * 2.0**32), 2**32 - 1)
    return (word >= threshold).reshape(n1 - n0, y1 - y0, width, pitch)


def _dropout_reference(operands, attributes, bounds, iteration):
    x = inside(operands["input"], attributes, "in", bounds)
    mask = dropout_mask(attributes, bounds["n0"], bounds["n1"], bounds["y0"], bounds["y1"], iteration)
    write_block(operands["output"], attributes, "in", bounds, np.where(mask, x * (1 / (1 - attributes["rate"])), 0),
                attributes["out_halo"])


MAP = channels_attributes("in")
register(KernelSpec("channels_activation", ("input", "output"), MAP + ("out_halo", "activation"), (), BOX,
                    _activation_reference, <uintptr_t> &activation))
register(KernelSpec("channels_activation_backward", ("gradient", "activations", "output"),
                    MAP + ("activations_halo", "out_halo", "activation", "accumulate"), (), BOX,
                    _activation_backward_reference, <uintptr_t> &activation_backward))
register(KernelSpec("channels_add", ("first", "second", "output"),
                    MAP + ("second_halo", "out_halo", "activation"), (), BOX, _add_reference,
                    <uintptr_t> &add))
# Forward on x, backward on the gradient. The rows' elements may be any number (a vector of features has height and
# width 1 and pitch = channels).
register(KernelSpec("channels_dropout", ("input", "output"), MAP + ("out_halo", "seed", "layer"), ("rate",),
                    ("n0", "n1", "y0", "y1"), _dropout_reference, <uintptr_t> &dropout))


cdef int relu_forward(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """Y = max(X, 0); a NaN stays one. bounds: groups, channels, rows."""
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef Map source, target
    cdef int g, c, y
    read_map(&source, a.integers)
    read_map(&target, a.integers + 7)
    for g in range(b[0], b[1]):
        for c in range(b[2], b[3]):
            for y in range(b[4], b[5]):
                (<const Micro *> a.micro).relu.forward(
                    <const float *> a.operand[0] + offset(&source, g, c, y),
                    <float *> a.operand[1] + offset(&target, g, c, y),
                    <Py_ssize_t> source.width * source.lanes)
            clear_halo(&target, <float *> a.operand[1], g, c, b[4], b[5])
    return 0


cdef int relu_backward(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """dX = dY where Y > 0, else zero. bounds: groups, channels, rows."""
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef Map source, target, result
    cdef int g, c, y
    read_map(&source, a.integers)
    read_map(&target, a.integers + 7)
    read_map(&result, a.integers + 14)
    for g in range(b[0], b[1]):
        for c in range(b[2], b[3]):
            for y in range(b[4], b[5]):
                (<const Micro *> a.micro).relu.backward(
                    <const float *> a.operand[0] + offset(&source, g, c, y),
                    <const float *> a.operand[1] + offset(&result, g, c, y),
                    <float *> a.operand[2] + offset(&target, g, c, y),
                    <Py_ssize_t> source.width * source.lanes)
            clear_halo(&target, <float *> a.operand[2], g, c, b[4], b[5])
    return 0


def _relu_forward_reference(operands, attributes, bounds, iteration):
    x = interior(operands["input"], attributes, "in")[box(bounds)]
    interior(operands["output"], attributes, "out")[box(bounds)] = np.where(x <= 0, 0, x)
    clear_box_halo(operands["output"], attributes, bounds)


def _relu_backward_reference(operands, attributes, bounds, iteration):
    dy = interior(operands["gradient"], attributes, "in")[box(bounds)]
    y = interior(operands["activation"], attributes, "activation")[box(bounds)]
    interior(operands["output"], attributes, "out")[box(bounds)] = np.where(y > 0, dy, 0)
    clear_box_halo(operands["output"], attributes, bounds)


MAPS = map_attributes("in") + map_attributes("out")
register(KernelSpec("relu_forward", ("input", "output"), MAPS, (), lanes_maps.BOX, _relu_forward_reference,
                    <uintptr_t> &relu_forward))
register(KernelSpec("relu_backward", ("gradient", "activation", "output"), MAPS + map_attributes("activation"), (),
                    lanes_maps.BOX, _relu_backward_reference, <uintptr_t> &relu_backward))


cdef int gelu_forward(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef Py_ssize_t start = b[0] * a.integers[0], length = (b[1] - b[0]) * a.integers[0]
    (<const Micro *> a.micro).token_elements.gelu(
        <const float *> a.operand[0] + start, <float *> a.operand[1] + start, length)
    return 0


cdef int gelu_backward(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef Py_ssize_t start = b[0] * a.integers[0], length = (b[1] - b[0]) * a.integers[0]
    (<const Micro *> a.micro).token_elements.gelu_backward(
        <const float *> a.operand[0] + start, <const float *> a.operand[1] + start, <float *> a.operand[2] + start,
        length)
    return 0


cdef int tokens_relu_forward(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef Py_ssize_t start = b[0] * a.integers[0], length = (b[1] - b[0]) * a.integers[0]
    (<const Micro *> a.micro).relu.forward(<const float *> a.operand[0] + start, <float *> a.operand[1] + start, length)
    return 0


cdef int tokens_relu_backward(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef Py_ssize_t start = b[0] * a.integers[0], length = (b[1] - b[0]) * a.integers[0]
    (<const Micro *> a.micro).relu.backward(
        <const float *> a.operand[0] + start, <const float *> a.operand[1] + start, <float *> a.operand[2] + start,
        length)
    return 0


cdef int tokens_add(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef Py_ssize_t start = b[0] * a.integers[0], length = (b[1] - b[0]) * a.integers[0]
    (<const Micro *> a.micro).token_elements.add(
        <const float *> a.operand[0] + start, <const float *> a.operand[1] + start, <float *> a.operand[2] + start,
        length)
    return 0


def _gelu_forward_reference(operands, attributes, bounds, iteration):
    rows = slice(bounds["r0"], bounds["r1"])
    operands["output"][rows] = gelu(operands["input"][rows])


def _gelu_backward_reference(operands, attributes, bounds, iteration):
    rows = slice(bounds["r0"], bounds["r1"])
    operands["output"][rows] = operands["gradient"][rows] * gelu_derivative(operands["before"][rows])


def _tokens_relu_forward_reference(operands, attributes, bounds, iteration):
    rows = slice(bounds["r0"], bounds["r1"])
    x = operands["input"][rows]
    operands["output"][rows] = np.where(x <= 0, 0, x)


def _tokens_relu_backward_reference(operands, attributes, bounds, iteration):
    rows = slice(bounds["r0"], bounds["r1"])
    operands["output"][rows] = np.where(operands["activations"][rows] > 0, operands["gradient"][rows], 0)


def _tokens_add_reference(operands, attributes, bounds, iteration):
    rows = slice(bounds["r0"], bounds["r1"])
    operands["output"][rows] = operands["first"][rows] + operands["second"][rows]


register(KernelSpec("gelu_forward", ("input", "output"), ("features",), (), ("r0", "r1"), _gelu_forward_reference,
                    <uintptr_t> &gelu_forward))
register(KernelSpec("gelu_backward", ("gradient", "before", "output"), ("features",), (), ("r0", "r1"),
                    _gelu_backward_reference, <uintptr_t> &gelu_backward))
register(KernelSpec("tokens_relu_forward", ("input", "output"), ("features",), (), ("r0", "r1"),
                    _tokens_relu_forward_reference, <uintptr_t> &tokens_relu_forward))
register(KernelSpec("tokens_relu_backward", ("gradient", "activations", "output"), ("features",), (), ("r0", "r1"),
                    _tokens_relu_backward_reference, <uintptr_t> &tokens_relu_backward))
register(KernelSpec("tokens_add", ("first", "second", "output"), ("features",), (), ("r0", "r1"),
                    _tokens_add_reference, <uintptr_t> &tokens_add))
