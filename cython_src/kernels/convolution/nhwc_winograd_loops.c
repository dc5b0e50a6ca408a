/* Transforms of Winograd's convolutions; see kernels/convolution/nhwc_winograd_loops.h. */
#include "nhwc_winograd_loops.h"

#include "cython_src/kernels/simd/activations.h"

#include "cython_src/kernels/elementwise/functions.h"
#include "cython_src/kernels/linear/tiles.h"

/* Points a and b and their negatives: a^2 = 1/2, b^2 = 2, so that a^2 b^2 = 1 and a^2 + b^2 = 5/2. */
#define A 0.70710678118654752440f
#define B 1.41421356237309504880f

/* One direction of a transform: `in` and `out` are `si` and `so` vectors apart, m is 2 or 4. */

INLINE void input_1d(const int m, const Vec *in, const int si, Vec *out, const int so)
{
    if (m == 2) {
        Vec d0 = in[0], d1 = in[si], d2 = in[2 * si], d3 = in[3 * si];
        out[0] = d2 - d0;
        out[so] = d1 + d2;
        out[2 * so] = d2 - d1;
        out[3 * so] = d3 - d1;
    } else {
        Vec d0 = in[0], d1 = in[si], d2 = in[2 * si], d3 = in[3 * si], d4 = in[4 * si], d5 = in[5 * si];
        Vec ea = d4 - 2.0f * d2, oa = A * (d3 - 2.0f * d1);
        Vec eb = d4 - 0.5f * d2, ob = B * (d3 - 0.5f * d1);
        out[0] = (d0 + d4) - 2.5f * d2;
        out[so] = ea + oa;
        out[2 * so] = ea - oa;
        out[3 * so] = eb + ob;
        out[4 * so] = eb - ob;
        out[5 * so] = (d1 + d5) - 2.5f * d3;
    }
}

INLINE void output_1d(const int m, const Vec *in, const int si, Vec *out, const int so)
{
    if (m == 2) {
        Vec p0 = in[0], p1 = in[si], p2 = in[2 * si], p3 = in[3 * si];
        out[0] = p0 + (p1 + p2);
        out[so] = (p1 - p2) + p3;
    } else {
        Vec sa = in[si] + in[2 * si], da = in[si] - in[2 * si];
        Vec sb = in[3 * si] + in[4 * si], db = in[3 * si] - in[4 * si];
        out[0] = in[0] + (sa + sb);
        out[so] = A * da + B * db;
        out[2 * so] = 0.5f * sa + 2.0f * sb;
        out[3 * so] = (0.5f * A) * da + (2.0f * B * db + in[5 * si]);
    }
}

/* Three outputs: the taps of a weight gradient. */
INLINE void weights_1d(const int m, const Vec *in, const int si, Vec *out, const int so)
{
    if (m == 2) {
        Vec s = in[si] + in[2 * si];
        out[0] = in[0] + s;
        out[so] = in[si] - in[2 * si];
        out[2 * so] = s + in[3 * si];
    } else {
        Vec sa = in[si] + in[2 * si], da = in[si] - in[2 * si];
        Vec sb = in[3 * si] + in[4 * si], db = in[3 * si] - in[4 * si];
        out[0] = in[0] + (sa + sb);
        out[so] = A * da + B * db;
        out[2 * so] = 0.5f * sa + (2.0f * sb + in[5 * si]);
    }
}

/* Three taps to the points. */
INLINE void filter_1d(const int m, const Vec *in, const int si, Vec *out, const int so)
{
    Vec g0 = in[0], g1 = in[si], g2 = in[2 * si];
    if (m == 2) {
        Vec e = 0.5f * (g0 + g2), o = 0.5f * g1;
        out[0] = -g0;
        out[so] = e + o;
        out[2 * so] = e - o;
        out[3 * so] = g2;
    } else {
        const float na = -1.0f / 1.5f, nb = 1.0f / 6.0f;
        Vec ea = na * g0 + (0.5f * na) * g2, oa = (A * na) * g1;
        Vec eb = nb * g0 + (2.0f * nb) * g2, ob = (B * nb) * g1;
        out[0] = g0;
        out[so] = ea + oa;
        out[2 * so] = ea - oa;
        out[3 * so] = eb + ob;
        out[4 * so] = eb - ob;
        out[5 * so] = g2;
    }
}

