/* Geometry of a convolution in the layout "nhwc", from its kernel's attributes: maps, panels of weights, tiles; and
 * sizes of its scratch memory, and of what lies in it, in floats.
 *
 * Shared by the kernels that pack weights, convolve forward and backward, and sum weight gradients. They divide their
 * scratch memory by these functions, and `KernelSpec.scratch_bytes` asks them for the whole: there is no other copy of a
 * formula or of a limit. Parts begin at cache lines. */
#ifndef FORKTASK_NHWC_CONVOLUTION_SIZES_H
#define FORKTASK_NHWC_CONVOLUTION_SIZES_H

#include "kernel_arguments.h" /* written by the build from interface/arguments.py */
#include "nhwc_loops.h"
#include "cython_src/kernels/linear/linear_loops.h"

#define MAX_KERNEL   15    /* side of a kernel */
#define MAX_CHANNELS 16384 /* of a map */

enum {
    MAX_PANELS = MAX_CHANNELS / LANES,
    MAX_TAPS = MAX_KERNEL * MAX_KERNEL,
    MAX_GROUPS = 1024,       /* groups of pixels in a list, unless two rows have more */
    ROW_FLOATS = 1 << 16,    /* copied rows of inputs */
    SMALL_WEIGHTS = 1 << 16, /* floats that may stay in the L2 cache beside a list of pixels */
    WEIGHT_TILES = 64,       /* Winograd tiles of a strip of the weight gradient */
    WEIGHT_OUTPUTS = 64,     /* output channels that are summed at a time there */
    MATRIX_CHANNELS = 64,    /* of a weight gradient that is a product of matrices, at least */
    STRIP = 128              /* pixels of a strip of the weight gradient, at least, without a stride */
};

typedef struct Convolution {
    NhwcMap source, target;
    int kernel, stride, padding, dilation, groups, algorithm, option;
    int side;       /* outputs in a row of a Winograd tile, or 0 */
    int transposed; /* data gradient: `stride` is between outputs */
} Convolution;

static inline ptrdiff_t smaller(ptrdiff_t a, ptrdiff_t b)
{
    return a < b ? a : b;
}

static inline ptrdiff_t larger(ptrdiff_t a, ptrdiff_t b)
{
    return a > b ? a : b;
}

/* a / b, rounded up. */
static inline ptrdiff_t pieces(ptrdiff_t a, ptrdiff_t b)
{
    return (a + b - 1) / b;
}

/* Rounded up to whole cache lines. */
static inline ptrdiff_t lines(ptrdiff_t floats)
{
    return pieces(floats, LANES) * LANES;
}

/* Outputs in a row of a Winograd tile; 0 for other algorithms, by specs.ALGORITHMS. */
static inline int winograd_side(int algorithm)
{
    return 2 * algorithm;
}

static inline Convolution convolution_of(NhwcMap source, NhwcMap target, Geometry g, int option, int transposed)
{
    /* Of a data gradient: of the equivalent convolution with reversed taps. */
    const int padding = transposed ? (g.kernel - 1) * g.dilation - g.padding : g.padding;
    return (Convolution){source,     target,   g.kernel,    g.stride, padding,
                         g.dilation, g.groups, g.algorithm, option,   winograd_side(g.algorithm),
                         transposed};
}

/* a / b, rounded down; b is positive. */
static inline int divide(int a, int b)
{
    return a >= 0 ? a / b : -((b - 1 - a) / b);
}

/* Finds the first input channel of each panel, unless `starts` is NULL; returns how many channels follow. */
static inline int panel_inputs(int written, int read, int groups, int32_t *starts)
{
    const int panels = (int)pieces(written, LANES), part = written / groups, inputs = read / groups;
    int count = 4;
    for (int p = 0; p < panels; p++) {
        const int first = LANES * p / part, last = (int)(smaller(written, LANES * (p + 1)) - 1) / part;
        count = (int)larger(count, (last + 1 - first) * inputs);
    }
    /* Not past the last channel: what lies there may be no channel at all. */
    for (int p = 0; starts && p < panels; p++)
        starts[p] = (int32_t)larger(0, smaller(LANES * p / part * inputs, read - count));
    return count;
}

