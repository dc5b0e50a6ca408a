/* Inner loops of depthwise convolution, see kernels/depthwise/nhwc_loops.h. Compiled once per instruction set. */
#include "nhwc_loops.h"
#include "nhwc_sizes.h"
#include "cython_src/kernels/maps/nhwc_windows_loops.h"
#include "cython_src/kernels/norm/nhwc_rows.h"
#include "cython_src/kernels/simd/activations.h"

#include <string.h>

static void depthwise_pack(const float *weight, int channels, int padded, int taps, int flip, float *out)
{
    for (int c = 0; c < padded; c++, weight += taps) {
        float *to = out + panel_offset(c, taps);
        for (int tap = 0; tap < taps; tap++, to += LANES)
            *to = c >= channels ? 0 : weight[flip ? taps - 1 - tap : tap];
    }
}

/* Taps (ky, kx) that input (i, j) of a tile meets, and the outputs (r, q) whose they are. */
#define EACH_TAP(KH, KW)                                      \
    UNROLL for (int ky = 0; ky < KH; ky++)                    \
        UNROLL for (int kx = 0, r = (i - ky) / S, q; kx < KW; \
                    kx++) if (q = (j - kx) / S,               \
                              i >= ky && (i - ky) % S == 0 && r < R && j >= kx && (j - kx) % S == 0 && q < T)

/* What becomes of a vector of the input's channels where it is loaded: `NORM`, a constant, says whether anything does. The
 * norm is computed anew for each tile that reads a pixel, 2.25 times with tiles of 4 x 4: that takes less time than
 * to write normalised rows and to read them again. */
typedef struct Normaliser {
    Vec scale, shift, low, high;
} Normaliser;

INLINE Normaliser normaliser(const WindowTask *t, int c, const int NORM)
{
    const int activation = t->in_activation;
    return NORM ? (Normaliser){load(t->scale + c), load(t->shift + c), splat(activation ? 0 : -INFINITY),
                               splat(activation == ACTIVATION_RELU6 ? 6 : INFINITY)}
                : (Normaliser){{0}};
}

/* A NaN stays one; a zero may be negative, which no sum that starts with zero shows. */
INLINE Vec load_input(const float *x, const Normaliser *f, const int NORM)
{
    Vec v = load(x);
    return NORM ? minimum(f->high, maximum(f->low, f->scale * v + f->shift)) : v;
}

/* R rows x T columns of outputs of one vector of channels. Each output is summed over taps in their order, so the
 * shape of the tile does not show in the result. x: the first tap of the first output. */
INLINE void depthwise_tile(const WindowTask *t, int c, const float *x, float *out, const int NORM, const int K,
                           const int S, const int R, const int T, const int edge, const Part *part)
{
    const float *w = t->weight + panel_offset(c, K * K);
    const Normaliser norm = normaliser(t, c, NORM);
    const ptrdiff_t pitch = t->pitch, row = t->in.row, out_row = t->out.row;
    const int activation = t->activation, accumulate = t->accumulate;
    const int HELD = MICRO_ISA == AVX512 && K == 3; /* weights in registers */
    Vec sum[4][4], weight[9],
        start = t->bias ? load(t->bias + c) : (Vec){0}; /* fixed sizes: only such arrays are kept in registers */
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int q = 0; q < T; q++) sum[r][q] = start;
    if (HELD)
        UNROLL for (int k = 0; k < K * K; k++) weight[k] = load(w + k * LANES);
    UNROLL for (int i = 0; i < (R - 1) * S + K; i++)
    {
        if (i < part->i0 || i >= part->i1)
            continue;
        UNROLL for (int j = 0; j < (T - 1) * S + K; j++)
        {
            if (!readable(j, (T - 1) * S + K, edge, part))
                continue;
            Vec v = load_input(x + c + i * row + j * pitch, &norm, NORM);
            EACH_TAP(K, K)
            sum[r][q] += (HELD ? weight[HELD ? ky * 3 + kx : 0] : load(w + (ky * K + kx) * LANES)) * v;
        }
    }
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int q = 0; q < T; q++)
    {
        Vec y = sum[r][q];
        if (activation)
            y = activation == ACTIVATION_RELU ? activated(y, ACTIVATION_RELU) : activated(y, ACTIVATION_RELU6);
        store_or_add(out + c + r * out_row + q * pitch, y, accumulate);
    }
}

