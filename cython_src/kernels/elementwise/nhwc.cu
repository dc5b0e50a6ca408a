/* Activation, sum of two maps and dropout of the layout "nhwc": kernels/elementwise/elementwise.pyx. */

#include "cython_src/kernels/elementwise/activations.cuh"
#include "cython_src/kernels/maps/nhwc.cuh"

/* out = activation(first [+ second]). */
template <typename Args>
__device__ inline void add_activate(const Args &a, const float *first, const float *second, int second_halo)
{
    const NhwcMap m = a.in_map, other = with_halo(m, second_halo), target = with_halo(m, a.out_halo);
    const auto &b = block_bounds(a);
    const int end = channel_end(m, b.c1);
    clear_channel_halo(target, a.output, b.n0, b.n1, b.y0, b.y1, b.c0, end);
    for_channels(m, b, b.c0, end, 4, [&](int n, int y, int x, int c) {
        float4 v = load4(first + pixel(m, n, y, x) + c);
        if (second) {
            const float4 w = load4(second + pixel(other, n, y, x) + c);
            v = each4([&](int i) { return lane4(v, i) + lane4(w, i); });
        }
        store4(a.output + pixel(target, n, y, x) + c,
               each4([&](int i) { return c + i < m.channels ? activate(lane4(v, i), a.activation) : 0; }));
    });
}

/* Bounds of these: images, rows, channels. */
KERNEL(nhwc_activation)
{
    add_activate(a, a.input, 0, 0);
}

KERNEL(nhwc_add)
{
    add_activate(a, a.first, a.second, a.second_halo);
}

/* The gradient, operand 0, where operand 1 passes it, written or added to a map. */
KERNEL(nhwc_activation_backward)
{
    const NhwcMap m = a.in_map, ys = with_halo(m, a.activations_halo), target = with_halo(m, a.out_halo);
    const auto &b = block_bounds(a);
    const int end = channel_end(m, b.c1), activation = a.activation, accumulate = a.accumulate;
    if (!accumulate)
        clear_channel_halo(target, a.output, b.n0, b.n1, b.y0, b.y1, b.c0, end);
    for_channels(m, b, b.c0, end, 4, [&](int n, int y, int x, int c) {
        float4 g = load4(a.gradient + pixel(m, n, y, x) + c);
        if (activation) {
            const float4 v = load4(a.activations + pixel(ys, n, y, x) + c);
            g = each4([&](int i) { return activation_gradient(lane4(g, i), lane4(v, i), activation); });
        }
        put4(a.output + pixel(target, n, y, x) + c, g, accumulate);
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
KERNEL(nhwc_dropout)
{
    const NhwcMap m = a.in_map, target = with_halo(m, a.out_halo);
    const auto &b = block_bounds(a);
    const int rows = b.y1 - b.y0, length = m.width * m.pitch, counters = divide_up(length, 64) * 16;
    const double limit = a.rate * 4294967296.0;
    const unsigned threshold = limit < 4294967295.0 ? (unsigned)limit : 4294967295u;
    const float scale = (float)(1 / (1 - a.rate));
    clear_channel_halo(target, a.output, b.n0, b.n1, b.y0, b.y1, 0, m.pitch);
    const unsigned total = (b.n1 - b.n0) * rows * counters;
    for (unsigned i = thread_of_row(); i < total; i += threads_of_row()) {
        const int at = (int)(i % counters), row = (int)(i / counters), y = b.y0 + row % rows, n = b.n0 + row / rows;
        const long long long_seed = a.seed;
        const Words words =
            philox({{(unsigned)at, (unsigned)(n * m.height + y), (unsigned)a.layer, (unsigned)iteration_of(a)}},
                   (unsigned)long_seed, (unsigned)(long_seed >> 32));
        for (int w = 0; w < 4; w++) {
            const int element = at / 16 * 64 + w * 16 + at % 16;
            if (element < length)
                a.output[pixel(target, n, y, 0) + element] =
                    words.w[w] >= threshold ? a.input[pixel(m, n, y, 0) + element] * scale : 0;
        }
    }
}
