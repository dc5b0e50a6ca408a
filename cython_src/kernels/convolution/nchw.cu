/* Convolution with 5 x 5 kernels and stride 1, whose padding is the halo of the map it reads: forward (alone, or with ReLU and pooling), data gradient (alone,
 * or with the backward pass of the pooling and ReLU before it) and weight gradient. Formulas: kernels/convolution/nchw_convolution.pyx. */

#include "cython_src/kernels/convolution/grid_sizes.cuh" /* TAPS and others, written from SIZES of grids.py */
#include "cython_src/kernels/maps/nchw.cuh"

#define STORE  0
#define POOL   1
#define UNPOOL 2

/* Y[o] += sum over c, ky, kx of W[o, c, ky, kx] X[c, y + ky - p, x + kx - p], for a window of 2 x 2 pixels and COUNT
 * output channels a thread, in the order c, ky, kx whatever COUNT is.
 *
 * Input comes through the L1 cache (consecutive threads take consecutive lanes or pixels), weights from shared memory,
 * where all threads read the same number. FLIP exchanges the channels' roles and reverses the taps: the data gradient. */
template <int COUNT, bool FLIP, int EPILOGUE, typename Args>
__device__ void convolve(const Args &a)
{
    float *weights = shared; /* [CHANNELS_AT_ONCE][TAPS][COUNT] */
    const Map source = a.in_map, target = a.out_map;
    const auto &b = block_bounds(a);
    const float *bias = FLIP ? 0 : a.bias;
    float *out = a.output;
    const int spread = EPILOGUE == UNPOOL ? 2 : 1, scale = EPILOGUE == POOL ? 2 : 1;
    const int first_row = b.y0 * scale, rows = (b.y1 - b.y0) * scale;
    const int height = source.height + 2 * source.halo - 4, width = source.width + 2 * source.halo - 4;
    const int windows_x = EPILOGUE == POOL ? target.width : divide_up(width, 2), windows_y = divide_up(rows, 2);
    const int items = (b.g1 - b.g0) * windows_y * windows_x * source.lanes;
    const int tiles = divide_up(items, THREADS);
    const int o0 = b.c0 + (int)blockIdx.x / tiles * COUNT;
    clear_halo(target, out, b.g0, b.g1, b.c0, b.c1, b.y0 * spread, b.y1 * spread);
    if (o0 >= b.c1) /* the whole CUDA block: no barrier is missed */
        return;
    const int item = (int)blockIdx.x % tiles * THREADS + threadIdx.x;
    const int lane = item % source.lanes, px = item / source.lanes % windows_x;
    const int wy = item / source.lanes / windows_x % windows_y;
    const int g = b.g0 + item / source.lanes / windows_x / windows_y;
    const int y = first_row + 2 * wy, x = 2 * px;
    const bool active = item < items, two_rows = 2 * wy + 1 < rows, two_columns = x + 1 < width;
    float sum[COUNT][4];
    for (int o = 0; o < COUNT; o++)
        for (int k = 0; k < 4; k++)
            sum[o][k] = FLIP || o0 + o >= b.c1 ? 0 : bias[o0 + o];
    for (int c0 = 0; c0 < source.channels; c0 += CHANNELS_AT_ONCE) {
        const int count = min(CHANNELS_AT_ONCE, source.channels - c0);
        __syncthreads();
        for (int i = threadIdx.x; i < count * TAPS * COUNT; i += THREADS) {
            const int o = o0 + i % COUNT, tap = i / COUNT % TAPS, c = c0 + i / COUNT / TAPS;
            if (o >= b.c1)
                weights[i] = 0;
            else if (FLIP)
                weights[i] = a.weight[((long long)c * target.channels + o) * TAPS + TAPS - 1 - tap];
            else
                weights[i] = a.weight[((long long)o * source.channels + c) * TAPS + tap];
        }
        __syncthreads();
        if (!active)
            continue;
        for (int c = 0; c < count; c++) {
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
    if (!active)
        return;
#pragma unroll
    for (int o = 0; o < COUNT; o++) {
        const int channel = o0 + o;
        if (channel >= b.c1)
            break;
        if constexpr (EPILOGUE == POOL) {
            float best = sum[o][0];
            int which = 0;
#pragma unroll
            for (int k = 1; k < 4; k++)
                if (best == best && (sum[o][k] > best || sum[o][k] != sum[o][k])) { /* the first NaN stays */
                    best = sum[o][k];
                    which = k;
                }
            const int row = b.y0 + wy;
            out[pixel(target, g, channel, row, px) + lane] = best <= 0 ? 0 : best;
            a.index[((((long long)g * target.channels + channel) * target.height + row) * target.width + px) *
                        target.lanes +
                    lane] = best <= 0 ? 4 : which;
        } else {
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const int yy = y + k / 2, xx = x + k % 2;
                if ((k >= 2 && !two_rows) || (k % 2 && !two_columns))
                    continue;
                if constexpr (EPILOGUE == STORE) {
                    out[pixel(target, g, channel, yy, xx) + lane] = sum[o][k];
                } else {
                    const int at = a.index[((((long long)g * target.channels + channel) * height + yy) * width + xx) *
                                               source.lanes +
                                           lane];
                    for (int i = 0; i < 4; i++)
                        out[pixel(target, g, channel, 2 * yy + i / 2, 2 * xx + i % 2) + lane] = at == i ? sum[o][k] : 0;
                }
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
 * A CUDA block for each pair (o, c). A thread walks along rows with a 5 x 5 window in registers; each thread's rows,
 * then 4 sums of 32 threads, then those 4 are added in order. */
#define SUMS      (TAPS + 1)
#define SUM_PITCH (THREADS + 1) /* odd: no bank conflicts between sums */

KERNEL(conv_backward_weights)
{
    float *sums = shared; /* [SUMS][SUM_PITCH] */
    const Map dy = a.dy_map, in = a.in_map;
    const auto &b = block_bounds(a);
    const int o = b.c0 + (int)blockIdx.x / in.channels, c = (int)blockIdx.x % in.channels;
    if (o >= b.c1)
        return;
    float sum[TAPS], bias = 0, window[5][5];
#pragma unroll
    for (int k = 0; k < TAPS; k++)
        sum[k] = 0;
    const int units = (b.g1 - b.g0) * dy.height * dy.lanes;
    for (int u = threadIdx.x; u < units; u += THREADS) {
        const int lane = u % dy.lanes, y = u / dy.lanes % dy.height, g = b.g0 + u / dy.lanes / dy.height;
        const float *d = a.gradient + pixel(dy, g, o, y, 0) + lane;
        const float *p = a.input + pixel(in, g, c, y - in.halo, -in.halo) + lane;
        const long long row = (long long)in.pitch * in.lanes;
#pragma unroll
        for (int k = 0; k < 4; k++)
#pragma unroll
            for (int r = 0; r < 5; r++)
                window[r][k] = p[r * row + k * in.lanes];
        for (int x0 = 0; x0 < dy.width; x0 += 5)
#pragma unroll
            for (int j = 0; j < 5; j++) { /* column x + kx lies in window[][(j + kx) % 5] */
                const int x = x0 + j;
                if (x >= dy.width)
                    break;
#pragma unroll
                for (int r = 0; r < 5; r++)
                    window[r][(j + 4) % 5] = p[r * row + (long long)(x + 4) * in.lanes];
                const float value = d[(long long)x * dy.lanes];
                bias += value;
#pragma unroll
                for (int ky = 0; ky < 5; ky++)
#pragma unroll
                    for (int kx = 0; kx < 5; kx++)
                        sum[ky * 5 + kx] += value * window[ky][(j + kx) % 5];
            }
    }
#pragma unroll
    for (int k = 0; k < TAPS; k++)
        sums[k * SUM_PITCH + threadIdx.x] = sum[k];
    sums[TAPS * SUM_PITCH + threadIdx.x] = bias;
    __syncthreads();
    float quarter = 0;
    if (threadIdx.x < 4 * SUMS)
        for (int i = 0; i < THREADS / 4; i++)
            quarter += sums[threadIdx.x / 4 * SUM_PITCH + threadIdx.x % 4 * (THREADS / 4) + i];
    __syncthreads();
    if (threadIdx.x < 4 * SUMS)
        sums[threadIdx.x] = quarter;
    __syncthreads();
    if (threadIdx.x < SUMS && (threadIdx.x < TAPS || c == 0)) {
        const float *q = sums + 4 * threadIdx.x;
        const float total = (q[0] + q[1]) + (q[2] + q[3]);
        const long long numbers = (long long)in.channels * TAPS + 1;
        float *out = a.output + ((long long)b.partial * dy.channels + o) * numbers +
                     (threadIdx.x < TAPS ? c * TAPS + threadIdx.x : numbers - 1);
        put(out, total, a.accumulate);
    }
}
