/* Inner loops of convolutions with the channels in the lanes; see kernels/convolution/nhwc_loops.h. */
#include "nhwc_loops.h"

#include "cython_src/kernels/simd/activations.h"
#include "cython_src/kernels/simd/vectors.h"

#define LINE     16  /* floats of a cache line */
#define FAR_ROWS 256 /* of sums that do not stay in the L2 cache until they are added up */

/* Registers: `groups` x 4 pixels x `vectors` sums, one column vector of b each, one broadcast. */
#define PANEL_VECTORS 2                  /* vectors of columns at a time: of AVX-512 two panels */
#define WIDE_GROUPS   BY_ISA(1, 1, 1, 3) /* groups at a time with them */
#define MOST_VECTORS  3  /* of columns; three take fewer instructions for each multiply-add, and two groups */
#define LONG_SUM      64 /* terms from which on that pays */
#define NARROW        BY_ISA(2, 2, 2, 1)
#define NARROW_GROUPS BY_ISA(1, 1, 1, 6)
#define OUTER_ROWS    BY_ISA(4, 4, 4, 8)

/* Sums of a tile, by pixel and vector, to their places: through memory, so that the sums above stay in registers. */
INLINE void store_tile(const ProductTask *t, const PixelGroup *g, const int groups, int column, const int vectors,
                       const float *sums)
{
    for (int v = 0; v < vectors; v++) {
        const int first = column + v * VL;
        const int left = (t->num_panels - 1) * LANES + t->last_columns - first;
        const int stored = (t->num_panels - 1) * LANES + t->store_columns - first;
        Vec bias = {0};
        if (t->bias)
            for (int i = 0; i < VL && i < left; i++)
                bias[i] = t->bias[first + i];
        for (int i = 0; i < groups; i++)
            for (int r = g[i].first; r < g[i].first + g[i].count; r++) {
                float *c = t->c + g[i].c + r * t->out_pixel + first;
                Vec sum = load(sums + ((i * GROUP_PIXELS + r) * vectors + v) * VL) + bias;
                if (stored >= VL) {
                    if (t->accumulate)
                        sum += load(c);
                    store(c, activated(sum, t->activation));
                } else {
                    for (int l = 0; l < stored; l++)
                        c[l] = activated_one(t->accumulate ? c[l] + sum[l] : sum[l], t->activation);
                }
            }
    }
}

