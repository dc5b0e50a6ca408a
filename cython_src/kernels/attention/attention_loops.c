/* Attention in tiles; see kernels/attention/attention_loops.h. */
#include "attention_loops.h"

#include <math.h>

#include "cython_src/kernels/simd/vectors.h"

#include "cython_src/kernels/elementwise/functions.h"
#include "cython_src/kernels/linear/tiles.h"

#define TILE   ATTENTION_TILE
#define TOKENS ATTENTION_CHUNK
#define LEAST  -1.0e38f /* stands for minus infinity: differences of it are no NaN, and so are their multiples */

INLINE int larger(int a, int b)
{
    return a > b ? a : b;
}

/* Which elements of a tile exist: row r has columns [begin, end), where a causal tile moves one of them with the row. */
typedef struct Mask {
    int columns;
    int low, high; /* row r begins at low + r and ends at high + r */
} Mask;

#define FREE (2 * (TILE + 1))

INLINE int begin_of(const Mask *m, int row)
{
    return smaller(larger(m->low + row, 0), m->columns);
}

INLINE int end_of(const Mask *m, int row)
{
    return larger(smaller(m->high + row, m->columns), 0);
}

/* Whether all rows have all columns of whole vectors. */
INLINE int is_full(const Mask *m, int rows)
{
    return m->columns % VL == 0 && begin_of(m, rows - 1) == 0 && end_of(m, 0) == m->columns;
}

/* c (rows, TILE) = a b, for the panels in which some row has elements. */
static void scores(const float *a, ptrdiff_t a_row, int rows, int terms, const float *b, const Mask *m, float *c,
                   Fetch *ahead)
{
    for (int r = 0, height; r < rows; r += height) {
        height = tile_height(rows - r, PANEL_VECTORS);
        const int begin = begin_of(m, r) / PANEL_COLUMNS * PANEL_COLUMNS, end = end_of(m, r + height - 1);
        for (int n = begin; n < end; n += PANEL_COLUMNS) {
            Tile tile = {.a = a + r * a_row,
                         .a_row = a_row,
                         .b = b + n * terms,
                         .c = c + r * TILE + n,
                         .c_row = TILE,
                         .terms = terms,
                         .ahead = ahead};
            run_tile(height, PANEL_VECTORS, &tile);
        }
    }
}

/* c (rows, size), rows `width` apart, += a b for a tile a of scores; terms outside the mask are zero and left out where a group of rows has
 * none. b: panels of `terms` rows. */
static void add_product(const float *a, int rows, const Mask *m, const float *b, int size, int width, float *c,
                        Fetch *ahead)
{
    for (int r = 0, height; r < rows; r += height) {
        height = tile_height(rows - r, PANEL_VECTORS);
        const int begin = begin_of(m, r), end = end_of(m, r + height - 1);
        for (int n = 0; n < size && begin < end; n += PANEL_COLUMNS) {
            Tile tile = {.a = a + r * TILE + begin,
                         .a_row = TILE,
                         .b = b + (ptrdiff_t)n * m->columns + begin * PANEL_COLUMNS,
                         .c = c + (ptrdiff_t)r * width + n,
                         .c_row = width,
                         .terms = end - begin,
                         .add = 1,
                         .ahead = ahead};
            run_tile(height, PANEL_VECTORS, &tile);
        }
    }
}

/* c (keys, size), rows `width` apart, += the transpose of a tile a of scores times b, panels of `rows` rows; queries
 * that see no key of a group are left out. Masks begin at the first key. */
static void add_turned_product(const float *a, int rows, const Mask *m, const float *b, int size, int width, float *c,
                               Fetch *ahead)
{
    for (int r = 0, height; r < m->columns; r += height) {
        height = tile_height(m->columns - r, PANEL_VECTORS);
        const int begin = larger(r - m->high + 1, 0); /* the first query that sees key r */
        for (int n = 0; n < size && begin < rows; n += PANEL_COLUMNS) {
            Tile tile = {.a = a + begin * TILE + r,
                         .a_row = TILE,
                         .b = b + (ptrdiff_t)n * rows + begin * PANEL_COLUMNS,
                         .c = c + (ptrdiff_t)r * width + n,
                         .c_row = width,
                         .terms = rows - begin,
                         .add = 1,
                         .turned = 1,
                         .ahead = ahead};
            run_tile(height, PANEL_VECTORS, &tile);
        }
    }
}

