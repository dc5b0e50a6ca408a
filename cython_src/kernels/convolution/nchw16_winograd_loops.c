/* Inner loops of Winograd's convolutions, see kernels/convolution/nchw16_winograd_loops.h. Compiled once per instruction
 * set. */
#include "nchw16_winograd_loops.h"
#include "nchw_loops.h"
#include "cython_src/kernels/maps/nchw_sums.h"
#include "cython_src/kernels/simd/vectors.h"

#include <string.h>

#define POINTS  WINOGRAD_POINTS
#define SIDE    8                                  /* points along one axis, side of the tile of input */
#define RESULTS WINOGRAD_TILE                      /* side of the tile of results */
#define WINDOW  (RESULTS * STRIP + SIDE - RESULTS) /* pixels of a row of tiles */
#define STRIP   WINOGRAD_STRIP

/* 1 / (product of the distances of a point to the others), with the signs of `transform_input`. */
#define AT_ONE  (-2.0f / 9)
#define AT_TWO  (1.0f / 90)
#define AT_HALF (32.0f / 45)

/* Eight pixels: for each point the product of (x - other points), as coefficients. */
INLINE void transform_input(const Vec *x, Vec *y)
{
    y[0] = (x[0] - x[6]) + 5.25f * (x[4] - x[2]);
    y[7] = (x[7] - x[1]) + 5.25f * (x[3] - x[5]);
    Vec even = (x[2] + x[6]) - 4.25f * x[4], odd = (x[1] + x[5]) - 4.25f * x[3];
    y[1] = even + odd, y[2] = even - odd;
    even = (x[6] + 0.25f * x[2]) - 1.25f * x[4], odd = (x[5] + 0.25f * x[1]) - 1.25f * x[3];
    y[3] = even + 2.0f * odd, y[4] = even - 2.0f * odd;
    even = (x[6] + 4.0f * x[2]) - 5.0f * x[4], odd = (x[5] + 4.0f * x[1]) - 5.0f * x[3];
    y[5] = even + 0.5f * odd, y[6] = even - 0.5f * odd;
}

/* Five taps: values of their polynomial at the points, over the products of distances. */
INLINE void transform_taps(const Vec *x, Vec *y)
{
    y[0] = x[0];
    y[7] = x[4];
    Vec even = AT_ONE * ((x[0] + x[2]) + x[4]), odd = AT_ONE * (x[1] + x[3]);
    y[1] = even + odd, y[2] = even - odd;
    even = AT_TWO * ((x[0] + 4.0f * x[2]) + 16.0f * x[4]), odd = AT_TWO * (2.0f * x[1] + 8.0f * x[3]);
    y[3] = even + odd, y[4] = even - odd;
    even = AT_HALF * ((x[0] + 0.25f * x[2]) + 0.0625f * x[4]);
    odd = AT_HALF * (0.5f * x[1] + 0.125f * x[3]);
    y[5] = even + odd, y[6] = even - odd;
}

/* Four pixels of a gradient: values of their polynomial at the points; the distances come after the sums. */
INLINE void transform_gradient(const Vec *x, Vec *y)
{
    y[0] = x[0];
    y[7] = x[3];
    Vec even = x[0] + x[2], odd = x[1] + x[3];
    y[1] = even + odd, y[2] = even - odd;
    even = x[0] + 4.0f * x[2], odd = x[1] + 4.0f * x[3];
    y[3] = even + 2.0f * odd, y[4] = even - 2.0f * odd;
    even = x[0] + 0.25f * x[2], odd = x[1] + 0.25f * x[3];
    y[5] = even + 0.5f * odd, y[6] = even - 0.5f * odd;
}

/* Eight products: four results. */
INLINE void transform_output(const Vec *x, Vec *y)
{
    Vec plus1 = x[1] + x[2], plus2 = x[3] + x[4], plus3 = x[5] + x[6];
    Vec minus1 = x[1] - x[2], minus2 = x[3] - x[4], minus3 = x[5] - x[6];
    y[0] = (x[0] + plus1) + (plus2 + plus3);
    y[1] = (minus1 + 2.0f * minus2) + 0.5f * minus3;
    y[2] = (plus1 + 4.0f * plus2) + 0.25f * plus3;
    y[3] = (minus1 + 8.0f * minus2) + (0.125f * minus3 + x[7]);
}

