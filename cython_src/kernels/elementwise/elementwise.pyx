"""Element-wise layers: activations, dropout and sums, forward and backward; filling and combining the private copies of
reductions, whose loops reductions.py makes.

With the channels in the vector lanes the backward pass of activations needs the result alone.

Dropout keeps an element with probability 1 - rate and scales it by 1 / (1 - rate). Its random numbers are a function
of place and time, Philox4x32-10 [1]: key = seed, counter = (16 k + lane, image row, layer, iteration), whose word w
decides element 64 k + 16 w + lane of the row. So the mask is the same whatever the blocks, threads and models, and
the backward pass runs the same kernel on the gradient instead of keeping masks.

[1] J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw: Parallel random numbers: as easy as 1, 2, 3 (SC 2011).
"""

from elementwise_c cimport *

from ..maps.nchw cimport clear_halo, offset
from ..maps.nhwc cimport block_task, clear_channel_halo, clear_pixels, pixel, set_plane, with_halo

import numpy as np

from ..interface.kernel_spec import KernelSpec, implement, register
from ..maps.nchw import box, clear_box_halo, interior
from ..maps.nhwc import inside, write_block
from ..simd.activations import activate, activation_gradient
from ...plan.reductions import MAX_GROUPS
from .specs import BOUNDS, KERNELS


