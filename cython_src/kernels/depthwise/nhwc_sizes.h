/* Sizes of the depthwise kernels' scratch memory and of what lies in it, in floats. Kernels divide their scratch memory by
 * these functions, and `KernelSpec.scratch_bytes` asks them for `end`: there is no other copy. */
#ifndef FORKTASK_DEPTHWISE_NHWC_SIZES_H
#define FORKTASK_DEPTHWISE_NHWC_SIZES_H

#include <stddef.h>

#include "cython_src/kernels/simd/lanes.h"

/* A depthwise convolution between norms goes over its maps in strips of outputs. The rows of gradients that it computes for
 * itself lie in a ring, two strips' worth; one strip's inputs take no more floats than this, unless four rows do. */
#define STRIP_FLOATS 16384

/* Rows of outputs of a strip; row: floats of a row of inputs. */
static inline int strip_rows(ptrdiff_t row, int kernel, int stride)
{
    const int rows = ((int)(STRIP_FLOATS / row) - kernel) / stride + 1;
    return rows < 4 ? 4 : rows / 4 * 4;
}

/* Rows of the ring of gradients of the outputs. */
static inline int gradient_ring_rows(int strip, int kernel, int height)
{
    const int rows = 2 * (strip + kernel);
    return rows < height ? rows : height;
}

/* Where the parts begin; a part that a kernel does without takes nothing. */
typedef struct DepthwiseScratch {
    ptrdiff_t sums;      /* of the weights' gradient */
    ptrdiff_t weight;    /* packed */
    ptrdiff_t bias;      /* padded; or sums of its gradient */
    ptrdiff_t gradients; /* ring of gradients of the outputs */
    ptrdiff_t end;
} DepthwiseScratch;

/* Floats of the taps of so many channels, padded to whole vectors. */
static inline ptrdiff_t depthwise_weights(int channels, int taps)
{
    return (ptrdiff_t)taps * ((channels + LANES - 1) / LANES * LANES);
}

/* A block of `channels` channels, in one direction. */
static inline DepthwiseScratch depthwise_scratch(int channels, int kernel, int has_bias)
{
    DepthwiseScratch s = {0};
    s.bias = depthwise_weights(channels, kernel * kernel);
    s.end = s.bias + (has_bias ? depthwise_weights(channels, 1) : 0);
    return s;
}

/* The backward pass between norms. */
static inline DepthwiseScratch depthwise_backward_scratch(int channels, int kernel, int stride, ptrdiff_t in_row,
                                                          ptrdiff_t out_row, int out_height)
{
    DepthwiseScratch s = {0};
    s.weight = depthwise_weights(channels, kernel * kernel);
    s.gradients = s.bias = 2 * s.weight;
    s.end = s.gradients + out_row * gradient_ring_rows(strip_rows(in_row, kernel, stride), kernel, out_height);
    return s;
}

#endif
