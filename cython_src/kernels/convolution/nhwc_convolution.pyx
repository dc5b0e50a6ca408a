"""Convolution in the layout "nhwc": packing of weights, forward pass and data gradient.

The formula, the algorithms and the order of packed weights are described in kernels/convolution/algorithms.py.

Forward pass and data gradient are one loop: an output pixel is a sum over taps of rows of the map that is read times
rows of packed weights. With a stride the outputs of the data gradient fall into stride x stride phases that meet taps
of their own; in each, one output to the next moves by one pixel of the gradient.

convolve() chooses between the algorithms (direct, Winograd), and both work on the same task. The weight gradient, in
nhwc_weight_gradient.pyx, shares the division of scratch memory in nhwc_sizes.h.
"""

from libc.string cimport memcpy, memmove, memset

from convolution_c cimport *
from elementwise_c cimport *
from norm_c cimport *

from ..maps.nhwc cimport (
    Tile, block_task, clear_channel_halo, image_size, pixel, read_tile, row_size, set_plane,
)

from ..interface.arguments import struct_of
from ..interface.kernel_spec import implement, lengths
from .nhwc_reference import backward_data, forward, pack
from .specs import KERNELS

ctypedef NhwcConvolutionLoops Loops
ctypedef NhwcWinogradLoops WinogradLoops


cdef struct Call:
    # A block of the forward pass or the data gradient, and, from `first` on, the phase that is computed: rows
    # [first, first + rows) and all `columns`, whose outputs lie in places step * j + ry, step * i + rx.
    const Convolution *c
    const Box *b
    const Loops *loops
    const WinogradLoops *winograd
    const float *x
    float *out
    float *scratch
    int first, rows, columns, step, ry, rx


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


