/* Maxima of 2 x 2 windows, forward and backward; the index says which element of its window a maximum was, 4 that
 * ReLU stopped it (kernels/pooling/pooling.pyx). */

#include "cython_src/kernels/maps/nchw.cuh"

KERNEL(pool_forward)
{
    const Map source = a.in_map, target = a.out_map;
    const auto &b = block_bounds(a);
    clear_halo(target, a.output, b.g0, b.g1, b.c0, b.c1, b.y0, b.y1);
    for_places(b, target.width, target.lanes, [&](const Place &p) {
        float best = a.input[pixel(source, p.group, p.channel, 2 * p.y, 2 * p.x) + p.lane];
        int which = 0;
        for (int k = 1; k < 4; k++) {
            const float v = a.input[pixel(source, p.group, p.channel, 2 * p.y + k / 2, 2 * p.x + k % 2) + p.lane];
            if (best == best && (v > best || v != v)) { /* the first NaN stays */
                best = v;
                which = k;
            }
        }
        a.output[pixel(target, p.group, p.channel, p.y, p.x) + p.lane] = best;
        a.index[((((long long)p.group * target.channels + p.channel) * target.height + p.y) * target.width + p.x) *
                    target.lanes +
                p.lane] = which;
    });
}

KERNEL(pool_backward)
{
    const Map source = a.in_map, target = a.out_map;
    const auto &b = block_bounds(a);
    clear_halo(target, a.output, b.g0, b.g1, b.c0, b.c1, 2 * b.y0, 2 * b.y1);
    for_places(b, source.width, source.lanes, [&](const Place &p) {
        const float value = a.gradient[pixel(source, p.group, p.channel, p.y, p.x) + p.lane];
        const int which =
            a.index[((((long long)p.group * source.channels + p.channel) * source.height + p.y) * source.width + p.x) *
                        source.lanes +
                    p.lane];
        for (int k = 0; k < 4; k++)
            a.output[pixel(target, p.group, p.channel, 2 * p.y + k / 2, 2 * p.x + k % 2) + p.lane] =
                which == k ? value : 0;
    });
}
