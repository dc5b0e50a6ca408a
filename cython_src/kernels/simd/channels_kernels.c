/* Inner loops over channels, see kernels/simd/channels_kernels.h. Compiled once per instruction set. */
#include "channels_kernels.h"
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

typedef void Body(const ChannelsTask *t, float *const *p, int pixels, float *sums, ptrdiff_t stride, const int a,
                  const int b);

/* Call `body` for pieces of all rows. Rows that follow one another in memory are one row. */
INLINE void each_chunk(const ChannelsTask *t, const int planes, Body *body, float *sums, ptrdiff_t stride, const int a,
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

/* Floats ahead at which lines are asked for, or 0: maps that do not fit the second-level cache come from further away than
 * the processor looks ahead by itself; for others it would only cost time. */
#define L2_BYTES      1048576
#define AHEAD         4096
#define ASK(P, WRITE) UNROLL for (int v = 0; v < N; v++) __builtin_prefetch((P) + v * VL + ahead, WRITE, 2)

INLINE ptrdiff_t ahead_of(const ChannelsTask *t, int planes)
{
    return t->streamed || sizeof(float) * planes * t->pitch * t->images * t->rows * t->pixels > L2_BYTES ? AHEAD : 0;
}

/* Run CALL(N) with c the first channel, for N vectors of channels at a time. */
#define EACH_PART(CALL)                                  \
    int c = 0;                                           \
    for (; c + WIDE * VL <= t->channels; c += WIDE * VL) \
        CALL(WIDE);                                      \
    if (WIDE != NARROW)                                  \
        for (; c < t->channels; c += NARROW * VL)        \
            CALL(NARROW);

/* Call F(A, B) with constants for activations A and modes B from 0 to 2. */
#define BY_ACTIVATION(F, MODE)            \
    switch (3 * (MODE) + t->activation) { \
    case 0:                               \
        F(0, 0);                          \
        break;                            \
    case 1:                               \
        F(1, 0);                          \
        break;                            \
    case 2:                               \
        F(2, 0);                          \
        break;                            \
    case 3:                               \
        F(0, 1);                          \
        break;                            \
    case 4:                               \
        F(1, 1);                          \
        break;                            \
    case 5:                               \
        F(2, 1);                          \
        break;                            \
    case 6:                               \
        F(0, 2);                          \
        break;                            \
    case 7:                               \
        F(1, 2);                          \
        break;                            \
    case 8:                               \
        F(2, 2);                          \
        break;                            \
    }

/* ---- batch normalisation ---- */

/* Sums of x - shift and of its square, the shift being a pixel in the middle of the block's first image: it lies within
 * the distribution, so nothing is lost where the mean is large; a pixel at the border may lack half of its taps. */
INLINE void statistics_part(const ChannelsTask *t, const float *x, int pixels, int c, const int N, float *sums,
                            ptrdiff_t stride)
{
    Vec shift[WIDE], sum[WIDE], square[WIDE];
    UNROLL for (int v = 0; v < N; v++) shift[v] = load(sums + 2 * stride + c + v * VL), sum[v] = square[v] = (Vec){0};
    const ptrdiff_t ahead = ahead_of(t, 1);
    for (int i = 0; i < pixels; i++, x += t->pitch) {
        if (ahead)
            ASK(x + c, 0);
        UNROLL for (int v = 0; v < N; v++)
        {
            Vec d = load(x + c + v * VL) - shift[v];
            sum[v] += d;
            square[v] += d * d;
        }
    }
    UNROLL for (int v = 0; v < N; v++)
    {
        store(sums + c + v * VL, load(sums + c + v * VL) + sum[v]);
        store(sums + stride + c + v * VL, load(sums + stride + c + v * VL) + square[v]);
    }
}

INLINE void statistics_body(const ChannelsTask *t, float *const *p, int pixels, float *sums, ptrdiff_t stride,
                            const int a, const int b){
#define CALL(N) statistics_part(t, p[0], pixels, c, N, sums, stride)
    EACH_PART(CALL)
#undef CALL
}

/* A block's statistics, of rows that may come one after the other: the shift stands where the number of pixels will. */
INLINE void start_statistics(const ChannelsTask *t, float *out, ptrdiff_t stride)
{
    const float *middle = t->plane[0].p + t->rows / 2 * t->plane[0].row + t->pixels / 2 * t->pitch;
    memset(out, 0, t->channels * sizeof(float));
    memset(out + stride, 0, t->channels * sizeof(float));
    memcpy(out + 2 * stride, middle, t->channels * sizeof(float));
}

static void add_statistics(const ChannelsTask *t, float *out, ptrdiff_t stride)
{
    each_chunk(t, 1, statistics_body, out, stride, 0, 0);
}

INLINE void finish_statistics(float count, int channels, float *out, ptrdiff_t stride)
{
    for (int c = 0; c < channels; c += VL) {
        Vec sum = load(out + c), mean = sum / count, square = load(out + stride + c) - sum * mean;
        store(out + c, load(out + 2 * stride + c) + mean);
        store(out + stride + c, clip_below(square));
        store(out + 2 * stride + c, splat(count));
    }
}

static void statistics(const ChannelsTask *t, float *out, ptrdiff_t stride)
{
    start_statistics(t, out, stride);
    add_statistics(t, out, stride);
    finish_statistics((float)t->images * t->rows * t->pixels, t->channels, out, stride);
}

static void merge_statistics(const float *partial, int partials, ptrdiff_t pitch, int channels, float count,
                             float *mean, float *squares)
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

INLINE void norm_apply_part(const ChannelsTask *t, float *const *p, int pixels, int c, const int N,
                            const int activation, const int residual)
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
    const ptrdiff_t ahead = ahead_of(t, residual ? 3 : 2);
    for (int i = 0; i < pixels; i++) {
        if (ahead) {
            ASK(x, 0);
            if (!t->streamed)
                ASK(y, 1);
            if (residual)
                ASK(r, 0);
        }
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

INLINE void norm_apply_body(const ChannelsTask *t, float *const *p, int pixels, float *sums, ptrdiff_t stride,
                            const int a, const int b)
{
#define CALL(N) norm_apply_part(t, p, pixels, c, N, a, b)
    EACH_PART(CALL)
#undef CALL
}

static void norm_apply(const ChannelsTask *t){
#define CALL(A, B) each_chunk(t, B ? 3 : 2, norm_apply_body, NULL, 0, A, B)
    BY_ACTIVATION(CALL, t -> residual)
#undef CALL
}

/* Sums of g and g (x - mean). The mask's argument is computed as norm_apply() did, so it is the same number. */
INLINE void backward_statistics_part(const ChannelsTask *t, float *const *p, int pixels, int c, const int N,
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
    const ptrdiff_t ahead = ahead_of(t, mask == MASK_RESULT ? 3 : 2);
    for (int i = 0; i < pixels; i++) {
        if (ahead) {
            ASK(x, 0);
            ASK(dy, 0);
            if (mask == MASK_RESULT)
                ASK(y, 0);
        }
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

INLINE void backward_statistics_body(const ChannelsTask *t, float *const *p, int pixels, float *sums, ptrdiff_t stride,
                                     const int a, const int b)
{
#define CALL(N) backward_statistics_part(t, p, pixels, c, N, a, b, sums, stride)
    EACH_PART(CALL)
#undef CALL
}

/* A block's backward sums, of rows that may come one after the other. */
static void start_backward_statistics(int channels, float *out, ptrdiff_t stride)
{
    memset(out, 0, channels * sizeof(float));
    memset(out + stride, 0, channels * sizeof(float));
}

static void add_backward_statistics(const ChannelsTask *t, float *out, ptrdiff_t stride)
{
#define CALL(A, B) each_chunk(t, B == MASK_RESULT ? 3 : 2, backward_statistics_body, out, stride, A, B)
    BY_ACTIVATION(CALL, t->mask)
#undef CALL
}

static void finish_backward_statistics(int channels, const float *inv_std, float *out, ptrdiff_t stride)
{
    for (int c = 0; c < channels; c += VL)
        store(out + stride + c, load(out + stride + c) * load(inv_std + c));
}

static void norm_backward_statistics(const ChannelsTask *t, float *out, ptrdiff_t stride)
{
    start_backward_statistics(t->channels, out, stride);
    add_backward_statistics(t, out, stride);
    finish_backward_statistics(t->channels, t->vector[1], out, stride);
}

INLINE void backward_apply_part(const ChannelsTask *t, float *const *p, int pixels, int c, const int N,
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
    const ptrdiff_t ahead = ahead_of(t, 3 + (mask == MASK_RESULT) + (branch != BRANCH_NONE));
    for (int i = 0; i < pixels; i++) {
        const ptrdiff_t at = i * pitch + c;
        if (ahead) {
            ASK(p[0] + at, 0);
            ASK(p[1] + at, 0);
            if (!t->streamed)
                ASK(p[2] + at, 1);
            if (mask == MASK_RESULT)
                ASK(p[3] + at, 0);
            if (branch)
                ASK(p[4] + at, 1);
        }
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

#define BACKWARD_APPLY(BRANCH)                                                                                \
    INLINE void backward_apply_body_##BRANCH(const ChannelsTask *t, float *const *p, int pixels, float *sums, \
                                             ptrdiff_t stride, const int a, const int b)                      \
    {                                                                                                         \
        EACH_PART(BACKWARD_CALL_##BRANCH)                                                                     \
    }
#define BACKWARD_CALL_0(N) backward_apply_part(t, p, pixels, c, N, a, b, BRANCH_NONE)
#define BACKWARD_CALL_1(N) backward_apply_part(t, p, pixels, c, N, a, b, BRANCH_WRITE)
#define BACKWARD_CALL_2(N) backward_apply_part(t, p, pixels, c, N, a, b, BRANCH_ADD)
BACKWARD_APPLY(0)
BACKWARD_APPLY(1)
BACKWARD_APPLY(2)

static void norm_backward_apply(const ChannelsTask *t)
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

INLINE void activate_body(const ChannelsTask *t, float *const *p, int pixels, float *sums, ptrdiff_t stride,
                          const int a, const int b)
{
    if (t->channels == t->pitch) {
        activate_run(p[0], b ? p[2] : NULL, p[1], pixels * t->pitch, a, b);
        return;
    }
    for (ptrdiff_t at = 0; at < pixels * t->pitch; at += t->pitch)
        activate_run(p[0] + at, b ? p[2] + at : NULL, p[1] + at, t->channels, a, b);
}

static void activate(const ChannelsTask *t){
#define CALL(A, B) each_chunk(t, B ? 3 : 2, activate_body, NULL, 0, A, B)
    BY_ACTIVATION(CALL, t -> residual)
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

INLINE void activate_backward_body(const ChannelsTask *t, float *const *p, int pixels, float *sums, ptrdiff_t stride,
                                   const int a, const int b)
{
    ptrdiff_t step = t->channels == t->pitch ? pixels * t->pitch : t->pitch;
    ptrdiff_t n = t->channels == t->pitch ? step : t->channels;
    for (ptrdiff_t at = 0; at < pixels * t->pitch; at += step)
        activate_backward_run(p[0] + at, a ? p[1] + at : NULL, p[2] + at, b ? p[3] + at : NULL, n, a, t->accumulate, b);
}

static void activate_backward(const ChannelsTask *t){
#define CALL(A, B) each_chunk(t, 4, activate_backward_body, NULL, 0, A, B)
    BY_ACTIVATION(CALL, t -> residual)
#undef CALL
}

/* ---- dropout ---- */

#define WORDS 16 /* calls of the generator side by side */

typedef uint32_t VecW __attribute__((vector_size(VL * 4), may_alias));

/* High and low halves of 64-bit products, lane by lane. */
INLINE void products(VecW x, uint32_t factor, VecW *high, VecW *low)
{
#if MICRO_ISA == AVX512
    __m512i m = _mm512_set1_epi32((int)factor), even = _mm512_mul_epu32((__m512i)x, m);
    __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64((__m512i)x, 32), m);
    *high = (VecW)_mm512_mask_mov_epi32(_mm512_srli_epi64(even, 32), 0xAAAA, odd);
    *low = (VecW)_mm512_mask_mov_epi32(even, 0xAAAA, _mm512_slli_epi64(odd, 32));
#elif MICRO_ISA == AVX2
    __m256i m = _mm256_set1_epi32((int)factor), even = _mm256_mul_epu32((__m256i)x, m);
    __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64((__m256i)x, 32), m);
    *high = (VecW)_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA);
    *low = (VecW)_mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA);
#else
    for (int i = 0; i < VL; i++) {
        uint64_t product = (uint64_t)x[i] * factor;
        (*high)[i] = (uint32_t)(product >> 32), (*low)[i] = (uint32_t)product;
    }
#endif
}

/* Philox4x32-10: words[w][lane] from the counter (first + lane, row, layer, iteration). */
INLINE void philox(uint32_t first, uint32_t row, uint32_t layer, uint32_t iteration, uint64_t seed,
                   uint32_t words[4][WORDS])
{
    for (int v = 0; v < WORDS; v += VL) {
        VecW c0, c1 = (VecW){0} + row, c2 = (VecW){0} + layer, c3 = (VecW){0} + iteration, h0, h2;
        UNROLL for (int i = 0; i < VL; i++) c0[i] = i;
        c0 += first + v;
        uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
        for (int round = 0; round < 10; round++) {
            VecW l0, l2;
            products(c0, 0xD2511F53u, &h0, &l0);
            products(c2, 0xCD9E8D57u, &h2, &l2);
            c0 = h2 ^ c1 ^ k0, c1 = l2;
            c2 = h0 ^ c3 ^ k1, c3 = l0;
            k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
        }
        *(VecW *)(words[0] + v) = c0, *(VecW *)(words[1] + v) = c1;
        *(VecW *)(words[2] + v) = c2, *(VecW *)(words[3] + v) = c3;
    }
}

static void dropout(const ChannelsTask *t, int height, int first_row, uint64_t seed, uint32_t layer, uint32_t iteration,
                    uint32_t threshold, float scale)
{
    const ptrdiff_t elements = t->pixels * t->pitch;
    _Alignas(64) uint32_t words[4][WORDS];
    for (int n = 0; n < t->images; n++)
        for (int y = 0; y < t->rows; y++) {
            const float *x = t->plane[0].p + n * t->plane[0].image + y * t->plane[0].row;
            float *out = t->plane[1].p + n * t->plane[1].image + y * t->plane[1].row;
            for (ptrdiff_t start = 0; start < elements; start += 4 * WORDS) {
                philox((uint32_t)(start / 4), (uint32_t)(first_row + n * height + y), layer, iteration, seed, words);
                const ptrdiff_t rest = elements - start, stop = rest < 4 * WORDS ? rest : 4 * WORDS;
                const uint32_t *word = words[0];
                ptrdiff_t e = 0;
                for (; e + VL <= stop; e += VL) {
                    VecI kept = (VecI)(*(const VecW *)(word + e) >= threshold);
                    store(out + start + e, (Vec)(kept & (VecI)(load(x + start + e) * scale)));
                }
                for (; e < stop; e++)
                    out[start + e] = word[e] >= threshold ? x[start + e] * scale : 0;
            }
        }
}

/* ---- global average pooling: any number of channels ---- */

static void global_mean(const ChannelsTask *t, float *out, ptrdiff_t stride)
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

static void spread(const ChannelsTask *t, const float *values, ptrdiff_t stride, float scale)
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
#define EACH_RUN(t)                                              \
    for (ptrdiff_t e = (t)->start, run; e < (t)->stop; e += run) \
        if (run = (t)->row_length - e % (t)->row_length, run = run < (t)->stop - e ? run : (t)->stop - e, 1)

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

INLINE int at_least(int a, int b)
{
    return a > b ? a : b;
}
INLINE int at_most(int a, int b)
{
    return a < b ? a : b;
}
/* a / b rounded up; b > 0 */
INLINE int ceiling(int a, int b)
{
    return a > 0 ? (a + b - 1) / b : -(-a / b);
}

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

/* Where channel c stands among weights of `taps` taps: the taps of a unit of channels follow one another. They would lie
 * in the same cache sets if all channels of a tap did. */
INLINE ptrdiff_t unit_offset(int c, int taps)
{
    return (ptrdiff_t)(c / UNIT * UNIT) * taps + c % UNIT;
}

INLINE float *out_pixel(const WindowTask *t, int n, int y, int x)
{
    return t->out.p + n * t->out.image + y * t->out.row + x * t->pitch;
}

/* Call BODY(N) with c the first channel, for N vectors at a time: several chains of operations side by side. */
#define EACH_GROUP(BODY)                                     \
    {                                                        \
        int c = 0;                                           \
        for (; c + WIDE * VL <= t->channels; c += WIDE * VL) \
            BODY(WIDE);                                      \
        if (WIDE != NARROW)                                  \
            for (; c < t->channels; c += NARROW * VL)        \
                BODY(NARROW);                                \
    }

/* Rows and columns of a tile's inputs that can be read, or exist: [i0, i1) x [j0, j1). */
typedef struct Part {
    int i0, i1, j0, j1;
} Part;

/* What of [start, start + count) can be read, one axis of the large side. */
INLINE void clip(const WindowTask *t, int start, int count, int size, int *first, int *last)
{
    *first = at_least(0, -t->large_halo - start);
    *last = at_most(count, size + t->large_halo - start);
}

/* How many of a tile's columns cannot be read, as a constant: none, the first, the last, both; or as `part` says. */
enum { EDGE_NONE, EDGE_LAST, EDGE_FIRST, EDGE_BOTH, EDGE_ANY };

INLINE int readable(int j, const int columns, const int edge, const Part *part)
{
    return edge == EDGE_ANY ? j >= part->j0 && j < part->j1 : j >= edge / 2 && j < columns - edge % 2;
}

/* ---- pooling ---- */

/* Whether lines are worth asking for: both maps together do not fit the second-level cache. */
INLINE int from_memory(const WindowTask *t)
{
    return sizeof(float) * t->images * (t->in.image + t->out.image) > L2_BYTES;
}

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
INLINE Vec picked(Vec g, const uint8_t *index, int tap)
{
#if MICRO_ISA == AVX512
    __mmask16 mask = _mm_cmpeq_epi8_mask(_mm_loadu_si128((const __m128i *)index), _mm_set1_epi8((char)tap));
    return (Vec)_mm512_maskz_mov_ps(mask, (__m512)g);
#elif MICRO_ISA == AVX2
    VecI where = (VecI)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)index));
    return (Vec)((where == tap) & (VecI)g);
#else
    UNROLL for (int i = 0; i < VL; i++) g[i] = index[i] == tap ? g[i] : 0;
    return g;
#endif
}

