/* Vector types of the instruction set that a source file is compiled for (MICRO_ISA), and what can be done with
 * them: shared by every file of inner loops.
 *
 * What differs between instruction sets is said in one way: BY_ISA(generic, neon, avx2, avx512) is one of four tokens,
 * such as the rows of a tile; an ordinary `if` on such a constant leaves out what a set does not need; EACH_TO makes a
 * tile's forms for each number of rows. `#if` stands only around what another compiler target does not know.
 *
 * Explicit vector types, because auto-vectorised code mixes register widths; plain C otherwise, so that the
 * generic form builds for any processor. */
#ifndef FORKTASK_VECTORS_H
#define FORKTASK_VECTORS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "lanes.h"

#define GENERIC 0
#define AVX2    1
#define AVX512  2

#if MICRO_ISA != GENERIC
#include <immintrin.h>
#endif

#if MICRO_ISA == AVX512
#define VL                                  16 /* floats in a register */
#define ISA_NAME                            "avx512"
#define ISA_SYMBOL(NAME)                    NAME##_avx512
#define BY_ISA(generic, neon, avx2, avx512) avx512
#elif MICRO_ISA == AVX2
#define VL                                  8
#define ISA_NAME                            "avx2"
#define ISA_SYMBOL(NAME)                    NAME##_avx2
#define BY_ISA(generic, neon, avx2, avx512) avx2
#else
#define VL               4
#define ISA_NAME         "generic"
#define ISA_SYMBOL(NAME) NAME##_generic
#if defined(__aarch64__)
#define BY_ISA(generic, neon, avx2, avx512) neon
#else
#define BY_ISA(generic, neon, avx2, avx512) generic
#endif
#endif

#define REGISTERS (LANES / VL) /* that a vector of LANES floats takes */

typedef float Vec __attribute__((vector_size(VL * 4), aligned(VL * 4), may_alias));
typedef float VecU __attribute__((vector_size(VL * 4), aligned(4), may_alias));

#define INLINE static inline __attribute__((always_inline))
/* Of a function that other files of inner loops for the same instruction set call. */
#define SHARED __attribute__((visibility("hidden")))
#define UNROLL _Pragma("GCC unroll 32")

/* EACH_TO(MOST, FORM, ...) is FORM(1, ...) FORM(2, ...) to FORM(MOST, ...), MOST at most 10. */
#define EACH_TO(MOST, FORM, ...)  EACH_TO_(MOST, FORM, __VA_ARGS__)
#define EACH_TO_(MOST, FORM, ...) EACH_TO_##MOST(FORM, __VA_ARGS__)
#define EACH_TO_1(FORM, ...)      FORM(1, __VA_ARGS__)
#define EACH_TO_2(FORM, ...)      EACH_TO_1(FORM, __VA_ARGS__) FORM(2, __VA_ARGS__)
#define EACH_TO_3(FORM, ...)      EACH_TO_2(FORM, __VA_ARGS__) FORM(3, __VA_ARGS__)
#define EACH_TO_4(FORM, ...)      EACH_TO_3(FORM, __VA_ARGS__) FORM(4, __VA_ARGS__)
#define EACH_TO_5(FORM, ...)      EACH_TO_4(FORM, __VA_ARGS__) FORM(5, __VA_ARGS__)
#define EACH_TO_10(FORM, ...)    \
    EACH_TO_5(FORM, __VA_ARGS__) \
    FORM(6, __VA_ARGS__) FORM(7, __VA_ARGS__) FORM(8, __VA_ARGS__) FORM(9, __VA_ARGS__) FORM(10, __VA_ARGS__)

INLINE Vec load(const float *p)
{
    return (Vec) * (const VecU *)p;
}
INLINE void store(float *p, Vec v)
{
    *(VecU *)p = (VecU)v;
}

/* A whole line, past the caches: no core waits for what it held. streamed() comes before others may read it. */
INLINE void stream(float *p, Vec v)
{
#if MICRO_ISA == AVX512
    _mm512_stream_ps(p, (__m512)v);
#else
    store(p, v);
#endif
}
INLINE void streamed(void)
{
#if MICRO_ISA == AVX512
    _mm_sfence();
#endif
}

