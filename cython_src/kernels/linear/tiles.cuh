/* Matrix products in tiles, shared by linear layers, attention and convolutions. A CUDA block owns a tile of the result,
 * each of its threads TM x TN numbers of it, and walks along the sum in steps that take turns in STAGES parts of shared
 * memory: while one is multiplied, the next are copied. Every number is the sum of its products in one order, whatever
 * the tile: results do not depend on it. Products are of float32, or of TF32 on tensor cores: one of them, or three that
 * are as exact as float32. */
#ifndef FORKTASK_LINEAR_TILES_CUH
#define FORKTASK_LINEAR_TILES_CUH

#include "cython_src/kernels/interface/block_kernel.cuh"
#include "cython_src/kernels/linear/grid_sizes.cuh" /* FOR_TILES, STEP and others, written from SIZES of grids.py */
#include "cython_src/kernels/simd/float4.cuh"

#ifndef TF32_PRODUCTS
#define TF32_PRODUCTS 0 /* of TF32 for one of float32: 0 (float32 itself), 1 or 3; gpu/launches.py::ARITHMETIC */
#endif

#define CHUNKS (STEP / 4) /* of 16 bytes, the widest copy, in a step */

/* Stands for the place of a number that does not exist, also if one is added to another or to places that do: it is
 * negative, and four times it is 2^64, so that an address does not change, nor its alignment. */
#define NOWHERE (-(1ll << 62))

#ifndef FORKTASK_EMULATED
/* Start to copy COUNT numbers (1, or 4 at multiples of 16 bytes) from `from` + `at` to shared memory; zeros where `at` is
 * negative. */
template <int COUNT>
__device__ inline void start_copy(float *to, const float *from, long long at)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    const unsigned out = (unsigned)__cvta_generic_to_shared(to);
    const unsigned long long in = (unsigned long long)from + 4 * (unsigned long long)at;
#define COPY(how) \
    "{.reg .pred none; setp.lt.s64 none, %2, 0; cp.async." how ", none;}" /* where none, nothing is read */
    if (COUNT == 4)
        asm volatile(COPY("cg.shared.global [%0], [%1], 16")::"r"(out), "l"(in), "l"(at) : "memory");
    else
        asm volatile(COPY("ca.shared.global [%0], [%1], 4")::"r"(out), "l"(in), "l"(at) : "memory");
#else
    for (int i = 0; i < COUNT; i++)
        to[i] = at < 0 ? 0 : from[at + i];
#endif
}

/* The copies that this thread has started since the last call are a group. */
__device__ inline void commit_copies()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

/* Wait for this thread's groups but the last COUNT. */
template <int COUNT>
__device__ inline void await_copies()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(COUNT) : "memory");
#endif
}
#endif

/* Walk along a sum in steps: copy(stage) starts the copies of the next step and returns how many terms it has, 0 past the
 * last; multiply(stage, terms) runs meanwhile for the step STAGES - 1 before. Barriers: all threads of the CUDA block must
 * come. */
template <typename Copy, typename Multiply>
__device__ inline void walk(Copy copy, Multiply multiply)
{
    static_assert(STAGES == 3, "two steps are under way while one is multiplied");
    int stage = 0, current = 0, next = 0, last = 1; /* terms of the step that is multiplied and of the two behind it */
    do {
        await_copies<1>();
        __syncthreads(); /* `current` is there for all, and all have read what lies where the last step goes */
        if (last)
            last = copy(stage);
        commit_copies();
        stage = stage + 1 < STAGES ? stage + 1 : 0;
        if (current)
            multiply(stage, current);
        current = next;
        next = last;
    } while (current || next);
}

#if TF32_PRODUCTS
#ifndef FORKTASK_EMULATED
/* The nearest number of TF32, 10 bits of mantissa; ties go away from zero. */
__device__ inline unsigned to_tf32(float x)
{
    unsigned bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
    return bits;
}

/* Four matrices of 8 rows of four numbers, of which the lanes of a warp give the rows, eight for each; a lane gets number
 * lane % 4 of row lane / 4 of each. */
__device__ inline void load_matrices(const float *row, float (&v)[4])
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3])
                 : "r"((unsigned)__cvta_generic_to_shared(row))
                 : "memory");
}