#if MICRO_ISA == AVX512
/* The largest of a window's elements and its number, K at most 3 and all else constant. Returns whether a NaN (or two
 * infinities) may be among them; then the result may be wrong. */
INLINE int max_of_small(const float *window, ptrdiff_t row, ptrdiff_t pitch, float *out, uint8_t *index, const int N,
                        const int K, const int ky0, const int kx0)
{
    Vec best[4], sum[4]; /* a sum is NaN if one of its numbers is: additions have pipes that nothing else here needs */
    VecI where[4];
    __mmask16 unordered = 0;
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
                __mmask16 larger = _mm512_cmp_ps_mask((__m512)x, (__m512)best[v], _CMP_GT_OQ);
                sum[v] += x;
                best[v] = (Vec)_mm512_max_ps((__m512)x, (__m512)best[v]); /* the second of equals */
                where[v] = (VecI)_mm512_mask_mov_epi32((__m512i)where[v], larger, _mm512_set1_epi32(tap));
            }
        }
        number++;
    }
    UNROLL for (int v = 0; v < N; v++)
    {
        unordered |= _mm512_cmp_ps_mask((__m512)sum[v], (__m512)sum[v], _CMP_UNORD_Q);
        store(out + v * VL, best[v]), store_bytes(index + v * VL, where[v]);
    }
    return unordered;
}
#endif

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
    EACH_GROUP(MAX_GROUP)}

