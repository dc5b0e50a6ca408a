"""Depthwise convolution with the channels in the vector lanes: forward, data gradient, weight gradient.

y[n, i, j, c] = bias[c] + sum over (ky, kx) of w[c, ky, kx] x[n, stride i - padding + ky, stride j - padding + kx, c];
what lies outside the map is zero, whether or not the map has a halo. Weights are PyTorch's (channels, 1, kernel,
kernel), for any kernel size and stride.
"""

from libc.stdint cimport int32_t, uintptr_t
from libc.string cimport memset

from .block_kernel cimport KernelArgs, TaskContext
from .channel_kernels cimport ChannelTask, WindowTask, set_block, set_plane, set_windows
from .kernel_nhwc cimport ChannelMap, channel_end, clear_channel_halo, pixel, read_channel_map
from .micro_kernels cimport Micro

import numpy as np

from . import nhwc_arrays
from .kernel_table import KernelSpec, register
from .nhwc_arrays import (
    BOX, activate, block_statistics, inside, nhwc_attributes, scatter_windows, windows, write_block)


def scratch_bytes(channels, kernel):
    """Scratch memory of the kernels' blocks of up to `channels` channels: weights or their gradient."""
    return 4 * nhwc_arrays.channel_end(channels, 1 << 30) * (kernel * kernel + 1)


cdef const float *pack(const KernelArgs *a, const WindowTask *task, const float *weight, const int32_t *b, int flip,
                       float *scratch) noexcept nogil:
    """A block's weights in the order of the inner loops; padding channels are zero."""
    cdef int taps = task.kernel * task.kernel
    (<const Micro *> a.micro).channels.depthwise_pack(
        weight + <Py_ssize_t> b[4] * taps, b[5] - b[4], task.channels, taps, flip, scratch)
    return scratch


