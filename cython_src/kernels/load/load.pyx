"""Gathers a step's images and labels into the layout of the first layer, or its tokens and what follows them."""

from libc.stdint cimport int32_t, uintptr_t
from libc.string cimport memcpy

from ..interface.block_kernel cimport KernelArgs, TaskContext
from ..maps.channels cimport ChannelsMap, clear_channel_halo, pixel, read_channels_map
from ..maps.lanes cimport Map, clear_halo, offset, read_map
from ..simd.lanes cimport LANES
from .load_loops cimport LoadLoops

import numpy as np

from ..interface.kernel_spec import KernelSpec, register
from ..maps import lanes as lanes_maps
from ..maps.channels import channels_attributes, inside, write_block
from ..maps.lanes import interior, map_attributes


cdef extern from "cython_src/kernels/simd/micro_kernels.h" nogil:
    ctypedef struct Micro "MicroKernels":  # what is used here of the table of inner loops
        const LoadLoops *load


# Status of a kernel that met an index outside the data set.
BAD_INDEX = 2


cdef enum:
    WIDEST = 256

WIDEST_IMAGE = WIDEST  # pixels of a row that `load_images` takes; lowering refuses wider images

cdef float zeros[WIDEST]  # a row of a missing image


cdef int load_images(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """Images batch_order[iteration % num_batches] to map and labels; lanes without an image are zero, their
    label -1.

    bounds: groups.
    """
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef const float *images = <const float *> a.operand[0]
    cdef const int32_t *all_labels = <const int32_t *> a.operand[1]
    cdef float *out = <float *> a.operand[3]
    cdef int32_t *labels = <int32_t *> a.operand[4]
    cdef Py_ssize_t batch = a.integers[7], num_batches = a.integers[8], num_images = a.integers[9]
    cdef const int32_t *order = <const int32_t *> a.operand[2] + (context.iteration % num_batches) * batch
    cdef const float *rows[LANES]
    cdef Map m
    cdef Py_ssize_t g, i, at, number, size
    cdef int lane, c, y
    read_map(&m, a.integers)
    size = <Py_ssize_t> m.height * m.width
    for g in range(b[0], b[1]):
        for lane in range(m.lanes):
            i = g * m.lanes + lane
            rows[lane] = NULL
            labels[i] = -1
            if i < batch:
                number = order[i]
                if number < 0 or number >= num_images:
                    return 2
                labels[i] = all_labels[number]
                rows[lane] = images + number * m.channels * size
        for c in range(m.channels):
            for y in range(m.height):
                at = offset(&m, g, c, y)
                if m.lanes == LANES:
                    load_row(<const Micro *> a.micro, rows, m.width, out + at)
                else:
                    memcpy(out + at, rows[0], m.width * sizeof(float))
                    rows[0] += m.width
            clear_halo(&m, out, g, c, 0, m.height)
    return 0


cdef void load_row(const Micro *micro, const float **rows, int width, float *out) noexcept nogil:
    """Interleave the next row of sixteen images, zeros where there is none, and step on to the one after."""
    cdef const float *present[LANES]
    cdef int lane
    for lane in range(LANES):
        present[lane] = rows[lane] if rows[lane] != NULL else zeros
        if rows[lane] != NULL:
            rows[lane] += width
    micro.load.interleave_row(present, width, out)


cdef int channels_load_images(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """The same for a map with the channels in the lanes. bounds: images."""
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef const float *image
    cdef float *out
    cdef Py_ssize_t batch = a.integers[5], num_batches = a.integers[6], num_images = a.integers[7]
    cdef const int32_t *order = <const int32_t *> a.operand[2] + (context.iteration % num_batches) * batch
    cdef ChannelsMap m
    cdef int n, y, x, c
    cdef Py_ssize_t size
    read_channels_map(&m, a.integers)
    size = <Py_ssize_t> m.height * m.width
    for n in range(b[0], b[1]):
        if order[n] < 0 or order[n] >= num_images:
            return 2
        (<int32_t *> a.operand[4])[n] = (<const int32_t *> a.operand[1])[order[n]]
        image = <const float *> a.operand[0] + order[n] * m.channels * size
        for y in range(m.height):
            out = <float *> a.operand[3] + pixel(&m, n, y, 0)
            for x in range(m.width):
                for c in range(m.channels):
                    out[c] = image[c * size + y * m.width + x]
                for c in range(m.channels, m.pitch):
                    out[c] = 0
                out += m.pitch
        clear_channel_halo(&m, <float *> a.operand[3], n, 0, m.height, 0, m.pitch)
    return 0


def _load_images_reference(operands, attributes, bounds, iteration):
    lanes, batch = attributes["out_lanes"], attributes["batch"]
    g0, g1 = bounds["g0"], bounds["g1"]
    order = operands["batch_order"][iteration % attributes["num_batches"]]
    if ((order < 0) | (order >= attributes["num_images"])).any():
        return BAD_INDEX
    images = interior(operands["output"], attributes, "out")
    for g in range(g0, g1):
        for lane in range(lanes):
            i = g * lanes + lane
            images[g, ..., lane] = operands["images"][order[i]] if i < batch else 0
            operands["labels"][g, lane] = operands["dataset_labels"][order[i]] if i < batch else -1
    lanes_maps.clear_halo(
        operands["output"], attributes, "out", slice(g0, g1), slice(None), 0, attributes["out_height"])


register(KernelSpec(
    "load_images", ("images", "dataset_labels", "batch_order", "output", "labels"),
    map_attributes("out") + ("batch", "num_batches", "num_images", "in_order?"), (), ("g0", "g1"), _load_images_reference,
    <uintptr_t> &load_images))


def _channels_load_images_reference(operands, attributes, bounds, iteration):
    n = slice(bounds["n0"], bounds["n1"])
    order = operands["batch_order"][iteration % attributes["num_batches"], n]
    if ((order < 0) | (order >= attributes["num_images"])).any():
        return BAD_INDEX
    images = np.zeros_like(inside(operands["output"], attributes, "out", bounds))
    images[..., : attributes["out_channels"]] = operands["images"][order].transpose(0, 2, 3, 1)
    write_block(operands["output"], attributes, "out", bounds, images)
    operands["labels"][n, 0] = operands["dataset_labels"][order]


# The same for a map with the channels in the lanes; bounds: images.
register(KernelSpec(
    "channels_load_images", ("images", "dataset_labels", "batch_order", "output", "labels"),
    channels_attributes("out") + ("batch", "num_batches", "num_images", "in_order?"), (), ("n0", "n1"),
    _channels_load_images_reference, <uintptr_t> &channels_load_images))


cdef int tokens_load(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """Samples batch_order[iteration % num_batches]: sample s begins at token s * sequence. bounds: samples."""
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef Py_ssize_t sequence = a.integers[0], batch = a.integers[1], n, size = sequence * sizeof(int32_t)
    cdef const int32_t *order = <const int32_t *> a.operand[1] + (context.iteration % a.integers[2]) * batch
    cdef const int32_t *text
    for n in range(b[0], b[1]):
        if order[n] < 0 or order[n] >= a.integers[3]:
            return 2
        text = <const int32_t *> a.operand[0] + order[n] * sequence
        memcpy(<int32_t *> a.operand[2] + n * sequence, text, size)
        memcpy(<int32_t *> a.operand[3] + n * sequence, text + 1, size)
    return 0


cdef int labelled_tokens_load(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """Samples batch_order[iteration % num_batches]: `sequence` tokens and `answers` labels each. bounds: samples."""
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef Py_ssize_t sequence = a.integers[0], answers = a.integers[1], batch = a.integers[2], n
    cdef const int32_t *order = <const int32_t *> a.operand[2] + (context.iteration % a.integers[3]) * batch
    for n in range(b[0], b[1]):
        if order[n] < 0 or order[n] >= a.integers[4]:
            return 2
        memcpy(<int32_t *> a.operand[3] + n * sequence, <const int32_t *> a.operand[0] + order[n] * sequence,
               sequence * sizeof(int32_t))
        memcpy(<int32_t *> a.operand[4] + n * answers, <const int32_t *> a.operand[1] + order[n] * answers,
               answers * sizeof(int32_t))
    return 0


def _labelled_tokens_load_reference(operands, attributes, bounds, iteration):
    order = operands["batch_order"][iteration % attributes["num_batches"]]
    for n in range(bounds["n0"], bounds["n1"]):
        if not 0 <= order[n] < attributes["num_images"]:
            return BAD_INDEX
        for name, length in (("tokens", attributes["sequence"]), ("labels", attributes["answers"])):
            source = operands[f"dataset_{name}"][order[n] * length : (order[n] + 1) * length]
            operands["targets" if name == "labels" else name][n * length : (n + 1) * length] = source


def _tokens_load_reference(operands, attributes, bounds, iteration):
    sequence = attributes["sequence"]
    order = operands["batch_order"][iteration % attributes["num_batches"]]
    for n in range(bounds["n0"], bounds["n1"]):
        if not 0 <= order[n] < attributes["num_images"]:
            return BAD_INDEX
        start, rows = order[n] * sequence, slice(n * sequence, (n + 1) * sequence)
        operands["tokens"][rows] = operands["dataset_tokens"][start : start + sequence]
        operands["targets"][rows] = operands["dataset_tokens"][start + 1 : start + 1 + sequence]


register(KernelSpec(
    "tokens_load", ("dataset_tokens", "batch_order", "tokens", "targets"),
    ("sequence", "batch", "num_batches", "num_images"), (), ("n0", "n1"), _tokens_load_reference,
    <uintptr_t> &tokens_load))
register(KernelSpec(
    "labelled_tokens_load", ("dataset_tokens", "dataset_labels", "batch_order", "tokens", "targets"),
    ("sequence", "answers", "batch", "num_batches", "num_images"), (), ("n0", "n1"), _labelled_tokens_load_reference,
    <uintptr_t> &labelled_tokens_load))