/* A window of which at most the first row and column are missing. */
INLINE void max_window_small(const WindowTask *t, const float *window, float *out, uint8_t *index, const int K,
                             const int ky0, const int kx0)
{
#if MICRO_ISA == AVX512
    int unordered = 0;
#define SMALL_GROUP(N) unordered |= max_of_small(window + c, t->in.row, t->pitch, out + c, index + c, N, K, ky0, kx0);
    EACH_GROUP(SMALL_GROUP)
    if (unordered)
        max_window(t, window, out, index, t->kernel, ky0, t->kernel, kx0, t->kernel);
#else
    max_window(t, window, out, index, K, ky0, K, kx0, K);
#endif
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
    EACH_GROUP(AVERAGE_GROUP)}

/* Ask for what the window a row further down reads first, and for its result. */
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
                const int tap = (y + t->padding - oy * t->stride) * t->kernel + x + t->padding - ox * t->stride;   \
                const float *g = t->in.p + n * t->in.image + oy * t->in.row + ox * t->pitch + c;                   \
                const ptrdiff_t at = (((ptrdiff_t)n * t->small_height + oy) * t->small_width + ox) * t->pitch + c; \
                UNROLL for (int v = 0; v < N; v++)                                                                 \
                {                                                                                                  \
                    if (form == GATHER_MAX)                                                                        \
                        sum[v] += picked(load(g + v * VL), t->index + at + v * VL, tap);                           \
                    else if (form == GATHER_AVERAGE)                                                               \
                        sum[v] += load(g + v * VL);                                                                \
                    else                                                                                           \
                        sum[v] += load(t->weight + unit_offset(c + v * VL, t->kernel * t->kernel) + tap * UNIT) *  \
                                  load(g + v * VL);                                                                \
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

/* Add what a window of gradient g sends through a tap: all where its maximum stood there, or all, or its weighted g. */
INLINE void add_sent(Vec *sum, const int form, Vec g, const uint8_t *index, int tap, Vec weight)
{
#if MICRO_ISA == AVX512
    if (form == GATHER_MAX) {
        __mmask16 mask = _mm_cmpeq_epi8_mask(_mm_loadu_si128((const __m128i *)index), _mm_set1_epi8((char)tap));
        *sum = (Vec)_mm512_mask_add_ps((__m512)*sum, mask, (__m512)*sum, (__m512)g);
        return;
    }
#endif
    if (form == GATHER_MAX)
        *sum += picked(g, index, tap);
    else if (form == GATHER_AVERAGE)
        *sum += g;
    else
        *sum += weight * g;
}

/* Rows of the large side that windows of 3 x 3, stride 2, send to: the middle of one row of windows, or the row that two
 * rows of windows share, or both, one below the other. */
enum { ROW_MIDDLE, ROW_SHARED, ROW_BOTH };
#define NUM_ROWS(ROWS) (ROWS == ROW_BOTH ? 2 : 1)

/* Row of taps through which row r of windows sends to row o, or -1. */
INLINE int sending_taps(const int rows, int r, int o)
{
    if (rows == ROW_MIDDLE || (rows == ROW_BOTH && o == 0))
        return r == 0 ? 1 : -1;
    return r == 0 ? 2 : 0;
}

/* T pairs of columns from T + 1 windows a row. A pair is the middle of its window and the column that it shares with the
 * next window. EDGE_LAST: the last window does not exist. EDGE_ANY: only the part's rows and columns of windows do, and
 * columns [x0, x1) of the result. */
INLINE void strided_tile(const WindowTask *t, const int form, const float *g, const uint8_t *index, const float *w,
                         float *out, const int rows, const int T, const int edge, const Part *part, int x0, int x1)
{
    const ptrdiff_t pitch = t->pitch, row = t->in.row, index_row = t->small_width * pitch, out_row = t->out.row;
    const int accumulate = t->accumulate;
    Vec sum[2][8], weight[9];
    UNROLL for (int o = 0; o < NUM_ROWS(rows); o++) UNROLL for (int q = 0; q < 2 * T; q++) sum[o][q] = (Vec){0};
    UNROLL for (int k = 0; k < 9; k++) weight[k] = form == GATHER_DEPTHWISE ? load(w + k * UNIT) : (Vec){0};
    UNROLL for (int r = 0; r < (rows == ROW_MIDDLE ? 1 : 2); r++)
    {
        if (r < part->i0 || r >= part->i1)
            continue;
        UNROLL for (int i = 0; i < T + 1; i++)
        {
            if (!readable(i, T + 1, edge, part))
                continue;
            Vec v = load(g + r * row + i * pitch);
            const uint8_t *at = index + r * index_row + i * pitch;
            UNROLL for (int o = 0; o < NUM_ROWS(rows); o++)
            {
                const int ky = sending_taps(rows, r, o), tap = ky < 0 ? 0 : 3 * ky;
                if (ky < 0)
                    continue;
                if (i > 0)
                    add_sent(&sum[o][2 * i - 1], form, v, at, tap, weight[tap]);
                if (i < T) {
                    add_sent(&sum[o][2 * i], form, v, at, tap + 1, weight[tap + 1]);
                    add_sent(&sum[o][2 * i + 1], form, v, at, tap + 2, weight[tap + 2]);
                }
            }
        }
    }
    UNROLL for (int o = 0; o < NUM_ROWS(rows); o++) UNROLL for (int q = 0; q < 2 * T; q++)
    {
        if (form == GATHER_AVERAGE)
            sum[o][q] *= 1.0f / 9;
        if (edge != EDGE_ANY || (q >= x0 && q < x1))
            store_or_add(out + o * out_row + q * pitch, sum[o][q], accumulate);
    }
}

/* As ask_ahead(), for R x T pixels of the large side. */
INLINE void ask_large(const WindowTask *t, int n, int y, int x, int c, const int R, const int T)
{
    for (int i = 0; i < t->num_ahead; i++) {
        const Ahead *a = &t->ahead[i];
        const float *p = a->p + n * a->image + y * a->row + x * t->pitch + c;
        for (int r = 0; r < R; r++, p += a->row)
            UNROLL for (int q = 0; q < T; q++) if (a->write) __builtin_prefetch(p + q * t->pitch, 1, 2);
        else __builtin_prefetch(p + q * t->pitch, 0, 2);
    }
}

/* T pairs of columns, the first in the middle of window j; all channels. */
INLINE void strided_piece(const WindowTask *t, const int form, int n, int y, int j, const int rows, const int T)
{
    const int oy = (y + t->padding) / 2 - (rows == ROW_SHARED), left = 2 * j + 1 - t->padding;
    const int x0 = at_least(0, -left), x1 = at_most(2 * T, t->large_width - left);
    const Part part = {at_least(0, -oy), at_most(rows == ROW_MIDDLE ? 1 : 2, t->small_height - oy), at_least(0, -j),
                       at_most(T + 1, t->small_width - j)};
    const float *g = t->in.p + n * t->in.image + oy * t->in.row + j * t->pitch;
    const uint8_t *index = t->index + (((ptrdiff_t)n * t->small_height + oy) * t->small_width + j) * t->pitch;
    float *out = out_pixel(t, n, y, left);
    const int inside = part.j0 == 0 && x0 == 0 && x1 == 2 * T;
#define STRIDED_TILES(EDGE)                                                                                            \
    for (int c = 0; c < t->channels; c += VL) {                                                                        \
        strided_tile(t, form, g + c, index + c, t->weight + unit_offset(c, 9), out + c, rows, T, EDGE, &part, x0, x1); \
        ask_large(t, n, y, left, c, NUM_ROWS(rows), 2 * T);                                                            \
    }
    if (inside && part.j1 == T + 1) {
        STRIDED_TILES(EDGE_NONE)
    } else if (inside && part.j1 == T) {
        STRIDED_TILES(EDGE_LAST)
    } else {
        STRIDED_TILES(EDGE_ANY)
    }
}

INLINE void strided_row(const WindowTask *t, const int form, int n, int y, const int rows)
{
    int j = (t->padding + 1) / 2 - 1;
    for (; 2 * j + 1 - t->padding + 4 < t->large_width; j += 4)
        strided_piece(t, form, n, y, j, rows, 4);
    for (; 2 * j + 1 - t->padding < t->large_width; j += 2)
        strided_piece(t, form, n, y, j, rows, 2);
}

INLINE void gather_strided(const WindowTask *t, const int form)
{
    for (int n = 0; n < t->images; n++)
        for (int y = t->y0; y < t->y1; y++)
            if ((y + t->padding) % 2 == 0)
                strided_row(t, form, n, y, ROW_SHARED);
#if MICRO_ISA == AVX512 /* enough registers for two rows of sums */
            else if (y + 1 < t->y1)
                strided_row(t, form, n, y++, ROW_BOTH);
#endif
            else
                strided_row(t, form, n, y, ROW_MIDDLE);
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
                        first = picked(g, index + c, y % 2 * 2);
                        second = picked(g, index + c, y % 2 * 2 + 1);
                    }
                    store_or_add(out + c, first, t->accumulate);
                    store_or_add(out + t->pitch + c, second, t->accumulate);
                    ask_large(t, n, y, 2 * x, c, 1, 2);
                }
            }
}

