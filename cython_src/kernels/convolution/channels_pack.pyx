"""Packing of weights for the convolutions of the layout "channels".

The order of packed weights is described in kernels/convolution/algorithms.py.
"""

from libc.stdint cimport int32_t, uintptr_t
from libc.string cimport memcpy, memset

from ..interface.block_kernel cimport KernelArgs, TaskContext
from ..simd.lanes cimport LANES
from .channels_geometry cimport panel_inputs, winograd_side
from .channels_loops cimport ChannelsConvolutionLoops as Loops
from .channels_sizes cimport MAX_PANELS, pack_index, pack_scratch
from .channels_winograd_loops cimport ChannelsWinogradLoops

from ..interface.kernel_spec import KernelSpec, register
from .channels_reference import pack


cdef extern from "cython_src/kernels/simd/micro_kernels.h" nogil:
    ctypedef struct Micro "MicroKernels":  # what is used here of the table of inner loops
        const Loops *channels_convolution
        const ChannelsWinogradLoops *channels_winograd


cdef int conv_pack(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """bounds: panels."""
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef const Loops *loops = (<const Micro *> a.micro).channels_convolution
    cdef const float *weight = <const float *> a.operand[0]
    cdef float *packed = <float *> a.operand[1]
    cdef int32_t starts[MAX_PANELS]
    cdef int32_t *index = <int32_t *> context.scratch
    cdef int side = winograd_side(<int> a.integers[5])
    cdef int points = (side + 2) * (side + 2)
    cdef int out_channels = <int> a.integers[0], in_channels = <int> a.integers[1]
    cdef int kernel = <int> a.integers[2], groups = <int> a.integers[3]
    cdef bint transposed = a.integers[4] == 1
    cdef int taps = kernel * kernel, part = in_channels // groups, outs = out_channels // groups
    cdef int written = in_channels if transposed else out_channels
    cdef int k = panel_inputs(written, out_channels if transposed else in_channels, groups, starts)
    cdef Py_ssize_t size = <Py_ssize_t> taps * k * LANES
    cdef Py_ssize_t at, all_weights = <Py_ssize_t> out_channels * part * taps
    cdef int p, o, i, c, t, lane, lanes, count, first, whole
    cdef float *plain = <float *> context.scratch + pack_index(taps)
    cdef float *panel
    for p in range(b[0], b[1]):
        panel = plain if side else packed + p * size
        lanes = min(LANES, written - p * LANES)
        first = p * LANES
        # All lanes' channels in one group, whose channels are all that the panel reads.
        whole = first // (part if transposed else outs) == (first + lanes - 1) // (part if transposed else outs)
        whole = whole and k == (outs if transposed else part)
        if not whole:
            memset(panel, 0, size * sizeof(float))
            for lane in range(lanes):
                for c in range(outs if transposed else part):
                    # Weight (o, i), i within the group.
                    if transposed:
                        i = (first + lane) % part
                        o = (first + lane) // part * outs + c
                        count = o - starts[p]
                    else:
                        i = c
                        o = first + lane
                        count = o // outs * part + c - starts[p]
                    for t in range(taps):
                        panel[(<Py_ssize_t> (taps - 1 - t if transposed else t) * k + count) * LANES + lane] = \
                            weight[(<Py_ssize_t> o * part + i) * taps + t]
        elif transposed:
            for t in range(taps):
                index[t] = (taps - 1 - t) * k * LANES
            o = first // part * outs
            i = first % part
            for c in range(k):
                if taps == 1 and lanes == LANES:
                    memcpy(panel + c * LANES, weight + <Py_ssize_t> (o + c) * part + i, LANES * sizeof(float))
                else:
                    at = (<Py_ssize_t> (o + c) * part + i) * taps
                    loops.spread_rows(weight + at, taps, lanes, taps, index, at + LANES * taps + LANES <= all_weights,
                                      panel + c * LANES)
        else:
            c = 0
            while c < k:
                count = min(LANES, k - c)
                for i in range(count):
                    for t in range(taps):
                        index[i * taps + t] = (t * k + i) * LANES
                loops.spread_rows(weight + (<Py_ssize_t> first * part + c) * taps, <Py_ssize_t> part * taps, lanes,
                                  count * taps, index, False, panel + c * LANES)
                c += count
        if side:
            # The panel's points, an output channel's input by input.
            (<const Micro *> a.micro).channels_winograd.filter[side // 2 - 1](
                plain, <Py_ssize_t> k * LANES, k * LANES, packed + <Py_ssize_t> p * points * k * LANES,
                <Py_ssize_t> k * LANES)
    return 0


def _scratch(attributes, bounds, operands):
    kernel, channels = attributes["kernel"], (attributes["out_channels"], attributes["in_channels"])
    written, read = channels[::-1] if attributes["direction"] == 1 else channels
    return sizeof(float) * pack_scratch(
        kernel * kernel, panel_inputs(written, read, attributes["groups"], NULL),
        winograd_side(attributes["algorithm"]))


register(KernelSpec(
    "channels_conv_pack", ("weight", "packed"),
    ("out_channels", "in_channels", "kernel", "groups", "direction", "algorithm"), (), ("o0", "o1"),
    pack, <uintptr_t> &conv_pack, scratch_bytes=_scratch))
