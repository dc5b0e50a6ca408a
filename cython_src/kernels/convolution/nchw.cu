/* Convolution with 5 x 5 kernels and stride 1, whose padding is the halo of the map it reads: forward (alone, or with ReLU and pooling), data gradient (alone,
 * or with the backward pass of the pooling and ReLU before it) and weight gradient. Formulas: kernels/convolution/nchw_convolution.pyx. */

#include "cython_src/kernels/convolution/grid_sizes.cuh" /* TAPS and others, written from SIZES of grids.py */
#include "cython_src/kernels/maps/nchw.cuh"

#define STORE  0
#define POOL   1
#define UNPOOL 2

/* Y[o] += sum over c, ky, kx of W[o, c, ky, kx] X[c, y + ky - p, x + kx - p], for a window of 2 x 2 pixels and COUNT
 * output channels by a.parts threads, of which each takes every a.parts-th c, in the order c, ky, kx; their sums are added
 * in order, whatever COUNT is.
 *
 * Input comes through the L1 cache (consecutive threads take consecutive lanes or pixels), weights from shared memory,
 * where all threads read the same number. FLIP exchanges the channels' roles and reverses the taps: the data gradient. */
template <int COUNT, bool FLIP, int EPILOGUE, typename Args>
__device__ void convolve(const Args &a)
{
    float *weights = shared; /* [CHANNELS_AT_ONCE][TAPS][COUNT], then [COUNT][4][THREADS] sums */
    const Map source = a.in_map, target = a.out_map;
    const auto b = block_bounds(a);
    float *out = a.output;
    const int spread = EPILOGUE == UNPOOL ? 2 : 1, scale = EPILOGUE == POOL ? 2 : 1;
    const int first_row = b.y0 * scale, rows = (b.y1 - b.y0) * scale;
    const int height = source.height + 2 * source.halo - 4, width = source.width + 2 * source.halo - 4;
    const int windows_x = EPILOGUE == POOL ? target.width : divide_up(width, 2), windows_y = divide_up(rows, 2);
    const int items = (b.g1 - b.g0) * windows_y * windows_x * source.lanes;
    const int together = THREADS / a.parts, tiles = divide_up(items, together), part = threadIdx.x / together;
    const int o0 = b.c0 + (int)blockIdx.x / tiles * COUNT;
    clear_halo(target, out, b.g0, b.g1, b.c0, b.c1, b.y0 * spread, b.y1 * spread);
    if (o0 >= b.c1) /* the whole CUDA block: no barrier is missed */
        return;
    const int item = (int)blockIdx.x % tiles * together + threadIdx.x % together;
    const int lane = item % source.lanes, px = item / source.lanes % windows_x;
    const int wy = item / source.lanes / windows_x % windows_y;
    const int g = b.g0 + item / source.lanes / windows_x / windows_y;
    const int y = first_row + 2 * wy, x = 2 * px;
    const bool active = item < items, two_rows = 2 * wy + 1 < rows, two_columns = x + 1 < width;
    float sum[COUNT][4];
    for (int o = 0; o < COUNT; o++)
        for (int k = 0; k < 4; k++)
            sum[o][k] = FLIP || part || o0 + o >= b.c1 ? 0 : a.bias[o0 + o];
    for (int c0 = 0; c0 < source.channels; c0 += CHANNELS_AT_ONCE) {
        const int count = min(CHANNELS_AT_ONCE, source.channels - c0);
        __syncthreads();
#pragma unroll 2
        for (int i = threadIdx.x; i < count * TAPS; i += THREADS) {
            const int c = c0 + i / TAPS, tap = i % TAPS;
#pragma unroll
            for (int k = 0; k < COUNT; k++) {
                const int o = min(o0 + k, b.c1 - 1);
                weights[i * COUNT + k] = FLIP ? a.weight[((long long)c * target.channels + o) * TAPS + TAPS - 1 - tap]
                                              : a.weight[((long long)o * source.channels + c) * TAPS + tap];
            }
        }
        __syncthreads();
        if (!active)
            continue;
#pragma unroll 2 /* loads of two channels under way */
        for (int c = part; c < count; c += a.parts) {
            const float *corner = a.input + pixel(source, g, c0 + c, y - source.halo, x - source.halo) + lane;
            const float *here = weights + c * TAPS * COUNT;
            float v[6][6];
#pragma unroll
            for (int r = 0; r < 6; r++)
#pragma unroll
                for (int k = 0; k < 6; k++)
                    v[r][k] = (r < 5 || two_rows) && (k < 5 || two_columns)
                                  ? corner[((long long)r * source.pitch + k) * source.lanes]
                                  : 0;
#pragma unroll
            for (int ky = 0; ky < 5; ky++)
#pragma unroll
                for (int kx = 0; kx < 5; kx++)
#pragma unroll
                    for (int o = 0; o < COUNT; o++) {
                        const float weight = here[(ky * 5 + kx) * COUNT + o];
                        sum[o][0] += weight * v[ky][kx];
                        sum[o][1] += weight * v[ky][kx + 1];
                        sum[o][2] += weight * v[ky + 1][kx];
                        sum[o][3] += weight * v[ky + 1][kx + 1];
                    }
        }
    }
    float *sums = shared + threadIdx.x;
    __syncthreads(); /* all have read the weights */
#pragma unroll
    for (int k = 0; k < 4 * COUNT; k++)
        sums[k * THREADS] = sum[k / 4][k % 4];
    __syncthreads();
    if (!active)
        return;
    sums -= part * together;
    for (int o = part; o < COUNT && o0 + o < b.c1; o += a.parts) {
        const int channel = o0 + o;
        const long long plane = (long long)g * target.channels + channel;
        float total[4];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            total[k] = sums[(4 * o + k) * THREADS];
            for (int other = 1; other < a.parts; other++)
                total[k] += sums[(4 * o + k) * THREADS + other * together];
        }
        if constexpr (EPILOGUE == POOL) {
            float best = total[0];
            int which = 0;
#pragma unroll
            for (int k = 1; k < 4; k++)
                if (best == best && (total[k] > best || total[k] != total[k])) { /* the first NaN stays */
                    best = total[k];
                    which = k;
                }
            const int row = b.y0 + wy;
            out[pixel(target, g, channel, row, px) + lane] = best <= 0 ? 0 : best;
            a.index[((plane * target.height + row) * target.width + px) * target.lanes + lane] = best <= 0 ? 4 : which;
        } else {
            const auto outside = [&](int k) { return (k >= 2 && !two_rows) || (k % 2 && !two_columns); };
            int at[4] = {0};
            if constexpr (EPILOGUE == UNPOOL) {
                const auto *index = a.index + ((plane * height + y) * width + x) * source.lanes + lane;
#pragma unroll
                for (int k = 0; k < 4; k++)
                    at[k] = outside(k) ? 0 : index[(k / 2 * width + k % 2) * source.lanes];
            }
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const int yy = y + k / 2, xx = x + k % 2;
                if (outside(k))
                    continue;
                if constexpr (EPILOGUE == STORE)
                    out[pixel(target, g, channel, yy, xx) + lane] = total[k];
                else
                    for (int i = 0; i < 4; i++)
                        out[pixel(target, g, channel, 2 * yy + i / 2, 2 * xx + i % 2) + lane] =
                            at[k] == i ? total[k] : 0;
            }
        }
    }
}