/* sum += left right for 16 x 8 and 8 x 8 numbers that the threads of a warp have among them. */
__device__ inline void multiply_piece(const unsigned (&l)[4], unsigned r0, unsigned r1, float *sum)
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(l[0]), "r"(l[1]), "r"(l[2]), "r"(l[3]), "r"(r0), "r"(r1));
}
#endif

/* Four numbers in TF32, and, for three products in place of one, what TF32 leaves of them. */
struct Split {
    unsigned large[4], small[4];
};

/* sum += left right, of which right is the first or second half of 16 columns. */
__device__ inline void add_piece(const Split &l, const Split &r, int half, float *sum)
{
    if (TF32_PRODUCTS == 3) { /* tensor cores cut sums off: a long one is rounded outside of them */
        float part[4] = {0, 0, 0, 0};
        multiply_piece(l.small, r.large[2 * half], r.large[2 * half + 1], part);
        multiply_piece(l.large, r.small[2 * half], r.small[2 * half + 1], part);
        multiply_piece(l.large, r.large[2 * half], r.large[2 * half + 1], part);
#pragma unroll
        for (int c = 0; c < 4; c++)
            sum[c] += part[c];
    } else {
        multiply_piece(l.large, r.large[2 * half], r.large[2 * half + 1], sum);
    }
}
#endif

/* One side of a product in shared memory, a step of the terms of WIDTH rows of the left factor or columns of the right.
 * Where the sum runs ALONG the rows of the matrix in memory, so it does here, [WIDTH][STEP], and chunks of four change
 * places from row to row so that equal ones of eight rows lie in different banks; else [STEP][WIDTH + GAP]: to turn a
 * matrix would take copies of single numbers. */
template <bool ALONG, int WIDTH>
struct Side {
    static constexpr int PITCH = WIDTH + GAP, FLOATS = ALONG ? STEP * WIDTH : STEP * PITCH;

    /* Where term k of row or column i lies. */
    __device__ static inline int at(int i, int k)
    {
        return ALONG ? i * STEP + ((k / 4) ^ (i * CHUNKS / 8 % CHUNKS)) * 4 + k % 4 : k * PITCH + i;
    }

    /* Start to copy a step, term k of i from `from` + place(i, k), or a zero where that is negative. `wide`: the four of a
     * chunk lie side by side at a multiple of 16 bytes, and all exist or none. */
    template <typename Place>
    __device__ static inline void copy(const float *from, bool wide, Place place, float *to)
    {
        if (wide)
            copy_by<4>(from, place, to);
        else
            copy_by<1>(from, place, to);
    }

    /* A thread's places differ by constants, so that little is computed for each; single numbers are rare. */
    template <int COUNT, typename Place>
    __device__ static inline void copy_by(const float *from, Place place, float *to)
    {
        constexpr int AT_ONCE = THREADS * COUNT, LINE = ALONG ? STEP : WIDTH, LINES = AT_ONCE / LINE;
        constexpr int ROUNDS = (WIDTH * STEP + AT_ONCE - 1) / AT_ONCE;
        static_assert(AT_ONCE % LINE == 0 && (!ALONG || LINES % 8 == 0), "a thread's chunks change places alike");
        int thread = threadIdx.x;
        if (COUNT == 1)
            asm volatile("" : "+r"(thread)); /* what is rare keeps no registers between steps */
        const int n = thread * COUNT, line = n / LINE, i = ALONG ? line : n % LINE, k = ALONG ? n % LINE : line;
        float *const first = to + at(i, k);
        if (WIDTH * STEP < AT_ONCE && n >= WIDTH * STEP)
            return;
#pragma unroll(COUNT == 4 ? ROUNDS : 1)
        for (int round = 0; round < ROUNDS; round++) {
            const int more = round * LINES;
            start_copy<COUNT>(first + more * (ALONG ? STEP : PITCH), from,
                              ALONG ? place(i + more, k) : place(i, k + more));
        }
    }

#if TF32_PRODUCTS
    /* What a thread has of 16 rows or columns from i on and 8 terms from k on: of each half of both four numbers a quad of
     * lanes, (0, 0), (8, 0), (0, 4) and (8, 4) further on; of the right factor, whose halves are used one by one, (0, 0),
     * (0, 4), (8, 0) and (8, 4). */
    template <bool LEFT>
    __device__ static inline void load(const float *side, int i, int k, Split &out)
    {
        const int lane = threadIdx.x % 32;
        float v[4];
        if (ALONG) {
            const int n = lane / 8, row = lane % 8 + (LEFT ? n % 2 : n / 2) * 8;
            load_matrices(side + at(row, k + (LEFT ? n / 2 : n % 2) * 4) + i * STEP, v); /* i is a multiple of 16 */
        } else {
            const float *const mine = side + at(lane / 4, lane % 4);
#pragma unroll
            for (int n = 0; n < 4; n++)
                v[n] = mine[at(i + (LEFT ? n % 2 : n / 2) * 8, k + (LEFT ? n / 2 : n % 2) * 4)];
        }
#pragma unroll
        for (int n = 0; n < 4; n++) {
            out.large[n] = to_tf32(v[n]);
            if (TF32_PRODUCTS == 3)
                out.small[n] = to_tf32(v[n] - __uint_as_float(out.large[n]));
        }
    }
#else
    /* Row or column that a thread's n-th of COUNT is: one that is loaded along the terms lies beside those of other
     * threads, else groups of four do, which are loaded together. */
    template <int COUNT>
    __device__ static inline int place(int thread, int threads, int n)
    {
        return ALONG ? n * threads + thread : COUNT < 4 ? thread * COUNT + n : n / 4 * 4 * threads + thread * 4 + n % 4;
    }

