/* Batch normalisation of the layout "nhwc": formulas and operands as in kernels/norm/norm.pyx.
 *
 * Sums over pixels: a CUDA block takes NORM_CHANNELS channels of a plan's block, its threads strips of pixels; strips are
 * added by a tree. */

#include "cython_src/kernels/elementwise/activations.cuh"
#include "cython_src/kernels/maps/nhwc.cuh"

/* Mean, sum of squared deviations from it and number of a block's pixels, of the map `m`, into rows of `out`: shifted by
 * the block's first pixel, so that float32 holds them whatever the mean. All threads of the CUDA block must come. */
template <typename Bounds>
__device__ inline void pixel_statistics(const NhwcMap &m, const float *map, const Bounds &b, int c0, int end,
                                        float *out)
{
    const int c = c0 + (int)threadIdx.x % NORM_CHANNELS;
    const unsigned pixels = (b.n1 - b.n0) * (b.y1 - b.y0) * m.width;
    float shift = 0, sum = 0, squares = 0;
    if (c < end) {
        shift = map[pixel(m, b.n0, b.y0, 0) + c];
        for_strip<NORM_CHANNELS>(
            m, b.n0, b.n1, b.y0, b.y1, [&](int n, int y, int x) { return map[pixel(m, n, y, x) + c]; },
            [&](float z) {
                const float d = z - shift;
                sum += d;
                squares += d * d;
            });
    }
    sum = sum_strips<NORM_CHANNELS>(shared, sum);
    squares = sum_strips<NORM_CHANNELS>(shared, squares);
    if (threadIdx.x < NORM_CHANNELS && c < end) {
        out[c] = shift + sum / pixels;
        out[m.pitch + c] = max(0.0f, squares - sum * (sum / pixels));
        out[2 * m.pitch + c] = (float)pixels;
    }
}

/* Bounds: images, rows, partial. */
KERNEL(nhwc_norm_statistics)
{
    const NhwcMap m = a.in_map;
    const auto &b = block_bounds(a);
    const int c0 = (int)blockIdx.x * NORM_CHANNELS;
    if (c0 < m.pitch)
        pixel_statistics(m, a.input, b, c0, m.pitch, a.partials + (long long)b.partial * 3 * m.pitch);
}

/* What nhwc_conv_forward and nhwc_depthwise_forward leave in `statistics` of their result: the second launch of both. */
KERNEL_OF(nhwc_conv_statistics, nhwc_conv_forward)
{
    const NhwcMap m = a.out_map;
    const auto &b = block_bounds(a);
    const int c0 = b.c0 + (int)blockIdx.x * NORM_CHANNELS, end = channel_end(m, b.c1);
    if (c0 < end)
        pixel_statistics(m, a.output, b, c0, end, a.statistics + (long long)b.partial * 3 * m.pitch);
}

/* End of a block's part of a vector: elements past the last channel belong to the last block. */
__device__ inline int padded(int channels, int c1)
{
    return c1 == channels ? divide_up(c1, LANES) * LANES : c1;
}

/* Bounds of this and of nhwc_norm_backward_finish: channels. A CUDA block takes STRIP_CHANNELS of them, its threads strips
 * of the partials, which Chan's formula merges; strips are added by a tree. */
KERNEL(nhwc_norm_finish)
{
    const int channels = a.channels, pitch = divide_up(channels, LANES) * LANES;
    const auto &b = block_bounds(a);
    const int c = b.c0 + (int)blockIdx.x * STRIP_CHANNELS + (int)threadIdx.x % STRIP_CHANNELS;
    const int first = (int)threadIdx.x / STRIP_CHANNELS, partials = c < b.c1 ? a.num_partials : 0;
    const float *partial = a.partials + c;
    const float count = (float)a.count, eps = (float)a.eps, momentum = (float)a.momentum;
    float total = 0, squares = 0;
    each_ahead<8>(
        first, partials, STRIPS,
        [&](int p) { return float2{partial[(long long)p * 3 * pitch], partial[(long long)(p * 3 + 2) * pitch]}; },
        [&](int, float2 v) { total += v.x * v.y; });
    const float m = sum_strips(shared, total) / count;
    each_ahead<8>(
        first, partials, STRIPS,
        [&](int p) {
            const float *at = partial + (long long)p * 3 * pitch;
            return float4{at[0], at[pitch], at[2 * pitch], 0};
        },
        [&](int, float4 v) { squares += v.y + v.z * (v.x - m) * (v.x - m); });
    squares = sum_strips(shared, squares);
    if (first > 0 || c >= padded(channels, b.c1))
        return;
    if (c >= b.c1) {
        a.scale[c] = a.shift[c] = a.mean[c] = a.inv_std[c] = 0;
        return;
    }
    const float inv_std = 1 / sqrtf(squares / count + eps), scale = a.weight[c] * inv_std;
    a.running_mean[c] = (1 - momentum) * a.running_mean[c] + momentum * m;
    a.running_var[c] = (1 - momentum) * a.running_var[c] + momentum * (squares / (count > 1 ? count - 1 : 1));
    a.mean[c] = m;
    a.inv_std[c] = inv_std;
    a.scale[c] = scale;
    a.shift[c] = a.bias[c] - m * scale;
}