/* Add to the sums of KH rows of a kernel's taps what a tile of R x T outputs' gradients sends them. */
INLINE void weights_tile(const WindowTask *t, int c, const float *x, const float *dy, float *sums, const int NORM,
                         const int KH, const int K, const int S, const int R, const int T, const int edge,
                         const Part *part)
{
    const Normaliser norm = normaliser(t, c, NORM);
    const ptrdiff_t pitch = t->pitch, row = t->in.row, out_row = t->out.row;
    Vec g[4][4], sum[9];
    UNROLL for (int k = 0; k < KH * K; k++) sum[k] = load(sums + k * LANES);
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int q = 0; q < T; q++) g[r][q] =
        load(dy + c + r * out_row + q * pitch);
    UNROLL for (int i = 0; i < (R - 1) * S + KH; i++)
    {
        if (i < part->i0 || i >= part->i1)
            continue;
        UNROLL for (int j = 0; j < (T - 1) * S + K; j++)
        {
            if (!readable(j, (T - 1) * S + K, edge, part))
                continue;
            Vec v = load_input(x + c + i * row + j * pitch, &norm, NORM);
            EACH_TAP(KH, K)
            sum[ky * K + kx] += g[r][q] * v;
        }
    }
    UNROLL for (int k = 0; k < KH * K; k++) store(sums + k * LANES, sum[k]);
}

/* Outputs from (y, x) on, all channels: they themselves, or, with `sums`, what their gradients add to the sums of
 * the weights' gradient. */
typedef void Piece(const WindowTask *t, float *sums, int n, int y, int x);

/* One output, any kernel and stride. */
INLINE void any_form(const WindowTask *t, float *sums, int n, int y, int x, const int NORM)
{
    const int top = y * t->stride - t->padding, left = x * t->stride - t->padding;
    const float *in = t->in.p + n * t->in.image + top * t->in.row + left * t->pitch;
    float *out = out_pixel(t, n, y, x);
    Part part;
    clip(t, top, t->kernel, t->large_height, &part.i0, &part.i1);
    clip(t, left, t->kernel, t->large_width, &part.j0, &part.j1);
    for (int c = 0; c < t->channels; c += VL) {
        const Normaliser norm = normaliser(t, c, NORM);
        Vec sum = t->bias ? load(t->bias + c) : (Vec){0};
        for (int ky = part.i0; ky < part.i1; ky++)
            for (int kx = part.j0; kx < part.j1; kx++) {
                const ptrdiff_t tap = panel_offset(c, t->kernel * t->kernel) + (ky * t->kernel + kx) * LANES;
                Vec v = load_input(in + ky * t->in.row + kx * t->pitch + c, &norm, NORM);
                if (sums)
                    store(sums + tap, load(sums + tap) + load(out + c) * v);
                else
                    sum += load(t->weight + tap) * v;
            }
        if (sums)
            continue;
        if (t->activation)
            sum = t->activation == ACTIVATION_RELU ? activated(sum, ACTIVATION_RELU) : activated(sum, ACTIVATION_RELU6);
        store_or_add(out + c, sum, t->accumulate);
    }
}

static void any_pixel(const WindowTask *t, float *sums, int n, int y, int x)
{
    if (t->scale)
        any_form(t, sums, n, y, x, 1);
    else
        any_form(t, sums, n, y, x, 0);
}

/* Prefetch what belongs to R x T windows from (y, x) on, channel c: some with each tile, since the processor keeps track of a
 * few dozen lines at a time. */
