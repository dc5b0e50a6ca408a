/* Inner loops of convolutions with the channels in the lanes: sums of matrix products, compiled once per instruction
 * set.
 *
 * Sums run in an order that depends on shapes alone: taps in the order given, channels within a tap. */
#ifndef FORKTASK_NHWC_CONVOLUTION_LOOPS_H
#define FORKTASK_NHWC_CONVOLUTION_LOOPS_H

#include <stddef.h>
#include <stdint.h>

#include "cython_src/kernels/simd/lanes.h"

#define GROUP_PIXELS 4 /* pixels of a group */

/* One term of a sum of products: offsets, in floats, of its input from a pixel's and of its rows in a panel. */
typedef struct Tap {
    ptrdiff_t a, b;
} Tap;

/* Four pixels `pixel` floats apart in the input and `out_pixel` floats apart in the output; those from `first` on are
 * stored. The others are computed and thrown away: their input must exist. */
typedef struct PixelGroup {
    ptrdiff_t a, c;
    int32_t first, count;
} PixelGroup;

/* c[pixel][column] = activation(bias[column] + sum over taps t and k of a[pixel + t.a + k] * b[t.b + 16 k + column]),
 * added to c with `accumulate`. Columns are cut in panels, `panel` floats apart in b and 16 in c. Panel p's input
 * starts at channel panel_input[p], ascending in equal pairs or not. The last panel has `last_columns` columns: of bias
 * and, with c_pitch below 16, of c. */
typedef struct ProductTask {
    const float *a, *b, *bias; /* bias may be NULL: zero */
    float *c;
    const Tap *taps;
    const PixelGroup *groups;
    const int32_t *panel_input; /* NULL: zero for all */
    ptrdiff_t pixel, out_pixel, panel;
    int num_taps, k, num_groups, num_panels, last_columns, activation, accumulate, store_columns;
    int more_groups; /* groups that follow in the list, for the next call: their input is asked for */
} ProductTask;

/* Memory that will be read soon and is asked for in time: `lines` cache lines, up to two, for each image, row and
 * column of a sum; distances in floats. No lines: nothing. */
typedef struct Request {
    const float *at;
    ptrdiff_t image, row, pixel;
    int lines;
} Request;

/* Prefetch `n` floats that will be written soon. */
static inline void request_writes(const float *at, int n)
{
    for (int i = 0; i < n; i += 16)
        __builtin_prefetch(at + i, 1, 2);
}

/* c[m][column] += sum over images, rows, columns x of a[m] * b[column]: a is `image`, `row` and `pixel` floats apart,
 * b follows on in pieces of `width` floats, 16 or 32, as do the rows of c. */
typedef struct OuterTask {
    const float *a, *b;
    float *c;
    ptrdiff_t image, row, pixel;
    int images, rows, columns, m, width;
    Request ahead[2]; /* made while the first and the second rows of a tile are summed */
} OuterTask;

typedef struct NhwcConvolutionLoops {
    void (*product)(const ProductTask *task);
    void (*outer)(const OuterTask *task);
    /* out[lane * out_stride + r] = rows[index[r]][lane] for r < n, lane < lanes <= 16; added with `accumulate`. */
    void (*transpose_rows)(const float *rows, const int32_t *index, int n, int lanes, float *out, ptrdiff_t out_stride,
                           int accumulate);
    /* out[index[r] + lane] = in[lane * in_stride + r] for r < n; lanes from `lanes` on get zero. `beyond`: there are
     * numbers for at least fifteen r more. */
    void (*spread_rows)(const float *in, ptrdiff_t in_stride, int lanes, int n, const int32_t *index, int beyond,
                        float *out);
    /* Copy `n` pixels of `width` floats, a multiple of 4, `pixel` floats apart in the input, side by side. */
    void (*gather)(const float *in, ptrdiff_t pixel, int n, int width, float *out);
    /* Sums of x - shift and of their squares over `n` pixels, `pixel` floats apart, sixteen channels; added. */
    void (*shifted_sums)(const float *x, ptrdiff_t pixel, int n, const float *shift, float *sum, float *squares);
} NhwcConvolutionLoops;

#endif
