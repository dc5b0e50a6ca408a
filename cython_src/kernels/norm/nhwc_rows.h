/* Norms of rows that come one after the other, for loops that compute these rows themselves: a block's statistics, forward
 * and backward, are started, added to and finished. Defined in kernels/norm/nhwc_loops.c. */
#ifndef FORKTASK_NHWC_NORM_ROWS_H
#define FORKTASK_NHWC_NORM_ROWS_H

#include <string.h>

#include "cython_src/kernels/maps/nhwc_planes.h"
#include "cython_src/kernels/simd/activations.h"

#define add_statistics          ISA_SYMBOL(forktask_add_statistics)
#define add_backward_statistics ISA_SYMBOL(forktask_add_backward_statistics)
#define norm_backward_apply     ISA_SYMBOL(forktask_norm_backward_apply)

SHARED void add_statistics(const NhwcTask *t, float *out, ptrdiff_t stride);
SHARED void add_backward_statistics(const NhwcTask *t, float *out, ptrdiff_t stride);
SHARED void norm_backward_apply(const NhwcTask *t);

/* The shift stands where the number of pixels will. */
INLINE void start_statistics(const NhwcTask *t, float *out, ptrdiff_t stride)
{
    const float *middle = t->plane[0].p + t->rows / 2 * t->plane[0].row + t->pixels / 2 * t->pitch;
    memset(out, 0, t->channels * sizeof(float));
    memset(out + stride, 0, t->channels * sizeof(float));
    memcpy(out + 2 * stride, middle, t->channels * sizeof(float));
}

INLINE void finish_statistics(float count, int channels, float *out, ptrdiff_t stride)
{
    for (int c = 0; c < channels; c += VL) {
        Vec sum = load(out + c), mean = sum / count, square = load(out + stride + c) - sum * mean;
        store(out + c, load(out + 2 * stride + c) + mean);
        store(out + stride + c, clip_below(square));
        store(out + 2 * stride + c, splat(count));
    }
}

INLINE void start_backward_statistics(int channels, float *out, ptrdiff_t stride)
{
    memset(out, 0, channels * sizeof(float));
    memset(out + stride, 0, channels * sizeof(float));
}

INLINE void finish_backward_statistics(int channels, const float *inv_std, float *out, ptrdiff_t stride)
{
    for (int c = 0; c < channels; c += VL)
        store(out + stride + c, load(out + stride + c) * load(inv_std + c));
}

#endif
