/* Products of linear layers; see kernels/linear/linear_loops.h. */
#include "linear_loops.h"

#include "cython_src/kernels/simd/activations.h"

#include "cython_src/kernels/elementwise/functions.h"
#include "tiles.h"

#include "six_products.h"

/* Length of the pieces of sums over `terms`: as few as needed, a multiple of 16. */
INLINE int piece_length(int terms, int longest)
{
    int pieces = (terms + longest - 1) / longest;
    return pieces ? smaller(((terms + pieces - 1) / pieces + 15) / 16 * 16, longest) : longest;
}

/* Run STATEMENT for each vector `*v` of a tile's sums: `lanes` of its columns, from `n` on, count, and lie at `p` in maps
 * whose rows are `stride` apart. */
#define EACH_OF_TILE(stride, STATEMENT)                        \
    for (int i = 0; i < rows; i++)                             \
    FOR_VECTORS(n, lanes, columns, {                           \
        const ptrdiff_t p = (row + i) * (stride) + column + n; \
        Vec *v = (Vec *)(sums + i * width + n);                \
        STATEMENT;                                             \
    })

/* Sums of a tile to their places. One map after the other, each in a loop of its own: a loop over all of them waits at
 * each vector for the map that comes from memory. */
static __attribute__((noinline)) void finish_tile(const LinearTask *t, float *sums, int width, int row, int rows,
                                                  int column, int add, int last)
{
    const int columns = smaller(t->columns - column, width), activation = t->activation;
    const ptrdiff_t map_row = t->residual_row, c_row = t->c_row;
    float *c = t->c, *before = t->before;
    const float *bias = t->bias, *residual = t->residual, *gelu_of = t->gelu_of, *relu_of = t->relu_of;
    if (add)
        EACH_OF_TILE(c_row, *v = load_some(c + p, lanes) + *v);
    if (last) {
        if (bias || before || activation)
            EACH_OF_TILE(map_row, {
                Vec value = *v;
                if (bias)
                    value += load_some(bias + column + n, lanes);
                if (before)
                    store_some(before + p, value, lanes);
                *v = activation == ACTIVATION_GELU ? gelu(value) : activated(value, activation);
            });
        if (residual)
            EACH_OF_TILE(map_row, *v += load_some(residual + p, lanes));
        if (gelu_of)
            EACH_OF_TILE(map_row, *v *= gelu_derivative(load_some(gelu_of + p, lanes)));
        if (relu_of)
            EACH_OF_TILE(map_row, *v = passed(*v, load_some(relu_of + p, lanes), ACTIVATION_RELU));
    }
    EACH_OF_TILE(c_row, store_some(c + p, *v, lanes));
}

/* Number of columns covered by wide panels. */
INLINE int wide_columns(int columns, int narrow)
{
    return WIDE_VECTORS > PANEL_VECTORS && !narrow ? columns / WIDE_COLUMNS * WIDE_COLUMNS : 0;
}

/* A piece of the sums over k, for the columns [first, first + columns). */
typedef struct LinearPiece {
    const float *from; /* its part of the second factor if that lies by rows, `from_row` apart; NULL: all is packed */
    ptrdiff_t from_row;
    int first, columns, k, terms;
    int add, last;
    Fetch ahead;
} LinearPiece;

/* Products of all rows with the columns [first, stop) of a piece, panels of `vectors`, a constant; the first tiles pack
 * whole panels of a factor that lies by rows. */
INLINE void product_panels(const LinearTask *t, LinearPiece *p, int first, int stop, const int vectors)
{
    const int width = vectors * VL;
    const int plain = !p->last || !(t->bias || t->residual || t->before || t->gelu_of || t->relu_of || t->activation);
    for (int row = 0, rows; row < t->rows; row += rows) {
        rows = tile_height(t->rows - row, vectors);
        for (int n = first; n < stop; n += width) {
            const int whole = stop - n >= width;
            float sums[TILE_ROWS * PANEL_COLUMNS] __attribute__((aligned(64)));
            float *panel = t->scratch + (ptrdiff_t)n * p->terms, *c = t->c + row * t->c_row + p->first + n;
            Tile tile = {.a = t->a + row * t->a_row + p->k,
                         .a_row = t->a_row,
                         .b = panel,
                         .c = c,
                         .c_row = t->c_row,
                         .terms = p->terms,
                         .add = p->add,
                         .ahead = &p->ahead};
            if (row == 0 && p->from && whole) {
                tile.b = p->from + n;
                tile.b_row = p->from_row;
                tile.packed = panel;
            }
            fetch_later(&tile, c, t->c_row);
            if (!plain || !whole) {
                const float *maps[] = {t->before, t->residual, t->gelu_of, t->relu_of};
                for (int m = 0; m < 4 && p->last; m++)
                    if (maps[m])
                        fetch_later(&tile, maps[m] + row * t->residual_row + p->first + n, t->residual_row);
                tile.c = sums;
                tile.c_row = width;
                tile.add = 0;
            }
            run_tile(rows, vectors, &tile);
            if (!plain || !whole)
                finish_tile(t, sums, width, row, rows, p->first + n, p->add, p->last);
        }
    }
}

