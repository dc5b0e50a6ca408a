/* Layer normalisation and NoNorm; see kernels/norm/rows_loops.h. A row is read from memory once and then lies in the L1 cache.
 * Sums run over four vectors side by side, in an order that depends on the number of features alone. Rows are worked on one after the
 * other: several in turns would share weights, but stores to several rows in turns wait for memory longer than that saves. */
#include "rows_loops.h"

#include <math.h>

#include "cython_src/kernels/simd/vectors.h"

/* Floats from what is read, or written, to what is fetched then: measured, see docs/notes/tokens_kernels.md. */
#define READ_AHEAD  32
#define WRITE_AHEAD 64

static void layernorm_forward(const LayerNormTask *t)
{
    const ptrdiff_t features = t->features;
    for (int row = 0; row < t->rows; row++) {
        const ptrdiff_t start = row * features;
        const float *x = t->in + start;
        float *out = t->out + start;
        Vec sum[CHAINS] = {{0}}, squares[CHAINS] = {{0}};
        if (t->residual) {
            const float *residual = t->residual + start;
            float *both = t->sum ? t->sum + start : out;
            SUM_VECTORS(sum, i, n, features, {
                __builtin_prefetch(x + i + READ_AHEAD);
                __builtin_prefetch(residual + i + READ_AHEAD);
                __builtin_prefetch(both + i + WRITE_AHEAD, 1);
                Vec v = load_some(x + i, n) + load_some(residual + i, n);
                store_some(both + i, v, n);
                sum[chain] += v;
            });
            x = both;
        } else {
            SUM_VECTORS(sum, i, n, features, {
                __builtin_prefetch(x + i + READ_AHEAD);
                sum[chain] += load_some(x + i, n);
            });
        }
        const float mean = chains_sum(sum) / features;
        SUM_VECTORS(squares, i, n, features, {
            Vec d = first_lanes(load_some(x + i, n) - mean, n);
            squares[chain] += d * d;
        });
        const float inv_std = 1 / sqrtf(chains_sum(squares) / features + t->eps);
        t->statistics[2 * row] = mean;
        t->statistics[2 * row + 1] = inv_std;
        FOR_VECTORS(i, n, features, {
            __builtin_prefetch(out + i + WRITE_AHEAD, 1);
            Vec normal = (load_some(x + i, n) - mean) * inv_std;
            store_some(out + i, normal * load_some(t->weight + i, n) + load_some(t->bias + i, n), n);
        });
    }
}

/* With g = gradient * weight and xhat = (in - mean) inv_std: out = inv_std (g - mean(g) - xhat mean(g xhat)). The gradients of weight
 * and bias gain the rows one after the other; is_first: nothing is stored there yet.
 * The flags are constants, so that the compiler joins multiplications and additions alike in all rows. */
INLINE void backward_row(const int is_first, const int has_residual, const LayerNormGradientTask *t, int row)
{
    const ptrdiff_t features = t->features, start = row * features;
    const float *x = t->in + start, *dy = t->gradient + start;
    const float *residual = has_residual ? t->residual + start : NULL;
    float *out = t->out + start;
    const float mean = t->statistics[2 * row], inv_std = t->statistics[2 * row + 1];
    Vec sum[CHAINS] = {{0}}, product[CHAINS] = {{0}};
    SUM_VECTORS(sum, i, n, features, {
        __builtin_prefetch(x + i + READ_AHEAD);
        __builtin_prefetch(dy + i + READ_AHEAD);
        Vec d = load_some(dy + i, n);
        Vec normal = (load_some(x + i, n) - mean) * inv_std;
        Vec g = d * load_some(t->weight + i, n);
        Vec dw = {0};
        Vec db = {0};
        if (is_first) {
            dw = d * normal;
            db = d;
        } else {
            dw = load_some(t->weight_gradient + i, n) + d * normal;
            db = load_some(t->bias_gradient + i, n) + d;
        }
        store_some(t->weight_gradient + i, dw, n);
        store_some(t->bias_gradient + i, db, n);
        sum[chain] += g;
        product[chain] += g * normal;
    });
    const float mean_g = chains_sum(sum) / features, mean_product = chains_sum(product) / features;
    FOR_VECTORS(i, n, features, {
        __builtin_prefetch(out + i + WRITE_AHEAD, 1);
        if (has_residual)
            __builtin_prefetch(residual + i + READ_AHEAD);
        Vec normal = (load_some(x + i, n) - mean) * inv_std;
        Vec dx = inv_std * (load_some(dy + i, n) * load_some(t->weight + i, n) - mean_g - normal * mean_product);
        if (has_residual)
            dx += load_some(residual + i, n);
        store_some(out + i, dx, n);
    });
}

INLINE void backward_rows(const int has_residual, const LayerNormGradientTask *t)
{
    backward_row(1, has_residual, t, 0);
    for (int row = 1; row < t->rows; row++)
        backward_row(0, has_residual, t, row);
}

static void layernorm_backward(const LayerNormGradientTask *t)
{
    if (t->residual)
        backward_rows(1, t);
    else
        backward_rows(0, t);
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
    .forward = layernorm_forward,
    .backward = layernorm_backward,
    .no_norm_forward = no_norm_forward,
    .no_norm_backward = no_norm_backward,
};
