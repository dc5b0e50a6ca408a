"""Batch normalisation with the channels in the vector lanes: training, evaluation and backward.

Training, z the input, N pixels of the batch:  mean = sum(z) / N, var = sum((z - mean)^2) / N,
inv_std = 1 / sqrt(var + eps), scale = weight inv_std, shift = bias - mean scale,
y = activation(scale z + shift + residual).

Backward, g = dy where the activation passes it, xhat = (z - mean) inv_std:  dbias = sum(g),
dweight = sum(g xhat), dz = weight inv_std (g - dbias / N - xhat dweight / N).

Sums are taken by blocks, each into a partial of its own, and merged in order: mean and squared deviations by
Chan's formula, so that float32 holds them whatever the mean. All vectors have the maps' pitch, zero past the last
channel; weight, bias and running statistics are PyTorch's.

Layer normalisation of tokens: y = (x - mean) / sqrt(var + eps) * weight + bias for each row, and its gradients. With
a residual, x = input + residual, which is kept in `sum` where there is one. Mean and 1 / sqrt(var + eps) of each row
are kept in `statistics`. Backward, g = gradient * weight and xhat = (x - mean) / std: dx = (g - mean(g) - xhat mean(g
xhat)) / std, plus `residual`, the gradient that reached x on another way; the gradients of weight and bias are sums
over the block's rows, in order, into the block's partial buffers.

NoNorm, which stands in a norm's place in MobileBERT, is y = x * weight + bias, with the same residual and sum.
"""

from libc.math cimport sqrtf

from elementwise_c cimport *
from norm_c cimport *

from ..maps.nhwc cimport block_task, clear_channel_halo, set_plane, set_vectors, with_halo

import numpy as np

from ..interface.kernel_spec import implement
from ..maps.nhwc import block_statistics, inside, vectors, write_block
from ..simd.activations import activate, passes
from .specs import KERNELS


