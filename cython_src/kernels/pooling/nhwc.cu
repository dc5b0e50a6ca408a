/* Maximum, average and global average pooling of the layout "nhwc": kernels/pooling/pooling.pyx. A thread for each number
 * of the result; backward passes gather, window by window in order. */

#include "cython_src/kernels/maps/nhwc.cuh"

/* Bounds of these: images, rows of the map that is written, channels. */
KERNEL(nhwc_pool)
{
    const bool maximum = a.index != 0;
    const Window w = a.window;
    const auto &b = block_bounds(a);
    const int end = channel_end(a.out_map, b.c1);
    clear_channel_halo(a.out_map, a.output, b.n0, b.n1, b.y0, b.y1, b.c0, end);
    for_channels(a.out_map, b, b.c0, end, 1, [&](int n, int y, int x, int c) {
        float value = 0;
        int which = -1;
        for (int tap = 0; tap < w.kernel * w.kernel; tap++) {
            const int yy = y * w.stride - w.padding + tap / w.kernel, xx = x * w.stride - w.padding + tap % w.kernel;
            if (yy < 0 || yy >= a.in_map.height || xx < 0 || xx >= a.in_map.width)
                continue;
            const float v = a.input[pixel(a.in_map, n, yy, xx) + c];
            if (!maximum) {
                value += v;
            } else if (which < 0 || (value == value && (v > value || v != v))) { /* the first NaN stays */
                value = v;
                which = tap;
            }
        }
        a.output[pixel(a.out_map, n, y, x) + c] = maximum ? value : value * (1.0f / (w.kernel * w.kernel));
        if (maximum)
            a.index[(((long long)n * a.out_map.height + y) * a.out_map.width + x) * a.out_map.pitch + c] =
                (unsigned char)which;
    });
}

KERNEL(nhwc_pool_backward)
{
    const auto &b = block_bounds(a);
    const int end = channel_end(a.out_map, b.c1), accumulate = a.accumulate;
    if (!accumulate)
        clear_channel_halo(a.out_map, a.output, b.n0, b.n1, b.y0, b.y1, b.c0, end);
    for_channels(a.out_map, b, b.c0, end, 1, [&](int n, int y, int x, int c) {
        float sum = 0;
        const int first_y = max(0, divide_up(y + a.window.padding - a.window.kernel + 1, a.window.stride));
        const int first_x = max(0, divide_up(x + a.window.padding - a.window.kernel + 1, a.window.stride));
        const int last_y = min(a.in_map.height - 1, (y + a.window.padding) / a.window.stride);
        const int last_x = min(a.in_map.width - 1, (x + a.window.padding) / a.window.stride);
        for (int oy = first_y; oy <= last_y; oy++)
            for (int ox = first_x; ox <= last_x; ox++) {
                const int tap = (y + a.window.padding - oy * a.window.stride) * a.window.kernel + x + a.window.padding -
                                ox * a.window.stride;
                const float g = a.gradient[pixel(a.in_map, n, oy, ox) + c];
                if (!a.index)
                    sum += g * (1.0f / (a.window.kernel * a.window.kernel));
                else if (a.index[(((long long)n * a.in_map.height + oy) * a.in_map.width + ox) * a.in_map.pitch + c] ==
                         tap)
                    sum += g;
            }
        put(a.output + pixel(a.out_map, n, y, x) + c, sum, accumulate);
    });
}

/* Bounds: images, channels; the result is (batch, channels). */
KERNEL(nhwc_global_pool)
{
    const NhwcMap m = a.in_map;
    const auto &b = block_bounds(a);
    const int count = b.c1 - b.c0;
    for (int i = thread_of_row(); i < (b.n1 - b.n0) * count; i += threads_of_row()) {
        const int c = b.c0 + i % count, n = b.n0 + i / count;
        float total = 0;
        for (int y = 0; y < m.height; y++) {
            float sum = 0;
            for (int x = 0; x < m.width; x++)
                sum += a.input[pixel(m, n, y, x) + c];
            total += sum;
        }
        a.output[(long long)n * m.channels + c] = total / (m.height * m.width);
    }
}

/* Bounds: images, rows, channels. */
KERNEL(nhwc_global_pool_backward)
{
    const NhwcMap m = a.out_map;
    const auto &b = block_bounds(a);
    const int end = channel_end(m, b.c1), accumulate = a.accumulate;
    const float share = (float)(1.0 / (m.height * m.width));
    if (!accumulate)
        clear_channel_halo(m, a.output, b.n0, b.n1, b.y0, b.y1, b.c0, end);
    for_channels(m, b, b.c0, end, 1, [&](int n, int y, int x, int c) {
        const float g = c < b.c1 ? share * a.gradient[(long long)n * m.channels + c] : 0;
        put(a.output + pixel(m, n, y, x) + c, g, accumulate);
    });
}
