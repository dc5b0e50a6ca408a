/* Matrix products in tiles, shared by linear layers, attention and convolutions. A CUDA block owns a tile of the result,
 * each of its threads TM x TN numbers of it, and walks along the sum in steps; both factors of a step lie in shared memory.
 * Every number is the sum of its products in one order, whatever the tile: results do not depend on it. */
#ifndef FORKTASK_LINEAR_TILES_CUH
#define FORKTASK_LINEAR_TILES_CUH

#include "cython_src/kernels/interface/block_kernel.cuh"
#include "cython_src/kernels/simd/float4.cuh"

#define STEP      16 /* of the sum that lie in shared memory together */
#define ROWS_16   16 /* threads along the rows of a tile */
#define COLUMNS_8 8  /* threads along its columns */

/* A thread's numbers of one row of shared memory. */
template <int COUNT>
__device__ inline void load_spread(const float *p, int thread, int threads, float (&v)[COUNT])
{
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        if (COUNT < 4)
            v[i] = p[thread * COUNT + i];
        else if (i % 4 == 0) {
            const float4 four = load4(p + i * threads + thread * 4);
#pragma unroll
            for (int j = 0; j < 4; j++)
                v[i + j] = lane4(four, j);
        }
}

/* Row or column of a tile that a thread's i-th number lies in: groups of four apart, so that threads read side by side. */
template <int COUNT>
__device__ inline int spread(int thread, int threads, int i)
{
    return COUNT < 4 ? thread * COUNT + i : i / 4 * 4 * threads + thread * 4 + i % 4;
}

/* sum += the product of a step: left[k][row], right[k][column]; numbers past `count` are zero up to a multiple of 4. */
template <int TM, int TN, int LEFT_PITCH, int RIGHT_PITCH>
__device__ inline void multiply_step(const float *left, const float *right, int count, float (&sum)[TM][TN])
{
    const int row = threadIdx.x / COLUMNS_8, column = threadIdx.x % COLUMNS_8;
    for (int k0 = 0; k0 < count; k0 += 4)
#pragma unroll
        for (int k = k0; k < k0 + 4; k++) {
            float l[TM], r[TN];
            load_spread<TM>(left + k * LEFT_PITCH, row, ROWS_16, l);
            load_spread<TN>(right + k * RIGHT_PITCH, column, COLUMNS_8, r);
#pragma unroll
            for (int i = 0; i < TM; i++)
#pragma unroll
                for (int j = 0; j < TN; j++)
                    sum[i][j] += l[i] * r[j];
        }
}

/* A matrix that is stored by rows, of which rows [start, stop) and the first columns exist; all else counts as zero. */
struct Factor {
    const float *at; /* row 0 */
    int pitch, start, stop, columns;
};

__device__ inline float element(const Factor &f, int row, int column)
{
    return row >= f.start && row < f.stop && column < f.columns ? f.at[(long long)row * f.pitch + column] : 0;
}

/* out[k][i], i < WIDTH, for a step of the sum from k0 on: element (k0 + k, first + i), or (first + i, k0 + k) of a factor
 * that is TURNED, whose rows the sum runs along. */
template <bool TURNED, int WIDTH>
__device__ inline void copy_step(const Factor &f, int first, int k0, float *out)
{
    for (int at = threadIdx.x; at < STEP * WIDTH; at += THREADS) {
        const int k = TURNED ? at % STEP : at / WIDTH, i = TURNED ? at / STEP : at % WIDTH;
        out[k * (WIDTH + 4) + i] = TURNED ? element(f, first + i, k0 + k) : element(f, k0 + k, first + i);
    }
}

/* Shared memory of add_product(), in floats. */
#define STEP_FLOATS(TM, TN) (STEP * (ROWS_16 * (TM) + 4 + COLUMNS_8 * (TN) + 4))

/* sum += the tile at (row, column) of a product of two factors over `terms`. Barriers: all threads of the CUDA block must
 * come; `steps` holds STEP_FLOATS(TM, TN). */
template <bool LEFT_TURNED, bool RIGHT_TURNED, int TM, int TN>
__device__ inline void add_product(const Factor &left, int row, const Factor &right, int column, int terms,
                                   float *steps, float (&sum)[TM][TN])
{
    constexpr int ROWS = ROWS_16 * TM, COLUMNS = COLUMNS_8 * TN;
    float *rights = steps + STEP * (ROWS + 4);
    for (int k = 0; k < terms; k += STEP) {
        __syncthreads();
        copy_step<LEFT_TURNED, ROWS>(left, row, k, steps);
        copy_step<RIGHT_TURNED, COLUMNS>(right, column, k, rights);
        __syncthreads();
        multiply_step<TM, TN, ROWS + 4, COLUMNS + 4>(steps, rights, min(STEP, terms - k), sum);
    }
}

template <int TM, int TN>
__device__ inline void clear(float (&sum)[TM][TN])
{
#pragma unroll
    for (int i = 0; i < TM; i++)
#pragma unroll
        for (int j = 0; j < TN; j++)
            sum[i][j] = 0;
}

/* Call body(row, column, sum) for each number of a thread, within a tile. */
template <int TM, int TN, typename Body>
__device__ inline void for_numbers(float (&sum)[TM][TN], Body body)
{
    const int row = threadIdx.x / COLUMNS_8, column = threadIdx.x % COLUMNS_8;
#pragma unroll
    for (int i = 0; i < TM; i++)
#pragma unroll
        for (int j = 0; j < TN; j++)
            body(spread<TM>(row, ROWS_16, i), spread<TN>(column, COLUMNS_8, j), sum[i][j]);
}

#endif
