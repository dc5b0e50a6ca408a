/* Maps of the layout "channels" as vectors, and back: kernels/dense/dense.pyx. */

#include "cython_src/kernels/maps/channels.cuh"

/* A map as a vector of features in the order channel, row, column. Bounds: images. */
KERNEL(channels_flatten)
{
    const ChannelsMap m = channel_map_at(a.integers);
    const int *b = block_bounds(a), plane = m.height * m.width, features = m.channels * plane;
    const float *input = (const float *)a.operand[0];
    for (unsigned i = thread_of_row(); i < (unsigned)(b[1] - b[0]) * features; i += threads_of_row()) {
        const int n = b[0] + (int)(i / features), at = (int)(i % features), p = at % plane;
        ((float *)a.operand[1])[(long long)n * features + at] =
            input[pixel(m, n, p / m.width, p % m.width) + at / plane];
    }
}

/* Bounds: images, rows, channels. */
KERNEL(channels_flatten_backward)
{
    const ChannelsMap m = channel_map_at(a.integers);
    const int *b = block_bounds(a), end = channel_end(m, b[5]), accumulate = a.integers[5], plane = m.height * m.width;
    const float *gradient = (const float *)a.operand[0];
    float *out = (float *)a.operand[1];
    if (!accumulate)
        clear_channel_halo(m, out, b[0], b[1], b[2], b[3], b[4], end);
    for_channels(m, b, b[4], end, 1, [&](int n, int y, int x, int c) {
        const float g = c < b[5] ? gradient[((long long)n * m.channels + c) * plane + y * m.width + x] : 0;
        float *p = out + pixel(m, n, y, x) + c;
        *p = accumulate ? *p + g : g;
    });
}
