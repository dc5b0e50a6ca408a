/* Sizes of the scratch memory of convolutions with images or pixels in the lanes, and of what lies in it, in floats.
 * Kernels divide their scratch memory by these functions, and `KernelSpec.scratch_bytes` asks them for the whole: there is
 * no other copy. `stores`: the result goes to its map as it is, neither pooled nor spread. */
#ifndef FORKTASK_CONVOLUTION_NCHW_SIZES_H
#define FORKTASK_CONVOLUTION_NCHW_SIZES_H

#include "nchw_loops.h"
#include "nchw16_winograd_loops.h"

#define NCHW_TILE 5 /* output channels at a time, at most */

static inline int nchw_smaller(int a, int b)
{
    return a < b ? a : b;
}

/* ---- direct, and the algorithms that it is compared with ---- */

/* Positions in algorithms.NCHW16_FORMS. */
enum { ALGORITHM_DIRECT, ALGORITHM_TESTED, ALGORITHM_TESTED_BLOCKED, ALGORITHM_PAD, ALGORITHM_PAD_BLOCKED };

#define NCHW_CHANNEL_FLOATS 8192 /* of a channel's results with pixels in the lanes: they stay in the first cache */

/* Rows of pixels seen as `rows` rows of `vectors` vectors, `row` floats from one row of pixels to the next. */
typedef struct VectorRows {
    int rows, vectors;
    ptrdiff_t row;
} VectorRows;

/* Narrow rows of the layout "nchw" run on through the halo, whose results are ignored: they are one row of vectors. */
static inline VectorRows rows_as_vectors(int lanes, int width, int pitch, int rows)
{
    if (lanes == LANES)
        return (VectorRows){rows, width, (ptrdiff_t)width * LANES};
    if (width % LANES == 0)
        return (VectorRows){rows, width / LANES, width};
    return (VectorRows){1, (rows * pitch - (pitch - width) + LANES - 1) / LANES, pitch};
}

/* Whether results pass through scratch memory. */
static inline int direct_buffers(int lanes, int width, int stores)
{
    return !stores || (lanes != LANES && width % LANES != 0);
}

/* Rows of results at a time, an even number: as many as the layout "nchw" can use, two of the layout "nchw16". */
static inline int direct_rows(int lanes, int width, int pitch)
{
    const ptrdiff_t row = rows_as_vectors(lanes, width, pitch, 2).row;
    const ptrdiff_t rows = (NCHW_CHANNEL_FLOATS - 2 * LANES) / row / 2 * 2;
    return lanes == LANES || rows < 2 ? 2 : (int)rows;
}

/* From one channel's results to the next: an odd number of vectors, so that not all begin in one cache set. */
static inline ptrdiff_t direct_channel(const VectorRows *r)
{
    return ((ptrdiff_t)r->rows * r->vectors + 1) * LANES;
}

#define PAD_ROWS 16 /* rows of outputs whose inputs are copied between zeros at a time */

/* Rows of results for which inputs are copied at a time; all `rows` where none are. */
static inline int algorithm_rows(int algorithm, int rows)
{
    return algorithm >= ALGORITHM_PAD ? nchw_smaller(rows, PAD_ROWS) : rows;
}

/* Copied inputs of `channels` channels for `rows` rows of `width` results. */
static inline ptrdiff_t algorithm_copies(int algorithm, int channels, int width, int rows)
{
    const ptrdiff_t n = algorithm_rows(algorithm, rows);
    return algorithm >= ALGORITHM_PAD ? channels * (n + KERNEL - 1) * (width + KERNEL - 1) * LANES : 0;
}

/* Results of up to NCHW_TILE channels, then copied inputs. */
typedef struct ConvScratch {
    ptrdiff_t copied, end;
} ConvScratch;

/* A block of `outputs` output channels and `rows` rows of results. */
static inline ConvScratch conv_scratch(int algorithm, int lanes, int width, int pitch, int stores, int inputs,
                                       int outputs, int rows)
{
    const VectorRows r = rows_as_vectors(lanes, width, pitch, nchw_smaller(rows, direct_rows(lanes, width, pitch)));
    const int tile = direct_buffers(lanes, width, stores) ? nchw_smaller(outputs, NCHW_TILE) : 0;
    ConvScratch s = {tile * direct_channel(&r), 0};
    s.end = s.copied + algorithm_copies(algorithm, inputs, width, rows);
    return s;
}

/* ---- Winograd ---- */

enum {
    WINOGRAD_BORDER = KERNEL - 1,
    WINOGRAD_ROW = WINOGRAD_STRIP * WINOGRAD_TILE * LANES, /* floats in a row of results of a strip */
    WINOGRAD_WINDOW = 160,                                 /* pixels that a strip reads: 20 x 8, 12 x 12 or 8 x 20 */
    WINOGRAD_PAD = 16                                      /* so that points do not all fall in one set of the cache */
};

/* Forward pass and data gradient: transformed inputs, products, four rows of results. */
typedef struct Nchw16WinogradScratch {
    ptrdiff_t v_point, m, m_point, rows, end;
} Nchw16WinogradScratch;

static inline Nchw16WinogradScratch nchw16_winograd_scratch(int inputs, int outputs)
{
    Nchw16WinogradScratch s;
    s.v_point = (ptrdiff_t)inputs * WINOGRAD_STRIP * LANES + WINOGRAD_PAD;
    s.m = WINOGRAD_POINTS * s.v_point;
    s.m_point = (ptrdiff_t)outputs * WINOGRAD_STRIP * LANES + WINOGRAD_PAD;
    s.rows = s.m + WINOGRAD_POINTS * s.m_point;
    s.end = s.rows + WINOGRAD_TILE * WINOGRAD_ROW;
    return s;
}

/* Weight gradient: a window of the side whose channels lie in the lanes, that side transformed, the other side
 * transformed, sums. */
typedef struct WinogradGradientScratch {
    int turn_input; /* whether the input's channels lie in the lanes, or the gradient's: the side that fills vectors better */
    int lanes_channels, rows; /* channels of that side, and of the other */
    int blocks;               /* vectors of that side */
    ptrdiff_t window_lane, vectors, vectors_point, others, others_row, others_point, sums, sums_point, end;
} WinogradGradientScratch;

static inline int winograd_vectors(int channels)
{
    return (channels + LANES - 1) / LANES;
}

static inline WinogradGradientScratch winograd_gradient_scratch(int inputs, int outputs)
{
    WinogradGradientScratch s;
    s.turn_input = winograd_vectors(inputs) * outputs <= winograd_vectors(outputs) * inputs;
    s.lanes_channels = s.turn_input ? inputs : outputs;
    s.rows = s.turn_input ? outputs : inputs;
    s.blocks = winograd_vectors(s.lanes_channels);
    s.window_lane = WINOGRAD_WINDOW * LANES + WINOGRAD_PAD;
    s.vectors = LANES * s.window_lane;
    s.vectors_point = WINOGRAD_STRIP * LANES * LANES + WINOGRAD_PAD;
    s.others = s.vectors + WINOGRAD_POINTS * s.vectors_point;
    s.others_row = WINOGRAD_STRIP * LANES;
    s.others_point = s.rows * s.others_row + WINOGRAD_PAD;
    s.sums = s.others + WINOGRAD_POINTS * s.others_point;
    s.sums_point = (ptrdiff_t)s.rows * LANES + WINOGRAD_PAD;
    s.end = s.sums + s.blocks * WINOGRAD_POINTS * s.sums_point;
    return s;
}

#endif
