/* Depthwise convolution of the layout "nhwc": kernels/depthwise/depthwise.pyx. What lies outside a map counts as zero. */

#include "cython_src/kernels/elementwise/activations.cuh"
#include "cython_src/kernels/maps/nhwc.cuh"

__device__ inline float inside_or_zero(const NhwcMap &m, const float *p, int n, int y, int x, int c)
{
    return y >= 0 && y < m.height && x >= 0 && x < m.width ? p[pixel(m, n, y, x) + c] : 0;
}

/* What a convolution reads: a map, or activation(scale map + shift). */
struct Source {
    const float *map, *scale, *shift;
    int activation;
};

__device__ inline float read_source(const NhwcMap &m, const Source &s, int n, int y, int x, int c)
{
    if (y < 0 || y >= m.height || x < 0 || x >= m.width)
        return 0;
    const float z = s.map[pixel(m, n, y, x) + c];
    return s.scale ? activate(s.scale[c] * z + s.shift[c], s.activation) : z;
}

/* A thread for each number of the result. Bounds: images, rows, channels. */
template <typename Args>
__device__ inline void depthwise_forward(const Args &a, const Source &source)
{
    const auto &b = block_bounds(a);
    const int end = channel_end(a.out_map, b.c1), taps = a.window.kernel * a.window.kernel;
    clear_channel_halo(a.out_map, a.output, b.n0, b.n1, b.y0, b.y1, b.c0, end);
    for_channels(a.out_map, b, b.c0, end, 1, [&](int n, int y, int x, int c) {
        float sum = 0;
        if (c < b.c1) {
            for (int tap = 0; tap < taps; tap++)
                sum += a.weight[(long long)c * taps + tap] *
                       read_source(a.in_map, source, n, y * a.window.stride - a.window.padding + tap / a.window.kernel,
                                   x * a.window.stride - a.window.padding + tap % a.window.kernel, c);
            sum = activate(sum + (a.bias ? a.bias[c] : 0), a.activation);
        }
        a.output[pixel(a.out_map, n, y, x) + c] = sum;
    });
}

KERNEL(nhwc_depthwise_forward)
{
    const Source source = {a.input, 0, 0, 0};
    depthwise_forward(a, source);
}

KERNEL(nhwc_norm_depthwise)
{
    const Source source = {a.input, a.input_scale, a.input_shift, a.input_activation};
    depthwise_forward(a, source);
}

/* Bounds: images, rows of the input's gradient, channels. */
KERNEL(nhwc_depthwise_backward_data)
{
    const auto &b = block_bounds(a);
    const int end = channel_end(a.out_map, b.c1), taps = a.window.kernel * a.window.kernel;
    if (!a.accumulate)
        clear_channel_halo(a.out_map, a.output, b.n0, b.n1, b.y0, b.y1, b.c0, end);
    for_channels(a.out_map, b, b.c0, end, 1, [&](int n, int y, int x, int c) {
        float sum = 0;
        if (c < b.c1)
            for (int tap = 0; tap < taps; tap++) {
                const int yy = y + a.window.padding - tap / a.window.kernel,
                          xx = x + a.window.padding - tap % a.window.kernel;
                if (yy >= 0 && xx >= 0 && yy % a.window.stride == 0 && xx % a.window.stride == 0)
                    sum += a.weight[(long long)c * taps + tap] *
                           inside_or_zero(a.in_map, a.gradient, n, yy / a.window.stride, xx / a.window.stride, c);
            }
        float *p = a.output + pixel(a.out_map, n, y, x) + c;
        *p = a.accumulate ? *p + sum : sum;
    });
}

/* A CUDA block for STRIP_CHANNELS channels and a tap, or the bias after the last tap; its threads are strips of pixels,
 * added by a tree. Bounds: images, rows of dY, channels, partial. */
KERNEL(nhwc_depthwise_backward_weights)
{
    const auto &b = block_bounds(a);
    const int taps = a.window.kernel * a.window.kernel, tap = (int)blockIdx.x % (taps + 1), rows = b.y1 - b.y0;
    const int c0 = b.c0 + (int)blockIdx.x / (taps + 1) * STRIP_CHANNELS, c = c0 + (int)threadIdx.x % STRIP_CHANNELS;
    if (c0 >= b.c1 || (tap == taps && !a.bias_output))
        return;
    const unsigned pixels = (b.n1 - b.n0) * rows * a.gradient_map.width;
    float sum = 0;
    if (c < b.c1)
        for (unsigned p = threadIdx.x / STRIP_CHANNELS; p < pixels; p += STRIPS) {
            const unsigned row = p / a.gradient_map.width;
            const int x = (int)(p % a.gradient_map.width), y = b.y0 + (int)(row % rows), n = b.n0 + (int)(row / rows);
            const float g = a.gradient[pixel(a.gradient_map, n, y, x) + c];
            sum += tap == taps ? g
                               : g * inside_or_zero(a.in_map, a.input, n,
                                                    y * a.window.stride - a.window.padding + tap / a.window.kernel,
                                                    x * a.window.stride - a.window.padding + tap % a.window.kernel, c);
        }
    sum = sum_strips(shared, sum);
    if (threadIdx.x < STRIP_CHANNELS && c < b.c1) {
        const long long channel = (long long)b.partial * a.gradient_map.channels + c;
        float *p = tap == taps ? a.bias_output + channel : a.output + channel * taps + tap;
        *p = a.accumulate ? *p + sum : sum;
    }
}