/* Eight sums of products: five taps of a weight gradient. */
INLINE void transform_gradient_output(const Vec *x, Vec *y)
{
    Vec plus1 = AT_ONE * (x[1] + x[2]), plus2 = AT_TWO * (x[3] + x[4]), plus3 = AT_HALF * (x[5] + x[6]);
    Vec minus1 = AT_ONE * (x[1] - x[2]), minus2 = AT_TWO * (x[3] - x[4]), minus3 = AT_HALF * (x[5] - x[6]);
    y[0] = (x[0] + plus1) + (plus2 + plus3);
    y[1] = (minus1 + 2.0f * minus2) + 0.5f * minus3;
    y[2] = (plus1 + 4.0f * plus2) + 0.25f * plus3;
    y[3] = (minus1 + 8.0f * minus2) + 0.125f * minus3;
    y[4] = (plus1 + 16.0f * plus2) + (0.0625f * plus3 + x[7]);
}

static void winograd_weights(const float *w, ptrdiff_t w_out, ptrdiff_t w_in, int outputs, int inputs, int flip,
                             float *u, ptrdiff_t u_point, ptrdiff_t u_in)
{
    for (int i = 0; i < inputs; i++)
        for (int o = 0; o < outputs; o += VL) {
            const int n = outputs - o < VL ? outputs - o : VL;
            float taps[TAPS][VL];
            memset(taps, 0, sizeof taps);
            for (int lane = 0; lane < n; lane++) {
                const float *from = w + (o + lane) * w_out + i * w_in;
                for (int k = 0; k < TAPS; k++)
                    taps[k][lane] = from[flip ? TAPS - 1 - k : k];
            }
            Vec half[SIDE][KERNEL];
            for (int x = 0; x < KERNEL; x++) {
                Vec column[KERNEL], y[SIDE];
                UNROLL for (int k = 0; k < KERNEL; k++) column[k] = load(taps[k * KERNEL + x]);
                transform_taps(column, y);
                UNROLL for (int k = 0; k < SIDE; k++) half[k][x] = y[k];
            }
            for (int k = 0; k < SIDE; k++) {
                Vec y[SIDE];
                transform_taps(half[k], y);
                for (int j = 0; j < SIDE; j++) {
                    float *to = u + (k * SIDE + j) * u_point + i * u_in + o;
                    if (n == VL)
                        store(to, y[j]);
                    else
                        for (int lane = 0; lane < n; lane++)
                            to[lane] = y[j][lane];
                }
            }
        }
}

/* One row of tiles, one vector of lanes. `rows` and `columns` are compile-time constants in the usual case. */
INLINE void input_strip(const float *in, ptrdiff_t row, ptrdiff_t pixel, int tiles, int rows, int columns, float *out,
                        ptrdiff_t point, ptrdiff_t tile)
{
    Vec half[SIDE][WINDOW];
    const int width = RESULTS * tiles + SIDE - RESULTS;
    for (int x = 0; x < width; x++) {
        Vec v[SIDE], y[SIDE];
        UNROLL for (int k = 0; k < SIDE; k++) v[k] =
            k < rows && x < columns ? load(in + k * row + x * pixel) : (Vec){0};
        transform_input(v, y);
        UNROLL for (int k = 0; k < SIDE; k++) half[k][x] = y[k];
    }
    for (int t = 0; t < tiles; t++)
        for (int k = 0; k < SIDE; k++) {
            Vec y[SIDE];
            transform_input(&half[k][RESULTS * t], y);
            UNROLL for (int j = 0; j < SIDE; j++) store(out + (k * SIDE + j) * point + t * tile, y[j]);
        }
}

