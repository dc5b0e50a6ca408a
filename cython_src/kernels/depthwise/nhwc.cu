/* Depthwise convolution of the layout "nhwc": kernels/depthwise/depthwise.pyx. What lies outside a map counts as zero. */

#include "cython_src/kernels/depthwise/grid_sizes.cuh" /* FORWARD_EDGE and others, written from SIZES of grids.py */
#include "cython_src/kernels/elementwise/activations.cuh"
#include "cython_src/kernels/maps/nhwc.cuh"

/* What a convolution reads: a map, or activation(scale map + shift). */
struct Source {
    const float *map, *scale, *shift;
    int activation;
};

/* What it reads at place (y, x), which may lie outside of the map. */
__device__ inline float read_source(const NhwcMap &m, const Source &s, int n, int y, int x, int c)
{
    if (y < 0 || y >= m.height || x < 0 || x >= m.width)
        return 0;
    const float z = s.map[pixel(m, n, y, x) + c];
    return s.scale ? activate(s.scale[c] * z + s.shift[c], s.activation) : z;
}

/* A number of a tile in shared memory. */
struct At {
    float value;
    int y, x;
};

/* A CUDA block takes a tile of the result and NORM_CHANNELS channels. Its input is computed once and lies in shared memory.
 * KERNEL: of the window; 0: any. Bounds: images, rows, channels. */
template <int KERNEL, typename Args>
__device__ inline void depthwise_forward(const Args &a, const Source &source)
{
    const auto &b = block_bounds(a);
    const NhwcMap in = a.in_map, out = a.out_map;
    const int kernel = KERNEL ? KERNEL : a.window.kernel, stride = a.window.stride, taps = kernel * kernel;
    int edge = FORWARD_EDGE;
    const auto span = [&]() { return (edge - 1) * stride + kernel; };
    while (span() * span() > FORWARD_PIXELS)
        edge /= 2;
    const int end = channel_end(out, b.c1), strips = divide_up(end - b.c0, NORM_CHANNELS);
    const int down = divide_up(b.y1 - b.y0, edge), right = divide_up(out.width, edge);
    const int tile = (int)blockIdx.x / strips, n = b.n0 + tile / right / down;
    const int y0 = b.y0 + tile / right % down * edge, x0 = tile % right * edge;
    const int lane = (int)threadIdx.x % NORM_CHANNELS, c = b.c0 + (int)blockIdx.x % strips * NORM_CHANNELS + lane;
    clear_channel_halo(out, a.output, b.n0, b.n1, b.y0, b.y1, b.c0, end);
    if (n >= b.n1) /* the whole CUDA block: no barrier is missed */
        return;
    NhwcMap staged = in;
    staged.height = staged.width = span();
    if (c < b.c1)
        for_strip<NORM_CHANNELS>(
            staged, 0, 1, 0, staged.height,
            [&](int, int y, int x) {
                const int top = y0 * stride - a.window.padding, left = x0 * stride - a.window.padding;
                return At{read_source(in, source, n, top + y, left + x, c), y, x};
            },
            [&](const At &at) { shared[(at.y * staged.width + at.x) * NORM_CHANNELS + lane] = at.value; });
    float weight[KERNEL ? KERNEL * KERNEL : 1];
    for (int tap = 0; KERNEL && tap < taps; tap++)
        weight[tap] = c < b.c1 ? a.weight[(long long)c * taps + tap] : 0;
    const float bias = a.bias && c < b.c1 ? a.bias[c] : 0;
    __syncthreads();
    for (int p = (int)threadIdx.x / NORM_CHANNELS; p < edge * edge && c < end; p += THREADS / NORM_CHANNELS) {
        const int y = p / edge, x = p % edge;
        if (y0 + y >= b.y1 || x0 + x >= out.width)
            continue;
        const float *const from = shared + (y * staged.width + x) * stride * NORM_CHANNELS + lane;
        float sum = 0;
        if (c < b.c1) {
#pragma unroll
            for (int tap = 0; tap < taps; tap++)
                sum += (KERNEL ? weight[tap] : a.weight[(long long)c * taps + tap]) *
                       from[(tap / kernel * staged.width + tap % kernel) * NORM_CHANNELS];
            sum = activate(sum + bias, a.activation);
        }
        a.output[pixel(out, n, y0 + y, x0 + x) + c] = sum;
    }
}