/* Lanes l of a vector at column n with begin <= n + l < end. */
INLINE VecI lanes_between(int n, int begin, int end)
{
    VecI lane;
    UNROLL for (int l = 0; l < VL; l++) lane[l] = l;
    return (VecI)(lane >= begin - n) & (VecI)(lane < end - n);
}

/* Lane i of the result is the largest of v[i]'s lanes, as in lane_sums(). Uses up v. */
INLINE Vec lane_maxima(Vec *v)
{
    int count = VL;
#define KEEP_LARGER(LOW, HIGH)                                              \
    UNROLL for (int i = 0; 2 * i < count; i++) v[i] =                       \
        maximum(LOW(v[2 * i], v[2 * i + 1]), HIGH(v[2 * i], v[2 * i + 1])); \
    count /= 2;
    EACH_HALVING(KEEP_LARGER)
#undef KEEP_LARGER
    return v[0];
}

INLINE void clear(float *p, ptrdiff_t length)
{
    memset(p, 0, length * sizeof(float));
}

/* Running maxima, sums of e^(s - maximum) by lane, and results of a chunk of queries. */
typedef struct Running {
    float *most, *sums, *o;
} Running;

/* Maxima of the rows of scores; scores outside the mask become LEAST. s has whole vectors of rows. */
INLINE void row_maxima(const int full, float *s, int rows, const Mask *m, float *most)
{
    for (int first = 0; first < rows; first += VL) {
        Vec high[VL];
        UNROLL for (int i = 0; i < VL; i++)
        {
            float *row = s + (first + i) * TILE;
            const int begin = full ? 0 : begin_of(m, first + i), end = full ? TILE : end_of(m, first + i);
            high[i] = splat(LEAST);
            for (int n = 0; n < TILE; n += VL) {
                Vec x = load(row + n);
                if (!full) {
                    x = (Vec)choose_bits(lanes_between(n, begin, end), (VecI)x, (VecI)splat(LEAST));
                    store(row + n, x);
                }
                high[i] = maximum(x, high[i]);
            }
        }
        store(most + first, lane_maxima(high));
    }
}

/* Scores become e^(scale (s - maximum)); sums and results so far are scaled to the new maximum. */
static void softmax_tile(float *s, int rows, const Mask *m, float scale, int width, const Running *running)
{
    float most[TILE] __attribute__((aligned(64))), factor[TILE] __attribute__((aligned(64)));
    if (is_full(m, rows) && m->columns == TILE)
        row_maxima(1, s, rows, m, most);
    else
        row_maxima(0, s, rows, m, most);
    for (int r = 0; r < rows; r += VL) {
        const int n = smaller(rows - r, VL);
        Vec former = load_some(running->most + r, n), now = maximum(load(most + r), former);
        store(factor + r, exponential_down((former - now) * scale));
        store(most + r, now * scale);
        store_some(running->most + r, now, n);
    }
    for (int r = 0; r < rows; r++, s += TILE) {
        Vec shift = splat(most[r]), sum = load(running->sums + r * VL) * factor[r];
        UNROLL for (int n = 0; n < TILE; n += VL)
        {
            Vec e = exponential_down(load(s + n) * scale - shift);
            store(s + n, e);
            sum += e;
        }
        store(running->sums + r * VL, sum);
        if (factor[r] != 1) {
            float *o = running->o + (ptrdiff_t)r * width;
            for (int n = 0; n < width; n += VL)
                store(o + n, load(o + n) * factor[r]);
        }
    }
}

/* Up to a tile of tokens from `token` on, which come from memory while the tile before them is used. */
INLINE Fetch fetch_tokens(const float *p, ptrdiff_t row, int token, int end, int size)
{
    return fetch_ahead(p + token * row, row, larger(smaller(end - token, TILE), 0), size);
}

/* The mask of a tile of queries [i, ...) by keys [j, j + columns). */
INLINE Mask queries_mask(const AttentionTask *t, int i, int j, int columns)
{
    return (Mask){columns, -FREE, t->causal ? i - j + 1 : FREE};
}

/* Tokens that the block's last query sees. */
INLINE int keys_end(const AttentionTask *t, int stop)
{
    return t->causal ? smaller(stop, t->sequence) : t->sequence;
}