INLINE void ask_ahead(const WindowTask *t, int y, int x, int c, const int R, const int T)
{
    for (int i = 0; i < t->num_ahead; i++) {
        const Ahead *a = &t->ahead[i];
        const float *p = a->p + a->step * (y * a->row + x * t->pitch) + c;
        for (int r = 0; r < R * a->step; r++, p += a->row)
            for (int q = 0; q < T * a->step; q++)
                if (a->write)
                    __builtin_prefetch(p + q * t->pitch, 1, 2);
                else
                    __builtin_prefetch(p + q * t->pitch, 0, 2);
    }
}

/* R x T outputs. */
INLINE void depthwise_piece(const WindowTask *t, float *sums, int n, int y, int x, const int NORM, const int weights,
                            const int K, const int S, const int R, const int T)
{
    const int KH = weights && K > 3 ? 1 : K; /* rows of taps whose sums fit into the registers */
    const int rows = (R - 1) * S + KH, columns = (T - 1) * S + K, left = x * S - t->padding;
    float *out = out_pixel(t, n, y, x);
    Part part;
    clip(t, left, columns, t->large_width, &part.j0, &part.j1);
    const int edge = part.j0 > 1 || part.j1 < columns - 1 ? EDGE_ANY : 2 * part.j0 + columns - part.j1;
    if (K == 3 && edge == EDGE_ANY) {
        for (int r = 0; r < R; r++)
            for (int q = 0; q < T; q++)
                any_pixel(t, sums, n, y + r, x + q);
        return;
    }
    for (int ky = 0; ky < K; ky += KH) {
        const int top = y * S - t->padding + ky;
        clip(t, top, rows, t->large_height, &part.i0, &part.i1);
        const float *in = t->in.p + n * t->in.image + top * t->in.row + left * t->pitch;
#define TILES(EDGE)                                                                                                 \
    for (int c = 0; c < t->channels; c += VL) {                                                                     \
        if (weights)                                                                                                \
            weights_tile(t, c, in, out, sums + panel_offset(c, K * K) + ky * K * LANES, NORM, KH, K, S, R, T, EDGE, \
                         &part);                                                                                    \
        else                                                                                                        \
            depthwise_tile(t, c, in, out, NORM, K, S, R, T, EDGE, &part);                                           \
        if (ky == 0)                                                                                                \
            ask_ahead(t, y, x, c, R, T);                                                                            \
    }
        if (edge == EDGE_NONE) {
            TILES(EDGE_NONE)
        } else if (K != 3) {
            TILES(EDGE_ANY)
        } else if (edge == EDGE_LAST) {
            TILES(EDGE_LAST)
        } else if (edge == EDGE_FIRST) {
            TILES(EDGE_FIRST)
        } else {
            TILES(EDGE_BOTH)
        }
    }
}

/* How a kernel and stride are cut: pieces of `rows` x 4 outputs, of 2 x 4, 1 x 4 and 2 x 2 (NULL: there is none), and
 * single ones. */
typedef struct Pieces {
    int rows;
    Piece *most, *two, *row, *square;
} Pieces;

#define PIECE(NAME, WEIGHTS, K, S, R, T)                                                              \
    static __attribute__((noinline)) void NAME(const WindowTask *t, float *sums, int n, int y, int x) \
    {                                                                                                 \
        if (t->scale)                                                                                 \
            depthwise_piece(t, sums, n, y, x, 1, WEIGHTS, K, S, R, T);                                \
        else                                                                                          \
            depthwise_piece(t, sums, n, y, x, 0, WEIGHTS, K, S, R, T);                                \
    }
