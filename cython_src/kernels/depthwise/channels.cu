/* Depthwise convolution of the layout "channels": kernels/depthwise/depthwise.pyx. What lies outside a map counts as zero. */

#include "cython_src/kernels/elementwise/activations.cuh"
#include "cython_src/kernels/maps/channels.cuh"

struct Depthwise {
    ChannelsMap source, target;
    int kernel, stride, padding, option;
};

__device__ inline Depthwise depthwise_at(const int *integers)
{
    Depthwise d;
    d.source = channel_map_at(integers);
    d.target = channel_map_at(integers + 5);
    d.kernel = integers[10];
    d.stride = integers[11];
    d.padding = integers[12];
    d.option = integers[13];
    return d;
}

__device__ inline float inside_or_zero(const ChannelsMap &m, const float *p, int n, int y, int x, int c)
{
    return y >= 0 && y < m.height && x >= 0 && x < m.width ? p[pixel(m, n, y, x) + c] : 0;
}

/* What a convolution reads: a map, or activation(scale map + shift). */
struct Source {
    const float *map, *scale, *shift;
    int activation;
};

__device__ inline float read_source(const ChannelsMap &m, const Source &s, int n, int y, int x, int c)
{
    if (y < 0 || y >= m.height || x < 0 || x >= m.width)
        return 0;
    const float z = s.map[pixel(m, n, y, x) + c];
    return s.scale ? activate(s.scale[c] * z + s.shift[c], s.activation) : z;
}

/* A thread for each number of the result. Bounds: images, rows, channels. */
__device__ inline void depthwise_forward(const GpuArgs &a, const Depthwise &d, const Source &source)
{
    const int *b = block_bounds(a), end = channel_end(d.target, b[5]), taps = d.kernel * d.kernel;
    const float *weight = (const float *)a.operand[1], *bias = (const float *)a.operand[2];
    float *out = (float *)a.operand[3];
    clear_channel_halo(d.target, out, b[0], b[1], b[2], b[3], b[4], end);
    for_channels(d.target, b, b[4], end, 1, [&](int n, int y, int x, int c) {
        float sum = 0;
        if (c < b[5]) {
            for (int tap = 0; tap < taps; tap++)
                sum += weight[(long long)c * taps + tap] * read_source(d.source, source, n,
                                                                       y * d.stride - d.padding + tap / d.kernel,
                                                                       x * d.stride - d.padding + tap % d.kernel, c);
            sum = activate(sum + (bias ? bias[c] : 0), d.option);
        }
        out[pixel(d.target, n, y, x) + c] = sum;
    });
}

KERNEL(channels_depthwise_forward)
{
    const Source source = {(const float *)a.operand[0], 0, 0, 0};
    depthwise_forward(a, depthwise_at(a.integers), source);
}

KERNEL(channels_norm_depthwise)
{
    const Source source = {(const float *)a.operand[0], (const float *)a.operand[5], (const float *)a.operand[6],
                           a.integers[14]};
    depthwise_forward(a, depthwise_at(a.integers), source);
}

/* Bounds: images, rows of the input's gradient, channels. */
KERNEL(channels_depthwise_backward_data)
{
    const Depthwise d = depthwise_at(a.integers);
    const int *b = block_bounds(a), end = channel_end(d.target, b[5]), taps = d.kernel * d.kernel;
    const float *gradient = (const float *)a.operand[0], *weight = (const float *)a.operand[1];
    float *out = (float *)a.operand[2];
    if (!d.option)
        clear_channel_halo(d.target, out, b[0], b[1], b[2], b[3], b[4], end);
    for_channels(d.target, b, b[4], end, 1, [&](int n, int y, int x, int c) {
        float sum = 0;
        if (c < b[5])
            for (int tap = 0; tap < taps; tap++) {
                const int yy = y + d.padding - tap / d.kernel, xx = x + d.padding - tap % d.kernel;
                if (yy >= 0 && xx >= 0 && yy % d.stride == 0 && xx % d.stride == 0)
                    sum += weight[(long long)c * taps + tap] *
                           inside_or_zero(d.source, gradient, n, yy / d.stride, xx / d.stride, c);
            }
        float *p = out + pixel(d.target, n, y, x) + c;
        *p = d.option ? *p + sum : sum;
    });
}