/* Bounds: channels. */
KERNEL_MANY(nhwc_norm_evaluate)
{
    const auto &b = block_bounds(a);
    float *scale = a.scale;
    for (int c = b.c0 + thread_of_row(a); c < padded(a.channels, b.c1); c += threads_of_row(a)) {
        scale[c] = a.shift[c] = 0;
        if (c < a.channels) {
            const float s = 1 / sqrtf(a.running_var[c] + (float)a.eps);
            scale[c] = a.weight[c] * s;
            a.shift[c] = a.bias[c] - a.running_mean[c] * scale[c];
        }
    }
}

/* Bounds: images, rows, channels. */
KERNEL(nhwc_norm_apply)
{
    const NhwcMap m = a.in_map, other = with_halo(m, a.residual_halo);
    const NhwcMap target = with_halo(m, a.out_halo);
    const auto &b = block_bounds(a);
    const int end = channel_end(m, b.c1), activation = a.activation;
    clear_channel_halo(target, a.output, b.n0, b.n1, b.y0, b.y1, b.c0, end);
    for_channels(m, b, b.c0, end, 4, [&](int n, int y, int x, int c) {
        const float4 z = load4(a.input + pixel(m, n, y, x) + c), s = load4(a.scale + c), t = load4(a.shift + c);
        float4 v = each4([&](int i) { return lane4(s, i) * lane4(z, i) + lane4(t, i); });
        if (a.residual) {
            float4 r = load4(a.residual + pixel(other, n, y, x) + c);
            if (a.residual_scale) {
                const float4 rs = load4(a.residual_scale + c), rt = load4(a.residual_shift + c);
                r = each4([&](int i) { return lane4(rs, i) * lane4(r, i) + lane4(rt, i); });
            }
            v = each4([&](int i) { return lane4(v, i) + lane4(r, i); });
        }
        store4(a.output + pixel(target, n, y, x) + c, each4([&](int i) { return activate(lane4(v, i), activation); }));
    });
}

/* Whether the activation before a norm passes the gradient: from its result `y`, or, where that is not given, from its
 * argument, scale z + shift. */
struct Mask {
    const float *y, *scale, *shift;
    int activation;
};

__device__ inline float masked(const Mask &mask, float g, float z, long long at, int c)
{
    if (mask.activation == 0)
        return g;
    return passes(mask.y ? mask.y[at] : mask.scale[c] * z + mask.shift[c], mask.activation) ? g : 0;
}

/* Sums of g and g xhat over a block. Bounds: images, rows, partial. */
KERNEL(nhwc_norm_backward_statistics)
{
    const NhwcMap m = a.in_map, dy = with_halo(m, a.gradient_halo), ys = with_halo(m, a.activations_halo);
    const auto &b = block_bounds(a);
    const Mask mask = {a.activations, a.scale, a.shift, a.activation};
    const int c0 = (int)blockIdx.x * NORM_CHANNELS, c = c0 + (int)threadIdx.x % NORM_CHANNELS;
    if (c0 >= m.pitch)
        return;
    float sum = 0, with_xhat = 0;
    if (c < m.pitch) {
        const float center = a.mean[c], factor = a.inv_std[c];
        for_strip<NORM_CHANNELS>(
            m, b.n0, b.n1, b.y0, b.y1,
            [&](int n, int y, int x) {
                const float z = a.input[pixel(m, n, y, x) + c];
                return float2{z, masked(mask, a.gradient[pixel(dy, n, y, x) + c], z, pixel(ys, n, y, x) + c, c)};
            },
            [&](float2 at) { /* input and gradient */
                             sum += at.y;
                             with_xhat += at.y * ((at.x - center) * factor);
            });
    }
    sum = sum_strips<NORM_CHANNELS>(shared, sum);
    with_xhat = sum_strips<NORM_CHANNELS>(shared, with_xhat);
    if (threadIdx.x < NORM_CHANNELS && c < m.pitch) {
        float *out = a.partials + (long long)b.partial * 2 * m.pitch + c;
        out[0] = sum;
        out[m.pitch] = with_xhat;
    }
}