/* Columns [column, column + vectors * VL) of `groups` groups. The input of those `next` comes from memory meanwhile. */
INLINE void product_tile(const ProductTask *t, const PixelGroup *g, const int groups, int column, const int vectors,
                         ptrdiff_t input, const PixelGroup *next)
{
    Vec acc[NARROW_GROUPS * GROUP_PIXELS * MOST_VECTORS];
    const float *b = t->b + column / LANES * t->panel + column % LANES;
    const ptrdiff_t pixel = t->pixel;
    const int k = t->k;
    /* The lines that the tile after the next one writes are on their way while the sums are taken: few terms do not take as
     * long as an access to memory. */
    const PixelGroup *later = g + 2 * groups;
    if (later + groups <= t->groups + t->num_groups + t->more_groups)
        UNROLL for (int i = 0; i < groups; i++) UNROLL for (int r = 0; r < GROUP_PIXELS; r++)
            UNROLL for (int v = 0; v < vectors; v++)
                __builtin_prefetch(t->c + later[i].c + r * t->out_pixel + column + v * VL, 1, 2);
    UNROLL for (int i = 0; i < groups * GROUP_PIXELS * vectors; i++) acc[i] = (Vec){0};
    for (int tap = 0; tap < t->num_taps; tap++) {
        const float *bt = b + t->taps[tap].b;
        const float *a[NARROW_GROUPS];
        UNROLL for (int i = 0; i < groups; i++) a[i] = t->a + input + g[i].a + t->taps[tap].a;
        for (int line = 0; line < k; line += LINE) {
            const int terms = k - line < LINE ? k - line : LINE;
            if (next)
                UNROLL for (int i = 0; i < groups; i++) UNROLL for (int r = 0; r < GROUP_PIXELS; r++)
                    __builtin_prefetch(t->a + input + next[i].a + t->taps[tap].a + line + r * pixel, 0, 2);
            for (int j = 0; j < terms; j++) {
                Vec w[MOST_VECTORS];
                UNROLL for (int v = 0; v < vectors; v++) w[v] = load(bt + v * VL / LANES * t->panel + v * VL % LANES);
                UNROLL for (int i = 0; i < groups; i++) UNROLL for (int r = 0; r < GROUP_PIXELS; r++)
                {
                    Vec x = splat(a[i][r * pixel]);
                    UNROLL for (int v = 0; v < vectors; v++) acc[(i * GROUP_PIXELS + r) * vectors + v] += x * w[v];
                }
                UNROLL for (int i = 0; i < groups; i++) a[i]++;
                bt += LANES;
            }
        }
    }
    int plain = !t->bias && !t->activation && column + vectors * VL <= (t->num_panels - 1) * LANES + t->store_columns;
    UNROLL for (int i = 0; i < groups; i++) plain &= g[i].count == GROUP_PIXELS;
    if (plain) {
        UNROLL for (int i = 0; i < groups; i++)
        {
            float *c = t->c + g[i].c + column;
            UNROLL for (int r = 0; r < GROUP_PIXELS; r++) UNROLL for (int v = 0; v < vectors; v++)
            {
                float *p = c + r * t->out_pixel + v * VL;
                Vec sum = acc[(i * GROUP_PIXELS + r) * vectors + v];
                if (t->accumulate)
                    sum += load(p);
                store(p, sum);
            }
        }
        return;
    }
    float sums[NARROW_GROUPS * GROUP_PIXELS * MOST_VECTORS * VL] __attribute__((aligned(64)));
    UNROLL for (int i = 0; i < groups * GROUP_PIXELS * vectors; i++) * (Vec *)(sums + i * VL) = acc[i];
    store_tile(t, g, groups, column, vectors, sums);
}

/* Where the tile of N groups after this one starts, if there is one whose input may not be in the L2 cache yet. */
#define NEXT(N) (column == 0 && g + 2 * (N) <= t->num_groups + t->more_groups ? t->groups + g + (N) : NULL)

static __attribute__((noinline)) void wide_tiles(const ProductTask *t, int column, ptrdiff_t input)
{
    int g = 0;
    for (; g + WIDE_GROUPS <= t->num_groups; g += WIDE_GROUPS)
        product_tile(t, t->groups + g, WIDE_GROUPS, column, PANEL_VECTORS, input, NEXT(WIDE_GROUPS));
    if (WIDE_GROUPS > 1 && t->num_groups - g == 2)
        product_tile(t, t->groups + g, 2, column, PANEL_VECTORS, input, NULL);
    else if (WIDE_GROUPS > 1 && t->num_groups - g == 1)
        product_tile(t, t->groups + g, 1, column, PANEL_VECTORS, input, NULL);
}

static __attribute__((noinline)) void three_tiles(const ProductTask *t, int column, ptrdiff_t input)
{
    int g = 0;
    for (; g + 2 <= t->num_groups; g += 2)
        product_tile(t, t->groups + g, 2, column, 3, input, NEXT(2));
    if (g < t->num_groups)
        product_tile(t, t->groups + g, 1, column, 3, input, NULL);
}

static __attribute__((noinline)) void narrow_tiles(const ProductTask *t, int column, ptrdiff_t input)
{
    int g = 0;
    for (; g + NARROW_GROUPS <= t->num_groups; g += NARROW_GROUPS)
        product_tile(t, t->groups + g, NARROW_GROUPS, column, NARROW, input, NEXT(NARROW_GROUPS));
    for (; g + 3 <= t->num_groups; g += 3)
        product_tile(t, t->groups + g, 3, column, NARROW, input, NEXT(3));
    for (; g < t->num_groups; g++)
        product_tile(t, t->groups + g, 1, column, NARROW, input, NEXT(1));
}

/* How many panels from p on are multiplied at once: three, two, or one, of those that read the same input. */
INLINE int panels_at_once(const ProductTask *t, int p)
{
    int same = 1;
    while (same < 5 && p + same < t->num_panels && (!t->panel_input || t->panel_input[p + same] == t->panel_input[p]))
        same++;
    const int three = same == 3 || (same == 5 && t->num_taps * t->k >= LONG_SUM);
    return three ? 3 : same < 2 ? 1 : 2;
}