    /* Terms k to k + 3 of some of a thread's COUNT rows or columns, from the n-th on: of four, or of all where it has less. */
    template <int COUNT, int SOME>
    __device__ static inline void load(const float *side, int thread, int threads, int n, int k, float (&v)[SOME][4])
    {
#pragma unroll
        for (int m = 0; m < (ALONG ? SOME : 4); m++) {
            const float *p = side + at(place<COUNT>(thread, threads, ALONG ? n + m : n), ALONG ? k : k + m);
            const float4 four = ALONG || SOME == 4 ? load4(p) : float4{p[0], p[1], 0, 0};
#pragma unroll
            for (int c = 0; c < (ALONG ? 4 : SOME); c++)
                v[ALONG ? m : c][ALONG ? c : m] = lane4(four, c);
        }
    }
#endif
};

/* Terms from `start` to before `stop` of a sum: all, or the whole steps that a CUDA block adds up where a.parts of them
 * share each tile. */
struct Terms {
    int start, stop;

    __device__ inline Terms(int terms) : start(0), stop(terms)
    {
    }

    __device__ inline Terms(const GpuArgs &a, int terms)
    {
        const int most = divide_up(divide_up(terms, STEP), a.parts) * STEP;
        start = min((int)blockIdx.x % a.parts * most, terms);
        stop = min(start + most, terms);
    }
};

/* A matrix that is stored by rows; rows from `stop` on and columns past the last count as zero. */
struct Factor {
    const float *at; /* row 0 */
    int pitch, stop, columns;
};

/* Whether `copy_factor` can copy four numbers of a factor at a time. */
template <bool ALONG>
__device__ inline bool is_wide(const Factor &f, int first)
{
    return (f.pitch | f.columns | (ALONG ? 0 : first)) % 4 == 0 && (unsigned long long)f.at % 16 == 0;
}

/* Start to copy a step of a factor, from row or column `first` and term k0 on. */
template <bool ALONG, int WIDTH>
__device__ inline void copy_factor(const Factor &f, bool wide, int first, int k0, float *to)
{
    const auto place = [&](int i, int k) {
        const int row = ALONG ? first + i : k0 + k, column = ALONG ? k0 + k : first + i;
        return row < f.stop && column < f.columns ? (long long)row * f.pitch + column : NOWHERE;
    };
    Side<ALONG, WIDTH>::copy(f.at, wide, place, to);
}

/* A CUDA block's tile of a product, whose sum runs along the rows of its factors or across them. With tensor cores four
 * warps have WARP_ROWS x WARP_COLUMNS pieces of 16 x 8 numbers each, ACROSS warps side by side, and a thread four numbers
 * of each piece of its warp, two in each of two rows. */
template <int TM, int TN, bool LEFT_ALONG, bool RIGHT_ALONG>
struct Tile {
    static constexpr int ROWS = THREAD_ROWS * TM, COLUMNS = THREAD_COLUMNS * TN;
    static constexpr int SOME = TN < 4 ? TN : 4; /* columns of a thread that are loaded together */
    static constexpr int ACROSS = TN < 4 ? 1 : 2, WARP_ROWS = TM * ACROSS / 4, WARP_COLUMNS = TN / ACROSS;
    typedef Side<LEFT_ALONG, ROWS> Left;
    typedef Side<RIGHT_ALONG, COLUMNS> Right;
    static constexpr int STAGE = Left::FLOATS + Right::FLOATS, FLOATS = STAGES * STAGE; /* of shared memory */

