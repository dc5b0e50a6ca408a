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
from libc.stdint cimport int32_t, uintptr_t

from ..elementwise.channels_loops cimport ChannelsElementwiseLoops
from ..interface.block_kernel cimport KernelArgs, TaskContext
from ..maps.channels cimport ChannelsMap, channel_end, clear_channel_halo, read_channels_map, with_halo
from ..maps.channels_planes cimport (
    BRANCH_ADD, BRANCH_WRITE, MASK_ARGUMENT, MASK_RESULT, RESIDUAL_PLAIN, RESIDUAL_SCALED, ChannelsTask, set_block,
    set_plane)
from ..simd.lanes cimport LANES
from .channels_loops cimport ChannelsNormLoops

import numpy as np

from ..interface.kernel_spec import KernelSpec, register
from ..maps import channels as channels_maps
from ..maps.channels import BOX, activate, block_statistics, channels_attributes, inside, passes, write_block


cdef extern from "cython_src/kernels/norm/tokens_loops.h" nogil:
    ctypedef struct LayerNormTask:
        const float *input "in"
        const float *residual
        float *sum
        const float *weight
        const float *bias
        float *out
        float *statistics
        Py_ssize_t features
        int rows
        float eps

    ctypedef struct LayerNormGradientTask:
        const float *gradient
        const float *input "in"
        const float *weight
        const float *statistics
        const float *residual
        float *out
        float *weight_gradient
        float *bias_gradient
        Py_ssize_t features
        int rows

    ctypedef struct LayerNormLoops:
        void (*forward)(const LayerNormTask *) noexcept nogil
        void (*backward)(const LayerNormGradientTask *) noexcept nogil
        void (*no_norm_forward)(const LayerNormTask *) noexcept nogil
        void (*no_norm_backward)(const LayerNormGradientTask *) noexcept nogil


cdef extern from "cython_src/kernels/simd/micro_kernels.h" nogil:
    ctypedef struct Micro "MicroKernels":  # what is used here of the table of inner loops
        const ChannelsElementwiseLoops *channels_elementwise
        const ChannelsNormLoops *channels_norm
        const LayerNormLoops *layernorm


