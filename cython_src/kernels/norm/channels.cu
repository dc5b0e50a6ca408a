/* Batch normalisation of the layout "channels": formulas and operands as in kernels/norm/norm.pyx.
 *
 * Sums over pixels: a CUDA block takes STRIP_CHANNELS channels of a plan's block, its threads strips of pixels; strips are
 * added by a tree. */

#include "cython_src/kernels/elementwise/activations.cuh"
#include "cython_src/kernels/maps/channels.cuh"

/* Mean, sum of squared deviations from it and number of a block's pixels, of the map `m`, into rows of `out`: shifted by
 * the block's first pixel, so that float32 holds them whatever the mean. All threads of the CUDA block must come. */
__device__ inline void pixel_statistics(const ChannelsMap &m, const float *map, const int *b, int c0, int end,
                                        float *out)
{
    const int c = c0 + (int)threadIdx.x % STRIP_CHANNELS, rows = b[3] - b[2];
    const unsigned pixels = (b[1] - b[0]) * rows * m.width;
    float shift = 0, sum = 0, squares = 0;
    if (c < end) {
        shift = map[pixel(m, b[0], b[2], 0) + c];
        for (unsigned p = threadIdx.x / STRIP_CHANNELS; p < pixels; p += STRIPS) {
            const unsigned row = p / m.width;
            const float d =
                map[pixel(m, b[0] + (int)(row / rows), b[2] + (int)(row % rows), (int)(p % m.width)) + c] - shift;
            sum += d;
            squares += d * d;
        }
    }
    sum = sum_strips(shared, sum);
    squares = sum_strips(shared, squares);
    if (threadIdx.x < STRIP_CHANNELS && c < end) {
        out[c] = shift + sum / pixels;
        out[m.pitch + c] = max(0.0f, squares - sum * (sum / pixels));
        out[2 * m.pitch + c] = (float)pixels;
    }
}

/* Bounds: images, rows, partial. */
KERNEL(channels_norm_statistics)
{
    const ChannelsMap m = channel_map_at(a.integers);
    const int *b = block_bounds(a), c0 = (int)blockIdx.x * STRIP_CHANNELS;
    if (c0 < m.pitch)
        pixel_statistics(m, (const float *)a.operand[0], b, c0, m.pitch,
                         (float *)a.operand[1] + (long long)b[4] * 3 * m.pitch);
}

/* What channels_conv_forward and channels_depthwise_forward leave in `statistics` of their result: the second launch of both. */
KERNEL(channels_conv_statistics)
{
    const ChannelsMap m = channel_map_at(a.integers + 5);
    const int *b = block_bounds(a), c0 = b[4] + (int)blockIdx.x * STRIP_CHANNELS, end = channel_end(m, b[5]);
    if (c0 < end)
        pixel_statistics(m, (const float *)a.operand[3], b, c0, end,
                         (float *)a.operand[4] + (long long)b[6] * 3 * m.pitch);
}

/* End of a block's part of a vector: elements past the last channel belong to the last block. */
__device__ inline int padded(int channels, int c1)
{
    return c1 == channels ? divide_up(c1, LANES) * LANES : c1;
}

/* Bounds: channels. A thread for each; partials are merged in order by Chan's formula. */
KERNEL(channels_norm_finish)
{
    const int channels = a.integers[0], partials = a.integers[1], pitch = divide_up(channels, LANES) * LANES;
    const int *b = block_bounds(a);
    const float *partial = (const float *)a.operand[0];
    const float count = (float)a.integers[2], eps = (float)a.reals[0], momentum = (float)a.reals[1];
    float *running_mean = (float *)a.operand[3], *running_var = (float *)a.operand[4];
    float *scale = (float *)a.operand[5], *shift = (float *)a.operand[6];
    float *mean = (float *)a.operand[7], *inv_std = (float *)a.operand[8];
    for (int c = b[0] + thread_of_row(); c < padded(channels, b[1]); c += threads_of_row()) {
        if (c >= b[1]) {
            scale[c] = shift[c] = mean[c] = inv_std[c] = 0;
            continue;
        }
        float total = 0, squares = 0;
        for (int p = 0; p < partials; p++)
            total += partial[(long long)p * 3 * pitch + c] * partial[(long long)(p * 3 + 2) * pitch + c];
        const float m = total / count;
        for (int p = 0; p < partials; p++) {
            const float d = partial[(long long)p * 3 * pitch + c] - m;
            squares +=
                partial[(long long)(p * 3 + 1) * pitch + c] + partial[(long long)(p * 3 + 2) * pitch + c] * d * d;
        }
        running_mean[c] = (1 - momentum) * running_mean[c] + momentum * m;
        running_var[c] = (1 - momentum) * running_var[c] + momentum * (squares / (count > 1 ? count - 1 : 1));
        mean[c] = m;
        inv_std[c] = 1 / sqrtf(squares / count + eps);
        scale[c] = ((const float *)a.operand[1])[c] * inv_std[c];
        shift[c] = ((const float *)a.operand[2])[c] - m * scale[c];
    }
}

