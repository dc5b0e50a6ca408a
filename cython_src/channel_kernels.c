/* Inner loops over channels, see channel_kernels.h. Compiled once per instruction set. */
#include "channel_kernels.h"
#include "micro_kernels.h"
#include "vectors.h"

#include <math.h>
#include <string.h>

#if MICRO_ISA != GENERIC
#include <immintrin.h>
#endif

/* Vectors of channels that an inner loop keeps constants and sums of in registers. */
#if MICRO_ISA == AVX512
#define WIDE 4
#else
#define WIDE (UNIT / VL)
#endif
#define NARROW (UNIT / VL)
/* Floats of a map between two visits of the per-channel constants: a few maps' pieces stay in the first-level cache,
 * and sums are taken in two steps, which keeps their rounding small. */
#define CHUNK 2048

/* ---- activations ---- */

/* A NaN stays one. */
INLINE Vec clip_below(Vec x)
{
#if MICRO_ISA == AVX512
    return (Vec)_mm512_max_ps(_mm512_setzero_ps(), (__m512)x); /* the second operand where one is a NaN */
#elif MICRO_ISA == AVX2
    return (Vec)_mm256_max_ps(_mm256_setzero_ps(), (__m256)x);
#else
    return (Vec)((VecI)x & ~(x <= 0));
#endif
}

INLINE Vec clip_above(Vec x)
{
#if MICRO_ISA == AVX512
    return (Vec)_mm512_min_ps(_mm512_set1_ps(6), (__m512)x);
#elif MICRO_ISA == AVX2
    return (Vec)_mm256_min_ps(_mm256_set1_ps(6), (__m256)x);
#else
    VecI over = x >= 6;
    return (Vec)((over & (VecI)splat(6)) | (~over & (VecI)x));
#endif
}

INLINE Vec activated(Vec x, const int activation)
{
    if (activation)
        x = clip_below(x);
    return activation == 2 ? clip_above(x) : x;
}

/* g where the activation passes it, whose result or argument is y; zero elsewhere. */
INLINE Vec passed(Vec g, Vec y, const int activation)
{
    if (activation == 0)
        return g;
#if MICRO_ISA == AVX512
    __mmask16 mask = _mm512_cmp_ps_mask((__m512)y, _mm512_setzero_ps(), _CMP_GT_OQ);
    if (activation == 2)
        mask = _mm512_mask_cmp_ps_mask(mask, (__m512)y, _mm512_set1_ps(6), _CMP_LT_OQ);
    return (Vec)_mm512_maskz_mov_ps(mask, (__m512)g);
#else
    VecI mask = y > 0;
    if (activation == 2)
        mask &= y < 6;
    return (Vec)((VecI)g & mask);
#endif
}

INLINE float activated_one(float x, int activation)
{
    if (activation)
        x = x <= 0 ? 0 : x;
    return activation == 2 && x >= 6 ? 6 : x;
}

INLINE float passed_one(float g, float y, int activation)
{
    return activation == 0 || (y > 0 && !(activation == 2 && !(y < 6))) ? g : 0;
}

/* ---- loops over pieces of rows ---- */

typedef void Body(const ChannelTask *t, float *const *p, int pixels, float *sums, ptrdiff_t stride, const int a,
                  const int b);

/* Call `body` for pieces of all rows. Rows that follow one another in memory are one row. */
INLINE void each_chunk(const ChannelTask *t, const int planes, Body *body, float *sums, ptrdiff_t stride, const int a,
                       const int b)
{
    int rows = t->rows, pixels = t->pixels, whole = 1;
    UNROLL for (int i = 0; i < planes; i++) whole &= t->plane[i].p == NULL || t->plane[i].row == pixels * t->pitch;
    if (whole)
        pixels *= rows, rows = 1;
    int step = CHUNK / t->pitch < 4 ? 4 : CHUNK / t->pitch;
    for (int n = 0; n < t->images; n++)
        for (int y = 0; y < rows; y++)
            for (int x = 0; x < pixels; x += step) {
                float *p[MAX_PLANES];
                UNROLL for (int i = 0; i < planes; i++) p[i] =
                    t->plane[i].p ? t->plane[i].p + n * t->plane[i].image + y * t->plane[i].row + x * t->pitch : NULL;
                body(t, p, pixels - x < step ? pixels - x : step, sums, stride, a, b);
            }
}

