"""Depthwise convolution with the channels in the vector lanes: forward, data gradient, weight gradient.

y[n, i, j, c] = bias[c] + sum over (ky, kx) of w[c, ky, kx] x[n, stride i - padding + ky, stride j - padding + kx, c];
what lies outside the map is zero, whether or not the map has a halo. Weights are PyTorch's (channels, 1, kernel,
kernel), for any kernel size and stride.

Between two norms the input may be given as it is before its norm and activation: they are applied row by row where they
are needed (`channels_norm_depthwise`), and one kernel goes back from the second norm's result to the first one's, with
the sums that the first one needs (`channels_depthwise_norm_backward`).
"""

from libc.stdint cimport int32_t, uintptr_t
from libc.string cimport memset

from ..elementwise.channels_loops cimport ChannelsElementwiseLoops
from ..interface.block_kernel cimport KernelArgs, TaskContext
from ..maps.channels cimport ChannelsMap, channel_end, clear_channel_halo, pixel, read_channels_map, with_halo
from ..maps.channels_planes cimport MASK_ARGUMENT, MASK_NONE, ChannelPlane, ChannelsTask, set_block, set_plane
from ..maps.channels_windows cimport WindowTask, set_windows
from ..simd.lanes cimport LANES

import numpy as np

from ..interface.kernel_spec import KernelSpec, longest, register
from ..maps import channels as channels_maps
from ..maps.channels import (
    BOX, activate, all_rows, block_statistics, channels_attributes, inside, passes, scatter_windows, window_of,
    windows, write_block)


cdef extern from "cython_src/kernels/depthwise/channels_sizes.h" nogil:
    ctypedef struct DepthwiseScratch:
        Py_ssize_t sums, weight, bias, inputs, gradients, end

    DepthwiseScratch depthwise_forward_scratch(
        int channels, int kernel, int stride, bint has_bias, Py_ssize_t in_row, int in_height)
    DepthwiseScratch depthwise_weights_scratch(int channels, int kernel, bint has_bias)
    DepthwiseScratch depthwise_backward_scratch(
        int channels, int kernel, int stride, bint normalises, Py_ssize_t in_row, int in_height, Py_ssize_t out_row,
        int out_height)


cdef extern from "cython_src/kernels/depthwise/channels_loops.h" nogil:
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

    ctypedef struct ChannelsDepthwiseLoops:
        void (*pack)(const float *, int, int, int, int, float *) noexcept nogil
        void (*forward)(const WindowTask *) noexcept nogil
        void (*backward_data)(const WindowTask *) noexcept nogil
        void (*backward_weights)(const WindowTask *, float *) noexcept nogil
        void (*backward)(const DepthwiseBackwardTask *) noexcept nogil


cdef extern from "cython_src/kernels/simd/micro_kernels.h" nogil:
    ctypedef struct Micro "MicroKernels":  # what is used here of the table of inner loops
        const ChannelsDepthwiseLoops *channels_depthwise
        const ChannelsElementwiseLoops *channels_elementwise


cdef const float *pack(const KernelArgs *a, const WindowTask *task, const float *weight, const int32_t *b, int flip,
                       float *scratch) noexcept nogil:
    """A block's weights in the order of the inner loops; padding channels are zero."""
    cdef int taps = task.kernel * task.kernel
    (<const Micro *> a.micro).channels_depthwise.pack(
        weight + <Py_ssize_t> b[4] * taps, b[5] - b[4], task.channels, taps, flip, scratch)
    return scratch


