/* Inner loops of the kernels, compiled once per instruction set from micro_kernels.c and reached through a
 * table.
 *
 * The unit of all of them is sixteen consecutive floats. In the lane layout a unit is one pixel of sixteen
 * images; in the flat layout it is sixteen neighbouring pixels of one image. A tap of a convolution moves by
 * `pixel` floats from one column to the next: 16 in the lane layout, 1 in the flat one. Everything else is
 * the same code.
 *
 * Sums run in an order that depends on shapes alone, never on how a loop was cut into blocks: bias first,
 * then input channels, kernel rows, kernel columns.
 */
#ifndef FORKTASK_MICRO_KERNELS_H
#define FORKTASK_MICRO_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "lanes.h"

struct MatrixKernels;     /* matrix_kernels.h */
struct WinogradKernels;   /* kernels/convolution/channels_winograd_loops.h */
struct ConvForms;         /* kernels/convolution/lanes_forms_loops.h */
struct LinearLoops;       /* kernels/linear/linear_loops.h */
struct AttentionLoops;    /* kernels/attention/attention_loops.h */
struct LayerNormLoops;    /* kernels/norm/tokens_loops.h */
struct VocabularyLoops;   /* kernels/loss/vocabulary_loops.h */
struct TokenElementLoops; /* kernels/elementwise/tokens_loops.h */
/* Of the layout "channels", each in its concept's channels_loops.h; of the optimisers, in optimizer_loops.h */
struct ChannelsDepthwiseLoops;
struct ChannelsElementwiseLoops;
struct ChannelsNormLoops;
struct ChannelsPoolingLoops;
struct OptimizerLoops;

#define UNIT   LANES
#define KERNEL 5 /* side of the convolutions' kernels */
#define TAPS   (KERNEL * KERNEL)

/* out[o][y][u] = bias[o] + sum over (c, ky, kx) of w[o * w_out + c * w_in + tap] * in[c][y + ky][u * 16 +
 * kx * pixel], with tap = 5 ky + kx, or 24 minus that when `flip` is set (the data gradient, with w_out and w_in
 * exchanged). `in` points at the first tap of the first output. Strides are in floats. */
typedef struct ConvTask {
    const float *in, *w, *bias; /* bias may be NULL: zero */
    float *out;
    ptrdiff_t in_channel, in_row, w_out, w_in, out_channel, out_row;
    int channels_in, channels_out, rows, units, pixel, flip;
} ConvTask;

/* out[o * out_channel + c * 25 + 5 ky + kx] = sum over (group, y, u, lane) of dy[o][y][u] * x[c][y + ky][u *
 * 16 + kx * pixel]; out[o * out_channel + 25 * channels_in] = sum of dy[o]: the bias. With `accumulate`,
 * added to what is there. */
typedef struct WeightGradientTask {
    const float *dy, *x;
    float *out;
    ptrdiff_t dy_group, dy_channel, dy_row, x_group, x_channel, x_row, out_channel;
    int groups, channels_in, channels_out, rows, units, pixel, accumulate;
} WeightGradientTask;

/* Winograd convolution (kernels/convolution/lanes_winograd_loops.h): tiles of 4 x 4 results, 64 points, a row of at most STRIP tiles at a
 * time. */
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

/* out[p][r][lane] (+)= sum over k < length of a[p][r][k] * b[p][16 k + lane]; length is a multiple of 16. */
typedef struct WinogradReduction {
    const float *a, *b;
    float *out;
    ptrdiff_t a_point, a_row, b_point, out_point, out_row;
    int rows, length, accumulate;
} WinogradReduction;