/* Products of all rows with a piece: wide panels, then the rest. */
static void product_piece(const LinearTask *t, LinearPiece *p)
{
    const int wide = wide_columns(p->columns, t->narrow);
    product_panels(t, p, 0, wide, WIDE_VECTORS);
    product_panels(t, p, wide, p->columns, PANEL_VECTORS);
}

/* Pack the columns of a factor that lies by rows which fill no panel: tiles pack whole ones. */
static void pack_rest(const float *in, ptrdiff_t row, int terms, int columns, float *out)
{
    const int whole = columns / PANEL_COLUMNS * PANEL_COLUMNS;
    pack_rows(in + whole, row, terms, columns - whole, out + (ptrdiff_t)whole * terms);
}

INLINE void linear_product(const LinearTask *t, const int by_columns)
{
    const int length = piece_length(t->terms, LINEAR_TERMS);
    for (int first = 0; first < t->columns; first += LINEAR_COLUMNS) {
        const int columns = smaller(t->columns - first, LINEAR_COLUMNS);
        for (int k = 0; k < t->terms; k += length) {
            const int terms = smaller(t->terms - k, length);
            const ptrdiff_t n = by_columns ? t->b_row : 1, m = by_columns ? 1 : t->b_row;
            const float *b = t->b + first * n + k * m;
            LinearPiece piece = {.first = first,
                                 .columns = columns,
                                 .k = k,
                                 .terms = terms,
                                 .add = t->accumulate || k > 0,
                                 .last = k + terms == t->terms};
            if (by_columns) {
                const int wide = wide_columns(columns, t->narrow);
                pack_columns(b, t->b_row, terms, wide, WIDE_VECTORS, t->scratch);
                pack_columns(b + wide * t->b_row, t->b_row, terms, columns - wide, PANEL_VECTORS,
                             t->scratch + (ptrdiff_t)wide * terms);
            } else {
                pack_rest(b, t->b_row, terms, columns, t->scratch);
                piece.from = b;
                piece.from_row = t->b_row;
            }
            /* The next piece comes from memory while this one is used. */
            int next = first, next_k = k + length;
            if (next_k >= t->terms)
                next += LINEAR_COLUMNS, next_k = 0;
            if (next < t->columns) {
                const int next_columns = smaller(t->columns - next, LINEAR_COLUMNS);
                const int next_terms = smaller(t->terms - next_k, length);
                b = t->b + next * n + next_k * m;
                piece.ahead = by_columns ? fetch_ahead(b, t->b_row, next_columns, next_terms)
                                         : fetch_ahead(b, t->b_row, next_terms, next_columns);
            }
            product_piece(t, &piece);
        }
    }
}

/* The same by six products of bfloat16; `a` lies by terms where `a_by_terms`, a constant, `b` by columns where not
 * `b_by_terms`. */
INLINE void six_products(const LinearTask *t, const int a_by_terms, const int b_by_terms)
{
    const int amx = !t->narrow && amx_usable();
    float *left = t->scratch, *right = left + SIX_FLOATS(smaller(t->rows, SIX_ROWS));
    float *sums = right + SIX_FLOATS(smaller(t->columns, SIX_COLUMNS));
    const ptrdiff_t a_line = a_by_terms ? 1 : t->a_row, a_term = a_by_terms ? t->a_row : 1;
    const ptrdiff_t b_line = b_by_terms ? 1 : t->b_row, b_term = b_by_terms ? t->b_row : 1;
    if (amx)
        amx_begin();
    for (int row = 0; row < t->rows; row += SIX_ROWS)
        for (int first = 0; first < t->columns; first += SIX_COLUMNS) {
            const int rows = smaller(t->rows - row, SIX_ROWS), columns = smaller(t->columns - first, SIX_COLUMNS);
            const int width = LINEAR_ROUND_UP(columns);
            for (int k = 0; k < t->terms; k += SIX_TERMS) {
                const int terms = smaller(t->terms - k, SIX_TERMS), next = smaller(t->terms - k - terms, SIX_TERMS);
                const float *b = t->b + first * b_line + k * b_term, *later = b + SIX_TERMS * b_term;
                Fetch ahead = b_by_terms ? fetch_ahead(later, t->b_row, next, columns)
                                         : fetch_ahead(later, t->b_row, next ? columns : 0, next);
                SixTiles tiles = {.steps = (terms + 31) / 32, .c_row = width, .add = k > 0, .ahead = &ahead};
                tiles.strip = (ptrdiff_t)tiles.steps * SIX_STEP;
                cut_factor(t->a + row * a_line + k * a_term, t->a_row, a_by_terms, 1, rows, terms, left);
                cut_factor(b, t->b_row, b_by_terms, 0, columns, terms, right);
                for (int n = 0; n < columns; n += 32)
                    for (int m = 0; m < rows; m += 32) {
                        tiles.a = left + m / 16 * tiles.strip;
                        tiles.b = right + n / 16 * tiles.strip;
                        tiles.c = sums + m * width + n;
                        (amx ? six_by_amx : six_by_lanes)(&tiles);
                    }
            }
            for (int m = 0; m < rows; m += 8)
                finish_tile(t, sums + m * width, width, row + m, smaller(rows - m, 8), first, t->accumulate, 1);
        }
    if (amx)
        amx_end();
}