cdef int forward(const KernelArgs *a, Py_ssize_t block, const TaskContext *context, bint normalise) noexcept nogil:
    """bounds: images, rows, channels, partial of the statistics."""
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef const Micro *micro = <const Micro *> a.micro
    cdef float *scratch = <float *> context.scratch
    cdef float *bias
    cdef ChannelsMap source, target
    cdef WindowTask task
    cdef ChannelsTask done
    cdef DepthwiseScratch place
    cdef int n, c, activation = <int> a.integers[13]
    read_channels_map(&source, a.integers)
    read_channels_map(&target, a.integers + 5)
    set_windows(&task, a.operand[0], &source, a.operand[3], &target, 0, a.integers + 10, b)
    place = depthwise_forward_scratch(b[5] - b[4], task.kernel, task.stride, a.operand[2] != NULL,
                                      source.width * task.pitch if normalise else 0, source.height)
    task.weight = pack(a, &task, <const float *> a.operand[1], b, 0, scratch + place.weight)
    if a.operand[2] != NULL:
        bias = scratch + place.bias
        for c in range(task.channels):
            bias[c] = (<const float *> a.operand[2])[b[4] + c] if c < b[5] - b[4] else 0
        task.bias = bias
    if normalise:
        task.scale = <const float *> a.operand[5] + b[4]
        task.shift = <const float *> a.operand[6] + b[4]
        task.in_activation = <int> a.integers[14]
        task.staged = scratch + place.inputs
    if a.operand[4] == NULL:
        task.activation = activation
    else:
        task.statistics = <float *> a.operand[4] + <Py_ssize_t> b[6] * 3 * target.pitch + b[4]
        task.statistics_stride = target.pitch
    micro.channels_depthwise.forward(&task)
    if a.operand[4] != NULL and activation:
        set_block(&done, &target, b, b[4], b[5])
        set_plane(&done, 0, a.operand[3], &target, b, b[4])
        set_plane(&done, 1, a.operand[3], &target, b, b[4])
        done.activation = activation
        micro.channels_elementwise.activate(&done)
    for n in range(b[0], b[1]):
        clear_channel_halo(&target, <float *> a.operand[3], n, b[2], b[3], b[4], channel_end(&target, b[5]))
    return 0


