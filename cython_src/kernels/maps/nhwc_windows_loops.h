/* Windows over maps with the channels in the vector lanes: geometry, and gradients that windows send back to the pixels
 * they read; shared by the inner loops of pooling and of depthwise convolution. */
#ifndef FORKTASK_NHWC_WINDOWS_LOOPS_H
#define FORKTASK_NHWC_WINDOWS_LOOPS_H

#include "nhwc_planes_loops.h"
#include "nhwc_windows.h"
#include "cython_src/kernels/simd/vectors.h"

INLINE int at_least(int a, int b)
{
    return a > b ? a : b;
}
INLINE int at_most(int a, int b)
{
    return a < b ? a : b;
}
/* a / b rounded up; b > 0 */
INLINE int ceiling(int a, int b)
{
    return a > 0 ? (a + b - 1) / b : -(-a / b);
}

/* Windows [first, last) that an element of the large side lies in, one axis: followed from element to element, which
 * takes no division. */
typedef struct Cover {
    int first, last;
} Cover;

INLINE Cover cover_start(const WindowTask *t, int i)
{
    return (Cover){at_least(0, ceiling(i + t->padding - t->kernel + 1, t->stride)), (i + t->padding) / t->stride + 1};
}

INLINE void cover_next(const WindowTask *t, int i, Cover *cover)
{
    cover->first += cover->first * t->stride < i + t->padding - t->kernel + 1;
    cover->last += cover->last * t->stride <= i + t->padding;
}

/* Where channel c stands among weights of `taps` taps: the taps of a vector of channels follow one another. They would lie
 * in the same cache sets if all channels of a tap did. */
INLINE ptrdiff_t panel_offset(int c, int taps)
{
    return (ptrdiff_t)(c / LANES * LANES) * taps + c % LANES;
}

INLINE float *out_pixel(const WindowTask *t, int n, int y, int x)
{
    return t->out.p + n * t->out.image + y * t->out.row + x * t->pitch;
}

/* Rows and columns of a tile's inputs that can be read, or exist: [i0, i1) x [j0, j1). */
typedef struct Part {
    int i0, i1, j0, j1;
} Part;

/* What of [start, start + count) can be read, one axis of the large side. */
INLINE void clip(const WindowTask *t, int start, int count, int size, int *first, int *last)
{
    *first = at_least(0, -t->large_halo - start);
    *last = at_most(count, size + t->large_halo - start);
}

/* How many of a tile's columns cannot be read, as a constant: none, the first, the last, both; or as `part` says. */
enum { EDGE_NONE, EDGE_LAST, EDGE_FIRST, EDGE_BOTH, EDGE_ANY };

INLINE int readable(int j, const int columns, const int edge, const Part *part)
{
    return edge == EDGE_ANY ? j >= part->j0 && j < part->j1 : j >= edge / 2 && j < columns - edge % 2;
}

/* Whether lines are worth asking for: both maps together do not fit the second-level cache. */
INLINE int from_memory(const WindowTask *t)
{
    return sizeof(float) * t->images * (t->in.image + t->out.image) > L2_BYTES;
}

enum { GATHER_MAX, GATHER_AVERAGE, GATHER_DEPTHWISE };