/* A list of groups of pixels. */
static inline ptrdiff_t group_floats(ptrdiff_t groups)
{
    return lines(groups * (ptrdiff_t)(sizeof(PixelGroup) / sizeof(float)));
}

/* ---- packing of weights ---- */

/* The places of LANES inputs' weights; a panel before its transform follows. */
static inline ptrdiff_t pack_index(int taps)
{
    return lines(LANES * taps);
}

static inline ptrdiff_t pack_scratch(int taps, int k, int side)
{
    return pack_index(taps) + (side ? (ptrdiff_t)taps * k * LANES : 0);
}

/* ---- forward pass and data gradient ---- */

/* How outputs of one phase are computed: straight from the map, whose pixels follow on; by way of copies; straight from
 * the map, row by row. */
enum { FLAT, COPIED, ROWS };

/* The method for a block's part of a phase; `whole`: the block has all rows of the map. */
static inline int method_of(const Convolution *c, int images, int rows, int columns, int whole)
{
    /* Pixels side by side in both maps: one row for the whole block, or of an image. */
    if (whole && c->kernel == 1 && c->stride == 1 && c->padding == 0 && c->source.halo == 0 && c->target.halo == 0 &&
        (ptrdiff_t)images * rows * columns >= 4)
        return FLAT;
    return columns < 4 ? COPIED : ROWS;
}

/* How many taps along one axis the outputs phase + step j meet. */
static inline int num_taps(const Convolution *c, int phase, int step)
{
    int count = 0;
    for (int tap = 0; tap < c->kernel; tap++) {
        const int at = phase - c->padding + tap * c->dilation;
        count += divide(at, step) * step == at;
    }
    return count;
}

/* How many channels a tap copies: those of all groups, with padding where a product takes more. */
static inline int copied_channels(const Convolution *c, int k)
{
    return c->groups == 1 ? k : (int)larger(4, c->source.channels);
}

typedef struct CopiedScratch {
    int chunk;                   /* outputs at a time */
    ptrdiff_t copied, sums, end; /* behind a list of groups */
} CopiedScratch;

/* Products by copies: `total` outputs of `length` inputs and `width` results. */
static inline CopiedScratch copied_scratch(ptrdiff_t length, int width, ptrdiff_t total)
{
    CopiedScratch s;
    s.chunk = (int)smaller(192, larger(12, ROW_FLOATS / larger(1, length) / 12 * 12));
    s.chunk = (int)smaller(s.chunk, pieces(total, 4) * 4);
    s.copied = group_floats(s.chunk / 4);
    s.sums = s.copied + lines(s.chunk * length);
    s.end = s.sums + (ptrdiff_t)s.chunk * width;
    return s;
}

/* How many groups of pixels of `pitch` floats stay in the L2 cache while all panels pass. */
static inline int list_groups(int pitch)
{
    return (int)smaller(MAX_GROUPS, larger(24, 32768 / pitch));
}

/* The groups of a list of pixels that follow on: whole tiles of three; one of the next list comes besides. Their results
 * stay in the cache too where the weights leave them room. */
static inline int flat_groups(const Convolution *c, int k, int num_panels)
{
    const int beside = (ptrdiff_t)k * num_panels * LANES <= SMALL_WEIGHTS ? c->target.pitch : 0;
    return (int)smaller(MAX_GROUPS - 3, list_groups(c->source.pitch + beside)) / 3 * 3;
}

/* The tiles of a chunk: nearly equal chunks of whole groups. With few channels the weights of all points stay in the L2
 * cache, and so do a chunk and its sums; with more, the weights come from farther for each chunk. */
static inline int num_tiles(int side, int channels, ptrdiff_t total)
{
    const int most = (channels < 128 ? 24 : 96) * (4 / side);
    return (int)(pieces(pieces(total, pieces(total, most)), 4) * 4);
}

/* Behind a list of groups: the bias, inputs of a tile at the edge, transformed inputs, sums; from one point to the next
 * there is an odd number of cache lines, because a power of two would put all points in one cache set. */
typedef struct WinogradScratch {
    int points, channels; /* interpolation points; channels that are transformed, in whole vectors */
    int chunk;            /* tiles at a time */
    ptrdiff_t bias, patch, inputs, inputs_point, sums, sums_point, end;
} WinogradScratch;

