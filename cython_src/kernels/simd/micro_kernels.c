/* Inner loops, see micro_kernels.h. Compiled once per instruction set; MICRO_ISA selects vector width and
 * tiles. */
#include "micro_kernels.h"
#include "vectors.h"

#include <string.h>

#if MICRO_ISA == AVX512
#define MAX_R      5 /* output channels in a tile */
#define WIDE_TILES 1 /* tiles of several units: 32 registers hold 5 x 5 accumulators, inputs and a weight */
#define GRAD_R     5 /* output channels in a tile of the weight gradient, each with five accumulators */
#elif MICRO_ISA == AVX2
#define MAX_R      5
#define WIDE_TILES 0
#define GRAD_R     2
#else
#if defined(__aarch64__)
#define MAX_R  5
#define GRAD_R 4
#else
#define MAX_R  2 /* sixteen registers: 2 x 4 accumulators */
#define GRAD_R 2
#endif
#define WIDE_TILES 0
#endif

#define SUB (UNIT / VL) /* vectors in a unit */

/* ---- convolution: one tile of R channels x VY rows x VX units, all constants after inlining ---- */

INLINE void conv_tile(const ConvTask *t, const int R, const int VY, const int VX, const int pixel, const int flip,
                      const float *in, const float *w, const float *bias, float *out)
{
    Vec acc[MAX_R][8];
    const int V = VY * VX * SUB;
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
                UNROLL for (int vy = 0; vy < VY; vy++) UNROLL for (int vx = 0; vx < VX * SUB; vx++)
                    x[vy * VX * SUB + vx] = load(row + vy * in_row + vx * VL + kx * pixel);
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
        UNROLL for (int vx = 0; vx < VX * SUB; vx++)
            store(out + r * t->out_channel + vy * t->out_row + vx * VL, acc[r][vy * VX * SUB + vx]);
}

typedef void (*ConvTile)(const ConvTask *, const float *, const float *, const float *, float *);

#define CONV_INSTANCE(R, VY, VX, PIXEL, FLIP)                                                                 \
    static void conv_##R##_##VY##_##VX##_##PIXEL##_##FLIP(const ConvTask *t, const float *in, const float *w, \
                                                          const float *bias, float *out)                      \
    {                                                                                                         \
        conv_tile(t, R, VY, VX, PIXEL, FLIP, in, w, bias, out);                                               \
    }
#define CONV_INSTANCES(VY, VX, PIXEL, FLIP)                                                                          \
    CONV_INSTANCE(1, VY, VX, PIXEL, FLIP)                                                                            \
    CONV_INSTANCE(2, VY, VX, PIXEL, FLIP)                                                                            \
    CONV_LARGE_INSTANCES(VY, VX, PIXEL, FLIP)                                                                        \
    static const ConvTile conv_tiles_##VY##_##VX##_##PIXEL##_##FLIP[MAX_R] = {conv_1_##VY##_##VX##_##PIXEL##_##FLIP, \
                                                                              conv_2_##VY##_##VX##_##PIXEL##_##FLIP, \
                                                                              CONV_LARGE_NAMES(VY, VX, PIXEL, FLIP)};
#if MAX_R == 5
#define CONV_LARGE_INSTANCES(VY, VX, PIXEL, FLIP) \
    CONV_INSTANCE(3, VY, VX, PIXEL, FLIP)         \
    CONV_INSTANCE(4, VY, VX, PIXEL, FLIP) CONV_INSTANCE(5, VY, VX, PIXEL, FLIP)
#define CONV_LARGE_NAMES(VY, VX, PIXEL, FLIP) \
    conv_3_##VY##_##VX##_##PIXEL##_##FLIP, conv_4_##VY##_##VX##_##PIXEL##_##FLIP, conv_5_##VY##_##VX##_##PIXEL##_##FLIP
#else
#define CONV_LARGE_INSTANCES(VY, VX, PIXEL, FLIP)
#define CONV_LARGE_NAMES(VY, VX, PIXEL, FLIP)
#endif
#define CONV_SHAPE(VY, VX)        \
    CONV_INSTANCES(VY, VX, 16, 0) \
    CONV_INSTANCES(VY, VX, 16, 1) \
    CONV_INSTANCES(VY, VX, 1, 0)  \
    CONV_INSTANCES(VY, VX, 1, 1)

