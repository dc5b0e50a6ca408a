/* Depthwise convolution of the layout "nhwc": kernels/depthwise/depthwise.pyx. What lies outside a map counts as zero. */

#include "cython_src/kernels/elementwise/activations.cuh"
#include "cython_src/kernels/maps/nhwc.cuh"

/* What a convolution reads: a map, or activation(scale map + shift). */
struct Source {
    const float *map, *scale, *shift;
    int activation;
};

/* What a tap of the window of the result's pixel (y, x) reads. */
__device__ inline float read_source(const NhwcMap &m, const Source &s, const Window &w, int tap, int n, int y, int x,
                                    int c)
{
    y = y * w.stride - w.padding + tap / w.kernel;
    x = x * w.stride - w.padding + tap % w.kernel;
    if (y < 0 || y >= m.height || x < 0 || x >= m.width)
        return 0;
    const float z = s.map[pixel(m, n, y, x) + c];
    return s.scale ? activate(s.scale[c] * z + s.shift[c], s.activation) : z;
}

/* The sum over the windows that read pixel (y, x) of weight times value(y, x) of their pixel, one of the map `m`. */
template <typename Args, typename Value>
__device__ inline float gather(const Args &a, const NhwcMap &m, int y, int x, int c, Value value)
{
    const Window &w = a.window;
    float sum = 0;
    for (int tap = 0; tap < w.kernel * w.kernel; tap++) {
        const int yy = y + w.padding - tap / w.kernel, xx = x + w.padding - tap % w.kernel;
        if (yy >= 0 && xx >= 0 && yy % w.stride == 0 && xx % w.stride == 0 && yy / w.stride < m.height &&
            xx / w.stride < m.width)
            sum += a.weight[(long long)c * w.kernel * w.kernel + tap] * value(yy / w.stride, xx / w.stride);
    }
    return sum;
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
                sum += a.weight[(long long)c * taps + tap] * read_source(a.in_map, source, a.window, tap, n, y, x, c);
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
    const int end = channel_end(a.out_map, b.c1);
    if (!a.accumulate)
        clear_channel_halo(a.out_map, a.output, b.n0, b.n1, b.y0, b.y1, b.c0, end);
    for_channels(a.out_map, b, b.c0, end, 1, [&](int n, int y, int x, int c) {
        const auto value = [&](int yy, int xx) { return a.gradient[pixel(a.in_map, n, yy, xx) + c]; };
        put(a.output + pixel(a.out_map, n, y, x) + c, c < b.c1 ? gather(a, a.in_map, y, x, c, value) : 0, a.accumulate);
    });
}

/* A CUDA block for STRIP_CHANNELS channels and a tap, or the bias after the last tap; its threads are strips of pixels,
 * added by a tree. Bounds: images, rows of dY, channels, partial. */
KERNEL(nhwc_depthwise_backward_weights)
{
    const auto &b = block_bounds(a);
    const int taps = a.window.kernel * a.window.kernel, tap = (int)blockIdx.x % (taps + 1);
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
                return tap == taps ? g : g * read_source(a.in_map, source, a.window, tap, n, y, x, c);
            },
            [&](float product) { sum += product; });
    sum = sum_strips(shared, sum);
    if (threadIdx.x < STRIP_CHANNELS && c < b.c1) {
        const long long channel = (long long)b.partial * a.gradient_map.channels + c;
        put(tap == taps ? a.bias_output + channel : a.output + channel * taps + tap, sum, a.accumulate);
    }
}

/* ---- backward, with the norm after the convolution: three launches, for the input's gradient, the weights' and the sums of
 * the norm before (kernels/norm/nhwc.cu). The gradient of the convolution's result is computed wherever it is read. Bounds: images, channels,
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
    const int end = channel_end(a.in_map, b.c1);
    const NhwcMap target = with_halo(a.in_map, a.output_halo);
    const Box rows = {b.n0, b.n1, 0, a.in_map.height, b.c0, b.c1};
    clear_channel_halo(target, a.output, b.n0, b.n1, 0, a.in_map.height, b.c0, end);
    for_channels(a.in_map, rows, b.c0, end, 1, [&](int n, int y, int x, int c) {
        const auto value = [&](int yy, int xx) { return result_gradient(a, n, yy, xx, c); };
        a.output[pixel(target, n, y, x) + c] = c < b.c1 ? gather(a, a.out_map, y, x, c, value) : 0;
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
    const Source source = {a.input, a.input_scale, a.input_shift, a.input_activation};
    float sum = 0;
    if (c < b.c1)
        for_strip(
            a.out_map, b.n0, b.n1, 0, a.out_map.height,
            [&](int n, int y, int x) {
                return result_gradient(a, n, y, x, c) * read_source(a.in_map, source, a.window, tap, n, y, x, c);
            },
            [&](float product) { sum += product; });
    sum = sum_strips(shared, sum);
    if (threadIdx.x < STRIP_CHANNELS && c < b.c1)
        a.weight_partials[((long long)b.partial * a.out_map.channels + c) * taps + tap] = sum;
}