cdef void copied_product(const Call *a, ProductTask *t) noexcept nogil:
    """Product by way of copies: each output pixel's inputs in a row of their own, results by pixel."""
    cdef const Convolution *c = a.c
    cdef Tap taps[MAX_TAPS]
    cdef int move = 1 if c.transposed else c.stride
    cdef int part = copied_channels(c, t.k)
    cdef Py_ssize_t length = <Py_ssize_t> part * t.num_taps
    cdef int width = t.num_panels * LANES, stored = (t.num_panels - 1) * LANES + t.store_columns
    cdef int rows = a.rows, columns = a.columns, total = (a.b.n1 - a.b.n0) * rows * columns, done = 0
    cdef int count, i, tap, n, y, column, at, accumulate = t.accumulate
    cdef CopiedScratch place = copied_scratch(length, width, total)
    cdef PixelGroup *groups = <PixelGroup *> a.scratch
    cdef float *copied = a.scratch + place.copied
    cdef float *sums = a.scratch + place.sums
    cdef const float *p
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
            n = a.b.n0 + at // (rows * columns)
            y = a.first + at // columns % rows
            column = at % columns
            p = a.x + pixel(&c.source, n, y * move, column * move)
            row = copied + i * length
            for tap in range(t.num_taps):
                memcpy(row + tap * part, p + t.taps[tap].a, part * sizeof(float))
        for i in range((count + 3) // 4):
            groups[i] = PixelGroup(a=4 * i * length, c=4 * i * width, first=0, count=min(4, count - 4 * i))
        product.num_groups = (count + 3) // 4
        # Rows beyond the last of a group are read, not used: they must hold numbers of some kind.
        memset(copied + count * length, 0, (product.num_groups * 4 - count) * length * sizeof(float))
        a.loops.product(&product)
        for i in range(count):
            at = done + i
            n = a.b.n0 + at // (rows * columns)
            y = a.first + at // columns % rows
            column = at % columns
            row = a.out + pixel(&c.target, n, y * a.step + a.ry, column * a.step + a.rx)
            if accumulate:
                for tap in range(stored):
                    row[tap] += sums[i * width + tap]
            else:
                memcpy(row, sums + i * width, stored * sizeof(float))
        done += count


cdef void direct_product(const Call *a, ProductTask *t) noexcept nogil:
    """Product straight from the map, rows of at least four pixels."""
    cdef const Convolution *c = a.c
    cdef PixelGroup *groups = <PixelGroup *> a.scratch
    cdef int move = 1 if c.transposed else c.stride
    cdef int columns = a.columns, of_row = (columns + 3) // 4, n, y, i, at, hidden, num = 0, filled = 0
    # More groups than a list has are filled in, one row's.
    cdef int limit = list_groups(c.source.pitch) - of_row
    cdef Py_ssize_t a_row, c_row
    t.a = a.x
    t.c = a.out
    t.groups = groups
    t.pixel = <Py_ssize_t> c.source.pitch * move
    t.out_pixel = <Py_ssize_t> c.target.pitch * a.step
    for n in range(a.b.n0, a.b.n1):
        for y in range(a.first, a.first + a.rows):
            a_row = pixel(&c.source, n, y * move, 0)
            c_row = pixel(&c.target, n, y * a.step + a.ry, a.rx)
            for i in range(of_row):
                at = min(4 * i, columns - 4)
                hidden = 4 * i - at
                groups[filled] = PixelGroup(
                    a=a_row + at * t.pixel, c=c_row + at * t.out_pixel, first=hidden, count=4 - hidden)
                filled += 1
            if filled > limit and num > 0:
                # The row that was just filled in comes from memory while the list before it is summed.
                t.num_groups = num
                t.more_groups = filled - num
                a.loops.product(t)
                memmove(groups, groups + num, (filled - num) * sizeof(PixelGroup))
                filled -= num
            num = filled
    t.num_groups = num
    t.more_groups = 0
    a.loops.product(t)


cdef void direct_flat(const Call *a, ProductTask *t) noexcept nogil:
    """Product of four pixels or more that follow on in both maps."""
    cdef const Convolution *c = a.c
    cdef PixelGroup *groups = <PixelGroup *> a.scratch
    cdef int limit = flat_groups(c, t.k, t.num_panels)
    cdef int total = (a.b.n1 - a.b.n0) * a.rows * a.columns, all_groups = (total + 3) // 4, done = 0, i, at, hidden
    t.a = a.x + a.b.n0 * image_size(&c.source)
    t.c = a.out + a.b.n0 * image_size(&c.target)
    t.groups = groups
    t.pixel = c.source.pitch
    t.out_pixel = c.target.pitch
    while done < all_groups:
        t.num_groups = min(limit, all_groups - done)
        t.more_groups = min(3, all_groups - done - t.num_groups)
        for i in range(t.num_groups + t.more_groups):
            at = min(4 * (done + i), total - 4)
            hidden = 4 * (done + i) - at
            groups[i] = PixelGroup(a=at * t.pixel, c=at * t.out_pixel, first=hidden, count=4 - hidden)
        a.loops.product(t)
        done += t.num_groups


cdef inline void request_outputs(const Call *a, int tiles_y, int tiles_x, int run, int first, int stop,
                                 int width) noexcept nogil:
    """Ask memory for rows [first, stop) of the outputs of tiles, c.side of each, from panel `run` on: they will be
    written."""
    cdef const Convolution *c = a.c
    cdef int i, j, tile
    cdef float *p
    for i in range(first, stop):
        tile = i // c.side
        p = a.out + run * LANES + pixel(
            &c.target, a.b.n0 + tile // (tiles_x * tiles_y), a.b.y0 + tile // tiles_x % tiles_y * c.side + i % c.side,
            tile % tiles_x * c.side)
        for j in range(c.side):
            request_writes(p + j * c.target.pitch, width)


cdef void transform_tiles(const Call *a, const WinogradScratch *place, const float *x, int done,
                          int count) noexcept nogil:
    """Inputs of `count` tiles, from tile `done` on, to points; the next tile is asked for from memory."""
    cdef const Convolution *c = a.c
    cdef const Box *b = a.b
    cdef int m = c.side, tiles_y = (b.y1 - b.y0 + m - 1) // m, tiles_x = (c.target.width + m - 1) // m
    cdef int i, rows, columns, tile
    cdef const float *next
    cdef Tile read
    for i in range(count):
        tile = done + i
        rows = tile // tiles_x % tiles_y * m
        columns = tile % tiles_x * m
        read = read_tile(&c.source, x, b.n0 + tile // (tiles_x * tiles_y), b.y0 + rows - c.padding,
                         columns - c.padding,
                         b.y1 - b.y0 - rows + 2, c.target.width - columns + 2, m + 2, place.channels,
                         a.scratch + place.patch)
        next = NULL
        if tile + 1 < (b.n1 - b.n0) * tiles_y * tiles_x and read.row == row_size(&c.source):
            tile += 1
            next = x + pixel(&c.source, b.n0 + tile // (tiles_x * tiles_y),
                             b.y0 + tile // tiles_x % tiles_y * m - c.padding, tile % tiles_x * m - c.padding)
        a.winograd.input[m // 2 - 1](read.at, read.row, read.step, place.channels, next,
                                     a.scratch + place.inputs + <Py_ssize_t> i * place.channels, place.inputs_point)


cdef void winograd_product(const Call *a, ProductTask *t) noexcept nogil:
    """Panels that read the same channels, chunks of tiles: inputs to points, a matrix product of all panels at each
    point, sums to outputs. What is read or written next is asked for from memory in time."""
    cdef const Convolution *c = a.c
    cdef const Box *b = a.b
    cdef WinogradScratch place = winograd_scratch(c, t.k, b.n1 - b.n0, b.y1 - b.y0, t.num_panels)
    cdef int m = c.side, points = place.points, channels = place.channels
    cdef int tiles_y = (b.y1 - b.y0 + m - 1) // m, tiles_x = (c.target.width + m - 1) // m
    cdef int total = (b.n1 - b.n0) * tiles_y * tiles_x
    cdef PixelGroup *groups = <PixelGroup *> a.scratch
    cdef float *bias = NULL if t.bias == NULL else a.scratch + place.bias
    cdef float *sums = a.scratch + place.sums
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
            groups[i] = PixelGroup(a=4 * i * channels, c=4 * i * width, first=0, count=4)
        done = 0
        while done < total:
            count = min(place.chunk, total - done)
            transform_tiles(a, &place, a.x + (inputs[run] if inputs != NULL else 0), done, count)
            t.num_groups = (count + 3) // 4
            for p in range(points):
                t.a = a.scratch + place.inputs + p * place.inputs_point
                t.b = packed + run * t.panel + <Py_ssize_t> p * t.k * LANES
                t.c = sums + p * place.sums_point
                request_outputs(a, tiles_y, tiles_x, run, (done * points + count * p) * m // points,
                                (done * points + count * (p + 1)) * m // points, width)
                a.loops.product(t)
            for i in range(count):
                tile = done + i
                rows = tile // tiles_x % tiles_y * m
                columns = tile % tiles_x * m
                a.winograd.output[m // 2 - 1](
                    sums + i * width, place.sums_point, width, NULL if bias == NULL else bias + run * LANES,
                    activation, accumulate, a.out + run * LANES
                    + pixel(&c.target, b.n0 + tile // (tiles_x * tiles_y), b.y0 + rows, columns),
                    row_size(&c.target), c.target.pitch, min(m, b.y1 - b.y0 - rows), min(m, c.target.width - columns))
            done += count
        run = stop


cdef void add_residual(const Convolution *c, float *residual, float *out, const Box *b,
                       const MicroKernels *micro) noexcept nogil:
    """out = activation(out + residual), a map of the same geometry, in a block that was just written."""
    cdef NhwcTask task = block_task(&c.target, b)
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
    cdef Call call
    cdef Tap taps[MAX_TAPS]
    cdef int32_t starts[MAX_PANELS]
    cdef const Box *b = &a.box
    cdef int k = panel_inputs(c.target.channels, c.source.channels, c.groups, starts)
    cdef int points = (c.side + 2) * (c.side + 2) if c.side else c.kernel * c.kernel
    cdef int step = c.stride if c.transposed else 1, panel0 = b.c0 // LANES, ry, rx, method
    call.c, call.b, call.x, call.out, call.scratch = c, b, a.input, a.output + b.c0, <float *> context.scratch
    call.loops, call.winograd, call.step = nhwc_convolution_loops(a.micro), nhwc_winograd_loops(a.micro), step
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
        winograd_product(&call, &t)
    for ry in range(0 if c.side else step):
        for rx in range(step):
            t.num_taps = phase_taps(c, ry, rx, k, taps, &t.k)
            call.ry, call.rx = ry, rx
            call.first = (b.y0 - ry + step - 1) // step if b.y0 > ry else 0
            call.rows = (b.y1 - ry + step - 1) // step - call.first if b.y1 > ry else 0
            call.columns = (c.target.width - rx + step - 1) // step
            if call.rows <= 0 or call.columns <= 0:
                continue
            method = method_of(c, b.n1 - b.n0, call.rows, call.columns, b.y1 - b.y0 == c.target.height)
            if method == FLAT:
                direct_flat(&call, &t)
            elif method == COPIED:
                copied_product(&call, &t)
            else:
                direct_product(&call, &t)


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
        done = block_task(&a.out_map, &a.box)
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


def _scratch(attributes, bounds, operands):
    cdef Convolution c = convolution_of(
        struct_of("NhwcMap", attributes, "in_"), struct_of("NhwcMap", attributes, "out_"),
        struct_of("Geometry", attributes), 0, "gradient" in operands)
    cdef int k = panel_inputs(c.target.channels, c.source.channels, c.groups, NULL)
    return sizeof(float) * max(
        convolution_scratch(&c, k, images, rows, channels) for images, rows, channels in lengths(bounds, "n", "y", "c"))


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


implement(KERNELS, "nhwc_conv_forward", <uintptr_t> &conv_forward, scratch_bytes=_scratch)(forward)
implement(KERNELS, "nhwc_conv_backward_data", <uintptr_t> &conv_backward_data, scratch_bytes=_scratch)(backward_data)
implement(KERNELS, "nhwc_conv_pack", <uintptr_t> &conv_pack, scratch_bytes=_pack_scratch)(pack)
