/* Inner loops over maps with images in the vector lanes, for several concepts: transposes and sums. */
#ifndef FORKTASK_NCHW_LOOPS_H
#define FORKTASK_NCHW_LOOPS_H

#include <stddef.h>

#include "cython_src/kernels/simd/lanes.h"

/* out[p][r][lane] (+)= sum over k < length of a[p][r][k] * b[p][16 k + lane]; length is a multiple of 16. */
typedef struct NchwReduction {
    const float *a, *b;
    float *out;
    ptrdiff_t a_point, a_row, b_point, out_point, out_row;
    int rows, length, accumulate;
} NchwReduction;

typedef struct NchwLoops {
    /* out[i * out_stride + c] = in[c * stride + i] for 16 x 16 numbers; zero from c = count on */
    void (*transpose)(const float *in, ptrdiff_t stride, int count, float *out, ptrdiff_t out_stride);
    /* Sum of `rows` rows, `row` floats apart, of n floats, a multiple of 16. */
    float (*sum_rows)(const float *in, int rows, ptrdiff_t row, ptrdiff_t n);
} NchwLoops;

#endif
