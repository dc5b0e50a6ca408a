/* Activation, sum of two maps and dropout of the layout "channels": kernels/elementwise/elementwise.pyx. */

#include "cython_src/kernels/elementwise/activations.cuh"
#include "cython_src/kernels/maps/channels.cuh"

/* out = activation(first [+ second]). */
__device__ inline void add_activate(const GpuArgs &a, const float *second, int second_halo, float *out, int out_halo,
                                    int activation)
{
    const ChannelsMap m = channel_map_at(a.integers), other = with_halo(m, second_halo),
                      target = with_halo(m, out_halo);
    const int *b = block_bounds(a), end = channel_end(m, b[5]);
    const float *first = (const float *)a.operand[0];
    clear_channel_halo(target, out, b[0], b[1], b[2], b[3], b[4], end);
    for_channels(m, b, b[4], end, 4, [&](int n, int y, int x, int c) {
        float4 v = load4(first + pixel(m, n, y, x) + c);
        if (second) {
            const float4 w = load4(second + pixel(other, n, y, x) + c);
            v = each4([&](int i) { return lane4(v, i) + lane4(w, i); });
        }
        store4(out + pixel(target, n, y, x) + c, each4([&](int i) { return activate(lane4(v, i), activation); }));
    });
}

/* Bounds of these: images, rows, channels. */
KERNEL(channels_activation)
{
    add_activate(a, 0, 0, (float *)a.operand[1], a.integers[5], a.integers[6]);
}

KERNEL(channels_add)
{
    add_activate(a, (const float *)a.operand[1], a.integers[5], (float *)a.operand[2], a.integers[6], a.integers[7]);
}

/* The gradient, operand 0, where operand 1 passes it, written or added to a map. */
KERNEL(channels_activation_backward)
{
    const ChannelsMap m = channel_map_at(a.integers), ys = with_halo(m, a.integers[5]),
                      target = with_halo(m, a.integers[6]);
    const int *b = block_bounds(a), end = channel_end(m, b[5]), activation = a.integers[7], accumulate = a.integers[8];
    const float *gradient = (const float *)a.operand[0], *result = (const float *)a.operand[1];
    float *out = (float *)a.operand[2];
    if (!accumulate)
        clear_channel_halo(target, out, b[0], b[1], b[2], b[3], b[4], end);
    for_channels(m, b, b[4], end, 4, [&](int n, int y, int x, int c) {
        float4 g = load4(gradient + pixel(m, n, y, x) + c);
        if (activation) {
            const float4 v = load4(result + pixel(ys, n, y, x) + c);
            g = each4([&](int i) { return passes(lane4(v, i), activation) ? lane4(g, i) : 0; });
        }
        put4(out + pixel(target, n, y, x) + c, g, accumulate);
    });
}

struct Words {
    unsigned w[4];
};

/* Philox4x32-10: four words from four counter words and two key words. */
__device__ inline Words philox(Words c, unsigned k0, unsigned k1)
{
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const unsigned long long p0 = (unsigned long long)c.w[0] * 0xD2511F53u;
        const unsigned long long p1 = (unsigned long long)c.w[2] * 0xCD9E8D57u;
        c = {{(unsigned)(p1 >> 32) ^ c.w[1] ^ k0, (unsigned)p1, (unsigned)(p0 >> 32) ^ c.w[3] ^ k1, (unsigned)p0}};
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return c;
}

/* Bounds: images, rows. A thread makes the four words of a counter: elements 16 apart in a row of the map. */
KERNEL(channels_dropout)
{
    const ChannelsMap m = channel_map_at(a.integers), target = with_halo(m, a.integers[5]);
    const int *b = block_bounds(a), rows = b[3] - b[2], length = m.width * m.pitch,
              counters = divide_up(length, 64) * 16;
    const double limit = a.reals[0] * 4294967296.0;
    const unsigned threshold = limit < 4294967295.0 ? (unsigned)limit : 4294967295u;
    const float scale = (float)(1 / (1 - a.reals[0]));
    const float *input = (const float *)a.operand[0];
    float *out = (float *)a.operand[1];
    clear_channel_halo(target, out, b[0], b[1], b[2], b[3], 0, m.pitch);
    const unsigned total = (b[1] - b[0]) * rows * counters;
    for (unsigned i = thread_of_row(); i < total; i += threads_of_row()) {
        const int at = (int)(i % counters), row = (int)(i / counters), y = b[2] + row % rows, n = b[0] + row / rows;
        const long long long_seed = a.integers[6];
        const Words words =
            philox({{(unsigned)at, (unsigned)(n * m.height + y), (unsigned)a.integers[7], (unsigned)iteration_of(a)}},
                   (unsigned)long_seed, (unsigned)(long_seed >> 32));
        for (int w = 0; w < 4; w++) {
            const int element = at / 16 * 64 + w * 16 + at % 16;
            if (element < length)
                out[pixel(target, n, y, 0) + element] =
                    words.w[w] >= threshold ? input[pixel(m, n, y, 0) + element] * scale : 0;
        }
    }
}
