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

INLINE void store_or_add(float *p, Vec v, const int add)
{
    if (add)
        v += load(p);
    store(p, v);
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
            if (branch)
                store_or_add(p[4] + at + v * VL, g, branch == BRANCH_ADD);
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
        store_or_add(first + i, g, accumulate);
        if (branch)
            store_or_add(second + i, g, branch == BRANCH_ADD);
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

/* ---- dropout ---- */

#define WORDS 16 /* calls of the generator side by side */

/* Philox4x32-10: words[w][lane] from the counter (first + lane, row, layer, iteration). */
static void philox(uint32_t first, uint32_t row, uint32_t layer, uint32_t iteration, uint64_t seed,
                   uint32_t words[4][WORDS])
{
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int i = 0; i < WORDS; i++)
        words[0][i] = first + i, words[1][i] = row, words[2][i] = layer, words[3][i] = iteration;
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < WORDS; i++) {
            uint64_t a = (uint64_t)words[0][i] * 0xD2511F53u, b = (uint64_t)words[2][i] * 0xCD9E8D57u;
            uint32_t c1 = words[1][i], c3 = words[3][i];
            words[0][i] = (uint32_t)(b >> 32) ^ c1 ^ k0;
            words[1][i] = (uint32_t)b;
            words[2][i] = (uint32_t)(a >> 32) ^ c3 ^ k1;
            words[3][i] = (uint32_t)a;
        }
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
}

static void dropout(const ChannelTask *t, int height, int first_row, uint64_t seed, uint32_t layer, uint32_t iteration,
                    uint32_t threshold, float scale)
{
    ptrdiff_t elements = t->pixels * t->pitch;
    uint32_t words[4][WORDS];
    for (int n = 0; n < t->images; n++)
        for (int y = 0; y < t->rows; y++) {
            const float *x = t->plane[0].p + n * t->plane[0].image + y * t->plane[0].row;
            float *out = t->plane[1].p + n * t->plane[1].image + y * t->plane[1].row;
            for (ptrdiff_t e = 0; e < elements; e++) {
                if (e % (4 * WORDS) == 0)
                    philox((uint32_t)(e / 4), (uint32_t)(first_row + n * height + y), layer, iteration, seed, words);
                out[e] = words[e / WORDS % 4][e % WORDS] >= threshold ? x[e] * scale : 0;
            }
        }
}

/* ---- global average pooling: any number of channels ---- */

static void global_mean(const ChannelTask *t, float *out, ptrdiff_t stride)
{
    float factor = 1.0f / ((float)t->rows * t->pixels);
    for (int n = 0; n < t->images; n++) {
        const float *image = t->plane[0].p + n * t->plane[0].image;
        int c = 0;
        for (; c + VL <= t->channels; c += VL) {
            Vec total = {0};
            for (int y = 0; y < t->rows; y++) {
                const float *x = image + y * t->plane[0].row + c;
                Vec sum = {0};
                for (int i = 0; i < t->pixels; i++, x += t->pitch)
                    sum += load(x);
                total += sum;
            }
            store(out + n * stride + c, total * factor);
        }
        for (; c < t->channels; c++) {
            float total = 0;
            for (int y = 0; y < t->rows; y++) {
                float sum = 0;
                for (int i = 0; i < t->pixels; i++)
                    sum += image[y * t->plane[0].row + i * t->pitch + c];
                total += sum;
            }
            out[n * stride + c] = total * factor;
        }
    }
}

static void spread(const ChannelTask *t, const float *values, ptrdiff_t stride, float scale)
{
    for (int n = 0; n < t->images; n++)
        for (int y = 0; y < t->rows; y++)
            for (int i = 0; i < t->pixels; i++) {
                float *out = t->plane[0].p + n * t->plane[0].image + y * t->plane[0].row + i * t->pitch;
                const float *v = values + n * stride;
                int c = 0;
                for (; c + VL <= t->channels; c += VL)
                    store_or_add(out + c, load(v + c) * scale, t->accumulate);
                for (; c < t->channels; c++)
                    out[c] = t->accumulate ? out[c] + v[c] * scale : v[c] * scale;
            }
}

/* ---- optimisers ---- */

/* Pieces of [start, stop) that are contiguous in a partial. */
#define EACH_RUN(t)                                                                                                   for (ptrdiff_t e = (t)->start, run; e < (t)->stop; e += run)                                                          if (run = (t)->row_length - e % (t)->row_length, run = run < (t)->stop - e ? run : (t)->stop - e, 1)

INLINE const float *run_of(const OptimizerTask *t, ptrdiff_t e)
{
    return t->partial ? t->partial + e / t->row_length * t->row_stride + e % t->row_length : NULL;
}

