"""Convolution in the layout "channels": packing of weights, forward pass, data gradient, weight gradient.

The formula, the algorithms and the order of packed weights are described in kernels/convolution/algorithms.py.

Forward pass and data gradient are one loop: an output pixel is a sum over taps of rows of the map that is read times
rows of packed weights. With a stride the outputs of the data gradient fall into stride x stride phases that meet taps
of their own; in each, one output to the next moves by one pixel of the gradient.
"""

from libc.stdint cimport int32_t, int64_t, uintptr_t
from libc.string cimport memcpy, memmove, memset

from ...binding.block_kernel cimport KernelArgs, TaskContext
from ..simd.channels_kernels cimport RESIDUAL_PLAIN, ChannelsTask, set_block, set_plane
from ..maps.channels cimport (
    ChannelsMap, channel_end, clear_channel_halo, image_size, pixel, read_channels_map, row_size)
from ..simd.matrix_kernels cimport (
    PANEL, Matrix, OuterTask, PixelGroup, PlainGradientTask, PlainTask, PlaneTap, ProductTask, Request, Tap, Winograd,
    request_writes)
from ..simd.micro_kernels cimport Micro

import numpy as np

from . import algorithms
from ...binding.kernel_table import KernelSpec, register
from ..maps.channels import activate, block_statistics, channel_end as physical_end, inside, channels_attributes, write_block

cdef enum:
    # kernels/convolution/algorithms.py computes scratch memory and limits from these.
    MAX_TAPS = 256
    MAX_PANELS = 1024
    MAX_GROUPS = 1024  # groups of pixels in a list
    ROW_FLOATS = 1 << 16  # copied rows of inputs
    PAD_FLOATS = 1 << 17  # copied inputs between zeros
    MAX_INDEX = 4096  # weights of sixteen, or of a piece's, input channels
    WINOGRAD_PANELS = 2  # panels that are summed at a time
    WEIGHT_TILES = 32  # Winograd tiles of a strip
    SMALL_WEIGHTS = 1 << 16  # floats that may stay in the L2 cache beside a list of pixels
    STRIP = 128  # pixels of a strip of the weight gradient, at least

cdef enum Algorithm:
    DIRECT
    IM2COL
    TESTED  # "if"
    TESTED_BLOCKED
    PAD
    PAD_BLOCKED
    WINOGRAD2
    WINOGRAD4


cdef struct Convolution:
    ChannelsMap source, target
    int kernel, stride, padding, dilation, groups, algorithm, option
    int side  # outputs in a row of a Winograd tile, or 0
    bint transposed  # data gradient: `stride` is between outputs


cdef inline void read_convolution(Convolution *c, const int64_t *integers, bint transposed) noexcept nogil:
    read_channels_map(&c.source, integers)
    read_channels_map(&c.target, integers + 5)
    c.kernel = <int> integers[10]
    c.stride = <int> integers[11]
    c.padding = <int> integers[12]
    c.dilation = <int> integers[13]
    c.groups = <int> integers[14]
    c.algorithm = <int> integers[15]
    c.option = <int> integers[16]
    c.side = 2 if c.algorithm == WINOGRAD2 else 4 if c.algorithm == WINOGRAD4 else 0
    c.transposed = transposed
    if transposed:  # of the equivalent convolution with reversed taps
        c.padding = (c.kernel - 1) * c.dilation - c.padding


cdef int panel_inputs(int written, int read, int groups, int32_t *starts) noexcept nogil:
    """First input channel of each panel; returns how many channels follow. As algorithms.panel_inputs()."""
    cdef int p, first, last, count = 0, panels = (written + PANEL - 1) // PANEL
    cdef int part = written // groups, inputs = read // groups
    for p in range(panels):
        first = PANEL * p // part
        last = (min(written, PANEL * (p + 1)) - 1) // part
        count = max(count, (last + 1 - first) * inputs)
        starts[p] = first * inputs
    count = max(4, count)
    for p in range(panels):
        starts[p] = max(0, min(starts[p], read - count))
    return count


cdef inline int divide(int a, int b) noexcept nogil:
    """Rounded down; b is positive."""
    return a // b if a >= 0 else -((b - 1 - a) // b)


cdef int phase_taps(const Convolution *c, int ry, int rx, int k, Tap *taps, int *length) noexcept nogil:
    """Taps of the outputs (ry + stride j, rx + stride i); for a forward pass of all outputs.

    Offsets in the map that is read are from the pixel in place (j, i) of a data gradient, (stride j, stride i)
    else. Returns their number; `length` gets the floats of a tap.
    """
    cdef int ty, tx, y, x, count = 0
    cdef int step = c.stride if c.transposed else 1
    # Neighbouring taps' channels follow on: one tap for a row of them.
    cdef bint joined = c.dilation == 1 and c.source.pitch == k and step == 1 and c.groups == 1
    length[0] = k * c.kernel if joined else k
    for ty in range(c.kernel):
        y = ry - c.padding + ty * c.dilation
        if (y + c.kernel * c.dilation * step * step) % step:
            continue
        for tx in range(1 if joined else c.kernel):
            x = rx - c.padding + tx * c.dilation
            if (x + c.kernel * c.dilation * step * step) % step:
                continue
            taps[count].a = divide(y, step) * row_size(&c.source) + <Py_ssize_t> divide(x, step) * c.source.pitch
            taps[count].b = <Py_ssize_t> (ty * c.kernel + tx) * k * PANEL
            count += 1
    return count