/* ---- backward, with the norm after the convolution: three launches, for the input's gradient, the weights' and the sums of
 * the norm before. The gradient of the convolution's result is computed wherever it is read. Bounds: images, channels,
 * partial. ---- */

/* Gradient of the convolution's result. */
template <typename Args>
__device__ inline float result_gradient(const Args &a, int n, int y, int x, int c)
{
    const float z = a.result[pixel(a.out_map, n, y, x) + c];
    const float g = passes(a.scale[c] * z + a.shift[c], a.activation)
                        ? a.gradient[pixel(with_halo(a.out_map, a.gradient_halo), n, y, x) + c]
                        : 0;
    const float *v = a.coefficients + c;
    return v[0] * g + (v[a.out_map.pitch] * (z - a.mean[c]) + v[2 * a.out_map.pitch]);
}

KERNEL(nhwc_depthwise_norm_backward)
{
    const auto &b = block_bounds(a);
    const int end = channel_end(a.in_map, b.c1), taps = a.window.kernel * a.window.kernel;
    const NhwcMap target = with_halo(a.in_map, a.output_halo);
    const Box rows = {b.n0, b.n1, 0, a.in_map.height, b.c0, b.c1};
    clear_channel_halo(target, a.output, b.n0, b.n1, 0, a.in_map.height, b.c0, end);
    for_channels(a.in_map, rows, b.c0, end, 1, [&](int n, int y, int x, int c) {
        float sum = 0;
        if (c < b.c1)
            for (int tap = 0; tap < taps; tap++) {
                const int yy = y + a.window.padding - tap / a.window.kernel,
                          xx = x + a.window.padding - tap % a.window.kernel;
                if (yy >= 0 && xx >= 0 && yy % a.window.stride == 0 && xx % a.window.stride == 0 &&
                    yy / a.window.stride < a.out_map.height && xx / a.window.stride < a.out_map.width)
                    sum += a.weight[(long long)c * taps + tap] *
                           result_gradient(a, n, yy / a.window.stride, xx / a.window.stride, c);
            }
        a.output[pixel(target, n, y, x) + c] = sum;
    });
}

/* A CUDA block for STRIP_CHANNELS channels and a tap. */
KERNEL_OF(nhwc_depthwise_norm_weights, nhwc_depthwise_norm_backward)
{
    const auto &b = block_bounds(a);
    const int taps = a.window.kernel * a.window.kernel, tap = (int)blockIdx.x % taps;
    const int c0 = b.c0 + (int)blockIdx.x / taps * STRIP_CHANNELS, c = c0 + (int)threadIdx.x % STRIP_CHANNELS;
    if (c0 >= b.c1)
        return;
    const unsigned pixels = (b.n1 - b.n0) * a.out_map.height * a.out_map.width;
    const Source source = {a.input, a.input_scale, a.input_shift, a.input_activation};
    float sum = 0;
    if (c < b.c1)
        for (unsigned p = threadIdx.x / STRIP_CHANNELS; p < pixels; p += STRIPS) {
            const unsigned row = p / a.out_map.width;
            const int x = (int)(p % a.out_map.width), y = (int)(row % a.out_map.height),
                      n = b.n0 + (int)(row / a.out_map.height);
            sum += result_gradient(a, n, y, x, c) *
                   read_source(a.in_map, source, n, y * a.window.stride - a.window.padding + tap / a.window.kernel,
                               x * a.window.stride - a.window.padding + tap % a.window.kernel, c);
        }
    sum = sum_strips(shared, sum);
    if (threadIdx.x < STRIP_CHANNELS && c < b.c1)
        a.weight_partials[((long long)b.partial * a.out_map.channels + c) * taps + tap] = sum;
}

/* A CUDA block for STRIP_CHANNELS channels; the gradient of the input is there. */
KERNEL_OF(nhwc_depthwise_norm_sums, nhwc_depthwise_norm_backward)
{
    const auto &b = block_bounds(a);
    const int end = channel_end(a.in_map, b.c1), c0 = b.c0 + (int)blockIdx.x * STRIP_CHANNELS;
    const int c = c0 + (int)threadIdx.x % STRIP_CHANNELS;
    if (c0 >= end)
        return;
    const NhwcMap target = with_halo(a.in_map, a.output_halo);
    const unsigned pixels = (b.n1 - b.n0) * a.in_map.height * a.in_map.width;
    float sum = 0, with_xhat = 0;
    if (c < end) {
        const float mean = a.input_mean[c], inv_std = a.input_inv_std[c];
        for (unsigned p = threadIdx.x / STRIP_CHANNELS; p < pixels; p += STRIPS) {
            const unsigned row = p / a.in_map.width;
            const int x = (int)(p % a.in_map.width), y = (int)(row % a.in_map.height),
                      n = b.n0 + (int)(row / a.in_map.height);
            const float z = a.input[pixel(a.in_map, n, y, x) + c];
            if (passes(a.input_scale[c] * z + a.input_shift[c], a.input_activation)) {
                const float g = a.output[pixel(target, n, y, x) + c];
                sum += g;
                with_xhat += g * ((z - mean) * inv_std);
            }
        }
    }
    sum = sum_strips(shared, sum);
    with_xhat = sum_strips(shared, with_xhat);
    if (threadIdx.x < STRIP_CHANNELS && c < end) {
        float *out = a.statistics + (long long)b.partial * 2 * a.in_map.pitch;
        out[c] = sum;
        out[a.in_map.pitch + c] = with_xhat;
    }
}