INLINE Vec summed(const OptimizerTask *t, const float *partial, ptrdiff_t e, ptrdiff_t i)
{
    if (partial == NULL)
        return load(t->gradient + e + i);
    Vec g = load(partial + i);
    for (int p = 1; p < t->partials; p++)
        g += load(partial + p * t->partial_stride + i);
    store(t->gradient + e + i, g);
    return g;
}

INLINE float summed_one(const OptimizerTask *t, const float *partial, ptrdiff_t e, ptrdiff_t i)
{
    if (partial == NULL)
        return t->gradient[e + i];
    float g = partial[i];
    for (int p = 1; p < t->partials; p++)
        g += partial[p * t->partial_stride + i];
    return t->gradient[e + i] = g;
}

static void sgd(const OptimizerTask *t)
{
    EACH_RUN(t)
    {
        const float *partial = run_of(t, e);
        float *w = t->parameter + e, *v = t->first ? t->first + e : NULL;
        ptrdiff_t i = 0;
        for (; i + VL <= run; i += VL) {
            Vec weight = load(w + i), g = t->scale * summed(t, partial, e, i) + t->decay * weight;
            if (v) {
                g += t->momentum * load(v + i);
                store(v + i, g);
            }
            store(w + i, weight - t->rate * g);
        }
        for (; i < run; i++) {
            float g = t->scale * summed_one(t, partial, e, i) + t->decay * w[i];
            if (v)
                v[i] = g = t->momentum * v[i] + g;
            w[i] -= t->rate * g;
        }
    }
}

INLINE Vec square_root(Vec x)
{
#if MICRO_ISA == AVX512
    return (Vec)_mm512_sqrt_ps((__m512)x);
#elif MICRO_ISA == AVX2
    return (Vec)_mm256_sqrt_ps((__m256)x);
#else
    UNROLL for (int i = 0; i < VL; i++) x[i] = sqrtf(x[i]);
    return x;
#endif
}

static void adam(const OptimizerTask *t)
{
    EACH_RUN(t)
    {
        const float *partial = run_of(t, e);
        float *w = t->parameter + e, *m = t->first + e, *s = t->second + e;
        ptrdiff_t i = 0;
        for (; i + VL <= run; i += VL) {
            Vec weight = load(w + i), g = t->scale * summed(t, partial, e, i) + t->decay * weight;
            Vec first = t->beta1 * load(m + i) + (1 - t->beta1) * g;
            Vec second = t->beta2 * load(s + i) + (1 - t->beta2) * (g * g);
            store(m + i, first);
            store(s + i, second);
            store(w + i, t->shrink * weight - t->step * first / (square_root(second) * t->correction + t->eps));
        }
        for (; i < run; i++) {
            float g = t->scale * summed_one(t, partial, e, i) + t->decay * w[i];
            m[i] = t->beta1 * m[i] + (1 - t->beta1) * g;
            s[i] = t->beta2 * s[i] + (1 - t->beta2) * (g * g);
            w[i] = t->shrink * w[i] - t->step * m[i] / (sqrtf(s[i]) * t->correction + t->eps);
        }
    }
}

static float gradient_sum(const OptimizerTask *t)
{
    float total = 0;
    EACH_RUN(t)
    {
        const float *partial = run_of(t, e);
        Vec squares = {0};
        ptrdiff_t i = 0;
        for (; i + VL <= run; i += VL) {
            Vec g = summed(t, partial, e, i);
            squares += g * g;
        }
        total += lane_sum(squares);
        for (; i < run; i++) {
            float g = summed_one(t, partial, e, i);
            total += g * g;
        }
    }
    return total;
}

/* ---- windows: pooling and depthwise convolution ---- */

INLINE int at_least(int a, int b) { return a > b ? a : b; }
INLINE int at_most(int a, int b) { return a < b ? a : b; }
/* a / b rounded up; b > 0 */
INLINE int ceiling(int a, int b) { return a > 0 ? (a + b - 1) / b : -(-a / b); }

/* Taps [*first, *last) of a window that begins at `start` and meet [0, size), one axis. */
INLINE void clip_taps(int start, int kernel, int size, int *first, int *last)
{
    *first = at_least(0, -start);
    *last = at_most(kernel, size - start);
}

/* Windows [first, last) that an element of the large side lies in, one axis: followed from element to element, which
 * takes no division. */
typedef struct Cover {
    int first, last;
} Cover;

INLINE Cover cover_start(const WindowTask *t, int i)
{
    return (Cover){at_least(0, ceiling(i + t->padding - t->kernel + 1, t->stride)), (i + t->padding) / t->stride + 1};
}

INLINE void cover_next(const WindowTask *t, int i, Cover *cover)
{
    cover->first += cover->first * t->stride < i + t->padding - t->kernel + 1;
    cover->last += cover->last * t->stride <= i + t->padding;
}

INLINE float *out_pixel(const WindowTask *t, int n, int y, int x)
{
    return t->out.p + n * t->out.image + y * t->out.row + x * t->pitch;
}

