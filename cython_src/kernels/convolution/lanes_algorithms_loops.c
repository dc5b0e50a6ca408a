/* Algorithms of convolution to compare with, see kernels/convolution/lanes_algorithms_loops.h. MICRO_ISA selects vector width and tiles. */
#include "lanes_algorithms_loops.h"
#include "cython_src/kernels/simd/vectors.h"

#if MICRO_ISA == AVX512
#define TILE_R 5 /* output channels in a tile */
#define TILE_X 4 /* pixels in a tile */
#else
#define TILE_R 2
#define TILE_X 2
#endif

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

INLINE void taps_product_tile(const ConvTask *t, const Extent *unused, const int R, const int N, int o, int y, int x)
{
    Vec sum[TILE_R][TILE_X * REGISTERS];
    start_tile(t, R, N, o, sum);
    const ptrdiff_t tap_size = t->in_channel / TAPS;
    for (int c = 0; c < t->channels_in; c++)
        for (int tap = 0; tap < TAPS; tap++) {
            const float *w = t->w + o * t->w_out + weight_at(t, c, tap);
            const float *p = t->in + c * t->in_channel + tap * tap_size + y * t->in_row + x * LANES;
            Vec in[TILE_X * REGISTERS];
            UNROLL for (int i = 0; i < N * REGISTERS; i++) in[i] = load(p + i * VL);
            UNROLL for (int r = 0; r < R; r++)
            {
                Vec weight = splat(w[r * t->w_out]);
                UNROLL for (int i = 0; i < N * REGISTERS; i++) sum[r][i] += weight * in[i];
            }
        }
    store_outputs(t, R, N, o, y, x, sum);
}

typedef void (*TileLoop)(const ConvTask *, const Extent *, int, int, int);
#define LANES_TILE_OF(KIND, R, N)                                                             \
    static void KIND##_##R##_##N(const ConvTask *t, const Extent *exist, int o, int y, int x) \
    {                                                                                         \
        KIND##_tile(t, exist, R, N, o, y, x);                                                 \
    }
#if TILE_R == 5
#define TABLE(KIND, N)      {KIND##_1_##N, KIND##_2_##N, KIND##_3_##N, KIND##_4_##N, KIND##_5_##N}
#define MORE_TILES(KIND, N) LANES_TILE_OF(KIND, 3, N) LANES_TILE_OF(KIND, 4, N) LANES_TILE_OF(KIND, 5, N)
#else
#define TABLE(KIND, N) {KIND##_1_##N, KIND##_2_##N}
#define MORE_TILES(KIND, N)
#endif
#define LANES_TILES_OF(KIND, N) \
    LANES_TILE_OF(KIND, 1, N)   \
    LANES_TILE_OF(KIND, 2, N)   \
    MORE_TILES(KIND, N)         \
    static const TileLoop KIND##_tiles_##N[TILE_R] = TABLE(KIND, N);
LANES_TILES_OF(tested, 1)
LANES_TILES_OF(taps_product, 1)
#if TILE_X == 4
LANES_TILES_OF(tested, 4)
LANES_TILES_OF(taps_product, 4)
#define WIDE_TILES_OF(KIND) KIND##_tiles_4
#else
LANES_TILES_OF(tested, 2)
LANES_TILES_OF(taps_product, 2)
#define WIDE_TILES_OF(KIND) KIND##_tiles_2
#endif

static void run_tiles(const ConvTask *t, const Extent *exist, const TileLoop *wide, const TileLoop *narrow)
{
    for (int o = 0, r; o < t->channels_out; o += r) {
        r = t->channels_out - o < TILE_R ? t->channels_out - o : TILE_R;
        for (int y = 0; y < t->rows; y++) {
            int x = 0;
            for (; x + TILE_X <= t->vectors; x += TILE_X)
                wide[r - 1](t, exist, o, y, x);
            for (; x < t->vectors; x++)
                narrow[r - 1](t, exist, o, y, x);
        }
    }
}

static void tested(const ConvTask *t, const Extent *exist)
{
    run_tiles(t, exist, WIDE_TILES_OF(tested), tested_tiles_1);
}

static void taps_product(const ConvTask *t)
{
    run_tiles(t, NULL, WIDE_TILES_OF(taps_product), taps_product_tiles_1);
}

static void copy_taps(const float *in, ptrdiff_t in_channel, ptrdiff_t in_row, int channels, int rows, int columns,
                      float *out)
{
    for (int c = 0; c < channels; c++)
        for (int ky = 0; ky < KERNEL; ky++)
            for (int kx = 0; kx < KERNEL; kx++)
                for (int y = 0; y < rows; y++) {
                    const float *p = in + c * in_channel + (y + ky) * in_row + kx * LANES;
                    for (int i = 0; i < columns * LANES; i += VL, out += VL)
                        store(out, load(p + i));
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

/* R channels x one kernel row. Taps of copied inputs are `tap` floats apart, else a pixel. */
INLINE void tested_gradient_tile(const WeightGradientTask *t, const Extent *exist, const int R, ptrdiff_t tap, int ky,
                                 const float *dy, const float *x, float *out)
{
    Vec sum[TILE_R][KERNEL];
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int k = 0; k < KERNEL; k++) sum[r][k] = (Vec){0};
    for (int row = 0; row < t->rows; row++) {
        if (exist && (row + ky < exist->top || row + ky >= exist->bottom))
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
                    if (exist && (column + k < exist->left || column + k >= exist->right))
                        continue;
                    Vec in = load(p + k * tap);
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

INLINE void run_gradient(const WeightGradientTask *t, const Extent *exist, const int copied)
{
    const ptrdiff_t tap = copied ? t->x_channel / TAPS : LANES, ky_size = copied ? KERNEL * tap : t->x_row;
    for (int o = 0, r; o < t->channels_out; o += r) {
        r = t->channels_out - o < TILE_R ? t->channels_out - o : TILE_R;
        const float *dy = t->dy + o * t->dy_channel;
        for (int c = 0; c < t->channels_in; c++)
            for (int ky = 0; ky < KERNEL; ky++) {
                const float *x = t->x + c * t->x_channel + ky * ky_size;
                float *out = t->out + o * t->out_channel + c * TAPS + ky * KERNEL;
                switch (r) {
                case 1:
                    tested_gradient_tile(t, exist, 1, tap, ky, dy, x, out);
                    break;
                case 2:
                    tested_gradient_tile(t, exist, 2, tap, ky, dy, x, out);
                    break;
#if TILE_R == 5
                case 3:
                    tested_gradient_tile(t, exist, 3, tap, ky, dy, x, out);
                    break;
                case 4:
                    tested_gradient_tile(t, exist, 4, tap, ky, dy, x, out);
                    break;
                case 5:
                    tested_gradient_tile(t, exist, 5, tap, ky, dy, x, out);
                    break;
#endif
                }
            }
    }
}

static void gradient_tested(const WeightGradientTask *t, const Extent *exist)
{
    run_gradient(t, exist, 0);
}

static void gradient_product(const WeightGradientTask *t)
{
    run_gradient(t, NULL, 1);
}

const LanesAlgorithmsLoops ISA_SYMBOL(forktask_lanes_algorithms) = {
    .plain = plain,
    .tested = tested,
    .copy_taps = copy_taps,
    .product = taps_product,
    .gradient_plain = gradient_plain,
    .gradient_tested = gradient_tested,
    .gradient_product = gradient_product,
};
