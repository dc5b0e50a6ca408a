"""Depthwise convolution with the channels in the vector lanes: forward, data gradient, weight gradient.

y[n, i, j, c] = bias[c] + sum over (ky, kx) of w[c, ky, kx] x[n, stride i - padding + ky, stride j - padding + kx, c];
what lies outside the map is zero, whether or not the map has a halo. Weights are PyTorch's (channels, 1, kernel,
kernel), for any kernel size and stride.

Between two norms the input may be given as it is before its norm and activation: they are applied where a tile loads it
(`nhwc_norm_depthwise`), and one kernel goes back from the second norm's result to the first one's, with
the sums that the first one needs (`nhwc_depthwise_norm_backward`).
"""

from libc.string cimport memset

from depthwise_c cimport *
from elementwise_c cimport *

from ..maps.nhwc cimport (
    block_task, clear_channel_halo, pixel, set_plane, set_vectors, windows_task, with_halo)

import numpy as np

from ..interface.kernel_spec import implement, longest
from ..maps.nhwc import (
    all_rows, block_statistics, channel_end, channels_of, inside, scatter_windows, vectors, window_of, windows,
    write_block)
from ..simd.activations import activate, passes
from .specs import KERNELS


cdef const float *pack(const MicroKernels *micro, const WindowTask *task, const float *weight, const Box *b, bint flip,
                       float *scratch) noexcept nogil:
    """A block's weights in the order of the inner loops; padding channels are zero."""
    cdef int taps = task.kernel * task.kernel
    nhwc_depthwise_loops(micro).pack(
        weight + <Py_ssize_t> b.c0 * taps, b.c1 - b.c0, task.channels, taps, flip, scratch)
    return scratch