/* A task that asks for lines of its result before it writes them. */
INLINE WindowTask asking(const WindowTask *t)
{
    WindowTask task = *t;
    if (from_memory(t))
        task.ahead[task.num_ahead++] = (Ahead){t->out.p + 2 * t->out.row, t->out.image, t->out.row, 1, 1};
    return task;
}

INLINE void pool_backward(const WindowTask *task, const int form)
{
    const WindowTask asks = asking(task), *t = &asks;
    if (t->kernel == 2 && t->stride == 2 && t->padding == 0 && t->large_height == 2 * t->small_height &&
        t->large_width == 2 * t->small_width)
        pairs(t, form == GATHER_MAX);
    else if (t->kernel == 3 && t->stride == 2)
        gather_strided(t, form);
    else
        gather(t, form);
}

static void max_pool_backward(const WindowTask *t)
{
    pool_backward(t, GATHER_MAX);
}
static void average_pool_backward(const WindowTask *t)
{
    pool_backward(t, GATHER_AVERAGE);
}

/* ---- depthwise convolution ---- */

static void depthwise_pack(const float *weight, int channels, int padded, int taps, int flip, float *out)
{
    for (int c = 0; c < padded; c++, weight += taps) {
        float *to = out + unit_offset(c, taps);
        for (int tap = 0; tap < taps; tap++, to += UNIT)
            *to = c >= channels ? 0 : weight[flip ? taps - 1 - tap : tap];
    }
}