/* Call BODY(N) with c the first channel, for N vectors at a time: several chains of operations side by side. */
#define EACH_GROUP(BODY)                                           \
    {                                                              \
        int c = 0;                                                 \
        for (; c + WIDE * VL <= t->channels; c += WIDE * VL)       \
            BODY(WIDE);                                            \
        if (WIDE != NARROW)                                        \
            for (; c < t->channels; c += NARROW * VL)              \
                BODY(NARROW);                                      \
    }

/* ---- pooling ---- */

/* The larger of best and x, which is a tap of that number; of equals the first, but a NaN stays. */
INLINE void keep_larger(Vec *best, VecI *where, Vec x, int tap)
{
#if MICRO_ISA == AVX512
    __mmask16 larger = _mm512_cmp_ps_mask((__m512)x, (__m512)*best, _CMP_GT_OQ) |
                       _mm512_cmp_ps_mask((__m512)x, (__m512)x, _CMP_UNORD_Q);
    *best = (Vec)_mm512_mask_mov_ps((__m512)*best, larger, (__m512)x);
    *where = (VecI)_mm512_mask_mov_epi32((__m512i)*where, larger, _mm512_set1_epi32(tap));
#else
    VecI larger = (x > *best) | (x != x);
    *best = (Vec)((larger & (VecI)x) | (~larger & (VecI)*best));
    *where = (larger & tap) | (~larger & *where);
#endif
}

INLINE void store_bytes(uint8_t *p, VecI v)
{
#if MICRO_ISA == AVX512
    _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8((__m512i)v));
#elif MICRO_ISA == AVX2
    __m128i words = _mm_packus_epi32(_mm256_castsi256_si128((__m256i)v), _mm256_extracti128_si256((__m256i)v, 1));
    _mm_storel_epi64((__m128i *)p, _mm_packus_epi16(words, words));
#else
    UNROLL for (int i = 0; i < VL; i++) p[i] = (uint8_t)v[i];
#endif
}

/* g where the index is `tap`, else zero. */
INLINE Vec picked(const float *g, const uint8_t *index, int tap)
{
#if MICRO_ISA == AVX512
    __mmask16 mask = _mm_cmpeq_epi8_mask(_mm_loadu_si128((const __m128i *)index), _mm_set1_epi8((char)tap));
    return (Vec)_mm512_maskz_loadu_ps(mask, g);
#elif MICRO_ISA == AVX2
    VecI where = (VecI)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)index));
    return (Vec)((where == tap) & (VecI)load(g));
#else
    Vec v;
    UNROLL for (int i = 0; i < VL; i++) v[i] = index[i] == tap ? g[i] : 0;
    return v;
#endif
}

INLINE void max_window(const WindowTask *t, const float *window, float *out, uint8_t *index, const int K, int ky0,
                       int ky1, int kx0, int kx1)
{
#define MAX_GROUP(N)                                                                                         \
    {                                                                                                        \
        Vec best[N];                                                                                         \
        VecI where[N];                                                                                       \
        UNROLL for (int v = 0; v < N; v++) best[v] = load(window + ky0 * t->in.row + kx0 * t->pitch + c + v * VL), \
                                           where[v] = (VecI){0} + (ky0 * K + kx0);                           \
        for (int ky = ky0; ky < ky1; ky++)                                                                   \
            for (int kx = kx0; kx < kx1; kx++)                                                               \
                UNROLL for (int v = 0; v < N; v++) keep_larger(                                              \
                    &best[v], &where[v], load(window + ky * t->in.row + kx * t->pitch + c + v * VL), ky * K + kx); \
        UNROLL for (int v = 0; v < N; v++) store(out + c + v * VL, best[v]), store_bytes(index + c + v * VL, where[v]); \
    }
    EACH_GROUP(MAX_GROUP)
}

INLINE void average_window(const WindowTask *t, const float *window, float *out, float factor, int ky0, int ky1, int kx0,
                           int kx1)
{
#define AVERAGE_GROUP(N)                                                                                \
    {                                                                                                   \
        Vec sum[N];                                                                                     \
        UNROLL for (int v = 0; v < N; v++) sum[v] = (Vec){0};                                           \
        for (int ky = ky0; ky < ky1; ky++)                                                              \
            for (int kx = kx0; kx < kx1; kx++)                                                          \
                UNROLL for (int v = 0; v < N; v++) sum[v] +=                                            \
                    load(window + ky * t->in.row + kx * t->pitch + c + v * VL);                         \
        UNROLL for (int v = 0; v < N; v++) store(out + c + v * VL, sum[v] * factor);                    \
    }
    EACH_GROUP(AVERAGE_GROUP)
}