KERNEL(nhwc_depthwise_forward)
{
    depthwise_forward<0>(a, Source{a.input, 0, 0, 0});
}

KERNEL(nhwc_norm_depthwise)
{
    depthwise_forward<0>(a, Source{a.input, a.input_scale, a.input_shift, a.input_activation});
}

/* Windows of 3 x 3. */
KERNEL_OF(nhwc_depthwise_forward_3, nhwc_depthwise_forward)
{
    depthwise_forward<3>(a, Source{a.input, 0, 0, 0});
}

KERNEL_OF(nhwc_norm_depthwise_3, nhwc_norm_depthwise)
{
    depthwise_forward<3>(a, Source{a.input, a.input_scale, a.input_shift, a.input_activation});
}

/* Bounds: images, rows of the input's gradient, channels. */
KERNEL(nhwc_depthwise_backward_data)
{
    const NhwcMap m = a.in_map;
    const Window w = a.window;
    const auto &b = block_bounds(a);
    const int end = channel_end(a.out_map, b.c1);
    if (!a.accumulate)
        clear_channel_halo(a.out_map, a.output, b.n0, b.n1, b.y0, b.y1, b.c0, end);
    for_channels(a.out_map, b, b.c0, end, 1, [&](int n, int y, int x, int c) {
        float sum = 0;
        for (int tap = 0; tap < w.kernel * w.kernel && c < b.c1; tap++) {
            const int down = y + w.padding - tap / w.kernel, right = x + w.padding - tap % w.kernel;
            const int yy = down / w.stride, xx = right / w.stride;
            if (down >= 0 && right >= 0 && yy * w.stride == down && xx * w.stride == right && yy < m.height &&
                xx < m.width)
                sum += a.weight[(long long)c * w.kernel * w.kernel + tap] * a.gradient[pixel(m, n, yy, xx) + c];
        }
        put(a.output + pixel(a.out_map, n, y, x) + c, sum, a.accumulate);
    });
}

/* A CUDA block for STRIP_CHANNELS channels and a tap, or the bias after the last tap; its threads are strips of pixels,
 * added by a tree. Bounds: images, rows of dY, channels, partial. */
KERNEL(nhwc_depthwise_backward_weights)
{
    const auto &b = block_bounds(a);
    const Window w = a.window;
    const int taps = w.kernel * w.kernel, tap = (int)blockIdx.x % (taps + 1);
    const int c0 = b.c0 + (int)blockIdx.x / (taps + 1) * STRIP_CHANNELS, c = c0 + (int)threadIdx.x % STRIP_CHANNELS;
    if (c0 >= b.c1 || (tap == taps && !a.bias_output))
        return;
    const Source source = {a.input, 0, 0, 0};
    float sum = 0;
    if (c < b.c1)
        for_strip(
            a.gradient_map, b.n0, b.n1, b.y0, b.y1,
            [&](int n, int y, int x) {
                const float g = a.gradient[pixel(a.gradient_map, n, y, x) + c];
                const int down = y * w.stride - w.padding + tap / w.kernel;
                const int right = x * w.stride - w.padding + tap % w.kernel;
                return tap == taps ? g : g * read_source(a.in_map, source, n, down, right, c);
            },
            [&](float product) { sum += product; });
    sum = sum_strips(shared, sum);
    if (threadIdx.x < STRIP_CHANNELS && c < b.c1) {
        const long long channel = (long long)b.partial * a.gradient_map.channels + c;
        put(tap == taps ? a.bias_output + channel : a.output + channel * taps + tap, sum, a.accumulate);
    }
}

