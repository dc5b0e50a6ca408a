"""Gathers a step's images and labels into the layout of the first layer, or its tokens and what follows them; pixels of
one image on their way from a decoder into a step: scaled to a size, standardised, flipped and moved.

Nothing here holds Python's interpreter lock while it works on pixels.
"""

from libc.stdlib cimport free
from libc.string cimport memcpy, memset
from posix.stdlib cimport posix_memalign

from load_c cimport *

from ..maps.nchw cimport clear_halo, offset
from ..maps.nhwc cimport clear_channel_halo, pixel

from functools import lru_cache

import numpy as np

from ..interface.kernel_spec import implement
from ..maps import nchw as nchw_maps
from ..maps.nchw import interior
from ..maps.nhwc import inside, write_block
from ..simd.instruction_sets import choose, micro_kernels_address
from .specs import KERNELS


# Status of a kernel that met an index outside the data set.
BAD_INDEX = 2


cdef enum:
    WIDEST = 256

WIDEST_IMAGE = WIDEST  # pixels of a row that `load_images` takes; lowering refuses wider images

cdef float zeros[WIDEST]  # a row of a missing image


cdef int load_images(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """Images batch_order[iteration % num_batches] to map and labels; lanes without an image are zero, their
    label -1."""
    cdef load_images_args a = read_load_images(args, block)
    cdef Map *m = &a.out_map
    cdef const int32_t *order = a.batch_order + (context.iteration % a.num_batches) * a.batch
    cdef const float *rows[LANES]
    cdef Py_ssize_t g, i, at, number
    cdef int lane, c, y
    for g in range(a.g0, a.g1):
        for lane in range(m.lanes):
            i = g * m.lanes + lane
            rows[lane] = NULL
            a.labels[i] = -1
            if i < a.batch:
                number = order[i]
                if number < 0 or number >= a.num_images:
                    return 2
                a.labels[i] = a.dataset_labels[number]
                rows[lane] = a.images + number * m.channels * m.height * m.width
        for c in range(m.channels):
            for y in range(m.height):
                at = offset(m, g, c, y)
                if m.lanes == LANES:
                    load_row(a.micro, rows, m.width, a.output + at)
                else:
                    memcpy(a.output + at, rows[0], m.width * sizeof(float))
                    rows[0] += m.width
            clear_halo(m, a.output, g, c, 0, m.height)
    return 0


cdef void load_row(const MicroKernels *micro, const float **rows, int width, float *out) noexcept nogil:
    """Interleave the next row of sixteen images, zeros where there is none, and step on to the one after."""
    cdef const float *present[LANES]
    cdef int lane
    for lane in range(LANES):
        present[lane] = rows[lane] if rows[lane] != NULL else zeros
        if rows[lane] != NULL:
            rows[lane] += width
    load_loops(micro).interleave_row(present, width, out)


cdef int nhwc_load_images(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """The same for a map with the channels in the lanes."""
    cdef nhwc_load_images_args a = read_nhwc_load_images(args, block)
    cdef NhwcMap *m = &a.out_map
    cdef Box box = Box(a.n0, a.n1, 0, m.height, 0, m.channels)
    cdef const int32_t *order = a.batch_order + (context.iteration % a.num_batches) * a.batch
    cdef const float *image
    cdef float *out
    cdef int n, y, x, c
    cdef Py_ssize_t size = m.height * m.width
    for n in range(a.n0, a.n1):
        if order[n] < 0 or order[n] >= a.num_images:
            return 2
        a.labels[n] = a.dataset_labels[order[n]]
        image = a.images + order[n] * m.channels * size
        for y in range(m.height):
            out = a.output + pixel(m, n, y, 0)
            for x in range(m.width):
                for c in range(m.channels):
                    out[c] = image[c * size + y * m.width + x]
                for c in range(m.channels, m.pitch):
                    out[c] = 0
                out += m.pitch
    clear_channel_halo(m, a.output, &box)
    return 0


@implement(KERNELS, "load_images", <uintptr_t> &load_images)
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
    nchw_maps.clear_halo(
        operands["output"], attributes, "out", slice(g0, g1), slice(None), 0, attributes["out_height"])


# The same for a map with the channels in the lanes; bounds: images.
@implement(KERNELS, "nhwc_load_images", <uintptr_t> &nhwc_load_images)
def _nhwc_load_images_reference(operands, attributes, bounds, iteration):
    n = slice(bounds["n0"], bounds["n1"])
    order = operands["batch_order"][iteration % attributes["num_batches"], n]
    if ((order < 0) | (order >= attributes["num_images"])).any():
        return BAD_INDEX
    images = np.zeros_like(inside(operands["output"], attributes, "out", bounds))
    images[..., : attributes["out_channels"]] = operands["images"][order].transpose(0, 2, 3, 1)
    write_block(operands["output"], attributes, "out", bounds, images)
    operands["labels"][n, 0] = operands["dataset_labels"][order]


cdef int tokens_load(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """Samples batch_order[iteration % num_batches]: `sequence` tokens, and as targets `answers` labels each; without
    labels the tokens that follow, in a text in which sample s begins at token s * sequence."""
    cdef tokens_load_args a = read_tokens_load(args, block)
    cdef Py_ssize_t answers = a.answers if a.dataset_labels != NULL else a.sequence, n
    cdef const int32_t *targets = a.dataset_labels if a.dataset_labels != NULL else a.dataset_tokens + 1
    cdef const int32_t *order = a.batch_order + (context.iteration % a.num_batches) * a.batch
    for n in range(a.n0, a.n1):
        if order[n] < 0 or order[n] >= a.num_images:
            return 2
        memcpy(a.tokens + n * a.sequence, a.dataset_tokens + order[n] * a.sequence, a.sequence * sizeof(int32_t))
        memcpy(a.targets + n * answers, targets + order[n] * answers, answers * sizeof(int32_t))
    return 0


@implement(KERNELS, "tokens_load", <uintptr_t> &tokens_load)
def _tokens_load_reference(operands, attributes, bounds, iteration):
    order = operands["batch_order"][iteration % attributes["num_batches"]]
    labels, sequence = operands.get("dataset_labels"), attributes["sequence"]
    answers = operands["dataset_tokens"][1:] if labels is None else labels
    parts = (("tokens", operands["dataset_tokens"], sequence), ("targets", answers, attributes["answers"] or sequence))
    for n in range(bounds["n0"], bounds["n1"]):
        if not 0 <= order[n] < attributes["num_images"]:
            return BAD_INDEX
        for name, source, length in parts:
            operands[name][n * length : (n + 1) * length] = source[order[n] * length : (order[n] + 1) * length]


# --- pixels of one image ----------------------------------------------------------------------------------------------

DOWN_BITS, ACROSS_BITS = 12, 11  # of weights after the point, see load_loops.h

ctypedef fused Value:
    uint8_t
    float


@lru_cache(64)
def scaling_weights(size, start, length, count, bits):
    """Weights by which `count` positions are made from the part [start, start + length) of `size` positions.

    Each is the mean under a triangle that reaches to the centres of its neighbours, or by one old position where these
    are further apart: the bilinear filter of Pillow. Weights are multiples of 2**-bits and add up to 1.

    Returns
    -------
    first : int32, shape (count,)
    weights : float32, shape (count, taps)
        `taps` is a multiple of 4; weights beyond the last position are 0.
    """
    step = length / count
    reach = max(step, 1.0)
    centres = start + (np.arange(count) + 0.5) * step - 0.5
    first = np.maximum(np.floor(centres - reach).astype(int) + 1, 0)
    taps = int((np.minimum(np.ceil(centres + reach).astype(int), size) - first).max())
    first = np.minimum(first, size - taps)
    positions = first[:, None] + np.arange(-(-taps // TAPS_STEP) * TAPS_STEP)
    weights = np.maximum(1 - np.abs(positions - centres[:, None]) / reach, 0) * (positions < size)
    weights = np.rint(weights / weights.sum(axis=1, keepdims=True) * 2**bits)
    weights[np.arange(count), weights.argmax(axis=1)] += 2**bits - weights.sum(axis=1)
    return first.astype(np.int32), (weights / 2**bits).astype(np.float32)


cdef ScaledAxis scaled_axis(const int32_t[::1] first, const float[:, ::1] weights):
    return ScaledAxis(&first[0], &weights[0, 0], <int> weights.shape[0], <int> weights.shape[1])


def scale(const uint8_t[:, :, ::1] pixels, rows, columns, int height, int width, instruction_set=None):
    """Scale a part of an image, uint8, shape (old height, old width, 3), to uint8, shape (3, height, width). `rows`,
    `columns`: first position and length of the part, floats. All instruction sets give the same pixels."""
    cdef const LoadLoops *loops = load_loops(
        <const MicroKernels *> <uintptr_t> micro_kernels_address(choose(instruction_set)))
    out = np.empty((3, height, width), np.uint8)
    cdef uint8_t[:, :, ::1] to = out
    first_down, weights_down = scaling_weights(pixels.shape[0], *rows, height, DOWN_BITS)
    first_across, weights_across = scaling_weights(pixels.shape[1], *columns, width, ACROSS_BITS)
    cdef ScaledAxis down = scaled_axis(first_down, weights_down), across = scaled_axis(first_across, weights_across)
    cdef void *turned
    cdef size_t column = LANES * sizeof(float)
    if posix_memalign(&turned, column, (3 * (pixels.shape[1] + TAPS_STEP) + LANES) * column) != 0:
        raise MemoryError
    with nogil:
        loops.scale(&pixels[0, 0, 0], <int> pixels.shape[0], <int> pixels.shape[1], &down, &across,
                    <float *> turned, &to[0, 0, 0])
        free(turned)
    return out


def put(const Value[:, :, ::1] pixels, const float[:, ::1] tables, bint flipped, int down, int right,
        float[:, :, ::1] out):
    """Write an image, uint8 or float32, shape (channels, height, width), flipped and then moved, to a network's input
    `out`, float32, of the same shape; zeros come in at the edges. `tables`, float32, shape (channels, 256), or None:
    value of each level of each channel, for bytes; `down`, `right`: rows and columns by which the image moves."""
    cdef Py_ssize_t channels = pixels.shape[0], height = pixels.shape[1], width = pixels.shape[2], c, y, x, at
    cdef Py_ssize_t step = -1 if flipped else 1
    cdef Py_ssize_t first = min(max(right, 0), width), last = max(width + min(right, 0), first)
    cdef const float *table = NULL
    cdef const Value *line
    cdef float *to
    if (out.shape[0], out.shape[1], out.shape[2]) != (channels, height, width):
        raise ValueError("pixels and out must have one shape")
    if Value is uint8_t:
        if tables is None or tables.shape[0] != channels or tables.shape[1] != 256:
            raise ValueError("bytes need a table of 256 values for each channel")
    elif tables is not None:
        raise ValueError("only bytes have a table of values")
    with nogil:
        for c in range(channels):
            if Value is uint8_t:
                table = &tables[c, 0]
            for y in range(height):
                to = &out[c, y, 0]
                at = y - down
                if at < 0 or at >= height:
                    memset(to, 0, width * sizeof(float))
                    continue
                memset(to, 0, first * sizeof(float))
                memset(to + last, 0, (width - last) * sizeof(float))
                line = &pixels[c, at, 0] + (width - 1 + right if flipped else -right)
                for x in range(first, last):
                    if Value is uint8_t:
                        to[x] = table[line[x * step]]
                    else:
                        to[x] = line[x * step]
