"""Weight gradient of convolutions in the layout "nhwc"; formula and algorithms are described in
kernels/convolution/algorithms.py. Parts of scratch memory are divided in nhwc_sizes.h."""

from libc.string cimport memcpy, memset

from convolution_c cimport *
from linear_c cimport *

from ..maps.nhwc cimport Tile, image_size, pixel, read_tile, row_size

from ..interface.arguments import struct_of
from ..interface.kernel_spec import implement, lengths
from .nhwc_reference import backward_weights
from .specs import KERNELS


cdef struct Piece:
    # Images, output and input channels of a weight gradient, and the maps that it is summed from. The channels lie
    # within one group, or a panel of several.
    const Convolution *c
    const NhwcConvolutionLoops *loops
    const NhwcWinogradLoops *winograd
    const float *dy
    const float *x
    float *out
    float *bias
    float *scratch
    int n0, n1, o0, o1, i0, i1


cdef void pack_pixels(const NhwcMap *m, const NhwcConvolutionLoops *loops, const float *x, int n0, int n1,
                      int y0, int rows, int left, int columns, int step, int c, int width, int valid,
                      float *out) noexcept nogil:
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
    cdef Convolution c = convolution_of(a.dy_map, a.in_map, a.geometry, a.accumulate, False)
    cdef int taps = c.kernel * c.kernel, part = c.target.channels // c.groups
    cdef float *bias = a.bias_output + a.partial * c.source.channels
    cdef Piece piece
    cdef int32_t starts[MAX_PANELS]
    cdef int k = panel_inputs(c.source.channels, c.target.channels, c.groups, starts)
    cdef int bound
    cdef bint first
    piece.c, piece.dy, piece.x, piece.scratch = &c, a.gradient, a.input, <float *> context.scratch
    piece.loops, piece.winograd = nhwc_convolution_loops(a.micro), nhwc_winograd_loops(a.micro)
    piece.out = a.output + a.partial * c.source.channels * part * taps
    piece.n0, piece.n1, piece.o0 = a.n0, a.n1, a.o0
    if is_matrix_product(&c):
        weight_product(&c, linear_loops(a.micro), &a, piece.out, bias, piece.scratch)
        return 0
    while piece.o0 < a.o1:
        piece.o1 = min(<int> a.o1, piece.o0 + piece_outputs(&c))
        first = a.bias_output != NULL and a.i0 == 0
        if c.groups == 1:
            piece.i0 = a.i0
            bound = a.i1
        else:
            # Output channels whose panels read the same channels.
            bound = piece.o0
            while bound < piece.o1 and starts[bound // LANES] == starts[piece.o0 // LANES]:
                bound += LANES
            piece.o1 = min(piece.o1, bound)
            piece.i0 = starts[piece.o0 // LANES]
            bound = min(c.target.channels, piece.i0 + k)
        while piece.i0 < bound:
            piece.i1 = min(bound, piece.i0 + piece_inputs(&c))
            piece.bias = bias if first else NULL
            if piece.bias != NULL:
                sum_gradient(&piece)
            if c.side:
                winograd_weight_piece(&piece)
            else:
                weight_piece(&piece)
            first = False
            piece.i0 = piece.i1
        piece.o0 = piece.o1
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


cdef void weight_piece(const Piece *piece) noexcept nogil:
    """Sum a piece's strips of pixels, one after the other."""
    cdef const Convolution *c = piece.c
    cdef const NhwcConvolutionLoops *loops = piece.loops
    cdef const float *dy = piece.dy
    cdef const float *x = piece.x
    cdef int n0 = piece.n0, n1 = piece.n1, o0 = piece.o0, o1 = piece.o1, i0 = piece.i0, i1 = piece.i1
    cdef const NhwcMap *g = &c.source
    cdef const NhwcMap *m = &c.target
    cdef WeightScratch place = weight_scratch(c, n1 - n0, o1 - o0, i1 - i0)
    cdef int k = c.kernel, step = place.step, move = place.move, copied = place.copied, chunks = place.chunks
    cdef int columns = place.columns
    cdef int n, y, count_n, count_y, chunk, width, u, tap, height, r, o, first, next_n, next_y
    cdef bint last
    cdef float *sums = piece.scratch + place.sums
    cdef float *packed_dy = piece.scratch + place.gradient
    cdef float *packed_x = piece.scratch + place.input
    cdef OuterTask t
    memset(sums, 0, chunks * place.sums_size * sizeof(float))
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
    store_weights(piece, sums, place.sums_size, 0, o0, o1, place.rows, place.joined)


cdef void store_weights(const Piece *piece, const float *sums, Py_ssize_t sums_size, int stride, int o0, int o1,
                        int rows_of, int joined) noexcept nogil:
    """Output channels [o0, o1), from (tap, input channel, output channel) to (output channel, input channel, tap).

    32 output channels follow those before `sums_size` floats later; their rows are `stride` floats apart, or follow on
    where it is zero. `joined`: floats of a column where a row of taps was summed as one.
    """
    cdef const Convolution *c = piece.c
    cdef int32_t *index = <int32_t *> piece.scratch
    cdef int i0 = piece.i0, i1 = piece.i1
    cdef int k = c.kernel, taps = k * k, outs = c.source.channels // c.groups, part = c.target.channels // c.groups
    cdef int chunk, o, width, row, group, i, num, j, tap, r
    for chunk in range((o1 - o0 + 31) // 32):
        o = o0 + 32 * chunk
        width = 32 if o1 - o > LANES else LANES
        row = stride if stride > 0 else width
        group = o // outs
        if c.groups > 1 and (i0 // part != group or (i1 - 1) // part != group
                             or (min(o1, o + width) - 1) // outs != group):
            diagonal(piece, sums + chunk * sums_size, o, min(o1, o + width), rows_of, row)
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
            piece.loops.transpose_rows(sums + chunk * sums_size + j, index, num, min(LANES, o1 - o - j),
                                       piece.out + (<Py_ssize_t> (o + j) * part + i) * taps,
                                       <Py_ssize_t> part * taps, c.option)


cdef inline void tile_place(const Convolution *c, int n0, int tile, int *n, int *y, int *x) noexcept nogil:
    """The image of a tile of the gradient, and its first pixel."""
    cdef int side = c.side
    cdef int tiles_y = (c.source.height + side - 1) // side, tiles_x = (c.source.width + side - 1) // side
    n[0] = n0 + tile // (tiles_x * tiles_y)
    y[0] = tile // tiles_x % tiles_y * side
    x[0] = tile % tiles_x * side


cdef void transform_inputs(const Piece *piece, const WinogradWeightScratch *place, int first,
                           int count) noexcept nogil:
    """Inputs of `count` tiles of the gradient, from tile `first` on, to points; the next one comes from memory."""
    cdef int i, n, y, x_, soon_n, soon_y, soon_x
    cdef const Convolution *c = piece.c
    cdef const float *x = piece.x + piece.i0
    cdef Tile read
    for i in range(count):
        tile_place(c, piece.n0, first + i, &n, &y, &x_)
        tile_place(c, piece.n0, first + min(i + 1, count - 1), &soon_n, &soon_y, &soon_x)
        read = read_tile(&c.target, x, n, y - c.padding, x_ - c.padding, c.source.height - y + 2,
                         c.source.width - x_ + 2, c.side + 2, place.inputs, piece.scratch + place.patch)
        piece.winograd.input[c.side // 2 - 1](
            read.at, read.row, read.step, place.inputs,
            x + pixel(&c.target, soon_n, soon_y - c.padding, soon_x - c.padding)
            if read.row == row_size(&c.target) else NULL,
            piece.scratch + place.input + <Py_ssize_t> i * place.inputs, place.input_point)


cdef void transform_gradients(const Piece *piece, const WinogradWeightScratch *place, int first, int count, int o0,
                              int outs, int width) noexcept nogil:
    """Likewise `outs` channels of the gradient, from o0 on, in panels that make up `width` channels."""
    cdef int i, n, y, x, soon_n, soon_y, soon_x, o, panel
    cdef const Convolution *c = piece.c
    cdef const float *dy = piece.dy + o0
    cdef Tile read
    for i in range(count):
        tile_place(c, piece.n0, first + i, &n, &y, &x)
        tile_place(c, piece.n0, first + min(i + 1, count - 1), &soon_n, &soon_y, &soon_x)
        read = read_tile(&c.source, dy, n, y, x, c.source.height - y, c.source.width - x, c.side, outs,
                         piece.scratch + place.patch)
        o = 0
        while o < outs:
            panel = piece.winograd.panel if width - o >= piece.winograd.panel else 32
            piece.winograd.gradient[c.side // 2 - 1](
                read.at + o, read.row, read.step, min(panel, outs - o),
                dy + pixel(&c.source, soon_n, soon_y, soon_x) + o if read.row == row_size(&c.source) else NULL,
                piece.scratch + place.gradient + <Py_ssize_t> o * count + i * panel, place.gradient_point)
            o += panel


cdef void winograd_weight_piece(const Piece *piece) noexcept nogil:
    """Like weight_piece(), by products at Winograd's points: the gradient's tiles are the taps, weights the outputs.

    The inputs of a piece whose tiles are one strip are transformed once for all output channels."""
    cdef const Convolution *c = piece.c
    cdef int images = piece.n1 - piece.n0, o = piece.o0, outs, done, count
    cdef WinogradWeightScratch place = winograd_weight_scratch(c, images, piece.o1 - o, piece.i1 - piece.i0)
    cdef int side = c.side, which = side // 2 - 1
    cdef int total = images * ((c.source.height + side - 1) // side) * ((c.source.width + side - 1) // side)
    cdef float *weights = piece.scratch + place.gradient  # at the end
    cdef WinogradWeightTask t
    t.input = piece.scratch + place.input
    t.gradient = piece.scratch + place.gradient
    t.sums = piece.scratch + place.sums
    t.input_point, t.gradient_point, t.sums_point = place.input_point, place.gradient_point, place.sums_point
    t.points = place.points
    t.inputs = place.inputs
    while o < piece.o1:
        outs = min(piece.o1 - o, WEIGHT_OUTPUTS)
        t.outputs = (outs + 31) // 32 * 32
        done = 0
        while done < total:
            count = min(place.chunk, total - done)
            if o == piece.o0 or total > place.chunk:
                transform_inputs(piece, &place, done, count)
            transform_gradients(piece, &place, done, count, o, (outs + LANES - 1) // LANES * LANES, t.outputs)
            t.tiles = count
            t.add = done > 0
            piece.winograd.weight_products(&t)
            done += count
        piece.winograd.weights[which](t.sums, t.sums_point, t.inputs * t.outputs, weights,
                                      <Py_ssize_t> t.inputs * t.outputs)
        store_weights(piece, weights, 32, t.outputs, o, o + outs, t.inputs, 0)
        o += outs


cdef void sum_gradient(const Piece *piece) noexcept nogil:
    """bias[o] = sum of dY over images and pixels, added with `accumulate`."""
    cdef const NhwcMap *g = &piece.c.source
    cdef int o1 = piece.o1
    cdef float zero[LANES]
    cdef float total[LANES]
    cdef float unused[LANES]
    cdef int n, y, r, lane, o
    memset(zero, 0, sizeof(zero))
    for r in range((o1 - piece.o0 + LANES - 1) // LANES):
        o = piece.o0 + r * LANES
        memset(total, 0, sizeof(total))
        memset(unused, 0, sizeof(unused))
        for n in range(piece.n0, piece.n1):
            for y in range(g.height):
                piece.loops.shifted_sums(piece.dy + pixel(g, n, y, 0) + o, g.pitch, g.width, zero, total, unused)
        for lane in range(min(LANES, o1 - o)):
            piece.bias[o + lane] = piece.bias[o + lane] + total[lane] if piece.c.option else total[lane]


cdef void diagonal(const Piece *piece, const float *sums, int o0, int o1, int rows_of, int width) noexcept nogil:
    """Store the sums of inputs and outputs of the same group; those between groups are no weights."""
    cdef const Convolution *c = piece.c
    cdef int i0 = piece.i0, i1 = piece.i1
    cdef int taps = c.kernel * c.kernel, outs = c.source.channels // c.groups, part = c.target.channels // c.groups
    cdef int o, i, tap, group
    cdef float *p
    cdef float value
    for o in range(o0, o1):
        group = o // outs
        for i in range(max(i0, group * part), min(i1, (group + 1) * part)):
            for tap in range(taps):
                value = sums[(<Py_ssize_t> tap * rows_of + i - i0) * width + o - o0]
                p = piece.out + (<Py_ssize_t> o * part + i - group * part) * taps + tap
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
implement(KERNELS, "nhwc_conv_backward_weights", <uintptr_t> &conv_backward_weights,
          scratch_bytes=_weights_scratch)(backward_weights)