/* Taps (ky, kx) that input (i, j) of a tile meets, and the outputs (r, q) whose they are. */
#define EACH_TAP(KH, KW)                                      \
    UNROLL for (int ky = 0; ky < KH; ky++)                    \
        UNROLL for (int kx = 0, r = (i - ky) / S, q; kx < KW; \
                    kx++) if (q = (j - kx) / S,               \
                              i >= ky && (i - ky) % S == 0 && r < R && j >= kx && (j - kx) % S == 0 && q < T)

/* R rows x T columns of outputs of one vector of channels. Each output is summed over taps in their order, so the
 * shape of the tile does not show in the result. x: the first tap of the first output. */
INLINE void depthwise_tile(const WindowTask *t, const float *x, const float *w, const float *bias, float *out,
                           const int K, const int S, const int R, const int T, const int edge, const Part *part)
{
    const ptrdiff_t pitch = t->pitch, row = t->in.row, out_row = t->out.row;
    const int activation = t->activation, accumulate = t->accumulate;
    const int HELD = MICRO_ISA == AVX512 && K == 3; /* weights in registers */
    Vec sum[4][4], weight[9],
        start = bias ? load(bias) : (Vec){0}; /* fixed sizes: only such arrays are kept in registers */
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int q = 0; q < T; q++) sum[r][q] = start;
    if (HELD)
        UNROLL for (int k = 0; k < K * K; k++) weight[k] = load(w + k * UNIT);
    UNROLL for (int i = 0; i < (R - 1) * S + K; i++)
    {
        if (i < part->i0 || i >= part->i1)
            continue;
        UNROLL for (int j = 0; j < (T - 1) * S + K; j++)
        {
            if (!readable(j, (T - 1) * S + K, edge, part))
                continue;
            Vec v = load(x + i * row + j * pitch);
            EACH_TAP(K, K)
            sum[r][q] += (HELD ? weight[HELD ? ky * 3 + kx : 0] : load(w + (ky * K + kx) * UNIT)) * v;
        }
    }
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int q = 0; q < T; q++)
    {
        Vec y = sum[r][q];
        if (activation)
            y = activation == 1 ? activated(y, 1) : activated(y, 2);
        store_or_add(out + r * out_row + q * pitch, y, accumulate);
    }
}

