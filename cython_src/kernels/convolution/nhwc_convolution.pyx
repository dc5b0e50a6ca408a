"""Convolution in the layout "nhwc": packing of weights, forward pass, data gradient and weight gradient.

The formula, the algorithms and the order of packed weights are described in kernels/convolution/algorithms.py.

Forward pass and data gradient are one loop: an output pixel is a sum over taps of rows of the map that is read times
rows of packed weights. With a stride the outputs of the data gradient fall into stride x stride phases that meet taps
of their own; in each, one output to the next moves by one pixel of the gradient.

All passes and algorithms (direct, Winograd) stand in one file: they share maps, tasks and the division of scratch
memory in nhwc_sizes.h. convolve() chooses between the algorithms, and both work on the same task.
"""

from libc.string cimport memcpy, memmove, memset

from convolution_c cimport *
from elementwise_c cimport *
from linear_c cimport *
from norm_c cimport *

from ..maps.nhwc cimport clear_channel_halo, image_size, pixel, row_size, set_block, set_plane

from functools import partial

from ..interface.arguments import struct_of
from ..interface.kernel_spec import implement, lengths
from .nhwc_reference import backward_data, backward_weights, forward, pack
from .specs import KERNELS

ctypedef NhwcConvolutionLoops Loops
ctypedef NhwcWinogradLoops WinogradLoops


cdef inline void read_tile(const NhwcMap *m, const float *x, int n, int y, int x_, int rows, int columns, int side,
                           int channels, float *patch, const float **at, Py_ssize_t *row,
                           Py_ssize_t *step) noexcept nogil:
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
            taps[count].b = <Py_ssize_t> (ty * c.kernel + tx) * k * LANES
            count += 1
    return count


