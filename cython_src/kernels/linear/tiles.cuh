/* Matrix products in tiles, shared by linear layers, attention and convolutions. A CUDA block owns a tile of the result,
 * each of its threads TM x TN numbers of it, and walks along the sum in steps; both factors of a step lie in shared memory.
 * Every number is the sum of its products in one order, whatever the tile: results do not depend on it. Products are of
 * float32, or of TF32 on tensor cores: one of them, or three that are as exact as float32. */
#ifndef FORKTASK_LINEAR_TILES_CUH
#define FORKTASK_LINEAR_TILES_CUH

#include "cython_src/kernels/interface/block_kernel.cuh"
#include "cython_src/kernels/simd/float4.cuh"

#ifndef TF32_PRODUCTS
#define TF32_PRODUCTS 0 /* of TF32 for one of float32: 0 (float32 itself), 1 or 3; gpu/launches.py::ARITHMETIC */
#endif

#define STEP      16 /* of the sum that lie in shared memory together */
#define ROWS_16   16 /* threads along the rows of a tile */
#define COLUMNS_8 8  /* threads along its columns */
#define GAP       8  /* behind a row of shared memory, so that a warp's reads along both axes meet all banks */

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

#if TF32_PRODUCTS
/* A tile of TM x TN numbers a thread as tensor cores take it, in pieces of 16 x 8: four warps of ROWS x COLUMNS pieces each,
 * ACROSS of them side by side. A thread has four numbers of each piece of its warp, two in each of two rows. */
template <int TM, int TN>
struct Pieces {
    static constexpr int ACROSS = TN < 4 ? 1 : 2, ROWS = TM * ACROSS / 4, COLUMNS = TN / ACROSS;
};

template <int TM, int TN>
__device__ inline int first_row()
{
    return (int)threadIdx.x / 32 / Pieces<TM, TN>::ACROSS * Pieces<TM, TN>::ROWS * 16 + (int)threadIdx.x % 32 / 4;
}

template <int TM, int TN>
__device__ inline int first_column()
{
    return (int)threadIdx.x / 32 % Pieces<TM, TN>::ACROSS * Pieces<TM, TN>::COLUMNS * 8;
}

#ifndef FORKTASK_EMULATED
/* The nearest number of TF32, 10 bits of mantissa; ties go away from zero. */
__device__ inline unsigned to_tf32(float x)
{
    unsigned bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
    return bits;
}

/* sum += left right for 16 x 8 and 8 x 8 numbers that the threads of a warp have among them. */
__device__ inline void multiply_piece(const unsigned (&l)[4], const unsigned (&r)[2], float (&sum)[4])
{
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(l[0]), "r"(l[1]), "r"(l[2]), "r"(l[3]), "r"(r[0]), "r"(r[1]));
}
#endif

/* COUNT numbers in TF32, and, for three products in place of one, what TF32 leaves of them. */
template <int COUNT>
struct Split {
    unsigned large[COUNT], small[COUNT];

    __device__ inline void set(int i, float x)
    {
        large[i] = to_tf32(x);
        if (TF32_PRODUCTS == 3)
            small[i] = to_tf32(x - __uint_as_float(large[i]));
    }
};
#endif

/* sum += the product of a step: left[k][row], right[k][column]; numbers past `count` are zero up to a multiple of 8. */
template <int TM, int TN, int LEFT_PITCH, int RIGHT_PITCH>
__device__ inline void multiply_step(const float *left, const float *right, int count, float (&sum)[TM][TN])
{
#if TF32_PRODUCTS
    constexpr int ROWS = Pieces<TM, TN>::ROWS, COLUMNS = Pieces<TM, TN>::COLUMNS;
    const int lane = threadIdx.x % 32;
    left += lane % 4 * LEFT_PITCH + first_row<TM, TN>();
    right += lane % 4 * RIGHT_PITCH + first_column<TM, TN>() + lane / 4;
    for (int k = 0; k < count; k += 8) {
        Split<4> l[ROWS];
#pragma unroll
        for (int n = 0; n < 4 * ROWS; n++)
            l[n / 4].set(n % 4, left[(k + n % 4 / 2 * 4) * LEFT_PITCH + n / 4 * 16 + n % 2 * 8]);
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) {
            Split<2> r;
            r.set(0, right[k * RIGHT_PITCH + j * 8]);
            r.set(1, right[(k + 4) * RIGHT_PITCH + j * 8]);
#pragma unroll
            for (int i = 0; i < ROWS; i++) {
                const int first = 4 * (i * COLUMNS + j);
                float part[4];
#pragma unroll
                for (int c = 0; c < 4; c++)
                    part[c] = TF32_PRODUCTS == 3 ? 0 : sum[(first + c) / TN][(first + c) % TN];
                if (TF32_PRODUCTS == 3) { /* tensor cores cut sums off: a long one is rounded outside of them */
                    multiply_piece(l[i].small, r.large, part);
                    multiply_piece(l[i].large, r.small, part);
                }
                multiply_piece(l[i].large, r.large, part);
#pragma unroll
                for (int c = 0; c < 4; c++)
                    sum[(first + c) / TN][(first + c) % TN] =
                        TF32_PRODUCTS == 3 ? sum[(first + c) / TN][(first + c) % TN] + part[c] : part[c];
            }
        }
    }
#else
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
#endif
}

#ifndef FORKTASK_EMULATED
/* Start to copy COUNT numbers (1, or 4 at multiples of 16 bytes) to shared memory, or zeros: `from` is not read then. */
template <int COUNT>
__device__ inline void start_copy(float *to, const float *from, bool exists)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"((unsigned)__cvta_generic_to_shared(to)),
                 "l"(from), "n"(4 * COUNT), "r"(exists ? 4 * COUNT : 0)
                 : "memory");
