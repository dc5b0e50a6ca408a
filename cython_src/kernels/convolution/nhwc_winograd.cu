/* Winograd's F(2x2, 3x3) in the layout "nhwc": packed weights are transformed ones, 16 points instead of 9 taps
 * (kernels/convolution/algorithms.py), and 4 outputs take 16 products instead of 36. Weight gradients have no such form here.
 *
 * A CUDA block owns TILES tiles of 2 x 2 pixels and OUTS channels, and each thread one point of 8 x 8 of them. Inputs are
 * transformed on their way to shared memory, sums on their way out of it, so nothing but maps and weights passes through
 * the device's memory. Every sum runs over the channels in order, whatever the tile.
 *
 * Lavin, Gray: Fast algorithms for convolutional neural networks (CVPR 2016); points 0, 1, -1 and infinity. */

#include "cython_src/kernels/convolution/nhwc.cuh"
#include "cython_src/kernels/elementwise/activations.cuh"

#define POINTS 16
#define DEPTH  8 /* input channels that lie in shared memory together */

__device__ inline void winograd_input(const float (&d)[4], float (&v)[4])
{
    v[0] = d[2] - d[0];
    v[1] = d[1] + d[2];
    v[2] = d[2] - d[1];
    v[3] = d[3] - d[1];
}

__device__ inline void winograd_filter(const float (&g)[3], float (&v)[4])
{
    const float even = 0.5f * (g[0] + g[2]), odd = 0.5f * g[1];
    v[0] = -g[0];
    v[1] = even + odd;
    v[2] = even - odd;
    v[3] = g[2];
}

/* Bounds: panels. Operands: weights (O, I / groups, 3, 3), panels (points, K, 16). */
KERNEL_OF(nhwc_winograd_pack, nhwc_conv_pack)
{
    const auto &b = block_bounds(a);
    const int ins = a.in_channels, groups = a.groups;
    const bool data = a.direction == 1;
    const int written = data ? ins : a.out_channels, read = data ? a.out_channels : ins, part = ins / groups;
    const int depth = panel_depth(written, read, groups);
    const unsigned size = depth * LANES, total = (b.o1 - b.o0) * size;
    for (unsigned i = thread_of_row(); i < total; i += threads_of_row()) {
        const int panel = b.o0 + (int)(i / size), lane = (int)(i % LANES), k = (int)(i % size) / LANES;
        const int to = panel * LANES + lane, from = panel_start(panel, depth, written, read, groups) + k;
        const bool there = to < written && from < read && to / (written / groups) == from / (read / groups);
        const float *w =
            a.weight + (data ? (long long)from * part + to % part : (long long)to * part + from % part) * 9;
        float half[3][4];
#pragma unroll
        for (int x = 0; x < 3; x++) {
            float column[3];
#pragma unroll
            for (int y = 0; y < 3; y++)
                column[y] = there ? w[data ? 8 - 3 * y - x : 3 * y + x] : 0;
            winograd_filter(column, half[x]);
        }
#pragma unroll
        for (int y = 0; y < 4; y++) {
            const float row[3] = {half[0][y], half[1][y], half[2][y]};
            float v[4];
            winograd_filter(row, v);
#pragma unroll
            for (int x = 0; x < 4; x++)
                a.packed[((long long)panel * POINTS + 4 * y + x) * size + k * LANES + lane] = v[x];
        }
    }
}