typedef struct MicroKernels {
    const char *name;
    const struct MatrixKernels *matrix;
    const struct WinogradKernels *winograd;
    void (*conv)(const ConvTask *task);
    void (*weight_gradient)(const WeightGradientTask *task);
    /* Maximum of 2 x 2 windows of two rows: `width` pooled pixels of `lanes` floats. index: 0 ... 3
     * (row-major, the first of equals). With `relu`: of max(x, 0), and index 4 where nothing is positive. */
    void (*pool_row)(const float *row0, const float *row1, int width, int lanes, int relu, float *out, uint8_t *index);
    /* Two rows of gradient from one pooled row: the value where the index points, zero elsewhere. */
    void (*unpool_row)(const float *in, const uint8_t *index, int width, int lanes, float *row0, float *row1);
    void (*relu)(const float *in, float *out, ptrdiff_t n);                         /* out = max(in, 0) */
    void (*relu_backward)(const float *dy, const float *y, float *dx, ptrdiff_t n); /* dx = y > 0 ? dy : 0 */
    /* logits[o][lane] = bias[o] + sum over f of w[o * features + f] * x[f][lane] */
    void (*fc_forward)(const float *x, const float *w, const float *bias, float *logits, int features, int outputs,
                       int lanes);
    void (*fc_backward_data)(const float *dlogits, const float *w, float *dx, int features, int outputs, int lanes);
    /* out[o][f] = sum over groups and lanes of dlogits[group][o][lane] * x[group][f][lane]; out[o][features]:
     * the bias */
    void (*fc_backward_weights)(const float *dlogits, const float *x, float *out, int groups, int features, int outputs,
                                int lanes, int accumulate);
    /* g = sum of `partials` gradients, `stride` floats apart, in order; then momentum and step:
     * v = momentum v + (g + weight_decay w), w = w - rate v. The sum is kept in `gradient`. */
    void (*sgd)(const float *partial, ptrdiff_t stride, int partials, float *gradient, float *weight, float *velocity,
                ptrdiff_t n, float rate, float momentum, float weight_decay);
    /* out[x * 16 + i] = rows[i][x]: sixteen rows of pixels become one row in the lane layout. */
    void (*interleave_row)(const float *const *rows, int width, float *out);
    const struct ChannelsDepthwiseLoops *channels_depthwise;
    const struct ChannelsElementwiseLoops *channels_elementwise;
    const struct ChannelsNormLoops *channels_norm;
    const struct ChannelsPoolingLoops *channels_pooling;
    const struct OptimizerLoops *optimizer;
    /* u[p * u_point + i * u_in + o] = transform of the 25 taps at w + o * w_out + i * w_in, reversed if `flip`
     */
    void (*winograd_weights)(const float *w, ptrdiff_t w_out, ptrdiff_t w_in, int outputs, int inputs, int flip,
                             float *u, ptrdiff_t u_point, ptrdiff_t u_in);
    void (*winograd_input)(const WinogradTransform *task);    /* tiles of 8 x 8 that overlap by 4 */
    void (*winograd_gradient)(const WinogradTransform *task); /* tiles of 4 x 4 */
    void (*winograd_multiply)(const WinogradProduct *task);
    /* Rows of 4 x 4 results of neighbouring tiles from m[p * point + 16 t + lane] */
    void (*winograd_output)(const float *m, ptrdiff_t point, int tiles, float bias, float *out, ptrdiff_t row);
    /* out[i * out_stride + c] = in[c * stride + i] for 16 x 16 numbers; zero from c = count on */
    void (*transpose_unit)(const float *in, ptrdiff_t stride, int count, float *out, ptrdiff_t out_stride);
    void (*winograd_reduce)(const WinogradReduction *task);
    /* out[lane * out_lane + tap] (+)= taps from m[p * point + lane] */
    void (*winograd_gradient_output)(const float *m, ptrdiff_t point, int lanes, float *out, ptrdiff_t out_lane,
                                     int accumulate);
    float (*sum_rows)(const float *in, int rows, ptrdiff_t row, ptrdiff_t n); /* n: a multiple of 16 */
    const struct ConvForms *forms;
    const struct LinearLoops *linear;
    const struct AttentionLoops *attention;
    const struct LayerNormLoops *layernorm;
    const struct TokenElementLoops *token_elements;
    const struct VocabularyLoops *vocabulary;
} MicroKernels;

extern const MicroKernels forktask_micro_generic;
extern const MicroKernels forktask_micro_avx2;
extern const MicroKernels forktask_micro_avx512;

#endif