static void linear_forward(const LinearTask *t)
{
    t->bf16x6 ? six_products(t, 0, 0) : linear_product(t, 1);
}

static void backward_data(const LinearTask *t)
{
    t->bf16x6 ? six_products(t, 0, 1) : linear_product(t, 0);
}

#define SUM_CHAINS 8

/* out[o] (+)= sum over rows of in[row][o], in chains of every eighth row: rounding errors grow with a chain's length, and
 * no addition waits for the one before it. */
static void sum_columns(const float *in, ptrdiff_t row, int rows, int columns, float *out, int accumulate)
{
    FOR_VECTORS(o, n, columns, {
        Vec sum[SUM_CHAINS] = {{0}};
        int r = 0;
        for (; r + SUM_CHAINS <= rows; r += SUM_CHAINS)
            UNROLL for (int c = 0; c < SUM_CHAINS; c++) sum[c] += load_some(in + (r + c) * row + o, n);
        for (; r < rows; r++)
            sum[0] += load_some(in + r * row + o, n);
        UNROLL for (int half = SUM_CHAINS / 2; half > 0; half /= 2) UNROLL for (int c = 0; c < half; c++) sum[c] +=
            sum[c + half];
        if (accumulate)
            sum[0] = load_some(out + o, n) + sum[0];
        store_some(out + o, sum[0], n);
    });
}

static void backward_weights(const LinearGradientTask *t)
{
    const int piece = piece_length(t->rows, LINEAR_GRADIENT_ROWS);
    float *packed = t->scratch;
    float *turned = packed + LINEAR_PIECE_ROWS(t->rows) * LINEAR_WIDTH(t->inputs);
    const ptrdiff_t turned_row = LINEAR_PIECE_ROWS(t->rows);
    for (int r = 0; r < t->rows; r += piece) {
        const int terms = smaller(t->rows - r, piece);
        const int accumulate = t->accumulate || r > 0;
        const float *gradient = t->gradient + r * t->gradient_row;
        if (t->bias)
            sum_columns(gradient, t->gradient_row, terms, t->outputs, t->bias, accumulate);
        for (int o = 0; !t->bf16x6 && o < t->outputs; o += LINEAR_OUTPUTS) {
            const int outputs = smaller(t->outputs - o, LINEAR_OUTPUTS);
            for (int k = 0; k < terms; k += VL)
                transpose_strip(gradient + k * t->gradient_row + o, t->gradient_row, smaller(terms - k, VL), outputs,
                                turned + k, turned_row);
            for (int i = 0; i < t->inputs; i += LINEAR_COLUMNS) {
                const int inputs = smaller(t->inputs - i, LINEAR_COLUMNS);
                const float *input = t->input + r * t->input_row + i;
                LinearTask task = {.a = turned,
                                   .a_row = turned_row,
                                   .c = t->c + o * t->c_row + i,
                                   .c_row = t->c_row,
                                   .rows = outputs,
                                   .columns = inputs,
                                   .terms = terms,
                                   .narrow = t->narrow,
                                   .scratch = packed};
                LinearPiece part = {.from = input,
                                    .from_row = t->input_row,
                                    .columns = inputs,
                                    .terms = terms,
                                    .add = accumulate,
                                    .last = 1};
                pack_rest(input, t->input_row, terms, inputs, packed);
                if (i + LINEAR_COLUMNS < t->inputs)
                    part.ahead = fetch_ahead(input + LINEAR_COLUMNS, t->input_row, terms,
                                             smaller(t->inputs - i - LINEAR_COLUMNS, LINEAR_COLUMNS));
                product_piece(&task, &part);
            }
        }
    }
    if (t->bf16x6) {
        LinearTask task = {.a = t->gradient,
                           .b = t->input,
                           .c = t->c,
                           .a_row = t->gradient_row,
                           .b_row = t->input_row,
                           .c_row = t->c_row,
                           .rows = t->outputs,
                           .columns = t->inputs,
                           .terms = t->rows,
                           .accumulate = t->accumulate,
                           .narrow = t->narrow,
                           .scratch = t->scratch};
        six_products(&task, 1, 1);
    }
}

#define NARROW(FUNCTION, TYPE)                   \
    static void FUNCTION##_narrow(const TYPE *t) \
    {                                            \
        TYPE task = *t;                          \
        task.narrow = 1;                         \
        FUNCTION(&task);                         \
    }
NARROW(linear_forward, LinearTask)
NARROW(backward_data, LinearTask)
NARROW(backward_weights, LinearGradientTask)

const LinearLoops ISA_SYMBOL(forktask_linear) = {linear_forward, backward_data, backward_weights};
const LinearLoops ISA_SYMBOL(forktask_linear_narrow) = {linear_forward_narrow, backward_data_narrow,
                                                        backward_weights_narrow};