/* ---- backward, with the norm after the convolution: the gradients of input and weights, and the sums of the norm before
 * (kernels/norm/nhwc.cu) ---- */

/* A CUDA block takes STRIP_CHANNELS channels, which divide those of a plan's block, and TAPS_AT_ONCE taps; all but the weights
 * of other taps is done beside the first ones. Its threads are strips of the input's pixels, each of which is read once.
 * The result's gradient is computed once and lies in shared memory, tile by tile. KERNEL, STRIDE: of the window; 0: any,
 * and the result's gradient is computed wherever it is read. */
template <int KERNEL, int STRIDE, typename Args>
__device__ inline void depthwise_norm_backward(const Args &a)
{
    constexpr int COLUMNS = TILE_COLUMNS + KERNEL - 1, RESULTS = TAPS_AT_ONCE + 2, PITCH = THREADS + STRIP_CHANNELS;
    const auto &b = block_bounds(a);
    const NhwcMap large = a.in_map, small = a.out_map, target = with_halo(large, a.output_halo);
    const NhwcMap behind = with_halo(small, a.gradient_halo);
    const int kernel = KERNEL ? KERNEL : a.window.kernel, stride = STRIDE ? STRIDE : a.window.stride;
    const int taps = kernel * kernel, groups = divide_up(taps, TAPS_AT_ONCE), padding = a.window.padding;
    const int first = (int)blockIdx.x % groups * TAPS_AT_ONCE, c0 = b.c0 + (int)blockIdx.x / groups * STRIP_CHANNELS;
    const int lane = (int)threadIdx.x % STRIP_CHANNELS, c = c0 + lane, end = channel_end(large, b.c1);
    clear_channel_halo(target, a.output, b.n0, b.n1, 0, large.height, b.c0, end);
    if (c0 >= end)
        return;
    const float scale = a.scale[c], shift = a.shift[c], mean = a.mean[c], factor = a.coefficients[c];
    const float slope = a.coefficients[small.pitch + c], offset = a.coefficients[2 * small.pitch + c];
    const bool normed = a.input_scale; /* the input, else it is taken as it is */
    const float in_scale = normed ? a.input_scale[c] : 1, in_shift = normed ? a.input_shift[c] : 0;
    const float in_mean = normed ? a.input_mean[c] : 0, in_inv_std = normed ? a.input_inv_std[c] : 1;
    float weight[TAPS_AT_ONCE], sums[RESULTS] = {}; /* gradients of weights, and the two of the norm before */
#pragma unroll
    for (int i = 0; i < TAPS_AT_ONCE; i++)
        weight[i] = c < b.c1 && first + i < taps ? a.weight[(long long)c * taps + first + i] : 0;

    for (int n = b.n0; n < b.n1; n++) {
        const auto result_gradient = [&](int y, int x) {
            if (y < 0 || y >= small.height || x < 0 || x >= small.width)
                return 0.0f;
            const float z = a.result[pixel(small, n, y, x) + c], g = a.gradient[pixel(behind, n, y, x) + c];
            return factor * (passes(scale * z + shift, a.activation) ? g : 0) + (slope * (z - mean) + offset);
        };
        for (int y0 = 0; y0 < large.height; y0 += TILE_ROWS * stride)
            for (int x0 = 0; x0 < large.width; x0 += TILE_COLUMNS * stride) {
                NhwcMap tile = large, staged = small;
                tile.height = min(TILE_ROWS * stride, large.height - y0);
                tile.width = min(TILE_COLUMNS * stride, large.width - x0);
                /* The result's first row and column whose windows may reach the tile: rounded down, below 0 too. */
                const int down = y0 + padding, top = (down + 1 - kernel + kernel * stride) / stride - kernel;
                const int right = x0 + padding, left = (right + 1 - kernel + kernel * stride) / stride - kernel;
                if (KERNEL) {
                    staged.height = (down + tile.height - 1) / stride - top + 1;
                    staged.width = (right + tile.width - 1) / stride - left + 1;
                    __syncthreads();
                    for_strip<STRIP_CHANNELS, LOADS / 2>(
                        staged, 0, 1, 0, staged.height,
                        [&](int, int y, int x) { return At{result_gradient(top + y, left + x), y, x}; },
                        [&](const At &at) { shared[(at.y * COLUMNS + at.x) * STRIP_CHANNELS + lane] = at.value; });
                    __syncthreads();
                }
                /* What a tap of the window takes to place (y, x) of the tile. */
                const auto gradient = [&](int tap, int y, int x) {
                    y += down - top * stride - tap / kernel;
                    x += right - left * stride - tap % kernel;
                    if (y % stride || x % stride)
                        return 0.0f;
                    return KERNEL ? shared[(y / stride * COLUMNS + x / stride) * STRIP_CHANNELS + lane]
                                  : result_gradient(top + y / stride, left + x / stride);
                };
                for_strip<STRIP_CHANNELS, LOADS / 4>(
                    tile, 0, 1, 0, tile.height,
                    [&](int, int y, int x) { return At{a.input[pixel(large, n, y0 + y, x0 + x) + c], y, x}; },
                    [&](const At &at) {
                        const float argument = in_scale * at.value + in_shift;
                        const float x = activate(argument, a.input_activation);
                        float dx = 0;
#pragma unroll
                        for (int i = 0; i < TAPS_AT_ONCE; i++)
                            if (KERNEL || first + i < taps) {
                                const float g = gradient(first + i, at.y, at.x);
                                sums[i] += x * g;
                                dx += weight[i] * g;
                            }
                        for (int tap = TAPS_AT_ONCE; first == 0 && tap < taps && c < b.c1; tap++)
                            dx += a.weight[(long long)c * taps + tap] * gradient(tap, at.y, at.x);
                        if (first == 0)
                            a.output[pixel(target, n, y0 + at.y, x0 + at.x) + c] = dx;
                        const float g = passes(argument, a.input_activation) ? dx : 0;
                        sums[TAPS_AT_ONCE] += g;
                        sums[TAPS_AT_ONCE + 1] += g * ((at.value - in_mean) * in_inv_std);
                    });
            }
    }
    /* A thread adds up the strips of one of the sums of a channel; sums lie in different banks of shared memory. */
    __syncthreads();
#pragma unroll
    for (int i = 0; i < RESULTS; i++)
        shared[i * PITCH + threadIdx.x] = sums[i];
    __syncthreads();
    const int i = (int)threadIdx.x / STRIP_CHANNELS;
    float sum = 0;
    for (int strip = 0; i < RESULTS && strip < STRIPS; strip++)
        sum += shared[i * PITCH + strip * STRIP_CHANNELS + lane];
    if (i < TAPS_AT_ONCE && first + i < taps && c < b.c1)
        a.weight_partials[((long long)b.partial * small.channels + c) * taps + first + i] = sum;
    if (i >= TAPS_AT_ONCE && i < RESULTS && first == 0 && a.statistics)
        a.statistics[((long long)b.partial * 2 + i - TAPS_AT_ONCE) * large.pitch + c] = sum;
}

/* Bounds: images, channels, partial. */
KERNEL(nhwc_depthwise_norm_backward)
{
    depthwise_norm_backward<0, 0>(a);
}

/* Windows of 3 x 3, by their stride. */
KERNEL_OF(nhwc_depthwise_norm_backward_1, nhwc_depthwise_norm_backward)
{
    depthwise_norm_backward<3, 1>(a);
}
KERNEL_OF(nhwc_depthwise_norm_backward_2, nhwc_depthwise_norm_backward)
{
    depthwise_norm_backward<3, 2>(a);
}