/* Bounds: channels. */
KERNEL(channels_norm_evaluate)
{
    const int channels = a.integers[0];
    const int *b = block_bounds(a);
    const float *running_mean = (const float *)a.operand[2];
    float *scale = (float *)a.operand[4], *shift = (float *)a.operand[5];
    for (int c = b[0] + thread_of_row(); c < padded(channels, b[1]); c += threads_of_row()) {
        scale[c] = shift[c] = 0;
        if (c < channels) {
            const float s = 1 / sqrtf(((const float *)a.operand[3])[c] + (float)a.reals[0]);
            scale[c] = ((const float *)a.operand[0])[c] * s;
            shift[c] = ((const float *)a.operand[1])[c] - running_mean[c] * scale[c];
        }
    }
}

/* Bounds: images, rows, channels. */
KERNEL(channels_norm_apply)
{
    const ChannelsMap m = channel_map_at(a.integers), other = with_halo(m, a.integers[5]);
    const ChannelsMap target = with_halo(m, a.integers[6]);
    const int *b = block_bounds(a), end = channel_end(m, b[5]), activation = a.integers[7];
    const float *input = (const float *)a.operand[0], *scale = (const float *)a.operand[1];
    const float *shift = (const float *)a.operand[2], *residual = (const float *)a.operand[3];
    const float *residual_scale = (const float *)a.operand[4], *residual_shift = (const float *)a.operand[5];
    float *out = (float *)a.operand[6];
    clear_channel_halo(target, out, b[0], b[1], b[2], b[3], b[4], end);
    for_channels(m, b, b[4], end, 4, [&](int n, int y, int x, int c) {
        const float4 z = load4(input + pixel(m, n, y, x) + c), s = load4(scale + c), t = load4(shift + c);
        float4 v = each4([&](int i) { return lane4(s, i) * lane4(z, i) + lane4(t, i); });
        if (residual) {
            float4 r = load4(residual + pixel(other, n, y, x) + c);
            if (residual_scale) {
                const float4 rs = load4(residual_scale + c), rt = load4(residual_shift + c);
                r = each4([&](int i) { return lane4(rs, i) * lane4(r, i) + lane4(rt, i); });
            }
            v = each4([&](int i) { return lane4(v, i) + lane4(r, i); });
        }
        store4(out + pixel(target, n, y, x) + c, each4([&](int i) { return activate(lane4(v, i), activation); }));
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
KERNEL(channels_norm_backward_statistics)
{
    const ChannelsMap m = channel_map_at(a.integers), dy = with_halo(m, a.integers[5]),
                      ys = with_halo(m, a.integers[6]);
    const int *b = block_bounds(a), c = (int)blockIdx.x * STRIP_CHANNELS + (int)threadIdx.x % STRIP_CHANNELS;
    if ((int)blockIdx.x * STRIP_CHANNELS >= m.pitch)
        return;
    const float *gradient = (const float *)a.operand[0], *input = (const float *)a.operand[4];
    const Mask mask = {(const float *)a.operand[1], (const float *)a.operand[2], (const float *)a.operand[3],
                       a.integers[7]};
    const int rows = b[3] - b[2];
    const unsigned pixels = (b[1] - b[0]) * rows * m.width;
    float sum = 0, with_xhat = 0;
    if (c < m.pitch) {
        const float mean = ((const float *)a.operand[5])[c], inv_std = ((const float *)a.operand[6])[c];
        for (unsigned p = threadIdx.x / STRIP_CHANNELS; p < pixels; p += STRIPS) {
            const unsigned row = p / m.width;
            const int x = (int)(p % m.width), y = b[2] + (int)(row % rows), n = b[0] + (int)(row / rows);
            const float z = input[pixel(m, n, y, x) + c];
            const float g = masked(mask, gradient[pixel(dy, n, y, x) + c], z, pixel(ys, n, y, x) + c, c);
            sum += g;
            with_xhat += g * ((z - mean) * inv_std);
        }
    }
    sum = sum_strips(shared, sum);
    with_xhat = sum_strips(shared, with_xhat);
    if (threadIdx.x < STRIP_CHANNELS && c < m.pitch) {
        float *out = (float *)a.operand[7] + (long long)b[4] * 2 * m.pitch;
        out[c] = sum;
        out[m.pitch + c] = with_xhat;
    }
}

/* Bounds: channels. A thread for each; partials are added in order. */
KERNEL(channels_norm_backward_finish)
{
    const int channels = a.integers[0], partials = a.integers[1], pitch = divide_up(channels, LANES) * LANES;
    const int *b = block_bounds(a);
    const float *partial = (const float *)a.operand[0];
    const float share = (float)(1.0 / a.integers[2]);
    float *coefficients = (float *)a.operand[5];
    for (int c = b[0] + thread_of_row(); c < padded(channels, b[1]); c += threads_of_row()) {
        if (c >= b[1]) {
            coefficients[c] = coefficients[pitch + c] = coefficients[2 * pitch + c] = 0;
            continue;
        }
        float dbias = partial[c], dweight = partial[pitch + c];
        for (int p = 1; p < partials; p++) {
            dbias += partial[(long long)p * 2 * pitch + c];
            dweight += partial[(long long)(p * 2 + 1) * pitch + c];
        }
        const float inv_std = ((const float *)a.operand[2])[c], scale = ((const float *)a.operand[1])[c] * inv_std;
        ((float *)a.operand[3])[c] = dweight;
        ((float *)a.operand[4])[c] = dbias;
        coefficients[c] = scale;
        coefficients[pitch + c] = -share * scale * inv_std * dweight;
        coefficients[2 * pitch + c] = -share * scale * dbias;
    }
}

/* Bounds: images, rows, channels. */
KERNEL(channels_norm_backward_apply)
{
    const ChannelsMap m = channel_map_at(a.integers), dy = with_halo(m, a.integers[5]),
                      ys = with_halo(m, a.integers[6]);
    const ChannelsMap target = with_halo(m, a.integers[7]), side = with_halo(m, a.integers[8]);
    const int *b = block_bounds(a), end = channel_end(m, b[5]), accumulate = a.integers[10];
    const float *gradient = (const float *)a.operand[0], *input = (const float *)a.operand[4];
    const float *mean = (const float *)a.operand[5], *coefficients = (const float *)a.operand[6];
    const Mask mask = {(const float *)a.operand[1], (const float *)a.operand[2], (const float *)a.operand[3],
                       a.integers[9]};
    float *out = (float *)a.operand[7], *branch = (float *)a.operand[8];
    const bool added = a.operand[9] != 0; /* the result is added to what is there */
    if (!added)
        clear_channel_halo(target, out, b[0], b[1], b[2], b[3], b[4], end);
    if (branch && !accumulate)
        clear_channel_halo(side, branch, b[0], b[1], b[2], b[3], b[4], end);
    for_channels(m, b, b[4], end, 4, [&](int n, int y, int x, int c) {
        const float4 z = load4(input + pixel(m, n, y, x) + c), d = load4(gradient + pixel(dy, n, y, x) + c);
        const long long at = pixel(ys, n, y, x) + c;
        const float4 g = each4([&](int i) { return masked(mask, lane4(d, i), lane4(z, i), at + i, c + i); });
        const float4 v0 = load4(coefficients + c), v1 = load4(coefficients + m.pitch + c);
        const float4 v2 = load4(coefficients + 2 * m.pitch + c), v3 = load4(mean + c);
        put4(out + pixel(target, n, y, x) + c, each4([&](int i) {
                 return lane4(v0, i) * lane4(g, i) + (lane4(v1, i) * (lane4(z, i) - lane4(v3, i)) + lane4(v2, i));
             }),
             added);
        if (branch)
            put4(branch + pixel(side, n, y, x) + c, g, accumulate);
    });
}
