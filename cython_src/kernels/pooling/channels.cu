/* Maximum, average and global average pooling of the layout "channels": kernels/pooling/pooling.pyx. A thread for each number
 * of the result; backward passes gather, window by window in order. */

#include "cython_src/kernels/maps/channels.cuh"

struct Windows {
    ChannelsMap source, target;
    int kernel, stride, padding;
};

__device__ inline Windows windows_at(const int *integers)
{
    Windows w;
    w.source = channel_map_at(integers);
    w.target = channel_map_at(integers + 5);
    w.kernel = integers[10];
    w.stride = integers[11];
    w.padding = integers[12];
    return w;
}

/* Bounds of these: images, rows of the map that is written, channels. */
template <bool MAXIMUM>
__device__ inline void channels_pool(const GpuArgs &a)
{
    const Windows w = windows_at(a.integers);
    const int *b = block_bounds(a), end = channel_end(w.target, b[5]);
    const float *input = (const float *)a.operand[0];
    float *out = (float *)a.operand[1];
    unsigned char *index = (unsigned char *)a.operand[2];
    clear_channel_halo(w.target, out, b[0], b[1], b[2], b[3], b[4], end);
    for_channels(w.target, b, b[4], end, 1, [&](int n, int y, int x, int c) {
        float value = 0;
        int which = -1;
        for (int tap = 0; tap < w.kernel * w.kernel; tap++) {
            const int yy = y * w.stride - w.padding + tap / w.kernel, xx = x * w.stride - w.padding + tap % w.kernel;
            if (yy < 0 || yy >= w.source.height || xx < 0 || xx >= w.source.width)
                continue;
            const float v = input[pixel(w.source, n, yy, xx) + c];
            if (!MAXIMUM) {
                value += v;
            } else if (which < 0 || (value == value && (v > value || v != v))) { /* the first NaN stays */
                value = v;
                which = tap;
            }
        }
        out[pixel(w.target, n, y, x) + c] = MAXIMUM ? value : value * (1.0f / (w.kernel * w.kernel));
        if (MAXIMUM)
            index[(((long long)n * w.target.height + y) * w.target.width + x) * w.target.pitch + c] =
                (unsigned char)which;
    });
}

template <bool MAXIMUM>
__device__ inline void channels_pool_backward(const GpuArgs &a)
{
    const Windows w = windows_at(a.integers);
    const int *b = block_bounds(a), end = channel_end(w.target, b[5]), accumulate = a.integers[13];
    const float *gradient = (const float *)a.operand[0];
    const unsigned char *index = (const unsigned char *)a.operand[1];
    float *out = (float *)a.operand[MAXIMUM ? 2 : 1];
    if (!accumulate)
        clear_channel_halo(w.target, out, b[0], b[1], b[2], b[3], b[4], end);
    for_channels(w.target, b, b[4], end, 1, [&](int n, int y, int x, int c) {
        float sum = 0;
        const int first_y = max(0, divide_up(y + w.padding - w.kernel + 1, w.stride));
        const int first_x = max(0, divide_up(x + w.padding - w.kernel + 1, w.stride));
        const int last_y = min(w.source.height - 1, (y + w.padding) / w.stride);
        const int last_x = min(w.source.width - 1, (x + w.padding) / w.stride);
        for (int oy = first_y; oy <= last_y; oy++)
            for (int ox = first_x; ox <= last_x; ox++) {
                const int tap = (y + w.padding - oy * w.stride) * w.kernel + x + w.padding - ox * w.stride;
                const float g = gradient[pixel(w.source, n, oy, ox) + c];
                if (!MAXIMUM)
                    sum += g * (1.0f / (w.kernel * w.kernel));
                else if (index[(((long long)n * w.source.height + oy) * w.source.width + ox) * w.source.pitch + c] ==
                         tap)
                    sum += g;
            }
        float *p = out + pixel(w.target, n, y, x) + c;
        *p = accumulate ? *p + sum : sum;
    });
}

KERNEL(channels_max_pool)
{
    channels_pool<true>(a);
}
KERNEL(channels_average_pool)
{
    channels_pool<false>(a);
}
KERNEL(channels_max_pool_backward)
{
    channels_pool_backward<true>(a);
}
KERNEL(channels_average_pool_backward)
{
    channels_pool_backward<false>(a);
}

/* Bounds: images, channels; the result is (batch, channels). */
KERNEL(channels_global_pool)
{
    const ChannelsMap m = channel_map_at(a.integers);
    const int *b = block_bounds(a), count = b[3] - b[2];
    const float *input = (const float *)a.operand[0];
    for (int i = thread_of_row(); i < (b[1] - b[0]) * count; i += threads_of_row()) {
        const int c = b[2] + i % count, n = b[0] + i / count;
        float total = 0;
        for (int y = 0; y < m.height; y++) {
            float sum = 0;
            for (int x = 0; x < m.width; x++)
                sum += input[pixel(m, n, y, x) + c];
            total += sum;
        }
        ((float *)a.operand[1])[(long long)n * m.channels + c] = total / (m.height * m.width);
    }
}

/* Bounds: images, rows, channels. */
KERNEL(channels_global_pool_backward)
{
    const ChannelsMap m = channel_map_at(a.integers);
    const int *b = block_bounds(a), end = channel_end(m, b[5]), accumulate = a.integers[5];
    const float *gradient = (const float *)a.operand[0];
    const float share = (float)(1.0 / (m.height * m.width));
    float *out = (float *)a.operand[1];
    if (!accumulate)
        clear_channel_halo(m, out, b[0], b[1], b[2], b[3], b[4], end);
    for_channels(m, b, b[4], end, 1, [&](int n, int y, int x, int c) {
        const float g = c < b[5] ? share * gradient[(long long)n * m.channels + c] : 0;
        float *p = out + pixel(m, n, y, x) + c;
        *p = accumulate ? *p + g : g;
    });
}