/* Add to the sums of KH rows of a kernel's taps what a tile of R x T outputs' gradients sends them. */
INLINE void weights_tile(const WindowTask *t, const float *x, const float *dy, float *sums, const int KH, const int K,
                         const int S, const int R, const int T, const int edge, const Part *part)
{
    const ptrdiff_t pitch = t->pitch, row = t->in.row, out_row = t->out.row;
    Vec g[4][4], sum[9];
    UNROLL for (int k = 0; k < KH * K; k++) sum[k] = load(sums + k * UNIT);
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int q = 0; q < T; q++) g[r][q] = load(dy + r * out_row + q * pitch);
    UNROLL for (int i = 0; i < (R - 1) * S + KH; i++)
    {
        if (i < part->i0 || i >= part->i1)
            continue;
        UNROLL for (int j = 0; j < (T - 1) * S + K; j++)
        {
            if (!readable(j, (T - 1) * S + K, edge, part))
                continue;
            Vec v = load(x + i * row + j * pitch);
            EACH_TAP(KH, K)
            sum[ky * K + kx] += g[r][q] * v;
        }
    }
    UNROLL for (int k = 0; k < KH * K; k++) store(sums + k * UNIT, sum[k]);
}

/* Outputs from (y, x) on, all channels: they themselves, or, with `sums`, what their gradients add to the sums of
 * the weights' gradient. */
typedef void Piece(const WindowTask *t, float *sums, int n, int y, int x);

/* One output, any kernel and stride. */
static void any_pixel(const WindowTask *t, float *sums, int n, int y, int x)
{
    const int top = y * t->stride - t->padding, left = x * t->stride - t->padding;
    const float *in = t->in.p + n * t->in.image + top * t->in.row + left * t->pitch;
    float *out = out_pixel(t, n, y, x);
    Part part;
    clip(t, top, t->kernel, t->large_height, &part.i0, &part.i1);
    clip(t, left, t->kernel, t->large_width, &part.j0, &part.j1);
    for (int c = 0; c < t->channels; c += VL) {
        Vec sum = t->bias ? load(t->bias + c) : (Vec){0};
        for (int ky = part.i0; ky < part.i1; ky++)
            for (int kx = part.j0; kx < part.j1; kx++) {
                const ptrdiff_t tap = unit_offset(c, t->kernel * t->kernel) + (ky * t->kernel + kx) * UNIT;
                Vec v = load(in + ky * t->in.row + kx * t->pitch + c);
                if (sums)
                    store(sums + tap, load(sums + tap) + load(out + c) * v);
                else
                    sum += load(t->weight + tap) * v;
            }
        if (sums)
            continue;
        if (t->activation)
            sum = t->activation == 1 ? activated(sum, 1) : activated(sum, 2);
        store_or_add(out + c, sum, t->accumulate);
    }
}

/* Ask for what belongs to R x T windows from (y, x) on, channel c: some with each tile, since the processor keeps track of a
 * few dozen lines at a time. */
INLINE void ask_ahead(const WindowTask *t, int y, int x, int c, const int R, const int T)
{
    for (int i = 0; i < t->num_ahead; i++) {
        const Ahead *a = &t->ahead[i];
        const float *p = a->p + a->step * (y * a->row + x * t->pitch) + c;
        for (int r = 0; r < R * a->step; r++, p += a->row)
            for (int q = 0; q < T * a->step; q++)
                if (a->write)
                    __builtin_prefetch(p + q * t->pitch, 1, 2);
                else
                    __builtin_prefetch(p + q * t->pitch, 0, 2);
    }
}

/* R x T outputs. */
INLINE void depthwise_piece(const WindowTask *t, float *sums, int n, int y, int x, const int weights, const int K,
                            const int S, const int R, const int T)
{
    const int KH = weights && K > 3 ? 1 : K; /* rows of taps whose sums fit into the registers */
    const int rows = (R - 1) * S + KH, columns = (T - 1) * S + K, left = x * S - t->padding;
    float *out = out_pixel(t, n, y, x);
    Part part;
    clip(t, left, columns, t->large_width, &part.j0, &part.j1);
    const int edge = part.j0 > 1 || part.j1 < columns - 1 ? EDGE_ANY : 2 * part.j0 + columns - part.j1;
    if (K == 3 && edge == EDGE_ANY) {
        for (int r = 0; r < R; r++)
            for (int q = 0; q < T; q++)
                any_pixel(t, sums, n, y + r, x + q);
        return;
    }
    for (int ky = 0; ky < K; ky += KH) {
        const int top = y * S - t->padding + ky;
        clip(t, top, rows, t->large_height, &part.i0, &part.i1);
        const float *in = t->in.p + n * t->in.image + top * t->in.row + left * t->pitch;
#define TILES(EDGE)                                                                                                   \
    for (int c = 0; c < t->channels; c += VL) {                                                                       \
        if (weights)                                                                                                  \
            weights_tile(t, in + c, out + c, sums + unit_offset(c, K * K) + ky * K * UNIT, KH, K, S, R, T, EDGE,      \
                         &part);                                                                                      \
        else                                                                                                          \
            depthwise_tile(t, in + c, t->weight + unit_offset(c, K * K), t->bias ? t->bias + c : NULL, out + c, K, S, \
                           R, T, EDGE, &part);                                                                        \
        if (ky == 0)                                                                                                  \
            ask_ahead(t, y, x, c, R, T);                                                                              \
    }
        if (edge == EDGE_NONE) {
            TILES(EDGE_NONE)
        } else if (K != 3) {
            TILES(EDGE_ANY)
        } else if (edge == EDGE_LAST) {
            TILES(EDGE_LAST)
        } else if (edge == EDGE_FIRST) {
            TILES(EDGE_FIRST)
        } else {
            TILES(EDGE_BOTH)
        }
    }
}

/* How a kernel and stride are cut: pieces of `rows` x 4 outputs, of 2 x 4, 1 x 4 and 2 x 2 (NULL: there is none), and
 * single ones. */
typedef struct Pieces {
    int rows;
    Piece *most, *two, *row, *square;
} Pieces;

#define PIECE(NAME, WEIGHTS, K, S, R, T)                                                              \
    static __attribute__((noinline)) void NAME(const WindowTask *t, float *sums, int n, int y, int x) \
    {                                                                                                 \
        depthwise_piece(t, sums, n, y, x, WEIGHTS, K, S, R, T);                                       \
    }