static void attention_forward(const AttentionTask *t)
{
    const int size = t->size, width = ATTENTION_WIDTH(size);
    const float scale = 1 / sqrtf((float)size);
    float *keys = t->scratch, *values = keys + TILE * width, *s = values + TILE * width, *o = s + TILE * TILE;
    float *most = o + TOKENS * width, *sums = most + TOKENS;
    for (int first = t->start; first < t->stop; first += TOKENS) {
        const int count = smaller(t->stop - first, TOKENS), end = keys_end(t, first + count);
        clear(o, (ptrdiff_t)count * width);
        clear(sums, count * VL);
        for (int i = 0; i < count; i++)
            most[i] = LEAST;
        for (int j = 0; j < end; j += TILE) {
            const int columns = smaller(end - j, TILE);
            pack_columns(t->k + j * t->qkv_row, t->qkv_row, size, columns, PANEL_VECTORS, keys);
            pack_rows(t->v + j * t->qkv_row, t->qkv_row, columns, size, values);
            Fetch next_keys = fetch_tokens(t->k, t->qkv_row, j + TILE, end, size);
            Fetch next_values = fetch_tokens(t->v, t->qkv_row, j + TILE, end, size);
            for (int i = 0; i < count; i += TILE) {
                const int rows = smaller(count - i, TILE);
                const Mask mask = queries_mask(t, first + i, j, columns);
                const Running running = {most + i, sums + i * VL, o + (ptrdiff_t)i * width};
                if (end_of(&mask, rows - 1) == 0)
                    continue;
                scores(t->q + (first + i) * t->qkv_row, t->qkv_row, rows, size, keys, &mask, s, &next_keys);
                softmax_tile(s, rows, &mask, scale, width, &running);
                add_product(s, rows, &mask, values, size, width, running.o, &next_values);
            }
        }
        for (int i = 0; i < count; i++) {
            const float sum = lane_sum(load(sums + i * VL)), factor = 1 / sum;
            const float *in = o + (ptrdiff_t)i * width;
            float *out = t->o + (first + i) * t->row;
            FOR_VECTORS(n, lanes, size, store_some(out + n, load(in + n) * factor, lanes));
            t->logsumexp[first + i] = most[i] * scale + logf(sum);
        }
    }
}

/* p = e^(scale s - logsumexp) in place of s and ds = p (scale dp - delta) in place of dp, both zero outside the mask;
 * logsumexp and delta, which has the factor scale already, are by row. */
INLINE void gradient_rows(const int full, float *s, float *dp, int rows, const Mask *m, float scale,
                          const float *logsumexp, const float *delta)
{
    for (int r = 0; r < rows; r++, s += TILE, dp += TILE) {
        const int begin = begin_of(m, r), end = end_of(m, r);
        const Vec shift = splat(logsumexp[r]), offset = splat(delta[r]);
        UNROLL for (int n = 0; n < TILE; n += VL)
        {
            Vec p = exponential_down(load(s + n) * scale - shift);
            Vec ds = p * (load(dp + n) * scale - offset);
            if (!full) {
                VecI mask = lanes_between(n, begin, end);
                p = (Vec)((VecI)p & mask);
                ds = (Vec)((VecI)ds & mask);
            }
            store(s + n, p);
            store(dp + n, ds);
        }
    }
}

/* delta[i] = scale gradient[i] . o[i] of some queries, a vector of them at a time. */
static void find_deltas(const float *o, const float *gradient, ptrdiff_t row, int rows, int size, float scale,
                        float *delta)
{
    for (int i = 0; i < rows; i += VL) {
        Vec sums[VL];
        UNROLL for (int r = 0; r < VL; r++)
        {
            const ptrdiff_t at = (ptrdiff_t)smaller(i + r, rows - 1) * row;
            sums[r] = (Vec){0};
            FOR_VECTORS(n, lanes, size, sums[r] += load_some(o + at + n, lanes) * load_some(gradient + at + n, lanes));
        }
        store(delta + i, lane_sums(sums, VL) * scale);
    }
}

/* Rows of a tile to their places, or added to what lies there. */
static void write_rows(const float *in, int width, int rows, int size, int add, float *out, ptrdiff_t out_row)
{
    for (int i = 0; i < rows; i++, in += width, out += out_row)
        FOR_VECTORS(n, lanes, size, {
            Vec value = load(in + n);
            if (add)
                value += load_some(out + n, lanes);
            store_some(out + n, value, lanes);
        });
}

