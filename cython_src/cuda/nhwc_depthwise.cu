/* Depthwise convolution of the layout "channels": kernels_nhwc_depthwise.pyx. What lies outside a map counts as zero. */

struct Depthwise {
    ChannelMap source, target;
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

__device__ inline float inside_or_zero(const ChannelMap &m, const float *p, int n, int y, int x, int c)
{
    return y >= 0 && y < m.height && x >= 0 && x < m.width ? p[pixel(m, n, y, x) + c] : 0;
}

/* A thread for each number of the result. Bounds: images, rows, channels. */
KERNEL(nhwc_depthwise_forward)
{
    const Depthwise d = depthwise_at(a.integers);
    const int *b = block_bounds(a), end = channel_end(d.target, b[5]), taps = d.kernel * d.kernel;
    const float *input = (const float *)a.operand[0], *weight = (const float *)a.operand[1];
    const float *bias = (const float *)a.operand[2];
    float *out = (float *)a.operand[3];
    clear_channel_halo(d.target, out, b[0], b[1], b[2], b[3], b[4], end);
    for_channels(d.target, b, b[4], end, 1, [&](int n, int y, int x, int c) {
        float sum = 0;
        if (c < b[5]) {
            for (int tap = 0; tap < taps; tap++)
                sum += weight[(long long)c * taps + tap]
                       * inside_or_zero(d.source, input, n, y * d.stride - d.padding + tap / d.kernel,
                                        x * d.stride - d.padding + tap % d.kernel, c);
            sum = activate(sum + (bias ? bias[c] : 0), d.option);
        }
        out[pixel(d.target, n, y, x) + c] = sum;
    });
}

/* Bounds: images, rows of the input's gradient, channels. */
KERNEL(nhwc_depthwise_backward_data)
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
                    sum += weight[(long long)c * taps + tap]
                           * inside_or_zero(d.source, gradient, n, yy / d.stride, xx / d.stride, c);
            }
        float *p = out + pixel(d.target, n, y, x) + c;
        *p = d.option ? *p + sum : sum;
    });
}

/* A CUDA block for STRIP_CHANNELS channels and a tap, or the bias after the last tap; its threads are strips of pixels,
 * added by a tree. Bounds: images, rows of dY, channels, partial. */
KERNEL(nhwc_depthwise_backward_weights)
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