PIECE(forward_row, 0, 3, 1, 1, 4)
PIECE(forward_two, 0, 3, 1, 2, 4)
PIECE(forward_square, 0, 3, 1, 2, 2)
PIECE(strided_forward_row, 0, 3, 2, 1, 4)
PIECE(wide_forward_row, 0, 5, 1, 1, 4)
PIECE(weights_row, 1, 3, 1, 1, 4)
PIECE(strided_weights_row, 1, 3, 2, 1, 4)
PIECE(wide_weights_row, 1, 5, 1, 1, 4)
/* With 32 registers as many rows as these hold sums of, or gradients. */
PIECE(forward_four, 0, 3, 1, 4, 4)
PIECE(strided_forward_two, 0, 3, 2, 2, 4)
PIECE(weights_four, 1, 3, 1, 4, 4)
PIECE(weights_two, 1, 3, 1, 2, 4)
PIECE(weights_square, 1, 3, 1, 2, 2)
PIECE(strided_weights_two, 1, 3, 2, 2, 4)
PIECE(strided_forward_square, 0, 3, 2, 2, 2)
PIECE(strided_weights_square, 1, 3, 2, 2, 2)
#define WIDE_OR(rows, piece, else_rows, else_piece) \
    BY_ISA(else_rows, else_rows, else_rows, rows), BY_ISA(else_piece, else_piece, else_piece, piece)
#define IF_WIDE(piece) BY_ISA(NULL, NULL, NULL, piece)
static const Pieces forward_pieces = {WIDE_OR(4, forward_four, 2, forward_two), IF_WIDE(forward_two), forward_row,
                                      forward_square};
static const Pieces strided_forward_pieces = {WIDE_OR(2, strided_forward_two, 1, strided_forward_row), NULL,
                                              strided_forward_row, IF_WIDE(strided_forward_square)};
static const Pieces weights_pieces = {WIDE_OR(4, weights_four, 1, weights_row), IF_WIDE(weights_two), weights_row,
                                      IF_WIDE(weights_square)};
static const Pieces strided_weights_pieces = {WIDE_OR(2, strided_weights_two, 1, strided_weights_row), NULL,
                                              strided_weights_row, IF_WIDE(strided_weights_square)};
static const Pieces wide_forward_pieces = {1, wide_forward_row, NULL, NULL, NULL};
static const Pieces wide_weights_pieces = {1, wide_weights_row, NULL, NULL, NULL};
static const Pieces any_pieces = {1, NULL, NULL, NULL, NULL};

static const Pieces *choose_pieces(const WindowTask *t, int weights)
{
    switch (t->stride <= 2 ? 10 * t->kernel + t->stride : 0) {
    case 31:
        return weights ? &weights_pieces : &forward_pieces;
    case 32:
        return weights ? &strided_weights_pieces : &strided_forward_pieces;
    case 51:
        return weights ? &wide_weights_pieces : &wide_forward_pieces;
    default:
        return &any_pieces;
    }
}

/* Prefetch rows of a plane from `row` on while the rows before are computed. */
INLINE void add_ahead(WindowTask *t, const ChannelPlane *plane, int n, int row, int step, int write)
{
    t->ahead[t->num_ahead++] = (Ahead){plane->p + n * plane->image + row * plane->row, 0, plane->row, step, write};
}

static void depthwise_rows(const WindowTask *t, const Pieces *pieces, float *sums, int n)
{
    for (int y = t->y0, rows; y < t->y1; y += rows) {
        const int left = t->y1 - y;
        rows = left >= pieces->rows ? pieces->rows : left >= 2 && pieces->two ? 2 : 1;
        Piece *wide = rows == pieces->rows ? pieces->most : rows == 2 ? pieces->two : pieces->row;
        int x = 0;
        if (wide)
            for (; x + 4 <= t->small_width; x += 4)
                wide(t, sums, n, y, x);
        if (pieces->square && rows > 1)
            for (; x + 2 <= t->small_width; x += 2)
                for (int r = 0; r < rows; r += 2)
                    pieces->square(t, sums, n, y + r, x);
        for (; x < t->small_width; x++)
            for (int r = 0; r < rows; r++)
                any_pixel(t, sums, n, y + r, x);
    }
}

/* Add rows [y0, y1) of the outputs of image n to the block's statistics, while they still are in a cache. */
static void depthwise_statistics(const WindowTask *t, int n, int y0, int y1)
{
    NhwcTask done = {.plane = {{out_pixel(t, n, y0, 0), t->out.image, t->out.row}},
                     .pitch = t->pitch,
                     .images = 1,
                     .rows = y1 - y0,
                     .pixels = t->small_width,
                     .channels = t->channels};
    if (n == 0 && y0 == t->y0)
        start_statistics(&done, t->statistics, t->statistics_stride);
    add_statistics(&done, t->statistics, t->statistics_stride);
    if (n == t->images - 1 && y1 == t->y1)
        finish_statistics((float)t->images * (t->y1 - t->y0) * t->small_width, t->channels, t->statistics,
                          t->statistics_stride);
}

