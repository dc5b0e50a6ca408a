/* Inner loops of convolutions, see kernels/convolution/nchw_loops.h. Compiled once per instruction set; BY_ISA selects
 * vector width and tiles. */
#include "nchw_loops.h"
#include "cython_src/kernels/simd/vectors.h"

#define MAX_R  BY_ISA(2, 5, 5, 5) /* output channels in a tile; with sixteen registers 2 x 4 accumulators */
#define GRAD_R BY_ISA(2, 4, 2, 5) /* output channels in a tile of the weight gradient, each with five accumulators */

/* ---- convolution: one tile of R channels x VY rows x VX vectors, all constants after inlining ---- */

INLINE void conv_tile(const ConvTask *t, const int R, const int VY, const int VX, const int pixel, const int flip,
                      const float *in, const float *w, const float *bias, float *out)
{
    Vec acc[MAX_R][8];
    const int V = VY * VX * REGISTERS;
    UNROLL for (int r = 0; r < R; r++)
    {
        Vec start = splat(bias ? bias[r] : 0.0f);
        UNROLL for (int v = 0; v < V; v++) acc[r][v] = start;
    }
    const ptrdiff_t in_row = t->in_row, w_out = t->w_out;
    for (int c = 0; c < t->channels_in; c++) {
        const float *row = in, *taps[MAX_R];
        UNROLL for (int r = 0; r < R; r++) taps[r] = w + r * w_out + (flip ? TAPS - 1 : 0);
        for (int ky = 0; ky < KERNEL; ky++) {
            UNROLL for (int kx = 0; kx < KERNEL; kx++)
            {
                Vec x[8];
                UNROLL for (int vy = 0; vy < VY; vy++) UNROLL for (int vx = 0; vx < VX * REGISTERS; vx++)
                    x[vy * VX * REGISTERS + vx] = load(row + vy * in_row + vx * VL + kx * pixel);
                UNROLL for (int r = 0; r < R; r++)
                {
                    Vec weight = splat(taps[r][flip ? -kx : kx]);
                    UNROLL for (int v = 0; v < V; v++) acc[r][v] += weight * x[v];
                }
            }
            row += in_row;
            UNROLL for (int r = 0; r < R; r++) taps[r] += flip ? -KERNEL : KERNEL;
        }
        in += t->in_channel;
        w += t->w_in;
    }
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int vy = 0; vy < VY; vy++)
        UNROLL for (int vx = 0; vx < VX * REGISTERS; vx++)
            store(out + r * t->out_channel + vy * t->out_row + vx * VL, acc[r][vy * VX * REGISTERS + vx]);
}

typedef void (*ConvTile)(const ConvTask *, const float *, const float *, const float *, float *);

#define CONV_INSTANCE(R, VY, VX, PIXEL, FLIP)                                                                 \
    static void conv_##R##_##VY##_##VX##_##PIXEL##_##FLIP(const ConvTask *t, const float *in, const float *w, \
                                                          const float *bias, float *out)                      \
    {                                                                                                         \
        conv_tile(t, R, VY, VX, PIXEL, FLIP, in, w, bias, out);                                               \
    }
#define CONV_NAME(R, VY, VX, PIXEL, FLIP) conv_##R##_##VY##_##VX##_##PIXEL##_##FLIP,
#define CONV_INSTANCES(VY, VX, PIXEL, FLIP)                                    \
    EACH_TO(MAX_R, CONV_INSTANCE, VY, VX, PIXEL, FLIP)                         \
    static const ConvTile conv_tiles_##VY##_##VX##_##PIXEL##_##FLIP[MAX_R] = { \
        EACH_TO(MAX_R, CONV_NAME, VY, VX, PIXEL, FLIP)};
#define CONV_SHAPE(VY, VX)        \
    CONV_INSTANCES(VY, VX, 16, 0) \
    CONV_INSTANCES(VY, VX, 16, 1) \
    CONV_INSTANCES(VY, VX, 1, 0)  \
    CONV_INSTANCES(VY, VX, 1, 1)

/* A tile for a rest of `rows` x `vectors`: SHAPE(when, rows that it covers, vectors). 32 wide registers hold 5 x 5
 * accumulators, inputs and a weight. */
#define WIDE_SHAPES(SHAPE)                     \
    SHAPE(vectors == 5 || vectors == 10, 1, 5) \
    SHAPE(vectors >= 4, 1, 4)                  \
    SHAPE(vectors >= 2 && rows >= 2, 2, 2)     \
    SHAPE(vectors >= 2, 1, 2)                  \
    SHAPE(rows >= 4, 4, 1)                     \
    SHAPE(rows >= 2, 2, 1)                     \
    SHAPE(1, 1, 1)
#define ONE_SHAPE(SHAPE)           SHAPE(1, 1, 1)
#define SHAPES                     BY_ISA(ONE_SHAPE, ONE_SHAPE, ONE_SHAPE, WIDE_SHAPES)
#define DEFINE_SHAPE(WHEN, VY, VX) CONV_SHAPE(VY, VX)
SHAPES(DEFINE_SHAPE)