static void winograd_input(const WinogradTransform *t)
{
    for (int c = 0; c < t->channels; c++)
        for (int part = 0; part < LANES; part += VL) {
            const float *in = t->in + c * t->in_channel + part;
            float *out = t->out + c * t->out_channel + part;
            if (t->rows >= SIDE && t->columns >= RESULTS * t->tiles + SIDE - RESULTS)
                input_strip(in, t->in_row, t->in_pixel, t->tiles, SIDE, 1 << 30, out, t->out_point, t->out_tile);
            else
                input_strip(in, t->in_row, t->in_pixel, t->tiles, t->rows, t->columns, out, t->out_point, t->out_tile);
        }
}

INLINE void gradient_strip(const float *in, ptrdiff_t row, ptrdiff_t pixel, int rows, int columns, float *out,
                           ptrdiff_t point)
{
    Vec half[SIDE][RESULTS];
    UNROLL for (int x = 0; x < RESULTS; x++)
    {
        Vec v[RESULTS], y[SIDE];
        UNROLL for (int k = 0; k < RESULTS; k++) v[k] =
            k < rows && x < columns ? load(in + k * row + x * pixel) : (Vec){0};
        transform_gradient(v, y);
        UNROLL for (int k = 0; k < SIDE; k++) half[k][x] = y[k];
    }
    for (int k = 0; k < SIDE; k++) {
        Vec y[SIDE];
        transform_gradient(half[k], y);
        UNROLL for (int j = 0; j < SIDE; j++) store(out + (k * SIDE + j) * point, y[j]);
    }
}

static void winograd_gradient(const WinogradTransform *t)
{
    for (int c = 0; c < t->channels; c++)
        for (int part = 0; part < LANES; part += VL)
            for (int i = 0; i < t->tiles; i++) {
                const float *in = t->in + c * t->in_channel + RESULTS * i * t->in_pixel + part;
                float *out = t->out + c * t->out_channel + i * t->out_tile + part;
                if (t->rows >= RESULTS && t->columns >= RESULTS * (i + 1))
                    gradient_strip(in, t->in_row, t->in_pixel, RESULTS, RESULTS, out, t->out_point);
                else
                    gradient_strip(in, t->in_row, t->in_pixel, t->rows, t->columns - RESULTS * i, out, t->out_point);
            }
}

/* R output channels x V vectors of tiles. */
INLINE void multiply_tile(const WinogradProduct *t, const int R, const int V, const float *u, const float *v, float *m)
{
    Vec acc[8][4];
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int i = 0; i < V; i++) acc[r][i] = (Vec){0};
    const ptrdiff_t u_in = t->u_in, v_in = t->v_in;
    for (int c = 0; c < t->inputs; c++) {
        Vec x[4];
        UNROLL for (int i = 0; i < V; i++) x[i] = load(v + i * VL);
        UNROLL for (int r = 0; r < R; r++)
        {
            Vec weight = splat(u[r]);
            UNROLL for (int i = 0; i < V; i++) acc[r][i] += weight * x[i];
        }
        u += u_in, v += v_in;
    }
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int i = 0; i < V; i++) store(m + r * t->m_out + i * VL, acc[r][i]);
}

#define PRODUCT_R 5
#define PRODUCT_V BY_ISA(2, 4, 2, 4)

typedef void (*ProductTile)(const WinogradProduct *, const float *, const float *, float *);
#define PRODUCT_INSTANCE(R, V)                                                                        \
    static void product_##R##_##V(const WinogradProduct *t, const float *u, const float *v, float *m) \
    {                                                                                                 \
        multiply_tile(t, R, V, u, v, m);                                                              \
    }
#define PRODUCT_INSTANCES(V, _) \
    PRODUCT_INSTANCE(1, V) PRODUCT_INSTANCE(2, V) PRODUCT_INSTANCE(3, V) PRODUCT_INSTANCE(4, V) PRODUCT_INSTANCE(5, V)
#define PRODUCT_NAMES(V, _) {product_1_##V, product_2_##V, product_3_##V, product_4_##V, product_5_##V},
EACH_TO(PRODUCT_V, PRODUCT_INSTANCES, _)
static const ProductTile product_tiles[PRODUCT_V][PRODUCT_R] = {EACH_TO(PRODUCT_V, PRODUCT_NAMES, _)};

