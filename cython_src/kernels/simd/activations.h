/* Activations of vectors and of single numbers, by their code: 0 none, 1 ReLU, 2 ReLU6; see kernels/simd/vectors.h. */
#ifndef FORKTASK_ACTIVATIONS_H
#define FORKTASK_ACTIVATIONS_H

#include "vectors.h"

#if MICRO_ISA != GENERIC
#include <immintrin.h>
#endif

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

/* Like activated(), but negative zeros become positive ones on every instruction set. */
INLINE Vec apply_activation(Vec v, int activation)
{
    if (activation)
        v = (Vec)((VecI)v & ~(VecI)(v <= (Vec){0})); /* a NaN stays one */
    if (activation == 2) {
        VecI above = (VecI)(v >= splat(6.0f));
        v = (Vec)(((VecI)v & ~above) | ((VecI)splat(6.0f) & above));
    }
    return v;
}

#endif