cdef int depthwise_forward(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """bounds: images, rows, channels, partial of the statistics."""
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef const Micro *micro = <const Micro *> a.micro
    cdef float *scratch = <float *> context.scratch
    cdef float *bias
    cdef ChannelMap source, target
    cdef WindowTask task
    cdef ChannelTask done
    cdef int n, c, taps, activation = <int> a.integers[13]
    read_channel_map(&source, a.integers)
    read_channel_map(&target, a.integers + 5)
    set_windows(&task, a.operand[0], &source, a.operand[3], &target, 0, a.integers + 10, b)
    taps = task.kernel * task.kernel
    task.weight = pack(a, &task, <const float *> a.operand[1], b, 0, scratch)
    if a.operand[2] != NULL:
        bias = scratch + taps * task.channels
        for c in range(task.channels):
            bias[c] = (<const float *> a.operand[2])[b[4] + c] if c < b[5] - b[4] else 0
        task.bias = bias
    if a.operand[4] == NULL:
        task.activation = activation
    else:
        task.statistics = <float *> a.operand[4] + <Py_ssize_t> b[6] * 3 * target.pitch + b[4]
        task.statistics_stride = target.pitch
    micro.channels.depthwise(&task)
    if a.operand[4] != NULL and activation:
        set_block(&done, &target, b, b[4], b[5])
        set_plane(&done, 0, a.operand[3], &target, b, b[4])
        set_plane(&done, 1, a.operand[3], &target, b, b[4])
        done.activation = activation
        micro.channels.activate(&done)
    for n in range(b[0], b[1]):
        clear_channel_halo(&target, <float *> a.operand[3], n, b[2], b[3], b[4], channel_end(&target, b[5]))
    return 0


cdef int depthwise_backward_data(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """bounds: images, rows of the input's gradient, channels."""
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef const Micro *micro = <const Micro *> a.micro
    cdef ChannelMap source, target
    cdef WindowTask task
    cdef int n, backward = a.integers[11] != 1
    read_channel_map(&source, a.integers)
    read_channel_map(&target, a.integers + 5)
    set_windows(&task, a.operand[0], &source, a.operand[2], &target, backward, a.integers + 10, b)
    task.accumulate = <int> a.integers[13]
    # With stride 1 it is a convolution of the gradient with the weights turned round.
    task.weight = pack(a, &task, <const float *> a.operand[1], b, not backward, <float *> context.scratch)
    if backward:
        micro.channels.depthwise_backward_data(&task)
    else:
        task.padding = task.kernel - 1 - task.padding
        micro.channels.depthwise(&task)
    if not task.accumulate:
        for n in range(b[0], b[1]):
            clear_channel_halo(&target, <float *> a.operand[2], n, b[2], b[3], b[4], channel_end(&target, b[5]))
    return 0


cdef int depthwise_backward_weights(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """bounds: images, rows of the output's gradient, channels, partial."""
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef const Micro *micro = <const Micro *> a.micro
    cdef float *sums = <float *> context.scratch
    cdef float *out
    cdef const float *dy
    cdef ChannelMap gradient, source
    cdef WindowTask task
    cdef int n, y, x, c, tap, taps, count = b[5] - b[4], accumulate = <int> a.integers[13]
    read_channel_map(&gradient, a.integers)
    read_channel_map(&source, a.integers + 5)
    set_windows(&task, a.operand[1], &source, a.operand[0], &gradient, 0, a.integers + 10, b)
    taps = task.kernel * task.kernel
    micro.channels.depthwise_backward_weights(&task, sums)
    out = <float *> a.operand[2] + (<Py_ssize_t> b[6] * gradient.channels + b[4]) * taps
    for c in range(count):
        for tap in range(taps):
            out[c * taps + tap] = sums[(c // 16 * taps + tap) * 16 + c % 16] + (
                out[c * taps + tap] if accumulate else 0)
    if a.operand[3] != NULL:
        sums += taps * task.channels
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


def _rows(array, attributes, prefix, bounds):
    """All interior rows of a block's images and channels."""
    everything = {name: bounds[name] for name in ("n0", "n1", "c0", "c1")}
    return inside(array, attributes, prefix, everything)


def _window(attributes):
    return attributes["kernel"], attributes["stride"], attributes["padding"]


def _padded(vector, bounds, pitch):
    """A block's part of something of shape (channels, ...), zeros for padding channels, channels last."""
    part = vector.reshape(len(vector), -1)[bounds["c0"] : bounds["c1"]].T
    return np.pad(part, ((0, 0), (0, nhwc_arrays.channel_end(bounds["c1"], pitch) - bounds["c1"])))


def _forward_reference(operands, attributes, bounds, iteration):
    x = _rows(operands["input"], attributes, "in", bounds)
    pitch = attributes["out_pitch"]
    weight = _padded(operands["weight"], bounds, pitch)
    y = np.zeros(())
    for tap, part in windows(x, *_window(attributes), bounds["y0"], bounds["y1"], attributes["out_width"]):
        y = y + weight[tap] * part
    if "bias" in operands:
        y = y + _padded(operands["bias"], bounds, pitch)[0]
    if "statistics" in operands:
        c = slice(bounds["c0"], nhwc_arrays.channel_end(bounds["c1"], pitch))
        operands["statistics"][bounds["partial"], :, c] = block_statistics(y)
    write_block(operands["output"], attributes, "out", bounds, activate(y, attributes["activation"]))


def _backward_data_reference(operands, attributes, bounds, iteration):
    dy = _rows(operands["gradient"], attributes, "in", bounds)
    weight = _padded(operands["weight"], bounds, attributes["in_pitch"])
    shape = _rows(operands["output"], attributes, "out", bounds).shape
    dx = scatter_windows(lambda tap: weight[tap] * dy, shape, *_window(attributes), operands["output"].dtype)
    write_block(operands["output"], attributes, "out", bounds, dx[:, bounds["y0"] : bounds["y1"]],
                accumulate=attributes["accumulate"])


def _backward_weights_reference(operands, attributes, bounds, iteration):
    x = _rows(operands["input"], attributes, "in", bounds)
    dy = inside(operands["gradient"], attributes, "gradient", bounds)
    c, count = slice(bounds["c0"], bounds["c1"]), bounds["c1"] - bounds["c0"]
    results = [("output", np.stack([
        (dy * part).sum(axis=(0, 1, 2))[:count]
        for _, part in windows(x, *_window(attributes), bounds["y0"], bounds["y1"], attributes["gradient_width"])
    ], axis=-1))]
    if "bias_output" in operands:
        results.append(("bias_output", dy.sum(axis=(0, 1, 2))[:count]))
    for name, values in results:
        target = operands[name][bounds["partial"], c]
        target[...] = target + values if attributes["accumulate"] else values


WINDOW = ("kernel", "stride", "padding")
MAPS = nhwc_attributes("in") + nhwc_attributes("out") + WINDOW
# statistics: those of the block before the activation, as nhwc_norm_statistics writes them, in its `partial`.
register(KernelSpec("nhwc_depthwise_forward", ("input", "weight", "bias?", "output", "statistics?"),
                    MAPS + ("activation",), (), BOX + ("partial",), _forward_reference,
                    <uintptr_t> &depthwise_forward))
# bounds: rows of the input's gradient.
register(KernelSpec("nhwc_depthwise_backward_data", ("gradient", "weight", "output"), MAPS + ("accumulate",), (), BOX,
                    _backward_data_reference, <uintptr_t> &depthwise_backward_data))
# output: (num_partials, channels, kernel^2), bias_output: (num_partials, channels). bounds: rows of dy.
register(KernelSpec("nhwc_depthwise_backward_weights", ("gradient", "input", "output", "bias_output?"),
                    nhwc_attributes("gradient") + nhwc_attributes("in") + WINDOW + ("accumulate",), (),
                    BOX + ("partial",), _backward_weights_reference, <uintptr_t> &depthwise_backward_weights))