/* Channels of the next tile: as even as can be. */
static int product_channels(int n)
{
    const int tiles = (n + PRODUCT_R - 1) / PRODUCT_R;
    return (n + tiles - 1) / tiles;
}

static void winograd_multiply(const WinogradProduct *t)
{
    const int n = t->tiles * REGISTERS;
    for (int p = 0; p < POINTS; p++)
        for (int i = 0, step; i < n; i += step) {
            step = n - i < PRODUCT_V ? n - i : PRODUCT_V;
            for (int o = 0, r; o < t->outputs; o += r) {
                r = product_channels(t->outputs - o);
                product_tiles[step - 1][r - 1](t, t->u + p * t->u_point + o, t->v + p * t->v_point + i * VL,
                                               t->m + p * t->m_point + o * t->m_out + i * VL);
            }
        }
}

static void winograd_output(const float *m, ptrdiff_t point, int tiles, float bias, float *out, ptrdiff_t row)
{
    const Vec start = splat(bias);
    for (int t = 0; t < tiles * REGISTERS; t++) {
        const float *from = m + t * VL;
        float *to = out + t / REGISTERS * RESULTS * LANES + t % REGISTERS * VL;
        Vec half[RESULTS][SIDE];
        UNROLL for (int x = 0; x < SIDE; x++)
        {
            Vec v[SIDE], y[RESULTS];
            UNROLL for (int k = 0; k < SIDE; k++) v[k] = load(from + (k * SIDE + x) * point);
            transform_output(v, y);
            UNROLL for (int k = 0; k < RESULTS; k++) half[k][x] = y[k];
        }
        UNROLL for (int k = 0; k < RESULTS; k++)
        {
            Vec y[RESULTS];
            transform_output(half[k], y);
            UNROLL for (int x = 0; x < RESULTS; x++) store(to + k * row + x * LANES, y[x] + start);
        }
    }
}

/* ---- weight gradient ---- */

static void winograd_reduce(const NchwReduction *t)
{
    for (int p = 0; p < POINTS; p++)
        for (int o = 0, r; o < t->rows; o += r) {
            const int left = t->rows - o, tiles = (left + REDUCE_R - 1) / REDUCE_R;
            r = (left + tiles - 1) / tiles;
            reduce_tiles[r - 1](t, t->a + p * t->a_point + o * t->a_row, t->b + p * t->b_point,
                                t->out + p * t->out_point + o * t->out_row);
        }
}

static void winograd_gradient_output(const float *m, ptrdiff_t point, int lanes, float *out, ptrdiff_t out_lane,
                                     int accumulate)
{
    for (int part = 0; part < lanes; part += VL) {
        Vec half[KERNEL][SIDE];
        float taps[TAPS][VL];
        UNROLL for (int x = 0; x < SIDE; x++)
        {
            Vec v[SIDE], y[KERNEL];
            UNROLL for (int k = 0; k < SIDE; k++) v[k] = load(m + (k * SIDE + x) * point + part);
            transform_gradient_output(v, y);
            UNROLL for (int k = 0; k < KERNEL; k++) half[k][x] = y[k];
        }
        for (int k = 0; k < KERNEL; k++) {
            Vec y[KERNEL];
            transform_gradient_output(half[k], y);
            UNROLL for (int x = 0; x < KERNEL; x++) store(taps[k * KERNEL + x], y[x]);
        }
        for (int lane = 0; lane < VL && part + lane < lanes; lane++) {
            float *to = out + (part + lane) * out_lane;
            for (int k = 0; k < TAPS; k++)
                to[k] = accumulate ? to[k] + taps[k][lane] : taps[k][lane];
        }
    }
}

const Nchw16WinogradLoops ISA_SYMBOL(forktask_nchw16_winograd) = {
    .weights = winograd_weights,
    .input = winograd_input,
    .gradient = winograd_gradient,
    .multiply = winograd_multiply,
    .output = winograd_output,
    .reduce = winograd_reduce,
    .gradient_output = winograd_gradient_output,
};
