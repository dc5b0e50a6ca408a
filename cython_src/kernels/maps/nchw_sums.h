/* Transposes and sums over maps with images in the vector lanes, for the files of inner loops that call them directly. */
#ifndef FORKTASK_NCHW_SUMS_H
#define FORKTASK_NCHW_SUMS_H

#include "nchw_loops.h"
#include "cython_src/kernels/simd/vectors.h"

/* Rows of a reduction that are summed at a time, at most. */
#define REDUCE_R BY_ISA(2, 5, 5, 10)

#define reduce_tiles ISA_SYMBOL(forktask_reduce_tiles)

/* reduce_tiles[r - 1]: a reduction of r rows, from the first terms of a and b on; in kernels/maps/nchw_loops.c. */
typedef void (*ReduceTile)(const NchwReduction *, const float *a, const float *b, float *out);
SHARED extern const ReduceTile reduce_tiles[REDUCE_R];

/* As in NchwLoops. */

static void transpose_lanes(const float *in, ptrdiff_t stride, int count, float *out, ptrdiff_t out_stride)
{
    for (int a = 0; a < LANES; a += VL)
        for (int b = 0; b < LANES; b += VL) {
            Vec v[VL];
            UNROLL for (int i = 0; i < VL; i++) v[i] = a + i < count ? load(in + (a + i) * stride + b) : (Vec){0};
            transpose(v);
            UNROLL for (int i = 0; i < VL; i++) store(out + (b + i) * out_stride + a, v[i]);
        }
}

static float sum_of_rows(const float *in, int rows, ptrdiff_t row, ptrdiff_t n)
{
    Vec sum = {0};
    for (int y = 0; y < rows; y++)
        for (ptrdiff_t i = 0; i < n; i += VL)
            sum += load(in + y * row + i);
    return lane_sum(sum);
}

#endif
