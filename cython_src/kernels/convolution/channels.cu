/* Convolutions of the layout "channels": packing of weights, forward pass, data gradient, weight gradient. Formulas and
 * the order of packed weights: kernels/convolution/algorithms.py.
 *
 * All are matrix products whose left side is gathered while it is copied to shared memory: a CUDA block owns a tile of
 * the result, each of its threads TM x TN numbers of it, and walks along the sum in steps. Every number is the sum of its
 * products in one order, that of the taps and channels or of the pixels, whatever the tile: results do not depend on it. */

#include "cython_src/kernels/convolution/channels.cuh"
#include "cython_src/kernels/elementwise/activations.cuh"

/* Bounds: panels. Operands: weights (O, I / groups, k, k), panels (taps, K, 16). */
KERNEL(channels_conv_pack)
{
    const int *b = block_bounds(a);
    const int outs = a.integers[0], ins = a.integers[1], taps = a.integers[2] * a.integers[2], groups = a.integers[3];
    const bool data = a.integers[4] == 1;
    const int written = data ? ins : outs, read = data ? outs : ins, part = ins / groups;
    const float *weight = (const float *)a.operand[0];
    float *packed = (float *)a.operand[1];
    const int depth = panel_depth(written, read, groups);
    const unsigned size = taps * depth * LANES, total = (b[1] - b[0]) * size;
    for (unsigned i = thread_of_row(); i < total; i += threads_of_row()) {
        const int panel = b[0] + (int)(i / size), at = (int)(i % size), lane = at % LANES, tap = at / LANES / depth;
        const int to = panel * LANES + lane;
        const int from = panel_start(panel, depth, written, read, groups) + at / LANES % depth;
        float value = 0;
        if (to < written && from < read && to / (written / groups) == from / (read / groups))
            value = data ? weight[((long long)from * part + to % part) * taps + taps - 1 - tap]
                         : weight[((long long)to * part + from % part) * taps + tap];
        packed[(long long)panel * size + at] = value;
    }
}

/* Forward pass, and data gradient (DATA), whose outputs fall into stride x stride phases that meet taps of their own:
 * a tile lies within one. Bounds: images, rows, channels of the map that is written. */