/* Run CALL(N) with c the first channel, for N vectors of channels at a time. */
#define EACH_PART(CALL)                                        \
    int c = 0;                                                 \
    for (; c + WIDE * VL <= t->channels; c += WIDE * VL)       \
        CALL(WIDE);                                            \
    if (WIDE != NARROW)                                        \
        for (; c < t->channels; c += NARROW * VL)              \
            CALL(NARROW);

/* Call F(A, B) with constants for activations A and modes B from 0 to 2. */
#define BY_ACTIVATION(F, MODE)         \
    switch (3 * (MODE) + t->activation) { \
    case 0: F(0, 0); break;            \
    case 1: F(1, 0); break;            \
    case 2: F(2, 0); break;            \
    case 3: F(0, 1); break;            \
    case 4: F(1, 1); break;            \
    case 5: F(2, 1); break;            \
    case 6: F(0, 2); break;            \
    case 7: F(1, 2); break;            \
    case 8: F(2, 2); break;            \
    }

/* ---- batch normalisation ---- */

/* Sums of x - shift and of its square, the shift being the block's first pixel: it lies within the distribution, so
 * nothing is lost where the mean is large. */
INLINE void statistics_part(const ChannelTask *t, const float *x, int pixels, int c, const int N, float *sums,
                            ptrdiff_t stride)
{
    Vec shift[WIDE], sum[WIDE], square[WIDE];
    UNROLL for (int v = 0; v < N; v++) shift[v] = load(sums + 2 * stride + c + v * VL), sum[v] = square[v] = (Vec){0};
    for (int i = 0; i < pixels; i++, x += t->pitch)
        UNROLL for (int v = 0; v < N; v++)
        {
            Vec d = load(x + c + v * VL) - shift[v];
            sum[v] += d;
            square[v] += d * d;
        }
    UNROLL for (int v = 0; v < N; v++)
    {
        store(sums + c + v * VL, load(sums + c + v * VL) + sum[v]);
        store(sums + stride + c + v * VL, load(sums + stride + c + v * VL) + square[v]);
    }
}

INLINE void statistics_body(const ChannelTask *t, float *const *p, int pixels, float *sums, ptrdiff_t stride,
                            const int a, const int b)
{
#define CALL(N) statistics_part(t, p[0], pixels, c, N, sums, stride)
    EACH_PART(CALL)
#undef CALL
}

static void statistics(const ChannelTask *t, float *out, ptrdiff_t stride)
{
    float count = (float)t->images * t->rows * t->pixels;
    memset(out, 0, t->channels * sizeof(float));
    memset(out + stride, 0, t->channels * sizeof(float));
    memcpy(out + 2 * stride, t->plane[0].p, t->channels * sizeof(float));
    each_chunk(t, 1, statistics_body, out, stride, 0, 0);
    for (int c = 0; c < t->channels; c += VL) {
        Vec sum = load(out + c), mean = sum / count, square = load(out + stride + c) - sum * mean;
        store(out + c, load(out + 2 * stride + c) + mean);
        store(out + stride + c, clip_below(square));
        store(out + 2 * stride + c, splat(count));
    }
}

static void merge_statistics(const float *partial, int partials, ptrdiff_t pitch, int channels, float count, float *mean,
                             float *squares)
{
    for (int c = 0; c < channels; c += VL) {
        Vec total = {0}, square = {0};
        for (int p = 0; p < partials; p++) {
            const float *from = partial + p * 3 * pitch + c;
            total += load(from) * load(from + 2 * pitch);
        }
        Vec m = total / count;
        for (int p = 0; p < partials; p++) {
            const float *from = partial + p * 3 * pitch + c;
            Vec d = load(from) - m;
            square += load(from + pitch) + load(from + 2 * pitch) * d * d;
        }
        store(mean + c, m);
        store(squares + c, square);
    }
}

