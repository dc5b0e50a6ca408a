/* Transforms of Winograd's convolutions with 3 x 3 taps, F(2x2) and F(4x4), channels in the lanes; compiled once per
 * instruction set from kernels/convolution/nhwc_winograd_loops.c. A tile of m x m outputs has n = m + 2 interpolation points in each
 * direction: those of algorithms.WINOGRAD_POINTS, then infinity. Numbers of the n x n points lie `point` floats apart.
 *
 * Lavin, Gray: Fast algorithms for convolutional neural networks (CVPR 2016), with other points. */
#ifndef FORKTASK_NHWC_WINOGRAD_LOOPS_H
#define FORKTASK_NHWC_WINOGRAD_LOOPS_H

#include <stddef.h>

/* Of a weight gradient: sums[input][output] at each point, over tiles, of input[tile][input] times
 * gradient[panel][tile][output], added to what was there with `add`. Panels have `panel` outputs, and 32 where fewer
 * than that are left; `outputs` is a multiple of 32, `inputs` one of 16. */
typedef struct WinogradWeightTask {
    const float *input, *gradient;
    float *sums;
    ptrdiff_t input_point, gradient_point, sums_point;
    int points, tiles, inputs, outputs, add;
} WinogradWeightTask;

/* All counts of channels are multiples of 16, but for those of a panel. Functions for m = 2 and m = 4. */
typedef struct NhwcWinogradLoops {
    /* n x n inputs, `row` and `pixel` floats apart -> points. The tile at `next`, or NULL, comes from memory meanwhile. */
    void (*input[2])(const float *x, ptrdiff_t row, ptrdiff_t pixel, int channels, const float *next, float *out,
                     ptrdiff_t point);
    /* m x m gradients of outputs -> points, as taps of the weight gradient. */
    void (*gradient[2])(const float *dy, ptrdiff_t row, ptrdiff_t pixel, int channels, const float *next, float *out,
                        ptrdiff_t point);
    /* 9 taps, `tap` floats apart, of `channels` numbers -> points. */
    void (*filter[2])(const float *w, ptrdiff_t tap, int channels, float *out, ptrdiff_t point);
    /* Points -> the first `rows` x `columns` of m x m outputs: act(bias + ...), added with `accumulate`. */
    void (*output[2])(const float *in, ptrdiff_t point, int channels, const float *bias, int activation, int accumulate,
                      float *y, ptrdiff_t row, ptrdiff_t pixel, int rows, int columns);
    /* Points -> 9 taps of the weight gradient, `tap` floats apart. */
    void (*weights[2])(const float *in, ptrdiff_t point, int channels, float *out, ptrdiff_t tap);
    void (*weight_products)(const WinogradWeightTask *task);
    int panel; /* outputs of a gradient's panel */
} NhwcWinogradLoops;

#endif