INLINE void pool(const WindowTask *t, const int maximum)
{
    const int K = t->kernel;
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
                int whole = ky0 == 0 && kx0 == 0 && ky1 == K && kx1 == K;
                if (maximum && K == 2 && whole)
                    max_window(t, window, out, index, 2, 0, 2, 0, 2);
                else if (maximum && K == 3 && whole)
                    max_window(t, window, out, index, 3, 0, 3, 0, 3);
                else if (maximum)
                    max_window(t, window, out, index, K, ky0, ky1, kx0, kx1);
                else if (K == 2 && whole)
                    average_window(t, window, out, factor, 0, 2, 0, 2);
                else if (K == 3 && whole)
                    average_window(t, window, out, factor, 0, 3, 0, 3);
                else
                    average_window(t, window, out, factor, ky0, ky1, kx0, kx1);
            }
}

static void max_pool(const WindowTask *t) { pool(t, 1); }
static void average_pool(const WindowTask *t) { pool(t, 0); }

enum { GATHER_MAX, GATHER_AVERAGE, GATHER_DEPTHWISE };

/* Each element of the large side adds up what the windows it lies in send it, in their order. */
INLINE void gather(const WindowTask *t, const int form)
{
    const float factor = 1.0f / (t->kernel * t->kernel);
    for (int n = 0; n < t->images; n++) {
        Cover rows = cover_start(t, t->y0);
        for (int y = t->y0; y < t->y1; y++) {
            cover_next(t, y, &rows);
            const int oy0 = rows.first, oy1 = at_most(rows.last, t->small_height);
            Cover columns = cover_start(t, 0);
            for (int x = 0; x < t->large_width; x++) {
                cover_next(t, x, &columns);
                const int ox0 = columns.first, ox1 = at_most(columns.last, t->small_width);
                float *out = out_pixel(t, n, y, x);
#define GATHER_GROUP(N)                                                                                            \
    {                                                                                                              \
        Vec sum[N];                                                                                                \
        UNROLL for (int v = 0; v < N; v++) sum[v] = (Vec){0};                                                      \
        for (int oy = oy0; oy < oy1; oy++)                                                                         \
            for (int ox = ox0; ox < ox1; ox++) {                                                                   \
                const int tap =                                                                                    \
                    (y + t->padding - oy * t->stride) * t->kernel + x + t->padding - ox * t->stride;               \
                const float *g = t->in.p + n * t->in.image + oy * t->in.row + ox * t->pitch + c;                   \
                const ptrdiff_t at = (((ptrdiff_t)n * t->small_height + oy) * t->small_width + ox) * t->pitch + c; \
                const float *weight = t->weight + tap * (ptrdiff_t)t->channels + c;                                \
                UNROLL for (int v = 0; v < N; v++)                                                                 \
                {                                                                                                  \
                    if (form == GATHER_MAX)                                                                        \
                        sum[v] += picked(g + v * VL, t->index + at + v * VL, tap);                                 \
                    else if (form == GATHER_AVERAGE)                                                               \
                        sum[v] += load(g + v * VL);                                                                \
                    else                                                                                           \
                        sum[v] += load(weight + v * VL) * load(g + v * VL);                                        \
                }                                                                                                  \
            }                                                                                                      \
        UNROLL for (int v = 0; v < N; v++)                                                                         \
        {                                                                                                          \
            if (form == GATHER_AVERAGE)                                                                            \
                sum[v] *= factor;                                                                                  \
            store_or_add(out + c + v * VL, sum[v], t->accumulate);                                                 \
        }                                                                                                          \
    }
                EACH_GROUP(GATHER_GROUP)
            }
        }
    }
}

/* Two rows and columns of gradient from each maximum: windows of 2 x 2 that do not meet. */
static void max_pool_backward_2x2(const WindowTask *t)
{
    for (int n = 0; n < t->images; n++)
        for (int y = t->y0; y < t->y1; y++)
            for (int x = 0; x < t->small_width; x++) {
                const float *g = t->in.p + n * t->in.image + y / 2 * t->in.row + x * t->pitch;
                const uint8_t *index =
                    t->index + (((ptrdiff_t)n * t->small_height + y / 2) * t->small_width + x) * t->pitch;
                float *out = out_pixel(t, n, y, 2 * x);
                for (int c = 0; c < t->channels; c += VL) {
                    store_or_add(out + c, picked(g + c, index + c, y % 2 * 2), t->accumulate);
                    store_or_add(out + t->pitch + c, picked(g + c, index + c, y % 2 * 2 + 1), t->accumulate);
                }
            }
}

static void max_pool_backward(const WindowTask *t)
{
    if (t->kernel == 2 && t->stride == 2 && t->padding == 0 && t->large_height == 2 * t->small_height &&
        t->large_width == 2 * t->small_width)
        max_pool_backward_2x2(t);
    else
        gather(t, GATHER_MAX);
}

static void average_pool_backward(const WindowTask *t) { gather(t, GATHER_AVERAGE); }