cdef int activation(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    cdef nhwc_activation_args a = read_nhwc_activation(args, block)
    cdef NhwcMap out = with_halo(&a.in_map, a.out_halo)
    cdef int n, y
    cdef NhwcTask task = block_task(&a.in_map, &a.box)
    set_plane(&task, 0, a.input, &a.in_map, &a.box)
    set_plane(&task, 1, a.output, &out, &a.box)
    task.activation = a.activation
    nhwc_elementwise_loops(a.micro).activate(&task)
    if a.box.c0 + task.channels > a.in_map.channels:  # what is no channel stays zero, whatever the activation
        for n in range(a.box.n0, a.box.n1):
            for y in range(a.box.y0, a.box.y1):
                clear_pixels(&out, a.output + pixel(&out, n, y, 0), out.width, out.channels, a.box.c0 + task.channels)
    clear_channel_halo(&out, a.output, &a.box)
    return 0


cdef int add(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    cdef nhwc_add_args a = read_nhwc_add(args, block)
    cdef NhwcMap second = with_halo(&a.in_map, a.second_halo), out = with_halo(&a.in_map, a.out_halo)
    cdef NhwcTask task = block_task(&a.in_map, &a.box)
    set_plane(&task, 0, a.first, &a.in_map, &a.box)
    set_plane(&task, 1, a.output, &out, &a.box)
    set_plane(&task, 2, a.second, &second, &a.box)
    task.activation = a.activation
    task.residual = RESIDUAL_PLAIN
    nhwc_elementwise_loops(a.micro).activate(&task)
    clear_channel_halo(&out, a.output, &a.box)
    return 0


cdef int activation_backward(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    cdef nhwc_activation_backward_args a = read_nhwc_activation_backward(args, block)
    cdef NhwcMap activations = with_halo(&a.in_map, a.activations_halo), out = with_halo(&a.in_map, a.out_halo)
    cdef NhwcTask task = block_task(&a.in_map, &a.box)
    set_plane(&task, 0, a.gradient, &a.in_map, &a.box)
    set_plane(&task, 1, a.activations, &activations, &a.box)
    set_plane(&task, 2, a.output, &out, &a.box)
    task.activation = a.activation
    task.accumulate = a.accumulate
    nhwc_elementwise_loops(a.micro).activate_backward(&task)
    if not a.accumulate:
        clear_channel_halo(&out, a.output, &a.box)
    return 0


cdef int dropout(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    cdef nhwc_dropout_args a = read_nhwc_dropout(args, block)
    cdef NhwcTask task
    cdef NhwcMap out = with_halo(&a.in_map, a.out_halo)
    cdef double threshold = min(a.rate * 4294967296.0, 4294967295.0)
    a.box.c0, a.box.c1 = 0, a.in_map.channels
    task = block_task(&a.in_map, &a.box)
    set_plane(&task, 0, a.input, &a.in_map, &a.box)
    set_plane(&task, 1, a.output, &out, &a.box)
    nhwc_elementwise_loops(a.micro).dropout(
        &task, a.in_map.height, a.box.n0 * a.in_map.height + a.box.y0, <uint64_t> a.seed, <uint32_t> a.layer,
        <uint32_t> context.iteration, <uint32_t> threshold, <float> (1 / (1 - a.rate)))
    clear_channel_halo(&out, a.output, &a.box)
    return 0


@implement(KERNELS, "nhwc_activation", <uintptr_t> &activation)
def _activation_reference(operands, attributes, bounds, iteration):
    y = activate(inside(operands["input"], attributes, "in", bounds), attributes["activation"])
    y[..., max(0, attributes["in_channels"] - bounds["c0"]):] = 0
    write_block(operands["output"], attributes, "in", bounds, y, attributes["out_halo"])


@implement(KERNELS, "nhwc_activation_backward", <uintptr_t> &activation_backward)
def _activation_backward_reference(operands, attributes, bounds, iteration):
    y = inside(operands["activations"], attributes, "in", bounds, attributes["activations_halo"])
    g = activation_gradient(inside(operands["gradient"], attributes, "in", bounds), y, attributes["activation"])
    write_block(operands["output"], attributes, "in", bounds, g, attributes["out_halo"], attributes["accumulate"])


@implement(KERNELS, "nhwc_add", <uintptr_t> &add)
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


# Forward on x, backward on the gradient. The rows' elements may be any number (a vector of features has height and
# width 1 and pitch = channels).
@implement(KERNELS, "nhwc_dropout", <uintptr_t> &dropout)
def _dropout_reference(operands, attributes, bounds, iteration):
    x = inside(operands["input"], attributes, "in", bounds)
    mask = dropout_mask(attributes, bounds["n0"], bounds["n1"], bounds["y0"], bounds["y1"], iteration)
    write_block(operands["output"], attributes, "in", bounds, np.where(mask, x * (1 / (1 - attributes["rate"])), 0),
                attributes["out_halo"])


cdef int relu_forward(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """Y = max(X, 0); a NaN stays one."""
    cdef relu_forward_args a = read_relu_forward(args, block)
    cdef int g, c, y
    for g in range(a.box.g0, a.box.g1):
        for c in range(a.box.c0, a.box.c1):
            for y in range(a.box.y0, a.box.y1):
                relu_loops(a.micro).forward(
                    a.input + offset(&a.in_map, g, c, y), a.output + offset(&a.out_map, g, c, y),
                    a.in_map.width * a.in_map.lanes)
            clear_halo(&a.out_map, a.output, g, c, a.box.y0, a.box.y1)
    return 0


cdef int relu_backward(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """dX = dY where Y > 0, else zero."""
    cdef relu_backward_args a = read_relu_backward(args, block)
    cdef int g, c, y
    for g in range(a.box.g0, a.box.g1):
        for c in range(a.box.c0, a.box.c1):
            for y in range(a.box.y0, a.box.y1):
                relu_loops(a.micro).backward(
                    a.gradient + offset(&a.in_map, g, c, y), a.activations + offset(&a.activations_map, g, c, y),
                    a.output + offset(&a.out_map, g, c, y), a.in_map.width * a.in_map.lanes)
            clear_halo(&a.out_map, a.output, g, c, a.box.y0, a.box.y1)
    return 0


@implement(KERNELS, "relu_forward", <uintptr_t> &relu_forward)
def _relu_forward_reference(operands, attributes, bounds, iteration):
    x = interior(operands["input"], attributes, "in")[box(bounds)]
    interior(operands["output"], attributes, "out")[box(bounds)] = np.where(x <= 0, 0, x)
    clear_box_halo(operands["output"], attributes, bounds)


@implement(KERNELS, "relu_backward", <uintptr_t> &relu_backward)
def _relu_backward_reference(operands, attributes, bounds, iteration):
    dy = interior(operands["gradient"], attributes, "in")[box(bounds)]
    y = interior(operands["activations"], attributes, "activations")[box(bounds)]
    interior(operands["output"], attributes, "out")[box(bounds)] = np.where(y > 0, dy, 0)
    clear_box_halo(operands["output"], attributes, bounds)


cdef int rows_activation(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    cdef rows_activation_args a = read_rows_activation(args, block)
    cdef Py_ssize_t start = a.r0 * a.features, length = (a.r1 - a.r0) * a.features
    token_elements_loops(a.micro).activate(a.input + start, a.output + start, length, a.activation)
    return 0


cdef int rows_activation_backward(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """By the argument of GELU, or by the result of others."""
    cdef rows_activation_backward_args a = read_rows_activation_backward(args, block)
    cdef Py_ssize_t start = a.r0 * a.features, length = (a.r1 - a.r0) * a.features
    token_elements_loops(a.micro).activate_backward(
        a.gradient + start, a.values + start, a.output + start, length, a.activation)
    return 0


cdef int rows_add(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    cdef rows_add_args a = read_rows_add(args, block)
    cdef Py_ssize_t start = a.r0 * a.features, length = (a.r1 - a.r0) * a.features
    token_elements_loops(a.micro).add(a.first + start, a.second + start, a.output + start, length)
    return 0


@implement(KERNELS, "rows_activation", <uintptr_t> &rows_activation)
def _rows_activation_reference(operands, attributes, bounds, iteration):
    rows = slice(bounds["r0"], bounds["r1"])
    operands["output"][rows] = activate(operands["input"][rows], attributes["activation"])


@implement(KERNELS, "rows_activation_backward", <uintptr_t> &rows_activation_backward)
def _rows_activation_backward_reference(operands, attributes, bounds, iteration):
    rows = slice(bounds["r0"], bounds["r1"])
    operands["output"][rows] = activation_gradient(
        operands["gradient"][rows], operands["values"][rows], attributes["activation"])


@implement(KERNELS, "rows_add", <uintptr_t> &rows_add)
def _rows_add_reference(operands, attributes, bounds, iteration):
    rows = slice(bounds["r0"], bounds["r1"])
    operands["output"][rows] = operands["first"][rows] + operands["second"][rows]


# --- reductions ------------------------------------------------------------------------------------------------------


cdef int fill(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """Zeros."""
    cdef reduction_fill_args a = read_reduction_fill(args, block)
    fill_region[a.dtype](a.out, a.bounds, a.n1, a.n2, a.n3)
    return 0


cdef int combine(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """out = ((out + copy0) + copy1) + ..."""
    cdef reduction_fill_args a = read_reduction_fill(args, block)  # the same, and copies behind `out`
    cdef Py_ssize_t copy
    for copy in range(a.copies):
        combine_regions[a.dtype](a.out, (<const KernelArgs *> args).operand[1 + copy], a.bounds, a.n1, a.n2, a.n3)
    return 0


def _region(array, attributes, bounds):
    """The box of an array, as a view with four dimensions."""
    whole = array.reshape(-1, attributes["n1"], attributes["n2"], attributes["n3"])
    return whole[tuple(slice(bounds[f"start{d}"], bounds[f"stop{d}"]) for d in range(4))]


@implement(KERNELS, "reduction_fill", <uintptr_t> &fill, instruction_sets=False)
def _fill_reference(operands, attributes, bounds, iteration):
    _region(operands["out"], attributes, bounds)[...] = 0


def _combine_reference(operands, attributes, bounds, iteration):
    out = _region(operands["out"], attributes, bounds)
    for copy in range(attributes["copies"]):
        out += _region(operands[f"copy{copy}"], attributes, bounds)


register(KernelSpec(
    "reduction_combine", ("out", *(f"copy{i}?" for i in range(MAX_GROUPS))),
    ("dtype", "n1", "n2", "n3", "copies"), (), BOUNDS, _combine_reference, <uintptr_t> &combine,
    instruction_sets=False))