template <int TM, int TN, bool DATA>
__device__ void channels_convolve(const GpuArgs &a)
{
    constexpr int ROWS = ROWS_16 * TM, COLUMNS = COLUMNS_8 * TN, PITCH = ROWS + 4;
    float *left = shared, *right = left + STEP * PITCH;      /* [STEP][PITCH]: inputs, [STEP][COLUMNS]: weights */
    long long *from = (long long *)(right + STEP * COLUMNS); /* [ROWS]: a pixel's first input, -1 past the last */
    long long *to = from + ROWS;                             /* [ROWS]: its output */
    const Geometry g = geometry_at(a.integers);
    const int *b = block_bounds(a);
    const float *input = (const float *)a.operand[0], *packed = (const float *)a.operand[1];
    const float *bias = DATA ? 0 : (const float *)a.operand[2];
    float *out = (float *)a.operand[DATA ? 2 : 3];
    const int end = channel_end(g.target, b[5]), step = DATA ? g.stride : 1;
    const int padding = DATA ? (g.kernel - 1) * g.dilation - g.padding : g.padding;
    const bool accumulate = DATA && g.option;
    if (!accumulate)
        clear_channel_halo(g.target, out, b[0], b[1], b[2], b[3], b[4], end);
    const int channel_tiles = divide_up(end - b[4], COLUMNS), width = divide_up(g.target.width, step);
    const int pixel_tiles = divide_up((b[1] - b[0]) * divide_up(b[3] - b[2], step) * width, ROWS);
    const int phase = (int)blockIdx.x / channel_tiles / pixel_tiles;
    if (phase >= step * step) /* the whole CUDA block: no barrier is missed */
        return;
    const int c0 = b[4] + (int)blockIdx.x % channel_tiles * COLUMNS;
    const int tile = (int)blockIdx.x / channel_tiles % pixel_tiles, ry = phase / step, rx = phase % step;
    const int first = divide_up(max(b[2] - ry, 0), step), rows = divide_up(max(b[3] - ry, 0), step) - first;
    const int columns = divide_up(max(g.target.width - rx, 0), step);
    const int items = (b[1] - b[0]) * rows * columns;
    for (int m = threadIdx.x; m < ROWS; m += THREADS) {
        const int item = tile * ROWS + m;
        from[m] = -1;
        if (item < items) {
            const int x = item % columns, y = first + item / columns % rows, n = b[0] + item / columns / rows;
            from[m] =
                DATA ? pixel(g.source, n, y, x) : pixel(g.source, n, y * g.stride - padding, x * g.stride - padding);
            to[m] = pixel(g.target, n, y * step + ry, x * step + rx);
        }
    }
    __syncthreads(); /* a phase may meet no tap, and no barrier below */
    const int depth = panel_depth(g.target.channels, g.source.channels, g.groups);
    const int start = panel_start(c0 / LANES, depth, g.target.channels, g.source.channels, g.groups);
    float sum[TM][TN];
#pragma unroll
    for (int i = 0; i < TM; i++)
#pragma unroll
        for (int j = 0; j < TN; j++)
            sum[i][j] = 0;
    for (int tap = 0; tap < g.kernel * g.kernel; tap++) {
        int y = tap / g.kernel * g.dilation, x = tap % g.kernel * g.dilation;
        if (DATA) {
            y += ry - padding;
            x += rx - padding;
            if (y % step || x % step)
                continue;
            y /= step;
            x /= step;
        }
        const long long offset = y * row_size(g.source) + (long long)x * g.source.pitch + start;
        for (int k0 = 0; k0 < depth; k0 += STEP) {
            const int count = min(STEP, depth - k0);
            __syncthreads();
#pragma unroll
            for (int i = threadIdx.x; i < STEP * ROWS; i += THREADS) {
                const int k = i % STEP, m = i / STEP;
                const long long at = from[m];
                left[k * PITCH + m] = at >= 0 && k < count ? input[at + offset + k0 + k] : 0;
            }
#pragma unroll
            for (int i = threadIdx.x; i < STEP * COLUMNS; i += THREADS) {
                const int lane = i % LANES, k = i / LANES % STEP, panel = i / LANES / STEP, c = c0 + panel * LANES;
                right[k * COLUMNS + panel * LANES + lane] =
                    c < end && k < count
                        ? packed[(((long long)(c / LANES) * g.kernel * g.kernel + tap) * depth + k0 + k) * LANES + lane]
                        : 0;
            }
            __syncthreads();
            multiply_step<TM, TN, PITCH, COLUMNS>(left, right, count, sum);
        }
    }
    const int row = threadIdx.x / COLUMNS_8, column = threadIdx.x % COLUMNS_8;
#pragma unroll
    for (int i = 0; i < TM; i++) {
        const int m = spread<TM>(row, ROWS_16, i);
        if (from[m] < 0)
            continue;
#pragma unroll
        for (int j = 0; j < TN; j++) {
            const int c = c0 + spread<TN>(column, COLUMNS_8, j);
            if (c >= end)
                continue;
            float *p = out + to[m] + c;
            if (DATA)
                *p = accumulate ? *p + sum[i][j] : sum[i][j];
            else
                *p = activate(sum[i][j] + (bias && c < b[5] ? bias[c] : 0), a.operand[5] ? 0 : g.option);
        }
    }
}

/* dW[o, i, tap] = sum over images and pixels of dY[o] X[i at the tap], in PyTorch's order (O, I / groups, k, k), into a
 * partial of its own. Rows of a tile are output channels of one group, its columns taps and their input channels. Bounds:
 * images, output channels, input channels (all of a group where there are several), partial. */
