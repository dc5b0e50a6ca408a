/* Inner loops of activations, sums and dropout, see kernels/elementwise/nhwc_loops.h. Compiled once per instruction
 * set. */
#include "nhwc_loops.h"
#include "cython_src/kernels/maps/nhwc_planes_loops.h"
#include "cython_src/kernels/elementwise/functions.h"

INLINE void activate_run(const float *x, const float *second, float *y, ptrdiff_t n, const int activation,
                         const int add)
{
    FOR_VECTORS(i, lanes, n, {
        Vec v = load_some(x + i, lanes);
        if (add)
            v += load_some(second + i, lanes);
        store_some(y + i, activation_of(v, activation), lanes);
    });
}

INLINE void activate_body(const NhwcTask *t, float *const *p, int pixels, float *sums, ptrdiff_t stride, const int a,
                          const int b)
{
    if (t->channels == t->pitch) {
        activate_run(p[0], b ? p[2] : NULL, p[1], pixels * t->pitch, a, b);
        return;
    }
    for (ptrdiff_t at = 0; at < pixels * t->pitch; at += t->pitch)
        activate_run(p[0] + at, b ? p[2] + at : NULL, p[1] + at, t->channels, a, b);
}

static void activate(const NhwcTask *t)
{
#define CALL(A)                                             \
    case A:                                                 \
        if (t->residual)                                    \
            each_chunk(t, 3, activate_body, NULL, 0, A, 1); \
        else                                                \
            each_chunk(t, 2, activate_body, NULL, 0, A, 0); \
        break;
    switch (t->activation) {
        EACH_ACTIVATION(CALL)
    }
#undef CALL
}

INLINE void activate_backward_run(const float *dy, const float *y, float *out, ptrdiff_t n, const int activation,
                                  const int accumulate)
{
    FOR_VECTORS(i, lanes, n, {
        Vec g = activation_gradient(load_some(dy + i, lanes), load_some(y + i, lanes), activation);
        store_or_add_some(out + i, g, accumulate, lanes);
    });
}

INLINE void activate_backward_body(const NhwcTask *t, float *const *p, int pixels, float *sums, ptrdiff_t stride,
                                   const int a, const int b)
{
    ptrdiff_t step = t->channels == t->pitch ? pixels * t->pitch : t->pitch;
    ptrdiff_t n = t->channels == t->pitch ? step : t->channels;
    for (ptrdiff_t at = 0; at < pixels * t->pitch; at += step)
        activate_backward_run(p[0] + at, p[1] + at, p[2] + at, n, a, t->accumulate);
}

static void activate_backward(const NhwcTask *t)
{
#define CALL(A)                                                  \
    case A:                                                      \
        each_chunk(t, 3, activate_backward_body, NULL, 0, A, 0); \
        break;
    switch (t->activation) {
        EACH_ACTIVATION(CALL)
    }
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

static void dropout(const NhwcTask *t, int height, int first_row, uint64_t seed, uint32_t layer, uint32_t iteration,
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
                FOR_VECTORS(e, lanes, stop, {
                    VecI kept = (VecI)(*(const VecW *)(word + e) >= threshold);
                    store_some(out + start + e, (Vec)(kept & (VecI)(load_some(x + start + e, lanes) * scale)), lanes);
                });
            }
        }
}

const NhwcElementwiseLoops ISA_SYMBOL(forktask_nhwc_elementwise) = {
    .activate = activate,
    .activate_backward = activate_backward,
    .dropout = dropout,
};
