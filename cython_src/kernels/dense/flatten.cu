/* Maps of the layout "nhwc" as vectors, and back: kernels/dense/dense.pyx. */

#include "cython_src/kernels/maps/nhwc.cuh"

/* A map as a vector of features in the order channel, row, column. Bounds: images. */
KERNEL(nhwc_flatten)
{
    const NhwcMap m = a.in_map;
    const auto &b = block_bounds(a);
    const int plane = m.height * m.width, features = m.channels * plane;
    for (unsigned i = thread_of_row(); i < (unsigned)(b.n1 - b.n0) * features; i += threads_of_row()) {
        const int n = b.n0 + (int)(i / features), at = (int)(i % features), p = at % plane;
        a.output[(long long)n * features + at] = a.input[pixel(m, n, p / m.width, p % m.width) + at / plane];
    }
}

/* Bounds: images, rows, channels. */
KERNEL(nhwc_flatten_backward)
{
    const NhwcMap m = a.out_map;
    const auto &b = block_bounds(a);
    const int end = channel_end(m, b.c1), accumulate = a.accumulate, plane = m.height * m.width;
    if (!accumulate)
        clear_channel_halo(m, a.output, b.n0, b.n1, b.y0, b.y1, b.c0, end);
    for_channels(m, b, b.c0, end, 1, [&](int n, int y, int x, int c) {
        const float g = c < b.c1 ? a.gradient[((long long)n * m.channels + c) * plane + y * m.width + x] : 0;
        put(a.output + pixel(m, n, y, x) + c, g, accumulate);
    });
}