/* m gradients to the points. */
INLINE void gradient_1d(const int m, const Vec *in, const int si, Vec *out, const int so)
{
    if (m == 2) {
        Vec e = 0.5f * in[0], o = 0.5f * in[si];
        out[0] = -in[0];
        out[so] = e + o;
        out[2 * so] = e - o;
        out[3 * so] = in[si];
    } else {
        const float na = -1.0f / 1.5f, nb = 1.0f / 6.0f;
        Vec g0 = in[0], g1 = in[si], g2 = in[2 * si], g3 = in[3 * si];
        Vec ea = na * g0 + (0.5f * na) * g2, oa = (A * na) * g1 + (0.5f * A * na) * g3;
        Vec eb = nb * g0 + (2.0f * nb) * g2, ob = (B * nb) * g1 + (2.0f * B * nb) * g3;
        out[0] = g0;
        out[so] = ea + oa;
        out[2 * so] = ea - oa;
        out[3 * so] = eb + ob;
        out[4 * so] = eb - ob;
        out[5 * so] = g3;
    }
}

#define FAR_FLOATS (256 * LANES) /* of a panel's point, where those of all panels do not stay in the L2 cache */

/* Ask memory for a tile of n x n pixels, from column `first` on: the tile before it had the others. */
INLINE void ask(const int n, const int first, const float *x, ptrdiff_t row, ptrdiff_t pixel)
{
    UNROLL for (int i = 0; i < n; i++) UNROLL for (int j = first; j < n; j++)
        __builtin_prefetch(x + i * row + j * pixel);
}

/* Both directions: columns of `in` x `in` numbers first, then rows. LOAD(y, x) and STORE(y, x, v) reach memory. */
#define BOTH_WAYS(TRANSFORM, M, IN, OUT, LOAD, STORE)                   \
    do {                                                                \
        Vec half[OUT * IN];                                             \
        UNROLL for (int x = 0; x < IN; x++)                             \
        {                                                               \
            Vec column[IN];                                             \
            UNROLL for (int y = 0; y < IN; y++) column[y] = LOAD(y, x); \
            TRANSFORM(M, column, 1, half + x, IN);                      \
        }                                                               \
        UNROLL for (int y = 0; y < OUT; y++)                            \
        {                                                               \
            Vec line[OUT];                                              \
            TRANSFORM(M, half + y * IN, 1, line, 1);                    \
            UNROLL for (int x = 0; x < OUT; x++) STORE(y, x, line[x]);  \
        }                                                               \
    } while (0)

#define STORE_POINT(Y, X, V)  store(out + ((Y) * (M_ + 2) + (X)) * point + c, V)
#define STREAM_POINT(Y, X, V) stream(out + ((Y) * (M_ + 2) + (X)) * point + c, V)
#define LOAD_POINT(Y, X)      load(in + ((Y) * (M_ + 2) + (X)) * point + c)
#define STORE_TAP(Y, X, V)    store(out + ((Y) * 3 + (X)) * tap + c, V)

#define LOAD_X(Y, X) load(x_ + (Y) * row + (X) * pixel + c)
#define LOAD_W(Y, X) load(w + ((Y) * 3 + (X)) * tap + c)

