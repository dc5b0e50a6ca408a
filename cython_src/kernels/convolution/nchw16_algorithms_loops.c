/* Algorithms of convolution to compare with, see kernels/convolution/nchw16_algorithms_loops.h. BY_ISA selects vector width and
 * tiles. */
#include "nchw16_algorithms_loops.h"
#include "cython_src/kernels/simd/vectors.h"

#define TILE_R BY_ISA(2, 2, 2, 5) /* output channels in a tile */
#define TILE_X BY_ISA(2, 2, 2, 4) /* pixels in a tile */

INLINE ptrdiff_t weight_at(const ConvTask *t, int c, int tap)
{
    return c * t->w_in + (t->flip ? TAPS - 1 - tap : tap);
}

static void plain(const ConvTask *t, const Extent *exist)
{
    for (int o = 0; o < t->channels_out; o++)
        for (int y = 0; y < t->rows; y++)
            for (int x = 0; x < t->vectors; x++) {
                Vec sum[REGISTERS];
                UNROLL for (int i = 0; i < REGISTERS; i++) sum[i] = splat(t->bias ? t->bias[o] : 0.0f);
                for (int c = 0; c < t->channels_in; c++)
                    for (int ky = 0; ky < KERNEL; ky++)
                        for (int kx = 0; kx < KERNEL; kx++) {
                            if (exist && (y + ky < exist->top || y + ky >= exist->bottom || x + kx < exist->left ||
                                          x + kx >= exist->right))
                                continue;
                            const float *p = t->in + c * t->in_channel + (y + ky) * t->in_row + (x + kx) * LANES;
                            Vec weight = splat(t->w[o * t->w_out + weight_at(t, c, ky * KERNEL + kx)]);
                            UNROLL for (int i = 0; i < REGISTERS; i++) sum[i] += weight * load(p + i * VL);
                        }
                float *to = t->out + o * t->out_channel + y * t->out_row + x * LANES;
                UNROLL for (int i = 0; i < REGISTERS; i++) store(to + i * VL, sum[i]);
            }
}

/* ---- tiles of R channels x N pixels ---- */

INLINE void start_tile(const ConvTask *t, const int R, const int N, int o, Vec sum[TILE_R][TILE_X * REGISTERS])
{
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int i = 0; i < N * REGISTERS; i++) sum[r][i] =
        splat(t->bias ? t->bias[o + r] : 0.0f);
}

INLINE void store_outputs(const ConvTask *t, const int R, const int N, int o, int y, int x,
                          Vec sum[TILE_R][TILE_X * REGISTERS])
{
    float *to = t->out + o * t->out_channel + y * t->out_row + x * LANES;
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int i = 0; i < N * REGISTERS; i++)
        store(to + r * t->out_channel + i * VL, sum[r][i]);
}

INLINE void tested_tile(const ConvTask *t, const Extent *exist, const int R, const int N, int o, int y, int x)
{
    Vec sum[TILE_R][TILE_X * REGISTERS];
    start_tile(t, R, N, o, sum);
    for (int c = 0; c < t->channels_in; c++)
        for (int ky = 0; ky < KERNEL; ky++) {
            if (y + ky < exist->top || y + ky >= exist->bottom)
                continue;
            for (int kx = 0; kx < KERNEL; kx++) {
                const float *w = t->w + o * t->w_out + weight_at(t, c, ky * KERNEL + kx);
                const float *p = t->in + c * t->in_channel + (y + ky) * t->in_row + (x + kx) * LANES;
                UNROLL for (int n = 0; n < N; n++)
                {
                    if (x + n + kx < exist->left || x + n + kx >= exist->right)
                        continue;
                    UNROLL for (int i = 0; i < REGISTERS; i++)
                    {
                        Vec in = load(p + n * LANES + i * VL);
                        UNROLL for (int r = 0; r < R; r++) sum[r][n * REGISTERS + i] += splat(w[r * t->w_out]) * in;
                    }
                }
            }
        }
    store_outputs(t, R, N, o, y, x, sum);
}

typedef void (*TileLoop)(const ConvTask *, const Extent *, int, int, int);
#define TESTED_FORM(R, N)                                                                     \
    static void tested_##R##_##N(const ConvTask *t, const Extent *exist, int o, int y, int x) \
    {                                                                                         \
        tested_tile(t, exist, R, N, o, y, x);                                                 \
    }
#define TESTED_NAME(R, N) tested_##R##_##N,
EACH_TO(TILE_R, TESTED_FORM, 1)
EACH_TO(TILE_R, TESTED_FORM, TILE_X)
static const TileLoop tested_pixel[TILE_R] = {EACH_TO(TILE_R, TESTED_NAME, 1)};
static const TileLoop tested_pixels[TILE_R] = {EACH_TO(TILE_R, TESTED_NAME, TILE_X)};

