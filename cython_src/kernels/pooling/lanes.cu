/* Maxima of 2 x 2 windows, forward and backward; the index says which element of its window a maximum was, 4 that
 * ReLU stopped it (kernels/pooling/pooling.pyx). */

#include "cython_src/kernels/maps/lanes.cuh"

KERNEL(pool_forward)
{
    const Map source = map_at(a.integers), target = map_at(a.integers + 7);
    const int *b = block_bounds(a), rows = b[5] - b[4];
    const float *input = (const float *)a.operand[0];
    float *out = (float *)a.operand[1];
    unsigned char *index = (unsigned char *)a.operand[2];
    clear_halo(target, out, b[0], b[1], b[2], b[3], b[4], b[5]);
    const long long items = (long long)(b[1] - b[0]) * (b[3] - b[2]) * rows * target.width * target.lanes;
    for (long long i = thread_of_row(); i < items; i += threads_of_row()) {
        const Place p = place_of(i, b, rows, target.width, target.lanes);
        float best = input[pixel(source, p.group, p.channel, 2 * p.y, 2 * p.x) + p.lane];
        int which = 0;
        for (int k = 1; k < 4; k++) {
            const float v = input[pixel(source, p.group, p.channel, 2 * p.y + k / 2, 2 * p.x + k % 2) + p.lane];
            if (best == best && (v > best || v != v)) { /* the first NaN stays */
                best = v;
                which = k;
            }
        }
        out[pixel(target, p.group, p.channel, p.y, p.x) + p.lane] = best;
        index[((((long long)p.group * target.channels + p.channel) * target.height + p.y) * target.width + p.x) *
                  target.lanes +
              p.lane] = which;
    }
}

KERNEL(pool_backward)
{
    const Map source = map_at(a.integers), target = map_at(a.integers + 7);
    const int *b = block_bounds(a), rows = b[5] - b[4];
    const float *gradient = (const float *)a.operand[0];
    const unsigned char *index = (const unsigned char *)a.operand[1];
    float *out = (float *)a.operand[2];
    clear_halo(target, out, b[0], b[1], b[2], b[3], 2 * b[4], 2 * b[5]);
    const long long items = (long long)(b[1] - b[0]) * (b[3] - b[2]) * rows * source.width * source.lanes;
    for (long long i = thread_of_row(); i < items; i += threads_of_row()) {
        const Place p = place_of(i, b, rows, source.width, source.lanes);
        const float value = gradient[pixel(source, p.group, p.channel, p.y, p.x) + p.lane];
        const int which =
            index[((((long long)p.group * source.channels + p.channel) * source.height + p.y) * source.width + p.x) *
                      source.lanes +
                  p.lane];
        for (int k = 0; k < 4; k++)
            out[pixel(target, p.group, p.channel, 2 * p.y + k / 2, 2 * p.x + k % 2) + p.lane] = which == k ? value : 0;
    }
}