cdef int norm_statistics(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """Statistics of a block into its partial. bounds: images, rows, partial."""
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef ChannelsTask task
    cdef ChannelsMap m
    read_channels_map(&m, a.integers)
    set_block(&task, &m, b, 0, m.channels)
    set_plane(&task, 0, a.operand[0], &m, b, 0)
    (<const Micro *> a.micro).channels_norm.statistics(
        &task, <float *> a.operand[1] + <Py_ssize_t> b[4] * 3 * m.pitch, m.pitch)
    return 0


cdef inline int padded(Py_ssize_t channels, int c1) noexcept nogil:
    """End of a block's part of a vector: elements past the last channel belong to the last block."""
    return (c1 + LANES - 1) // LANES * LANES if c1 == channels else c1


cdef int norm_finish(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """Scale and shift from the statistics of all blocks; running statistics. bounds: channels."""
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef Py_ssize_t channels = a.integers[0], c, pitch = (channels + LANES - 1) // LANES * LANES
    cdef int partials = <int> a.integers[1], end = padded(channels, b[1])
    cdef float count = <float> a.integers[2], eps = <float> a.reals[0], momentum = <float> a.reals[1]
    cdef const float *weight = <const float *> a.operand[1]
    cdef const float *bias = <const float *> a.operand[2]
    cdef float *running_mean = <float *> a.operand[3]
    cdef float *running_var = <float *> a.operand[4]
    cdef float *scale = <float *> a.operand[5]
    cdef float *shift = <float *> a.operand[6]
    cdef float *mean = <float *> a.operand[7]
    cdef float *inv_std = <float *> a.operand[8]
    cdef float squares, unbiased = count - 1 if count > 1 else 1
    (<const Micro *> a.micro).channels_norm.merge_statistics(
        <const float *> a.operand[0] + b[0], partials, pitch, end - b[0], count, mean + b[0], inv_std + b[0])
    for c in range(b[0], b[1]):
        squares = inv_std[c]
        running_mean[c] = (1 - momentum) * running_mean[c] + momentum * mean[c]
        running_var[c] = (1 - momentum) * running_var[c] + momentum * (squares / unbiased)
        inv_std[c] = 1 / sqrtf(squares / count + eps)
        scale[c] = weight[c] * inv_std[c]
        shift[c] = bias[c] - mean[c] * scale[c]
    for c in range(b[1], end):
        scale[c] = shift[c] = mean[c] = inv_std[c] = 0
    return 0


cdef int norm_evaluate(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """Scale and shift from the running statistics. bounds: channels."""
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef Py_ssize_t channels = a.integers[0], c
    cdef const float *running_mean = <const float *> a.operand[2]
    cdef float *scale = <float *> a.operand[4]
    cdef float *shift = <float *> a.operand[5]
    cdef float s
    for c in range(b[0], padded(channels, b[1])):
        scale[c] = shift[c] = 0
        if c < channels:
            s = 1 / sqrtf((<const float *> a.operand[3])[c] + <float> a.reals[0])
            scale[c] = (<const float *> a.operand[0])[c] * s
            shift[c] = (<const float *> a.operand[1])[c] - running_mean[c] * scale[c]
    return 0


cdef int norm_apply(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """bounds: images, rows, channels."""
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef ChannelsTask task
    cdef ChannelsMap m, residual, out
    cdef int n, i
    read_channels_map(&m, a.integers)
    residual = with_halo(&m, <int> a.integers[5])
    out = with_halo(&m, <int> a.integers[6])
    set_block(&task, &m, b, b[4], b[5])
    set_plane(&task, 0, a.operand[0], &m, b, b[4])
    set_plane(&task, 1, a.operand[6], &out, b, b[4])
    set_plane(&task, 2, a.operand[3], &residual, b, b[4])
    for i in range(2):
        task.vector[i] = <const float *> a.operand[1 + i] + b[4]
        task.vector[2 + i] = <const float *> a.operand[4 + i] + b[4]
    task.activation = <int> a.integers[7]
    if a.operand[3] != NULL:
        task.residual = RESIDUAL_SCALED if a.operand[4] != NULL else RESIDUAL_PLAIN
    (<const Micro *> a.micro).channels_norm.apply(&task)
    for n in range(b[0], b[1]):
        clear_channel_halo(&out, <float *> a.operand[6], n, b[2], b[3], b[4], channel_end(&m, b[5]))
    return 0


cdef int norm_backward_statistics(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """Sums of g and g xhat over a block into its partial. bounds: images, rows, partial."""
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef ChannelsTask task
    cdef ChannelsMap m, gradient, activations
    cdef int i
    read_channels_map(&m, a.integers)
    gradient = with_halo(&m, <int> a.integers[5])
    activations = with_halo(&m, <int> a.integers[6])
    set_block(&task, &m, b, 0, m.channels)
    set_plane(&task, 0, a.operand[0], &gradient, b, 0)
    set_plane(&task, 1, a.operand[4], &m, b, 0)
    set_plane(&task, 2, a.operand[1], &activations, b, 0)
    for i in range(2):
        task.vector[i] = <const float *> a.operand[5 + i]
        task.vector[2 + i] = <const float *> a.operand[2 + i]
    task.activation = <int> a.integers[7]
    if task.activation:
        task.mask = MASK_RESULT if a.operand[1] != NULL else MASK_ARGUMENT
    (<const Micro *> a.micro).channels_norm.backward_statistics(
        &task, <float *> a.operand[7] + <Py_ssize_t> b[4] * 2 * m.pitch, m.pitch)
    return 0


cdef int norm_backward_finish(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """bounds: channels."""
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef Py_ssize_t channels = a.integers[0], c, pitch = (channels + LANES - 1) // LANES * LANES
    cdef int partials = <int> a.integers[1], end = padded(channels, b[1])
    cdef float share = <float> (1.0 / a.integers[2]), scale
    cdef const float *weight = <const float *> a.operand[1]
    cdef const float *inv_std = <const float *> a.operand[2]
    cdef const float *partial = <const float *> a.operand[0]
    cdef float *dweight = <float *> a.operand[3]
    cdef float *dbias = <float *> a.operand[4]
    cdef float *coefficients = <float *> a.operand[5]
    cdef const Micro *micro = <const Micro *> a.micro
    micro.channels_norm.sum_partials(partial + b[0], partials, 2 * pitch, b[1] - b[0], dbias + b[0])
    micro.channels_norm.sum_partials(partial + pitch + b[0], partials, 2 * pitch, b[1] - b[0], dweight + b[0])
    for c in range(b[0], b[1]):
        scale = weight[c] * inv_std[c]
        coefficients[c] = scale
        coefficients[pitch + c] = -share * scale * inv_std[c] * dweight[c]
        coefficients[2 * pitch + c] = -share * scale * dbias[c]
    for c in range(b[1], end):
        coefficients[c] = coefficients[pitch + c] = coefficients[2 * pitch + c] = 0
    return 0


cdef void add_rows(const ChannelsTask *whole, float *scratch, const Micro *micro) noexcept nogil:
    """norm_backward_apply row by row, each added to what stands in plane 2."""
    cdef ChannelsTask task = whole[0]
    cdef ChannelsTask total
    cdef int image, row, i
    task.images = task.rows = 1
    total = task
    total.activation = total.mask = 0
    total.residual = RESIDUAL_PLAIN
    for image in range(whole.images):
        for row in range(whole.rows):
            for i in range(5):
                if whole.plane[i].p != NULL:
                    task.plane[i].p = whole.plane[i].p + image * whole.plane[i].image + row * whole.plane[i].row
            total.plane[1] = total.plane[2] = task.plane[2]
            total.plane[0] = total.plane[2]
            task.plane[2].p = total.plane[0].p = scratch
            micro.channels_norm.backward_apply(&task)
            micro.channels_elementwise.activate(&total)


cdef int norm_backward_apply(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """bounds: images, rows, channels."""
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef ChannelsTask task
    cdef ChannelsMap m, gradient, activations, out, branch
    cdef int n, i, end
    read_channels_map(&m, a.integers)
    gradient = with_halo(&m, <int> a.integers[5])
    activations = with_halo(&m, <int> a.integers[6])
    out = with_halo(&m, <int> a.integers[7])
    branch = with_halo(&m, <int> a.integers[8])
    end = channel_end(&m, b[5])
    set_block(&task, &m, b, b[4], b[5])
    set_plane(&task, 0, a.operand[0], &gradient, b, b[4])
    set_plane(&task, 1, a.operand[4], &m, b, b[4])
    set_plane(&task, 2, a.operand[7], &out, b, b[4])
    set_plane(&task, 3, a.operand[1], &activations, b, b[4])
    set_plane(&task, 4, a.operand[8], &branch, b, b[4])
    for i in range(3):
        task.vector[i] = <const float *> a.operand[6] + i * m.pitch + b[4]
    task.vector[3] = <const float *> a.operand[5] + b[4]
    for i in range(2):
        task.vector[4 + i] = <const float *> a.operand[2 + i] + b[4]
    task.activation = <int> a.integers[9]
    if task.activation:
        task.mask = MASK_RESULT if a.operand[1] != NULL else MASK_ARGUMENT
    if a.operand[8] != NULL:
        task.residual = BRANCH_ADD if a.integers[10] else BRANCH_WRITE
    if a.operand[9] != NULL:
        add_rows(&task, <float *> context.scratch, <const Micro *> a.micro)
    else:
        (<const Micro *> a.micro).channels_norm.backward_apply(&task)
    for n in range(b[0], b[1]):
        if a.operand[9] == NULL:
            clear_channel_halo(&out, <float *> a.operand[7], n, b[2], b[3], b[4], end)
        if task.residual == BRANCH_WRITE:
            clear_channel_halo(&branch, <float *> a.operand[8], n, b[2], b[3], b[4], end)
    return 0


def _range(bounds, attributes):
    """Channels [c0, c1) of a block; the vectors' elements past the last channel belong to the last block."""
    channels = slice(bounds["c0"], bounds["c1"])
    last = bounds["c1"] == attributes["channels"]
    return channels, slice(bounds["c1"], None) if last else slice(0, 0)


def _set(vector, channels, padding, values):
    vector[..., channels] = values
    vector[..., padding] = 0


def _statistics_reference(operands, attributes, bounds, iteration):
    operands["partials"][bounds["partial"]] = block_statistics(inside(operands["input"], attributes, "in", bounds))


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


def _evaluate_reference(operands, attributes, bounds, iteration):
    c, padding = _range(bounds, attributes)
    inv_std = 1 / np.sqrt(operands["running_var"][c] + attributes["eps"])
    scale = operands["weight"][c] * inv_std
    _set(operands["scale"], c, padding, scale)
    _set(operands["shift"], c, padding, operands["bias"][c] - operands["running_mean"][c] * scale)


def _vector(operands, name, bounds, attributes):
    """A block's part of a vector."""
    return operands[name][..., bounds["c0"] : channels_maps.channel_end(bounds["c1"], attributes["in_pitch"])]


def _apply_reference(operands, attributes, bounds, iteration):
    z = inside(operands["input"], attributes, "in", bounds)
    y = _vector(operands, "scale", bounds, attributes) * z + _vector(operands, "shift", bounds, attributes)
    if "residual" in operands:
        residual = inside(operands["residual"], attributes, "in", bounds, attributes["residual_halo"])
        if "residual_scale" in operands:
            residual = (_vector(operands, "residual_scale", bounds, attributes) * residual
                        + _vector(operands, "residual_shift", bounds, attributes))
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
        scale, shift = operands["scale"], operands["shift"]
        if "c0" in bounds:
            scale, shift = (_vector(operands, name, bounds, attributes) for name in ("scale", "shift"))
        y = scale * z + shift
    return np.where(passes(y, attributes["activation"]), g, 0)


def _backward_statistics_reference(operands, attributes, bounds, iteration):
    z = inside(operands["input"], attributes, "in", bounds)
    g = _gradient(operands, attributes, bounds, z)
    xhat = (z - operands["mean"]) * operands["inv_std"]
    operands["partials"][bounds["partial"], 0] = g.sum(axis=(0, 1, 2))
    operands["partials"][bounds["partial"], 1] = (g * xhat).sum(axis=(0, 1, 2))


def _backward_finish_reference(operands, attributes, bounds, iteration):
    c, padding = _range(bounds, attributes)
    dbias, dweight = operands["partials"][:, :, c].sum(axis=0)
    operands["gradient_bias"][0, c] = dbias
    operands["gradient_weight"][0, c] = dweight
    a = operands["weight"][c] * operands["inv_std"][c]
    share = 1 / attributes["count"]
    for row, values in enumerate((a, -share * a * operands["inv_std"][c] * dweight, -share * a * dbias)):
        _set(operands["coefficients"][row], c, padding, values)


def _backward_apply_reference(operands, attributes, bounds, iteration):
    z = inside(operands["input"], attributes, "in", bounds)
    g = _gradient(operands, attributes, bounds, z)
    a, b, c = _vector(operands, "coefficients", bounds, attributes)
    dz = a * g + (b * (z - _vector(operands, "mean", bounds, attributes)) + c)
    added = int("previous" in operands)
    write_block(operands["output"], attributes, "in", bounds, dz, attributes["out_halo"], added)
    if "branch" in operands:
        write_block(operands["branch"], attributes, "in", bounds, g, attributes["branch_halo"],
                    attributes["accumulate_branch"])


def _backward_apply_scratch(attributes, bounds, operands):
    """A row of results, where they are added to the output."""
    return sizeof(float) * attributes["in_width"] * attributes["in_pitch"] if "previous" in operands else 0


MAP = channels_attributes("in")
# Statistics of one block: shape channels_maps.statistics_shape(num_partials, pitch).
register(KernelSpec("channels_norm_statistics", ("input", "partials"), MAP, (), ("n0", "n1", "y0", "y1", "partial"),
                    _statistics_reference, <uintptr_t> &norm_statistics))
register(KernelSpec(
    "channels_norm_finish",
    ("partials", "weight", "bias", "running_mean", "running_var", "scale", "shift", "mean", "inv_std"),
    ("channels", "num_partials", "count"), ("eps", "momentum"), ("c0", "c1"), _finish_reference,
    <uintptr_t> &norm_finish))
register(KernelSpec(
    "channels_norm_evaluate",
    ("weight", "bias", "running_mean", "running_var", "scale", "shift"),
    ("channels",), ("eps",), ("c0", "c1"), _evaluate_reference,
    <uintptr_t> &norm_evaluate))
# The residual may itself be a convolution's result that is normalised here: residual_scale, residual_shift.
register(KernelSpec(
    "channels_norm_apply",
    ("input", "scale", "shift", "residual?", "residual_scale?", "residual_shift?", "output"),
    MAP + ("residual_halo", "out_halo", "activation"), (), BOX, _apply_reference,
    <uintptr_t> &norm_apply))
# Backward: the activation's mask comes from its result `activations`, or, where there was no residual, from
# scale z + shift, which saves reading a map. Partials: (num_partials, 2, pitch).
register(KernelSpec(
    "channels_norm_backward_statistics",
    ("gradient", "activations?", "scale?", "shift?", "input", "mean", "inv_std", "partials"),
    MAP + ("gradient_halo", "activations_halo", "activation"), (), ("n0", "n1", "y0", "y1", "partial"),
    _backward_statistics_reference,
    <uintptr_t> &norm_backward_statistics))
# coefficients: (3, pitch), dz = a g + (b (z - mean) + c).
register(KernelSpec(
    "channels_norm_backward_finish",
    ("partials", "weight", "inv_std", "gradient_weight", "gradient_bias", "coefficients"),
    ("channels", "num_partials", "count"), (), ("c0", "c1"), _backward_finish_reference,
    <uintptr_t> &norm_backward_finish))
# branch: g, the gradient of the residual, written or added.
# "previous" is the output's buffer again: the result is added to what is there.
register(KernelSpec(
    "channels_norm_backward_apply",
    ("gradient", "activations?", "scale?", "shift?", "input", "mean", "coefficients", "output", "branch?",
     "previous?"),
    MAP + ("gradient_halo", "activations_halo", "out_halo", "branch_halo", "activation", "accumulate_branch"),
    (), BOX, _backward_apply_reference,
    <uintptr_t> &norm_backward_apply, scratch_bytes=_backward_apply_scratch))


cdef inline float *at(const void *operand, Py_ssize_t offset) noexcept nogil:
    """Element of an operand; NULL where a loop leaves it out."""
    return <float *> operand + offset if operand != NULL else NULL


cdef inline LayerNormTask forward_task(const KernelArgs *a, const int32_t *b) noexcept nogil:
    """What both norms take, of the rows of a block."""
    cdef Py_ssize_t start = b[0] * a.integers[0]
    cdef LayerNormTask task
    task.input = at(a.operand[0], start)
    task.residual = at(a.operand[1], start)
    task.sum = at(a.operand[2], start)
    task.weight = <const float *> a.operand[3]
    task.bias = <const float *> a.operand[4]
    task.out = at(a.operand[5], start)
    task.statistics = NULL
    task.features = a.integers[0]
    task.rows = b[1] - b[0]
    task.eps = 0
    return task


cdef int layernorm_forward(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """bounds: rows."""
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef LayerNormTask task = forward_task(a, b)
    task.statistics = at(a.operand[6], 2 * <Py_ssize_t> b[0])
    task.eps = <float> a.reals[0]
    (<const Micro *> a.micro).layernorm.forward(&task)
    return 0


cdef int no_norm_forward(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """bounds: rows."""
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef LayerNormTask task = forward_task(a, a.bounds + block * a.bounds_width)
    (<const Micro *> a.micro).layernorm.no_norm_forward(&task)
    return 0


cdef inline LayerNormGradientTask backward_task(
    const KernelArgs *a, const int32_t *b, float *statistics, int following
) noexcept nogil:
    """What both norms take, of the rows of a block; `following` is the first operand behind weight and statistics."""
    cdef Py_ssize_t features = a.integers[0], start = b[0] * features
    cdef LayerNormGradientTask task
    task.gradient = at(a.operand[0], start)
    task.input = at(a.operand[1], start)
    task.weight = <const float *> a.operand[2]
    task.statistics = statistics
    task.residual = at(a.operand[following], start)
    task.out = at(a.operand[following + 1], start)
    task.weight_gradient = at(a.operand[following + 2], b[2] * features)
    task.bias_gradient = at(a.operand[following + 3], b[2] * features)
    task.features = features
    task.rows = b[1] - b[0]
    return task


cdef int no_norm_backward(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """bounds: rows, partial buffer."""
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef LayerNormGradientTask task = backward_task(a, a.bounds + block * a.bounds_width, NULL, 3)
    (<const Micro *> a.micro).layernorm.no_norm_backward(&task)
    return 0


cdef int layernorm_backward(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """bounds: rows, partial buffer."""
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef LayerNormGradientTask task = backward_task(a, b, at(a.operand[3], 2 * <Py_ssize_t> b[0]), 4)
    (<const Micro *> a.micro).layernorm.backward(&task)
    return 0


def _summed(operands, rows):
    """What is normalised: the input, or its sum with the residual, which is kept where there is a place for it."""
    x = operands["input"][rows]
    if "residual" in operands:
        x = x + operands["residual"][rows]
        if "sum" in operands:
            operands["sum"][rows] = x
    return x


def _layernorm_forward_reference(operands, attributes, bounds, iteration):
    rows = slice(bounds["r0"], bounds["r1"])
    x = _summed(operands, rows)
    mean = x.mean(axis=1)
    inv_std = 1 / np.sqrt(x.var(axis=1) + attributes["eps"])
    normal = (x - mean[:, None]) * inv_std[:, None]
    operands["output"][rows] = normal * operands["weight"] + operands["bias"]
    operands["statistics"][rows] = np.stack([mean, inv_std], axis=1)


def _layernorm_backward_reference(operands, attributes, bounds, iteration):
    rows, partial = slice(bounds["r0"], bounds["r1"]), bounds["partial"]
    dy = operands["gradient"][rows]
    mean, inv_std = operands["statistics"][rows].T[..., None]
    normal = (operands["input"][rows] - mean) * inv_std
    g = dy * operands["weight"]
    dx = inv_std * (g - g.mean(axis=1, keepdims=True) - normal * (g * normal).mean(axis=1, keepdims=True))
    if "residual" in operands:
        dx = dx + operands["residual"][rows]
    operands["output"][rows] = dx
    operands["weight_partials"][partial] = (dy * normal).sum(axis=0)
    operands["bias_partials"][partial] = dy.sum(axis=0)


def _no_norm_forward_reference(operands, attributes, bounds, iteration):
    rows = slice(bounds["r0"], bounds["r1"])
    operands["output"][rows] = _summed(operands, rows) * operands["weight"] + operands["bias"]


def _no_norm_backward_reference(operands, attributes, bounds, iteration):
    rows, partial = slice(bounds["r0"], bounds["r1"]), bounds["partial"]
    dy = operands["gradient"][rows]
    dx = dy * operands["weight"]
    operands["output"][rows] = dx + operands["residual"][rows] if "residual" in operands else dx
    operands["weight_partials"][partial] = (dy * operands["input"][rows]).sum(axis=0)
    operands["bias_partials"][partial] = dy.sum(axis=0)


register(KernelSpec(
    "no_norm_forward", ("input", "residual?", "sum?", "weight", "bias", "output"), ("features",), (), ("r0", "r1"),
    _no_norm_forward_reference, <uintptr_t> &no_norm_forward))
register(KernelSpec(
    "no_norm_backward",
    ("gradient", "input", "weight", "residual?", "output", "weight_partials", "bias_partials"),
    ("features",), (), ("r0", "r1", "partial"), _no_norm_backward_reference, <uintptr_t> &no_norm_backward))
register(KernelSpec(
    "layernorm_forward", ("input", "residual?", "sum?", "weight", "bias", "output", "statistics"), ("features",),
    ("eps",), ("r0", "r1"), _layernorm_forward_reference, <uintptr_t> &layernorm_forward))
register(KernelSpec(
    "layernorm_backward",
    ("gradient", "input", "weight", "statistics", "residual?", "output", "weight_partials", "bias_partials"),
    ("features",), (), ("r0", "r1", "partial"), _layernorm_backward_reference, <uintptr_t> &layernorm_backward))