static void attention_backward(const AttentionTask *t)
{
    const int size = t->size, width = ATTENTION_WIDTH(size);
    const float scale = 1 / sqrtf((float)size);
    float *turned_keys = t->scratch, *turned_values = turned_keys + TOKENS * width,
          *keys = turned_values + TOKENS * width;
    float *dk = keys + TOKENS * width, *dv = dk + TOKENS * width;
    float *queries = dv + TOKENS * width, *gradients = queries + TILE * width, *dq = gradients + TILE * width;
    float *s = dq + TILE * width, *dp = s + TILE * TILE, *delta = dp + TILE * TILE;
    for (int first = t->start; first < t->stop; first += TOKENS) {
        const int count = smaller(t->stop - first, TOKENS);
        for (int j = 0; j < count; j += TILE) {
            const int columns = smaller(count - j, TILE);
            const float *k = t->k + (first + j) * t->qkv_row, *v = t->v + (first + j) * t->qkv_row;
            pack_columns(k, t->qkv_row, size, columns, PANEL_VECTORS, turned_keys + j * width);
            pack_columns(v, t->qkv_row, size, columns, PANEL_VECTORS, turned_values + j * width);
            pack_rows(k, t->qkv_row, columns, size, keys + j * width);
        }
        clear(dk, (ptrdiff_t)count * width);
        clear(dv, (ptrdiff_t)count * width);
        for (int next, i = t->causal ? first : 0; i < t->sequence; i = next) {
            next = smaller((i / TILE + 1) * TILE, t->sequence);
            const int rows = next - i;
            const float *q = t->q + i * t->qkv_row, *gradient = t->gradient + i * t->row;
            pack_rows(q, t->qkv_row, rows, size, queries);
            pack_rows(gradient, t->row, rows, size, gradients);
            find_deltas(t->o + i * t->row, gradient, t->row, rows, size, scale, delta);
            clear(dq, (ptrdiff_t)rows * width);
            Fetch next_queries = fetch_tokens(t->q, t->qkv_row, next, t->sequence, size);
            Fetch next_gradients = fetch_tokens(t->gradient, t->row, next, t->sequence, size);
            Fetch next_outputs = fetch_tokens(t->o, t->row, next, t->sequence, size);
            for (int j = 0; j < count; j += TILE) {
                const int columns = smaller(count - j, TILE);
                const ptrdiff_t at = (ptrdiff_t)j * width;
                const Mask mask = queries_mask(t, i, first + j, columns);
                if (end_of(&mask, rows - 1) == 0)
                    break;
                scores(q, t->qkv_row, rows, size, turned_keys + at, &mask, s, &next_queries);
                scores(gradient, t->row, rows, size, turned_values + at, &mask, dp, &next_gradients);
                if (is_full(&mask, rows) && columns == TILE)
                    gradient_rows(1, s, dp, rows, &mask, scale, t->logsumexp + i, delta);
                else
                    gradient_rows(0, s, dp, rows, &mask, scale, t->logsumexp + i, delta);
                add_turned_product(s, rows, &mask, gradients, size, width, dv + at, &next_outputs);
                add_turned_product(dp, rows, &mask, queries, size, width, dk + at, &next_outputs);
                add_product(dp, rows, &mask, keys + at, size, width, dq, &next_queries);
            }
            write_rows(dq, width, rows, size, first > t->start, t->dq + i * t->dq_row, t->dq_row);
        }
        write_rows(dk, width, count, size, 0, t->dk + first * t->qkv_row, t->qkv_row);
        write_rows(dv, width, count, size, 0, t->dv + first * t->qkv_row, t->qkv_row);
    }
}

static void add_part(const float *in, ptrdiff_t in_row, int rows, int columns, float *out, ptrdiff_t out_row)
{
    for (int i = 0; i < rows; i++, in += in_row, out += out_row)
        FOR_VECTORS(n, lanes, columns,
                    store_some(out + n, load_some(out + n, lanes) + load_some(in + n, lanes), lanes));
}

const AttentionLoops ISA_SYMBOL(forktask_attention) = {
    .forward = attention_forward,
    .backward = attention_backward,
    .add_part = add_part,
};
