/* Layer normalisation and NoNorm; see kernels/norm/tokens_loops.h. A row is read from memory once and then lies in the L1 cache.
 * Sums run over four vectors side by side, in an order that depends on the number of features alone. */
#include "tokens_loops.h"

#include <math.h>

#include "cython_src/kernels/simd/vectors.h"

#include "cython_src/kernels/elementwise/functions.h"

#define CHAINS     4
#define ROWS_AHEAD 2 /* rows that are fetched into the L2 cache while one is worked on */

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

static void forward(const LayerNormTask *t)
{
    const ptrdiff_t features = t->features;
    for (int row = 0; row < t->rows; row++) {
        const float *x = t->in + row * features;
        float *out = t->out + row * features;
        Vec sum[CHAINS] = {{0}}, squares[CHAINS] = {{0}};
        if (t->residual) {
            const float *residual = t->residual + row * features;
            float *both = t->sum ? t->sum + row * features : out;
            SUM_VECTORS(sum, i, n, features, {
                Vec v = load_some(x + i, n) + load_some(residual + i, n);
                store_some(both + i, v, n);
                sum[chain] += v;
            });
            x = both;
        } else {
            SUM_VECTORS(sum, i, n, features, sum[chain] += load_some(x + i, n));
        }
        const float mean = chains_sum(sum) / features;
        const ptrdiff_t ahead = row + ROWS_AHEAD < t->rows ? (row + ROWS_AHEAD) * features : row * features;
        SUM_VECTORS(squares, i, n, features, {
            Vec d = first_lanes(load_some(x + i, n) - mean, n);
            __builtin_prefetch(t->in + ahead + i, 0, 2);
            if (t->residual)
                __builtin_prefetch(t->residual + ahead + i, 0, 2);
            squares[chain] += d * d;
        });
        const float inv_std = 1 / sqrtf(chains_sum(squares) / features + t->eps);
        FOR_VECTORS(i, n, features, {
            Vec normal = (load_some(x + i, n) - mean) * inv_std;
            store_some(out + i, normal * load_some(t->weight + i, n) + load_some(t->bias + i, n), n);
        });
        t->statistics[2 * row] = mean;
        t->statistics[2 * row + 1] = inv_std;
    }
}

/* With g = gradient * weight and xhat = (in - mean) inv_std: out = inv_std (g - mean(g) - xhat mean(g xhat)). */
static void backward(const LayerNormGradientTask *t)
{
    const ptrdiff_t features = t->features;
    for (int row = 0; row < t->rows; row++) {
        const float *x = t->in + row * features, *dy = t->gradient + row * features;
        const float *residual = t->residual ? t->residual + row * features : NULL;
        const float mean = t->statistics[2 * row], inv_std = t->statistics[2 * row + 1];
        float *out = t->out + row * features;
        Vec sum[CHAINS] = {{0}}, product[CHAINS] = {{0}};
        const int first_row = row == 0;
        SUM_VECTORS(sum, i, n, features, {
            Vec d = load_some(dy + i, n);
            Vec normal = (load_some(x + i, n) - mean) * inv_std;
            Vec g = d * load_some(t->weight + i, n);
            Vec dw = d * normal;
            Vec db = d;
            if (!first_row) {
                dw = load_some(t->weight_gradient + i, n) + dw;
                db = load_some(t->bias_gradient + i, n) + db;
            }
            store_some(t->weight_gradient + i, dw, n);
            store_some(t->bias_gradient + i, db, n);
            sum[chain] += g;
            product[chain] += g * normal;
        });
        const float mean_g = chains_sum(sum) / features, mean_product = chains_sum(product) / features;
        FOR_VECTORS(i, n, features, {
            Vec normal = (load_some(x + i, n) - mean) * inv_std;
            Vec dx = inv_std * (load_some(dy + i, n) * load_some(t->weight + i, n) - mean_g - normal * mean_product);
            if (residual)
                dx += load_some(residual + i, n);
            store_some(out + i, dx, n);
        });
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
