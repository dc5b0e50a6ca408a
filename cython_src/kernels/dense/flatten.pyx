"""Maps with the channels in the vector lanes as vectors of features, and back, for fully connected layers.

A vector is (batch, channels * height * width, 1) in PyTorch's order: channel, row, column.
"""

from libc.stdint cimport int32_t, uintptr_t

from ..interface.block_kernel cimport KernelArgs, TaskContext
from ..maps.channels cimport ChannelsMap, channel_end, clear_channel_halo, pixel, read_channels_map
from ..simd.lanes cimport LANES
from ..maps.lanes_loops cimport LanesLoops

import numpy as np

from ..maps import channels as channels_maps
from ..interface.kernel_spec import KernelSpec, register
from ..maps.channels import BOX, inside, channels_attributes, write_block


cdef extern from "cython_src/kernels/simd/micro_kernels.h" nogil:
    ctypedef struct Micro "MicroKernels":  # what is used here of the table of inner loops
        const LanesLoops *lanes


cdef int flatten(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """bounds: images."""
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef ChannelsMap m
    cdef Py_ssize_t plane
    cdef const float *row
    cdef float *out
    cdef int n, y, x, c, i
    read_channels_map(&m, a.integers)
    plane = <Py_ssize_t> m.height * m.width
    for n in range(b[0], b[1]):
        for y in range(m.height):
            row = <const float *> a.operand[0] + pixel(&m, n, y, 0)
            out = <float *> a.operand[1] + n * plane * m.channels + <Py_ssize_t> y * m.width
            c = 0
            while c + LANES <= m.channels and m.width >= LANES:
                x = 0
                while x < m.width:
                    x = min(x, m.width - LANES)  # the last pixels again, so that they fill a vector
                    (<const Micro *> a.micro).lanes.transpose(
                        row + <Py_ssize_t> x * m.pitch + c, m.pitch, LANES, out + c * plane + x, plane)
                    x += LANES
                c += LANES
            for i in range(c, m.channels):
                for x in range(m.width):
                    out[i * plane + x] = row[<Py_ssize_t> x * m.pitch + i]
    return 0


cdef int flatten_backward(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """bounds: images, rows, channels."""
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef ChannelsMap m
    cdef Py_ssize_t plane
    cdef const float *gradient
    cdef float *row
    cdef float *out = <float *> a.operand[1]
    cdef int n, y, x, c, i, end, accumulate = <int> a.integers[5]
    read_channels_map(&m, a.integers)
    plane = <Py_ssize_t> m.height * m.width
    end = channel_end(&m, b[5])
    for n in range(b[0], b[1]):
        for y in range(b[2], b[3]):
            gradient = <const float *> a.operand[0] + n * plane * m.channels + <Py_ssize_t> y * m.width
            row = out + pixel(&m, n, y, 0)
            c = b[4]
            while not accumulate and c < end and m.width >= LANES:
                x = 0
                while x < m.width:
                    x = min(x, m.width - LANES)
                    (<const Micro *> a.micro).lanes.transpose(
                        gradient + c * plane + x, plane, min(LANES, m.channels - c),
                        row + <Py_ssize_t> x * m.pitch + c, m.pitch)
                    x += LANES
                c += LANES
            if c >= end:
                continue
            for x in range(m.width):
                for i in range(c, end):
                    if i >= m.channels:
                        row[<Py_ssize_t> x * m.pitch + i] = 0
                    elif accumulate:
                        row[<Py_ssize_t> x * m.pitch + i] += gradient[i * plane + x]
                    else:
                        row[<Py_ssize_t> x * m.pitch + i] = gradient[i * plane + x]
        if not accumulate:
            clear_channel_halo(&m, out, n, b[2], b[3], b[4], end)
    return 0


def _flatten_reference(operands, attributes, bounds, iteration):
    images = {name: bounds[name] for name in ("n0", "n1")}
    x = inside(operands["input"], attributes, "in", images)[..., : attributes["in_channels"]]
    operands["output"][bounds["n0"] : bounds["n1"], :, 0] = x.transpose(0, 3, 1, 2).reshape(len(x), -1)


def _flatten_backward_reference(operands, attributes, bounds, iteration):
    shape = (-1, attributes["out_channels"], attributes["out_height"], attributes["out_width"])
    gradient = operands["gradient"][bounds["n0"] : bounds["n1"], :, 0].reshape(shape)
    part = gradient[:, bounds["c0"] : bounds["c1"], bounds["y0"] : bounds["y1"]].transpose(0, 2, 3, 1)
    padding = channels_maps.channel_end(bounds["c1"], attributes["out_pitch"]) - bounds["c1"]
    part = np.pad(part, ((0, 0), (0, 0), (0, 0), (0, padding)))
    write_block(operands["output"], attributes, "out", bounds, part, accumulate=attributes["accumulate"])


register(KernelSpec("channels_flatten", ("input", "output"), channels_attributes("in"), (), ("n0", "n1"),
                    _flatten_reference, <uintptr_t> &flatten))
register(KernelSpec("channels_flatten_backward", ("gradient", "output"), channels_attributes("out") + ("accumulate",),
                    (), BOX, _flatten_backward_reference, <uintptr_t> &flatten_backward))