#if defined(__clang__)
#define SHUFFLE(MASK, a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(MASK, a, b, ...) __builtin_shuffle(a, b, (MASK){__VA_ARGS__})
#endif
typedef int32_t VecI __attribute__((vector_size(VL * 4)));

/* All lanes x: by a subtraction of zero, which is exact for any x and folded away; adding zero would stay. */
INLINE Vec splat(float x)
{
    return x - (Vec){0};
}

/* Operations for which instruction sets have words of their own. In plain C a mask is -1 or 0 in each lane. */
#define BY_WIDTH(plain, avx2, avx512) (BY_ISA(plain, plain, avx2, avx512))
typedef BY_ISA(VecI, VecI, VecI, __mmask16) LaneMask;
#define COMPARE(a, b, avx512, plain) \
    BY_WIDTH((LaneMask)(plain), (LaneMask)(plain), _mm512_cmp_ps_mask((__m512)(a), (__m512)(b), avx512))

INLINE LaneMask greater(Vec a, Vec b)
{
    return COMPARE(a, b, _CMP_GT_OQ, a > b);
}
INLINE LaneMask less(Vec a, Vec b)
{
    return COMPARE(a, b, _CMP_LT_OQ, a < b);
}
INLINE LaneMask greater_or_nan(Vec a, Vec b)
{
    return COMPARE(a, b, _CMP_NLE_UQ, ~(a <= b));
}
INLINE LaneMask is_nan(Vec a)
{
    return COMPARE(a, a, _CMP_UNORD_Q, a != a);
}

/* Bits of a where those of the mask are set, of b elsewhere. */
INLINE VecI choose_bits(VecI mask, VecI a, VecI b)
{
    return (mask & a) | (~mask & b);
}
/* a where the mask is set, b elsewhere. */
INLINE Vec choose_lanes(LaneMask mask, Vec a, Vec b)
{
    return (Vec)BY_WIDTH(choose_bits(mask, (VecI)a, (VecI)b), choose_bits(mask, (VecI)a, (VecI)b),
                         _mm512_mask_mov_ps((__m512)b, mask, (__m512)a));
}
INLINE VecI choose_numbers(LaneMask mask, int a, VecI b)
{
    return (VecI)BY_WIDTH((mask & a) | (~mask & b), (mask & a) | (~mask & b),
                          _mm512_mask_mov_epi32((__m512i)b, mask, _mm512_set1_epi32(a)));
}
/* v where the mask is set, zero elsewhere. */
INLINE Vec keep_lanes(LaneMask mask, Vec v)
{
    return (Vec)BY_WIDTH(mask & (VecI)v, mask & (VecI)v, _mm512_maskz_mov_ps(mask, (__m512)v));
}
/* a + v where the mask is set; elsewhere a, or, in plain C, a + 0. */
INLINE Vec add_lanes(Vec a, LaneMask mask, Vec v)
{
    return (Vec)BY_WIDTH(a + keep_lanes(mask, v), a + keep_lanes(mask, v),
                         _mm512_mask_add_ps((__m512)a, mask, (__m512)a, (__m512)v));
}
/* Where bytes are equal to a number. */
INLINE LaneMask equal_bytes(const uint8_t *p, int number)
{
    VecI bytes = BY_WIDTH((VecI){0}, (VecI)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)), (VecI){0});
    for (int i = 0; i < BY_WIDTH(VL, 0, 0); i++)
        bytes[i] = p[i];
    return BY_WIDTH(bytes == number, bytes == number,
                    _mm_cmpeq_epi8_mask(_mm_loadu_si128((const __m128i *)p), _mm_set1_epi8((char)number)));
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
/* a > b ? a : b. */
INLINE Vec maximum(Vec a, Vec b)
{
    return (Vec)BY_WIDTH(choose_lanes(greater(a, b), a, b), _mm256_max_ps((__m256)a, (__m256)b),
                         _mm512_max_ps((__m512)a, (__m512)b));
}
/* a < b ? a : b. */
INLINE Vec minimum(Vec a, Vec b)
{
    return (Vec)BY_WIDTH(choose_lanes(less(a, b), a, b), _mm256_min_ps((__m256)a, (__m256)b),
                         _mm512_min_ps((__m512)a, (__m512)b));
}
INLINE Vec square_root(Vec x)
{
    for (int i = 0; i < BY_WIDTH(VL, 0, 0); i++)
        x[i] = sqrtf(x[i]);
    return (Vec)BY_WIDTH(x, _mm256_sqrt_ps((__m256)x), _mm512_sqrt_ps((__m512)x));
}

