"""Weight gradients of the convolutions of the layout "channels".

The formula and the algorithms are described in kernels/convolution/algorithms.py.
"""

from libc.string cimport memcpy, memset

from convolution_c cimport *

from ..maps.channels cimport image_size, pixel, row_size
from .channels_sizes cimport (
    MAX_PANELS, Convolution, Loops, WeightScratch, WinogradLoops, WinogradWeightScratch, convolution_of, panel_inputs,
    piece_inputs, piece_outputs, read_tile, weight_gradient_scratch, weight_scratch, winograd_weight_scratch)

from ..interface.arguments import GEOMETRY, channels_attributes, struct_of
from ..interface.kernel_spec import KernelSpec, lengths, register
from .channels_reference import backward_weights


cdef void pack_pixels(const ChannelsMap *m, const Loops *loops, const float *x, int n0, int n1, int y0, int rows,
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

    Strips of pixels are copied, so that they lie close together; a piece of the gradient, 64 x 64 channels, is summed
    in scratch memory over all of them and then brought into PyTorch's order.
    """
    cdef channels_conv_backward_weights_args a = read_channels_conv_backward_weights(args, block)
    cdef const Loops *loops = channels_convolution_loops(a.micro)
    cdef Convolution c = convolution_of(a.dy_map, a.in_map, a.geometry, a.accumulate, False)
    cdef int taps = c.kernel * c.kernel, part = c.target.channels // c.groups
    cdef float *out = a.output + a.partial * c.source.channels * part * taps
    cdef float *bias = a.bias_output + a.partial * c.source.channels
    cdef float *to
    cdef int32_t starts[MAX_PANELS]
    cdef int k = panel_inputs(c.source.channels, c.target.channels, c.groups, starts)
    cdef int o = a.o0, o_stop, i, i_stop, bound
    cdef bint first
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
                winograd_weight_piece(&c, loops, channels_winograd_loops(a.micro), a.gradient, a.input, out, to, a.n0,
                                      a.n1, o, o_stop, i, i_stop, <float *> context.scratch)
            else:
                weight_piece(&c, loops, a.gradient, a.input, out, to, a.n0, a.n1, o, o_stop, i, i_stop,
                             <float *> context.scratch)
            first = False
            i = i_stop
        o = o_stop
    return 0


cdef inline void request(Request *r, const ChannelsMap *m, const float *x, int n, int y, int x_,
                         int step) noexcept nogil:
    """Lines of the pixels from a physical place on, every `step`-th of a row and a column."""
    r.at = x + n * image_size(m) + y * row_size(m) + <Py_ssize_t> x_ * m.pitch
    r.image = image_size(m)
    r.row = step * row_size(m)
    r.pixel = <Py_ssize_t> step * m.pitch


cdef void weight_piece(const Convolution *c, const Loops *loops, const float *dy, const float *x, float *out,
                       float *bias, int n0, int n1, int o0, int o1, int i0, int i1, float *scratch) noexcept nogil:
    """Output channels [o0, o1) and input channels [i0, i1), within one group or a panel of several."""
    cdef const ChannelsMap *g = &c.source
    cdef const ChannelsMap *m = &c.target
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
                t.m = copied * k if place.joined else copied
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
    store_weights(c, loops, sums, place.sums_size, out, o0, o1, i0, i1, place.rows, place.joined, index)


cdef void store_weights(const Convolution *c, const Loops *loops, const float *sums, Py_ssize_t sums_size,
                        float *out, int o0, int o1, int i0, int i1, int rows_of, int joined,
                        int32_t *index) noexcept nogil:
    """From (tap, input channel, output channel) to (output channel, input channel, tap).

    `joined`: floats of a column where a row of taps was summed as one.
    """
    cdef int k = c.kernel, taps = k * k, outs = c.source.channels // c.groups, part = c.target.channels // c.groups
    cdef int chunk, o, width, group, i, num, j, tap, r
    for chunk in range((o1 - o0 + 31) // 32):
        o = o0 + 32 * chunk
        width = 32 if o1 - o > LANES else LANES
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
        for r in range((min(width, o1 - o) + LANES - 1) // LANES):
            j = r * LANES
            loops.transpose_rows(sums + chunk * sums_size + j, index, num, min(LANES, o1 - o - j),
                                 out + (<Py_ssize_t> (o + j) * part + i) * taps, <Py_ssize_t> part * taps, c.option)


cdef void winograd_weight_piece(const Convolution *c, const Loops *loops, const WinogradLoops *winograd,
                                const float *dy, const float *x, float *out, float *bias, int n0, int n1, int o0,
                                int o1, int i0, int i1, float *scratch) noexcept nogil:
    """Like weight_piece(), by products at Winograd's points: the gradient's tiles are the taps, weights the outputs."""
    cdef const ChannelsMap *g = &c.source
    cdef const ChannelsMap *m = &c.target
    cdef WinogradWeightScratch place = winograd_weight_scratch(c, n1 - n0, o1 - o0, i1 - i0)
    cdef int side = c.side, n = side + 2, points = place.points, which = side // 2 - 1
    cdef int ins = place.inputs, outs = place.outputs
    cdef int tiles_y = (g.height + side - 1) // side, tiles_x = (g.width + side - 1) // side
    cdef int total = (n1 - n0) * tiles_y * tiles_x
    # Sums of a point: chunks of 32 (or the last LANES) output channels, input channels.
    cdef Py_ssize_t point = place.sums_point, v_point = place.input_point, d_point = place.gradient_point
    cdef int32_t *index = <int32_t *> scratch
    cdef float *sums = scratch + place.sums
    cdef float *patch = scratch + place.patch
    cdef float *v = scratch + place.input
    cdef float *d = scratch + place.gradient
    cdef float *taps = v  # at the end
    cdef int done = 0, count, i, p, o, row_, column, tile, soon, image, width
    cdef const float *at
    cdef Py_ssize_t row, step, next
    cdef OuterTask t
    memset(sums, 0, points * point * sizeof(float))
    if bias != NULL:
        sum_gradient(c, loops, dy, n0, n1, o0, o1, bias)
    t.images = 1
    t.rows = 1
    t.image = 0
    t.row = 0
    t.pixel = ins
    t.m = ins
    t.ahead[0].lines = 0
    t.ahead[1].lines = 0
    while done < total:
        count = min(place.chunk, total - done)
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
                loops.outer(&t)
                o += t.width
        done += count
    # 32 output channels at a time, as store_weights() takes them.
    o = 0
    while o < outs:
        width = min(32, outs - o)
        winograd.weights[which](sums + <Py_ssize_t> o * ins, point, ins * width, taps, <Py_ssize_t> ins * width)
        store_weights(c, loops, taps, 0, out, o0 + o, min(o1, o0 + o + width), i0, i1, ins, 0, index)
        o += width


cdef void sum_gradient(const Convolution *c, const Loops *loops, const float *dy, int n0, int n1, int o0, int o1,
                       float *bias) noexcept nogil:
    """bias[o] = sum of dY over images and pixels, added with `accumulate`."""
    cdef const ChannelsMap *g = &c.source
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


INTEGERS = channels_attributes("dy") + channels_attributes("in") + GEOMETRY + ("accumulate",)


def _scratch(attributes, bounds, operands):
    cdef Convolution c = convolution_of(
        struct_of("ChannelsMap", attributes, "dy_"), struct_of("ChannelsMap", attributes, "in_"),
        struct_of("Geometry", attributes), 0, False)
    # With groups a panel has the inputs of its own channels' groups, whatever the block's bounds.
    cdef int k = panel_inputs(c.source.channels, c.target.channels, c.groups, NULL)
    return sizeof(float) * max(
        weight_gradient_scratch(&c, images, outputs, inputs if c.groups == 1 else min(k, c.target.channels))
        for images, outputs, inputs in lengths(bounds, "n", "o", "i"))


# With groups, i0 and i1 are not used: a block has all inputs of its output channels' groups.
register(KernelSpec(
    "channels_conv_backward_weights", ("gradient", "input", "output", "bias_output?"), INTEGERS, (),
    ("n0", "n1", "o0", "o1", "i0", "i1", "partial"), backward_weights, <uintptr_t> &conv_backward_weights,
    scratch_bytes=_scratch))