/* Each element of the large side adds up what the windows it lies in send it, in their order. */
INLINE void gather(const WindowTask *t, const int kind)
{
    const float factor = 1.0f / (t->kernel * t->kernel);
    for (int n = 0; n < t->images; n++) {
        Cover rows = cover_start(t, t->y0);
        for (int y = t->y0; y < t->y1; y++) {
            cover_next(t, y, &rows);
            const int oy0 = rows.first, oy1 = at_most(rows.last, t->small_height);
            Cover columns = cover_start(t, 0);
            for (int x = 0; x < t->large_width; x++) {
                cover_next(t, x, &columns);
                const int ox0 = columns.first, ox1 = at_most(columns.last, t->small_width);
                float *out = out_pixel(t, n, y, x);
#define GATHER_GROUP(N)                                                                                             \
    {                                                                                                               \
        Vec sum[N];                                                                                                 \
        UNROLL for (int v = 0; v < N; v++) sum[v] = (Vec){0};                                                       \
        for (int oy = oy0; oy < oy1; oy++)                                                                          \
            for (int ox = ox0; ox < ox1; ox++) {                                                                    \
                const int tap = (y + t->padding - oy * t->stride) * t->kernel + x + t->padding - ox * t->stride;    \
                const float *g = t->in.p + n * t->in.image + oy * t->in.row + ox * t->pitch + c;                    \
                const ptrdiff_t at = (((ptrdiff_t)n * t->small_height + oy) * t->small_width + ox) * t->pitch + c;  \
                UNROLL for (int v = 0; v < N; v++)                                                                  \
                {                                                                                                   \
                    if (kind == GATHER_MAX)                                                                         \
                        sum[v] += keep_lanes(equal_bytes(t->index + at + v * VL, tap), load(g + v * VL));           \
                    else if (kind == GATHER_AVERAGE)                                                                \
                        sum[v] += load(g + v * VL);                                                                 \
                    else                                                                                            \
                        sum[v] += load(t->weight + panel_offset(c + v * VL, t->kernel * t->kernel) + tap * LANES) * \
                                  load(g + v * VL);                                                                 \
                }                                                                                                   \
            }                                                                                                       \
        UNROLL for (int v = 0; v < N; v++)                                                                          \
        {                                                                                                           \
            if (kind == GATHER_AVERAGE)                                                                             \
                sum[v] *= factor;                                                                                   \
            store_or_add(out + c + v * VL, sum[v], t->accumulate);                                                  \
        }                                                                                                           \
    }
                EACH_PART(GATHER_GROUP)
            }
        }
    }
}

/* Add what a window of gradient g sends through a tap: all where its maximum stood there, or all, or its weighted g. */
INLINE void add_sent(Vec *sum, const int kind, Vec g, const uint8_t *index, int tap, Vec weight)
{
    if (kind == GATHER_MAX)
        *sum = add_lanes(*sum, equal_bytes(index, tap), g);
    else if (kind == GATHER_AVERAGE)
        *sum += g;
    else
        *sum += weight * g;
}

/* Rows of the large side that windows of 3 x 3, stride 2, send to: the middle of one row of windows, or the row that two
 * rows of windows share, or both, one below the other. */
enum { ROW_MIDDLE, ROW_SHARED, ROW_BOTH };
#define NUM_ROWS(ROWS) (ROWS == ROW_BOTH ? 2 : 1)

/* Row of taps through which row r of windows sends to row o, or -1. */
INLINE int sending_taps(const int rows, int r, int o)
{
    if (rows == ROW_MIDDLE || (rows == ROW_BOTH && o == 0))
        return r == 0 ? 1 : -1;
    return r == 0 ? 2 : 0;
}

/* T pairs of columns from T + 1 windows a row. A pair is the middle of its window and the column that it shares with the
 * next window. EDGE_LAST: the last window does not exist. EDGE_ANY: only the part's rows and columns of windows do, and
 * columns [x0, x1) of the result. */
INLINE void strided_tile(const WindowTask *t, const int kind, const float *g, const uint8_t *index, const float *w,
                         float *out, const int rows, const int T, const int edge, const Part *part, int x0, int x1)
{
    const ptrdiff_t pitch = t->pitch, row = t->in.row, index_row = t->small_width * pitch, out_row = t->out.row;
    const int accumulate = t->accumulate;
    Vec sum[2][8], weight[9];
    UNROLL for (int o = 0; o < NUM_ROWS(rows); o++) UNROLL for (int q = 0; q < 2 * T; q++) sum[o][q] = (Vec){0};
    UNROLL for (int k = 0; k < 9; k++) weight[k] = kind == GATHER_DEPTHWISE ? load(w + k * LANES) : (Vec){0};
    UNROLL for (int r = 0; r < (rows == ROW_MIDDLE ? 1 : 2); r++)
    {
        if (r < part->i0 || r >= part->i1)
            continue;
        UNROLL for (int i = 0; i < T + 1; i++)
        {
            if (!readable(i, T + 1, edge, part))
                continue;
            Vec v = load(g + r * row + i * pitch);
            const uint8_t *at = index + r * index_row + i * pitch;
            UNROLL for (int o = 0; o < NUM_ROWS(rows); o++)
            {
                const int ky = sending_taps(rows, r, o), tap = ky < 0 ? 0 : 3 * ky;
                if (ky < 0)
                    continue;
                if (i > 0)
                    add_sent(&sum[o][2 * i - 1], kind, v, at, tap, weight[tap]);
                if (i < T) {
                    add_sent(&sum[o][2 * i], kind, v, at, tap + 1, weight[tap + 1]);
                    add_sent(&sum[o][2 * i + 1], kind, v, at, tap + 2, weight[tap + 2]);
                }
            }
        }
    }
    UNROLL for (int o = 0; o < NUM_ROWS(rows); o++) UNROLL for (int q = 0; q < 2 * T; q++)
    {
        if (kind == GATHER_AVERAGE)
            sum[o][q] *= 1.0f / 9;
        if (edge != EDGE_ANY || (q >= x0 && q < x1))
            store_or_add(out + o * out_row + q * pitch, sum[o][q], accumulate);
    }
}