/* Partials are added as in nhwc_norm_finish. */
KERNEL(nhwc_norm_backward_finish)
{
    const int channels = a.channels, pitch = divide_up(channels, LANES) * LANES;
    const auto &b = block_bounds(a);
    const int c = b.c0 + (int)blockIdx.x * STRIP_CHANNELS + (int)threadIdx.x % STRIP_CHANNELS;
    const int first = (int)threadIdx.x / STRIP_CHANNELS, partials = c < b.c1 ? a.num_partials : 0;
    const float *partial = a.partials + c;
    float dbias = 0, dweight = 0;
    each_ahead<8>(
        first, partials, STRIPS,
        [&](int p) { return float2{partial[(long long)p * 2 * pitch], partial[(long long)(p * 2 + 1) * pitch]}; },
        [&](int, float2 v) {
            dbias += v.x;
            dweight += v.y;
        });
    dbias = sum_strips(shared, dbias);
    dweight = sum_strips(shared, dweight);
    if (first > 0 || c >= padded(channels, b.c1))
        return;
    float *coefficients = a.coefficients + c;
    if (c >= b.c1) {
        coefficients[0] = coefficients[pitch] = coefficients[2 * pitch] = 0;
        return;
    }
    const float share = (float)(1.0 / a.count), inv_std = a.inv_std[c], scale = a.weight[c] * inv_std;
    a.gradient_weight[c] = dweight;
    a.gradient_bias[c] = dbias;
    coefficients[0] = scale;
    coefficients[pitch] = -share * scale * inv_std * dweight;
    coefficients[2 * pitch] = -share * scale * dbias;
}

/* Bounds: images, rows, channels. */
KERNEL(nhwc_norm_backward_apply)
{
    const NhwcMap m = a.in_map, dy = with_halo(m, a.gradient_halo), ys = with_halo(m, a.activations_halo);
    const NhwcMap target = with_halo(m, a.out_halo), side = with_halo(m, a.branch_halo);
    const auto &b = block_bounds(a);
    const int end = channel_end(m, b.c1), accumulate = a.accumulate_branch;
    const float *coefficients = a.coefficients;
    const Mask mask = {a.activations, a.scale, a.shift, a.activation};
    float *branch = a.branch;
    const bool added = a.previous != 0; /* the result is added to what is there */
    if (!added)
        clear_channel_halo(target, a.output, b.n0, b.n1, b.y0, b.y1, b.c0, end);
    if (branch && !accumulate)
        clear_channel_halo(side, branch, b.n0, b.n1, b.y0, b.y1, b.c0, end);
    for_channels(m, b, b.c0, end, 4, [&](int n, int y, int x, int c) {
        const float4 z = load4(a.input + pixel(m, n, y, x) + c), d = load4(a.gradient + pixel(dy, n, y, x) + c);
        const long long at = pixel(ys, n, y, x) + c;
        const float4 g = each4([&](int i) { return masked(mask, lane4(d, i), lane4(z, i), at + i, c + i); });
        const float4 v0 = load4(coefficients + c), v1 = load4(coefficients + m.pitch + c);
        const float4 v2 = load4(coefficients + 2 * m.pitch + c), v3 = load4(a.mean + c);
        put4(a.output + pixel(target, n, y, x) + c, each4([&](int i) {
                 return lane4(v0, i) * lane4(g, i) + (lane4(v1, i) * (lane4(z, i) - lane4(v3, i)) + lane4(v2, i));
             }),
             added);
        if (branch)
            put4(branch + pixel(side, n, y, x) + c, g, accumulate);
    });
}