#define CONVOLUTIONS(count)                                      \
    KERNEL_OF(conv_forward_##count, conv_relu_pool)              \
    {                                                            \
        convolve<count, false, STORE>(a);                        \
    }                                                            \
    KERNEL_OF(conv_relu_pool_##count, conv_relu_pool)            \
    {                                                            \
        convolve<count, false, POOL>(a);                         \
    }                                                            \
    KERNEL_OF(conv_backward_data_##count, conv_relu_pool)        \
    {                                                            \
        convolve<count, true, STORE>(a);                         \
    }                                                            \
    KERNEL_OF(conv_backward_data_unpool_##count, conv_relu_pool) \
    {                                                            \
        convolve<count, true, UNPOOL>(a);                        \
    }
FOR_CONVOLUTION_TILES(CONVOLUTIONS)

/* dW[o, c, ky, kx] = sum over groups, rows, columns, lanes of dY[o, y, x] X[c, y + ky - p, x + kx - p]; the last number
 * of a row is the bias's gradient, the sum of dY.
 *
 * a.parts CUDA blocks for each c and COUNT channels o. A thread walks along rows, whose next COLUMNS columns it loads
 * together; each thread's rows, then 4 sums of 32 threads, then those 4, then the parts are added in order. */
#define SUMS      (TAPS + 1)
#define SUM_PITCH (THREADS + 1) /* odd: no bank conflicts between sums */

KERNEL(conv_backward_weights)
{
    constexpr int COUNT = 2, COLUMNS = 8;
    float *sums = shared; /* [SUMS][SUM_PITCH] */
    const Map dy = a.dy_map, in = a.in_map;
    const auto b = block_bounds(a);
    const int pair = (int)blockIdx.x / a.parts, o0 = b.c0 + pair / in.channels * COUNT, c = pair % in.channels;
    const int outputs = min(COUNT, b.c1 - o0);
    if (outputs <= 0) /* the whole CUDA block, and all parts: no barrier is missed */
        return;
    float sum[COUNT][SUMS] = {};
    const int units = (b.g1 - b.g0) * dy.height * dy.lanes, first = (int)blockIdx.x % a.parts * THREADS + threadIdx.x;
    for (int u = first; u < units; u += a.parts * THREADS) {
        const int lane = u % dy.lanes, y = u / dy.lanes % dy.height, g = b.g0 + u / dy.lanes / dy.height;
        const float *d = a.gradient + pixel(dy, g, o0, y, 0) + lane;
        const float *p = a.input + pixel(in, g, c, y - in.halo, -in.halo) + lane;
        const int row = in.pitch * in.lanes, plane = dy.rows * dy.pitch * dy.lanes;
        float window[5][COLUMNS + 4], gradient[COUNT][COLUMNS];
#pragma unroll
        for (int k = 0; k < 20; k++)
            window[k / 4][k % 4] = p[k / 4 * row + k % 4 * in.lanes];
        for (int x = 0; x < dy.width; x += COLUMNS) {
#pragma unroll
            for (int j = 0; j < COLUMNS; j++) {
                const int column = min(x + j, dy.width - 1);
#pragma unroll
                for (int r = 0; r < 5; r++)
                    window[r][4 + j] = p[r * row + (column + 4) * in.lanes];
#pragma unroll
                for (int o = 0; o < COUNT; o++)
                    gradient[o][j] = d[min(o, outputs - 1) * plane + column * dy.lanes];
            }
#pragma unroll
            for (int j = 0; j < COLUMNS; j++) {
                if (x + j >= dy.width)
                    break;
#pragma unroll
                for (int o = 0; o < COUNT; o++) {
                    sum[o][TAPS] += gradient[o][j];
#pragma unroll
                    for (int k = 0; k < TAPS; k++)
                        sum[o][k] += gradient[o][j] * window[k / 5][j + k % 5];
                }
            }
#pragma unroll
            for (int k = 0; k < 20; k++)
                window[k / 4][k % 4] = window[k / 4][k % 4 + COLUMNS];
        }
    }
    float total[COUNT];
#pragma unroll
    for (int o = 0; o < COUNT; o++) {
#pragma unroll
        for (int k = 0; k < SUMS; k++)
            sums[k * SUM_PITCH + threadIdx.x] = sum[o][k];
        __syncthreads();
        float quarter = 0;
        if (threadIdx.x < 4 * SUMS)
#pragma unroll 16
            for (int i = 0; i < THREADS / 4; i++)
                quarter += sums[threadIdx.x / 4 * SUM_PITCH + threadIdx.x % 4 * (THREADS / 4) + i];
        __syncthreads();
        if (threadIdx.x < 4 * SUMS)
            sums[threadIdx.x] = quarter;
        __syncthreads();
        const float *q = sums + 4 * min((int)threadIdx.x, TAPS);
        total[o] = (q[0] + q[1]) + (q[2] + q[3]);
        __syncthreads();
    }
    if (!join_parts(a, (int *)sums, total))
        return;
    if (threadIdx.x < SUMS && (threadIdx.x < TAPS || c == 0)) {
        const long long numbers = (long long)in.channels * TAPS + 1;
        const int at = threadIdx.x < TAPS ? c * TAPS + threadIdx.x : numbers - 1;
#pragma unroll
        for (int o = 0; o < COUNT; o++)
            if (o < outputs)
                put(a.output + ((long long)b.partial * dy.channels + o0 + o) * numbers + at, total[o], a.accumulate);
    }
}