#define TRANSFORMS(M)                                                                                          \
    static void input_##M(const float *x_, ptrdiff_t row, ptrdiff_t pixel, int channels, const float *next,    \
                          float *out, ptrdiff_t point)                                                         \
    {                                                                                                          \
        enum { M_ = M };                                                                                       \
        for (int c = 0; c < channels; c += VL) {                                                               \
            if (next && c % LINE == 0)                                                                         \
                ask(M + 2, 2, next + c, row, pixel);                                                           \
            BOTH_WAYS(input_1d, M, (M + 2), (M + 2), LOAD_X, STORE_POINT);                                     \
        }                                                                                                      \
    }                                                                                                          \
    static void gradient_##M(const float *x_, ptrdiff_t row, ptrdiff_t pixel, int channels, const float *next, \
                             float *out, ptrdiff_t point)                                                      \
    {                                                                                                          \
        enum { M_ = M };                                                                                       \
        for (int c = 0; c < channels; c += VL) {                                                               \
            if (next && c % LINE == 0)                                                                         \
                ask(M, 0, next + c, row, pixel);                                                               \
            BOTH_WAYS(gradient_1d, M, M, (M + 2), LOAD_X, STORE_POINT);                                        \
        }                                                                                                      \
    }                                                                                                          \
    static void filter_##M(const float *w, ptrdiff_t tap, int channels, float *out, ptrdiff_t point)           \
    {                                                                                                          \
        enum { M_ = M };                                                                                       \
        const int far = BY_ISA(0, 0, 0, 1) && channels >= FAR_FLOATS && (uintptr_t)out % 64 == 0;              \
        for (int c = 0; c < channels; c += VL)                                                                 \
            if (far)                                                                                           \
                BOTH_WAYS(filter_1d, M, 3, (M + 2), LOAD_W, STREAM_POINT);                                     \
            else                                                                                               \
                BOTH_WAYS(filter_1d, M, 3, (M + 2), LOAD_W, STORE_POINT);                                      \
        if (far)                                                                                               \
            streamed();                                                                                        \
    }                                                                                                          \
    static void weights_##M(const float *in, ptrdiff_t point, int channels, float *out, ptrdiff_t tap)         \
    {                                                                                                          \
        enum { M_ = M };                                                                                       \
        for (int c = 0; c < channels; c += VL)                                                                 \
            BOTH_WAYS(weights_1d, M, (M + 2), 3, LOAD_POINT, STORE_TAP);                                       \
    }                                                                                                          \
    static void output_##M(const float *in, ptrdiff_t point, int channels, const float *bias, int activation,  \
                           int accumulate, float *y_, ptrdiff_t row, ptrdiff_t pixel, int rows, int columns)   \
    {                                                                                                          \
        enum { M_ = M };                                                                                       \
        const int plain = rows == M && columns == M && !accumulate && !bias && !activation;                    \
        for (int c = 0; c < channels; c += VL) {                                                               \
            float sums[M * M * VL] __attribute__((aligned(64)));                                               \
            float *to = plain ? y_ + c : sums;                                                                 \
            const ptrdiff_t to_row = plain ? row : M * VL, to_pixel = plain ? pixel : VL;                      \
            BOTH_WAYS(output_1d, M, (M + 2), M, LOAD_POINT, STORE_Y);                                          \
            if (plain)                                                                                         \
                continue;                                                                                      \
            for (int y = 0; y < rows; y++)                                                                     \
                for (int x = 0; x < columns; x++) {                                                            \
                    float *p = y_ + y * row + x * pixel + c;                                                   \
                    Vec v = load(sums + (y * M + x) * VL);                                                     \
                    if (bias)                                                                                  \
                        v += load(bias + c);                                                                   \
                    if (accumulate)                                                                            \
                        v += load(p);                                                                          \
                    store(p, activated(v, activation));                                                        \
                }                                                                                              \
        }                                                                                                      \
    }

#define STORE_Y(Y, X, V) store(to + (Y) * to_row + (X) * to_pixel, V)

TRANSFORMS(2)
TRANSFORMS(4)

/* All inputs with the outputs [first, stop) of a point, in panels of `vectors`; the factors of the next point come to the
 * L1 cache. */
INLINE void weight_panels(const WinogradWeightTask *t, int p, int first, int stop, const int vectors)
{
    const int columns = vectors * VL;
    for (int i = 0, rows; i < t->inputs; i += rows) {
        rows = tile_height(t->inputs - i, vectors);
        for (int o = first; o < stop; o += columns) {
            Tile tile = {.a = t->input + p * t->input_point + i,
                         .a_row = t->inputs,
                         .b = t->gradient + p * t->gradient_point + (ptrdiff_t)o * t->tiles,
                         .c = t->sums + p * t->sums_point + (ptrdiff_t)i * t->outputs + o,
                         .c_row = t->outputs,
                         .terms = t->tiles,
                         .add = t->add,
                         .turned = 1};
            fetch_later(&tile, tile.c + rows * t->outputs, t->outputs);
            if (p + 1 < t->points) {
                fetch_later(&tile, tile.a - i + t->input_point + (ptrdiff_t)i * columns, columns);
                fetch_later(&tile, tile.b + t->gradient_point + (ptrdiff_t)i * columns, columns);
            }
            run_tile(rows, vectors, &tile);
        }
    }
}

static void weight_products(const WinogradWeightTask *t)
{
    const int wide = t->outputs / WIDE_COLUMNS * WIDE_COLUMNS;
    for (int p = 0; p < t->points; p++) {
        weight_panels(t, p, 0, wide, WIDE_VECTORS);
        weight_panels(t, p, wide, t->outputs, PANEL_VECTORS);
    }
}

const NhwcWinogradLoops ISA_SYMBOL(forktask_nhwc_winograd) = {
    .input = {input_2, input_4},
    .gradient = {gradient_2, gradient_4},
    .filter = {filter_2, filter_4},
    .output = {output_2, output_4},
    .weights = {weights_2, weights_4},
    .weight_products = weight_products,
    .panel = WIDE_COLUMNS,
};