cdef void copied_product(const Convolution *c, ProductTask *t, const Loops *loops, const float *x, float *out,
                         int n0, int n1, int first, int rows, int columns, int step, int ry, int rx,
                         float *scratch) noexcept nogil:
    """Product by way of copies: each output pixel's inputs in a row of their own, results by pixel.

    Outputs are rows [first, first + rows) and all `columns` of a phase, in places step * j + ry, step * i + rx.
    """
    cdef Tap taps[MAX_TAPS]
    cdef int move = 1 if c.transposed else c.stride
    cdef int part = copied_channels(c, t.k)
    cdef Py_ssize_t length = <Py_ssize_t> part * t.num_taps
    cdef int width = t.num_panels * LANES, stored = (t.num_panels - 1) * LANES + t.store_columns
    cdef int total = (n1 - n0) * rows * columns, done = 0, count, i, tap, n, y, column, at, accumulate = t.accumulate
    cdef CopiedScratch place = copied_scratch(length, width, total)
    cdef PixelGroup *groups = <PixelGroup *> scratch
    cdef float *copied = scratch + place.copied
    cdef float *sums = scratch + place.sums
    cdef const float *a
    cdef float *row
    cdef ProductTask product = t[0]
    product.a, product.c, product.taps, product.groups = copied, sums, taps, groups
    product.pixel, product.out_pixel, product.store_columns = length, width, LANES
    product.accumulate = 0
    for tap in range(t.num_taps):
        taps[tap].a = <Py_ssize_t> tap * part
        taps[tap].b = t.taps[tap].b
    while done < total:
        count = min(place.chunk, total - done)
        for i in range(count):
            at = done + i
            n = n0 + at // (rows * columns)
            y = first + at // columns % rows
            column = at % columns
            a = x + pixel(&c.source, n, y * move, column * move)
            row = copied + i * length
            for tap in range(t.num_taps):
                memcpy(row + tap * part, a + t.taps[tap].a, part * sizeof(float))
        for i in range((count + 3) // 4):
            groups[i].a = 4 * i * length
            groups[i].c = 4 * i * width
            groups[i].first = 0
            groups[i].count = min(4, count - 4 * i)
        product.num_groups = (count + 3) // 4
        # Rows beyond the last of a group are read, not used: they must hold numbers of some kind.
        memset(copied + count * length, 0, (product.num_groups * 4 - count) * length * sizeof(float))
        loops.product(&product)
        for i in range(count):
            at = done + i
            n = n0 + at // (rows * columns)
            y = first + at // columns % rows
            column = at % columns
            row = out + pixel(&c.target, n, y * step + ry, column * step + rx)
            if accumulate:
                for tap in range(stored):
                    row[tap] += sums[i * width + tap]
            else:
                memcpy(row, sums + i * width, stored * sizeof(float))
        done += count


cdef void direct_product(const Convolution *c, ProductTask *t, const Loops *loops, const float *x, float *out,
                         int n0, int n1, int first, int rows, int columns, int step, int ry, int rx,
                         float *scratch) noexcept nogil:
    """Product straight from the map, rows of at least four pixels."""
    cdef PixelGroup *groups = <PixelGroup *> scratch
    cdef int move = 1 if c.transposed else c.stride
    cdef int of_row = (columns + 3) // 4, n, y, i, at, num = 0, filled = 0
    # More groups than a list has are filled in, one row's.
    cdef int limit = list_groups(c.source.pitch) - of_row
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
                loops.product(t)
                memmove(groups, groups + num, (filled - num) * sizeof(PixelGroup))
                filled -= num
            num = filled
    t.num_groups = num
    t.more_groups = 0
    loops.product(t)


cdef void direct_flat(const Convolution *c, ProductTask *t, const Loops *loops, const float *x, float *out, int n0,
                      int total, float *scratch) noexcept nogil:
    """Product of `total` >= 4 pixels that follow on in both maps."""
    cdef PixelGroup *groups = <PixelGroup *> scratch
    cdef int limit = flat_groups(c, t.k, t.num_panels)
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
        loops.product(t)
        done += t.num_groups


cdef inline void request_outputs(const Convolution *c, float *out, const Box *b, int tiles_y, int tiles_x,
                                 int first, int stop, int width) noexcept nogil:
    """Ask memory for rows [first, stop) of the outputs of tiles, c.side of each: they will be written."""
    cdef int i, j, tile
    cdef float *p
    for i in range(first, stop):
        tile = i // c.side
        p = out + pixel(&c.target, b.n0 + tile // (tiles_x * tiles_y),
                        b.y0 + tile // tiles_x % tiles_y * c.side + i % c.side, tile % tiles_x * c.side)
        for j in range(c.side):
            request_writes(p + j * c.target.pitch, width)


cdef void transform_tiles(const Convolution *c, const WinogradLoops *winograd, const WinogradScratch *place,
                          const float *x, const Box *b, int done, int count, float *scratch) noexcept nogil:
    """Inputs of `count` tiles, from tile `done` on, to points; the next tile is asked for from memory."""
    cdef int m = c.side, tiles_y = (b.y1 - b.y0 + m - 1) // m, tiles_x = (c.target.width + m - 1) // m
    cdef int i, rows, columns, tile
    cdef const float *at
    cdef const float *next
    cdef Py_ssize_t row, step
    for i in range(count):
        tile = done + i
        rows = tile // tiles_x % tiles_y * m
        columns = tile % tiles_x * m
        read_tile(&c.source, x, b.n0 + tile // (tiles_x * tiles_y), b.y0 + rows - c.padding, columns - c.padding,
                  b.y1 - b.y0 - rows + 2, c.target.width - columns + 2, m + 2, place.channels, scratch + place.patch,
                  &at, &row, &step)
        next = NULL
        if tile + 1 < (b.n1 - b.n0) * tiles_y * tiles_x and row == row_size(&c.source):
            tile += 1
            next = x + pixel(&c.source, b.n0 + tile // (tiles_x * tiles_y),
                             b.y0 + tile // tiles_x % tiles_y * m - c.padding, tile % tiles_x * m - c.padding)
        winograd.input[m // 2 - 1](at, row, step, place.channels, next,
                                   scratch + place.inputs + <Py_ssize_t> i * place.channels, place.inputs_point)


cdef void winograd_product(const Convolution *c, ProductTask *t, const Loops *loops, const WinogradLoops *winograd,
                           const float *x, float *out, const Box *b, float *scratch) noexcept nogil:
    """Panels that read the same channels, chunks of tiles: inputs to points, a matrix product of all panels at each
    point, sums to outputs. What is read or written next is asked for from memory in time."""
    cdef WinogradScratch place = winograd_scratch(c, t.k, b.n1 - b.n0, b.y1 - b.y0, t.num_panels)
    cdef int m = c.side, points = place.points, channels = place.channels
    cdef int tiles_y = (b.y1 - b.y0 + m - 1) // m, tiles_x = (c.target.width + m - 1) // m
    cdef int total = (b.n1 - b.n0) * tiles_y * tiles_x
    cdef PixelGroup *groups = <PixelGroup *> scratch
    cdef float *bias = NULL if t.bias == NULL else scratch + place.bias
    cdef float *sums = scratch + place.sums
    cdef const float *packed = t.b
    cdef const int32_t *inputs = t.panel_input
    cdef int panels = t.num_panels, last = t.last_columns, activation = t.activation, accumulate = t.accumulate
    cdef int done, count, i, p, run = 0, stop, width, rows, columns, tile
    cdef Tap tap
    tap.a = tap.b = 0
    if bias != NULL:  # in whole panels
        memset(bias, 0, panels * LANES * sizeof(float))
        memcpy(bias, t.bias, ((panels - 1) * LANES + last) * sizeof(float))
    t.taps, t.groups, t.panel_input, t.bias = &tap, groups, NULL, NULL
    t.num_taps, t.activation, t.accumulate = 1, 0, 0
    t.store_columns = t.last_columns = LANES
    t.pixel = channels
    t.panel = <Py_ssize_t> points * t.k * LANES
    while run < panels:
        stop = panels if inputs == NULL else run + 1
        while stop < panels and inputs[stop] == inputs[run]:
            stop += 1
        t.num_panels = stop - run
        t.out_pixel = width = t.num_panels * LANES
        for i in range((place.chunk + 3) // 4):
            groups[i].a = 4 * i * channels
            groups[i].c = 4 * i * width
            groups[i].first = 0
            groups[i].count = 4
        done = 0
        while done < total:
            count = min(place.chunk, total - done)
            transform_tiles(c, winograd, &place, x + (inputs[run] if inputs != NULL else 0), b, done, count, scratch)
            t.num_groups = (count + 3) // 4
            for p in range(points):
                t.a = scratch + place.inputs + p * place.inputs_point
                t.b = packed + run * t.panel + <Py_ssize_t> p * t.k * LANES
                t.c = sums + p * place.sums_point
                request_outputs(c, out + run * LANES, b, tiles_y, tiles_x, (done * points + count * p) * m // points,
                                (done * points + count * (p + 1)) * m // points, width)
                loops.product(t)
            for i in range(count):
                tile = done + i
                rows = tile // tiles_x % tiles_y * m
                columns = tile % tiles_x * m
                winograd.output[m // 2 - 1](
                    sums + i * width, place.sums_point, width, NULL if bias == NULL else bias + run * LANES,
                    activation, accumulate, out + run * LANES
                    + pixel(&c.target, b.n0 + tile // (tiles_x * tiles_y), b.y0 + rows, columns),
                    row_size(&c.target), c.target.pitch, min(m, b.y1 - b.y0 - rows), min(m, c.target.width - columns))
            done += count
        run = stop


cdef void add_residual(const Convolution *c, float *residual, float *out, const Box *b,
                       const MicroKernels *micro) noexcept nogil:
    """out = activation(out + residual), a map of the same geometry, in a block that was just written."""
    cdef NhwcTask task
    set_block(&task, &c.target, b)
    set_plane(&task, 0, out, &c.target, b)
    set_plane(&task, 1, out, &c.target, b)
    set_plane(&task, 2, residual, &c.target, b)
    task.activation = c.option
    task.residual = RESIDUAL_PLAIN
    nhwc_elementwise_loops(micro).activate(&task)


cdef void convolve(const Convolution *c, const nhwc_conv_forward_args *a, bint activate,
                   const TaskContext *context) noexcept nogil:
    """Forward pass and data gradient, whose gradient is the input here; `activate`: at once, nothing else follows."""
    cdef ProductTask t
    cdef Tap taps[MAX_TAPS]
    cdef int32_t starts[MAX_PANELS]
    cdef const Box *b = &a.box
    cdef const Loops *loops = nhwc_convolution_loops(a.micro)
    cdef float *out = a.output + b.c0
    cdef float *scratch = <float *> context.scratch
    cdef int k = panel_inputs(c.target.channels, c.source.channels, c.groups, starts)
    cdef int points = (c.side + 2) * (c.side + 2) if c.side else c.kernel * c.kernel
    cdef int step = c.stride if c.transposed else 1, panel0 = b.c0 // LANES, ry, rx, first, rows, columns
    cdef int method
    t.b = a.packed + <Py_ssize_t> panel0 * points * k * LANES
    t.bias = a.bias + b.c0 if a.bias != NULL else NULL
    t.taps = taps
    t.panel_input = NULL if c.groups == 1 else starts + panel0
    t.panel = <Py_ssize_t> c.kernel * c.kernel * k * LANES
    t.k = k
    t.num_panels = (b.c1 + LANES - 1) // LANES - panel0
    t.last_columns = b.c1 - (panel0 + t.num_panels - 1) * LANES
    t.store_columns = min(LANES, c.target.pitch - (panel0 + t.num_panels - 1) * LANES)
    t.activation = c.option if activate else 0
    t.accumulate = c.option if c.transposed else 0
    t.more_groups = 0
    if c.side:
        winograd_product(c, &t, loops, nhwc_winograd_loops(a.micro), a.input, out, b, scratch)
    for ry in range(0 if c.side else step):
        for rx in range(step):
            t.num_taps = phase_taps(c, ry, rx, k, taps, &t.k)
            first = (b.y0 - ry + step - 1) // step if b.y0 > ry else 0
            rows = (b.y1 - ry + step - 1) // step - first if b.y1 > ry else 0
            columns = (c.target.width - rx + step - 1) // step
            if rows <= 0 or columns <= 0:
                continue
            method = method_of(c, b.n1 - b.n0, rows, columns, b.y1 - b.y0 == c.target.height)
            if method == FLAT:
                direct_flat(c, &t, loops, a.input, out, b.n0, (b.n1 - b.n0) * rows * columns, scratch)
            elif method == COPIED:
                copied_product(c, &t, loops, a.input, out, b.n0, b.n1, first, rows, columns, step, ry, rx, scratch)
            else:
                direct_product(c, &t, loops, a.input, out, b.n0, b.n1, first, rows, columns, step, ry, rx, scratch)


cdef int conv_forward(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    cdef nhwc_conv_forward_args a = read_nhwc_conv_forward(args, block)
    cdef Convolution c = convolution_of(a.in_map, a.out_map, a.geometry, a.activation, False)
    cdef NhwcTask done
    convolve(&c, &a, a.residual == NULL, context)
    if a.residual != NULL:
        add_residual(&c, a.residual, a.output, &a.box, a.micro)
    clear_channel_halo(&a.out_map, a.output, &a.box)
    if a.statistics != NULL:
        if a.activation:
            return 1  # they are of the sums before the activation
        set_block(&done, &a.out_map, &a.box)
        set_plane(&done, 0, a.output, &a.out_map, &a.box)
        nhwc_norm_loops(a.micro).statistics(
            &done, a.statistics + a.partial * 3 * a.out_map.pitch + a.box.c0, a.out_map.pitch)
    return 0


cdef int conv_backward_data(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    cdef nhwc_conv_backward_data_args a = read_nhwc_conv_backward_data(args, block)
    cdef Convolution c = convolution_of(a.in_map, a.out_map, a.geometry, a.accumulate, True)
    cdef nhwc_conv_forward_args given
    given.input, given.packed, given.output, given.bias = a.gradient, a.packed, a.output, NULL
    given.box, given.micro = a.box, a.micro
    convolve(&c, &given, False, context)
    if not a.accumulate:
        clear_channel_halo(&a.out_map, a.output, &a.box)
    return 0


def _scratch(transposed, attributes, bounds, operands):
    cdef Convolution c = convolution_of(
        struct_of("NhwcMap", attributes, "in_"), struct_of("NhwcMap", attributes, "out_"),
        struct_of("Geometry", attributes), 0, transposed)
    cdef int k = panel_inputs(c.target.channels, c.source.channels, c.groups, NULL)
    return sizeof(float) * max(
        convolution_scratch(&c, k, images, rows, channels) for images, rows, channels in lengths(bounds, "n", "y", "c"))


implement(KERNELS, "nhwc_conv_forward", forward, <uintptr_t> &conv_forward, scratch_bytes=partial(_scratch, False))
implement(KERNELS, "nhwc_conv_backward_data", backward_data, <uintptr_t> &conv_backward_data,
          scratch_bytes=partial(_scratch, True))


cdef int conv_pack(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    cdef nhwc_conv_pack_args a = read_nhwc_conv_pack(args, block)
    cdef const Loops *loops = nhwc_convolution_loops(a.micro)
    cdef int32_t starts[MAX_PANELS]
    cdef int32_t *index = <int32_t *> context.scratch
    cdef int side = winograd_side(a.algorithm)
    cdef int points = (side + 2) * (side + 2)
    cdef int out_channels = a.out_channels
    cdef bint transposed = a.direction == 1
    cdef int taps = a.kernel * a.kernel, part = a.in_channels // a.groups, outs = out_channels // a.groups
    cdef int written = a.in_channels if transposed else out_channels
    cdef int k = panel_inputs(written, out_channels if transposed else a.in_channels, a.groups, starts)
    cdef Py_ssize_t size = <Py_ssize_t> taps * k * LANES
    cdef Py_ssize_t at, all_weights = <Py_ssize_t> out_channels * part * taps
    cdef int p, o, i, c, t, lane, lanes, count, first, whole
    cdef float *plain = <float *> context.scratch + pack_index(taps)
    cdef float *panel
    for p in range(a.o0, a.o1):
        panel = plain if side else a.packed + p * size
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
                            a.weight[(<Py_ssize_t> o * part + i) * taps + t]
        elif transposed:
            for t in range(taps):
                index[t] = (taps - 1 - t) * k * LANES
            o = first // part * outs
            i = first % part
            for c in range(k):
                if taps == 1 and lanes == LANES:
                    memcpy(panel + c * LANES, a.weight + <Py_ssize_t> (o + c) * part + i, LANES * sizeof(float))
                else:
                    at = (<Py_ssize_t> (o + c) * part + i) * taps
                    loops.spread_rows(a.weight + at, taps, lanes, taps, index, at + LANES * taps + LANES <= all_weights,
                                      panel + c * LANES)
        else:
            c = 0
            while c < k:
                count = min(LANES, k - c)
                for i in range(count):
                    for t in range(taps):
                        index[i * taps + t] = (t * k + i) * LANES
                loops.spread_rows(a.weight + (<Py_ssize_t> first * part + c) * taps, <Py_ssize_t> part * taps, lanes,
                                  count * taps, index, False, panel + c * LANES)
                c += count
        if side:
            # The panel's points, an output channel's input by input.
            nhwc_winograd_loops(a.micro).filter[side // 2 - 1](
                plain, <Py_ssize_t> k * LANES, k * LANES, a.packed + <Py_ssize_t> p * points * k * LANES,
                <Py_ssize_t> k * LANES)
    return 0


def _pack_scratch(attributes, bounds, operands):
    kernel, channels = attributes["kernel"], (attributes["out_channels"], attributes["in_channels"])
    written, read = channels[::-1] if attributes["direction"] == 1 else channels
    return sizeof(float) * pack_scratch(
        kernel * kernel, panel_inputs(written, read, attributes["groups"], NULL),
        winograd_side(attributes["algorithm"]))


implement(KERNELS, "nhwc_conv_pack", pack, <uintptr_t> &conv_pack, scratch_bytes=_pack_scratch)


# --- weight gradient --------------------------------------------------------------------------------------------------


cdef void pack_pixels(const NhwcMap *m, const Loops *loops, const float *x, int n0, int n1, int y0, int rows,
                      int left, int columns, int step, int c, int width, int valid, float *out) noexcept nogil:
    """Copy channels [c, c + width) of `rows` physical rows y0, y0 + step, ..., `columns` columns likewise from `left`.

    Channels from `valid` on are left as zeros.
    """
    cdef int n, y, _x
    cdef const float *p
    for n in range(n0, n1):
        for y in range(rows):
            p = x + n * image_size(m) + (y0 + y * step) * row_size(m) + <Py_ssize_t> left * m.pitch + c
            if valid == width:
                loops.gather(p, <Py_ssize_t> step * m.pitch, columns, width, out)
                out += columns * width
                continue
            for _x in range(columns):
                memset(out, 0, width * sizeof(float))
                memcpy(out, p, valid * sizeof(float))
                out += width
                p += step * m.pitch


cdef int conv_backward_weights(const void *args, Py_ssize_t block, const TaskContext *context) noexcept nogil:
    """bounds: images, output channels, input channels (all of a group where there are several), partial.

    Strips of pixels are copied, so that they lie close together; a piece of the gradient, 128 x 64 channels, is summed
    in scratch memory over all of them and then brought into PyTorch's order.
    """
    cdef nhwc_conv_backward_weights_args a = read_nhwc_conv_backward_weights(args, block)
    cdef const Loops *loops = nhwc_convolution_loops(a.micro)
    cdef Convolution c = convolution_of(a.dy_map, a.in_map, a.geometry, a.accumulate, False)
    cdef int taps = c.kernel * c.kernel, part = c.target.channels // c.groups
    cdef float *out = a.output + a.partial * c.source.channels * part * taps
    cdef float *bias = a.bias_output + a.partial * c.source.channels
    cdef float *to
    cdef int32_t starts[MAX_PANELS]
    cdef int k = panel_inputs(c.source.channels, c.target.channels, c.groups, starts)
    cdef int o = a.o0, o_stop, i, i_stop, bound
    cdef bint first
    if is_matrix_product(&c):
        weight_product(&c, linear_loops(a.micro), &a, out, bias, <float *> context.scratch)
        return 0
    while o < a.o1:
        o_stop = min(<int> a.o1, o + piece_outputs(&c))
        first = a.bias_output != NULL and a.i0 == 0
        if c.groups == 1:
            i = a.i0
            bound = a.i1
        else:
            # Output channels whose panels read the same channels.
            bound = o
            while bound < o_stop and starts[bound // LANES] == starts[o // LANES]:
                bound += LANES
            o_stop = min(o_stop, bound)
            i = starts[o // LANES]
            bound = min(c.target.channels, i + k)
        while i < bound:
            i_stop = min(bound, i + piece_inputs(&c))
            to = bias if first else NULL
            if c.side:
                winograd_weight_piece(&c, loops, nhwc_winograd_loops(a.micro), a.gradient, a.input, out, to, a.n0,
                                      a.n1, o, o_stop, i, i_stop, <float *> context.scratch)
            else:
                weight_piece(&c, loops, a.gradient, a.input, out, to, a.n0, a.n1, o, o_stop, i, i_stop,
                             <float *> context.scratch)
            first = False
            i = i_stop
        o = o_stop
    return 0


cdef void weight_product(const Convolution *c, const LinearLoops *loops, const nhwc_conv_backward_weights_args *a,
                         float *out, float *bias, float *scratch) noexcept nogil:
    """The weight gradient of a linear layer whose rows are the pixels; those of the input are copied where they do not
    follow on."""
    cdef LinearGradientTask task
    cdef int inputs = a.i1 - a.i0, width = c.source.width, pixels = c.source.height * width
    cdef int total = (a.n1 - a.n0) * pixels, done = 0, i, at
    cdef float *copied = scratch
    memset(&task, 0, sizeof(LinearGradientTask))
    task.gradient = a.gradient + pixel(&c.source, a.n0, 0, 0) + a.o0
    task.input = a.input + pixel(&c.target, a.n0, 0, 0) + a.i0
    task.c_row = c.target.channels
    task.c = out + a.o0 * task.c_row + a.i0
    task.bias = bias + a.o0 if a.bias_output != NULL and a.i0 == 0 else NULL
    task.gradient_row = c.source.pitch
    task.input_row = c.target.pitch
    task.rows = total
    task.outputs = a.o1 - a.o0
    task.inputs = inputs
    task.accumulate = c.option
    task.scratch = scratch + copied_pixels(c) * inputs
    if copied_pixels(c) == 0:
        loops.backward_weights(&task)
        return
    task.input = copied
    task.input_row = inputs
    while done < total:
        task.rows = min(copied_pixels(c), total - done)
        for i in range(task.rows):
            at = done + i
            memcpy(copied + <Py_ssize_t> i * inputs, a.input + a.i0 + pixel(
                &c.target, a.n0 + at // pixels, at % pixels // width * c.stride, at % width * c.stride),
                inputs * sizeof(float))
        loops.backward_weights(&task)
        task.gradient += task.rows * task.gradient_row
        task.accumulate = 1
        done += task.rows


cdef inline void request(Request *r, const NhwcMap *m, const float *x, int n, int y, int x_,
                         int step) noexcept nogil:
    """Lines of the pixels from a physical place on, every `step`-th of a row and a column."""
    r.at = x + n * image_size(m) + y * row_size(m) + <Py_ssize_t> x_ * m.pitch
    r.image = image_size(m)
    r.row = step * row_size(m)
    r.pixel = <Py_ssize_t> step * m.pitch


cdef void weight_piece(const Convolution *c, const Loops *loops, const float *dy, const float *x, float *out,
                       float *bias, int n0, int n1, int o0, int o1, int i0, int i1, float *scratch) noexcept nogil:
    """Output channels [o0, o1) and input channels [i0, i1), within one group or a panel of several."""
    cdef const NhwcMap *g = &c.source
    cdef const NhwcMap *m = &c.target
    cdef WeightScratch place = weight_scratch(c, n1 - n0, o1 - o0, i1 - i0)
    cdef int k = c.kernel, step = place.step, move = place.move, copied = place.copied, chunks = place.chunks
    cdef int columns = place.columns
    cdef int n, y, count_n, count_y, chunk, width, u, tap, height, r, o, first, next_n, next_y
    cdef bint last
    cdef int32_t *index = <int32_t *> scratch
    cdef float *sums = scratch + place.sums
    cdef float *packed_dy = scratch + place.gradient
    cdef float *packed_x = scratch + place.input
    cdef OuterTask t
    memset(sums, 0, chunks * place.sums_size * sizeof(float))
    if bias != NULL:
        sum_gradient(c, loops, dy, n0, n1, o0, o1, bias)
    n = n0
    while n < n1:
        count_n = min(place.images, n1 - n)
        y = 0
        while y < g.height:
            count_y = min(place.height, g.height - y)
            for chunk in range(chunks):
                o = o0 + 32 * chunk
                width = 32 if o1 - o > LANES else LANES
                pack_pixels(g, loops, dy, n, n + count_n, y + g.halo, count_y, g.halo, g.width, 1, o, width,
                            min(width, g.pitch - o), packed_dy + chunk * place.gradient_size)
            height = (count_y - 1) * move + (k - 1) * c.dilation + 1
            first = y * c.stride + m.halo - c.padding
            next_y = y + count_y if y + count_y < g.height else 0
            next_n = n if next_y > 0 else n + count_n
            last = next_n >= n1
            for r in range(place.inputs // copied):
                u = r * copied
                pack_pixels(m, loops, x, n, n + count_n, first, height, m.halo - c.padding, columns,
                            step, i0 + u, copied, min(copied, m.pitch - i0 - u), packed_x)
                t.images = count_n
                t.rows = count_y
                t.columns = g.width
                t.pixel = move * copied
                t.row = <Py_ssize_t> move * columns * copied
                t.image = <Py_ssize_t> height * columns * copied
                # Rows of channels that exist, in whole tiles of eight; the sums of others stay zero.
                t.m = copied * k if place.joined else min(copied, (i1 - i0 - u + 7) // 8 * 8)
                for chunk in range(chunks):
                    t.width = 32 if o1 - o0 - 32 * chunk > LANES else LANES
                    t.b = packed_dy + chunk * place.gradient_size
                    for tap in range(place.calls):
                        if place.joined:
                            t.a = packed_x + <Py_ssize_t> tap * columns * copied
                        else:
                            t.a = packed_x + <Py_ssize_t> c.dilation * (tap // k * columns + tap % k) * copied
                        t.c = sums + chunk * place.sums_size + (<Py_ssize_t> tap * place.rows + u) * t.width
                        # The next strip comes from memory meanwhile: each of its inputs once, by the taps that meet
                        # what no strip had before, and each of its gradients.
                        t.ahead[0].lines = 0
                        t.ahead[1].lines = 0
                        if not last and m.pitch >= LANES:
                            if chunk == 0 and tap // k + c.stride >= k and tap % k + c.stride >= k:
                                t.ahead[0].lines = 1
                                request(&t.ahead[0], m, x + i0 + u, next_n, next_y * c.stride + m.halo - c.padding
                                        + tap // k * c.dilation, m.halo - c.padding + tap % k * c.dilation, c.stride)
                            if r == 0 and tap == 0:
                                t.ahead[1].lines = t.width // LANES
                                request(&t.ahead[1], g, dy + o0 + 32 * chunk, next_n, next_y + g.halo, g.halo, 1)
                        loops.outer(&t)
            y += count_y
        n += count_n
    store_weights(c, loops, sums, place.sums_size, 0, out, o0, o1, i0, i1, place.rows, place.joined, index)


cdef void store_weights(const Convolution *c, const Loops *loops, const float *sums, Py_ssize_t sums_size,
                        int stride, float *out, int o0, int o1, int i0, int i1, int rows_of, int joined,
                        int32_t *index) noexcept nogil:
    """From (tap, input channel, output channel) to (output channel, input channel, tap).

    32 output channels follow those before `sums_size` floats later; their rows are `stride` floats apart, or follow on
    where it is zero. `joined`: floats of a column where a row of taps was summed as one.
    """
    cdef int k = c.kernel, taps = k * k, outs = c.source.channels // c.groups, part = c.target.channels // c.groups
    cdef int chunk, o, width, row, group, i, num, j, tap, r
    for chunk in range((o1 - o0 + 31) // 32):
        o = o0 + 32 * chunk
        width = 32 if o1 - o > LANES else LANES
        row = stride if stride > 0 else width
        group = o // outs
        if c.groups > 1 and (i0 // part != group or (i1 - 1) // part != group
                             or (min(o1, o + width) - 1) // outs != group):
            diagonal(c, sums + chunk * sums_size, out, o, min(o1, o + width), i0, i1, rows_of, row)
            continue
        # Inputs at their place in the group.
        i = i0 % part if c.groups > 1 else i0
        num = 0
        for j in range(i1 - i0):
            for tap in range(taps):
                if joined:
                    index[num] = (tap // k * rows_of + tap % k * joined + j) * row
                else:
                    index[num] = (tap * rows_of + j) * row
                num += 1
        for r in range((min(width, o1 - o) + LANES - 1) // LANES):
            j = r * LANES
            loops.transpose_rows(sums + chunk * sums_size + j, index, num, min(LANES, o1 - o - j),
                                 out + (<Py_ssize_t> (o + j) * part + i) * taps, <Py_ssize_t> part * taps, c.option)


cdef inline void tile_place(const Convolution *c, int n0, int tile, int *n, int *y, int *x) noexcept nogil:
    """The image of a tile of the gradient, and its first pixel."""
    cdef int side = c.side
    cdef int tiles_y = (c.source.height + side - 1) // side, tiles_x = (c.source.width + side - 1) // side
    n[0] = n0 + tile // (tiles_x * tiles_y)
    y[0] = tile // tiles_x % tiles_y * side
    x[0] = tile % tiles_x * side


cdef void transform_inputs(const Convolution *c, const WinogradLoops *winograd, const WinogradWeightScratch *place,
                           const float *x, int n0, int first, int count, float *scratch) noexcept nogil:
    """Inputs of `count` tiles of the gradient, from tile `first` on, to points; the next one comes from memory."""
    cdef int i, n, y, x_, soon_n, soon_y, soon_x
    cdef const float *at
    cdef Py_ssize_t row, step
    for i in range(count):
        tile_place(c, n0, first + i, &n, &y, &x_)
        tile_place(c, n0, first + min(i + 1, count - 1), &soon_n, &soon_y, &soon_x)
        read_tile(&c.target, x, n, y - c.padding, x_ - c.padding, c.source.height - y + 2, c.source.width - x_ + 2,
                  c.side + 2, place.inputs, scratch + place.patch, &at, &row, &step)
        winograd.input[c.side // 2 - 1](
            at, row, step, place.inputs, x + pixel(&c.target, soon_n, soon_y - c.padding, soon_x - c.padding)
            if row == row_size(&c.target) else NULL, scratch + place.input + <Py_ssize_t> i * place.inputs,
            place.input_point)


cdef void transform_gradients(const Convolution *c, const WinogradLoops *winograd, const WinogradWeightScratch *place,
                              const float *dy, int n0, int first, int count, int outs, int width,
                              float *scratch) noexcept nogil:
    """Likewise `outs` channels of the gradient, in panels that make up `width` channels; what is past them is left."""
    cdef int i, n, y, x, soon_n, soon_y, soon_x, o, panel
    cdef const float *at
    cdef Py_ssize_t row, step
    for i in range(count):
        tile_place(c, n0, first + i, &n, &y, &x)
        tile_place(c, n0, first + min(i + 1, count - 1), &soon_n, &soon_y, &soon_x)
        read_tile(&c.source, dy, n, y, x, c.source.height - y, c.source.width - x, c.side, outs,
                  scratch + place.patch, &at, &row, &step)
        o = 0
        while o < outs:
            panel = winograd.panel if width - o >= winograd.panel else 32
            winograd.gradient[c.side // 2 - 1](
                at + o, row, step, min(panel, outs - o), dy + pixel(&c.source, soon_n, soon_y, soon_x) + o
                if row == row_size(&c.source) else NULL,
                scratch + place.gradient + <Py_ssize_t> o * count + i * panel, place.gradient_point)
            o += panel


cdef void winograd_weight_piece(const Convolution *c, const Loops *loops, const WinogradLoops *winograd,
                                const float *dy, const float *x, float *out, float *bias, int n0, int n1, int o0,
                                int o1, int i0, int i1, float *scratch) noexcept nogil:
    """Like weight_piece(), by products at Winograd's points: the gradient's tiles are the taps, weights the outputs.

    The inputs of a piece whose tiles are one strip are transformed once for all output channels."""
    cdef WinogradWeightScratch place = winograd_weight_scratch(c, n1 - n0, o1 - o0, i1 - i0)
    cdef int side = c.side, which = side // 2 - 1
    cdef int total = (n1 - n0) * ((c.source.height + side - 1) // side) * ((c.source.width + side - 1) // side)
    cdef int o = o0, outs, done, count
    cdef float *weights = scratch + place.gradient  # at the end
    cdef WinogradWeightTask t
    if bias != NULL:
        sum_gradient(c, loops, dy, n0, n1, o0, o1, bias)
    t.input = scratch + place.input
    t.gradient = scratch + place.gradient
    t.sums = scratch + place.sums
    t.input_point, t.gradient_point, t.sums_point = place.input_point, place.gradient_point, place.sums_point
    t.points = place.points
    t.inputs = place.inputs
    while o < o1:
        outs = min(o1 - o, WEIGHT_OUTPUTS)
        t.outputs = (outs + 31) // 32 * 32
        done = 0
        while done < total:
            count = min(place.chunk, total - done)
            if o == o0 or total > place.chunk:
                transform_inputs(c, winograd, &place, x + i0, n0, done, count, scratch)
            transform_gradients(c, winograd, &place, dy + o, n0, done, count, (outs + LANES - 1) // LANES * LANES,
                                t.outputs, scratch)
            t.tiles = count
            t.add = done > 0
            winograd.weight_products(&t)
            done += count
        winograd.weights[which](t.sums, t.sums_point, t.inputs * t.outputs, weights,
                                <Py_ssize_t> t.inputs * t.outputs)
        store_weights(c, loops, weights, 32, t.outputs, out, o, o + outs, i0, i1, t.inputs, 0, <int32_t *> scratch)
        o += outs


cdef void sum_gradient(const Convolution *c, const Loops *loops, const float *dy, int n0, int n1, int o0, int o1,
                       float *bias) noexcept nogil:
    """bias[o] = sum of dY over images and pixels, added with `accumulate`."""
    cdef const NhwcMap *g = &c.source
    cdef float zero[LANES]
    cdef float total[LANES]
    cdef float unused[LANES]
    cdef int n, y, r, lane, o
    memset(zero, 0, sizeof(zero))
    for r in range((o1 - o0 + LANES - 1) // LANES):
        o = o0 + r * LANES
        memset(total, 0, sizeof(total))
        memset(unused, 0, sizeof(unused))
        for n in range(n0, n1):
            for y in range(g.height):
                loops.shifted_sums(dy + pixel(g, n, y, 0) + o, g.pitch, g.width, zero, total, unused)
        for lane in range(min(LANES, o1 - o)):
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


def _weights_scratch(attributes, bounds, operands):
    cdef Convolution c = convolution_of(
        struct_of("NhwcMap", attributes, "dy_"), struct_of("NhwcMap", attributes, "in_"),
        struct_of("Geometry", attributes), 0, False)
    # With groups a panel has the inputs of its own channels' groups, whatever the block's bounds.
    cdef int k = panel_inputs(c.source.channels, c.target.channels, c.groups, NULL)
    return sizeof(float) * max(
        weight_gradient_scratch(&c, images, outputs, inputs if c.groups == 1 else min(k, c.target.channels))
        for images, outputs, inputs in lengths(bounds, "n", "o", "i"))


# With groups, i0 and i1 are not used: a block has all inputs of its output channels' groups.
implement(KERNELS, "nhwc_conv_backward_weights", backward_weights, <uintptr_t> &conv_backward_weights,
          scratch_bytes=_weights_scratch)