/* ---- depthwise convolution ---- */

/* Channels that are taken through all rows at once: the pixels of a tile stay in the first-level cache. */
#define DEPTHWISE_CHANNELS 128
#define DEPTHWISE_ROWS 2 /* of a 3 x 3 tile of four columns: its sums and the weights fit into 32 registers */

static void depthwise_pack(const float *weight, int channels, int padded, int taps, int flip, float *out)
{
    for (int tap = 0; tap < taps; tap++) {
        const float *from = weight + (flip ? taps - 1 - tap : tap);
        for (int c = 0; c < channels; c++)
            out[tap * padded + c] = from[c * taps];
        for (int c = channels; c < padded; c++)
            out[tap * padded + c] = 0;
    }
}

/* Rows and columns of a tile's inputs that can be read: [i0, i1) x [j0, j1). */
typedef struct Part {
    int i0, i1, j0, j1;
} Part;

/* What of [start, start + count) can be read, one axis of the large side. */
INLINE void clip(const WindowTask *t, int start, int count, int size, int *first, int *last)
{
    *first = at_least(0, -t->large_halo - start);
    *last = at_most(count, size + t->large_halo - start);
}

/* R rows x T columns of outputs of one vector of channels. Each output is summed over taps in their order, so the
 * shape of the tile does not show in the result. x: the first tap of the first output. With `whole`, all of the tile's
 * inputs can be read; otherwise the tests cost little beside the arithmetic. */
INLINE void depthwise_tile(const WindowTask *t, const float *x, const float *w, const float *bias, float *out,
                           const int K, const int S, const int R, const int T, const int whole, const Part *part)
{
    const ptrdiff_t channels = t->channels;
    const int HELD = MICRO_ISA == AVX512 && K == 3; /* weights in registers */
    Vec sum[R][T], weight[HELD ? K * K : 1], start = bias ? load(bias) : (Vec){0};
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int q = 0; q < T; q++) sum[r][q] = start;
    if (HELD)
        UNROLL for (int k = 0; k < K * K; k++) weight[k] = load(w + k * channels);
    UNROLL for (int i = 0; i < (R - 1) * S + K; i++)
    {
        if (!whole && (i < part->i0 || i >= part->i1))
            continue;
        UNROLL for (int j = 0; j < (T - 1) * S + K; j++)
        {
            if (!whole && (j < part->j0 || j >= part->j1))
                continue;
            Vec v = load(x + i * t->in.row + j * t->pitch);
            UNROLL for (int r = 0; r < R; r++) UNROLL for (int q = 0; q < T; q++)
            {
                const int ky = i - r * S, kx = j - q * S;
                if (ky >= 0 && ky < K && kx >= 0 && kx < K) {
                    if (HELD)
                        sum[r][q] += weight[HELD ? ky * K + kx : 0] * v;
                    else
                        sum[r][q] += load(w + (ky * K + kx) * channels) * v;
                }
            }
        }
    }
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int q = 0; q < T; q++)
    {
        Vec y = sum[r][q];
        if (t->activation)
            y = t->activation == 1 ? activated(y, 1) : activated(y, 2);
        store_or_add(out + r * t->out.row + q * t->pitch, y, t->accumulate);
    }
}

/* One output, any kernel and stride. */
INLINE void depthwise_pixel(const WindowTask *t, const float *x, const float *w, const float *bias, float *out,
                            const Part *part)
{
    Vec sum = bias ? load(bias) : (Vec){0};
    for (int ky = part->i0; ky < part->i1; ky++)
        for (int kx = part->j0; kx < part->j1; kx++)
            sum += load(w + (ky * t->kernel + kx) * (ptrdiff_t)t->channels) *
                   load(x + ky * t->in.row + kx * t->pitch);
    if (t->activation)
        sum = t->activation == 1 ? activated(sum, 1) : activated(sum, 2);
    store_or_add(out, sum, t->accumulate);
}

/* R x T outputs from (y, x) on, channels [c0, c1). K = 0: any kernel and stride, one output. */
INLINE void depthwise_piece(const WindowTask *t, int n, int y, int x, int c0, int c1, const int K, const int S,
                            const int R, const int T)
{
    const int k = K ? K : t->kernel, s = K ? S : t->stride, top = y * s - t->padding, left = x * s - t->padding;
    const int rows = (R - 1) * s + k, columns = (T - 1) * s + k;
    Part part;
    clip(t, top, rows, t->large_height, &part.i0, &part.i1);
    clip(t, left, columns, t->large_width, &part.j0, &part.j1);
    const int whole = part.i0 == 0 && part.j0 == 0 && part.i1 == rows && part.j1 == columns;
    const float *in = t->in.p + n * t->in.image + top * t->in.row + left * t->pitch;
    float *out = out_pixel(t, n, y, x);
    for (int c = c0; c < c1; c += VL) {
        const float *bias = t->bias ? t->bias + c : NULL;
        if (K == 0)
            depthwise_pixel(t, in + c, t->weight + c, bias, out + c, &part);
        else if (whole && T == 4) /* smaller tiles are rare: one form of them is enough */
            depthwise_tile(t, in + c, t->weight + c, bias, out + c, K, S, R, T, 1, &part);
        else
            depthwise_tile(t, in + c, t->weight + c, bias, out + c, K, S, R, T, 0, &part);
    }
}