CONV_SHAPE(1, 1)
#if WIDE_TILES
CONV_SHAPE(1, 2)
CONV_SHAPE(1, 4)
CONV_SHAPE(1, 5)
CONV_SHAPE(2, 1)
CONV_SHAPE(2, 2)
CONV_SHAPE(4, 1)
#endif

#define PICK(VY, VX)                                                                   \
    (pixel == 1 ? (flip ? conv_tiles_##VY##_##VX##_1_1 : conv_tiles_##VY##_##VX##_1_0) \
                : (flip ? conv_tiles_##VY##_##VX##_16_1 : conv_tiles_##VY##_##VX##_16_0))

/* Tile for a rest of `rows` x `units`: how many rows and units it covers. */
static const ConvTile *choose_tiles(int rows, int units, int pixel, int flip, int *vy, int *vx)
{
#if WIDE_TILES
    if (units == 5 || units == 10) {
        *vy = 1, *vx = 5;
        return PICK(1, 5);
    }
    if (units >= 4) {
        *vy = 1, *vx = 4;
        return PICK(1, 4);
    }
    if (units >= 2 && rows >= 2) {
        *vy = 2, *vx = 2;
        return PICK(2, 2);
    }
    if (units >= 2) {
        *vy = 1, *vx = 2;
        return PICK(1, 2);
    }
    if (rows >= 4) {
        *vy = 4, *vx = 1;
        return PICK(4, 1);
    }
    if (rows >= 2) {
        *vy = 2, *vx = 1;
        return PICK(2, 1);
    }
#endif
    *vy = 1, *vx = 1;
    return PICK(1, 1);
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
        /* Bands of rows as tall as the tile that fits the row's last units; within a band the taller tiles
         * come last. */
        for (int y = 0; y < t->rows;) {
            int band = t->rows - y, u = 0;
            while (u < t->units) {
                choose_tiles(band, t->units - u, t->pixel, t->flip, &vy, &vx);
                if (u == 0)
                    band = vy;
                const ConvTile *tiles = choose_tiles(band, t->units - u, t->pixel, t->flip, &vy, &vx);
                for (int dy = 0; dy < band; dy += vy)
                    tiles[r - 1](t, t->in + (y + dy) * t->in_row + u * UNIT, w, bias,
                                 t->out + o * t->out_channel + (y + dy) * t->out_row + u * UNIT);
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
            for (const float *stop = d + t->units * UNIT; d < stop; d += VL, p += VL) {
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
#define GRADIENT_PAIR(R) GRADIENT_INSTANCE(R, 1) GRADIENT_INSTANCE(R, 16)
GRADIENT_PAIR(1)
GRADIENT_PAIR(2)
#if GRAD_R > 2
GRADIENT_PAIR(3)
GRADIENT_PAIR(4)
#endif
#if GRAD_R > 4
GRADIENT_PAIR(5)
#endif
static const GradientTile gradient_tiles[GRAD_R][2] = {
    {gradient_1_1, gradient_1_16}, {gradient_2_1, gradient_2_16},
#if GRAD_R > 2
    {gradient_3_1, gradient_3_16}, {gradient_4_1, gradient_4_16},
#endif
#if GRAD_R > 4
    {gradient_5_1, gradient_5_16},
#endif
};

static void weight_gradient(const WeightGradientTask *t)
{
    for (int o = 0, r; o < t->channels_out; o += r) {
        r = t->channels_out - o;
        r = GRAD_R == 5 ? tile_channels(r) : r < GRAD_R ? r : GRAD_R;
        GradientTile tile = gradient_tiles[r - 1][t->pixel == 16];
        const float *dy = t->dy + o * t->dy_channel;
        float *out = t->out + o * t->out_channel;
        for (int c = 0; c < t->channels_in; c++)
            for (int ky = 0; ky < KERNEL; ky++)
                tile(t, dy, t->x + c * t->x_channel + ky * t->x_row, out + c * TAPS + ky * KERNEL);
        for (int i = 0; i < r; i++) {
            Vec sum = {0};
            for (int g = 0; g < t->groups; g++)
                for (int y = 0; y < t->rows; y++)
                    for (int u = 0; u < t->units * SUB; u++)
                        sum += load(dy + i * t->dy_channel + g * t->dy_group + y * t->dy_row + u * VL);
            float *to = out + i * t->out_channel + t->channels_in * TAPS, s = lane_sum(sum);
            *to = t->accumulate ? *to + s : s;
        }
    }
}

/* ---- pooling, ReLU ---- */

/* Forms for N pixels or lanes at a time: N = VL, and fewer for the short rows of the flat layout. `first` and
 * `second` are the index values of a row's even and odd pixels. */
#define POOL_FORMS(N, EVENS, ODDS, LOWS, HIGHS)                                                                \
    typedef float Float##N __attribute__((vector_size(N * 4), aligned(4), may_alias));                         \
    typedef int32_t Int##N __attribute__((vector_size(N * 4)));                                                \
    typedef uint8_t Byte##N __attribute__((vector_size(N), aligned(1), may_alias));                            \
    INLINE Float##N select_##N(Int##N mask, Float##N a, Float##N b)                                            \
    {                                                                                                          \
        return (Float##N)((mask & (Int##N)a) | (~mask & (Int##N)b));                                           \
    }                                                                                                          \
    INLINE void pool_##N(Float##N a, Float##N b, Float##N c, Float##N d, int relu, float *out, uint8_t *index) \
    {                                                                                                          \
        Int##N i = {0}, mask = b > a;                                                                          \
        i = mask & 1, a = select_##N(mask, b, a);                                                              \
        mask = c > a;                                                                                          \
        i = (mask & 2) | (~mask & i), a = select_##N(mask, c, a);                                              \
        mask = d > a;                                                                                          \
        i = (mask & 3) | (~mask & i), a = select_##N(mask, d, a);                                              \
        if (relu) { /* written so that a NaN stays one */                                                      \
            mask = a <= 0;                                                                                     \
            i = (mask & 4) | (~mask & i), a = select_##N(mask, (Float##N){0}, a);                              \
        }                                                                                                      \
        *(Float##N *)out = a;                                                                                  \
        *(Byte##N *)index = __builtin_convertvector(i, Byte##N);                                               \
    }                                                                                                          \
    INLINE void pool_flat_##N(const float *row0, const float *row1, int relu, float *out, uint8_t *index)      \
    {                                                                                                          \
        Float##N a = *(const Float##N *)row0, b = *(const Float##N *)(row0 + N);                               \
        Float##N c = *(const Float##N *)row1, d = *(const Float##N *)(row1 + N);                               \
        pool_##N(SHUFFLE(Int##N, a, b, EVENS), SHUFFLE(Int##N, a, b, ODDS), SHUFFLE(Int##N, c, d, EVENS),      \
                 SHUFFLE(Int##N, c, d, ODDS), relu, out, index);                                               \
    }                                                                                                          \
    INLINE void unpool_##N(Float##N in, Int##N i, int first, Float##N *even, Float##N *odd)                    \
    {                                                                                                          \
        *even = (Float##N)((i == first) & (Int##N)in);                                                         \
        *odd = (Float##N)((i == first + 1) & (Int##N)in);                                                      \
    }                                                                                                          \
    INLINE void unpool_flat_##N(const float *in, const uint8_t *index, float *row0, float *row1)               \
    {                                                                                                          \
        Float##N v = *(const Float##N *)in, even, odd;                                                         \
        Int##N i = __builtin_convertvector(*(const Byte##N *)index, Int##N);                                   \
        unpool_##N(v, i, 0, &even, &odd);                                                                      \
        *(Float##N *)row0 = SHUFFLE(Int##N, even, odd, LOWS);                                                  \
        *(Float##N *)(row0 + N) = SHUFFLE(Int##N, even, odd, HIGHS);                                           \
        unpool_##N(v, i, 2, &even, &odd);                                                                      \
        *(Float##N *)row1 = SHUFFLE(Int##N, even, odd, LOWS);                                                  \
        *(Float##N *)(row1 + N) = SHUFFLE(Int##N, even, odd, HIGHS);                                           \
    }

#define LIST(...) __VA_ARGS__
POOL_FORMS(4, LIST(0, 2, 4, 6), LIST(1, 3, 5, 7), LIST(0, 4, 1, 5), LIST(2, 6, 3, 7))
#if VL >= 8
POOL_FORMS(8, LIST(0, 2, 4, 6, 8, 10, 12, 14), LIST(1, 3, 5, 7, 9, 11, 13, 15), LIST(0, 8, 1, 9, 2, 10, 3, 11),
           LIST(4, 12, 5, 13, 6, 14, 7, 15))
#endif
#if VL >= 16
POOL_FORMS(16, LIST(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30),
           LIST(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31),
           LIST(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23),
           LIST(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31))
#endif
#if VL == 16
#define LANE_FORM(name) name##_16
typedef Float16 FloatV;
typedef Int16 IntV;
typedef Byte16 ByteV;
#elif VL == 8
#define LANE_FORM(name) name##_8
typedef Float8 FloatV;
typedef Int8 IntV;
typedef Byte8 ByteV;
#else
#define LANE_FORM(name) name##_4
typedef Float4 FloatV;
typedef Int4 IntV;
typedef Byte4 ByteV;
#endif

static void pool_row(const float *row0, const float *row1, int width, int lanes, int relu, float *out, uint8_t *index)
{
    int x = 0;
    if (lanes != 1) {
        for (; x < width * UNIT; x += VL, out += VL, index += VL) {
            ptrdiff_t at = x / UNIT * 2 * UNIT + x % UNIT;
            LANE_FORM(pool)(*(const FloatV *)(row0 + at), *(const FloatV *)(row0 + at + UNIT),
                            *(const FloatV *)(row1 + at), *(const FloatV *)(row1 + at + UNIT), relu, out, index);
        }
        return;
    }
#if VL >= 16
    for (; x + 16 <= width; x += 16)
        pool_flat_16(row0 + 2 * x, row1 + 2 * x, relu, out + x, index + x);
#endif
#if VL >= 8
    for (; x + 8 <= width; x += 8)
        pool_flat_8(row0 + 2 * x, row1 + 2 * x, relu, out + x, index + x);
#endif
    for (; x + 4 <= width; x += 4)
        pool_flat_4(row0 + 2 * x, row1 + 2 * x, relu, out + x, index + x);
    for (; x < width; x++) {
        const float window[4] = {row0[2 * x], row0[2 * x + 1], row1[2 * x], row1[2 * x + 1]};
        int best = 0;
        for (int i = 1; i < 4; i++)
            best = window[i] > window[best] ? i : best;
        int dead = relu && window[best] <= 0;
        out[x] = dead ? 0 : window[best];
        index[x] = dead ? 4 : best;
    }
}

static void unpool_row(const float *in, const uint8_t *index, int width, int lanes, float *row0, float *row1)
{
    int x = 0;
    if (lanes != 1) {
        for (; x < width * UNIT; x += VL, in += VL, index += VL) {
            ptrdiff_t at = x / UNIT * 2 * UNIT + x % UNIT;
            FloatV v = *(const FloatV *)in;
            IntV i = __builtin_convertvector(*(const ByteV *)index, IntV);
            LANE_FORM(unpool)(v, i, 0, (FloatV *)(row0 + at), (FloatV *)(row0 + at + UNIT));
            LANE_FORM(unpool)(v, i, 2, (FloatV *)(row1 + at), (FloatV *)(row1 + at + UNIT));
        }
        return;
    }
#if VL >= 16
    for (; x + 16 <= width; x += 16)
        unpool_flat_16(in + x, index + x, row0 + 2 * x, row1 + 2 * x);
#endif
#if VL >= 8
    for (; x + 8 <= width; x += 8)
        unpool_flat_8(in + x, index + x, row0 + 2 * x, row1 + 2 * x);
#endif
    for (; x + 4 <= width; x += 4)
        unpool_flat_4(in + x, index + x, row0 + 2 * x, row1 + 2 * x);
    for (; x < width; x++) {
        float *window[4] = {row0 + 2 * x, row0 + 2 * x + 1, row1 + 2 * x, row1 + 2 * x + 1};
        for (int i = 0; i < 4; i++)
            *window[i] = index[x] == i ? in[x] : 0;
    }
}

static void relu(const float *in, float *out, ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < n; i++)
        out[i] = in[i] <= 0 ? 0 : in[i];
}

static void relu_backward(const float *dy, const float *y, float *dx, ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < n; i++)
        dx[i] = y[i] > 0 ? dy[i] : 0;
}

#include "cython_src/kernels/convolution/lanes_winograd_loops.h"

/* ---- fully connected layer ---- */

/* Outputs, or features of the data gradient, that are summed at a time in the lane layout, in registers. */
#if MICRO_ISA == AVX512
#define FC_R 5
#elif MICRO_ISA == AVX2 || defined(__aarch64__)
#define FC_R 3
#else
#define FC_R 1
#endif

/* R outputs; even and odd features in sums of their own. */
INLINE void fc_forward_tile(const float *x, const float *w, const float *bias, float *out, int features, const int R)
{
    Vec sum[2][FC_R][SUB];
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int i = 0; i < SUB; i++) sum[0][r][i] = splat(bias[r]),
                                                                            sum[1][r][i] = (Vec){0};
    int f = 0;
    for (; f + 2 <= features; f += 2)
        UNROLL for (int h = 0; h < 2; h++) UNROLL for (int r = 0; r < R; r++) UNROLL for (int i = 0; i < SUB; i++)
            sum[h][r][i] += w[(ptrdiff_t)r * features + f + h] * load(x + (ptrdiff_t)(f + h) * UNIT + i * VL);
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int i = 0; i < SUB; i++)
    {
        if (f < features)
            sum[0][r][i] += w[(ptrdiff_t)r * features + f] * load(x + (ptrdiff_t)f * UNIT + i * VL);
        store(out + r * UNIT + i * VL, sum[0][r][i] + sum[1][r][i]);
    }
}

static void fc_forward(const float *x, const float *w, const float *bias, float *logits, int features, int outputs,
                       int lanes)
{
    int o = 0;
    if (lanes != 1) {
        for (; o + FC_R <= outputs; o += FC_R)
            fc_forward_tile(x, w + (ptrdiff_t)o * features, bias + o, logits + o * UNIT, features, FC_R);
        for (; o < outputs; o++)
            fc_forward_tile(x, w + (ptrdiff_t)o * features, bias + o, logits + o * UNIT, features, 1);
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
    Vec sum[2 * FC_R][SUB];
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int i = 0; i < SUB; i++) sum[r][i] = (Vec){0};
    for (int o = 0; o < outputs; o++)
        UNROLL for (int r = 0; r < R; r++) UNROLL for (int i = 0; i < SUB; i++) sum[r][i] +=
            w[(ptrdiff_t)o * features + r] * load(d + o * UNIT + i * VL);
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int i = 0; i < SUB; i++) store(dx + r * UNIT + i * VL, sum[r][i]);
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
        fc_data_tile(dlogits, w + f, dx + (ptrdiff_t)f * UNIT, features, outputs, 2 * FC_R);
    for (; f < features; f++)
        fc_data_tile(dlogits, w + f, dx + (ptrdiff_t)f * UNIT, features, outputs, 1);
}

/* Lanes: sixteen features at a time are transposed, so that they stand in the lanes and the gradient of each image
 * is a factor: nothing is summed across lanes. */
static void fc_weights_lanes(const float *dlogits, const float *x, float *out, int groups, int features, int outputs,
                             int accumulate)
{
    const ptrdiff_t row = features + 1;
    for (int f = 0; f < features; f += UNIT) {
        const int n = features - f < UNIT ? features - f : UNIT;
        for (int g = 0; g < groups; g++) {
            float turned[UNIT * UNIT], sums[REDUCE_R * UNIT];
            transpose_unit(x + ((ptrdiff_t)g * features + f) * UNIT, UNIT, n, turned, UNIT);
            for (int o = 0, r; o < outputs; o += r) {
                WinogradReduction t = {
                    .a_row = UNIT, .out_row = row, .length = UNIT, .accumulate = g > 0 || accumulate};
                r = outputs - o < REDUCE_R ? outputs - o : REDUCE_R;
                const float *d = dlogits + ((ptrdiff_t)g * outputs + o) * UNIT;
                float *to = out + o * row + f;
                if (n == UNIT) {
                    reduce_tiles[r - 1](&t, d, turned, to);
                    continue;
                }
                t.out_row = UNIT;
                memset(sums, 0, sizeof sums);
                for (int i = 0; i < r; i++)
                    for (int k = 0; k < n; k++)
                        sums[i * UNIT + k] = to[i * row + k];
                reduce_tiles[r - 1](&t, d, turned, sums);
                for (int i = 0; i < r; i++)
                    for (int k = 0; k < n; k++)
                        to[i * row + k] = sums[i * UNIT + k];
            }
        }
    }
    for (int o = 0; o < outputs; o++) {
        float *to = out + o * row + features, sum = accumulate ? *to : 0;
        for (int g = 0; g < groups; g++)
            sum += sum_rows(dlogits + ((ptrdiff_t)g * outputs + o) * UNIT, 1, 0, UNIT);
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
            int f = 0;
            for (; f + VL <= features; f += VL)
                store(row + f, load(row + f) + d * load(in + f));
            for (; f < features; f++)
                row[f] += d * in[f];
            row[features] += d;
        }
    }
}

extern const struct MatrixKernels ISA_SYMBOL(forktask_matrix);
extern const struct WinogradKernels ISA_SYMBOL(forktask_winograd);
extern const struct ConvForms ISA_SYMBOL(forktask_conv_forms);

/* ---- update, input ---- */

static void sgd(const float *partial, ptrdiff_t stride, int partials, float *gradient, float *weight, float *velocity,
                ptrdiff_t n, float rate, float momentum, float weight_decay)
{
    ptrdiff_t i = 0;
    for (; i + VL <= n; i += VL) {
        Vec g = load(partial + i), w = load(weight + i);
        for (int p = 1; p < partials; p++)
            g += load(partial + p * stride + i);
        Vec v = momentum * load(velocity + i) + (g + weight_decay * w);
        store(gradient + i, g);
        store(velocity + i, v);
        store(weight + i, w - rate * v);
    }
    for (; i < n; i++) {
        float g = partial[i];
        for (int p = 1; p < partials; p++)
            g += partial[p * stride + i];
        float v = momentum * velocity[i] + (g + weight_decay * weight[i]);
        gradient[i] = g;
        velocity[i] = v;
        weight[i] -= rate * v;
    }
}

static void interleave_row(const float *const *rows, int width, float *out)
{
    int x = 0;
    for (; x + VL <= width; x += VL)
        for (int part = 0; part < UNIT; part += VL) {
            Vec v[VL];
            UNROLL for (int i = 0; i < VL; i++) v[i] = load(rows[part + i] + x);
            transpose(v);
            UNROLL for (int i = 0; i < VL; i++) store(out + (x + i) * UNIT + part, v[i]);
        }
    for (; x < width; x++)
        for (int i = 0; i < UNIT; i++)
            out[x * UNIT + i] = rows[i][x];
}

extern const struct ChannelsDepthwiseLoops ISA_SYMBOL(forktask_channels_depthwise);
extern const struct ChannelsElementwiseLoops ISA_SYMBOL(forktask_channels_elementwise);
extern const struct ChannelsNormLoops ISA_SYMBOL(forktask_channels_norm);
extern const struct ChannelsPoolingLoops ISA_SYMBOL(forktask_channels_pooling);
extern const struct OptimizerLoops ISA_SYMBOL(forktask_optimizer);
extern const struct AttentionLoops ISA_SYMBOL(forktask_attention);
extern const struct LinearLoops ISA_SYMBOL(forktask_linear);
extern const struct LayerNormLoops ISA_SYMBOL(forktask_layernorm);
extern const struct TokenElementLoops ISA_SYMBOL(forktask_token_elements);
extern const struct VocabularyLoops ISA_SYMBOL(forktask_vocabulary);
const MicroKernels ISA_SYMBOL(forktask_micro) = {
    .name = ISA_NAME,
    .matrix = &ISA_SYMBOL(forktask_matrix),
    .winograd = &ISA_SYMBOL(forktask_winograd),
    .conv = conv,
    .weight_gradient = weight_gradient,
    .pool_row = pool_row,
    .unpool_row = unpool_row,
    .relu = relu,
    .relu_backward = relu_backward,
    .fc_forward = fc_forward,
    .fc_backward_data = fc_backward_data,
    .fc_backward_weights = fc_backward_weights,
    .sgd = sgd,
    .interleave_row = interleave_row,
    .channels_depthwise = &ISA_SYMBOL(forktask_channels_depthwise),
    .channels_elementwise = &ISA_SYMBOL(forktask_channels_elementwise),
    .channels_norm = &ISA_SYMBOL(forktask_channels_norm),
    .channels_pooling = &ISA_SYMBOL(forktask_channels_pooling),
    .optimizer = &ISA_SYMBOL(forktask_optimizer),
    .winograd_weights = winograd_weights,
    .winograd_input = winograd_input,
    .winograd_gradient = winograd_gradient,
    .winograd_multiply = winograd_multiply,
    .winograd_output = winograd_output,
    .transpose_unit = transpose_unit,
    .winograd_reduce = winograd_reduce,
    .winograd_gradient_output = winograd_gradient_output,
    .sum_rows = sum_rows,
    .forms = &ISA_SYMBOL(forktask_conv_forms),
    .linear = &ISA_SYMBOL(forktask_linear),
    .attention = &ISA_SYMBOL(forktask_attention),
    .layernorm = &ISA_SYMBOL(forktask_layernorm),
    .token_elements = &ISA_SYMBOL(forktask_token_elements),
    .vocabulary = &ISA_SYMBOL(forktask_vocabulary),
};
