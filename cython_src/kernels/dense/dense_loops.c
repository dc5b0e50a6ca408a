/* Inner loops of fully connected layers, see kernels/dense/dense_loops.h. Compiled once per instruction set. */
#include "dense_loops.h"
#include "cython_src/kernels/maps/nchw_sums.h"
#include "cython_src/kernels/simd/vectors.h"

#include <string.h>

/* Outputs, or features of the data gradient, that are summed at a time in the layout "nchw16", in registers. */
#define FC_R BY_ISA(1, 3, 3, 5)

/* R outputs; even and odd features in sums of their own. */
INLINE void fc_forward_tile(const float *x, const float *w, const float *bias, float *out, int features, const int R)
{
    Vec sum[2][FC_R][REGISTERS];
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int i = 0; i < REGISTERS; i++) sum[0][r][i] = splat(bias[r]),
                                                                                  sum[1][r][i] = (Vec){0};
    int f = 0;
    for (; f + 2 <= features; f += 2)
        UNROLL for (int h = 0; h < 2; h++) UNROLL for (int r = 0; r < R; r++) UNROLL for (int i = 0; i < REGISTERS; i++)
            sum[h][r][i] += w[(ptrdiff_t)r * features + f + h] * load(x + (ptrdiff_t)(f + h) * LANES + i * VL);
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int i = 0; i < REGISTERS; i++)
    {
        if (f < features)
            sum[0][r][i] += w[(ptrdiff_t)r * features + f] * load(x + (ptrdiff_t)f * LANES + i * VL);
        store(out + r * LANES + i * VL, sum[0][r][i] + sum[1][r][i]);
    }
}

static void fc_forward(const float *x, const float *w, const float *bias, float *logits, int features, int outputs,
                       int lanes)
{
    int o = 0;
    if (lanes != 1) {
        for (; o + FC_R <= outputs; o += FC_R)
            fc_forward_tile(x, w + (ptrdiff_t)o * features, bias + o, logits + o * LANES, features, FC_R);
        for (; o < outputs; o++)
            fc_forward_tile(x, w + (ptrdiff_t)o * features, bias + o, logits + o * LANES, features, 1);
    }
    for (; o < outputs; o++) {
        const float *row = w + (ptrdiff_t)o * features;
        Vec sum[4] = {0};
        float rest = 0;
        int f = 0;
        for (; f + 4 * VL <= features; f += 4 * VL)
            UNROLL for (int i = 0; i < 4; i++) sum[i] += load(row + f + i * VL) * load(x + f + i * VL);
        for (; f < features; f++)
            rest += row[f] * x[f];
        logits[o] = bias[o] + (lane_sum((sum[0] + sum[1]) + (sum[2] + sum[3])) + rest);
    }
}

INLINE void fc_data_tile(const float *d, const float *w, float *dx, int features, int outputs, const int R)
{
    Vec sum[2 * FC_R][REGISTERS];
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int i = 0; i < REGISTERS; i++) sum[r][i] = (Vec){0};
    for (int o = 0; o < outputs; o++)
        UNROLL for (int r = 0; r < R; r++) UNROLL for (int i = 0; i < REGISTERS; i++) sum[r][i] +=
            w[(ptrdiff_t)o * features + r] * load(d + o * LANES + i * VL);
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int i = 0; i < REGISTERS; i++)
        store(dx + r * LANES + i * VL, sum[r][i]);
}

static void fc_backward_data(const float *dlogits, const float *w, float *dx, int features, int outputs, int lanes)
{
    if (lanes == 1) {
        for (int f = 0; f < features; f++)
            dx[f] = 0;
        for (int o = 0; o < outputs; o++)
            for (int f = 0; f < features; f++)
                dx[f] += dlogits[o] * w[(ptrdiff_t)o * features + f];
        return;
    }
    int f = 0;
    for (; f + 2 * FC_R <= features; f += 2 * FC_R)
        fc_data_tile(dlogits, w + f, dx + (ptrdiff_t)f * LANES, features, outputs, 2 * FC_R);
    for (; f < features; f++)
        fc_data_tile(dlogits, w + f, dx + (ptrdiff_t)f * LANES, features, outputs, 1);
}

/* Lanes: sixteen features at a time are transposed, so that they stand in the lanes and the gradient of each image
 * is a factor: nothing is summed across lanes. */
static void fc_weights_lanes(const float *dlogits, const float *x, float *out, int groups, int features, int outputs,
                             int accumulate)
{
    const ptrdiff_t row = features + 1;
    for (int f = 0; f < features; f += LANES) {
        const int n = features - f < LANES ? features - f : LANES;
        for (int g = 0; g < groups; g++) {
            float turned[LANES * LANES], sums[REDUCE_R * LANES];
            transpose_lanes(x + ((ptrdiff_t)g * features + f) * LANES, LANES, n, turned, LANES);
            for (int o = 0, r; o < outputs; o += r) {
                NchwReduction t = {.a_row = LANES, .out_row = row, .length = LANES, .accumulate = g > 0 || accumulate};
                r = outputs - o < REDUCE_R ? outputs - o : REDUCE_R;
                const float *d = dlogits + ((ptrdiff_t)g * outputs + o) * LANES;
                float *to = out + o * row + f;
                if (n == LANES) {
                    reduce_tiles[r - 1](&t, d, turned, to);
                    continue;
                }
                t.out_row = LANES;
                memset(sums, 0, sizeof sums);
                for (int i = 0; i < r; i++)
                    for (int k = 0; k < n; k++)
                        sums[i * LANES + k] = to[i * row + k];
                reduce_tiles[r - 1](&t, d, turned, sums);
                for (int i = 0; i < r; i++)
                    for (int k = 0; k < n; k++)
                        to[i * row + k] = sums[i * LANES + k];
            }
        }
    }
    for (int o = 0; o < outputs; o++) {
        float *to = out + o * row + features, sum = accumulate ? *to : 0;
        for (int g = 0; g < groups; g++)
            sum += sum_of_rows(dlogits + ((ptrdiff_t)g * outputs + o) * LANES, 1, 0, LANES);
        *to = sum;
    }
}

static void fc_backward_weights(const float *dlogits, const float *x, float *out, int groups, int features, int outputs,
                                int lanes, int accumulate)
{
    if (lanes != 1) {
        fc_weights_lanes(dlogits, x, out, groups, features, outputs, accumulate);
        return;
    }
    for (int o = 0; o < outputs; o++) {
        float *row = out + (ptrdiff_t)o * (features + 1);
        if (!accumulate)
            memset(row, 0, (features + 1) * sizeof(float));
        for (int g = 0; g < groups; g++) {
            const float d = dlogits[(ptrdiff_t)g * outputs + o], *in = x + (ptrdiff_t)g * features;
            FOR_VECTORS(f, n, features, store_some(row + f, load_some(row + f, n) + d * load_some(in + f, n), n));
            row[features] += d;
        }
    }
}

const DenseLoops ISA_SYMBOL(forktask_dense) = {
    .forward = fc_forward,
    .backward_data = fc_backward_data,
    .backward_weights = fc_backward_weights,
};
