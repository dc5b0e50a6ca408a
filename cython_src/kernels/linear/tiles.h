/* Matrix products in tiles: C[m][n] (+)= sum over k of A[m][k] B[k][n], shared by linear layers and attention.
 *
 * B lies in panels of PANEL_COLUMNS or WIDE_COLUMNS columns, [k][columns], zero past the last column; A is read where it
 * lies, by rows. A tile's sums stay in registers: 12 rows of a panel, or 6 of a wide one, which takes fewer instructions
 * for each multiply-add. The first tile of a panel may pack it, while the multiply-adds run, from a B that lies by rows.
 * An element's terms are summed in the order of k, one fused multiply-add after the other, whichever tile the element is
 * in: bits do not depend on how a matrix is cut.
 * Include after vectors.h. */
#ifndef FORKTASK_LINEAR_TILES_H
#define FORKTASK_LINEAR_TILES_H

#include <stddef.h>
#include <string.h>

#define PANEL_VECTORS 2
#define PANEL_COLUMNS (PANEL_VECTORS * VL)
#define WIDE_VECTORS  BY_ISA(2, 2, 2, 4)
#define WIDE_COLUMNS  (WIDE_VECTORS * VL)

/* Registers: the sums, a row of the panel, one broadcast. */
#define TILE_ROWS BY_ISA(4, 4, 6, 12)
#define WIDE_ROWS BY_ISA(4, 4, 6, 6)

/* Rows of the next tile of a panel of `vectors` when `left` remain: tiles of full height, and two of 8 rather than 12
 * and 4. */