INLINE void depthwise_row(const WindowTask *t, int n, int y, int c0, int c1, const int K, const int S, const int R)
{
    int x = 0;
    if (K)
        for (; x + 4 <= t->small_width; x += 4)
            depthwise_piece(t, n, y, x, c0, c1, K, S, R, 4);
    if (K == 3)
        for (; x + 2 <= t->small_width; x += 2)
            for (int r = 0; r < R; r++)
                depthwise_piece(t, n, y + r, x, c0, c1, K, S, 1, 2);
    for (; x < t->small_width; x++)
        for (int r = 0; r < R; r++)
            depthwise_piece(t, n, y + r, x, c0, c1, 0, 0, 1, 1);
}

INLINE void depthwise_rows(const WindowTask *t, int n, int c0, int c1, const int K, const int S)
{
    int y = t->y0;
    if (K == 3 && S == 1)
        for (; y + DEPTHWISE_ROWS <= t->y1; y += DEPTHWISE_ROWS)
            depthwise_row(t, n, y, c0, c1, K, S, DEPTHWISE_ROWS);
    for (; y < t->y1; y++)
        depthwise_row(t, n, y, c0, c1, K, S, 1);
}

static void depthwise(const WindowTask *t)
{
    for (int n = 0; n < t->images; n++)
        for (int c = 0; c < t->channels; c += DEPTHWISE_CHANNELS) {
            int stop = at_most(t->channels, c + DEPTHWISE_CHANNELS);
            if (t->kernel == 3 && t->stride == 1)
                depthwise_rows(t, n, c, stop, 3, 1);
            else if (t->kernel == 3 && t->stride == 2)
                depthwise_rows(t, n, c, stop, 3, 2);
            else if (t->kernel == 5 && t->stride == 1)
                depthwise_rows(t, n, c, stop, 5, 1);
            else
                depthwise_rows(t, n, c, stop, 0, 0);
        }
}

/* Stride 2, 3 x 3: row y and columns 2 j - padding to 2 (j + T) - padding of the large side, from windows j - 1 to
 * j + T - 1 of two rows (y + padding even: kernel rows 2 and 0) or one (odd: kernel row 1). i0, i1: rows of windows
 * that exist; j0, j1: columns of them; x0, x1: columns of the result that exist. */
INLINE void strided_tile(const WindowTask *t, const float *g, const float *w, float *out, const int even, const int T,
                         const int whole, const Part *part, int x0, int x1)
{
    Vec sum[2 * T];
    UNROLL for (int q = 0; q < 2 * T; q++) sum[q] = (Vec){0};
    UNROLL for (int r = 0; r < 1 + even; r++)
    {
        if (r < part->i0 || r >= part->i1)
            continue;
        const float *taps = w + (even ? 6 - 6 * r : 3) * (ptrdiff_t)t->channels;
        UNROLL for (int i = 0; i < T + 1; i++)
        {
            if (!whole && (i < part->j0 || i >= part->j1))
                continue;
            Vec v = load(g + r * t->in.row + i * t->pitch);
            if (i > 0) {
                sum[2 * i - 2] += load(taps) * v;
                sum[2 * i - 1] += load(taps + t->channels) * v;
            }
            if (i < T)
                sum[2 * i] += load(taps + 2 * (ptrdiff_t)t->channels) * v;
        }
    }
    UNROLL for (int q = 0; q < 2 * T; q++)
        if (whole || (q >= x0 && q < x1))
            store_or_add(out + q * t->pitch, sum[q], t->accumulate);
}

INLINE void strided_row(const WindowTask *t, int n, int y, const int even, const int T)
{
    Part part;
    const int oy = (y + t->padding) / 2 - even;
    part.i0 = at_least(0, -oy), part.i1 = at_most(1 + even, t->small_height - oy);
    for (int j = t->padding / 2; 2 * j - t->padding < t->large_width; j += T) {
        const int left = 2 * j - t->padding, x0 = at_least(0, -left), x1 = at_most(2 * T, t->large_width - left);
        part.j0 = at_least(0, 1 - j), part.j1 = at_most(T + 1, t->small_width - j + 1);
        const float *g = t->in.p + n * t->in.image + oy * t->in.row + (j - 1) * t->pitch;
        float *out = out_pixel(t, n, y, left);
        const int whole = part.j0 == 0 && part.j1 == T + 1 && x0 == 0 && x1 == 2 * T;
        for (int c = 0; c < t->channels; c += VL)
            if (whole)
                strided_tile(t, g + c, t->weight + c, out + c, even, T, 1, &part, x0, x1);
            else
                strided_tile(t, g + c, t->weight + c, out + c, even, T, 0, &part, x0, x1);
    }
}