template <int TM, int TN>
__device__ void channels_weight_gradient(const GpuArgs &a)
{
    constexpr int ROWS = ROWS_16 * TM, COLUMNS = COLUMNS_8 * TN, PITCH = ROWS + 4;
    float *left = shared, *right = left + STEP * PITCH;        /* [STEP][PITCH]: dY, [STEP][COLUMNS]: X */
    long long *places = (long long *)(right + STEP * COLUMNS); /* [2][2][STEP]: pixels of this step and the next */
    long long *offsets = places + 4 * STEP;                    /* [COLUMNS]: of a tap's channel, -1 past the last */
    const Geometry g = geometry_at(a.integers);
    const ChannelsMap &dy = g.source, &in = g.target;
    const int *b = block_bounds(a);
    const float *gradient = (const float *)a.operand[0], *input = (const float *)a.operand[1];
    const int taps = g.kernel * g.kernel, outs = dy.channels / g.groups, part = in.channels / g.groups;
    const int i0 = g.groups == 1 ? b[4] : 0, inputs = (g.groups == 1 ? b[5] : part) - i0;
    const int column_tiles = divide_up(taps * inputs, COLUMNS);
    int tile = (int)blockIdx.x / column_tiles, group = 0, o0 = b[2] + tile * ROWS, o1 = b[3];
    if (g.groups > 1) {
        const int of_group = divide_up(outs, ROWS);
        group = b[2] / outs + tile / of_group;
        o0 = group * outs + tile % of_group * ROWS;
        o1 = min(o1, group * outs + outs);
    }
    o1 = min(o1, o0 + ROWS);
    if (o0 >= b[3] || o1 <= b[2]) /* the whole CUDA block: no barrier is missed */
        return;
    const int j0 = (int)blockIdx.x % column_tiles * COLUMNS;
    for (int j = threadIdx.x; j < COLUMNS; j += THREADS) {
        const int tap = (j0 + j) / inputs, i = (j0 + j) % inputs;
        offsets[j] = tap >= taps ? -1
                                 : tap / g.kernel * g.dilation * row_size(in) +
                                       (long long)tap % g.kernel * g.dilation * in.pitch + group * part + i0 + i;
    }
    const unsigned pixels = (b[1] - b[0]) * dy.height * dy.width;
    float sum[TM][TN];
#pragma unroll
    for (int i = 0; i < TM; i++)
#pragma unroll
        for (int j = 0; j < TN; j++)
            sum[i][j] = 0;
    for (unsigned p0 = 0, half = 0; p0 < pixels + STEP; p0 += STEP, half ^= 1) {
        /* Pixels of this step; those of the former one are multiplied below. */
        if (threadIdx.x < STEP && p0 < pixels) {
            const unsigned p = p0 + threadIdx.x;
            const int x = (int)(p % dy.width), y = (int)(p / dy.width % dy.height),
                      n = b[0] + (int)(p / dy.width / dy.height);
            places[(2 * half) * STEP + threadIdx.x] = p < pixels ? pixel(dy, n, y, x) : -1;
            places[(2 * half + 1) * STEP + threadIdx.x] =
                pixel(in, n, y * g.stride - g.padding, x * g.stride - g.padding);
        }
        if (p0 > 0)
            multiply_step<TM, TN, PITCH, COLUMNS>(left, right, STEP, sum);
        __syncthreads();
        if (p0 >= pixels)
            break;
#pragma unroll
        for (int i = threadIdx.x; i < STEP * ROWS; i += THREADS) {
            const int o = o0 + i % ROWS;
            const long long at = places[2 * half * STEP + i / ROWS];
            left[i / ROWS * PITCH + i % ROWS] = at >= 0 && o >= b[2] && o < o1 ? gradient[at + o] : 0;
        }
#pragma unroll
        for (int i = threadIdx.x; i < STEP * COLUMNS; i += THREADS) {
            const long long at = offsets[i % COLUMNS];
            const bool there = at >= 0 && places[2 * half * STEP + i / COLUMNS] >= 0;
            right[i] = there ? input[places[(2 * half + 1) * STEP + i / COLUMNS] + at] : 0;
        }
        __syncthreads();
    }
    float *out = (float *)a.operand[2] + (long long)b[6] * dy.channels * part * taps;
    const int row = threadIdx.x / COLUMNS_8, column = threadIdx.x % COLUMNS_8;
#pragma unroll
    for (int i = 0; i < TM; i++) {
        const int o = o0 + spread<TM>(row, ROWS_16, i);
        if (o < b[2] || o >= o1)
            continue;
#pragma unroll
        for (int j = 0; j < TN; j++) {
            const int at = j0 + spread<TN>(column, COLUMNS_8, j), tap = at / inputs;
            if (tap >= taps)
                continue;
            float *p = out + ((long long)o * part + i0 + at % inputs) * taps + tap;
            *p = g.option ? *p + sum[i][j] : sum[i][j];
        }
    }
}