/* A CUDA block for STRIP_CHANNELS channels and a tap, or the bias after the last tap; its threads are strips of pixels,
 * added by a tree. Bounds: images, rows of dY, channels, partial. */
KERNEL(channels_depthwise_backward_weights)
{
    const Depthwise d = depthwise_at(a.integers); /* source is dY, target the input */
    const int *b = block_bounds(a), taps = d.kernel * d.kernel, tap = (int)blockIdx.x % (taps + 1), rows = b[3] - b[2];
    const int c0 = b[4] + (int)blockIdx.x / (taps + 1) * STRIP_CHANNELS, c = c0 + (int)threadIdx.x % STRIP_CHANNELS;
    if (c0 >= b[5] || (tap == taps && !a.operand[3]))
        return;
    const float *gradient = (const float *)a.operand[0], *input = (const float *)a.operand[1];
    const unsigned pixels = (b[1] - b[0]) * rows * d.source.width;
    float sum = 0;
    if (c < b[5])
        for (unsigned p = threadIdx.x / STRIP_CHANNELS; p < pixels; p += STRIPS) {
            const unsigned row = p / d.source.width;
            const int x = (int)(p % d.source.width), y = b[2] + (int)(row % rows), n = b[0] + (int)(row / rows);
            const float g = gradient[pixel(d.source, n, y, x) + c];
            sum += tap == taps ? g
                               : g * inside_or_zero(d.target, input, n, y * d.stride - d.padding + tap / d.kernel,
                                                    x * d.stride - d.padding + tap % d.kernel, c);
        }
    sum = sum_strips(shared, sum);
    if (threadIdx.x < STRIP_CHANNELS && c < b[5]) {
        const long long channel = (long long)b[6] * d.source.channels + c;
        float *p = tap == taps ? (float *)a.operand[3] + channel : (float *)a.operand[2] + channel * taps + tap;
        *p = d.option ? *p + sum : sum;
    }
}

/* ---- backward, with the norm after the convolution: three launches, for the input's gradient, the weights' and the sums of
 * the norm before. The gradient of the convolution's result is computed wherever it is read. Bounds: images, channels,
 * partial. ---- */

struct NormBackward {
    ChannelsMap small, gradient, large, target;
    int kernel, stride, padding, activation;
    const float *dy, *z, *scale, *shift, *mean, *coefficients, *weight;
    Source input;
    int box[6]; /* images, rows of the input, channels */
    int partial;
};

__device__ inline NormBackward norm_backward_at(const GpuArgs &a)
{
    NormBackward t;
    const int *b = block_bounds(a);
    t.small = channel_map_at(a.integers);
    t.large = channel_map_at(a.integers + 5);
    t.kernel = a.integers[10];
    t.stride = a.integers[11];
    t.padding = a.integers[12];
    t.gradient = with_halo(t.small, a.integers[13]);
    t.target = with_halo(t.large, a.integers[14]);
    t.activation = a.integers[15];
    t.dy = (const float *)a.operand[0];
    t.z = (const float *)a.operand[1];
    t.scale = (const float *)a.operand[2];
    t.shift = (const float *)a.operand[3];
    t.mean = (const float *)a.operand[4];
    t.coefficients = (const float *)a.operand[5];
    t.weight = (const float *)a.operand[6];
    t.input.map = (const float *)a.operand[7];
    t.input.scale = (const float *)a.operand[8];
    t.input.shift = (const float *)a.operand[9];
    t.input.activation = a.integers[16];
    t.box[0] = b[0];
    t.box[1] = b[1];
    t.box[2] = 0;
    t.box[3] = t.large.height;
    t.box[4] = b[2];
    t.box[5] = b[3];
    t.partial = b[4];
    return t;
}

/* Gradient of the convolution's result. */
__device__ inline float result_gradient(const NormBackward &t, int n, int y, int x, int c)
{
    const float z = t.z[pixel(t.small, n, y, x) + c];
    const float g = passes(t.scale[c] * z + t.shift[c], t.activation) ? t.dy[pixel(t.gradient, n, y, x) + c] : 0;
    const float *v = t.coefficients + c;
    return v[0] * g + (v[t.small.pitch] * (z - t.mean[c]) + v[2 * t.small.pitch]);
}