/* Two vectors seen as rows of pieces: LOW keeps the first half of every piece, HIGH the second. */
#if VL == 16
#define EVEN(a, b)  SHUFFLE(VecI, a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30)
#define ODD(a, b)   SHUFFLE(VecI, a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31)
#define LOW2(a, b)  SHUFFLE(VecI, a, b, 0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21, 24, 25, 28, 29)
#define HIGH2(a, b) SHUFFLE(VecI, a, b, 2, 3, 6, 7, 10, 11, 14, 15, 18, 19, 22, 23, 26, 27, 30, 31)
#define LOW4(a, b)  SHUFFLE(VecI, a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27)
#define HIGH4(a, b) SHUFFLE(VecI, a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31)
#define LOW8(a, b)  SHUFFLE(VecI, a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23)
#define HIGH8(a, b) SHUFFLE(VecI, a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31)
#elif VL == 8
#define EVEN(a, b)  SHUFFLE(VecI, a, b, 0, 2, 4, 6, 8, 10, 12, 14)
#define ODD(a, b)   SHUFFLE(VecI, a, b, 1, 3, 5, 7, 9, 11, 13, 15)
#define LOW2(a, b)  SHUFFLE(VecI, a, b, 0, 1, 4, 5, 8, 9, 12, 13)
#define HIGH2(a, b) SHUFFLE(VecI, a, b, 2, 3, 6, 7, 10, 11, 14, 15)
#define LOW4(a, b)  SHUFFLE(VecI, a, b, 0, 1, 2, 3, 8, 9, 10, 11)
#define HIGH4(a, b) SHUFFLE(VecI, a, b, 4, 5, 6, 7, 12, 13, 14, 15)
#else
#define EVEN(a, b)  SHUFFLE(VecI, a, b, 0, 2, 4, 6)
#define ODD(a, b)   SHUFFLE(VecI, a, b, 1, 3, 5, 7)
#define LOW2(a, b)  SHUFFLE(VecI, a, b, 0, 1, 4, 5)
#define HIGH2(a, b) SHUFFLE(VecI, a, b, 2, 3, 6, 7)
#endif

/* MERGE(LOW, HIGH) for each step of a tree that brings lane i of vector i together with its other lanes, halves first. */
#if VL == 16
#define EACH_HALVING(MERGE) MERGE(LOW8, HIGH8) MERGE(LOW4, HIGH4) MERGE(LOW2, HIGH2) MERGE(EVEN, ODD)
#elif VL == 8
#define EACH_HALVING(MERGE) MERGE(LOW4, HIGH4) MERGE(LOW2, HIGH2) MERGE(EVEN, ODD)
#else
#define EACH_HALVING(MERGE) MERGE(LOW2, HIGH2) MERGE(EVEN, ODD)
#endif

/* Lane i of the result is the sum of v[i]'s lanes, halves first; lanes from n on are undefined. Uses up v.
 * A tree of half-merging steps: three instructions a vector, where summing each by itself takes eight. */
INLINE Vec lane_sums(Vec *v, const int n)
{
    int count = n;
#define ADD_HALVES(LOW, HIGH)                                       \
    UNROLL for (int i = 0; 2 * i < count; i++)                      \
    {                                                               \
        Vec a = v[2 * i], b = 2 * i + 1 < count ? v[2 * i + 1] : a; \
        v[i] = LOW(a, b) + HIGH(a, b);                              \
    }                                                               \
    count = (count + 1) / 2;
    EACH_HALVING(ADD_HALVES)
#undef ADD_HALVES
    return v[0];
}