/* Rows of outputs of a strip. */
INLINE int strip_of(const WindowTask *t)
{
    return strip_rows(t->large_width * t->pitch, t->kernel, t->stride);
}

/* Rows [first, last) of an image, of which row `first` stands at p + at * row, in a buffer of `capacity` rows. Strips come
 * one after the other; the rows that two of them share are computed once, and now and then moved to the front. */
typedef struct Ring {
    float *p;
    ptrdiff_t row;
    int capacity, at, first, last;
} Ring;

/* Make place for rows [first, last), which do not begin before those of the strip before; returns the first row that is
 * still to be computed. */
INLINE int advance(Ring *r, int first, int last)
{
    if (first >= r->last) {
        r->at = 0, r->first = r->last = first;
    } else if (r->at + last - r->first > r->capacity) {
        memmove(r->p, r->p + (r->at + first - r->first) * r->row, (r->last - first) * r->row * sizeof(float));
        r->at = 0, r->first = first;
    }
    const int todo = r->last;
    r->last = at_least(todo, last);
    return todo;
}

/* The ring as a map of one image. */
INLINE ChannelPlane ring_plane(const Ring *r)
{
    return (ChannelPlane){r->p + (r->at - r->first) * r->row, 0, r->row};
}

/* depthwise_rows() on inputs as they are, or normalised; sums: of the weights' gradient. */
static void depthwise_image(const WindowTask *t, const Pieces *pieces, float *sums, int n)
{
    const int strip = strip_of(t), new_rows = t->kernel - t->stride - t->padding,
              ask = t->scale || (t->stride == 1 && from_memory(t));
    for (int y = t->y0, rows; y < t->y1; y += rows) {
        rows = at_most(strip, t->y1 - y);
        WindowTask part = *t;
        part.y0 = y, part.y1 = y + rows;
        /* With a stride a tile's inputs are many and come sooner unasked. */
        if (ask) {
            add_ahead(&part, &t->in, n, pieces->rows * t->stride + new_rows, t->stride, 0);
            add_ahead(&part, &t->out, n, pieces->rows, 1, !sums);
        }
        depthwise_rows(&part, pieces, sums, n);
        if (t->statistics && !sums)
            depthwise_statistics(t, n, y, y + rows);
    }
}

static void depthwise(const WindowTask *t)
{
    const Pieces *pieces = choose_pieces(t, 0);
    for (int n = 0; n < t->images; n++)
        depthwise_image(t, pieces, NULL, n);
}

static void gather_depthwise(const WindowTask *t)
{
    if (t->kernel == 3 && t->stride == 2)
        gather_strided(t, GATHER_DEPTHWISE);
    else
        gather(t, GATHER_DEPTHWISE);
}

static void depthwise_backward_data(const WindowTask *t)
{
    const WindowTask task = asking(t);
    gather_depthwise(&task);
}

static void depthwise_backward_weights(const WindowTask *t, float *sums)
{
    const Pieces *pieces = choose_pieces(t, 1);
    memset(sums, 0, t->kernel * t->kernel * t->channels * sizeof(float));
    for (int n = 0; n < t->images; n++)
        depthwise_image(t, pieces, sums, n);
}

/* Rows of the input's gradient that strip [y, y + rows) of outputs writes, and rows of the output's gradient that they and
 * the strip need. */
INLINE void strip_gradients(const WindowTask *w, int y, int rows, int *large0, int *large1, int *small0, int *small1)
{
    *large0 = at_most(w->large_height, y * w->stride);
    *large1 = y + rows == w->small_height ? w->large_height : at_most(w->large_height, (y + rows) * w->stride);
    *small0 = at_most(y, at_least(0, ceiling(*large0 + w->padding - w->kernel + 1, w->stride)));
    *small1 = at_least(y + rows, at_most(w->small_height, (*large1 - 1 + w->padding) / w->stride + 1));
}