static const ConvTile *choose_tiles(int rows, int vectors, int pixel, int flip, int *vy, int *vx)
{
#define CHOOSE_SHAPE(WHEN, VY, VX)                                                                  \
    if (WHEN) {                                                                                     \
        *vy = VY, *vx = VX;                                                                         \
        return pixel == 1 ? (flip ? conv_tiles_##VY##_##VX##_1_1 : conv_tiles_##VY##_##VX##_1_0)    \
                          : (flip ? conv_tiles_##VY##_##VX##_16_1 : conv_tiles_##VY##_##VX##_16_0); \
    }
    SHAPES(CHOOSE_SHAPE)
    return NULL;
}

static int tile_channels(int n)
{
    if (MAX_R == 5)
        return n % 5 == 0 || n == 9 || n == 13 ? 5 : n < 4 ? n : 4;
    return n < MAX_R ? n : MAX_R;
}

static void conv(const ConvTask *t)
{
    for (int o = 0, r; o < t->channels_out; o += r) {
        r = tile_channels(t->channels_out - o);
        const float *w = t->w + o * t->w_out, *bias = t->bias ? t->bias + o : NULL;
        int vy, vx;
        /* Bands of rows as tall as the tile that fits the row's last vectors; within a band the taller tiles
         * come last. */
        for (int y = 0; y < t->rows;) {
            int band = t->rows - y, u = 0;
            while (u < t->vectors) {
                choose_tiles(band, t->vectors - u, t->pixel, t->flip, &vy, &vx);
                if (u == 0)
                    band = vy;
                const ConvTile *tiles = choose_tiles(band, t->vectors - u, t->pixel, t->flip, &vy, &vx);
                for (int dy = 0; dy < band; dy += vy)
                    tiles[r - 1](t, t->in + (y + dy) * t->in_row + u * LANES, w, bias,
                                 t->out + o * t->out_channel + (y + dy) * t->out_row + u * LANES);
                u += vx;
            }
            y += band;
        }
    }
}

/* ---- weight gradient: R channels x five columns of taps for one input channel and one kernel row ---- */

#define MAX_SUMS (GRAD_R * KERNEL)

INLINE void gradient_tile(const WeightGradientTask *t, const int R, const int pixel, const float *dy, const float *x,
                          float *out)
{
    Vec acc[GRAD_R][KERNEL];
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int k = 0; k < KERNEL; k++) acc[r][k] = (Vec){0};
    const ptrdiff_t dy_channel = t->dy_channel;
    for (int g = 0; g < t->groups; g++) {
        for (int y = 0; y < t->rows; y++) {
            const float *d = dy + g * t->dy_group + y * t->dy_row, *p = x + g * t->x_group + y * t->x_row;
            for (const float *stop = d + t->vectors * LANES; d < stop; d += VL, p += VL) {
                Vec v[GRAD_R];
                UNROLL for (int r = 0; r < R; r++) v[r] = load(d + r * dy_channel);
                UNROLL for (int k = 0; k < KERNEL; k++)
                {
                    Vec in = load(p + k * pixel);
                    UNROLL for (int r = 0; r < R; r++) acc[r][k] += v[r] * in;
                }
            }
        }
    }
    /* The sums of VL accumulators at a time. */
    float sums[(MAX_SUMS + VL - 1) / VL * VL];
    Vec *flat = &acc[0][0];
    UNROLL for (int i = 0; i < R * KERNEL; i += VL)
        store(sums + i, lane_sums(flat + i, R * KERNEL - i < VL ? R * KERNEL - i : VL));
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int k = 0; k < KERNEL; k++)
    {
        float *to = out + r * t->out_channel + k;
        *to = t->accumulate ? *to + sums[r * KERNEL + k] : sums[r * KERNEL + k];
    }
}

typedef void (*GradientTile)(const WeightGradientTask *, const float *, const float *, float *);
#define GRADIENT_INSTANCE(R, PIXEL)                                                                              \
    static void gradient_##R##_##PIXEL(const WeightGradientTask *t, const float *dy, const float *x, float *out) \
    {                                                                                                            \
        gradient_tile(t, R, PIXEL, dy, x, out);                                                                  \
    }
#define GRADIENT_PAIR(R, _)  GRADIENT_INSTANCE(R, 1) GRADIENT_INSTANCE(R, 16)
#define GRADIENT_NAMES(R, _) {gradient_##R##_1, gradient_##R##_16},
EACH_TO(GRAD_R, GRADIENT_PAIR, _)
static const GradientTile gradient_tiles[GRAD_R][2] = {EACH_TO(GRAD_R, GRADIENT_NAMES, _)};

static void weight_gradient(const WeightGradientTask *t)
{
    for (int o = 0, r; o < t->channels_out; o += r) {
        r = t->channels_out - o;
        r = GRAD_R == 5 ? tile_channels(r) : r < GRAD_R ? r : GRAD_R;
        GradientTile tile = gradient_tiles[r - 1][t->pixel == LANES];
        const float *dy = t->dy + o * t->dy_channel;
        float *out = t->out + o * t->out_channel;
        for (int c = 0; c < t->channels_in; c++)
            for (int ky = 0; ky < KERNEL; ky++)
                tile(t, dy, t->x + c * t->x_channel + ky * t->x_row, out + c * TAPS + ky * KERNEL);
        for (int i = 0; i < r; i++) {
            Vec sum = {0};
            for (int g = 0; g < t->groups; g++)
                for (int y = 0; y < t->rows; y++)
                    for (int u = 0; u < t->vectors * REGISTERS; u++)
                        sum += load(dy + i * t->dy_channel + g * t->dy_group + y * t->dy_row + u * VL);
            float *to = out + i * t->out_channel + t->channels_in * TAPS, s = lane_sum(sum);
            *to = t->accumulate ? *to + s : s;
        }
    }
}

const NchwConvolutionLoops ISA_SYMBOL(forktask_nchw_convolution) = {
    .convolve = conv,
    .weight_gradient = weight_gradient,
};