static void sum_partials(const float *partial, int partials, ptrdiff_t stride, int channels, float *out)
{
    int c = 0;
    for (; c + VL <= channels; c += VL) {
        Vec total = load(partial + c);
        for (int p = 1; p < partials; p++)
            total += load(partial + p * stride + c);
        store(out + c, total);
    }
    for (; c < channels; c++) {
        float total = partial[c];
        for (int p = 1; p < partials; p++)
            total += partial[p * stride + c];
        out[c] = total;
    }
}

INLINE void norm_apply_part(const ChannelTask *t, float *const *p, int pixels, int c, const int N, const int activation,
                            const int residual)
{
    const float *const *vector = t->vector;
    const ptrdiff_t pitch = t->pitch;
    const float *x = p[0] + c, *r = residual ? p[2] + c : NULL;
    float *y = p[1] + c;
    Vec scale[WIDE], shift[WIDE], scale2[WIDE];
    UNROLL for (int v = 0; v < N; v++)
    {
        scale[v] = load(vector[0] + c + v * VL), shift[v] = load(vector[1] + c + v * VL);
        if (residual == RESIDUAL_SCALED) /* two shifts are one */
            scale2[v] = load(vector[2] + c + v * VL), shift[v] += load(vector[3] + c + v * VL);
    }
    for (int i = 0; i < pixels; i++) {
        UNROLL for (int v = 0; v < N; v++)
        {
            Vec out = scale[v] * load(x + v * VL) + shift[v];
            if (residual == RESIDUAL_PLAIN)
                out += load(r + v * VL);
            if (residual == RESIDUAL_SCALED)
                out += scale2[v] * load(r + v * VL);
            store(y + v * VL, activated(out, activation));
        }
        x += pitch, y += pitch;
        if (residual)
            r += pitch;
    }
}

INLINE void norm_apply_body(const ChannelTask *t, float *const *p, int pixels, float *sums, ptrdiff_t stride,
                            const int a, const int b)
{
#define CALL(N) norm_apply_part(t, p, pixels, c, N, a, b)
    EACH_PART(CALL)
#undef CALL
}

static void norm_apply(const ChannelTask *t)
{
#define CALL(A, B) each_chunk(t, B ? 3 : 2, norm_apply_body, NULL, 0, A, B)
    BY_ACTIVATION(CALL, t->residual)
#undef CALL
}

/* Sums of g and g (x - mean). The mask's argument is computed as norm_apply() did, so it is the same number. */
INLINE void backward_statistics_part(const ChannelTask *t, float *const *p, int pixels, int c, const int N,
                                     const int activation, const int mask, float *sums, ptrdiff_t stride)
{
    const float *const *vector = t->vector;
    const ptrdiff_t pitch = t->pitch;
    const float *dy = p[0] + c, *x = p[1] + c, *y = mask == MASK_RESULT ? p[2] + c : NULL;
    Vec mean[WIDE], scale[WIDE], shift[WIDE], sum[WIDE], product[WIDE];
    UNROLL for (int v = 0; v < N; v++)
    {
        mean[v] = load(vector[0] + c + v * VL), sum[v] = product[v] = (Vec){0};
        if (mask == MASK_ARGUMENT)
            scale[v] = load(vector[2] + c + v * VL), shift[v] = load(vector[3] + c + v * VL);
    }
    for (int i = 0; i < pixels; i++) {
        UNROLL for (int v = 0; v < N; v++)
        {
            Vec z = load(x + v * VL), g = load(dy + v * VL);
            if (mask == MASK_RESULT)
                g = passed(g, load(y + v * VL), activation);
            if (mask == MASK_ARGUMENT)
                g = passed(g, scale[v] * z + shift[v], activation);
            sum[v] += g;
            product[v] += g * (z - mean[v]);
        }
        dy += pitch, x += pitch;
        if (mask == MASK_RESULT)
            y += pitch;
    }
    UNROLL for (int v = 0; v < N; v++)
    {
        store(sums + c + v * VL, load(sums + c + v * VL) + sum[v]);
        store(sums + stride + c + v * VL, load(sums + stride + c + v * VL) + product[v]);
    }
}