static void product(const ProductTask *t)
{
    for (int p = 0, panels; p < t->num_panels; p += panels) {
        const ptrdiff_t input = t->panel_input ? t->panel_input[p] : 0;
        panels = NARROW == PANEL_VECTORS ? 1 : panels_at_once(t, p);
        if (NARROW == PANEL_VECTORS)
            for (int column = 0; column < LANES; column += PANEL_VECTORS * VL)
                wide_tiles(t, p * LANES + column, input);
        else if (panels == 3)
            three_tiles(t, p * LANES, input);
        else if (panels == 2)
            wide_tiles(t, p * LANES, input);
        else
            narrow_tiles(t, p * LANES, input);
    }
}

INLINE void outer_tile(const OuterTask *t, int m, const int rows, int column, const int vectors, const int width,
                       const Request *ahead, const int lines)
{
    Vec acc[OUTER_ROWS * 2];
    float *c = t->c + (ptrdiff_t)m * width + column;
    UNROLL for (int i = 0; i < rows; i++) UNROLL for (int v = 0; v < vectors; v++) acc[i * vectors + v] =
        load(c + i * width + v * VL);
    const float *b = t->b + column;
    for (int image = 0; image < t->images; image++)
        for (int y = 0; y < t->rows; y++) {
            const float *a = t->a + image * t->image + y * t->row + m;
            const float *soon = lines ? ahead->at + image * ahead->image + y * ahead->row : NULL;
            for (int x = 0; x < t->columns; x++) {
                UNROLL for (int i = 0; i < lines; i++) __builtin_prefetch(soon + i * LINE, 0, 2);
                if (lines)
                    soon += ahead->pixel;
                Vec w[2];
                UNROLL for (int v = 0; v < vectors; v++) w[v] = load(b + v * VL);
                UNROLL for (int i = 0; i < rows; i++)
                {
                    Vec s = splat(a[i]);
                    UNROLL for (int v = 0; v < vectors; v++) acc[i * vectors + v] += s * w[v];
                }
                a += t->pixel;
                b += width;
            }
        }
    UNROLL for (int i = 0; i < rows; i++) UNROLL for (int v = 0; v < vectors; v++)
        store(c + i * width + v * VL, acc[i * vectors + v]);
}

INLINE void wide_outer(const OuterTask *t, int m, const Request *ahead)
{
    const int lines = ahead ? ahead->lines : 0;
    for (int column = 0; column < 2 * LANES; column += 2 * VL)
        if (column > 0 || lines == 0)
            outer_tile(t, m, OUTER_ROWS, column, 2, 2 * LANES, NULL, 0);
        else if (lines == 1)
            outer_tile(t, m, OUTER_ROWS, column, 2, 2 * LANES, ahead, 1);
        else
            outer_tile(t, m, OUTER_ROWS, column, 2, 2 * LANES, ahead, 2);
}

static void outer(const OuterTask *t)
{
    int m = 0;
    for (; m + OUTER_ROWS <= t->m; m += OUTER_ROWS) {
        if (t->width == 2 * LANES)
            wide_outer(t, m, m < 2 * OUTER_ROWS ? &t->ahead[m / OUTER_ROWS] : NULL);
        else
            for (int column = 0; column < LANES; column += 2 * VL)
                outer_tile(t, m, OUTER_ROWS, column, smaller(2, REGISTERS), LANES, NULL, 0);
    }
    for (; m + 4 <= t->m; m += 4)
        for (int column = 0; column < t->width; column += VL)
            outer_tile(t, m, 4, column, 1, t->width, NULL, 0);
    for (; m < t->m; m++)
        for (int column = 0; column < t->width; column += VL)
            outer_tile(t, m, 1, column, 1, t->width, NULL, 0);
}