static void depthwise_backward(const DepthwiseBackwardTask *t)
{
    const WindowTask *w = &t->window;
    const Pieces *pieces = choose_pieces(w, 1);
    const ptrdiff_t row = w->small_width * w->pitch;
    const int strip = strip_of(w);
    Ring gradients = {t->staged, row, gradient_ring_rows(strip, w->kernel, w->small_height), 0, 0, 0};
    memset(t->sums, 0, w->kernel * w->kernel * w->channels * sizeof(float));
    if (w->scale)
        start_backward_statistics(w->channels, t->partials, t->partials_stride);
    for (int n = 0; n < w->images; n++) {
        gradients.first = gradients.last = 0;
        for (int y = 0, rows; y < w->small_height; y += rows) {
            rows = at_most(strip, w->small_height - y);
            int large0, large1, small0, small1;
            strip_gradients(w, y, rows, &large0, &large1, &small0, &small1);
            const int todo = advance(&gradients, small0, small1);
            const ChannelPlane gradient = ring_plane(&gradients);
            NhwcTask norm = t->norm;
            norm.images = 1, norm.rows = small1 - todo, norm.streamed = 1;
            UNROLL for (int i = 0; i < 2; i++) norm.plane[i].p += n * norm.plane[i].image + todo * norm.plane[i].row;
            norm.plane[2] = (ChannelPlane){gradient.p + todo * row, 0, row};
            if (todo < small1)
                norm_backward_apply(&norm);

            WindowTask part = *w;
            part.out = gradient;
            part.y0 = y, part.y1 = y + rows;
            add_ahead(&part, &t->norm.plane[0], n, strip + small1 - y - rows, 1, 0);
            add_ahead(&part, &t->norm.plane[1], n, strip + small1 - y - rows, 1, 0);
            depthwise_rows(&part, pieces, t->sums, n);

            WindowTask data = *w;
            data.in = gradient, data.out = t->output;
            data.out.p += n * t->output.image;
            data.weight = t->weight, data.scale = NULL;
            data.images = 1, data.y0 = large0, data.y1 = large1;
            if (w->stride == 1)
                add_ahead(&data, &w->in, n, strip + w->kernel - 1 - w->padding, 1, 0);
            add_ahead(&data, &t->output, n, 4, 1, 1);
            if (w->stride == 1) { /* a convolution of the gradient with the weights turned round */
                data.large_height = w->small_height, data.large_width = w->small_width, data.large_halo = 0;
                data.small_height = w->large_height, data.small_width = w->large_width;
                data.padding = w->kernel - 1 - w->padding;
                depthwise_rows(&data, choose_pieces(&data, 0), NULL, 0);
            } else {
                gather_depthwise(&data);
            }
            if (w->scale && large1 > large0) {
                NhwcTask sums = {.plane = {{data.out.p + large0 * data.out.row, 0, data.out.row},
                                           {w->in.p + n * w->in.image + large0 * w->in.row, 0, w->in.row}},
                                 .vector = {t->mean, t->inv_std, w->scale, w->shift},
                                 .pitch = w->pitch,
                                 .images = 1,
                                 .rows = large1 - large0,
                                 .pixels = w->large_width,
                                 .channels = w->channels,
                                 .activation = w->in_activation,
                                 .mask = w->in_activation ? MASK_ARGUMENT : MASK_NONE};
                add_backward_statistics(&sums, t->partials, t->partials_stride);
            }
        }
    }
    if (w->scale)
        finish_backward_statistics(w->channels, t->inv_std, t->partials, t->partials_stride);
}

const NhwcDepthwiseLoops ISA_SYMBOL(forktask_nhwc_depthwise) = {
    .pack = depthwise_pack,
    .forward = depthwise,
    .backward_data = depthwise_backward_data,
    .backward_weights = depthwise_backward_weights,
    .backward = depthwise_backward,
};
