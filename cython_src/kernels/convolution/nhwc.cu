/* Convolutions of the layout "nhwc": packing of weights, forward pass, data gradient, weight gradient. Formulas and
 * the order of packed weights: kernels/convolution/algorithms.py.
 *
 * All are matrix products whose left side is gathered while it is copied to shared memory: a CUDA block owns a tile of
 * the result and walks along the sum in steps, in the order of the taps and channels or of the pixels. */

#include "cython_src/kernels/convolution/grid_sizes.cuh" /* PACKED_AT_ONCE, written from SIZES of grids.py */
#include "cython_src/kernels/elementwise/activations.cuh"
#include "cython_src/kernels/linear/tiles.cuh"
#include "cython_src/kernels/maps/nhwc.cuh"

/* How many channels a panel of sixteen written channels sums over, the same for all panels, and the first of them; as
 * algorithms.panel_inputs(). */
__device__ inline int panel_depth(int written, int read, int groups)
{
    const int part = written / groups;
    int count = read;
    if (groups > 1) {
        count = 0;
        for (int c = 0; c < written; c += LANES)
            count = max(count, (min(written, c + LANES) - 1) / part + 1 - c / part);
        count *= read / groups;
    }
    return max(4, count);
}

__device__ inline int panel_start(int panel, int depth, int written, int read, int groups)
{
    return max(0, min(LANES * panel / (written / groups) * (read / groups), read - depth));
}

/* A CUDA block takes some inputs of a panel, all taps: threads read along the weights, and write along the panel.
 * Bounds: panels. Operands: weights (O, I / groups, k, k), panels (taps, K, 16). */
KERNEL_MANY(nhwc_conv_pack)
{
    constexpr int PITCH = LANES + 1; /* threads that read along the taps then write to different banks */
    const auto &b = block_bounds(a);
    const int ins = a.in_channels, taps = a.kernel * a.kernel, groups = a.groups;
    const bool data = a.direction == 1;
    const int written = data ? ins : a.out_channels, read = data ? a.out_channels : ins, part = ins / groups;
    const int depth = panel_depth(written, read, groups);
    const int inputs = max(1, PACKED_AT_ONCE / taps), pieces = divide_up(depth, inputs);
    for (int piece = tile_of_row(a); piece < (b.o1 - b.o0) * pieces; piece += tiles_of_row(a)) {
        const int panel = b.o0 + piece / pieces, k0 = piece % pieces * inputs, count = min(inputs, depth - k0);
        const int first = panel_start(panel, depth, written, read, groups) + k0;
        __syncthreads();
        for (int i = threadIdx.x; i < LANES * count * taps; i += THREADS) {
            const int tap = i % taps, lane = data ? i / taps % LANES : i / taps / count;
            const int k = data ? i / taps / LANES : i / taps % count, to = panel * LANES + lane, from = first + k;
            float value = 0;
            if (to < written && from < read && to / (written / groups) == from / (read / groups))
                value = data ? a.weight[((long long)from * part + to % part) * taps + tap]
                             : a.weight[((long long)to * part + from % part) * taps + tap];
            shared[((data ? taps - 1 - tap : tap) * count + k) * PITCH + lane] = value;
        }
        __syncthreads();
        for (int i = threadIdx.x; i < LANES * count * taps; i += THREADS) {
            const int lane = i % LANES, row = i / LANES; /* of tap and input */
            a.packed[(((long long)panel * taps + row / count) * depth + k0 + row % count) * LANES + lane] =
                shared[row * PITCH + lane];
        }
    }
}

/* Forward pass, whose `option` is the activation (with a shortcut that comes later), and data gradient (DATA), whose `option` is to accumulate, whose outputs fall into stride x stride phases that meet taps of their own:
 * a tile lies within one. Bounds: images, rows, channels of the map that is written. */