#else
    for (int i = 0; i < COUNT; i++)
        to[i] = exists ? from[i] : 0;
#endif
}

/* Wait for the copies that this thread has started. */
__device__ inline void finish_copies()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}
#endif

/* Walk along a sum in steps that take turns in the two halves of shared memory: copy(half) starts the copies of the next
 * step and returns how many terms it has, 0 past the last; multiply(half, terms) runs meanwhile for the step before.
 * Barriers: all threads of the CUDA block must come. */
template <typename Copy, typename Multiply>
__device__ inline void walk(Copy copy, Multiply multiply)
{
    __syncthreads(); /* what lay there before has been read */
    for (int half = 0, before = 0;; half ^= 1) {
        const int terms = copy(half);
        if (before)
            multiply(half ^ 1, before);
        if (!terms)
            break;
        finish_copies();
        __syncthreads();
        before = terms;
    }
}

/* A matrix that is stored by rows, of which rows [start, stop) and the first columns exist; all else counts as zero. */
struct Factor {
    const float *at; /* row 0 */
    int pitch, start, stop, columns;
};

/* out[k][i], i < WIDTH, for a step of a sum: the number at place(k, i) of `from`, or zero where that is negative; `wide`:
 * four neighbours in i lie side by side, at multiples of 16 bytes, and all exist or none. */
template <int WIDTH, typename Place>
__device__ inline void gather_step(const float *from, bool wide, Place place, float *out)
{
    if (wide) {
#pragma unroll 2 /* more takes registers that attention has not */
        for (int at = 4 * threadIdx.x; at < STEP * WIDTH; at += 4 * THREADS) {
            const long long start = place(at / WIDTH, at % WIDTH);
            start_copy<4>(out + at / WIDTH * (WIDTH + GAP) + at % WIDTH, from + max(start, 0ll), start >= 0);
        }
        return;
    }
#pragma unroll 2
    for (int at = threadIdx.x; at < STEP * WIDTH; at += THREADS) {
        const long long start = place(at / WIDTH, at % WIDTH);
        start_copy<1>(out + at / WIDTH * (WIDTH + GAP) + at % WIDTH, from + max(start, 0ll), start >= 0);
    }
}

/* out[k][i], i < WIDTH, for a step of the sum from k0 on: element (k0 + k, first + i), or (first + i, k0 + k) of a factor
 * that is TURNED, whose rows the sum runs along. */
template <bool TURNED, int WIDTH>
__device__ inline void copy_step(const Factor &f, int first, int k0, float *out)
{
    const auto place = [&](int row, int column) {
        const bool exists = row >= f.start && row < f.stop && column < f.columns;
        return exists ? (long long)row * f.pitch + column : -1;
    };
    if constexpr (!TURNED) {
        const bool wide = (f.pitch | f.columns | first) % 4 == 0 && (unsigned long long)f.at % 16 == 0;
        gather_step<WIDTH>(f.at, wide, [&](int k, int i) { return place(k0 + k, first + i); }, out);
    } else {
#pragma unroll 2
        for (int at = threadIdx.x; at < STEP * WIDTH; at += THREADS) {
            const long long start = place(first + at / STEP, k0 + at % STEP);
            start_copy<1>(out + at % STEP * (WIDTH + GAP) + at / STEP, f.at + max(start, 0ll), start >= 0);
        }
    }
}

/* Shared memory of add_product(), in floats. */
#define STEP_FLOATS(TM, TN) (2 * STEP * (ROWS_16 * (TM) + GAP + COLUMNS_8 * (TN) + GAP))

/* sum += the tile at (row, column) of a product of two factors over `terms`. Barriers: all threads of the CUDA block must
 * come; `steps` holds STEP_FLOATS(TM, TN). */
template <bool LEFT_TURNED, bool RIGHT_TURNED, int TM, int TN>
__device__ inline void add_product(const Factor &left, int row, const Factor &right, int column, int terms,
                                   float *steps, float (&sum)[TM][TN])
{
    constexpr int ROWS = ROWS_16 * TM, COLUMNS = COLUMNS_8 * TN;
    float *rights = steps + 2 * STEP * (ROWS + GAP);
    int k = -STEP;
    walk(
        [&](int half) {
            k += STEP;
            if (k >= terms)
                return 0;
            copy_step<LEFT_TURNED, ROWS>(left, row, k, steps + half * STEP * (ROWS + GAP));
            copy_step<RIGHT_TURNED, COLUMNS>(right, column, k, rights + half * STEP * (COLUMNS + GAP));
            return min(STEP, terms - k);
        },
        [&](int half, int count) {
            multiply_step<TM, TN, ROWS + GAP, COLUMNS + GAP>(steps + half * STEP * (ROWS + GAP),
                                                             rights + half * STEP * (COLUMNS + GAP), count, sum);
        });
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
#if TF32_PRODUCTS
    const int row = first_row<TM, TN>(), column = first_column<TM, TN>() + (int)threadIdx.x % 4 * 2;
#pragma unroll
    for (int n = 0; n < TM * TN; n++)
        body(row + n / 4 / Pieces<TM, TN>::COLUMNS * 16 + n % 4 / 2 * 8,
             column + n / 4 % Pieces<TM, TN>::COLUMNS * 8 + n % 2, sum[n / TN][n % TN]);
#else
    const int row = threadIdx.x / COLUMNS_8, column = threadIdx.x % COLUMNS_8;
#pragma unroll
    for (int i = 0; i < TM; i++)
#pragma unroll
        for (int j = 0; j < TN; j++)
            body(spread<TM>(row, ROWS_16, i), spread<TN>(column, COLUMNS_8, j), sum[i][j]);
#endif
}

#endif
