/* Layer normalisation and NoNorm; see kernels/norm/tokens_loops.h. A row is read from memory once and then lies in the L1 cache.
 * Sums run over four vectors side by side, in an order that depends on the number of features alone. */
#include "tokens_loops.h"

#include <math.h>

#include "cython_src/kernels/simd/vectors.h"

#include "cython_src/kernels/elementwise/functions.h"

#define CHAINS        4
#define LINE          16 /* floats */
#define ROWS_TOGETHER 4  /* the next ones are fetched into the L2 cache while these are worked on */

/* STATEMENT adds to sum[chain] for each vector of a row; the row's sum is in sum[0] afterwards. */
#define SUM_VECTORS(sum, i, n, length, STATEMENT)                     \
    do {                                                              \
        ptrdiff_t first = 0;                                          \
        for (; first + CHAINS * VL <= (length); first += CHAINS * VL) \
            UNROLL for (int chain = 0; chain < CHAINS; chain++)       \
            {                                                         \
                const ptrdiff_t i = first + chain * VL;               \
                const int n = VL;                                     \
                STATEMENT;                                            \
            }                                                         \
        const int chain = 0;                                          \
        for (; first + VL <= (length); first += VL) {                 \
            const ptrdiff_t i = first;                                \
            const int n = VL;                                         \
            STATEMENT;                                                \
        }                                                             \
        if (first < (length)) {                                       \
            const ptrdiff_t i = first;                                \
            const int n = (int)((length) - first);                    \
            STATEMENT;                                                \
        }                                                             \
    } while (0)