static void tested(const ConvTask *t, const Extent *exist)
{
    for (int o = 0, r; o < t->channels_out; o += r) {
        r = smaller(t->channels_out - o, TILE_R);
        for (int y = 0; y < t->rows; y++) {
            int x = 0;
            for (; x + TILE_X <= t->vectors; x += TILE_X)
                tested_pixels[r - 1](t, exist, o, y, x);
            for (; x < t->vectors; x++)
                tested_pixel[r - 1](t, exist, o, y, x);
        }
    }
}

/* ---- weight gradient ---- */

static void gradient_plain(const WeightGradientTask *t, const Extent *exist)
{
    for (int o = 0; o < t->channels_out; o++)
        for (int c = 0; c < t->channels_in; c++)
            for (int ky = 0; ky < KERNEL; ky++)
                for (int kx = 0; kx < KERNEL; kx++) {
                    Vec sum = {0};
                    for (int y = 0; y < t->rows; y++)
                        for (int x = 0; x < t->vectors; x++) {
                            if (exist && (y + ky < exist->top || y + ky >= exist->bottom || x + kx < exist->left ||
                                          x + kx >= exist->right))
                                continue;
                            const float *d = t->dy + o * t->dy_channel + y * t->dy_row + x * LANES;
                            const float *p = t->x + c * t->x_channel + (y + ky) * t->x_row + (x + kx) * LANES;
                            UNROLL for (int i = 0; i < REGISTERS; i++) sum += load(d + i * VL) * load(p + i * VL);
                        }
                    float *to = t->out + o * t->out_channel + c * TAPS + ky * KERNEL + kx, s = lane_sum(sum);
                    *to = t->accumulate ? *to + s : s;
                }
}

#define TESTED_SUMS (TILE_R * KERNEL)

/* R channels x one kernel row. */
INLINE void tested_gradient_tile(const WeightGradientTask *t, const Extent *exist, const int R, int ky, const float *dy,
                                 const float *x, float *out)
{
    Vec sum[TILE_R][KERNEL];
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int k = 0; k < KERNEL; k++) sum[r][k] = (Vec){0};
    for (int row = 0; row < t->rows; row++) {
        if (row + ky < exist->top || row + ky >= exist->bottom)
            continue;
        for (int column = 0; column < t->vectors; column++)
            UNROLL for (int i = 0; i < REGISTERS; i++)
            {
                const float *d = dy + row * t->dy_row + column * LANES + i * VL;
                const float *p = x + row * t->x_row + column * LANES + i * VL;
                Vec v[TILE_R];
                UNROLL for (int r = 0; r < R; r++) v[r] = load(d + r * t->dy_channel);
                UNROLL for (int k = 0; k < KERNEL; k++)
                {
                    if (column + k < exist->left || column + k >= exist->right)
                        continue;
                    Vec in = load(p + k * LANES);
                    UNROLL for (int r = 0; r < R; r++) sum[r][k] += v[r] * in;
                }
            }
    }
    float sums[(TESTED_SUMS + VL - 1) / VL * VL];
    Vec *flat = &sum[0][0];
    UNROLL for (int i = 0; i < R * KERNEL; i += VL)
        store(sums + i, lane_sums(flat + i, R * KERNEL - i < VL ? R * KERNEL - i : VL));
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int k = 0; k < KERNEL; k++)
    {
        float *to = out + r * t->out_channel + k;
        *to = t->accumulate ? *to + sums[r * KERNEL + k] : sums[r * KERNEL + k];
    }
}

#define TESTED_GRADIENT(R, _)                                                                                  \
    static void tested_gradient_##R(const WeightGradientTask *t, const Extent *exist, int ky, const float *dy, \
                                    const float *x, float *out)                                                \
    {                                                                                                          \
        tested_gradient_tile(t, exist, R, ky, dy, x, out);                                                     \
    }
#define TESTED_GRADIENT_NAME(R, _) tested_gradient_##R,
EACH_TO(TILE_R, TESTED_GRADIENT, _)

static void gradient_tested(const WeightGradientTask *t, const Extent *exist)
{
    static void (*const tiles[])(const WeightGradientTask *, const Extent *, int, const float *, const float *,
                                 float *) = {EACH_TO(TILE_R, TESTED_GRADIENT_NAME, _)};
    for (int o = 0, r; o < t->channels_out; o += r) {
        r = smaller(t->channels_out - o, TILE_R);
        for (int c = 0; c < t->channels_in; c++)
            for (int ky = 0; ky < KERNEL; ky++)
                tiles[r - 1](t, exist, ky, t->dy + o * t->dy_channel, t->x + c * t->x_channel + ky * t->x_row,
                             t->out + o * t->out_channel + c * TAPS + ky * KERNEL);
    }
}

const Nchw16AlgorithmsLoops ISA_SYMBOL(forktask_nchw16_algorithms) = {
    .plain = plain,
    .tested = tested,
    .gradient_plain = gradient_plain,
    .gradient_tested = gradient_tested,
};
