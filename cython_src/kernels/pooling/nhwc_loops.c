/* Inner loops of pooling, see kernels/pooling/nhwc_loops.h. Compiled once per instruction set. */
#include "nhwc_loops.h"
#include "cython_src/kernels/maps/nhwc_windows_loops.h"

/* Taps [*first, *last) of a window that begins at `start` and meet [0, size), one axis. */
INLINE void clip_taps(int start, int kernel, int size, int *first, int *last)
{
    *first = at_least(0, -start);
    *last = at_most(kernel, size - start);
}

/* The larger of best and x, which is a tap of that number; of equals the first, but a NaN stays. */
INLINE void keep_larger(Vec *best, VecI *where, Vec x, int tap)
{
    LaneMask larger = greater(x, *best) | is_nan(x);
    *best = choose_lanes(larger, x, *best);
    *where = choose_numbers(larger, tap, *where);
}

/* The largest of a window's elements and its number, K at most 3 and all else constant. Returns whether a NaN (or two
 * infinities) may be among them; then the result may be wrong. */
INLINE int max_of_small(const float *window, ptrdiff_t row, ptrdiff_t pitch, float *out, uint8_t *index, const int N,
                        const int K, const int ky0, const int kx0)
{
    Vec best[4], sum[4]; /* a sum is NaN if one of its numbers is: additions have pipes that nothing else here needs */
    VecI where[4];
    int unordered = 0;
    UNROLL for (int tap = ky0 * K + kx0, number = 0; tap < K * K; tap++)
    {
        if (tap % K < kx0)
            continue;
        UNROLL for (int v = 0; v < N; v++)
        {
            Vec x = load(window + tap / K * row + tap % K * pitch + v * VL);
            if (number == 0) {
                best[v] = sum[v] = x, where[v] = (VecI){0} + tap;
            } else {
                where[v] = choose_numbers(greater(x, best[v]), tap, where[v]);
                sum[v] += x;
                best[v] = maximum(x, best[v]); /* the second of equals */
            }
        }
        number++;
    }
    UNROLL for (int v = 0; v < N; v++)
    {
        unordered |= BY_WIDTH(1, 1, is_nan(sum[v]));
        store(out + v * VL, best[v]), store_bytes(index + v * VL, where[v]);
    }
    return unordered;
}

INLINE void max_window(const WindowTask *t, const float *window, float *out, uint8_t *index, const int K, int ky0,
                       int ky1, int kx0, int kx1){
#define MAX_GROUP(N)                                                                                               \
    {                                                                                                              \
        Vec best[N];                                                                                               \
        VecI where[N];                                                                                             \
        UNROLL for (int v = 0; v < N; v++) best[v] = load(window + ky0 * t->in.row + kx0 * t->pitch + c + v * VL), \
                                           where[v] = (VecI){0} + (ky0 * K + kx0);                                 \
        for (int ky = ky0; ky < ky1; ky++)                                                                         \
            for (int kx = kx0; kx < kx1; kx++)                                                                     \
                UNROLL for (int v = 0; v < N; v++) keep_larger(                                                    \
                    &best[v], &where[v], load(window + ky * t->in.row + kx * t->pitch + c + v * VL), ky * K + kx); \
        UNROLL for (int v = 0; v < N; v++) store(out + c + v * VL, best[v]),                                       \
            store_bytes(index + c + v * VL, where[v]);                                                             \
    }
    EACH_PART(MAX_GROUP)}

/* A window of which at most the first row and column are missing. */
INLINE void max_window_small(const WindowTask *t, const float *window, float *out, uint8_t *index, const int K,
                             const int ky0, const int kx0)
{
    int unordered = BY_ISA(1, 1, 1, 0);
#define SMALL_GROUP(N) unordered |= max_of_small(window + c, t->in.row, t->pitch, out + c, index + c, N, K, ky0, kx0);
    if (!unordered) {
        EACH_PART(SMALL_GROUP)
    }
    if (unordered)
        max_window(t, window, out, index, BY_ISA(K, K, K, t->kernel), ky0, BY_ISA(K, K, K, t->kernel), kx0,
                   BY_ISA(K, K, K, t->kernel));
}

INLINE void average_window(const WindowTask *t, const float *window, float *out, float factor, int ky0, int ky1,
                           int kx0, int kx1){
#define AVERAGE_GROUP(N)                                                             \
    {                                                                                \
        Vec sum[N];                                                                  \
        UNROLL for (int v = 0; v < N; v++) sum[v] = (Vec){0};                        \
        for (int ky = ky0; ky < ky1; ky++)                                           \
            for (int kx = kx0; kx < kx1; kx++)                                       \
                UNROLL for (int v = 0; v < N; v++) sum[v] +=                         \
                    load(window + ky * t->in.row + kx * t->pitch + c + v * VL);      \
        UNROLL for (int v = 0; v < N; v++) store(out + c + v * VL, sum[v] * factor); \
    }
    EACH_PART(AVERAGE_GROUP)}

/* Prefetch what the window a row further down reads first, and for its result. */
INLINE
    void ask_window(const WindowTask *t, const float *window, const float *out, const uint8_t *index, const int maximum)
{
    const float *next = window + t->kernel * t->in.row;
    for (int r = 0; r < t->stride; r++)
        for (int q = 0; q < t->stride; q++)
            for (int c = 0; c < t->channels; c += 16)
                __builtin_prefetch(next + r * t->in.row + q * t->pitch + c, 0, 2);
    for (int c = 0; c < t->channels; c += 16)
        __builtin_prefetch(out + t->out.row + c, 1, 2);
    if (maximum)
        for (int c = 0; c < t->channels; c += 64)
            __builtin_prefetch(index + t->small_width * t->pitch + c, 1, 2);
}