static inline WinogradScratch winograd_scratch(const Convolution *c, int k, int images, int rows, int num_panels)
{
    WinogradScratch s;
    s.points = (c->side + 2) * (c->side + 2);
    s.channels = (int)lines(k);
    s.chunk = num_tiles(c->side, s.channels, images * pieces(rows, c->side) * pieces(c->target.width, c->side));
    s.bias = group_floats(s.chunk / 4);
    s.patch = s.bias + num_panels * LANES;
    s.inputs = s.patch + (ptrdiff_t)s.points * s.channels;
    s.inputs_point = (ptrdiff_t)s.chunk * s.channels + LANES;
    s.sums = s.inputs + s.points * s.inputs_point;
    s.sums_point = (ptrdiff_t)s.chunk * num_panels * LANES + LANES;
    s.end = s.sums + s.points * s.sums_point;
    return s;
}

/* A block of the forward pass or of the data gradient: its largest phase. */
static inline ptrdiff_t convolution_scratch(const Convolution *c, int k, int images, int rows, int channels)
{
    const int step = c->transposed ? c->stride : 1, num_panels = (int)pieces(channels, LANES);
    const int phase_rows = (int)pieces(rows, step); /* at most */
    ptrdiff_t largest = 0;
    if (c->side)
        return winograd_scratch(c, k, images, rows, num_panels).end;
    for (int ry = 0; ry < step; ry++)
        for (int rx = 0; rx < step && rx < c->target.width; rx++) {
            const int columns = (int)pieces(c->target.width - rx, step);
            const ptrdiff_t outputs = (ptrdiff_t)images * phase_rows * columns, of_row = pieces(columns, 4);
            const int method = method_of(c, images, phase_rows, columns, rows == c->target.height);
            ptrdiff_t size;
            if (method == COPIED)
                size = copied_scratch((ptrdiff_t)copied_channels(c, k) * num_taps(c, ry, step) * num_taps(c, rx, step),
                                      num_panels * LANES, outputs)
                           .end;
            else if (method == FLAT)
                size = group_floats(smaller(pieces(outputs, 4), flat_groups(c, k * c->kernel, num_panels) + 3));
            else
                size = group_floats(
                    smaller(larger(2 * of_row, list_groups(c->source.pitch)), (ptrdiff_t)images * phase_rows * of_row));
            largest = larger(largest, size);
        }
    return largest;
}

/* ---- weight gradient ---- */

/* Whether it is summed as a product of two matrices: one tap, and channels enough that turning one of them does not
 * count. */
static inline int is_matrix_product(const Convolution *c)
{
    return c->kernel == 1 && c->padding == 0 && c->groups == 1 && c->source.halo == 0 &&
           smaller(c->source.channels, c->target.channels) >= MATRIX_CHANNELS;
}

/* How many pixels of the input are copied at a time for that product; none where all of them follow on in the map. */
static inline int copied_pixels(const Convolution *c)
{
    return c->stride > 1 || c->target.halo ? LINEAR_GRADIENT_ROWS : 0;
}

/* How many output channels are summed at a time, for Winograd from inputs that are transformed once. */
static inline int piece_outputs(const Convolution *c)
{
    return c->side ? MAX_CHANNELS : c->kernel > 1 ? 128 : 256;
}

/* How many input channels are summed at a time. */
static inline int piece_inputs(const Convolution *c)
{
    return c->kernel > 7 ? 16 : c->kernel > 1 ? 64 : 256;
}

/* The places of an output channel's sums; all else follows. */
static inline ptrdiff_t weight_index(const Convolution *c, int inputs)
{
    return lines((ptrdiff_t)inputs * c->kernel * c->kernel);
}

typedef struct WeightScratch {
    int copied, inputs;          /* channels that are copied together; all of the piece */
    int joined;                  /* floats of a column where a row of taps is summed as one, else 0 */
    int calls, rows;             /* products, and rows of sums of each */
    int chunks;                  /* of 32 output channels */
    int images, height, columns; /* a strip: images, rows of the gradient, columns of the input */
    int step, move;              /* between inputs that are copied, and between those of neighbouring outputs */
    ptrdiff_t sums, sums_size, gradient, gradient_size, input, end;
} WeightScratch;