template <int TM, int TN, bool DATA, typename Args>
__device__ void nhwc_convolve(const Args &a, const float *input, const float *bias, int option)
{
    typedef Tile<TM, TN, true, false> Sums; /* of inputs and packed weights */
    constexpr int ROWS = Sums::ROWS, COLUMNS = Sums::COLUMNS;
    long long *from = (long long *)(shared + Sums::FLOATS); /* [ROWS]: a pixel's first input */
    long long *to = from + ROWS;                            /* [ROWS]: its output, negative past the last pixel */
    const Geometry &g = a.geometry;
    const NhwcMap &source = a.in_map, &target = a.out_map;
    const auto &b = block_bounds(a);
    const int end = channel_end(target, b.c1), step = DATA ? g.stride : 1;
    const int padding = DATA ? (g.kernel - 1) * g.dilation - g.padding : g.padding;
    const bool accumulate = DATA && option;
    if (!accumulate)
        clear_channel_halo(target, a.output, b.n0, b.n1, b.y0, b.y1, b.c0, end);
    const int channel_tiles = divide_up(end - b.c0, COLUMNS), width = divide_up(target.width, step);
    const int pixel_tiles = divide_up((b.n1 - b.n0) * divide_up(b.y1 - b.y0, step) * width, ROWS);
    const int index = (int)blockIdx.x / a.parts, phase = index / channel_tiles / pixel_tiles;
    if (phase >= step * step) /* the whole CUDA block: no barrier is missed */
        return;
    const int c0 = b.c0 + index % channel_tiles * COLUMNS;
    const int tile = index / channel_tiles % pixel_tiles, ry = phase / step, rx = phase % step;
    const int first = divide_up(max(b.y0 - ry, 0), step), rows = divide_up(max(b.y1 - ry, 0), step) - first;
    const int columns = divide_up(max(target.width - rx, 0), step);
    const int items = (b.n1 - b.n0) * rows * columns - tile * ROWS; /* of this tile and those after it */
    if (items <= 0)                                                 /* the whole CUDA block */
        return;
    const int depth = panel_depth(target.channels, source.channels, g.groups);
    const int start = panel_start(c0 / LANES, depth, target.channels, source.channels, g.groups);
    const bool wide = (start | depth) % 4 == 0;
    for (int m = threadIdx.x; m < ROWS; m += THREADS) {
        const int item = tile * ROWS + min(m, items - 1);
        const int x = item % columns, y = first + item / columns % rows, n = b.n0 + item / columns / rows;
        from[m] =
            start + (DATA ? pixel(source, n, y, x) : pixel(source, n, y * g.stride - padding, x * g.stride - padding));
        to[m] = m < items ? pixel(target, n, y * step + ry, x * step + rx) : NOWHERE;
    }
    Sums sums;
    const Terms terms(a, depth); /* of each tap */
    int tap = -1, k0 = terms.stop - STEP;
    long long offset = 0;
    sums.add(shared, [&](float *left, float *right) {
        k0 += STEP;
        while (k0 >= terms.stop) { /* the next tap that the phase meets; there may be none */
            if (++tap == g.kernel * g.kernel)
                return 0;
            int y = tap / g.kernel * g.dilation, x = tap % g.kernel * g.dilation;
            if (DATA) {
                y += ry - padding;
                x += rx - padding;
                if (y % step || x % step)
                    continue;
                y /= step;
                x /= step;
            }
            offset = y * row_size(source) + (long long)x * source.pitch;
            k0 = terms.start;
        }
        const int count = min(STEP, terms.stop - k0);
        const auto input_at = [&](int m, int k) { return from[m] + (k < count ? offset + k0 + k : NOWHERE); };
        const auto weight_at = [&](int i, int k) {
            const int c = c0 + i / LANES * LANES;
            const long long first =
                (((long long)(c / LANES) * g.kernel * g.kernel + tap) * depth + k0) * LANES + i % LANES;
            return c < end && k < count ? first + k * LANES : NOWHERE;
        };
        Sums::Right::copy(a.packed, true, weight_at, right);
        Sums::Left::copy(input, wide, input_at, left);
        return count;
    });
    if (!join_parts(a, (int *)shared, sums.sum))
        return;
    sums.each([&](int m, int column, float value) {
        const int c = c0 + column;
        if (to[m] >= 0 && c < end)
            put(a.output + to[m] + c, DATA ? value : activate(value + (bias && c < b.c1 ? bias[c] : 0), option),
                accumulate);
    });
}