PIECE(forward_row, 0, 3, 1, 1, 4)
PIECE(forward_two, 0, 3, 1, 2, 4)
PIECE(forward_square, 0, 3, 1, 2, 2)
PIECE(strided_forward_row, 0, 3, 2, 1, 4)
PIECE(wide_forward_row, 0, 5, 1, 1, 4)
PIECE(weights_row, 1, 3, 1, 1, 4)
PIECE(strided_weights_row, 1, 3, 2, 1, 4)
PIECE(wide_weights_row, 1, 5, 1, 1, 4)
#if MICRO_ISA == AVX512 /* as many rows as the registers hold sums of, or gradients */
PIECE(forward_four, 0, 3, 1, 4, 4)
PIECE(strided_forward_two, 0, 3, 2, 2, 4)
PIECE(weights_four, 1, 3, 1, 4, 4)
PIECE(weights_two, 1, 3, 1, 2, 4)
PIECE(weights_square, 1, 3, 1, 2, 2)
PIECE(strided_weights_two, 1, 3, 2, 2, 4)
PIECE(strided_forward_square, 0, 3, 2, 2, 2)
PIECE(strided_weights_square, 1, 3, 2, 2, 2)
static const Pieces forward_pieces = {4, forward_four, forward_two, forward_row, forward_square};
static const Pieces strided_forward_pieces = {2, strided_forward_two, NULL, strided_forward_row,
                                              strided_forward_square};
static const Pieces weights_pieces = {4, weights_four, weights_two, weights_row, weights_square};
static const Pieces strided_weights_pieces = {2, strided_weights_two, NULL, strided_weights_row,
                                              strided_weights_square};
#else
static const Pieces forward_pieces = {2, forward_two, NULL, forward_row, forward_square};
static const Pieces strided_forward_pieces = {1, strided_forward_row, NULL, NULL, NULL};
static const Pieces weights_pieces = {1, weights_row, NULL, NULL, NULL};
static const Pieces strided_weights_pieces = {1, strided_weights_row, NULL, NULL, NULL};
#endif
static const Pieces wide_forward_pieces = {1, wide_forward_row, NULL, NULL, NULL};
static const Pieces wide_weights_pieces = {1, wide_weights_row, NULL, NULL, NULL};
static const Pieces any_pieces = {1, NULL, NULL, NULL, NULL};

static const Pieces *choose_pieces(const WindowTask *t, int weights)
{
    switch (t->stride <= 2 ? 10 * t->kernel + t->stride : 0) {
    case 31:
        return weights ? &weights_pieces : &forward_pieces;
    case 32:
        return weights ? &strided_weights_pieces : &strided_forward_pieces;
    case 51:
        return weights ? &wide_weights_pieces : &wide_forward_pieces;
    default:
        return &any_pieces;
    }
}

/* Ask for rows of a plane from `row` on while the rows before are computed. */
INLINE void add_ahead(WindowTask *t, const ChannelPlane *plane, int n, int row, int step, int write)
{
    t->ahead[t->num_ahead++] = (Ahead){plane->p + n * plane->image + row * plane->row, 0, plane->row, step, write};
}

static void depthwise_rows(const WindowTask *t, const Pieces *pieces, float *sums, int n)
{
    for (int y = t->y0, rows; y < t->y1; y += rows) {
        const int left = t->y1 - y;
        rows = left >= pieces->rows ? pieces->rows : left >= 2 && pieces->two ? 2 : 1;
        Piece *wide = rows == pieces->rows ? pieces->most : rows == 2 ? pieces->two : pieces->row;
        int x = 0;
        if (wide)
            for (; x + 4 <= t->small_width; x += 4)
                wide(t, sums, n, y, x);
        if (pieces->square && rows > 1)
            for (; x + 2 <= t->small_width; x += 2)
                for (int r = 0; r < rows; r += 2)
                    pieces->square(t, sums, n, y + r, x);
        for (; x < t->small_width; x++)
            for (int r = 0; r < rows; r++)
                any_pixel(t, sums, n, y + r, x);
    }
}

/* Add rows [y0, y1) of the outputs of image n to the block's statistics, while they still are in a cache. */
static void depthwise_statistics(const WindowTask *t, int n, int y0, int y1)
{
    ChannelsTask done = {.plane = {{out_pixel(t, n, y0, 0), t->out.image, t->out.row}},
                         .pitch = t->pitch,
                         .images = 1,
                         .rows = y1 - y0,
                         .pixels = t->small_width,
                         .channels = t->channels};
    if (n == 0 && y0 == t->y0)
        start_statistics(&done, t->statistics, t->statistics_stride);
    add_statistics(&done, t->statistics, t->statistics_stride);
    if (n == t->images - 1 && y1 == t->y1)
        finish_statistics((float)t->images * (t->y1 - t->y0) * t->small_width, t->channels, t->statistics,
                          t->statistics_stride);
}

/* Rows of outputs of a strip. */
INLINE int strip_of(const WindowTask *t)
{
    const int rows = ((int)(STRIP_FLOATS / (t->large_width * t->pitch)) - t->kernel) / t->stride + 1;
    return rows < 4 ? 4 : rows / 4 * 4;
}

/* Rows [first, last) of an image, of which row `first` stands at p + at * row, in a buffer of `capacity` rows. Strips come
 * one after the other; the rows that two of them share are computed once, and now and then moved to the front. */
typedef struct Ring {
    float *p;
    ptrdiff_t row;
    int capacity, at, first, last;
} Ring;

/* Make place for rows [first, last), which do not begin before those of the strip before; returns the first row that is
 * still to be computed. */
INLINE int advance(Ring *r, int first, int last)
{
    if (first >= r->last) {
        r->at = 0, r->first = r->last = first;
    } else if (r->at + last - r->first > r->capacity) {
        memmove(r->p, r->p + (r->at + first - r->first) * r->row, (r->last - first) * r->row * sizeof(float));
        r->at = 0, r->first = first;
    }
    const int todo = r->last;
    r->last = at_least(todo, last);
    return todo;
}

/* The ring as a map of one image. */
INLINE ChannelPlane ring_plane(const Ring *r)
{
    return (ChannelPlane){r->p + (r->at - r->first) * r->row, 0, r->row};
}

INLINE Ring input_ring(const WindowTask *t, int strip)
{
    return (Ring){t->staged, t->large_width * t->pitch, 2 * ((strip - 1) * t->stride + t->kernel), 0, 0, 0};
}

/* The task of rows [y, y + rows) of image n, on its normalised inputs, the missing ones of which are computed now. */
INLINE WindowTask staged_rows(const WindowTask *t, Ring *ring, int n, int y, int rows)
{
    const int last = at_most(t->large_height, (y + rows - 1) * t->stride - t->padding + t->kernel);
    const int todo = advance(ring, at_least(0, y * t->stride - t->padding), last);
    WindowTask part = *t;
    part.in = ring_plane(ring);
    part.large_halo = 0;
    ChannelsTask norm = {.plane = {{t->in.p + n * t->in.image + todo * t->in.row, 0, t->in.row},
                                   {part.in.p + todo * ring->row, 0, ring->row}},
                         .vector = {t->scale, t->shift},
                         .pitch = t->pitch,
                         .images = 1,
                         .rows = last - todo,
                         .pixels = t->large_width,
                         .channels = t->channels,
                         .activation = t->in_activation,
                         .streamed = 1};
    if (todo < last)
        norm_apply(&norm);
    return part;
}