INLINE float lane_sum(Vec v)
{
    v = lane_sums(&v, 1);
    return v[0];
}

INLINE int smaller(int a, int b)
{
    return a < b ? a : b;
}

/* Transpose a square of VL x VL floats: each step rotates the bits of an element's index by one. */
INLINE void transpose(Vec *v)
{
    UNROLL for (int step = 1; step < VL; step *= 2)
    {
        Vec t[VL];
        UNROLL for (int i = 0; i < VL / 2; i++) t[i] = EVEN(v[2 * i], v[2 * i + 1]),
                                                t[i + VL / 2] = ODD(v[2 * i], v[2 * i + 1]);
        UNROLL for (int i = 0; i < VL; i++) v[i] = t[i];
    }
}

INLINE void store_or_add(float *p, Vec v, const int add)
{
    if (add)
        v += load(p);
    store(p, v);
}

/* Of the first n lanes. */
INLINE LaneMask first_mask(int n)
{
    VecI lane;
    UNROLL for (int i = 0; i < VL; i++) lane[i] = i;
    return (LaneMask)BY_WIDTH(lane < n, lane < n, (1u << n) - 1);
}

/* The first n lanes from memory, zeros in the others; a plain load where n is known to be VL. */
INLINE Vec load_some(const float *p, int n)
{
    if (n == VL)
        return load(p);
    Vec v = {0};
    for (int i = 0; i < BY_WIDTH(n, 0, 0); i++)
        v[i] = p[i];
    return (Vec)BY_WIDTH(v, _mm256_maskload_ps(p, (__m256i)first_mask(n)), _mm512_maskz_loadu_ps(first_mask(n), p));
}

/* Store the first n lanes. */
INLINE void store_some(float *p, Vec v, int n)
{
    if (n == VL)
        store(p, v);
    else
#if MICRO_ISA == AVX512
        _mm512_mask_storeu_ps(p, first_mask(n), (__m512)v);
#else
        memcpy(p, &v, n * sizeof(float)); /* processors of AMD take longer for a masked store of AVX2 */
#endif
}

INLINE void store_or_add_some(float *p, Vec v, const int add, int n)
{
    if (add)
        v += load_some(p, n);
    store_some(p, v, n);
}

/* v with zeros from lane n on. */
INLINE Vec first_lanes(Vec v, int n)
{
    return n == VL ? v : keep_lanes(first_mask(n), v);
}

/* Run a statement for each vector of `length` floats: `i` is its first element, `n` its number of lanes, a constant but in
 * the last one. */
#define FOR_VECTORS(i, n, length, ...)         \
    do {                                       \
        ptrdiff_t i = 0;                       \
        for (; i + VL <= (length); i += VL) {  \
            const int n = VL;                  \
            __VA_ARGS__;                       \
        }                                      \
        if (i < (length)) {                    \
            const int n = (int)((length) - i); \
            __VA_ARGS__;                       \
        }                                      \
    } while (0)

/* Vectors that sums run over side by side, in an order that depends on the length alone. */
#define CHAINS 4

/* STATEMENT adds to sum[chain] for each vector of a row; chains_sum() is the row's sum. */
#define SUM_VECTORS(sum, i, n, length, STATEMENT)                     \
    do {                                                              \
        ptrdiff_t first = 0;                                          \
        for (; first + CHAINS * VL <= (length); first += CHAINS * VL) \
            UNROLL for (int chain = 0; chain < CHAINS; chain++)       \
            {                                                         \
                const ptrdiff_t i = first + chain * VL;               \
                const int n = VL;                                     \
                STATEMENT;                                            \
            }                                                         \
        const int chain = 0;                                          \
        for (; first + VL <= (length); first += VL) {                 \
            const ptrdiff_t i = first;                                \
            const int n = VL;                                         \
            STATEMENT;                                                \
        }                                                             \
        if (first < (length)) {                                       \
            const ptrdiff_t i = first;                                \
            const int n = (int)((length) - first);                    \
            STATEMENT;                                                \
        }                                                             \
    } while (0)

INLINE float chains_sum(const Vec *sum)
{
    return lane_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

#endif