static void depthwise_backward_data(const WindowTask *t)
{
    if (t->kernel != 3 || t->stride != 2) {
        gather(t, GATHER_DEPTHWISE);
        return;
    }
    for (int n = 0; n < t->images; n++)
        for (int y = t->y0; y < t->y1; y++)
            if ((y + t->padding) % 2)
                strided_row(t, n, y, 0, 4);
            else
                strided_row(t, n, y, 1, 4);
}

/* Sums of a 3 x 3 or 5 x 5 kernel's taps for one vector of channels over rows [y0, y1) of one image. They are named,
 * not an array: only so does the compiler keep them in registers. Pixels side by side share what they read. */
#define TAP(J) (whole || (left + (J) >= lowest && left + (J) < highest) ? load(in + (J) * pitch) : (Vec){0})
#define TAP_ROW(R) \
    if (top + (R) >= -t->large_halo && top + (R) < t->large_height + t->large_halo && (in = in_row + (R) * t->in.row, 1))
#define SUM_ONE(R, A, B, C)                                  \
    TAP_ROW(R)                                               \
    {                                                        \
        A += g0 * TAP(0);                                    \
        B += g0 * TAP(1);                                    \
        C += g0 * TAP(2);                                    \
    }
#define SUM_TWO(R, A, B, C)                                                                  \
    TAP_ROW(R)                                                                               \
    {                                                                                        \
        Vec v0 = TAP(0), v1 = TAP(1), v2 = TAP(2), v3 = TAP(3), v4 = TAP(4);                 \
        A += g0 * v0, B += g0 * v1, C += g0 * v2;                                            \
        A += g1 * v2, B += g1 * v3, C += g1 * v4;                                            \
    }
#define SUM_FOUR(R, A, B, C)                                                                           \
    TAP_ROW(R)                                                                                         \
    {                                                                                                  \
        Vec v0 = TAP(0), v1 = TAP(1), v2 = TAP(2), v3 = TAP(3), v4 = TAP(4), v5 = TAP(5);              \
        A += g0 * v0, B += g0 * v1, C += g0 * v2;                                                      \
        A += g1 * v1, B += g1 * v2, C += g1 * v3;                                                      \
        A += g2 * v2, B += g2 * v3, C += g2 * v4;                                                      \
        A += g3 * v3, B += g3 * v4, C += g3 * v5;                                                      \
    }
#define SUM_ROWS(FORM)      \
    FORM(0, s0, s1, s2)     \
    FORM(1, s3, s4, s5)     \
    FORM(2, s6, s7, s8)

/* One piece of a row: what it reads begins at column `left` of the input. */
#define WEIGHT_PIECE(COLUMNS, ...)                                                           \
    {                                                                                        \
        const int left = x * S - t->padding;                                                 \
        const float *at = dy + x * pitch, *in_row = input + x * S * pitch, *in;              \
        Vec g0 = load(at);                                                                   \
        if (left >= lowest && left + (COLUMNS) <= highest) {                                 \
            const int whole = 1;                                                             \
            __VA_ARGS__                                                                            \
        } else {                                                                             \
            const int whole = 0;                                                             \
            __VA_ARGS__                                                                            \
        }                                                                                    \
    }

INLINE void weight_sums_3x3(const WindowTask *t, int n, int y0, int y1, int c, const int S, float *sums)
{
    const ptrdiff_t pitch = t->pitch, channels = t->channels;
    const int lowest = -t->large_halo, highest = t->large_width + t->large_halo;
    sums += c;
    Vec s0 = load(sums), s1 = load(sums + channels), s2 = load(sums + 2 * channels), s3 = load(sums + 3 * channels),
        s4 = load(sums + 4 * channels), s5 = load(sums + 5 * channels), s6 = load(sums + 6 * channels),
        s7 = load(sums + 7 * channels), s8 = load(sums + 8 * channels);
    for (int y = y0; y < y1; y++) {
        const int top = y * S - t->padding;
        const float *dy = out_pixel(t, n, y, 0) + c;
        const float *input = t->in.p + n * t->in.image + top * t->in.row - t->padding * pitch + c;
        int x = 0;
        if (S == 1)
            for (; x + 4 <= t->small_width; x += 4)
                WEIGHT_PIECE(6, Vec g1 = load(at + pitch), g2 = load(at + 2 * pitch), g3 = load(at + 3 * pitch);
                             SUM_ROWS(SUM_FOUR))
        if (S == 2)
            for (; x + 2 <= t->small_width; x += 2)
                WEIGHT_PIECE(5, Vec g1 = load(at + pitch); SUM_ROWS(SUM_TWO))
        for (; x < t->small_width; x++)
            WEIGHT_PIECE(3, SUM_ROWS(SUM_ONE))
    }
    store(sums, s0), store(sums + channels, s1), store(sums + 2 * channels, s2), store(sums + 3 * channels, s3);
    store(sums + 4 * channels, s4), store(sums + 5 * channels, s5), store(sums + 6 * channels, s6);
    store(sums + 7 * channels, s7), store(sums + 8 * channels, s8);
}