/* depthwise_rows() on inputs as they are, or normalised; sums: of the weights' gradient. */
static void depthwise_image(const WindowTask *t, const Pieces *pieces, float *sums, int n)
{
    const int strip = strip_of(t), new_rows = t->kernel - t->stride - t->padding,
              ask = t->scale || (t->stride == 1 && from_memory(t));
    Ring ring = input_ring(t, strip);
    for (int y = t->y0, rows; y < t->y1; y += rows) {
        rows = at_most(strip, t->y1 - y);
        WindowTask part = *t;
        if (t->scale)
            part = staged_rows(t, &ring, n, y, rows);
        part.y0 = y, part.y1 = y + rows;
        /* With a stride a tile's inputs are many and come sooner unasked; staged ones are asked for where they are staged. */
        if (ask && t->stride == 1)
            add_ahead(&part, &t->in, n, (t->scale ? strip : pieces->rows) * t->stride + new_rows, t->stride, 0);
        if (ask)
            add_ahead(&part, &t->out, n, pieces->rows, 1, !sums);
        depthwise_rows(&part, pieces, sums, n);
        if (t->statistics && !sums)
            depthwise_statistics(t, n, y, y + rows);
    }
}

static void depthwise(const WindowTask *t)
{
    const Pieces *pieces = choose_pieces(t, 0);
    for (int n = 0; n < t->images; n++)
        depthwise_image(t, pieces, NULL, n);
}

static void gather_depthwise(const WindowTask *t)
{
    if (t->kernel == 3 && t->stride == 2)
        gather_strided(t, GATHER_DEPTHWISE);
    else
        gather(t, GATHER_DEPTHWISE);
}

static void depthwise_backward_data(const WindowTask *t)
{
    const WindowTask task = asking(t);
    gather_depthwise(&task);
}

static void depthwise_backward_weights(const WindowTask *t, float *sums)
{
    const Pieces *pieces = choose_pieces(t, 1);
    memset(sums, 0, t->kernel * t->kernel * t->channels * sizeof(float));
    for (int n = 0; n < t->images; n++)
        depthwise_image(t, pieces, sums, n);
}

/* Rows of the input's gradient that strip [y, y + rows) of outputs writes, and rows of the output's gradient that they and
 * the strip need. */
INLINE void strip_gradients(const WindowTask *w, int y, int rows, int *large0, int *large1, int *small0, int *small1)
{
    *large0 = at_most(w->large_height, y * w->stride);
    *large1 = y + rows == w->small_height ? w->large_height : at_most(w->large_height, (y + rows) * w->stride);
    *small0 = at_most(y, at_least(0, ceiling(*large0 + w->padding - w->kernel + 1, w->stride)));
    *small1 = at_least(y + rows, at_most(w->small_height, (*large1 - 1 + w->padding) / w->stride + 1));
}

static void depthwise_backward(const DepthwiseBackwardTask *t)
{
    const WindowTask *w = &t->window;
    const Pieces *pieces = choose_pieces(w, 1);
    const ptrdiff_t row = w->small_width * w->pitch;
    const int strip = strip_of(w);
    Ring gradients = {t->staged, row, 2 * (strip + w->kernel), 0, 0, 0};
    memset(t->sums, 0, w->kernel * w->kernel * w->channels * sizeof(float));
    if (w->scale)
        start_backward_statistics(w->channels, t->partials, t->partials_stride);
    for (int n = 0; n < w->images; n++) {
        Ring inputs = input_ring(w, strip);
        gradients.first = gradients.last = 0;
        for (int y = 0, rows; y < w->small_height; y += rows) {
            rows = at_most(strip, w->small_height - y);
            int large0, large1, small0, small1;
            strip_gradients(w, y, rows, &large0, &large1, &small0, &small1);
            const int todo = advance(&gradients, small0, small1);
            const ChannelPlane gradient = ring_plane(&gradients);
            ChannelsTask norm = t->norm;
            norm.images = 1, norm.rows = small1 - todo, norm.streamed = 1;
            UNROLL for (int i = 0; i < 2; i++) norm.plane[i].p += n * norm.plane[i].image + todo * norm.plane[i].row;
            norm.plane[2] = (ChannelPlane){gradient.p + todo * row, 0, row};
            if (todo < small1)
                norm_backward_apply(&norm);

            WindowTask part = *w;
            if (w->scale)
                part = staged_rows(w, &inputs, n, y, rows);
            part.out = gradient;
            part.y0 = y, part.y1 = y + rows;
            add_ahead(&part, &t->norm.plane[0], n, strip + small1 - y - rows, 1, 0);
            add_ahead(&part, &t->norm.plane[1], n, strip + small1 - y - rows, 1, 0);
            depthwise_rows(&part, pieces, t->sums, n);

            WindowTask data = *w;
            data.in = gradient, data.out = t->output;
            data.out.p += n * t->output.image;
            data.weight = t->weight, data.scale = NULL;
            data.images = 1, data.y0 = large0, data.y1 = large1;
            if (w->stride == 1)
                add_ahead(&data, &w->in, n, strip + w->kernel - 1 - w->padding, 1, 0);
            add_ahead(&data, &t->output, n, 4, 1, 1);
            if (w->stride == 1) { /* a convolution of the gradient with the weights turned round */
                data.large_height = w->small_height, data.large_width = w->small_width, data.large_halo = 0;
                data.small_height = w->large_height, data.small_width = w->large_width;
                data.padding = w->kernel - 1 - w->padding;
                depthwise_rows(&data, choose_pieces(&data, 0), NULL, 0);
            } else {
                gather_depthwise(&data);
            }
            if (w->scale && large1 > large0) {
                ChannelsTask sums = {.plane = {{data.out.p + large0 * data.out.row, 0, data.out.row},
                                               {w->in.p + n * w->in.image + large0 * w->in.row, 0, w->in.row}},
                                     .vector = {t->mean, t->inv_std, w->scale, w->shift},
                                     .pitch = w->pitch,
                                     .images = 1,
                                     .rows = large1 - large0,
                                     .pixels = w->large_width,
                                     .channels = w->channels,
                                     .activation = w->in_activation,
                                     .mask = w->in_activation ? MASK_ARGUMENT : MASK_NONE};
                add_backward_statistics(&sums, t->partials, t->partials_stride);
            }
        }
    }
    if (w->scale)
        finish_backward_statistics(w->channels, t->inv_std, t->partials, t->partials_stride);
}

const ChannelsKernels ISA_SYMBOL(forktask_channels) = {
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
    .depthwise_backward = depthwise_backward,
};
