/* Matrix products in tiles: C[m][n] (+)= sum over k of A[m][k] B[k][n], shared by linear layers and attention.
 *
 * B lies in panels of PANEL_COLUMNS columns, [k][PANEL_COLUMNS], zero past the last column; A is read where it lies, by
 * rows. A tile of TILE_ROWS x PANEL_COLUMNS sums stays in registers; the first one of a panel may pack it, while the
 * multiply-adds run, from a B that lies by rows. An element's terms are summed in the order of k, one
 * fused multiply-add after the other, whichever tile the element is in: bits do not depend on how a matrix is cut.
 * Include after vectors.h. */
#ifndef FORKTASK_LINEAR_TILES_H
#define FORKTASK_LINEAR_TILES_H

#include <stddef.h>
#include <string.h>

#define PANEL_VECTORS 2
#define PANEL_COLUMNS (PANEL_VECTORS * VL)

/* Registers: the sums, a row of the panel, one broadcast. */
#define TILE_ROWS BY_ISA(4, 4, 6, 12)

/* Rows of the next tile when `left` remain: tiles of full height, and two of 8 rather than 12 and 4. */
INLINE int tile_height(int left)
{
    if (TILE_ROWS == 12 && left >= 12 && left != 16)
        return 12;
    if (TILE_ROWS == 12 && left >= 8)
        return 8;
    if (TILE_ROWS == 6 && left >= 6)
        return 6;
    return left >= 4 ? 4 : left >= 2 ? 2 : 1;
}

/* Memory that is fetched into the L2 cache while tiles are computed: rows of `lines` cache lines, `row` floats apart. */
typedef struct Fetch {
    const float *at; /* the next line */
    ptrdiff_t skip;  /* floats from the end of a row to the next */
    int lines, left; /* of a row; of this row */
    int rows;        /* that remain, this one included */
} Fetch;

#define LINE        16 /* floats of a cache line */
#define AHEAD_TERMS 8  /* a line is fetched every so many terms of a tile's sums */

INLINE Fetch fetch_ahead(const float *at, ptrdiff_t row, int rows, int columns)
{
    const int lines = (columns + LINE - 1) / LINE;
    return (Fetch){at, row - lines * LINE, lines, lines, rows};
}

INLINE void fetch_line(Fetch *ahead)
{
    if (ahead->rows > 0) {
        __builtin_prefetch(ahead->at, 0, 2);
        ahead->at += LINE;
        if (--ahead->left == 0) {
            ahead->at += ahead->skip;
            ahead->left = ahead->lines;
            ahead->rows--;
        }
    }
}

/* Factors and result of a tile; c is PANEL_COLUMNS wide at least. */
typedef struct Tile {
    const float *a, *b;
    float *c;
    ptrdiff_t a_row, c_row;
    int terms, add; /* add: to what c holds */
    int turned;     /* A lies by terms: A[m][k] is a[k * a_row + m] */
    Fetch *ahead;   /* or NULL */
    float *packed;  /* or NULL: B lies by rows, b_row apart, and its panel is stored here */
    ptrdiff_t b_row;
} Tile;

#define PACK_AHEAD 32 /* rows that are fetched before they are packed: the time of an access to memory */

/* `rows`, `turned`, which is that of the tile, and `packing`, whether there is `packed`, are constants. */
INLINE void tile(const int rows, const int turned, const int packing, const Tile *t)
{
    Vec sum[12 * PANEL_VECTORS]; /* those of `rows` are used */
    const ptrdiff_t a_row = t->a_row;
    UNROLL for (int i = 0; i < rows; i++) UNROLL for (int v = 0; v < PANEL_VECTORS; v++)
        __builtin_prefetch(t->c + i * t->c_row + v * VL, 1);
    UNROLL for (int i = 0; i < rows * PANEL_VECTORS; i++) sum[i] = (Vec){0};
    /* Three pointers, four rows each: addresses of base plus multiples of one stride. */
    const float *a0 = t->a, *a4 = a0 + 4 * a_row, *a8 = a0 + 8 * a_row, *b = t->b;
    const ptrdiff_t b_row = packing ? t->b_row : PANEL_COLUMNS;
    float *packed = t->packed;
    for (int left = t->terms; left > 0; left -= AHEAD_TERMS) {
        const int terms = left < AHEAD_TERMS ? left : AHEAD_TERMS;
        if (t->ahead)
            fetch_line(t->ahead);
        for (int k = 0; k < terms; k++) {
            Vec w[PANEL_VECTORS];
            UNROLL for (int v = 0; v < PANEL_VECTORS; v++) w[v] = load(b + v * VL);
            if (packing) {
                if (turned)
                    __builtin_prefetch(a0 + PACK_AHEAD * a_row, 0, 3);
                UNROLL for (int n = 0; n < PANEL_COLUMNS; n += LINE)
                    __builtin_prefetch(b + PACK_AHEAD * b_row + n, 0, 3);
                UNROLL for (int v = 0; v < PANEL_VECTORS; v++) store(packed + v * VL, w[v]);
                packed += PANEL_COLUMNS;
            }
            UNROLL for (int i = 0; i < rows; i++)
            {
                Vec x = splat(turned ? a0[i] : (i < 4 ? a0 : i < 8 ? a4 : a8)[(i & 3) * a_row]);
                UNROLL for (int v = 0; v < PANEL_VECTORS; v++) sum[i * PANEL_VECTORS + v] += x * w[v];
            }
            a0 += turned ? a_row : 1, a4++, a8++;
            b += b_row;
        }
    }
    float *c = t->c;
    if (t->add)
        UNROLL for (int i = 0; i < rows; i++) UNROLL for (int v = 0; v < PANEL_VECTORS; v++)
            sum[i * PANEL_VECTORS + v] = load(c + i * t->c_row + v * VL) + sum[i * PANEL_VECTORS + v];
    UNROLL for (int i = 0; i < rows; i++) UNROLL for (int v = 0; v < PANEL_VECTORS; v++)
        store(c + i * t->c_row + v * VL, sum[i * PANEL_VECTORS + v]);
}