cdef int depthwise_forward(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    return forward(<const KernelArgs *> args, block, context, False)


cdef int norm_depthwise(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    return forward(<const KernelArgs *> args, block, context, True)


cdef int depthwise_backward_data(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """bounds: images, rows of the input's gradient, channels."""
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef const Micro *micro = <const Micro *> a.micro
    cdef ChannelsMap source, target
    cdef WindowTask task
    cdef int n, backward = a.integers[11] != 1
    read_channels_map(&source, a.integers)
    read_channels_map(&target, a.integers + 5)
    set_windows(&task, a.operand[0], &source, a.operand[2], &target, backward, a.integers + 10, b)
    task.accumulate = <int> a.integers[13]
    # With stride 1 it is a convolution of the gradient with the weights turned round.
    task.weight = pack(a, &task, <const float *> a.operand[1], b, not backward, <float *> context.scratch)
    if backward:
        micro.channels_depthwise.backward_data(&task)
    else:
        task.padding = task.kernel - 1 - task.padding
        micro.channels_depthwise.forward(&task)
    if not task.accumulate:
        for n in range(b[0], b[1]):
            clear_channel_halo(&target, <float *> a.operand[2], n, b[2], b[3], b[4], channel_end(&target, b[5]))
    return 0


cdef void store_sums(const float *sums, int taps, int count, bint accumulate, float *out) noexcept nogil:
    """A block's weight gradient in PyTorch's order, or added to what is there."""
    cdef int c, tap
    for c in range(count):
        for tap in range(taps):
            out[c * taps + tap] = sums[(c // LANES * taps + tap) * LANES + c % LANES] + (
                out[c * taps + tap] if accumulate else 0)


cdef int depthwise_backward_weights(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """bounds: images, rows of the output's gradient, channels, partial."""
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef const Micro *micro = <const Micro *> a.micro
    cdef float *scratch = <float *> context.scratch
    cdef float *sums
    cdef float *out
    cdef const float *dy
    cdef DepthwiseScratch place
    cdef ChannelsMap gradient, source
    cdef WindowTask task
    cdef int n, y, x, c, taps, count = b[5] - b[4], accumulate = <int> a.integers[13]
    read_channels_map(&gradient, a.integers)
    read_channels_map(&source, a.integers + 5)
    set_windows(&task, a.operand[1], &source, a.operand[0], &gradient, 0, a.integers + 10, b)
    taps = task.kernel * task.kernel
    place = depthwise_weights_scratch(count, task.kernel, a.operand[3] != NULL)
    micro.channels_depthwise.backward_weights(&task, scratch + place.sums)
    store_sums(scratch + place.sums, taps, count, accumulate,
               <float *> a.operand[2] + (<Py_ssize_t> b[6] * gradient.channels + b[4]) * taps)
    if a.operand[3] != NULL:
        sums = scratch + place.bias
        memset(sums, 0, task.channels * sizeof(float))
        for n in range(b[0], b[1]):
            for y in range(b[2], b[3]):
                for x in range(gradient.width):
                    dy = <const float *> a.operand[0] + pixel(&gradient, n, y, x) + b[4]
                    for c in range(count):
                        sums[c] += dy[c]
        out = <float *> a.operand[3] + <Py_ssize_t> b[6] * gradient.channels + b[4]
        for c in range(count):
            out[c] = sums[c] + (out[c] if accumulate else 0)
    return 0


cdef int depthwise_norm_backward(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """bounds: images, channels, partial."""
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *bounds = a.bounds + block * a.bounds_width
    cdef int32_t *b = [bounds[0], bounds[1], 0, 0, bounds[2], bounds[3]]
    cdef const Micro *micro = <const Micro *> a.micro
    cdef ChannelsMap small, gradient, large, out
    cdef ChannelsTask planes
    cdef DepthwiseBackwardTask task
    cdef float *scratch = <float *> context.scratch
    cdef DepthwiseScratch place
    cdef int n, i, taps, end
    read_channels_map(&small, a.integers)
    read_channels_map(&large, a.integers + 5)
    gradient = with_halo(&small, <int> a.integers[13])
    out = with_halo(&large, <int> a.integers[14])
    b[3] = small.height
    end = channel_end(&large, b[5])
    set_windows(&task.window, a.operand[7], &large, a.operand[1], &small, 0, a.integers + 10, b)
    taps = task.window.kernel * task.window.kernel
    place = depthwise_backward_scratch(b[5] - b[4], task.window.kernel, task.window.stride, a.operand[8] != NULL,
                                       large.width * task.window.pitch, large.height,
                                       small.width * task.window.pitch, small.height)
    task.sums = scratch + place.sums
    task.weight = pack(a, &task.window, <const float *> a.operand[6], b, task.window.stride == 1,
                       scratch + place.weight)
    task.staged = scratch + place.gradients
    if a.operand[8] != NULL:
        task.window.scale = <const float *> a.operand[8] + b[4]
        task.window.shift = <const float *> a.operand[9] + b[4]
        task.window.in_activation = <int> a.integers[16]
        task.window.staged = scratch + place.inputs
        task.mean = <const float *> a.operand[10] + b[4]
        task.inv_std = <const float *> a.operand[11] + b[4]
        task.partials = <float *> a.operand[14] + <Py_ssize_t> bounds[4] * 2 * large.pitch + b[4]
        task.partials_stride = large.pitch
    set_block(&task.norm, &small, b, b[4], b[5])
    set_plane(&task.norm, 0, a.operand[0], &gradient, b, b[4])
    set_plane(&task.norm, 1, a.operand[1], &small, b, b[4])
    for i in range(2, 5):
        set_plane(&task.norm, i, NULL, &small, b, b[4])
    for i in range(3):
        task.norm.vector[i] = <const float *> a.operand[5] + i * small.pitch + b[4]
    task.norm.vector[3] = <const float *> a.operand[4] + b[4]
    for i in range(2):
        task.norm.vector[4 + i] = <const float *> a.operand[2 + i] + b[4]
    task.norm.activation = <int> a.integers[15]
    task.norm.mask = MASK_ARGUMENT if task.norm.activation else MASK_NONE
    set_plane(&planes, 0, a.operand[12], &out, b, b[4])
    task.output = planes.plane[0]
    micro.channels_depthwise.backward(&task)
    store_sums(task.sums, taps, b[5] - b[4], False,
               <float *> a.operand[13] + (<Py_ssize_t> bounds[4] * small.channels + b[4]) * taps)
    for n in range(b[0], b[1]):
        clear_channel_halo(&out, <float *> a.operand[12], n, 0, large.height, b[4], end)
    return 0


def _padded(vector, bounds, pitch):
    """A block's part of something of shape (channels, ...), zeros for padding channels, channels last."""
    part = vector.reshape(len(vector), -1)[bounds["c0"] : bounds["c1"]].T
    return np.pad(part, ((0, 0), (0, channels_maps.channel_end(bounds["c1"], pitch) - bounds["c1"])))


def _vector(operands, name, bounds, attributes):
    """A block's part of a vector, or of several."""
    return operands[name][..., bounds["c0"] : channels_maps.channel_end(bounds["c1"], attributes["in_pitch"])]


def _normalised(operands, attributes, bounds):
    """Argument and result of the activation before the convolution."""
    x = (_vector(operands, "input_scale", bounds, attributes) * all_rows(operands["input"], attributes, "in", bounds)
         + _vector(operands, "input_shift", bounds, attributes))
    return x, activate(x, attributes["input_activation"])


def _forward_reference(operands, attributes, bounds, iteration):
    x = all_rows(operands["input"], attributes, "in", bounds)
    if "input_scale" in operands:
        x = _normalised(operands, attributes, bounds)[1]
    pitch = attributes["out_pitch"]
    weight = _padded(operands["weight"], bounds, pitch)
    y = np.zeros(())
    for tap, part in windows(x, *window_of(attributes), bounds["y0"], bounds["y1"], attributes["out_width"]):
        y = y + weight[tap] * part
    if "bias" in operands:
        y = y + _padded(operands["bias"], bounds, pitch)[0]
    if "statistics" in operands:
        c = slice(bounds["c0"], channels_maps.channel_end(bounds["c1"], pitch))
        operands["statistics"][bounds["partial"], :, c] = block_statistics(y)
    write_block(operands["output"], attributes, "out", bounds, activate(y, attributes["activation"]))


def _backward_data_reference(operands, attributes, bounds, iteration):
    dy = all_rows(operands["gradient"], attributes, "in", bounds)
    weight = _padded(operands["weight"], bounds, attributes["in_pitch"])
    shape = all_rows(operands["output"], attributes, "out", bounds).shape
    dx = scatter_windows(lambda tap: weight[tap] * dy, shape, *window_of(attributes), operands["output"].dtype)
    write_block(operands["output"], attributes, "out", bounds, dx[:, bounds["y0"] : bounds["y1"]],
                accumulate=attributes["accumulate"])


def _backward_weights_reference(operands, attributes, bounds, iteration):
    x = all_rows(operands["input"], attributes, "in", bounds)
    dy = inside(operands["gradient"], attributes, "gradient", bounds)
    c, count = slice(bounds["c0"], bounds["c1"]), bounds["c1"] - bounds["c0"]
    results = [("output", np.stack([
        (dy * part).sum(axis=(0, 1, 2))[:count]
        for _, part in windows(x, *window_of(attributes), bounds["y0"], bounds["y1"], attributes["gradient_width"])
    ], axis=-1))]
    if "bias_output" in operands:
        results.append(("bias_output", dy.sum(axis=(0, 1, 2))[:count]))
    for name, values in results:
        target = operands[name][bounds["partial"], c]
        target[...] = target + values if attributes["accumulate"] else values


def _norm_backward_reference(operands, attributes, bounds, iteration):
    z = all_rows(operands["result"], attributes, "out", bounds)
    g = inside(operands["gradient"], attributes, "out", {**bounds}, attributes["gradient_halo"])
    scale, shift, mean, (a, b, c) = (
        _vector(operands, name, bounds, attributes) for name in ("scale", "shift", "mean", "coefficients")
    )
    dz = a * np.where(passes(scale * z + shift, attributes["activation"]), g, 0) + (b * (z - mean) + c)
    weight = _padded(operands["weight"], bounds, attributes["in_pitch"])
    x = source = all_rows(operands["input"], attributes, "in", bounds)
    if "input_scale" in operands:
        argument, x = _normalised(operands, attributes, bounds)
    channels, count = slice(bounds["c0"], bounds["c1"]), bounds["c1"] - bounds["c0"]
    taps = windows(x, *window_of(attributes), 0, attributes["out_height"], attributes["out_width"])
    operands["weight_partials"][bounds["partial"], channels] = np.stack(
        [(dz * part).sum(axis=(0, 1, 2))[:count] for _, part in taps], axis=-1)
    dx = scatter_windows(lambda tap: weight[tap] * dz, x.shape, *window_of(attributes), operands["output"].dtype)
    write_block(operands["output"], attributes, "in", bounds, dx, attributes["output_halo"])
    if "input_scale" in operands:
        dx = np.where(passes(argument, attributes["input_activation"]), dx, 0)
        xhat = (source - _vector(operands, "input_mean", bounds, attributes)) * _vector(
            operands, "input_inv_std", bounds, attributes)
        channels = slice(bounds["c0"], channels_maps.channel_end(bounds["c1"], attributes["in_pitch"]))
        operands["statistics"][bounds["partial"], 0, channels] = dx.sum(axis=(0, 1, 2))
        operands["statistics"][bounds["partial"], 1, channels] = (dx * xhat).sum(axis=(0, 1, 2))


def _forward_scratch(attributes, bounds, operands):
    row = attributes["in_width"] * attributes["out_pitch"] if "input_scale" in operands else 0
    return sizeof(float) * depthwise_forward_scratch(
        longest(bounds, "c"), attributes["kernel"], attributes["stride"], "bias" in operands, row,
        attributes["in_height"]).end


def _weights_scratch(attributes, bounds, operands):
    return sizeof(float) * depthwise_weights_scratch(
        longest(bounds, "c"), attributes["kernel"], "bias_output" in operands).end


def _norm_backward_scratch(attributes, bounds, operands):
    return sizeof(float) * depthwise_backward_scratch(
        longest(bounds, "c"), attributes["kernel"], attributes["stride"], "input_scale" in operands,
        attributes["in_width"] * attributes["out_pitch"], attributes["in_height"],
        attributes["out_width"] * attributes["out_pitch"], attributes["out_height"]).end


WINDOW = ("kernel", "stride", "padding")
MAPS = channels_attributes("in") + channels_attributes("out") + WINDOW
# statistics: those of the block before the activation, as channels_norm_statistics writes them, in its `partial`.
register(KernelSpec("channels_depthwise_forward", ("input", "weight", "bias?", "output", "statistics?"),
                    MAPS + ("activation",), (), BOX + ("partial",), _forward_reference,
                    <uintptr_t> &depthwise_forward, scratch_bytes=_forward_scratch))
# The input is activation(input_scale input + input_shift).
register(KernelSpec("channels_norm_depthwise",
                    ("input", "weight", "bias?", "output", "statistics?", "input_scale", "input_shift"),
                    MAPS + ("activation", "input_activation"), (), BOX + ("partial",), _forward_reference,
                    <uintptr_t> &norm_depthwise, scratch_bytes=_forward_scratch))
# bounds: rows of the input's gradient.
register(KernelSpec("channels_depthwise_backward_data", ("gradient", "weight", "output"), MAPS + ("accumulate",), (),
                    BOX, _backward_data_reference, <uintptr_t> &depthwise_backward_data,
                    scratch_bytes=_forward_scratch))
# output: (num_partials, channels, kernel^2), bias_output: (num_partials, channels). bounds: rows of dy.
register(KernelSpec("channels_depthwise_backward_weights", ("gradient", "input", "output", "bias_output?"),
                    channels_attributes("gradient") + channels_attributes("in") + WINDOW + ("accumulate",), (),
                    BOX + ("partial",), _backward_weights_reference, <uintptr_t> &depthwise_backward_weights,
                    scratch_bytes=_weights_scratch))
# gradient: of activation(scale result + shift), `result` being the convolution's output; mean, coefficients: as in
# channels_norm_backward_apply. The convolution's input is `input`, or `input` normalised (input_scale, input_shift,
# ...); output is its gradient. statistics (num_partials, 2, pitch) are those of channels_norm_backward_statistics.
# weight_partials: (num_partials, channels, kernel^2).
register(KernelSpec("channels_depthwise_norm_backward",
                    ("gradient", "result", "scale", "shift", "mean", "coefficients", "weight", "input", "input_scale?",
                     "input_shift?", "input_mean?", "input_inv_std?", "output", "weight_partials", "statistics?"),
                    channels_attributes("out") + channels_attributes("in") + WINDOW
                    + ("gradient_halo", "output_halo", "activation", "input_activation"), (),
                    ("n0", "n1", "c0", "c1", "partial"), _norm_backward_reference,
                    <uintptr_t> &depthwise_norm_backward, scratch_bytes=_norm_backward_scratch))