/* The direct algorithm; `source` is the gradient's map, `target` the input's. */
static inline WeightScratch weight_scratch(const Convolution *c, int images, int outputs, int inputs)
{
    WeightScratch s;
    const int k = c->kernel, pixels = c->source.height * c->source.width, reach = (k - 1) * c->dilation + 1;
    s.step = k == 1 ? c->stride : 1; /* a single tap reads every step-th pixel only */
    s.move = k == 1 ? 1 : c->stride;
    const int strip = STRIP / s.move; /* fewer pixels where each has more inputs, so that they stay in the L1 cache */
    s.copied = (int)smaller(LANES, c->target.pitch);
    s.inputs = c->target.pitch < LANES ? s.copied : (int)lines(inputs);
    s.joined = c->target.pitch < LANES && c->dilation == 1 ? s.copied : 0;
    s.calls = s.joined ? k : k * k;
    s.rows = s.joined ? s.copied * k : s.inputs;
    s.chunks = (int)pieces(outputs, 32);
    s.images = pixels < strip ? (int)smaller(images, strip / pixels) : 1;
    s.height = pixels <= strip ? c->source.height : (int)pieces(strip, c->source.width);
    s.columns = (c->source.width - 1) * s.move + reach;
    s.sums = weight_index(c, inputs);
    s.sums_size = (ptrdiff_t)s.calls * s.rows * 32;
    s.gradient = s.sums + s.chunks * s.sums_size;
    s.gradient_size = (ptrdiff_t)s.images * s.height * c->source.width * 32;
    s.input = s.gradient + s.chunks * s.gradient_size;
    s.end = s.input + (ptrdiff_t)s.images * ((s.height - 1) * s.move + reach) * s.columns * s.copied;
    return s;
}

/* Transformed inputs and gradients have odd numbers of cache lines between points. Weights take the gradients' place. */
typedef struct WinogradWeightScratch {
    int inputs;        /* channels of the piece, in whole vectors */
    int outputs;       /* channels that are summed at a time, a multiple of 32 */
    int points, chunk; /* interpolation points; tiles at a time */
    ptrdiff_t sums, sums_point, patch, input, input_point, gradient, gradient_point, end;
} WinogradWeightScratch;

static inline WinogradWeightScratch winograd_weight_scratch(const Convolution *c, int images, int outputs, int inputs)
{
    WinogradWeightScratch s;
    const ptrdiff_t tiles = pieces(c->source.height, c->side) * pieces(c->source.width, c->side);
    s.inputs = (int)lines(inputs);
    s.outputs = (int)(pieces(smaller(outputs, WEIGHT_OUTPUTS), 32) * 32);
    s.points = (c->side + 2) * (c->side + 2);
    s.chunk = (int)smaller(WEIGHT_TILES, images * tiles);
    s.sums = weight_index(c, inputs);
    s.sums_point = (ptrdiff_t)s.inputs * s.outputs + LANES;
    s.patch = s.sums + s.points * s.sums_point;
    s.input = s.patch + s.points * larger(s.inputs, s.outputs);
    s.input_point = (ptrdiff_t)s.chunk * s.inputs + LANES;
    s.gradient = s.input + s.points * s.input_point;
    s.gradient_point = (ptrdiff_t)s.chunk * s.outputs + LANES;
    s.end = s.gradient + larger(s.points * s.gradient_point, (ptrdiff_t)c->kernel * c->kernel * s.inputs * s.outputs);
    return s;
}

/* A block of the weight gradient: its largest piece. */
static inline ptrdiff_t weight_gradient_scratch(const Convolution *c, int images, int outputs, int inputs)
{
    if (is_matrix_product(c))
        return LINEAR_GRADIENT_FLOATS((ptrdiff_t)images * c->source.height * c->source.width, outputs, inputs) +
               (ptrdiff_t)copied_pixels(c) * inputs;
    outputs = (int)smaller(outputs, piece_outputs(c));
    inputs = (int)smaller(inputs, piece_inputs(c));
    return c->side ? winograd_weight_scratch(c, images, outputs, inputs).end
                   : weight_scratch(c, images, outputs, inputs).end;
}

#endif
