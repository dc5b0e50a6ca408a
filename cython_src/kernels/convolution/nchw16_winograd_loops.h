/* Winograd's minimal filtering F(4 x 4, 5 x 5), for convolutions with images in the vector lanes.
 *
 * A tile of 4 x 4 results of a 5 x 5 convolution takes 64 products instead of 400. Along one axis the eight
 * products belong to the points 0, 1, -1, 2, -2, 1/2, -1/2 and infinity, at which filter and result are seen
 * as polynomials; pairs +a, -a share their even and odd halves. The weight gradient F(5 x 5, 4 x 4), 5 x 5
 * results of filtering with a 4 x 4 tile of the gradient, has the same eight points and thus the same
 * transform of the input.
 *
 * References: A. Lavin, S. Gray, Fast algorithms for convolutional neural networks (CVPR 2016), sections 4.1
 * and 4.2; the points are the usual ones for eight (there for F(6 x 6, 3 x 3)).
 */
#ifndef FORKTASK_NCHW16_WINOGRAD_LOOPS_H
#define FORKTASK_NCHW16_WINOGRAD_LOOPS_H

#include <stddef.h>

#include "cython_src/kernels/maps/nchw_loops.h"

/* Tiles of 4 x 4 results, 64 points, a row of at most STRIP tiles at a time. */
#define WINOGRAD_TILE   4
#define WINOGRAD_POINTS 64
#define WINOGRAD_STRIP  4

/* Transform of a row of tiles: out[p * out_point + c * out_channel + t * out_tile + lane] from in[c * in_channel
 * + y * in_row + x * in_pixel + lane]. `rows` and `columns` from `in` on exist, the others count as zeros. */
typedef struct WinogradTransform {
    const float *in;
    float *out;
    ptrdiff_t in_channel, in_row, in_pixel, out_point, out_channel, out_tile;
    int channels, tiles, rows, columns;
} WinogradTransform;

/* m[p][o][n] = sum over c of u[p][c][o] * v[p][c][n], n < 16 tiles, in the order of c. */
typedef struct WinogradProduct {
    const float *u, *v;
    float *m;
    ptrdiff_t u_point, u_in, v_point, v_in, m_point, m_out;
    int inputs, outputs, tiles;
} WinogradProduct;

typedef struct Nchw16WinogradLoops {
    /* u[p * u_point + i * u_in + o] = transform of the 25 taps at w + o * w_out + i * w_in, reversed if `flip` */
    void (*weights)(const float *w, ptrdiff_t w_out, ptrdiff_t w_in, int outputs, int inputs, int flip, float *u,
                    ptrdiff_t u_point, ptrdiff_t u_in);
    void (*input)(const WinogradTransform *task);    /* tiles of 8 x 8 that overlap by 4 */
    void (*gradient)(const WinogradTransform *task); /* tiles of 4 x 4 */
    void (*multiply)(const WinogradProduct *task);
    /* Rows of 4 x 4 results of neighbouring tiles from m[p * point + 16 t + lane] */
    void (*output)(const float *m, ptrdiff_t point, int tiles, float bias, float *out, ptrdiff_t row);
    void (*reduce)(const NchwReduction *task);
    /* out[lane * out_lane + tap] (+)= taps from m[p * point + lane] */
    void (*gradient_output)(const float *m, ptrdiff_t point, int lanes, float *out, ptrdiff_t out_lane, int accumulate);
} Nchw16WinogradLoops;

#endif