cdef int depthwise_forward(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    cdef nhwc_norm_depthwise_args a = read_nhwc_norm_depthwise(args, block)
    cdef float *scratch = <float *> context.scratch
    cdef float *bias
    cdef NhwcTask done
    cdef int c, count = a.box.c1 - a.box.c0
    cdef WindowTask task = windows_task(a.input, &a.in_map, a.output, &a.out_map, False, &a.window, &a.box)
    cdef DepthwiseScratch place = depthwise_scratch(count, task.kernel, a.bias != NULL)
    task.weight = pack(a.micro, &task, a.weight, &a.box, False, scratch + place.weight)
    if a.bias != NULL:
        bias = scratch + place.bias
        for c in range(task.channels):
            bias[c] = a.bias[a.box.c0 + c] if c < count else 0
        task.bias = bias
    if a.input_scale != NULL:
        task.scale = a.input_scale + a.box.c0
        task.shift = a.input_shift + a.box.c0
        task.in_activation = a.input_activation
        task.large_halo = 0  # of zeros, which are none once they are normalised
    if a.statistics == NULL:
        task.activation = a.activation
    else:
        task.statistics = a.statistics + a.partial * 3 * a.out_map.pitch + a.box.c0
        task.statistics_stride = a.out_map.pitch
    nhwc_depthwise_loops(a.micro).forward(&task)
    if a.statistics != NULL and a.activation:
        done = block_task(&a.out_map, &a.box)
        set_plane(&done, 0, a.output, &a.out_map, &a.box)
        set_plane(&done, 1, a.output, &a.out_map, &a.box)
        done.activation = a.activation
        nhwc_elementwise_loops(a.micro).activate(&done)
    clear_channel_halo(&a.out_map, a.output, &a.box)
    return 0


cdef int depthwise_backward_data(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    cdef nhwc_depthwise_backward_data_args a = read_nhwc_depthwise_backward_data(args, block)
    cdef bint backward = a.window.stride != 1
    cdef WindowTask task = windows_task(a.gradient, &a.in_map, a.output, &a.out_map, backward, &a.window, &a.box)
    task.accumulate = a.accumulate
    # With stride 1 it is a convolution of the gradient with the weights turned round.
    task.weight = pack(a.micro, &task, a.weight, &a.box, not backward, <float *> context.scratch)
    if backward:
        nhwc_depthwise_loops(a.micro).backward_data(&task)
    else:
        task.padding = task.kernel - 1 - task.padding
        nhwc_depthwise_loops(a.micro).forward(&task)
    if not a.accumulate:
        clear_channel_halo(&a.out_map, a.output, &a.box)
    return 0


cdef void store_sums(const float *sums, int taps, int count, bint accumulate, float *out) noexcept nogil:
    """A block's weight gradient in PyTorch's order, or added to what is there."""
    cdef int c, tap
    for c in range(count):
        for tap in range(taps):
            out[c * taps + tap] = sums[(c // LANES * taps + tap) * LANES + c % LANES] + (
                out[c * taps + tap] if accumulate else 0)


cdef int depthwise_backward_weights(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    cdef nhwc_depthwise_backward_weights_args a = read_nhwc_depthwise_backward_weights(args, block)
    cdef float *scratch = <float *> context.scratch
    cdef float *sums
    cdef float *out
    cdef const float *dy
    cdef int n, y, x, c, taps = a.window.kernel * a.window.kernel, count = a.box.c1 - a.box.c0
    cdef Py_ssize_t first = a.partial * a.gradient_map.channels + a.box.c0
    cdef WindowTask task = windows_task(a.input, &a.in_map, a.gradient, &a.gradient_map, False, &a.window, &a.box)
    cdef DepthwiseScratch place = depthwise_scratch(count, task.kernel, a.bias_output != NULL)
    nhwc_depthwise_loops(a.micro).backward_weights(&task, scratch + place.sums)
    store_sums(scratch + place.sums, taps, count, a.accumulate, a.output + first * taps)
    if a.bias_output != NULL:
        sums = scratch + place.bias
        memset(sums, 0, task.channels * sizeof(float))
        for n in range(a.box.n0, a.box.n1):
            for y in range(a.box.y0, a.box.y1):
                for x in range(a.gradient_map.width):
                    dy = a.gradient + pixel(&a.gradient_map, n, y, x) + a.box.c0
                    for c in range(count):
                        sums[c] += dy[c]
        out = a.bias_output + first
        for c in range(count):
            out[c] = sums[c] + (out[c] if a.accumulate else 0)
    return 0


cdef int depthwise_norm_backward(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    cdef nhwc_depthwise_norm_backward_args a = read_nhwc_depthwise_norm_backward(args, block)
    cdef NhwcMap *small = &a.out_map
    cdef NhwcMap *large = &a.in_map
    cdef NhwcMap gradient = with_halo(small, a.gradient_halo), out = with_halo(large, a.output_halo)
    cdef Box rows = a.box  # of the input's gradient
    cdef NhwcTask planes
    cdef DepthwiseBackwardTask task
    cdef float *scratch = <float *> context.scratch
    cdef DepthwiseScratch place
    cdef int kernel = a.window.kernel, count = a.box.c1 - a.box.c0, c0 = a.box.c0
    a.box.y0, a.box.y1 = 0, small.height
    rows.y0, rows.y1 = 0, large.height
    task.window = windows_task(a.input, large, a.result, small, False, &a.window, &a.box)
    place = depthwise_backward_scratch(count, kernel, a.window.stride, large.width * task.window.pitch,
                                       small.width * task.window.pitch, small.height)
    task.sums = scratch + place.sums
    task.weight = pack(a.micro, &task.window, a.weight, &a.box, a.window.stride == 1, scratch + place.weight)
    task.staged = scratch + place.gradients
    if a.input_scale != NULL:
        task.window.scale = a.input_scale + c0
        task.window.shift = a.input_shift + c0
        task.window.in_activation = a.input_activation
        task.window.large_halo = 0
        task.mean = a.input_mean + c0
        task.inv_std = a.input_inv_std + c0
        task.partials = a.statistics + a.partial * 2 * large.pitch + c0
        task.partials_stride = large.pitch
    task.norm = block_task(small, &a.box)
    set_plane(&task.norm, 0, a.gradient, &gradient, &a.box)
    set_plane(&task.norm, 1, a.result, small, &a.box)
    set_vectors(&task.norm, 0, c0, a.coefficients, a.coefficients + small.pitch)
    set_vectors(&task.norm, 2, c0, a.coefficients + 2 * small.pitch, a.mean)
    set_vectors(&task.norm, 4, c0, a.scale, a.shift)
    task.norm.activation = a.activation
    task.norm.mask = MASK_ARGUMENT if a.activation else MASK_NONE
    set_plane(&planes, 0, a.output, &out, &rows)
    task.output = planes.plane[0]
    nhwc_depthwise_loops(a.micro).backward(&task)
    store_sums(task.sums, kernel * kernel, count, False,
               a.weight_partials + (a.partial * small.channels + c0) * kernel * kernel)
    clear_channel_halo(&out, a.output, &rows)
    return 0


def _padded(vector, bounds, pitch):
    """A block's part of something of shape (channels, ...), zeros for padding channels, channels last."""
    part = vector.reshape(len(vector), -1)[bounds["c0"] : bounds["c1"]].T
    return np.pad(part, ((0, 0), (0, channel_end(bounds["c1"], pitch) - bounds["c1"])))


def _normalised(operands, attributes, bounds):
    """Argument and result of the activation before the convolution."""
    scale, shift = vectors(operands, bounds, attributes, "input_scale", "input_shift")
    x = scale * all_rows(operands["input"], attributes, "in", bounds) + shift
    return x, activate(x, attributes["input_activation"])


def _scratch(attributes, bounds, operands):
    return sizeof(float) * depthwise_scratch(
        longest(bounds, "c"), attributes["kernel"], "bias" in operands or "bias_output" in operands).end


# statistics: those of the block before the activation, as nhwc_norm_statistics writes them, in its `partial`.
@implement(KERNELS, "nhwc_depthwise_forward", <uintptr_t> &depthwise_forward, scratch_bytes=_scratch)
# The input is activation(input_scale input + input_shift).
@implement(KERNELS, "nhwc_norm_depthwise", <uintptr_t> &depthwise_forward, scratch_bytes=_scratch)
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
        channels_of(operands["statistics"][bounds["partial"]], bounds, pitch)[...] = block_statistics(y)
    write_block(operands["output"], attributes, "out", bounds, activate(y, attributes["activation"]))


# bounds: rows of the input's gradient.
@implement(KERNELS, "nhwc_depthwise_backward_data", <uintptr_t> &depthwise_backward_data, scratch_bytes=_scratch)
def _backward_data_reference(operands, attributes, bounds, iteration):
    dy = all_rows(operands["gradient"], attributes, "in", bounds)
    weight = _padded(operands["weight"], bounds, attributes["in_pitch"])
    shape = all_rows(operands["output"], attributes, "out", bounds).shape
    dx = scatter_windows(lambda tap: weight[tap] * dy, shape, *window_of(attributes), operands["output"].dtype)
    write_block(operands["output"], attributes, "out", bounds, dx[:, bounds["y0"] : bounds["y1"]],
                accumulate=attributes["accumulate"])


# output: (num_partials, channels, kernel^2), bias_output: (num_partials, channels). bounds: rows of dy.
@implement(KERNELS, "nhwc_depthwise_backward_weights", <uintptr_t> &depthwise_backward_weights, scratch_bytes=_scratch)
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


def _norm_backward_scratch(attributes, bounds, operands):
    pitch = attributes["in_pitch"]
    return sizeof(float) * depthwise_backward_scratch(
        longest(bounds, "c"), attributes["kernel"], attributes["stride"], attributes["in_width"] * pitch,
        attributes["out_width"] * pitch, attributes["out_height"]).end


# gradient: of activation(scale result + shift), `result` being the convolution's output; mean, coefficients: as in
# nhwc_norm_backward_apply. The convolution's input is `input`, or `input` normalised (input_scale, input_shift,
# ...); output is its gradient. statistics (num_partials, 2, pitch) are those of nhwc_norm_backward_statistics.
# weight_partials: (num_partials, channels, kernel^2).
@implement(KERNELS, "nhwc_depthwise_norm_backward", <uintptr_t> &depthwise_norm_backward,
           scratch_bytes=_norm_backward_scratch)
def _norm_backward_reference(operands, attributes, bounds, iteration):
    z = all_rows(operands["result"], attributes, "out", bounds)
    g = inside(operands["gradient"], attributes, "out", {**bounds}, attributes["gradient_halo"])
    scale, shift, mean, (a, b, c) = vectors(operands, bounds, attributes, "scale", "shift", "mean", "coefficients")
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
        mean, inv_std = vectors(operands, bounds, attributes, "input_mean", "input_inv_std")
        xhat = (source - mean) * inv_std
        sums = channels_of(operands["statistics"][bounds["partial"]], bounds, attributes["in_pitch"])
        sums[0], sums[1] = dx.sum(axis=(0, 1, 2)), (dx * xhat).sum(axis=(0, 1, 2))