cdef int norm_statistics(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """Statistics of a block into its partial."""
    cdef nhwc_norm_statistics_args a = read_nhwc_norm_statistics(args, block)
    cdef NhwcTask task
    a.box.c0, a.box.c1 = 0, a.in_map.channels
    task = block_task(&a.in_map, &a.box)
    set_plane(&task, 0, a.input, &a.in_map, &a.box)
    nhwc_norm_loops(a.micro).statistics(&task, a.partials + a.partial * 3 * a.in_map.pitch, a.in_map.pitch)
    return 0


cdef inline Py_ssize_t whole(Py_ssize_t channels) noexcept nogil:
    """Elements of a vector of channels, padding included."""
    return (channels + LANES - 1) // LANES * LANES


cdef inline Py_ssize_t padded(Py_ssize_t channels, Py_ssize_t c1) noexcept nogil:
    """End of a block's part of a vector: elements past the last channel belong to the last block."""
    return whole(c1) if c1 == channels else c1


cdef int norm_finish(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """Scale and shift from the statistics of all blocks; running statistics."""
    cdef nhwc_norm_finish_args a = read_nhwc_norm_finish(args, block)
    cdef Py_ssize_t c, end = padded(a.channels, a.c1)
    cdef float count = <float> a.count, eps = <float> a.eps, momentum = <float> a.momentum
    cdef float squares, unbiased = count - 1 if count > 1 else 1
    nhwc_norm_loops(a.micro).merge_statistics(
        a.partials + a.c0, a.num_partials, whole(a.channels), end - a.c0, count, a.mean + a.c0, a.inv_std + a.c0)
    for c in range(a.c0, a.c1):
        squares = a.inv_std[c]
        a.running_mean[c] = (1 - momentum) * a.running_mean[c] + momentum * a.mean[c]
        a.running_var[c] = (1 - momentum) * a.running_var[c] + momentum * (squares / unbiased)
        a.inv_std[c] = 1 / sqrtf(squares / count + eps)
        a.scale[c] = a.weight[c] * a.inv_std[c]
        a.shift[c] = a.bias[c] - a.mean[c] * a.scale[c]
    for c in range(a.c1, end):
        a.scale[c] = a.shift[c] = a.mean[c] = a.inv_std[c] = 0
    return 0


cdef int norm_evaluate(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """Scale and shift from the running statistics."""
    cdef nhwc_norm_evaluate_args a = read_nhwc_norm_evaluate(args, block)
    cdef Py_ssize_t c
    for c in range(a.c0, padded(a.channels, a.c1)):
        a.scale[c] = a.shift[c] = 0
        if c < a.channels:
            a.scale[c] = a.weight[c] * (1 / sqrtf(a.running_var[c] + <float> a.eps))
            a.shift[c] = a.bias[c] - a.running_mean[c] * a.scale[c]
    return 0


cdef int norm_apply(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    cdef nhwc_norm_apply_args a = read_nhwc_norm_apply(args, block)
    cdef NhwcMap residual = with_halo(&a.in_map, a.residual_halo), out = with_halo(&a.in_map, a.out_halo)
    cdef NhwcTask task = block_task(&a.in_map, &a.box)
    set_plane(&task, 0, a.input, &a.in_map, &a.box)
    set_plane(&task, 1, a.output, &out, &a.box)
    set_plane(&task, 2, a.residual, &residual, &a.box)
    set_vectors(&task, 0, a.box.c0, a.scale, a.shift)
    set_vectors(&task, 2, a.box.c0, a.residual_scale, a.residual_shift)
    task.activation = a.activation
    if a.residual != NULL:
        task.residual = RESIDUAL_SCALED if a.residual_scale != NULL else RESIDUAL_PLAIN
    nhwc_norm_loops(a.micro).apply(&task)
    clear_channel_halo(&out, a.output, &a.box)
    return 0


cdef int norm_backward_statistics(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """Sums of g and g xhat over a block into its partial."""
    cdef nhwc_norm_backward_statistics_args a = read_nhwc_norm_backward_statistics(args, block)
    cdef NhwcTask task
    cdef NhwcMap gradient = with_halo(&a.in_map, a.gradient_halo)
    cdef NhwcMap activations = with_halo(&a.in_map, a.activations_halo)
    a.box.c0, a.box.c1 = 0, a.in_map.channels
    task = block_task(&a.in_map, &a.box)
    set_plane(&task, 0, a.gradient, &gradient, &a.box)
    set_plane(&task, 1, a.input, &a.in_map, &a.box)
    set_plane(&task, 2, a.activations, &activations, &a.box)
    set_vectors(&task, 0, 0, a.mean, a.inv_std)
    set_vectors(&task, 2, 0, a.scale, a.shift)
    task.activation = a.activation
    if a.activation:
        task.mask = MASK_RESULT if a.activations != NULL else MASK_ARGUMENT
    nhwc_norm_loops(a.micro).backward_statistics(
        &task, a.partials + a.partial * 2 * a.in_map.pitch, a.in_map.pitch)
    return 0


cdef int norm_backward_finish(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    cdef nhwc_norm_backward_finish_args a = read_nhwc_norm_backward_finish(args, block)
    cdef Py_ssize_t c, pitch = whole(a.channels), length = a.c1 - a.c0
    cdef float share = <float> (1.0 / a.count), scale
    cdef float *slope = a.coefficients + pitch
    cdef float *offset = a.coefficients + 2 * pitch
    cdef const NhwcNormLoops *loops = nhwc_norm_loops(a.micro)
    loops.sum_partials(a.partials + a.c0, a.num_partials, 2 * pitch, length, a.gradient_bias + a.c0)
    loops.sum_partials(a.partials + pitch + a.c0, a.num_partials, 2 * pitch, length, a.gradient_weight + a.c0)
    for c in range(a.c0, a.c1):
        scale = a.weight[c] * a.inv_std[c]
        a.coefficients[c] = scale
        slope[c] = -share * scale * a.inv_std[c] * a.gradient_weight[c]
        offset[c] = -share * scale * a.gradient_bias[c]
    for c in range(a.c1, padded(a.channels, a.c1)):
        a.coefficients[c] = slope[c] = offset[c] = 0
    return 0


cdef void add_rows(const NhwcTask *whole, float *scratch, const MicroKernels *micro) noexcept nogil:
    """norm_backward_apply row by row, each added to what stands in plane 2."""
    cdef NhwcTask task = whole[0]
    cdef NhwcTask total
    cdef int image, row, i
    task.images = task.rows = 1
    total = task
    total.activation = total.mask = 0
    total.residual = RESIDUAL_PLAIN
    for image in range(whole.images):
        for row in range(whole.rows):
            for i in range(MAX_PLANES):
                if whole.plane[i].p != NULL:
                    task.plane[i].p = whole.plane[i].p + image * whole.plane[i].image + row * whole.plane[i].row
            total.plane[1] = total.plane[2] = task.plane[2]
            total.plane[0] = total.plane[2]
            task.plane[2].p = total.plane[0].p = scratch
            nhwc_norm_loops(micro).backward_apply(&task)
            nhwc_elementwise_loops(micro).activate(&total)


cdef int norm_backward_apply(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    cdef nhwc_norm_backward_apply_args a = read_nhwc_norm_backward_apply(args, block)
    cdef NhwcMap gradient = with_halo(&a.in_map, a.gradient_halo), out = with_halo(&a.in_map, a.out_halo)
    cdef NhwcMap activations = with_halo(&a.in_map, a.activations_halo)
    cdef NhwcMap branch = with_halo(&a.in_map, a.branch_halo)
    cdef NhwcTask task = block_task(&a.in_map, &a.box)
    set_plane(&task, 0, a.gradient, &gradient, &a.box)
    set_plane(&task, 1, a.input, &a.in_map, &a.box)
    set_plane(&task, 2, a.output, &out, &a.box)
    set_plane(&task, 3, a.activations, &activations, &a.box)
    set_plane(&task, 4, a.branch, &branch, &a.box)
    set_vectors(&task, 0, a.box.c0, a.coefficients, a.coefficients + a.in_map.pitch)
    set_vectors(&task, 2, a.box.c0, a.coefficients + 2 * a.in_map.pitch, a.mean)
    set_vectors(&task, 4, a.box.c0, a.scale, a.shift)
    task.activation = a.activation
    if a.activation:
        task.mask = MASK_RESULT if a.activations != NULL else MASK_ARGUMENT
    if a.branch != NULL:
        task.residual = BRANCH_ADD if a.accumulate_branch else BRANCH_WRITE
    if a.previous != NULL:
        add_rows(&task, <float *> context.scratch, a.micro)
    else:
        nhwc_norm_loops(a.micro).backward_apply(&task)
        clear_channel_halo(&out, a.output, &a.box)
    if task.residual == BRANCH_WRITE:
        clear_channel_halo(&branch, a.branch, &a.box)
    return 0


def _range(bounds, attributes):
    """Channels [c0, c1) of a block; the vectors' elements past the last channel belong to the last block."""
    channels = slice(bounds["c0"], bounds["c1"])
    last = bounds["c1"] == attributes["channels"]
    return channels, slice(bounds["c1"], None) if last else slice(0, 0)


def _set(vector, channels, padding, values):
    vector[..., channels] = values
    vector[..., padding] = 0


# Statistics of one block: shape maps.nhwc.statistics_shape(num_partials, pitch).
@implement(KERNELS, "nhwc_norm_statistics", <uintptr_t> &norm_statistics)
def _statistics_reference(operands, attributes, bounds, iteration):
    operands["partials"][bounds["partial"]] = block_statistics(inside(operands["input"], attributes, "in", bounds))


@implement(KERNELS, "nhwc_norm_finish", <uintptr_t> &norm_finish)
def _finish_reference(operands, attributes, bounds, iteration):
    c, padding = _range(bounds, attributes)
    part_mean, part_squares, part_count = operands["partials"][:, :, c].transpose(1, 0, 2)
    count, momentum = attributes["count"], attributes["momentum"]
    mean = (part_count * part_mean).sum(axis=0) / count
    squares = (part_squares + part_count * (part_mean - mean) ** 2).sum(axis=0)
    variance = squares / count
    inv_std = 1 / np.sqrt(variance + attributes["eps"])
    scale = operands["weight"][c] * inv_std
    for name, values in (("mean", mean), ("inv_std", inv_std), ("scale", scale),
                         ("shift", operands["bias"][c] - mean * scale)):
        _set(operands[name], c, padding, values)
    for name, values in (("running_mean", mean), ("running_var", squares / max(count - 1, 1))):
        operands[name][c] = (1 - momentum) * operands[name][c] + momentum * values


@implement(KERNELS, "nhwc_norm_evaluate", <uintptr_t> &norm_evaluate)
def _evaluate_reference(operands, attributes, bounds, iteration):
    c, padding = _range(bounds, attributes)
    inv_std = 1 / np.sqrt(operands["running_var"][c] + attributes["eps"])
    scale = operands["weight"][c] * inv_std
    _set(operands["scale"], c, padding, scale)
    _set(operands["shift"], c, padding, operands["bias"][c] - operands["running_mean"][c] * scale)


# The residual may itself be a convolution's result that is normalised here: residual_scale, residual_shift.
@implement(KERNELS, "nhwc_norm_apply", <uintptr_t> &norm_apply)
def _apply_reference(operands, attributes, bounds, iteration):
    z = inside(operands["input"], attributes, "in", bounds)
    scale, shift = vectors(operands, bounds, attributes, "scale", "shift")
    y = scale * z + shift
    if "residual" in operands:
        residual = inside(operands["residual"], attributes, "in", bounds, attributes["residual_halo"])
        if "residual_scale" in operands:
            scale, shift = vectors(operands, bounds, attributes, "residual_scale", "residual_shift")
            residual = scale * residual + shift
        y = y + residual
    write_block(operands["output"], attributes, "in", bounds, activate(y, attributes["activation"]),
                attributes["out_halo"])


def _gradient(operands, attributes, bounds, z):
    """dy where the activation passes it; its argument is computed anew where the result is not given."""
    g = inside(operands["gradient"], attributes, "in", bounds, attributes["gradient_halo"])
    if attributes["activation"] == 0:
        return g
    if "activations" in operands:
        y = inside(operands["activations"], attributes, "in", bounds, attributes["activations_halo"])
    else:
        scale, shift = vectors(operands, bounds, attributes, "scale", "shift")
        y = scale * z + shift
    return np.where(passes(y, attributes["activation"]), g, 0)


# Backward: the activation's mask comes from its result `activations`, or, where there was no residual, from
# scale z + shift, which saves reading a map. Partials: (num_partials, 2, pitch).
@implement(KERNELS, "nhwc_norm_backward_statistics", <uintptr_t> &norm_backward_statistics)
def _backward_statistics_reference(operands, attributes, bounds, iteration):
    z = inside(operands["input"], attributes, "in", bounds)
    g = _gradient(operands, attributes, bounds, z)
    xhat = (z - operands["mean"]) * operands["inv_std"]
    operands["partials"][bounds["partial"], 0] = g.sum(axis=(0, 1, 2))
    operands["partials"][bounds["partial"], 1] = (g * xhat).sum(axis=(0, 1, 2))


# coefficients: (3, pitch), dz = a g + (b (z - mean) + c).
@implement(KERNELS, "nhwc_norm_backward_finish", <uintptr_t> &norm_backward_finish)
def _backward_finish_reference(operands, attributes, bounds, iteration):
    c, padding = _range(bounds, attributes)
    dbias, dweight = operands["partials"][:, :, c].sum(axis=0)
    operands["gradient_bias"][0, c] = dbias
    operands["gradient_weight"][0, c] = dweight
    a = operands["weight"][c] * operands["inv_std"][c]
    share = 1 / attributes["count"]
    for row, values in enumerate((a, -share * a * operands["inv_std"][c] * dweight, -share * a * dbias)):
        _set(operands["coefficients"][row], c, padding, values)


def _backward_apply_scratch(attributes, bounds, operands):
    """A row of results, where they are added to the output."""
    return sizeof(float) * attributes["in_width"] * attributes["in_pitch"] if "previous" in operands else 0


# branch: g, the gradient of the residual, written or added.
# "previous" is the output's buffer again: the result is added to what is there.
@implement(KERNELS, "nhwc_norm_backward_apply", <uintptr_t> &norm_backward_apply, scratch_bytes=_backward_apply_scratch)
def _backward_apply_reference(operands, attributes, bounds, iteration):
    z = inside(operands["input"], attributes, "in", bounds)
    g = _gradient(operands, attributes, bounds, z)
    (a, b, c), mean = vectors(operands, bounds, attributes, "coefficients", "mean")
    dz = a * g + (b * (z - mean) + c)
    added = int("previous" in operands)
    write_block(operands["output"], attributes, "in", bounds, dz, attributes["out_halo"], added)
    if "branch" in operands:
        write_block(operands["branch"], attributes, "in", bounds, g, attributes["branch_halo"],
                    attributes["accumulate_branch"])


cdef inline float *at(float *operand, Py_ssize_t offset) noexcept nogil:
    """Element of an operand; NULL where a loop leaves it out."""
    return operand + offset if operand != NULL else NULL


cdef int layernorm_forward(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    cdef layernorm_forward_args a = read_layernorm_forward(args, block)
    cdef Py_ssize_t start = a.r0 * a.features
    cdef LayerNormTask task = LayerNormTask(
        a.input + start, at(a.residual, start), at(a.sum, start), a.weight, a.bias, a.output + start,
        at(a.statistics, 2 * a.r0), a.features, a.r1 - a.r0, <float> a.eps)
    if a.statistics != NULL:
        layernorm_loops(a.micro).forward(&task)
    else:
        layernorm_loops(a.micro).no_norm_forward(&task)
    return 0


cdef int layernorm_backward(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    cdef layernorm_backward_args a = read_layernorm_backward(args, block)
    cdef Py_ssize_t start = a.r0 * a.features, sums = a.partial * a.features
    cdef LayerNormGradientTask task = LayerNormGradientTask(
        a.gradient + start, a.input + start, a.weight, at(a.statistics, 2 * a.r0), at(a.residual, start),
        a.output + start, a.weight_partials + sums, a.bias_partials + sums, a.features, a.r1 - a.r0)
    if a.statistics != NULL:
        layernorm_loops(a.micro).backward(&task)
    else:
        layernorm_loops(a.micro).no_norm_backward(&task)
    return 0


def _summed(operands, rows):
    """What is normalised: the input, or its sum with the residual, which is kept where there is a place for it."""
    x = operands["input"][rows]
    if "residual" in operands:
        x = x + operands["residual"][rows]
        if "sum" in operands:
            operands["sum"][rows] = x
    return x


# Without statistics: NoNorm.
@implement(KERNELS, "layernorm_forward", <uintptr_t> &layernorm_forward)
def _layernorm_forward_reference(operands, attributes, bounds, iteration):
    rows = slice(bounds["r0"], bounds["r1"])
    x = _summed(operands, rows)
    if "statistics" in operands:
        mean = x.mean(axis=1)
        inv_std = 1 / np.sqrt(x.var(axis=1) + attributes["eps"])
        x = (x - mean[:, None]) * inv_std[:, None]
        operands["statistics"][rows] = np.stack([mean, inv_std], axis=1)
    operands["output"][rows] = x * operands["weight"] + operands["bias"]


@implement(KERNELS, "layernorm_backward", <uintptr_t> &layernorm_backward)
def _layernorm_backward_reference(operands, attributes, bounds, iteration):
    rows, partial = slice(bounds["r0"], bounds["r1"]), bounds["partial"]
    dy, normal = operands["gradient"][rows], operands["input"][rows]
    dx = dy * operands["weight"]
    if "statistics" in operands:
        mean, inv_std = operands["statistics"][rows].T[..., None]
        normal = (normal - mean) * inv_std
        dx = inv_std * (dx - dx.mean(axis=1, keepdims=True) - normal * (dx * normal).mean(axis=1, keepdims=True))
    if "residual" in operands:
        dx = dx + operands["residual"][rows]
    operands["output"][rows] = dx
    operands["weight_partials"][partial] = (dy * normal).sum(axis=0)
    operands["bias_partials"][partial] = dy.sum(axis=0)