/* dW[o, i, tap] = sum over images and pixels of dY[o] X[i at the tap], in PyTorch's order (O, I / groups, k, k), into a
 * partial of its own. Rows of a tile are output channels of one group, its columns taps and their input channels. Bounds:
 * images, output channels, input channels (all of a group where there are several), partial. */
template <int TM, int TN, typename Args>
__device__ void nhwc_weight_gradient(const Args &a)
{
    typedef Tile<TM, TN, false, false> Sums; /* of dY and X */
    constexpr int ROWS = Sums::ROWS, COLUMNS = Sums::COLUMNS;
    long long *places = (long long *)(shared + Sums::FLOATS); /* [2][2][THREADS]: pixels of these steps and the next */
    long long *offsets = places + 4 * THREADS;                /* [COLUMNS]: of a tap's channel */
    const Geometry &g = a.geometry;
    const NhwcMap &dy = a.dy_map, &in = a.in_map;
    const auto &b = block_bounds(a);
    const int taps = g.kernel * g.kernel, outs = dy.channels / g.groups, part = in.channels / g.groups;
    const int i0 = g.groups == 1 ? b.i0 : 0, inputs = (g.groups == 1 ? b.i1 : part) - i0;
    const int column_tiles = divide_up(taps * inputs, COLUMNS);
    int tile = (int)blockIdx.x / a.parts / column_tiles, group = 0, o0 = b.o0 + tile * ROWS, o1 = b.o1;
    if (g.groups > 1) {
        const int of_group = divide_up(outs, ROWS);
        group = b.o0 / outs + tile / of_group;
        o0 = group * outs + tile % of_group * ROWS;
        o1 = min(o1, group * outs + outs);
    }
    o1 = min(o1, o0 + ROWS);
    if (o0 >= b.o1 || o1 <= b.o0) /* the whole CUDA block: no barrier is missed */
        return;
    const int j0 = (int)blockIdx.x / a.parts % column_tiles * COLUMNS;
    for (int j = threadIdx.x; j < COLUMNS; j += THREADS) {
        const int tap = (j0 + j) / inputs, i = (j0 + j) % inputs;
        offsets[j] = tap >= taps ? NOWHERE
                                 : tap / g.kernel * g.dilation * row_size(in) +
                                       (long long)tap % g.kernel * g.dilation * in.pitch + group * part + i0 + i;
    }
    const Terms pixels(a, (b.n1 - b.n0) * dy.height * dy.width);
    const auto place = [&](int first,
                           int half) { /* a pixel a thread, for as many steps as that is enough for */
                                       const int p = first + (int)threadIdx.x, x = p % dy.width, row = p / dy.width;
                                       const int y = row % dy.height, n = b.n0 + row / dy.height;
                                       long long *const mine = places + 2 * half * THREADS + threadIdx.x;
                                       mine[0] = p < pixels.stop ? pixel(dy, n, y, x) : NOWHERE;
                                       mine[THREADS] = p < pixels.stop ? pixel(in, n, y * g.stride - g.padding,
                                                                               x * g.stride - g.padding)
                                                                       : NOWHERE;
    };
    place(pixels.start, 0);
    /* Numbers that lie side by side are copied by fours where a pixel's are: past o1 lie others, or padding, whose sums
     * nobody takes. */
    const bool wide_left = o0 % 4 == 0, wide_right = inputs % 4 == 0 && (group * part + i0) % 4 == 0;
    Sums sums;
    int p0 = pixels.start;
    sums.add(shared, [&](float *left, float *right) {
        if (p0 >= pixels.stop)
            return 0;
        const int done = p0 - pixels.start, half = done / THREADS % 2;
        const long long *from = places + 2 * half * THREADS + done % THREADS, *to = from + THREADS; /* of dY and X */
        const auto gradient_at = [&](int i, int k) { return from[k] + (o0 + i < o1 ? o0 + i : NOWHERE); };
        const auto input_at = [&](int i, int k) { return to[k] + offsets[i]; };
        Sums::Left::copy(a.gradient, wide_left, gradient_at, left);
        Sums::Right::copy(a.input, wide_right, input_at, right);
        if (done % THREADS == 0) /* pixels of the next steps */
            place(p0 + THREADS, 1 - half);
        p0 += STEP;
        return STEP;
    });
    if (!join_parts(a, (int *)shared, sums.sum))
        return;
    float *out = a.output + (long long)b.partial * dy.channels * part * taps;
    sums.each([&](int row, int column, float value) {
        const int o = o0 + row, at = j0 + column, tap = at / inputs;
        if (o >= b.o0 && o < o1 && tap < taps)
            put(out + ((long long)o * part + i0 + at % inputs) * taps + tap, value, a.accumulate);
    });
}