INLINE void pool(const WindowTask *t, const int maximum)
{
    const int K = t->kernel, ask = from_memory(t);
    const float factor = 1.0f / (K * K);
    for (int n = 0; n < t->images; n++)
        for (int y = t->y0; y < t->y1; y++)
            for (int x = 0; x < t->small_width; x++) {
                int top = y * t->stride - t->padding, left = x * t->stride - t->padding, ky0, ky1, kx0, kx1;
                clip_taps(top, K, t->large_height, &ky0, &ky1);
                clip_taps(left, K, t->large_width, &kx0, &kx1);
                const float *window = t->in.p + n * t->in.image + top * t->in.row + left * t->pitch;
                float *out = out_pixel(t, n, y, x);
                uint8_t *index = t->index + (((ptrdiff_t)n * t->small_height + y) * t->small_width + x) * t->pitch;
                if (ask)
                    ask_window(t, window, out, index, maximum);
        /* Constants for whole windows and for those of 3 x 3 that lack a first row or column. */
#define SMALL_WINDOW(K, KY0, KX0)                                   \
    {                                                               \
        if (maximum)                                                \
            max_window_small(t, window, out, index, K, KY0, KX0);   \
        else                                                        \
            average_window(t, window, out, factor, KY0, K, KX0, K); \
    }
                const int edge = ky1 < K || kx1 < K || ky0 > 1 || kx0 > 1 ? 4 : 2 * ky0 + kx0;
                if (K == 2 && edge == 0)
                    SMALL_WINDOW(2, 0, 0)
                else if (K == 3 && edge == 0)
                    SMALL_WINDOW(3, 0, 0)
                else if (K == 3 && edge == 1)
                    SMALL_WINDOW(3, 0, 1)
                else if (K == 3 && edge == 2)
                    SMALL_WINDOW(3, 1, 0)
                else if (maximum)
                    max_window(t, window, out, index, K, ky0, ky1, kx0, kx1);
                else
                    average_window(t, window, out, factor, ky0, ky1, kx0, kx1);
            }
}

static void max_pool(const WindowTask *t)
{
    pool(t, 1);
}
static void average_pool(const WindowTask *t)
{
    pool(t, 0);
}

/* Windows of 2 x 2 that do not meet: each sends its gradient to two columns of two rows. */
INLINE void pairs(const WindowTask *t, const int maximum)
{
    for (int n = 0; n < t->images; n++)
        for (int y = t->y0; y < t->y1; y++)
            for (int x = 0; x < t->small_width; x++) {
                const float *from = t->in.p + n * t->in.image + y / 2 * t->in.row + x * t->pitch;
                const uint8_t *index =
                    t->index + (((ptrdiff_t)n * t->small_height + y / 2) * t->small_width + x) * t->pitch;
                float *out = out_pixel(t, n, y, 2 * x);
                for (int c = 0; c < t->channels; c += VL) {
                    Vec g = load(from + c), first = g * 0.25f, second = first;
                    if (maximum) {
                        first = keep_lanes(equal_bytes(index + c, y % 2 * 2), g);
                        second = keep_lanes(equal_bytes(index + c, y % 2 * 2 + 1), g);
                    }
                    store_or_add(out + c, first, t->accumulate);
                    store_or_add(out + t->pitch + c, second, t->accumulate);
                    ask_large(t, n, y, 2 * x, c, 1, 2);
                }
            }
}

INLINE void pool_backward(const WindowTask *task, const int kind)
{
    const WindowTask asks = asking(task), *t = &asks;
    if (t->kernel == 2 && t->stride == 2 && t->padding == 0 && t->large_height == 2 * t->small_height &&
        t->large_width == 2 * t->small_width)
        pairs(t, kind == GATHER_MAX);
    else if (t->kernel == 3 && t->stride == 2)
        gather_strided(t, kind);
    else
        gather(t, kind);
}

static void max_pool_backward(const WindowTask *t)
{
    pool_backward(t, GATHER_MAX);
}
static void average_pool_backward(const WindowTask *t)
{
    pool_backward(t, GATHER_AVERAGE);
}

/* ---- global average pooling: any number of channels ---- */

static void global_mean(const NhwcTask *t, float *out, ptrdiff_t stride)
{
    float factor = 1.0f / ((float)t->rows * t->pixels);
    for (int n = 0; n < t->images; n++) {
        const float *image = t->plane[0].p + n * t->plane[0].image;
        FOR_VECTORS(c, lanes, t->channels, {
            Vec total = {0};
            for (int y = 0; y < t->rows; y++) {
                const float *x = image + y * t->plane[0].row + c;
                Vec sum = {0};
                for (int i = 0; i < t->pixels; i++, x += t->pitch)
                    sum += load_some(x, lanes);
                total += sum;
            }
            store_some(out + n * stride + c, total * factor, lanes);
        });
    }
}

static void spread(const NhwcTask *t, const float *values, ptrdiff_t stride, float scale)
{
    for (int n = 0; n < t->images; n++)
        for (int y = 0; y < t->rows; y++)
            for (int i = 0; i < t->pixels; i++) {
                float *out = t->plane[0].p + n * t->plane[0].image + y * t->plane[0].row + i * t->pitch;
                const float *v = values + n * stride;
                FOR_VECTORS(c, lanes, t->channels,
                            store_or_add_some(out + c, load_some(v + c, lanes) * scale, t->accumulate, lanes));
            }
}

const NhwcPoolingLoops ISA_SYMBOL(forktask_nhwc_pooling) = {
    .max_pool = max_pool,
    .max_pool_backward = max_pool_backward,
    .average_pool = average_pool,
    .average_pool_backward = average_pool_backward,
    .global_mean = global_mean,
    .spread = spread,
};