    float sum[TM * TN] = {0};

    /* Add the product of a step; terms past `count` are zero up to a multiple of 8. */
    __device__ inline void multiply(const float *left, const float *right, int count)
    {
#if TF32_PRODUCTS
        const int warp = threadIdx.x / 32;
        left += Left::at(warp / ACROSS * WARP_ROWS * 16, 0);
        right += Right::at(warp % ACROSS * WARP_COLUMNS * 8, 0);
#pragma unroll
        for (int k = 0; k < STEP; k += 8) { /* past `count` are zeros */
            Split l, r[WARP_COLUMNS / 2];
#pragma unroll
            for (int j = 0; j < WARP_COLUMNS / 2; j++)
                Right::template load<false>(right, j * 16, k, r[j]);
#pragma unroll
            for (int i = 0; i < WARP_ROWS; i++) {
                Left::template load<true>(left, i * 16, k, l);
#pragma unroll
                for (int j = 0; j < WARP_COLUMNS; j++)
                    add_piece(l, r[j / 2], j % 2, sum + 4 * (i * WARP_COLUMNS + j));
            }
        }
#else
        for (int k = 0; k < count; k += 4) {
#pragma unroll
            for (int j = 0; j < TN; j += SOME) {
                float r[SOME][4];
                Right::template load<TN>(right, threadIdx.x % THREAD_COLUMNS, THREAD_COLUMNS, j, k, r);
#pragma unroll
                for (int i = 0; i < TM; i += 4) {
                    float l[4][4];
                    Left::template load<TM>(left, threadIdx.x / THREAD_COLUMNS, THREAD_ROWS, i, k, l);
#pragma unroll
                    for (int n = 0; n < 16 * SOME; n++)
                        sum[(i + n / SOME % 4) * TN + j + n % SOME] +=
                            l[n / SOME % 4][n / SOME / 4] * r[n % SOME][n / SOME / 4];
                }
            }
        }
#endif
    }

    /* Add a product: copy(left, right) starts the copies of the next step and returns how many terms it has. Barriers: all
     * threads of the CUDA block must come; `steps` holds FLOATS numbers. */
    template <typename Copy>
    __device__ inline void add(float *steps, Copy copy)
    {
        walk([&](int stage) { return copy(steps + stage * STAGE, steps + stage * STAGE + Left::FLOATS); },
             [&](int stage, int terms) {
                 multiply(steps + stage * STAGE, steps + stage * STAGE + Left::FLOATS, terms);
             });
    }

    /* Add the tile at (row, column) of a product of two factors over some terms, likewise. */
    __device__ inline void add(float *steps, const Factor &left, int row, const Factor &right, int column, Terms terms)
    {
        const bool left_wide = is_wide<LEFT_ALONG>(left, row), right_wide = is_wide<RIGHT_ALONG>(right, column);
        int k = terms.start;
        add(steps, [&](float *to_left, float *to_right) {
            const int count = min(STEP, terms.stop - k);
            if (count <= 0)
                return 0;
            copy_factor<LEFT_ALONG, ROWS>(left, left_wide, row, k, to_left);
            copy_factor<RIGHT_ALONG, COLUMNS>(right, right_wide, column, k, to_right);
            k += STEP;
            return count;
        });
    }

    /* Call body(row, column, sum) for each number of a thread, within the tile. */
    template <typename Body>
    __device__ inline void each(Body body)
    {
#pragma unroll
        for (int n = 0; n < TM * TN; n++) {
#if TF32_PRODUCTS
            const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, piece = n / 4;
            const int row = (warp / ACROSS * WARP_ROWS + piece / WARP_COLUMNS) * 16 + n % 4 / 2 * 8 + lane / 4;
            const int column = (warp % ACROSS * WARP_COLUMNS + piece % WARP_COLUMNS) * 8 + lane % 4 * 2 + n % 2;
#else
            const int row = Left::template place<TM>(threadIdx.x / THREAD_COLUMNS, THREAD_ROWS, n / TN);
            const int column = Right::template place<TN>(threadIdx.x % THREAD_COLUMNS, THREAD_COLUMNS, n % TN);
#endif
            body(row, column, sum[n]);
        }
    }
};

#endif