/* db[o] = sum of dY over images and pixels; bounds of the weight gradient, for blocks that begin at input channel 0. */
KERNEL(channels_conv_bias_gradient)
{
    const ChannelsMap dy = channel_map_at(a.integers);
    const int *b = block_bounds(a), o = b[2] + (int)blockIdx.x * STRIP_CHANNELS + (int)threadIdx.x % STRIP_CHANNELS;
    if (b[4] != 0 || b[2] + (int)blockIdx.x * STRIP_CHANNELS >= b[3])
        return;
    const float *gradient = (const float *)a.operand[0];
    const unsigned pixels = (b[1] - b[0]) * dy.height * dy.width;
    float sum = 0;
    if (o < b[3])
        for (unsigned p = threadIdx.x / STRIP_CHANNELS; p < pixels; p += STRIPS)
            sum += gradient[pixel(dy, b[0] + (int)(p / dy.width / dy.height), (int)(p / dy.width % dy.height),
                                  (int)(p % dy.width)) +
                            o];
    sum = sum_strips(shared, sum);
    if (threadIdx.x < STRIP_CHANNELS && o < b[3]) {
        float *p = (float *)a.operand[3] + (long long)b[6] * dy.channels + o;
        *p = a.integers[16] ? *p + sum : sum;
    }
}

/* What cuBLAS leaves of a forward pass: bias and activation, by channels of the map. Bounds: images, rows, channels. */
KERNEL(channels_conv_bias)
{
    const ChannelsMap m = channel_map_at(a.integers + 5);
    const int *b = block_bounds(a), activation = a.operand[5] ? 0 : a.integers[16];
    const float *bias = (const float *)a.operand[2];
    float *out = (float *)a.operand[3];
    for_channels(m, b, b[4], channel_end(m, b[5]), 1, [&](int n, int y, int x, int c) {
        float *p = out + pixel(m, n, y, x) + c;
        *p = activate(*p + (bias && c < b[5] ? bias[c] : 0), activation);
    });
}

/* After a forward pass: the shortcut of a residual block, a map of the result's geometry, and the activation that the
 * convolution left to it. Bounds: images, rows, channels. */
KERNEL(channels_conv_residual)
{
    const ChannelsMap m = channel_map_at(a.integers + 5);
    const int *b = block_bounds(a), activation = a.integers[16];
    const float *residual = (const float *)a.operand[5];
    float *out = (float *)a.operand[3];
    for_channels(m, b, b[4], channel_end(m, b[5]), 1, [&](int n, int y, int x, int c) {
        const long long at = pixel(m, n, y, x) + c;
        out[at] = activate(out[at] + residual[at], activation);
    });
}

#define NHWC_CONVOLUTIONS(tm, tn)                   \
    KERNEL(channels_conv_forward_##tm##x##tn)       \
    {                                               \
        channels_convolve<tm, tn, false>(a);        \
    }                                               \
    KERNEL(channels_conv_backward_data_##tm##x##tn) \
    {                                               \
        channels_convolve<tm, tn, true>(a);         \
    }
NHWC_CONVOLUTIONS(8, 8)
NHWC_CONVOLUTIONS(4, 4)
NHWC_CONVOLUTIONS(4, 2)

KERNEL(channels_conv_backward_weights_8x8)
{
    channels_weight_gradient<8, 8>(a);
}
KERNEL(channels_conv_backward_weights_4x4)
{
    channels_weight_gradient<4, 4>(a);
}