KERNEL(channels_depthwise_norm_backward)
{
    const NormBackward t = norm_backward_at(a);
    const int end = channel_end(t.large, t.box[5]), taps = t.kernel * t.kernel;
    float *out = (float *)a.operand[12];
    clear_channel_halo(t.target, out, t.box[0], t.box[1], 0, t.large.height, t.box[4], end);
    for_channels(t.large, t.box, t.box[4], end, 1, [&](int n, int y, int x, int c) {
        float sum = 0;
        if (c < t.box[5])
            for (int tap = 0; tap < taps; tap++) {
                const int yy = y + t.padding - tap / t.kernel, xx = x + t.padding - tap % t.kernel;
                if (yy >= 0 && xx >= 0 && yy % t.stride == 0 && xx % t.stride == 0 && yy / t.stride < t.small.height &&
                    xx / t.stride < t.small.width)
                    sum += t.weight[(long long)c * taps + tap] * result_gradient(t, n, yy / t.stride, xx / t.stride, c);
            }
        out[pixel(t.target, n, y, x) + c] = sum;
    });
}

/* A CUDA block for STRIP_CHANNELS channels and a tap. */
KERNEL(channels_depthwise_norm_weights)
{
    const NormBackward t = norm_backward_at(a);
    const int taps = t.kernel * t.kernel, tap = (int)blockIdx.x % taps;
    const int c0 = t.box[4] + (int)blockIdx.x / taps * STRIP_CHANNELS, c = c0 + (int)threadIdx.x % STRIP_CHANNELS;
    if (c0 >= t.box[5])
        return;
    const unsigned pixels = (t.box[1] - t.box[0]) * t.small.height * t.small.width;
    float sum = 0;
    if (c < t.box[5])
        for (unsigned p = threadIdx.x / STRIP_CHANNELS; p < pixels; p += STRIPS) {
            const unsigned row = p / t.small.width;
            const int x = (int)(p % t.small.width), y = (int)(row % t.small.height),
                      n = t.box[0] + (int)(row / t.small.height);
            sum += result_gradient(t, n, y, x, c) * read_source(t.large, t.input, n,
                                                                y * t.stride - t.padding + tap / t.kernel,
                                                                x * t.stride - t.padding + tap % t.kernel, c);
        }
    sum = sum_strips(shared, sum);
    if (threadIdx.x < STRIP_CHANNELS && c < t.box[5])
        ((float *)a.operand[13])[((long long)t.partial * t.small.channels + c) * taps + tap] = sum;
}

/* A CUDA block for STRIP_CHANNELS channels; the gradient of the input is there. */
KERNEL(channels_depthwise_norm_sums)
{
    const NormBackward t = norm_backward_at(a);
    const int end = channel_end(t.large, t.box[5]), c0 = t.box[4] + (int)blockIdx.x * STRIP_CHANNELS;
    const int c = c0 + (int)threadIdx.x % STRIP_CHANNELS;
    if (c0 >= end)
        return;
    const float *gradient = (const float *)a.operand[12];
    const unsigned pixels = (t.box[1] - t.box[0]) * t.large.height * t.large.width;
    float sum = 0, with_xhat = 0;
    if (c < end) {
        const float mean = ((const float *)a.operand[10])[c], inv_std = ((const float *)a.operand[11])[c];
        for (unsigned p = threadIdx.x / STRIP_CHANNELS; p < pixels; p += STRIPS) {
            const unsigned row = p / t.large.width;
            const int x = (int)(p % t.large.width), y = (int)(row % t.large.height),
                      n = t.box[0] + (int)(row / t.large.height);
            const float z = t.input.map[pixel(t.large, n, y, x) + c];
            if (passes(t.input.scale[c] * z + t.input.shift[c], t.input.activation)) {
                const float g = gradient[pixel(t.target, n, y, x) + c];
                sum += g;
                with_xhat += g * ((z - mean) * inv_std);
            }
        }
    }
    sum = sum_strips(shared, sum);
    with_xhat = sum_strips(shared, with_xhat);
    if (threadIdx.x < STRIP_CHANNELS && c < end) {
        float *out = (float *)a.operand[14] + (long long)t.partial * 2 * t.large.pitch;
        out[c] = sum;
        out[t.large.pitch + c] = with_xhat;
    }
}