cdef void plain_product(const Convolution *c, const ProductTask *p, const Matrix *matrix, const float *x, float *out,
                        int n0, int n1, int first, int rows, int columns, int step, int ry, int rx,
                        float *scratch) noexcept nogil:
    """The algorithms that know no tricks: bounds tested at each tap, or the input copied between zeros first."""
    cdef PlaneTap taps[MAX_TAPS]
    cdef PlainTask t
    cdef int move = 1 if c.transposed else c.stride
    cdef int apart = step  # outputs' distance, by which a data gradient's taps are divided
    cdef bint padded = c.algorithm == PAD or c.algorithm == PAD_BLOCKED
    cdef int channels = max(4, c.source.channels)
    cdef int ty, tx, y, x_, n, panel, row, stop, count = 0, top = 0, bottom = 0, left = 0, right = 0
    cdef int wide, high, chunk
    cdef const float *source
    for ty in range(c.kernel):
        y = ry - c.padding + ty * c.dilation
        for tx in range(c.kernel):
            x_ = rx - c.padding + tx * c.dilation
            if divide(y, apart) * apart == y and divide(x_, apart) * apart == x_:
                taps[count].y = divide(y, apart)
                taps[count].x = divide(x_, apart)
                taps[count].b = <Py_ssize_t> (ty * c.kernel + tx) * p.k * PANEL
                top = taps[count].y if count == 0 else min(top, taps[count].y)
                bottom = taps[count].y if count == 0 else max(bottom, taps[count].y)
                left = taps[count].x if count == 0 else min(left, taps[count].x)
                right = taps[count].x if count == 0 else max(right, taps[count].x)
                count += 1
    wide = (columns - 1) * move + right - left + 1
    chunk = rows
    if padded:
        chunk = min(rows, max(1, (PAD_FLOATS // (wide * channels) - (bottom - top + 1)) // move + 1))
        for n in range(count):
            taps[n].y -= top
            taps[n].x -= left
    t.taps = taps
    t.num_taps = count
    t.k = p.k
    t.move = move
    t.height = c.source.height
    t.width = c.source.width
    t.columns = columns
    t.tests = not padded
    t.blocked = c.algorithm == PAD_BLOCKED or c.algorithm == TESTED_BLOCKED
    t.activation = p.activation
    t.accumulate = p.accumulate
    t.row = row_size(&c.source)
    t.pixel = c.source.pitch
    t.out_pixel = <Py_ssize_t> c.target.pitch * step
    for n in range(n0, n1):
        row = first
        while row < first + rows:
            stop = min(first + rows, row + chunk)
            source = x + pixel(&c.source, n, 0, 0)
            if padded:
                high = (stop - row - 1) * move + bottom - top + 1
                for y in range(high):
                    for x_ in range(wide):
                        ty = row * move + top + y
                        tx = left + x_
                        if 0 <= ty < c.source.height and 0 <= tx < c.source.width:
                            memcpy(scratch + (<Py_ssize_t> y * wide + x_) * channels,
                                   source + ty * row_size(&c.source) + <Py_ssize_t> tx * c.source.pitch,
                                   channels * sizeof(float))
                        else:
                            memset(scratch + (<Py_ssize_t> y * wide + x_) * channels, 0, channels * sizeof(float))
                source = scratch
                t.row = <Py_ssize_t> wide * channels
                t.pixel = channels
            for y in range(row, stop):
                t.y = (y - row if padded else y) * move
                for panel in range(p.num_panels):
                    t.x = source + (0 if p.panel_input == NULL else p.panel_input[panel])
                    t.b = p.b + panel * p.panel
                    t.bias = NULL if p.bias == NULL else p.bias + panel * PANEL
                    t.lanes = p.last_columns if panel == p.num_panels - 1 else PANEL
                    t.stored = p.store_columns if panel == p.num_panels - 1 else PANEL
                    t.c = out + pixel(&c.target, n, y * step + ry, rx) + panel * PANEL
                    matrix.plain(&t)
            row = stop


cdef void copied_product(const Convolution *c, ProductTask *t, const Matrix *matrix, const float *x, float *out,
                         int n0, int n1, int first, int rows, int columns, int step, int ry, int rx,
                         float *scratch) noexcept nogil:
    """Product by way of copies: each output pixel's inputs in a row of their own, results by pixel.

    Outputs are rows [first, first + rows) and all `columns` of a phase, in places step * j + ry, step * i + rx.
    """
    cdef Tap taps[MAX_TAPS]
    cdef PixelGroup *groups = <PixelGroup *> scratch
    cdef float *copied = scratch + MAX_GROUPS * sizeof(PixelGroup) // sizeof(float)
    cdef float *sums
    cdef int move = 1 if c.transposed else c.stride
    # Channels that a tap copies: of all groups, padding beyond the last where there is no more.
    cdef int part = t.k if c.groups == 1 else c.source.channels
    cdef Py_ssize_t length = <Py_ssize_t> part * t.num_taps
    cdef int width = t.num_panels * PANEL, stored = (t.num_panels - 1) * PANEL + t.store_columns
    cdef int chunk = <int> min(192, max(12, ROW_FLOATS // max(1, length) // 12 * 12))
    cdef int total = (n1 - n0) * rows * columns, done = 0, count, i, tap, n, y, column, place, accumulate = t.accumulate
    cdef const float *a
    cdef float *row
    sums = copied + chunk * length
    for tap in range(t.num_taps):
        taps[tap].a = <Py_ssize_t> tap * part
        taps[tap].b = t.taps[tap].b
    while done < total:
        count = min(chunk, total - done)
        for i in range(count):
            place = done + i
            n = n0 + place // (rows * columns)
            y = first + place // columns % rows
            column = place % columns
            a = x + pixel(&c.source, n, y * move, column * move)
            row = copied + i * length
            for tap in range(t.num_taps):
                memcpy(row + tap * part, a + t.taps[tap].a, part * sizeof(float))
        for i in range((count + 3) // 4):
            groups[i].a = 4 * i * length
            groups[i].c = 4 * i * width
            groups[i].first = 0
            groups[i].count = min(4, count - 4 * i)
        # Rows beyond the last of a group are read, not used: they must hold numbers of some kind.
        memset(copied + count * length, 0, ((count + 3) // 4 * 4 - count) * length * sizeof(float))
        run_copied(t, matrix, copied, sums, taps, groups, (count + 3) // 4, length, width)
        for i in range(count):
            place = done + i
            n = n0 + place // (rows * columns)
            y = first + place // columns % rows
            column = place % columns
            row = out + pixel(&c.target, n, y * step + ry, column * step + rx)
            if accumulate:
                for tap in range(stored):
                    row[tap] += sums[i * width + tap]
            else:
                memcpy(row, sums + i * width, stored * sizeof(float))
        done += count


cdef inline void run_copied(const ProductTask *task, const Matrix *matrix, const float *a, float *c, const Tap *taps,
                            const PixelGroup *groups, int num_groups, Py_ssize_t length, int width) noexcept nogil:
    cdef ProductTask t = task[0]
    t.a = a
    t.c = c
    t.taps = taps
    t.groups = groups
    t.num_groups = num_groups
    t.pixel = length
    t.out_pixel = width
    t.accumulate = 0
    t.store_columns = PANEL
    matrix.product(&t)


cdef void direct_product(const Convolution *c, ProductTask *t, const Matrix *matrix, const float *x, float *out,
                         int n0, int n1, int first, int rows, int columns, int step, int ry, int rx,
                         float *scratch) noexcept nogil:
    """Product straight from the map, rows of at least four pixels."""
    cdef PixelGroup *groups = <PixelGroup *> scratch
    cdef int move = 1 if c.transposed else c.stride
    cdef int of_row = (columns + 3) // 4, n, y, i, at, num = 0, filled = 0
    # A list's inputs stay in the L2 cache while all panels pass. More groups than it has are filled in, one row's.
    cdef int limit = min(MAX_GROUPS, max(24, 32768 // c.source.pitch)) - of_row
    cdef Py_ssize_t a_row, c_row
    t.a = x
    t.c = out
    t.groups = groups
    t.pixel = <Py_ssize_t> c.source.pitch * move
    t.out_pixel = <Py_ssize_t> c.target.pitch * step
    for n in range(n0, n1):
        for y in range(first, first + rows):
            a_row = pixel(&c.source, n, y * move, 0)
            c_row = pixel(&c.target, n, y * step + ry, rx)
            for i in range(of_row):
                at = min(4 * i, columns - 4)
                groups[filled].a = a_row + at * t.pixel
                groups[filled].c = c_row + at * t.out_pixel
                groups[filled].first = 4 * i - at
                groups[filled].count = 4 - groups[filled].first
                filled += 1
            if filled > limit and num > 0:
                # The row that was just filled in comes from memory while the list before it is summed.
                t.num_groups = num
                t.more_groups = filled - num
                matrix.product(t)
                memmove(groups, groups + num, (filled - num) * sizeof(PixelGroup))
                filled -= num
            num = filled
    t.num_groups = num
    t.more_groups = 0
    matrix.product(t)


cdef void direct_flat(const Convolution *c, ProductTask *t, const Matrix *matrix, const float *x, float *out, int n0,
                      int total, float *scratch) noexcept nogil:
    """Product of `total` >= 4 pixels that follow on in both maps."""
    cdef PixelGroup *groups = <PixelGroup *> scratch
    # A list's inputs stay in the L2 cache while all panels pass, its results too where the weights leave them room.
    # Whole tiles of three groups; a tile of the next list besides.
    cdef int beside = c.target.pitch if <Py_ssize_t> t.k * t.num_panels * PANEL <= SMALL_WEIGHTS else 0
    cdef int limit = min(MAX_GROUPS - 3, max(24, 32768 // (c.source.pitch + beside))) // 3 * 3
    cdef int all_groups = (total + 3) // 4, done = 0, i, at
    t.a = x + n0 * image_size(&c.source)
    t.c = out + n0 * image_size(&c.target)
    t.groups = groups
    t.pixel = c.source.pitch
    t.out_pixel = c.target.pitch
    while done < all_groups:
        t.num_groups = min(limit, all_groups - done)
        t.more_groups = min(3, all_groups - done - t.num_groups)
        for i in range(t.num_groups + t.more_groups):
            at = min(4 * (done + i), total - 4)
            groups[i].a = at * t.pixel
            groups[i].c = at * t.out_pixel
            groups[i].first = 4 * (done + i) - at
            groups[i].count = 4 - groups[i].first
        matrix.product(t)
        done += t.num_groups


cdef int num_tiles(int side, int channels, int total) noexcept nogil:
    """Tiles of a chunk: transformed inputs and sums fit the L2 cache. kernels/convolution/algorithms.py has the largest."""
    cdef int most = (24 if channels <= 128 else 48) * (4 // side)
    # Chunks of nearly equal size, of whole groups.
    cdef int chunks = (total + most - 1) // most
    return ((total + chunks - 1) // chunks + 3) // 4 * 4


cdef void read_tile(const ChannelsMap *m, const float *x, int n, int y, int x_, int rows, int columns, int side,
                    int channels, float *patch, const float **at, Py_ssize_t *row, Py_ssize_t *step) noexcept nogil:
    """Where a tile's side x side inputs lie: in the map, or, if only the first of them are to be read, in a copy
    with zeros beyond. (y, x_) may lie in the halo."""
    cdef const float *p = x + pixel(m, n, y, x_)
    cdef int i, j
    if rows >= side and columns >= side:
        at[0] = p
        row[0] = row_size(m)
        step[0] = m.pitch
        return
    for i in range(side):
        for j in range(side):
            if i < rows and j < columns:
                memcpy(patch + (i * side + j) * channels, p + i * row_size(m) + <Py_ssize_t> j * m.pitch,
                       channels * sizeof(float))
            else:
                memset(patch + (i * side + j) * channels, 0, channels * sizeof(float))
    at[0] = patch
    row[0] = side * channels
    step[0] = channels


cdef inline void request_outputs(const Convolution *c, float *out, const int32_t *b, int tiles_y, int tiles_x, int first,
                                 int stop, int width) noexcept nogil:
    """Ask memory for rows [first, stop) of the outputs of tiles, c.side of each: they will be written."""
    cdef int i, j, tile
    cdef float *p
    for i in range(first, stop):
        tile = i // c.side
        p = out + pixel(&c.target, b[0] + tile // (tiles_x * tiles_y), b[2] + tile // tiles_x % tiles_y * c.side + i % c.side,
                        tile % tiles_x * c.side)
        for j in range(c.side):
            request_writes(p + j * c.target.pitch, width)


cdef void winograd_product(const Convolution *c, ProductTask *t, const Matrix *matrix, const Winograd *winograd,
                           const float *x, float *out, const int32_t *b, float *scratch) noexcept nogil:
    """Panels that read the same channels, chunks of tiles: inputs to points, a matrix product at each point, sums to
    outputs, two panels at a time. What is read or written next is asked for from memory in time."""
    cdef int m = c.side, n = m + 2, points = n * n, which = m // 2 - 1
    cdef int channels = (t.k + PANEL - 1) // PANEL * PANEL
    cdef int tiles_y = (b[3] - b[2] + m - 1) // m, tiles_x = (c.target.width + m - 1) // m
    cdef int total = (b[1] - b[0]) * tiles_y * tiles_x, chunk = num_tiles(m, channels, total)
    # Odd numbers of cache lines between points: a power of two would put them all in one cache set.
    cdef Py_ssize_t v_point = <Py_ssize_t> chunk * channels + PANEL
    cdef Py_ssize_t s_point = <Py_ssize_t> chunk * WINOGRAD_PANELS * PANEL + PANEL
    cdef PixelGroup *groups = <PixelGroup *> scratch
    cdef float *patch = scratch + MAX_GROUPS * sizeof(PixelGroup) // sizeof(float)
    cdef float *v = patch + points * channels
    cdef float *sums = v + points * v_point
    cdef float bias[32]
    cdef const float *all_bias = t.bias
    cdef const float *packed = t.b
    cdef const int32_t *inputs = t.panel_input
    cdef int panels = t.num_panels, last = t.last_columns, activation = t.activation, accumulate = t.accumulate
    cdef int done, count, i, p, run, run_stop, panel, width, rows, columns, tile
    cdef const float *at
    cdef const float *next
    cdef Py_ssize_t row, step
    cdef Tap tap
    tap.a = 0
    tap.b = 0
    t.taps = &tap
    t.num_taps = 1
    t.bias = NULL
    t.activation = 0
    t.accumulate = 0
    t.store_columns = PANEL
    t.last_columns = PANEL
    t.panel_input = NULL
    t.pixel = channels
    t.c = sums
    t.groups = groups
    t.panel = <Py_ssize_t> points * t.k * PANEL
    run = 0
    while run < panels:
        run_stop = panels
        if inputs != NULL:
            x += inputs[run]
            run_stop = run + 1
            while run_stop < panels and inputs[run_stop] == inputs[run]:
                run_stop += 1
        done = 0
        while done < total:
            count = min(chunk, total - done)
            for i in range(count):
                tile = done + i
                rows = tile // tiles_x % tiles_y * m
                columns = tile % tiles_x * m
                read_tile(&c.source, x, b[0] + tile // (tiles_x * tiles_y), b[2] + rows - c.padding,
                          columns - c.padding, b[3] - b[2] - rows + 2, c.target.width - columns + 2, n, channels, patch,
                          &at, &row, &step)
                next = NULL
                if tile + 1 < total and row == row_size(&c.source):
                    tile += 1
                    next = x + pixel(&c.source, b[0] + tile // (tiles_x * tiles_y),
                                     b[2] + tile // tiles_x % tiles_y * m - c.padding, tile % tiles_x * m - c.padding)
                winograd.input[which](at, row, step, channels, next, v + <Py_ssize_t> i * channels, v_point)
            t.num_groups = (count + 3) // 4
            panel = run
            while panel < run_stop:
                t.num_panels = min(WINOGRAD_PANELS, run_stop - panel)
                width = t.num_panels * PANEL
                t.out_pixel = width
                for i in range(t.num_groups):
                    groups[i].a = 4 * i * channels
                    groups[i].c = 4 * i * width
                    groups[i].first = 0
                    groups[i].count = 4
                for p in range(points):
                    t.a = v + p * v_point
                    t.b = packed + panel * t.panel + <Py_ssize_t> p * t.k * PANEL
                    t.c = sums + p * s_point
                    request_outputs(c, out + panel * PANEL, b, tiles_y, tiles_x, (done * points + count * p) * m // points,
                                    (done * points + count * (p + 1)) * m // points, width)
                    matrix.product(t)
                if all_bias != NULL:
                    memset(bias, 0, sizeof(bias))
                    memcpy(bias, all_bias + panel * PANEL,
                           (width if panel + t.num_panels < panels else width - PANEL + last) * sizeof(float))
                for i in range(count):
                    tile = done + i
                    rows = tile // tiles_x % tiles_y * m
                    columns = tile % tiles_x * m
                    winograd.output[which](
                        sums + i * width, s_point, width, NULL if all_bias == NULL else bias, activation, accumulate,
                        out + pixel(&c.target, b[0] + tile // (tiles_x * tiles_y), b[2] + rows, columns) + panel * PANEL,
                        row_size(&c.target), c.target.pitch, min(m, b[3] - b[2] - rows), min(m, c.target.width - columns))
                panel += t.num_panels
            done += count
        if inputs != NULL:
            x -= inputs[run]
        run = run_stop


cdef void add_residual(const Convolution *c, void *residual, float *out, const int32_t *b,
                       const Micro *micro) noexcept nogil:
    """out = activation(out + residual), a map of the same geometry, in a block that was just written."""
    cdef ChannelsTask task
    set_block(&task, &c.target, b, b[4], b[5])
    set_plane(&task, 0, out, &c.target, b, b[4])
    set_plane(&task, 1, out, &c.target, b, b[4])
    set_plane(&task, 2, residual, &c.target, b, b[4])
    task.activation = c.option
    task.residual = RESIDUAL_PLAIN
    micro.channels.activate(&task)


cdef int convolve(const KernelArgs *a, Py_ssize_t block, const TaskContext *context, bint transposed) noexcept nogil:
    """Forward pass and data gradient. bounds: images, rows, channels of the map that is written; partial."""
    cdef Convolution c
    cdef ProductTask t
    cdef ChannelsTask done
    cdef Tap taps[MAX_TAPS]
    cdef int32_t starts[MAX_PANELS]
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef const Matrix *matrix = (<const Micro *> a.micro).matrix
    cdef const float *x = <const float *> a.operand[0]
    cdef float *out = <float *> a.operand[2 if transposed else 3]
    cdef float *statistics_out = NULL if transposed else <float *> a.operand[4]
    cdef void *residual = NULL if transposed else a.operand[5]
    cdef int k, step, points, ry, rx, first, rows, columns, n, panel0 = b[4] // PANEL
    cdef bint flat
    read_convolution(&c, a.integers, transposed)
    k = panel_inputs(c.target.channels, c.source.channels, c.groups, starts)
    points = (c.side + 2) * (c.side + 2) if c.side else c.kernel * c.kernel
    t.b = <const float *> a.operand[1] + <Py_ssize_t> panel0 * points * k * PANEL
    t.bias = NULL if transposed or a.operand[2] == NULL else <const float *> a.operand[2] + b[4]
    t.taps = taps
    t.panel_input = NULL if c.groups == 1 else starts + panel0
    t.panel = <Py_ssize_t> c.kernel * c.kernel * k * PANEL
    t.k = k
    t.num_panels = (b[5] + PANEL - 1) // PANEL - panel0
    t.last_columns = b[5] - (panel0 + t.num_panels - 1) * PANEL
    t.store_columns = min(PANEL, c.target.pitch - (panel0 + t.num_panels - 1) * PANEL)
    t.activation = 0 if transposed or residual != NULL else c.option
    t.accumulate = c.option if transposed else 0
    t.more_groups = 0
    step = c.stride if transposed else 1
    # Pixels side by side in both maps: one row for the whole block, or of an image.
    flat = (c.kernel == 1 and c.stride == 1 and c.padding == 0 and c.source.halo == 0 and c.target.halo == 0
            and b[2] == 0 and b[3] == c.target.height)
    if c.side:
        winograd_product(&c, &t, matrix, (<const Micro *> a.micro).winograd, x, out + b[4], b,
                         <float *> context.scratch)
    for ry in range(0 if c.side else step):
        for rx in range(step):
            t.num_taps = phase_taps(&c, ry, rx, k, taps, &t.k)
            first = (b[2] - ry + step - 1) // step if b[2] > ry else 0
            rows = (b[3] - ry + step - 1) // step - first if b[3] > ry else 0
            columns = (c.target.width - rx + step - 1) // step
            if rows <= 0 or columns <= 0:
                continue
            if TESTED <= c.algorithm <= PAD_BLOCKED:
                t.k = k
                plain_product(&c, &t, matrix, x, out + b[4], b[0], b[1], first, rows, columns, step, ry, rx,
                              <float *> context.scratch)
            elif flat and c.algorithm == DIRECT and (b[1] - b[0]) * rows * columns >= 4:
                direct_flat(&c, &t, matrix, x, out + b[4], b[0], (b[1] - b[0]) * rows * columns, <float *> context.scratch)
            elif columns < 4 or c.algorithm == IM2COL:
                copied_product(&c, &t, matrix, x, out + b[4], b[0], b[1], first, rows,
                               columns, step, ry, rx, <float *> context.scratch)
            else:
                direct_product(&c, &t, matrix, x, out + b[4], b[0], b[1], first, rows, columns, step, ry, rx,
                               <float *> context.scratch)
    if residual != NULL:
        add_residual(&c, residual, out, b, <const Micro *> a.micro)
    if not t.accumulate:
        for n in range(b[0], b[1]):
            clear_channel_halo(&c.target, out, n, b[2], b[3], b[4], channel_end(&c.target, b[5]))
    if statistics_out != NULL:
        if c.option:
            return 1  # they are of the sums before the activation
        set_block(&done, &c.target, b, b[4], b[5])
        set_plane(&done, 0, out, &c.target, b, b[4])
        (<const Micro *> a.micro).channels.statistics(
            &done, statistics_out + <Py_ssize_t> b[6] * 3 * c.target.pitch + b[4], c.target.pitch)
    return 0


cdef int conv_forward(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    return convolve(<const KernelArgs *> args, block, context, False)


cdef int conv_backward_data(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    return convolve(<const KernelArgs *> args, block, context, True)


cdef int conv_pack(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """bounds: panels."""
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef const Matrix *matrix = (<const Micro *> a.micro).matrix
    cdef const float *weight = <const float *> a.operand[0]
    cdef float *packed = <float *> a.operand[1]
    cdef int32_t starts[MAX_PANELS]
    cdef int32_t *index = <int32_t *> context.scratch
    cdef float *plain = <float *> context.scratch + MAX_INDEX
    cdef int code = <int> a.integers[5], side = 2 if code == WINOGRAD2 else 4 if code == WINOGRAD4 else 0
    cdef int points = (side + 2) * (side + 2)
    cdef int out_channels = <int> a.integers[0], in_channels = <int> a.integers[1]
    cdef int kernel = <int> a.integers[2], groups = <int> a.integers[3]
    cdef bint transposed = a.integers[4] == 1
    cdef int taps = kernel * kernel, part = in_channels // groups, outs = out_channels // groups
    cdef int written = in_channels if transposed else out_channels
    cdef int k = panel_inputs(written, out_channels if transposed else in_channels, groups, starts)
    cdef Py_ssize_t size = <Py_ssize_t> taps * k * PANEL
    cdef Py_ssize_t at, all_weights = <Py_ssize_t> out_channels * part * taps
    cdef int p, o, i, c, t, lane, lanes, count, first, whole
    cdef float *panel
    for p in range(b[0], b[1]):
        panel = plain if side else packed + p * size
        lanes = min(PANEL, written - p * PANEL)
        first = p * PANEL
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
                        panel[(<Py_ssize_t> (taps - 1 - t if transposed else t) * k + count) * PANEL + lane] = \
                            weight[(<Py_ssize_t> o * part + i) * taps + t]
        elif transposed:
            for t in range(taps):
                index[t] = (taps - 1 - t) * k * PANEL
            o = first // part * outs
            i = first % part
            for c in range(k):
                if taps == 1 and lanes == PANEL:
                    memcpy(panel + c * PANEL, weight + <Py_ssize_t> (o + c) * part + i, PANEL * sizeof(float))
                else:
                    at = (<Py_ssize_t> (o + c) * part + i) * taps
                    matrix.spread_rows(weight + at, taps, lanes, taps, index, at + 16 * taps + 16 <= all_weights,
                                       panel + c * PANEL)
        else:
            c = 0
            while c < k:
                count = min(16, k - c)
                for i in range(count):
                    for t in range(taps):
                        index[i * taps + t] = (t * k + i) * PANEL
                matrix.spread_rows(weight + (<Py_ssize_t> first * part + c) * taps, <Py_ssize_t> part * taps, lanes,
                                   count * taps, index, False, panel + c * PANEL)
                c += count
        if side:
            # The panel's points, an output channel's input by input.
            (<const Micro *> a.micro).winograd.filter[side // 2 - 1](
                plain, <Py_ssize_t> k * PANEL, k * PANEL, packed + <Py_ssize_t> p * points * k * PANEL,
                <Py_ssize_t> k * PANEL)
    return 0


cdef void pack_pixels(const ChannelsMap *m, const Matrix *matrix, const float *x, int n0, int n1, int y0, int rows, int left, int columns,
                      int step, int c, int width, int valid, float *out) noexcept nogil:
    """Copy channels [c, c + width) of `rows` physical rows y0, y0 + step, ... and `columns` columns likewise from `left`.

    Channels from `valid` on are left as zeros.
    """
    cdef int n, y, x_
    cdef const float *p
    for n in range(n0, n1):
        for y in range(rows):
            p = x + n * image_size(m) + (y0 + y * step) * row_size(m) + <Py_ssize_t> left * m.pitch + c
            if valid == width:
                matrix.gather(p, <Py_ssize_t> step * m.pitch, columns, width, out)
                out += columns * width
                continue
            for x_ in range(columns):
                memset(out, 0, width * sizeof(float))
                memcpy(out, p, valid * sizeof(float))
                out += width
                p += step * m.pitch


cdef int conv_backward_weights(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """bounds: images, output channels, input channels (all of a group where there are several), partial.

    Strips of pixels are copied, so that they lie close together; a piece of the gradient, 64 x 64 channels, is summed
    in scratch memory over all of them and then brought into PyTorch's order.
    """
    cdef const KernelArgs *a = <const KernelArgs *> args
    cdef const int32_t *b = a.bounds + block * a.bounds_width
    cdef const Matrix *matrix = (<const Micro *> a.micro).matrix
    cdef Convolution c
    cdef const float *dy = <const float *> a.operand[0]
    cdef const float *x = <const float *> a.operand[1]
    cdef float *out = <float *> a.operand[2]
    cdef float *bias = <float *> a.operand[3]
    cdef int32_t starts[MAX_PANELS]
    cdef int taps, outs, part, o, o_stop, i, i_stop, k, piece_out, piece_in, bound
    cdef bint first
    # The weight gradient's attributes name dY's map first.
    read_convolution(&c, a.integers, False)
    taps = c.kernel * c.kernel
    outs = c.source.channels // c.groups
    part = c.target.channels // c.groups
    out += <Py_ssize_t> b[6] * c.source.channels * part * taps
    if bias != NULL:
        bias += <Py_ssize_t> b[6] * c.source.channels
    piece_out = 128 if c.side else 256 if taps == 1 else 64
    piece_in = 128 if c.side else 16 if taps > 49 else 64 if taps > 1 else 256
    k = panel_inputs(c.source.channels, c.target.channels, c.groups, starts)
    o = b[2]
    while o < b[3]:
        o_stop = min(b[3], o + piece_out)
        first = True
        if c.groups == 1:
            i = b[4]
            bound = b[5]
        else:
            # Output channels whose panels read the same channels.
            bound = o
            while bound < o_stop and starts[bound // PANEL] == starts[o // PANEL]:
                bound += PANEL
            o_stop = min(o_stop, bound)
            i = starts[o // PANEL]
            bound = min(c.target.channels, i + k)
        while i < bound:
            i_stop = min(bound, i + piece_in)
            if c.side:
                winograd_weight_piece(&c, matrix, (<const Micro *> a.micro).winograd, dy, x, out,
                                      bias if first and b[4] == 0 else NULL, b[0], b[1], o, o_stop, i, i_stop,
                                      <float *> context.scratch)
            elif c.algorithm == DIRECT:
                weight_piece(&c, matrix, dy, x, out, bias if first and b[4] == 0 else NULL, b[0], b[1], o, o_stop, i,
                             i_stop, <float *> context.scratch)
            else:
                plain_weight_piece(&c, matrix, dy, x, out, bias if first and b[4] == 0 else NULL, b[0], b[1], o, o_stop, i,
                                   i_stop, <float *> context.scratch)
            first = False
            i = i_stop
        o = o_stop
    return 0


cdef inline void request(Request *r, const ChannelsMap *m, const float *x, int n, int y, int x_, int step) noexcept nogil:
    """Lines of the pixels from a physical place on, every `step`-th of a row and a column."""
    r.at = x + n * image_size(m) + y * row_size(m) + <Py_ssize_t> x_ * m.pitch
    r.image = image_size(m)
    r.row = step * row_size(m)
    r.pixel = <Py_ssize_t> step * m.pitch


cdef void weight_piece(const Convolution *c, const Matrix *matrix, const float *dy, const float *x, float *out,
                       float *bias, int n0, int n1, int o0, int o1, int i0, int i1, float *scratch) noexcept nogil:
    """Output channels [o0, o1) and input channels [i0, i1), within one group or a panel of several."""
    cdef const ChannelsMap *g = &c.source
    cdef const ChannelsMap *m = &c.target
    cdef int k = c.kernel, taps = k * k, outs = g.channels // c.groups, part = m.channels // c.groups
    cdef int step = c.stride if k == 1 else 1  # a single tap reads every step-th pixel only
    cdef int move = 1 if k == 1 else c.stride
    cdef bint image = m.pitch < PANEL, joined = image and c.dilation == 1
    cdef int unit = m.pitch if image else PANEL
    cdef int inputs = unit if image else (i1 - i0 + PANEL - 1) // PANEL * PANEL
    cdef int rows_of = unit * k if joined else inputs  # of the sums of a tap
    cdef int calls = k if joined else taps
    cdef int chunks = (o1 - o0 + 31) // 32, columns = (g.width - 1) * move + (k - 1) * c.dilation + 1
    cdef int images = max(1, STRIP // (g.height * g.width)) if g.height * g.width < STRIP else 1
    cdef int rows = g.height if g.height * g.width <= STRIP else (STRIP + g.width - 1) // g.width
    cdef int n, y, count_n, count_y, chunk, width, u, tap, height, r, o, first, next_n, next_y
    cdef bint last
    cdef Py_ssize_t sums_size = <Py_ssize_t> calls * rows_of * 32, dy_size = <Py_ssize_t> images * rows * g.width * 32
    cdef int32_t *index = <int32_t *> scratch
    cdef float *sums = scratch + MAX_INDEX
    cdef float *packed_dy = sums + chunks * sums_size
    cdef float *packed_x = packed_dy + chunks * dy_size
    cdef OuterTask t
    memset(sums, 0, chunks * sums_size * sizeof(float))
    if bias != NULL:
        sum_gradient(c, matrix, dy, n0, n1, o0, o1, bias)
    n = n0
    while n < n1:
        count_n = min(images, n1 - n)
        y = 0
        while y < g.height:
            count_y = min(rows, g.height - y)
            for chunk in range(chunks):
                o = o0 + 32 * chunk
                width = 32 if o1 - o > PANEL else PANEL
                pack_pixels(g, matrix, dy, n, n + count_n, y + g.halo, count_y, g.halo, g.width, 1, o, width,
                            min(width, g.pitch - o), packed_dy + chunk * dy_size)
            height = (count_y - 1) * move + (k - 1) * c.dilation + 1
            first = y * c.stride + m.halo - c.padding
            next_y = y + count_y if y + count_y < g.height else 0
            next_n = n if next_y > 0 else n + count_n
            last = next_n >= n1
            for r in range(inputs // unit):
                u = r * unit
                pack_pixels(m, matrix, x, n, n + count_n, first, height, m.halo - c.padding, columns,
                            step, i0 + u, unit, min(unit, m.pitch - i0 - u), packed_x)
                t.images = count_n
                t.rows = count_y
                t.columns = g.width
                t.pixel = move * unit
                t.row = <Py_ssize_t> move * columns * unit
                t.image = <Py_ssize_t> height * columns * unit
                t.m = unit * k if joined else unit
                for chunk in range(chunks):
                    t.width = 32 if o1 - o0 - 32 * chunk > PANEL else PANEL
                    t.b = packed_dy + chunk * dy_size
                    for tap in range(calls):
                        if joined:
                            t.a = packed_x + <Py_ssize_t> tap * columns * unit
                        else:
                            t.a = packed_x + <Py_ssize_t> c.dilation * (tap // k * columns + tap % k) * unit
                        t.c = sums + chunk * sums_size + (<Py_ssize_t> tap * rows_of + u) * t.width
                        # The next strip comes from memory meanwhile: each of its inputs once, by the taps that meet
                        # what no strip had before, and each of its gradients.
                        t.ahead[0].lines = 0
                        t.ahead[1].lines = 0
                        if not last and not image:
                            if chunk == 0 and tap // k + c.stride >= k and tap % k + c.stride >= k:
                                t.ahead[0].lines = 1
                                request(&t.ahead[0], m, x + i0 + u, next_n, next_y * c.stride + m.halo - c.padding
                                        + tap // k * c.dilation, m.halo - c.padding + tap % k * c.dilation, c.stride)
                            if r == 0 and tap == 0:
                                t.ahead[1].lines = t.width // PANEL
                                request(&t.ahead[1], g, dy + o0 + 32 * chunk, next_n, next_y + g.halo, g.halo, 1)
                        matrix.outer(&t)
            y += count_y
        n += count_n
    store_weights(c, matrix, sums, sums_size, out, o0, o1, i0, i1, rows_of, unit if joined else 0, index)


cdef void plain_weight_piece(const Convolution *c, const Matrix *matrix, const float *dy, const float *x, float *out,
                             float *bias, int n0, int n1, int o0, int o1, int i0, int i1, float *scratch) noexcept nogil:
    """As weight_piece(), by the algorithms that know no tricks: inputs of all taps copied side by side before the product,
    bounds tested at each tap, or the input copied between zeros first."""
    cdef const ChannelsMap *g = &c.source
    cdef const ChannelsMap *m = &c.target
    cdef int taps = c.kernel * c.kernel, reach = (c.kernel - 1) * c.dilation + 1
    cdef int inputs = m.pitch if m.pitch < PANEL else (i1 - i0 + PANEL - 1) // PANEL * PANEL
    cdef int valid = min(inputs, m.pitch - i0), chunks = (o1 - o0 + 31) // 32
    cdef bint padded = c.algorithm == PAD or c.algorithm == PAD_BLOCKED, copied_taps = c.algorithm == IM2COL
    cdef int rows = min(g.height, (STRIP + g.width - 1) // g.width), high, wide = (g.width - 1) * c.stride + reach
    cdef int n, y, count, chunk, width, o, tap, row, column, r, s
    cdef Py_ssize_t sums_size = <Py_ssize_t> taps * inputs * 32, dy_size = <Py_ssize_t> rows * g.width * 32
    cdef int32_t *index = <int32_t *> scratch
    cdef float *sums = scratch + MAX_INDEX
    cdef float *packed_dy = sums + chunks * sums_size
    cdef float *copied = packed_dy + (chunks * dy_size if copied_taps else 0)
    cdef float *to
    cdef const float *image
    cdef OuterTask product
    cdef PlainGradientTask t
    memset(sums, 0, chunks * sums_size * sizeof(float))
    if bias != NULL:
        sum_gradient(c, matrix, dy, n0, n1, o0, o1, bias)
    t.dy_row = row_size(g)
    t.dy_pixel = g.pitch
    t.row = <Py_ssize_t> wide * inputs if padded else row_size(m)
    t.pixel = inputs if padded else m.pitch
    t.columns = g.width
    t.inputs = min(valid, i1 - i0)
    t.move = c.stride
    t.height = m.height
    t.width = m.width
    t.tests = not padded
    t.blocked = c.algorithm == PAD_BLOCKED or c.algorithm == TESTED_BLOCKED
    for n in range(n0, n1):
        image = x + pixel(m, n, 0, 0) + i0
        y = 0
        while y < g.height:
            count = min(rows, g.height - y)
            # The window of the input that these rows read, or for each of their pixels the inputs of all taps.
            high = count if copied_taps else (count - 1) * c.stride + reach if padded else 0
            to = copied
            for r in range(high):
                for s in range(g.width * taps if copied_taps else wide):
                    if copied_taps:
                        tap = s % taps
                        row = (y + r) * c.stride - c.padding + tap // c.kernel * c.dilation
                        column = s // taps * c.stride - c.padding + tap % c.kernel * c.dilation
                    else:
                        row = y * c.stride - c.padding + r
                        column = s - c.padding
                    if 0 <= row < m.height and 0 <= column < m.width:
                        memcpy(to, image + row * row_size(m) + <Py_ssize_t> column * m.pitch, valid * sizeof(float))
                        memset(to + valid, 0, (inputs - valid) * sizeof(float))
                    else:
                        memset(to, 0, inputs * sizeof(float))
                    to += inputs
            for chunk in range(chunks):
                o = o0 + 32 * chunk
                width = 32 if o1 - o > PANEL else PANEL
                if copied_taps:
                    pack_pixels(g, matrix, dy, n, n + 1, y + g.halo, count, g.halo, g.width, 1, o, width,
                                min(width, g.pitch - o), packed_dy + chunk * dy_size)
                    product.images = 1
                    product.rows = count
                    product.columns = g.width
                    product.m = taps * inputs
                    product.pixel = product.m
                    product.row = product.pixel * g.width
                    product.image = 0
                    product.ahead[0].lines = product.ahead[1].lines = 0
                    product.width = width
                    product.a = copied
                    product.b = packed_dy + chunk * dy_size
                    product.c = sums + chunk * sums_size
                    matrix.outer(&product)
                    continue
                t.rows = count
                t.c_row = width
                t.x = copied if padded else image
                for tap in range(taps):
                    t.top = tap // c.kernel * c.dilation + (0 if padded else y * c.stride - c.padding)
                    t.left = tap % c.kernel * c.dilation - (0 if padded else c.padding)
                    for r in range(width // PANEL):
                        t.dy = dy + pixel(g, n, y, 0) + o + r * PANEL
                        t.c = sums + chunk * sums_size + <Py_ssize_t> tap * inputs * width + r * PANEL
                        matrix.plain_gradient(&t)
            y += count
    store_weights(c, matrix, sums, sums_size, out, o0, o1, i0, i1, inputs, 0, index)


cdef void store_weights(const Convolution *c, const Matrix *matrix, const float *sums, Py_ssize_t sums_size, float *out, int o0, int o1,
                        int i0, int i1, int rows_of, int joined, int32_t *index) noexcept nogil:
    """From (tap, input channel, output channel) to (output channel, input channel, tap).

    `joined`: floats of a column where a row of taps was summed as one.
    """
    cdef int k = c.kernel, taps = k * k, outs = c.source.channels // c.groups, part = c.target.channels // c.groups
    cdef int chunk, o, width, group, i, num, j, tap, r
    for chunk in range((o1 - o0 + 31) // 32):
        o = o0 + 32 * chunk
        width = 32 if o1 - o > PANEL else PANEL
        group = o // outs
        if c.groups > 1 and (i0 // part != group or (i1 - 1) // part != group
                             or (min(o1, o + width) - 1) // outs != group):
            diagonal(c, sums + chunk * sums_size, out, o, min(o1, o + width), i0, i1, rows_of, width)
            continue
        # Inputs at their place in the group.
        i = i0 % part if c.groups > 1 else i0
        num = 0
        for j in range(i1 - i0):
            for tap in range(taps):
                if joined:
                    index[num] = (tap // k * rows_of + tap % k * joined + j) * width
                else:
                    index[num] = (tap * rows_of + j) * width
                num += 1
        for r in range((min(width, o1 - o) + PANEL - 1) // PANEL):
            j = r * PANEL
            matrix.transpose_rows(sums + chunk * sums_size + j, index, num, min(PANEL, o1 - o - j),
                                  out + (<Py_ssize_t> (o + j) * part + i) * taps, <Py_ssize_t> part * taps, c.option)


cdef void winograd_weight_piece(const Convolution *c, const Matrix *matrix, const Winograd *winograd, const float *dy,
                                const float *x, float *out, float *bias, int n0, int n1, int o0, int o1, int i0,
                                int i1, float *scratch) noexcept nogil:
    """As weight_piece(), by products at Winograd's points: tiles of the gradient are the taps, weights the outputs."""
    cdef const ChannelsMap *g = &c.source
    cdef const ChannelsMap *m = &c.target
    cdef int side = c.side, n = side + 2, points = n * n, which = side // 2 - 1
    cdef int ins = (i1 - i0 + PANEL - 1) // PANEL * PANEL, outs = (o1 - o0 + PANEL - 1) // PANEL * PANEL
    cdef int tiles_y = (g.height + side - 1) // side, tiles_x = (g.width + side - 1) // side
    cdef int total = (n1 - n0) * tiles_y * tiles_x, chunk = min(WEIGHT_TILES, total)
    # Sums of a point: chunks of 32 (or the last 16) output channels, input channels.
    cdef Py_ssize_t point = <Py_ssize_t> ins * outs + PANEL
    cdef Py_ssize_t v_point = <Py_ssize_t> chunk * ins + PANEL, d_point = <Py_ssize_t> chunk * outs + PANEL
    cdef int32_t *index = <int32_t *> scratch
    cdef float *sums = scratch + MAX_INDEX
    cdef float *patch = sums + points * point
    cdef float *v = patch + points * max(ins, outs)
    cdef float *d = v + points * v_point
    cdef float *taps = v  # at the end
    cdef int done = 0, count, i, p, o, row_, column, tile, soon, image, width
    cdef const float *at
    cdef Py_ssize_t row, step, next
    cdef OuterTask t
    memset(sums, 0, points * point * sizeof(float))
    if bias != NULL:
        sum_gradient(c, matrix, dy, n0, n1, o0, o1, bias)
    t.images = 1
    t.rows = 1
    t.image = 0
    t.row = 0
    t.pixel = ins
    t.m = ins
    t.ahead[0].lines = 0
    t.ahead[1].lines = 0
    while done < total:
        count = min(chunk, total - done)
        for i in range(count):
            tile = done + i
            image = n0 + tile // (tiles_x * tiles_y)
            row_ = tile // tiles_x % tiles_y * side
            column = tile % tiles_x * side
            soon = min(tile + 1, total - 1)
            next = pixel(m, n0 + soon // (tiles_x * tiles_y), soon // tiles_x % tiles_y * side - c.padding,
                         soon % tiles_x * side - c.padding)
            read_tile(m, x + i0, image, row_ - c.padding, column - c.padding, g.height - row_ + 2,
                      g.width - column + 2, n, ins, patch, &at, &row, &step)
            winograd.input[which](at, row, step, ins, x + i0 + next if row == row_size(m) else NULL,
                                  v + <Py_ssize_t> i * ins, v_point)
            next = pixel(g, n0 + soon // (tiles_x * tiles_y), soon // tiles_x % tiles_y * side, soon % tiles_x * side)
            read_tile(g, dy + o0, image, row_, column, g.height - row_, g.width - column, side, outs, patch, &at, &row,
                      &step)
            # Pieces of 32 channels of all tiles follow each other.
            o = 0
            while o < outs:
                width = min(32, outs - o)
                winograd.gradient[which](at + o, row, step, width, dy + o0 + next + o if row == row_size(g) else NULL,
                                         d + <Py_ssize_t> o * count + i * width, d_point)
                o += width
        t.columns = count
        for p in range(points):
            t.a = v + p * v_point
            o = 0
            while o < outs:
                t.width = min(32, outs - o)
                t.b = d + p * d_point + <Py_ssize_t> o * count
                t.c = sums + p * point + <Py_ssize_t> o * ins
                matrix.outer(&t)
                o += t.width
        done += count
    # 32 output channels at a time, as store_weights() takes them.
    o = 0
    while o < outs:
        width = min(32, outs - o)
        winograd.weights[which](sums + <Py_ssize_t> o * ins, point, ins * width, taps, <Py_ssize_t> ins * width)
        store_weights(c, matrix, taps, 0, out, o0 + o, min(o1, o0 + o + width), i0, i1, ins, 0, index)
        o += width


cdef void sum_gradient(const Convolution *c, const Matrix *matrix, const float *dy, int n0, int n1, int o0, int o1,
                       float *bias) noexcept nogil:
    """bias[o] = sum of dY over images and pixels, added with `accumulate`."""
    cdef const ChannelsMap *g = &c.source
    cdef float zero[16]
    cdef float total[16]
    cdef float unused[16]
    cdef int n, y, r, lane, o
    memset(zero, 0, sizeof(zero))
    for r in range((o1 - o0 + PANEL - 1) // PANEL):
        o = o0 + r * PANEL
        memset(total, 0, sizeof(total))
        memset(unused, 0, sizeof(unused))
        for n in range(n0, n1):
            for y in range(g.height):
                matrix.shifted_sums(dy + pixel(g, n, y, 0) + o, g.pitch, g.width, zero, total, unused)
        for lane in range(min(PANEL, o1 - o)):
            bias[o + lane] = bias[o + lane] + total[lane] if c.option else total[lane]


cdef void diagonal(const Convolution *c, const float *sums, float *out, int o0, int o1, int i0, int i1, int rows_of,
                   int width) noexcept nogil:
    """Store the sums of inputs and outputs of the same group; those between groups are no weights."""
    cdef int taps = c.kernel * c.kernel, outs = c.source.channels // c.groups, part = c.target.channels // c.groups
    cdef int o, i, tap, group
    cdef float *p
    cdef float value
    for o in range(o0, o1):
        group = o // outs
        for i in range(max(i0, group * part), min(i1, (group + 1) * part)):
            for tap in range(taps):
                value = sums[(<Py_ssize_t> tap * rows_of + i - i0) * width + o - o0]
                p = out + (<Py_ssize_t> o * part + i - group * part) * taps + tap
                p[0] = p[0] + value if c.option else value


def _pack_reference(operands, attributes, bounds, iteration):
    panels = bounds["o0"], bounds["o1"]
    operands["packed"][slice(*panels)] = algorithms.pack(operands["weight"], attributes, panels)


def _read_channels(array, attributes, prefix, bounds):
    """All rows of a block's images, channels without padding."""
    images = {"n0": bounds["n0"], "n1": bounds["n1"]}
    return inside(array, attributes, prefix, images)[..., : attributes[f"{prefix}_channels"]]


def _taps(x, attributes, height, width):
    """Yield (ky, kx, the inputs (images, height, width, channels) that the tap meets)."""
    k, s, p, d = (attributes[name] for name in ("kernel", "stride", "padding", "dilation"))
    beyond = [max(0, (n - 1) * s + (k - 1) * d + 1 - p - size) for n, size in zip((height, width), x.shape[1:3])]
    x = np.pad(x, ((0, 0), (p, beyond[0]), (p, beyond[1]), (0, 0)))
    for ky in range(k):
        for kx in range(k):
            yield ky, kx, x[:, ky * d : ky * d + (height - 1) * s + 1 : s, kx * d : kx * d + (width - 1) * s + 1 : s]


def _block_channels(values, bounds, pitch):
    """A block's channels, zeros for the padding beyond the last."""
    part = values[..., bounds["c0"] : bounds["c1"]]
    missing = physical_end(bounds["c1"], pitch) - bounds["c1"]
    return np.pad(part, ((0, 0),) * (part.ndim - 1) + ((0, missing),))


def _forward_reference(operands, attributes, bounds, iteration):
    x = _read_channels(operands["input"], attributes, "in", bounds)
    weight = algorithms.unpack(operands["packed"], attributes, algorithms.FORWARD)[bounds["c0"] : bounds["c1"]]
    height, width, pitch = (attributes[f"out_{name}"] for name in ("height", "width", "pitch"))
    y0, y1 = bounds["y0"], bounds["y1"]
    y = np.zeros((len(x), y1 - y0, width, bounds["c1"] - bounds["c0"]), x.dtype)
    if "bias" in operands:
        y += operands["bias"][bounds["c0"] : bounds["c1"]]
    for ky, kx, part in _taps(x, attributes, height, width):
        y += np.einsum("nyxi,oi->nyxo", part[:, y0:y1], weight[:, :, ky, kx], optimize=True)
    y = np.pad(y, ((0, 0),) * 3 + ((0, physical_end(bounds["c1"], pitch) - bounds["c1"]),))
    if "residual" in operands:
        y += inside(operands["residual"], attributes, "out", bounds)
    if "statistics" in operands:
        c = slice(bounds["c0"], physical_end(bounds["c1"], pitch))
        operands["statistics"][bounds["partial"], :, c] = block_statistics(y)
    write_block(operands["output"], attributes, "out", bounds, activate(y, attributes["activation"]))


def _backward_data_reference(operands, attributes, bounds, iteration):
    dy = _read_channels(operands["gradient"], attributes, "in", bounds)
    # (in_channels of the layer, out_channels, taps reversed)
    weight = algorithms.unpack(operands["packed"], attributes, algorithms.DATA)[bounds["c0"] : bounds["c1"], :, ::-1, ::-1]
    k, s, p, d = (attributes[name] for name in ("kernel", "stride", "padding", "dilation"))
    height, width, pitch = (attributes[f"out_{name}"] for name in ("height", "width", "pitch"))
    rows, columns = ((n - 1) * s + (k - 1) * d + 1 for n in dy.shape[1:3])
    shape = (len(dy), max(rows, height + p), max(columns, width + p), bounds["c1"] - bounds["c0"])
    dx = np.zeros(shape, dy.dtype)
    for ky in range(k):
        for kx in range(k):
            part = np.einsum("nyxo,io->nyxi", dy, weight[:, :, ky, kx], optimize=True)
            dx[:, ky * d : ky * d + rows - (k - 1) * d : s, kx * d : kx * d + columns - (k - 1) * d : s] += part
    dx = dx[:, p + bounds["y0"] : p + bounds["y1"], p : p + width]
    dx = np.pad(dx, ((0, 0),) * 3 + ((0, physical_end(bounds["c1"], pitch) - bounds["c1"]),))
    write_block(operands["output"], attributes, "out", bounds, dx, accumulate=attributes["accumulate"])


def _backward_weights_reference(operands, attributes, bounds, iteration):
    x = _read_channels(operands["input"], attributes, "in", bounds)
    dy = _read_channels(operands["gradient"], attributes, "dy", bounds)
    k, groups, o0, o1, partial = attributes["kernel"], attributes["groups"], bounds["o0"], bounds["o1"], bounds["partial"]
    out, part = dy.shape[3] // groups, x.shape[3] // groups
    target = operands["output"][partial].reshape(dy.shape[3], part, k, k)
    add = attributes["accumulate"]
    i0, i1 = (bounds["i0"], bounds["i1"]) if groups == 1 else (0, part)
    for ky, kx, tap in _taps(x, attributes, dy.shape[1], dy.shape[2]):
        for g in range(o0 // out, (o1 - 1) // out + 1):
            o = slice(max(o0, g * out), min(o1, (g + 1) * out))
            i = slice(g * part + i0, g * part + i1)
            product = np.einsum("nyxo,nyxi->oi", dy[..., o], tap[..., i], optimize=True)
            target[o, i0:i1, ky, kx] = target[o, i0:i1, ky, kx] + product if add else product
    if "bias_output" in operands and bounds["i0"] == 0:
        sums = dy[..., o0:o1].sum(axis=(0, 1, 2))
        bias = operands["bias_output"][partial]
        bias[o0:o1] = bias[o0:o1] + sums if add else sums


GEOMETRY = ("kernel", "stride", "padding", "dilation", "groups", "algorithm")
MAPS = channels_attributes("in") + channels_attributes("out")
BOX = ("n0", "n1", "y0", "y1", "c0", "c1")

register(KernelSpec(
    "channels_conv_pack", ("weight", "packed"),
    ("out_channels", "in_channels", "kernel", "groups", "direction", "algorithm"), (), ("o0", "o1"),
    _pack_reference, <uintptr_t> &conv_pack))
register(KernelSpec(
    "channels_conv_forward", ("input", "packed", "bias?", "output", "statistics?", "residual?"), MAPS + GEOMETRY + ("activation",), (),
    BOX + ("partial",), _forward_reference, <uintptr_t> &conv_forward))
register(KernelSpec(
    "channels_conv_backward_data", ("gradient", "packed", "output"), MAPS + GEOMETRY + ("accumulate",), (), BOX,
    _backward_data_reference, <uintptr_t> &conv_backward_data))
# With groups, i0 and i1 are not used: a block has all inputs of its output channels' groups.
register(KernelSpec(
    "channels_conv_backward_weights", ("gradient", "input", "output", "bias_output?"),
    channels_attributes("dy") + channels_attributes("in") + GEOMETRY + ("accumulate",), (),
    ("n0", "n1", "o0", "o1", "i0", "i1", "partial"), _backward_weights_reference, <uintptr_t> &conv_backward_weights))
