/* Inner loops of convolutions with 5 x 5 taps, with images in the vector lanes or neighbouring pixels of one image.
 *
 * A row is cut into vectors of LANES floats: pixels of sixteen images in the layout "nchw16", sixteen neighbouring
 * pixels of one image in the layout "nchw". A tap moves by `pixel` floats from one column to the next: LANES in "nchw16",
 * 1 in "nchw". Everything else is the same code.
 *
 * Sums run in an order that depends on shapes alone, never on how a loop was cut into blocks: bias first, then input
 * channels, kernel rows, kernel columns. */
#ifndef FORKTASK_NCHW_CONVOLUTION_LOOPS_H
#define FORKTASK_NCHW_CONVOLUTION_LOOPS_H

#include <stddef.h>

#include "cython_src/kernels/simd/lanes.h"

#define KERNEL 5 /* side of the convolutions' kernels */
#define TAPS   (KERNEL * KERNEL)

/* out[o][y][u] = bias[o] + sum over (c, ky, kx) of w[o * w_out + c * w_in + tap] * in[c][y + ky][u * 16 +
 * kx * pixel], with tap = 5 ky + kx, or 24 minus that when `flip` is set (the data gradient, with w_out and w_in
 * exchanged). `in` points at the first tap of the first output. Strides are in floats. */
typedef struct ConvTask {
    const float *in, *w, *bias; /* bias may be NULL: zero */
    float *out;
    ptrdiff_t in_channel, in_row, w_out, w_in, out_channel, out_row;
    int channels_in, channels_out, rows, vectors, pixel, flip;
} ConvTask;

/* out[o * out_channel + c * 25 + 5 ky + kx] = sum over (group, y, u, lane) of dy[o][y][u] * x[c][y + ky][u *
 * 16 + kx * pixel]; out[o * out_channel + 25 * channels_in] = sum of dy[o]: the bias. With `accumulate`,
 * added to what is there. */
typedef struct WeightGradientTask {
    const float *dy, *x;
    float *out;
    ptrdiff_t dy_group, dy_channel, dy_row, x_group, x_channel, x_row, out_channel;
    int groups, channels_in, channels_out, rows, vectors, pixel, accumulate;
} WeightGradientTask;

typedef struct NchwConvolutionLoops {
    void (*convolve)(const ConvTask *task);
    void (*weight_gradient)(const WeightGradientTask *task);
} NchwConvolutionLoops;

#endif