/* As ask_ahead(), for R x T pixels of the large side. */
INLINE void ask_large(const WindowTask *t, int n, int y, int x, int c, const int R, const int T)
{
    for (int i = 0; i < t->num_ahead; i++) {
        const Ahead *a = &t->ahead[i];
        const float *p = a->p + n * a->image + y * a->row + x * t->pitch + c;
        for (int r = 0; r < R; r++, p += a->row)
            UNROLL for (int q = 0; q < T; q++) if (a->write) __builtin_prefetch(p + q * t->pitch, 1, 2);
        else __builtin_prefetch(p + q * t->pitch, 0, 2);
    }
}

/* T pairs of columns, the first in the middle of window j; all channels. */
INLINE void strided_piece(const WindowTask *t, const int kind, int n, int y, int j, const int rows, const int T)
{
    const int oy = (y + t->padding) / 2 - (rows == ROW_SHARED), left = 2 * j + 1 - t->padding;
    const int x0 = at_least(0, -left), x1 = at_most(2 * T, t->large_width - left);
    const Part part = {at_least(0, -oy), at_most(rows == ROW_MIDDLE ? 1 : 2, t->small_height - oy), at_least(0, -j),
                       at_most(T + 1, t->small_width - j)};
    const float *g = t->in.p + n * t->in.image + oy * t->in.row + j * t->pitch;
    const uint8_t *index = t->index + (((ptrdiff_t)n * t->small_height + oy) * t->small_width + j) * t->pitch;
    float *out = out_pixel(t, n, y, left);
    const int inside = part.j0 == 0 && x0 == 0 && x1 == 2 * T;
#define STRIDED_TILES(EDGE)                                                                                        \
    for (int c = 0; c < t->channels; c += VL) {                                                                    \
        strided_tile(t, kind, g + c, index + c, t->weight + panel_offset(c, 9), out + c, rows, T, EDGE, &part, x0, \
                     x1);                                                                                          \
        ask_large(t, n, y, left, c, NUM_ROWS(rows), 2 * T);                                                        \
    }
    if (inside && part.j1 == T + 1) {
        STRIDED_TILES(EDGE_NONE)
    } else if (inside && part.j1 == T) {
        STRIDED_TILES(EDGE_LAST)
    } else {
        STRIDED_TILES(EDGE_ANY)
    }
}

INLINE void strided_row(const WindowTask *t, const int kind, int n, int y, const int rows)
{
    int j = (t->padding + 1) / 2 - 1;
    for (; 2 * j + 1 - t->padding + 4 < t->large_width; j += 4)
        strided_piece(t, kind, n, y, j, rows, 4);
    for (; 2 * j + 1 - t->padding < t->large_width; j += 2)
        strided_piece(t, kind, n, y, j, rows, 2);
}

INLINE void gather_strided(const WindowTask *t, const int kind)
{
    for (int n = 0; n < t->images; n++)
        for (int y = t->y0; y < t->y1; y++)
            if ((y + t->padding) % 2 == 0)
                strided_row(t, kind, n, y, ROW_SHARED);
            else if (BY_ISA(0, 0, 0, 1) && y + 1 < t->y1) /* enough registers for two rows of sums */
                strided_row(t, kind, n, y++, ROW_BOTH);
            else
                strided_row(t, kind, n, y, ROW_MIDDLE);
}

/* A task that asks for lines of its result before it writes them. */
INLINE WindowTask asking(const WindowTask *t)
{
    WindowTask task = *t;
    if (from_memory(t))
        task.ahead[task.num_ahead++] = (Ahead){t->out.p + 2 * t->out.row, t->out.image, t->out.row, 1, 1};
    return task;
}

#endif