/* Kernel row ky of 5. */
INLINE void weight_sums_5x5(const WindowTask *t, int n, int y0, int y1, int c, int ky, float *sums)
{
    const ptrdiff_t pitch = t->pitch, channels = t->channels;
    const int S = 1, lowest = -t->large_halo, highest = t->large_width + t->large_halo;
    sums += ky * 5 * channels + c;
    Vec s0 = load(sums), s1 = load(sums + channels), s2 = load(sums + 2 * channels), s3 = load(sums + 3 * channels),
        s4 = load(sums + 4 * channels);
    for (int y = y0; y < y1; y++) {
        const int top = y - t->padding + ky;
        const float *dy = out_pixel(t, n, y, 0) + c;
        const float *input = t->in.p + n * t->in.image + top * t->in.row - t->padding * pitch + c;
        for (int x = 0; x < t->small_width; x++)
            WEIGHT_PIECE(5, TAP_ROW(0) {
                s0 += g0 * TAP(0);
                s1 += g0 * TAP(1);
                s2 += g0 * TAP(2);
                s3 += g0 * TAP(3);
                s4 += g0 * TAP(4);
            })
    }
    store(sums, s0), store(sums + channels, s1), store(sums + 2 * channels, s2), store(sums + 3 * channels, s3);
    store(sums + 4 * channels, s4);
}

/* The same for any kernel and stride, tap by tap over what lies inside. */
static void any_weight_sums(const WindowTask *t, int n, int y0, int y1, float *sums)
{
    for (int ky = 0; ky < t->kernel; ky++)
        for (int kx = 0; kx < t->kernel; kx++) {
            int left = kx - t->padding, top = ky - t->padding;
            int xa = at_least(0, ceiling(-left, t->stride));
            int room = t->large_width - 1 - left, xb = room < 0 ? 0 : at_most(t->small_width, room / t->stride + 1);
            for (int c = 0; c < t->channels; c += VL) {
                float *to = sums + (ky * t->kernel + kx) * (ptrdiff_t)t->channels + c;
                Vec sum = load(to);
                for (int y = y0; y < y1; y++) {
                    int row = y * t->stride + top;
                    if (row < 0 || row >= t->large_height)
                        continue;
                    const float *dy = t->out.p + n * t->out.image + y * t->out.row + c;
                    const float *x = t->in.p + n * t->in.image + row * t->in.row + left * t->pitch + c;
                    for (int i = xa; i < xb; i++)
                        sum += load(dy + i * t->pitch) * load(x + i * t->stride * t->pitch);
                }
                store(to, sum);
            }
        }
}

static void depthwise_backward_weights(const WindowTask *t, float *sums)
{
    memset(sums, 0, t->kernel * t->kernel * t->channels * sizeof(float));
    /* Rows at a time: enough pixels to pay for loading the sums, few enough to stay in the first-level cache. */
    const int step = at_least(1, 32 / t->small_width), form = t->stride <= 2 ? 10 * t->kernel + t->stride : 0;
    for (int n = 0; n < t->images; n++)
        for (int y = t->y0, next; y < t->y1; y = next) {
            next = at_most(y + step, t->y1);
            if (form != 31 && form != 32 && form != 51) {
                any_weight_sums(t, n, y, next, sums);
                continue;
            }
            for (int c = 0; c < t->channels; c += VL)
                if (form == 31)
                    weight_sums_3x3(t, n, y, next, c, 1, sums);
                else if (form == 32)
                    weight_sums_3x3(t, n, y, next, c, 2, sums);
                else
                    for (int ky = 0; ky < 5; ky++)
                        weight_sums_5x5(t, n, y, next, c, ky, sums);
        }
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
    .dropout = dropout,
    .global_mean = global_mean,
    .spread = spread,
    .sgd = sgd,
    .adam = adam,
    .gradient_sum = gradient_sum,
    .max_pool = max_pool,
    .max_pool_backward = max_pool_backward,
    .average_pool = average_pool,
    .average_pool_backward = average_pool_backward,
    .depthwise_pack = depthwise_pack,
    .depthwise = depthwise,
    .depthwise_backward_data = depthwise_backward_data,
    .depthwise_backward_weights = depthwise_backward_weights,
};