#define DEFINE_TILE(ROWS)                                            \
    static __attribute__((noinline)) void tile_##ROWS(const Tile *t) \
    {                                                                \
        if (t->packed && t->turned)                                  \
            tile(ROWS, 1, 1, t);                                     \
        else if (t->packed)                                          \
            tile(ROWS, 0, 1, t);                                     \
        else if (t->turned)                                          \
            tile(ROWS, 1, 0, t);                                     \
        else                                                         \
            tile(ROWS, 0, 0, t);                                     \
    }

DEFINE_TILE(1)
DEFINE_TILE(2)
DEFINE_TILE(4)
DEFINE_TILE(6)
DEFINE_TILE(8)
DEFINE_TILE(12)

INLINE void run_tile(int rows, const Tile *t)
{
    if (TILE_ROWS == 12 && rows == 12)
        tile_12(t);
    else if (TILE_ROWS == 12 && rows == 8)
        tile_8(t);
    else if (TILE_ROWS == 6 && rows == 6)
        tile_6(t);
    else if (rows == 4)
        tile_4(t);
    else if (rows == 2)
        tile_2(t);
    else
        tile_1(t);
}

/* Panels from rows: out[panel][k][n] = in[k * row + n], k < terms, n < columns. */
static void pack_rows(const float *in, ptrdiff_t row, int terms, int columns, float *out)
{
    for (int first = 0; first < columns; first += PANEL_COLUMNS) {
        if (columns - first >= PANEL_COLUMNS) {
            for (int k = 0; k < terms; k++) {
                UNROLL for (int v = 0; v < PANEL_VECTORS; v++) * (Vec *)(out + v * VL) =
                    load(in + k * row + first + v * VL);
                out += PANEL_COLUMNS;
            }
        } else {
            for (int k = 0; k < terms; k++) {
                for (int n = 0; n < PANEL_COLUMNS; n++)
                    out[n] = first + n < columns ? in[k * row + first + n] : 0;
                out += PANEL_COLUMNS;
            }
        }
    }
}

/* out[k * out_row + n] = in[n * row + k] for n < VL and k < terms; zero from n = count on. */
INLINE void transpose_strip(const float *in, ptrdiff_t row, int count, int terms, float *out, ptrdiff_t out_row)
{
    int k = 0;
    if (count == VL)
        for (; k + VL <= terms; k += VL) {
            Vec v[VL];
            UNROLL for (int n = 0; n < VL; n++) v[n] = load(in + n * row + k);
            transpose(v);
            UNROLL for (int i = 0; i < VL; i++) store(out + (k + i) * out_row, v[i]);
        }
    for (; k < terms; k++)
        for (int n = 0; n < VL; n++)
            out[k * out_row + n] = n < count ? in[n * row + k] : 0;
}

/* Panels from columns: out[panel][k][n] = in[n * row + k], k < terms, n < columns. */
static void pack_columns(const float *in, ptrdiff_t row, int terms, int columns, float *out)
{
    for (int first = 0; first < columns; first += PANEL_COLUMNS, out += (ptrdiff_t)terms * PANEL_COLUMNS)
        for (int v = 0; v < PANEL_COLUMNS; v += VL) {
            int count = columns - first - v;
            transpose_strip(in + (first + v) * row, row,
                            count < 0    ? 0
                            : count > VL ? VL
                                         : count,
                            terms, out + v, PANEL_COLUMNS);
        }
}

#endif