static void transpose_rows(const float *rows, const int32_t *index, int n, int lanes, float *out, ptrdiff_t out_stride,
                           int accumulate)
{
    const int far =
        BY_ISA(0, 0, 0, 1) && !accumulate && n >= FAR_ROWS && (uintptr_t)out % 64 == 0 && out_stride % LINE == 0;
    for (int first = 0; first < lanes; first += VL) {
        const int count = lanes - first < VL ? lanes - first : VL;
        int r = 0;
        for (; r + VL <= n; r += VL) {
            Vec v[VL];
            UNROLL for (int i = 0; i < VL; i++) v[i] = load(rows + index[r + i] + first);
            transpose(v);
            for (int i = 0; i < count; i++) {
                float *p = out + (first + i) * out_stride + r;
                if (accumulate)
                    v[i] += load(p);
                if (far)
                    stream(p, v[i]);
                else
                    store(p, v[i]);
            }
        }
        for (; r < n; r++)
            for (int i = 0; i < count; i++) {
                float *p = out + (first + i) * out_stride + r, x = rows[index[r] + first + i];
                *p = accumulate ? *p + x : x;
            }
    }
    if (far)
        streamed();
}

static void spread_rows(const float *in, ptrdiff_t in_stride, int lanes, int n, const int32_t *index, int beyond,
                        float *out)
{
    for (int first = 0; first < LANES; first += VL) {
        int r = 0;
        if (lanes >= first + VL)
            for (; r + VL <= n || (beyond && r + VL / 2 < n); r += VL) {
                const int rows = n - r < VL ? n - r : VL;
                Vec v[VL];
                UNROLL for (int i = 0; i < VL; i++) v[i] = load(in + (first + i) * in_stride + r);
                transpose(v);
                float square[VL * VL] __attribute__((aligned(64)));
                UNROLL for (int i = 0; i < VL; i++) * (Vec *)(square + i * VL) = v[i];
                for (int i = 0; i < rows; i++)
                    store(out + index[r + i] + first, load(square + i * VL));
            }
        for (; r < n; r++)
            for (int i = first; i < first + VL; i++)
                out[index[r] + i] = i < lanes ? in[i * in_stride + r] : 0.0f;
    }
}

INLINE void gather_vectors(const float *in, ptrdiff_t pixel, int n, const int vectors, float *out)
{
    for (int i = 0; i < n; i++, in += pixel, out += vectors * VL)
        UNROLL for (int v = 0; v < vectors; v++) store(out + v * VL, load(in + v * VL));
}

static void gather_pixels(const float *in, ptrdiff_t pixel, int n, int width, float *out)
{
    typedef float Four __attribute__((vector_size(16), aligned(4), may_alias));
    if (width == 2 * LANES)
        gather_vectors(in, pixel, n, 2 * REGISTERS, out);
    else if (width == LANES)
        gather_vectors(in, pixel, n, REGISTERS, out);
    else
        for (int i = 0; i < n; i++)
            for (int j = 0; j < width; j += 4)
                *(Four *)(out + (ptrdiff_t)i * width + j) = *(const Four *)(in + i * pixel + j);
}

static void shifted_sums(const float *x, ptrdiff_t pixel, int n, const float *shift, float *sum, float *squares)
{
    for (int first = 0; first < LANES; first += VL) {
        Vec s[4], q[4], around = load(shift + first);
        UNROLL for (int i = 0; i < 4; i++) s[i] = q[i] = (Vec){0};
        int j = 0;
        for (; j + 4 <= n; j += 4)
            UNROLL for (int i = 0; i < 4; i++)
            {
                Vec d = load(x + (j + i) * pixel + first) - around;
                s[i] += d;
                q[i] += d * d;
            }
        for (; j < n; j++) {
            Vec d = load(x + j * pixel + first) - around;
            s[0] += d;
            q[0] += d * d;
        }
        store(sum + first, load(sum + first) + ((s[0] + s[1]) + (s[2] + s[3])));
        store(squares + first, load(squares + first) + ((q[0] + q[1]) + (q[2] + q[3])));
    }
}

const NhwcConvolutionLoops ISA_SYMBOL(forktask_nhwc_convolution) = {
    .product = product,
    .outer = outer,
    .transpose_rows = transpose_rows,
    .spread_rows = spread_rows,
    .gather = gather_pixels,
    .shifted_sums = shifted_sums,
};