INLINE int tile_height(int left, const int vectors)
{
    const int most = vectors == PANEL_VECTORS ? TILE_ROWS : WIDE_ROWS;
    if (left >= most && !(most == 12 && left == 16))
        return most;
    return most == 12 && left >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
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

#define MOST_FETCHED 3 /* maps */

/* Factors and result of a tile; c is as wide as the panel at least. */
typedef struct Tile {
    const float *a, *b;
    float *c;
    ptrdiff_t a_row, c_row;
    int terms, add; /* add: to what c holds */
    int turned;     /* A lies by terms: A[m][k] is a[k * a_row + m] */
    Fetch *ahead;   /* or NULL */
    float *packed;  /* or NULL: B lies by rows, b_row apart, and its panel is stored here */
    ptrdiff_t b_row;
    const float *later[MOST_FETCHED]; /* what is read or written next, as large as the tile; see fetch_later() */
    ptrdiff_t later_row[MOST_FETCHED];
    int num_later;
} Tile;

#define PACK_AHEAD 32 /* rows that are fetched before they are packed: the time of an access to memory */

/* Have a map, from its first element on, fetched while the sums are computed. */
INLINE void fetch_later(Tile *t, const float *map, ptrdiff_t row)
{
    t->later[t->num_later] = map;
    t->later_row[t->num_later++] = row;
}

/* Fetch row i of these maps. One row now and then, since a core can wait for a dozen lines alone, and those of A and B
 * are among them. */
INLINE void fetch_row(const int vectors, const Tile *t, int i)
{
    for (int m = 0; m < t->num_later; m++)
        for (int n = 0; n < vectors * VL; n += LINE)
            __builtin_prefetch(t->later[m] + i * t->later_row[m] + n);
}

/* Where the terms of a tile are read, and where packed ones go. Three pointers to A, four rows each: addresses of base
 * plus multiples of one stride. */
typedef struct TilePlace {
    const float *a0, *a4, *a8, *b;
    float *packed;
} TilePlace;

/* The next `terms` terms; `rows`, `vectors`, `turned`, which is that of the tile, and `packing`, whether there is
 * `packed`, are constants, as is `terms`. */
INLINE void add_terms(const int rows, const int vectors, const int turned, const int packing, const Tile *t,
                      const int terms, TilePlace *p, Vec *sum)
{
    const ptrdiff_t a_row = t->a_row, b_row = packing ? t->b_row : vectors * VL, a_term = turned ? a_row : 1;
    UNROLL for (int k = 0; k < terms; k++)
    {
        Vec w[WIDE_VECTORS];
        UNROLL for (int v = 0; v < vectors; v++) w[v] = load(p->b + k * b_row + v * VL);
        if (packing) {
            UNROLL for (int n = 0; n < vectors * VL; n += LINE)
                __builtin_prefetch(p->b + (PACK_AHEAD + k) * b_row + n, 0, 3);
            UNROLL for (int v = 0; v < vectors; v++) store(p->packed + (k * vectors + v) * VL, w[v]);
        }
        UNROLL for (int i = 0; i < rows; i++)
        {
            const float *a = turned ? p->a0 + i : (i < 4 ? p->a0 : i < 8 ? p->a4 : p->a8) + (i & 3) * a_row;
            Vec x = splat(a[k * a_term]);
            UNROLL for (int v = 0; v < vectors; v++) sum[i * vectors + v] += x * w[v];
        }
    }
    p->a0 += terms * a_term, p->a4 += terms, p->a8 += terms;
    p->b += terms * b_row;
    if (packing)
        p->packed += terms * vectors * VL;
}

INLINE void tile(const int rows, const int vectors, const int turned, const int packing, const Tile *t)
{
    Vec sum[24]; /* those of `rows` are used */
    TilePlace p = {t->a, t->a + 4 * t->a_row, t->a + 8 * t->a_row, t->b, t->packed};
    UNROLL for (int i = 0; i < rows * vectors; i++) sum[i] = (Vec){0};
    int left = t->terms;
    for (int i = 0; left >= AHEAD_TERMS; left -= AHEAD_TERMS, i++) {
        if (t->ahead)
            fetch_line(t->ahead);
        if (i < rows)
            fetch_row(vectors, t, i);
        for (int k = 0; k < AHEAD_TERMS; k += 4)
            add_terms(rows, vectors, turned, packing, t, 4, &p, sum);
    }
    for (; left > 0; left--)
        add_terms(rows, vectors, turned, packing, t, 1, &p, sum);
    float *c = t->c;
    UNROLL for (int i = 0; i < rows; i++) UNROLL for (int v = 0; v < vectors; v++)
    {
        float *at = c + i * t->c_row + v * VL;
        store_or_add(at, sum[i * vectors + v], t->add);
    }
}

#define DEFINE_TILE(NAME, ROWS, VECTORS)                      \
    static __attribute__((noinline)) void NAME(const Tile *t) \
    {                                                         \
        if (t->packed)                                        \
            tile(ROWS, VECTORS, 0, 1, t);                     \
        else if (t->turned)                                   \
            tile(ROWS, VECTORS, 1, 0, t);                     \
        else                                                  \
            tile(ROWS, VECTORS, 0, 0, t);                     \
    }

DEFINE_TILE(tile_1, 1, PANEL_VECTORS)
DEFINE_TILE(tile_2, 2, PANEL_VECTORS)
DEFINE_TILE(tile_4, 4, PANEL_VECTORS)
DEFINE_TILE(tile_6, 6, PANEL_VECTORS)
DEFINE_TILE(tile_8, 8, PANEL_VECTORS)
DEFINE_TILE(tile_12, 12, PANEL_VECTORS)
DEFINE_TILE(wide_1, 1, WIDE_VECTORS)
DEFINE_TILE(wide_2, 2, WIDE_VECTORS)
DEFINE_TILE(wide_4, 4, WIDE_VECTORS)
DEFINE_TILE(wide_6, 6, WIDE_VECTORS)

/* `vectors`, those of the panel, is a constant. */
INLINE void run_tile(int rows, const int vectors, const Tile *t)
{
    const int wide = vectors > PANEL_VECTORS;
    if (wide && rows == 6)
        wide_6(t);
    else if (!wide && TILE_ROWS == 12 && rows == 12)
        tile_12(t);
    else if (!wide && TILE_ROWS == 12 && rows == 8)
        tile_8(t);
    else if (!wide && TILE_ROWS == 6 && rows == 6)
        tile_6(t);
    else if (rows == 4)
        wide ? wide_4(t) : tile_4(t);
    else if (rows == 2)
        wide ? wide_2(t) : tile_2(t);
    else
        wide ? wide_1(t) : tile_1(t);
}

/* Panels of PANEL_COLUMNS from rows: out[panel][k][n] = in[k * row + n], k < terms, n < columns. */
static void pack_rows(const float *in, ptrdiff_t row, int terms, int columns, float *out)
{
    for (int first = 0; first < columns; first += PANEL_COLUMNS)
        for (int k = 0; k < terms; k++, out += PANEL_COLUMNS)
            for (int v = 0; v < PANEL_COLUMNS; v += VL) {
                const float *p = in + k * row + first + v;
                const int left = columns - first - v;
                store(out + v, left >= VL ? load(p) : left > 0 ? load_some(p, left) : (Vec){0});
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

/* Panels of `vectors` from columns: out[panel][k][n] = in[n * row + k], k < terms, n < columns. */
static void pack_columns(const float *in, ptrdiff_t row, int terms, int columns, int vectors, float *out)
{
    for (int first = 0; first < columns; first += vectors * VL, out += (ptrdiff_t)terms * vectors * VL)
        for (int v = 0; v < vectors * VL; v += VL) {
            int count = columns - first - v;
            transpose_strip(in + (first + v) * row, row,
                            count < 0    ? 0
                            : count > VL ? VL
                                         : count,
                            terms, out + v, vectors * VL);
        }
}

#endif