/* db[o] = sum of dY over images and pixels; bounds of the weight gradient, for blocks that begin at input channel 0. */
KERNEL_OF(nhwc_conv_bias_gradient, nhwc_conv_backward_weights)
{
    const NhwcMap dy = a.dy_map;
    const auto &b = block_bounds(a);
    const int o = b.o0 + (int)blockIdx.x * STRIP_CHANNELS + (int)threadIdx.x % STRIP_CHANNELS;
    if (b.i0 != 0 || b.o0 + (int)blockIdx.x * STRIP_CHANNELS >= b.o1)
        return;
    float sum = 0;
    if (o < b.o1)
        for_strip(
            dy, b.n0, b.n1, 0, dy.height, [&](int n, int y, int x) { return a.gradient[pixel(dy, n, y, x) + o]; },
            [&](float g) { sum += g; });
    sum = sum_strips(shared, sum);
    if (threadIdx.x < STRIP_CHANNELS && o < b.o1)
        put(a.bias_output + (long long)b.partial * dy.channels + o, sum, a.accumulate);
}

/* After a forward pass: the shortcut of a residual block, a map of the result's geometry, and the activation that the
 * convolution left to it. Bounds: images, rows, channels. */
KERNEL_OF(nhwc_conv_residual, nhwc_conv_forward)
{
    const NhwcMap m = a.out_map;
    const auto &b = block_bounds(a);
    for_channels(m, b, b.c0, channel_end(m, b.c1), 1, [&](int n, int y, int x, int c) {
        const long long at = pixel(m, n, y, x) + c;
        a.output[at] = activate(a.output[at] + a.residual[at], a.activation);
    });
}

#define NHWC_CONVOLUTIONS(tm, tn)                                                        \
    KERNEL_OF(nhwc_conv_forward_##tm##x##tn, nhwc_conv_forward)                          \
    {                                                                                    \
        nhwc_convolve<tm, tn, false>(a, a.input, a.bias, a.residual ? 0 : a.activation); \
    }                                                                                    \
    KERNEL_OF(nhwc_conv_backward_data_##tm##x##tn, nhwc_conv_backward_data)              \
    {                                                                                    \
        nhwc_convolve<tm, tn, true>(a, a.gradient, 0, a.accumulate);                     \
    }                                                                                    \
    KERNEL_OF(nhwc_conv_backward_weights_##tm##x##tn, nhwc_conv_backward_weights)        \
    {                                                                                    \
        nhwc_weight_gradient<tm, tn>(a);                                                 \
    }
FOR_TILES(NHWC_CONVOLUTIONS)