/* Forward pass, whose `option` is the activation, and data gradient, whose `option` is to accumulate. Bounds: images, rows, channels of the map that is written. */
template <int OUTS, bool DATA, typename Args>
__device__ void winograd(const Args &a, const float *input, const float *bias, int option)
{
    constexpr int TILES = 512 / OUTS;
    float *inputs = shared;                                /* [POINTS][DEPTH][TILES] */
    float *weights = inputs + POINTS * DEPTH * TILES;      /* [POINTS][DEPTH][OUTS] */
    float *sums = shared;                                  /* at the end: [POINTS][TILES][OUTS] */
    int *places = (int *)(shared + POINTS * TILES * OUTS); /* [TILES][3]: image (-1: none), row, column */
    const Geometry &g = a.geometry;
    const NhwcMap &source = a.in_map, &target = a.out_map;
    const auto &b = block_bounds(a);
    const int end = channel_end(target, b.c1), padding = DATA ? 2 - g.padding : g.padding, width = target.width;
    const bool accumulate = DATA && option;
    if (!accumulate)
        clear_channel_halo(target, a.output, b.n0, b.n1, b.y0, b.y1, b.c0, end);
    const int tiles_x = divide_up(width, 2), tiles_y = divide_up(b.y1 - b.y0, 2),
              total = (b.n1 - b.n0) * tiles_y * tiles_x;
    const int parts = divide_up(end - b.c0, OUTS), c0 = b.c0 + (int)blockIdx.x % parts * OUTS;
    const int first = (int)blockIdx.x / parts * TILES;
    if (first >= total) /* the whole CUDA block: no barrier is missed */
        return;
    for (int i = threadIdx.x; i < TILES; i += THREADS) {
        const int tile = first + i;
        places[3 * i] = tile < total ? b.n0 + tile / tiles_x / tiles_y : -1;
        places[3 * i + 1] = b.y0 + tile / tiles_x % tiles_y * 2;
        places[3 * i + 2] = tile % tiles_x * 2;
    }
    const int depth = panel_depth(target.channels, source.channels, g.groups);
    const int start = panel_start(c0 / LANES, depth, target.channels, source.channels, g.groups);
    const int point = threadIdx.x / 8, tile0 = (int)threadIdx.x % 8 / (OUTS / 8) * 8,
              out0 = (int)threadIdx.x % (OUTS / 8) * 8;
    float sum[8][8];
    clear(sum);
    for (int k0 = 0; k0 < depth; k0 += DEPTH) {
        __syncthreads();
        for (int i = threadIdx.x; i < TILES * DEPTH; i += THREADS) {
            const int k = i % DEPTH, tile = i / DEPTH, n = places[3 * tile], y = places[3 * tile + 1],
                      x = places[3 * tile + 2];
            const bool there = n >= 0 && k0 + k < depth;
            /* What only the missing part of a tile at the edge needs lies outside of what may be read. */
            const int rows = there ? b.y1 - y + 2 : 0, columns = width - x + 2;
            const float *p = input + (there ? pixel(source, n, y - padding, x - padding) + start + k0 + k : 0);
            float half[4][4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                float column[4];
#pragma unroll
                for (int r = 0; r < 4; r++)
                    column[r] = r < rows && j < columns ? p[r * row_size(source) + (long long)j * source.pitch] : 0;
                winograd_input(column, half[j]);
            }
#pragma unroll
            for (int r = 0; r < 4; r++) {
                const float row[4] = {half[0][r], half[1][r], half[2][r], half[3][r]};
                float v[4];
                winograd_input(row, v);
#pragma unroll
                for (int j = 0; j < 4; j++)
                    inputs[((4 * r + j) * DEPTH + k) * TILES + tile] = v[j];
            }
        }
        for (int i = threadIdx.x; i < POINTS * DEPTH * OUTS; i += THREADS) {
            const int o = i % OUTS, k = i / OUTS % DEPTH, p = i / OUTS / DEPTH, c = c0 + o;
            weights[i] = c < end && k0 + k < depth
                             ? a.packed[(((long long)(c / LANES) * POINTS + p) * depth + k0 + k) * LANES + c % LANES]
                             : 0;
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < DEPTH; k++) {
            float l[8], r[8];
            load_spread<8>(inputs + (point * DEPTH + k) * TILES + tile0, 0, 1, l);
            load_spread<8>(weights + (point * DEPTH + k) * OUTS + out0, 0, 1, r);
#pragma unroll
            for (int i = 0; i < 8; i++)
#pragma unroll
                for (int j = 0; j < 8; j++)
                    sum[i][j] += l[i] * r[j];
        }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 8; i++)
#pragma unroll
        for (int j = 0; j < 8; j++)
            sums[(point * TILES + tile0 + i) * OUTS + out0 + j] = sum[i][j];
    __syncthreads();
    for (int i = threadIdx.x; i < TILES * OUTS; i += THREADS) {
        const int tile = i / OUTS, c = c0 + i % OUTS, n = places[3 * tile], y = places[3 * tile + 1],
                  x = places[3 * tile + 2];
        if (n < 0 || c >= end)
            continue;
        float half[2][4]; /* rows of outputs, columns of points */
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float p[4];
#pragma unroll
            for (int r = 0; r < 4; r++)
                p[r] = sums[(4 * r + j) * TILES * OUTS + i];
            half[0][j] = p[0] + (p[1] + p[2]);
            half[1][j] = (p[1] - p[2]) + p[3];
        }
        const float add = bias && c < b.c1 ? bias[c] : 0;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float v[2] = {half[r][0] + (half[r][1] + half[r][2]), (half[r][1] - half[r][2]) + half[r][3]};
#pragma unroll
            for (int j = 0; j < 2; j++)
                if (y + r < b.y1 && x + j < width)
                    put(a.output + pixel(target, n, y + r, x + j) + c, DATA ? v[j] : activate(v[j] + add, option),
                        accumulate);
        }
    }
}

#define WINOGRADS(outs)                                                           \
    KERNEL_OF(nhwc_winograd_forward_##outs, nhwc_conv_forward)                    \
    {                                                                             \
        winograd<outs, false>(a, a.input, a.bias, a.residual ? 0 : a.activation); \
    }                                                                             \
    KERNEL_OF(nhwc_winograd_backward_data_##outs, nhwc_conv_backward_data)        \
    {                                                                             \
        winograd<outs, true>(a, a.gradient, 0, a.accumulate);                     \
    }
WINOGRADS(32)
WINOGRADS(16)