INLINE void backward_statistics_body(const ChannelTask *t, float *const *p, int pixels, float *sums, ptrdiff_t stride,
                                     const int a, const int b)
{
#define CALL(N) backward_statistics_part(t, p, pixels, c, N, a, b, sums, stride)
    EACH_PART(CALL)
#undef CALL
}

static void norm_backward_statistics(const ChannelTask *t, float *out, ptrdiff_t stride)
{
    memset(out, 0, t->channels * sizeof(float));
    memset(out + stride, 0, t->channels * sizeof(float));
#define CALL(A, B) each_chunk(t, B == MASK_RESULT ? 3 : 2, backward_statistics_body, out, stride, A, B)
    BY_ACTIVATION(CALL, t->mask)
#undef CALL
    for (int c = 0; c < t->channels; c += VL)
        store(out + stride + c, load(out + stride + c) * load(t->vector[1] + c));
}

INLINE void backward_apply_part(const ChannelTask *t, float *const *p, int pixels, int c, const int N,
                                const int activation, const int mask, const int branch)
{
    const float *const *vector = t->vector;
    const ptrdiff_t pitch = t->pitch;
    Vec a[WIDE], b[WIDE], shift[WIDE], mean[WIDE], scale[WIDE], offset[WIDE];
    UNROLL for (int v = 0; v < N; v++)
    {
        a[v] = load(vector[0] + c + v * VL), b[v] = load(vector[1] + c + v * VL);
        shift[v] = load(vector[2] + c + v * VL), mean[v] = load(vector[3] + c + v * VL);
        if (mask == MASK_ARGUMENT)
            scale[v] = load(vector[4] + c + v * VL), offset[v] = load(vector[5] + c + v * VL);
    }
    for (int i = 0; i < pixels; i++) {
        const ptrdiff_t at = i * pitch + c;
        UNROLL for (int v = 0; v < N; v++)
        {
            Vec z = load(p[1] + at + v * VL), g = load(p[0] + at + v * VL);
            if (mask == MASK_RESULT)
                g = passed(g, load(p[3] + at + v * VL), activation);
            if (mask == MASK_ARGUMENT)
                g = passed(g, scale[v] * z + offset[v], activation);
            store(p[2] + at + v * VL, a[v] * g + (b[v] * (z - mean[v]) + shift[v]));
            if (branch == BRANCH_WRITE)
                store(p[4] + at + v * VL, g);
            if (branch == BRANCH_ADD)
                store(p[4] + at + v * VL, load(p[4] + at + v * VL) + g);
        }
    }
}