INLINE float chains_sum(const Vec *sum)
{
    return lane_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

/* Rows [row, row + count) of the result. Weights and biases are loaded once for all of them. */
INLINE void forward_rows(const int count, const LayerNormTask *t, int row)
{
    const ptrdiff_t features = t->features;
    const float *x[ROWS_TOGETHER];
    float mean[ROWS_TOGETHER], inv_std[ROWS_TOGETHER];
    for (ptrdiff_t i = 0; i < count * features; i += LINE) /* fetched while the sums are made, to be written later */
        __builtin_prefetch(t->out + row * features + i, 1, 3);
    UNROLL for (int r = 0; r < count; r++)
    {
        const ptrdiff_t start = (row + r) * features;
        Vec sum[CHAINS] = {{0}};
        x[r] = t->in + start;
        if (t->residual) {
            const float *residual = t->residual + start;
            float *both = t->sum ? t->sum + start : t->out + start;
            SUM_VECTORS(sum, i, n, features, {
                Vec v = load_some(x[r] + i, n) + load_some(residual + i, n);
                store_some(both + i, v, n);
                sum[chain] += v;
            });
            x[r] = both;
        } else {
            SUM_VECTORS(sum, i, n, features, sum[chain] += load_some(x[r] + i, n));
        }
        mean[r] = chains_sum(sum) / features;
    }
    UNROLL for (int r = 0; r < count; r++)
    {
        const ptrdiff_t ahead = (row + r + ROWS_TOGETHER < t->rows ? row + r + ROWS_TOGETHER : row + r) * features;
        Vec squares[CHAINS] = {{0}};
        SUM_VECTORS(squares, i, n, features, {
            Vec d = first_lanes(load_some(x[r] + i, n) - mean[r], n);
            __builtin_prefetch(t->in + ahead + i, 0, 2);
            if (t->residual)
                __builtin_prefetch(t->residual + ahead + i, 0, 2);
            squares[chain] += d * d;
        });
        inv_std[r] = 1 / sqrtf(chains_sum(squares) / features + t->eps);
    }
    UNROLL for (int r = 0; r < count; r++)
    {
        t->statistics[2 * (row + r)] = mean[r];
        t->statistics[2 * (row + r) + 1] = inv_std[r];
    }
    float *out = t->out + row * features;
    FOR_VECTORS(i, n, features, {
        Vec weight = load_some(t->weight + i, n);
        Vec bias = load_some(t->bias + i, n);
        UNROLL for (int r = 0; r < count; r++)
        {
            Vec normal = (load_some(x[r] + i, n) - mean[r]) * inv_std[r];
            store_some(out + r * features + i, normal * weight + bias, n);
        }
    });
}

static void forward(const LayerNormTask *t)
{
    int row = 0;
    for (; row + ROWS_TOGETHER <= t->rows; row += ROWS_TOGETHER)
        forward_rows(ROWS_TOGETHER, t, row);
    for (; row < t->rows; row++)
        forward_rows(1, t, row);
}

/* Rows [row, row + count) of `backward`; is_first: nothing is stored yet. The gradients of weight and bias gain the rows one after the other, and are
 * loaded and stored once for all of them. */
INLINE void backward_rows(const int count, const int is_first, const LayerNormGradientTask *t, int row)
{
    const ptrdiff_t features = t->features, start = row * features;
    const float *x = t->in + start, *dy = t->gradient + start;
    const float *residual = t->residual ? t->residual + start : NULL;
    float *out = t->out + start;
    float mean[ROWS_TOGETHER], inv_std[ROWS_TOGETHER], mean_g[ROWS_TOGETHER], mean_product[ROWS_TOGETHER];
    const ptrdiff_t ahead = row + 2 * count <= t->rows ? count * features : 0;
    Vec sum[ROWS_TOGETHER][CHAINS] = {{{0}}}, product[ROWS_TOGETHER][CHAINS] = {{{0}}};
    UNROLL for (int r = 0; r < count; r++)
    {
        mean[r] = t->statistics[2 * (row + r)];
        inv_std[r] = t->statistics[2 * (row + r) + 1];
    }
    SUM_VECTORS(sum, i, n, features, {
        Vec weight = load_some(t->weight + i, n);
        Vec dw = {0};
        Vec db = {0};
        if (!is_first) {
            dw = load_some(t->weight_gradient + i, n);
            db = load_some(t->bias_gradient + i, n);
        }
        UNROLL for (int r = 0; r < count; r++)
        {
            Vec d = load_some(dy + r * features + i, n);
            __builtin_prefetch(out + r * features + i, 1, 3);
            if (residual)
                __builtin_prefetch(residual + r * features + i, 0, 2);
            Vec normal = (load_some(x + r * features + i, n) - mean[r]) * inv_std[r];
            Vec g = d * weight;
            if (is_first && r == 0) {
                dw = d * normal;
                db = d;
            } else {
                dw += d * normal;
                db += d;
            }
            sum[r][chain] += g;
            product[r][chain] += g * normal;
        }
        store_some(t->weight_gradient + i, dw, n);
        store_some(t->bias_gradient + i, db, n);
    });
    UNROLL for (int r = 0; r < count; r++)
    {
        mean_g[r] = chains_sum(sum[r]) / features;
        mean_product[r] = chains_sum(product[r]) / features;
    }
    FOR_VECTORS(i, n, features, {
        Vec weight = load_some(t->weight + i, n);
        UNROLL for (int r = 0; r < count; r++)
        {
            const ptrdiff_t at = r * features + i;
            __builtin_prefetch(x + ahead + at, 0, 2);
            __builtin_prefetch(dy + ahead + at, 0, 2);
            Vec normal = (load_some(x + at, n) - mean[r]) * inv_std[r];
            Vec dx = inv_std[r] * (load_some(dy + at, n) * weight - mean_g[r] - normal * mean_product[r]);
            if (residual)
                dx += load_some(residual + at, n);
            store_some(out + at, dx, n);
        }
    });
}

/* With g = gradient * weight and xhat = (in - mean) inv_std: out = inv_std (g - mean(g) - xhat mean(g xhat)). */
static void backward(const LayerNormGradientTask *t)
{
    int row = 0;
    if (t->rows >= ROWS_TOGETHER) {
        backward_rows(ROWS_TOGETHER, 1, t, 0);
        row = ROWS_TOGETHER;
    }
    for (; row + ROWS_TOGETHER <= t->rows; row += ROWS_TOGETHER)
        backward_rows(ROWS_TOGETHER, 0, t, row);
    for (; row < t->rows; row++) {
        if (row)
            backward_rows(1, 0, t, row);
        else
            backward_rows(1, 1, t, row);
    }
}

static void no_norm_forward(const LayerNormTask *t)
{
    const ptrdiff_t features = t->features;
    for (int row = 0; row < t->rows; row++) {
        const ptrdiff_t start = row * features;
        FOR_VECTORS(i, n, features, {
            Vec x = load_some(t->in + start + i, n);
            if (t->residual)
                x += load_some(t->residual + start + i, n);
            if (t->sum)
                store_some(t->sum + start + i, x, n);
            store_some(t->out + start + i, x * load_some(t->weight + i, n) + load_some(t->bias + i, n), n);
        });
    }
}

static void no_norm_backward(const LayerNormGradientTask *t)
{
    const ptrdiff_t features = t->features;
    for (int row = 0; row < t->rows; row++) {
        const ptrdiff_t start = row * features;
        const int first_row = row == 0;
        FOR_VECTORS(i, n, features, {
            Vec d = load_some(t->gradient + start + i, n);
            Vec dw = d * load_some(t->in + start + i, n);
            Vec db = d;
            Vec dx = d * load_some(t->weight + i, n);
            if (!first_row) {
                dw = load_some(t->weight_gradient + i, n) + dw;
                db = load_some(t->bias_gradient + i, n) + db;
            }
            store_some(t->weight_gradient + i, dw, n);
            store_some(t->bias_gradient + i, db, n);
            if (t->residual)
                dx += load_some(t->residual + start + i, n);
            store_some(t->out + start + i, dx, n);
        });
    }
}

const LayerNormLoops ISA_SYMBOL(forktask_layernorm) = {
    .forward = forward,
    .backward = backward,
    .no_norm_forward = no_norm_forward,
    .no_norm_backward = no_norm_backward,
};