#define BACKWARD_APPLY(BRANCH)                                                                                 \
    INLINE void backward_apply_body_##BRANCH(const ChannelTask *t, float *const *p, int pixels, float *sums,   \
                                             ptrdiff_t stride, const int a, const int b)                       \
    {                                                                                                          \
        EACH_PART(BACKWARD_CALL_##BRANCH)                                                                      \
    }
#define BACKWARD_CALL_0(N) backward_apply_part(t, p, pixels, c, N, a, b, BRANCH_NONE)
#define BACKWARD_CALL_1(N) backward_apply_part(t, p, pixels, c, N, a, b, BRANCH_WRITE)
#define BACKWARD_CALL_2(N) backward_apply_part(t, p, pixels, c, N, a, b, BRANCH_ADD)
BACKWARD_APPLY(0)
BACKWARD_APPLY(1)
BACKWARD_APPLY(2)

static void norm_backward_apply(const ChannelTask *t)
{
    /* Planes that a form does not use are NULL and take no part in the addresses. */
#define CALL_0(A, B) each_chunk(t, B == MASK_RESULT ? 4 : 3, backward_apply_body_0, NULL, 0, A, B)
#define CALL_1(A, B) each_chunk(t, 5, backward_apply_body_1, NULL, 0, A, B)
#define CALL_2(A, B) each_chunk(t, 5, backward_apply_body_2, NULL, 0, A, B)
    if (t->residual == BRANCH_NONE) {
        BY_ACTIVATION(CALL_0, t->mask)
    } else if (t->residual == BRANCH_WRITE) {
        BY_ACTIVATION(CALL_1, t->mask)
    } else {
        BY_ACTIVATION(CALL_2, t->mask)
    }
}

/* ---- elementwise: any number of channels ---- */

INLINE void activate_run(const float *x, const float *second, float *y, ptrdiff_t n, const int activation,
                         const int add)
{
    ptrdiff_t i = 0;
    for (; i + VL <= n; i += VL) {
        Vec v = load(x + i);
        if (add)
            v += load(second + i);
        store(y + i, activated(v, activation));
    }
    for (; i < n; i++)
        y[i] = activated_one(add ? x[i] + second[i] : x[i], activation);
}

INLINE void activate_body(const ChannelTask *t, float *const *p, int pixels, float *sums, ptrdiff_t stride, const int a,
                          const int b)
{
    if (t->channels == t->pitch) {
        activate_run(p[0], b ? p[2] : NULL, p[1], pixels * t->pitch, a, b);
        return;
    }
    for (ptrdiff_t at = 0; at < pixels * t->pitch; at += t->pitch)
        activate_run(p[0] + at, b ? p[2] + at : NULL, p[1] + at, t->channels, a, b);
}

static void activate(const ChannelTask *t)
{
#define CALL(A, B) each_chunk(t, B ? 3 : 2, activate_body, NULL, 0, A, B)
    BY_ACTIVATION(CALL, t->residual)
#undef CALL
}

INLINE void activate_backward_run(const float *dy, const float *y, float *first, float *second, ptrdiff_t n,
                                  const int activation, const int accumulate, const int branch)
{
    ptrdiff_t i = 0;
    for (; i + VL <= n; i += VL) {
        Vec g = load(dy + i);
        if (activation)
            g = passed(g, load(y + i), activation);
        Vec old = accumulate ? load(first + i) : (Vec){0};
        store(first + i, old + g);
        if (branch) {
            old = branch == BRANCH_ADD ? load(second + i) : (Vec){0};
            store(second + i, old + g);
        }
    }
    for (; i < n; i++) {
        float g = activation ? passed_one(dy[i], y[i], activation) : dy[i];
        first[i] = accumulate ? first[i] + g : g;
        if (branch)
            second[i] = branch == BRANCH_ADD ? second[i] + g : g;
    }
}

INLINE void activate_backward_body(const ChannelTask *t, float *const *p, int pixels, float *sums, ptrdiff_t stride,
                                   const int a, const int b)
{
    ptrdiff_t step = t->channels == t->pitch ? pixels * t->pitch : t->pitch;
    ptrdiff_t n = t->channels == t->pitch ? step : t->channels;
    for (ptrdiff_t at = 0; at < pixels * t->pitch; at += step)
        activate_backward_run(p[0] + at, a ? p[1] + at : NULL, p[2] + at, b ? p[3] + at : NULL, n, a, t->accumulate, b);
}

static void activate_backward(const ChannelTask *t)
{
#define CALL(A, B) each_chunk(t, 4, activate_backward_body, NULL, 0, A, B)
    BY_ACTIVATION(CALL, t->residual)
#undef CALL
}

const ChannelKernels ISA_SYMBOL(forktask_channels) = {
    .statistics = statistics,
    .merge_statistics = merge_statistics,
    .sum_partials = sum_partials,
    .norm_apply = norm_apply,
    .norm_backward_statistics = norm_backward_statistics,
    .norm_backward_apply = norm_backward_apply,
    .activate = activate,
    .activate_backward = activate_backward,
};
