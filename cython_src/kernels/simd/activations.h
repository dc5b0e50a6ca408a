/* Activations of vectors and of single numbers, by their code; see kernels/simd/vectors.h. On every instruction set a NaN
 * stays one, and no result is a negative zero. */
#ifndef FORKTASK_ACTIVATIONS_H
#define FORKTASK_ACTIVATIONS_H

#include "activation_codes.h"
#include "vectors.h"

INLINE Vec clip_below(Vec x)
{
#if MICRO_ISA == AVX512
    return (Vec)_mm512_maskz_mov_ps(_mm512_cmp_ps_mask((__m512)x, _mm512_setzero_ps(), _CMP_NLE_UQ), (__m512)x);
#else
    return (Vec)((VecI)x & ~(x <= 0));
#endif
}

INLINE Vec clip_above(Vec x)
{
#if MICRO_ISA == AVX512
    return (Vec)_mm512_min_ps(_mm512_set1_ps(6), (__m512)x); /* the second operand where one is a NaN */
#else
    VecI over = x >= 6;
    return (Vec)((over & (VecI)splat(6)) | (~over & (VecI)x));
#endif
}

/* ReLU and ReLU6. */
INLINE Vec activated(Vec x, const int activation)
{
    if (activation)
        x = clip_below(x);
    return activation == ACTIVATION_RELU6 ? clip_above(x) : x;
}

/* g where the activation passes it, whose result or argument is y; zero elsewhere. */
INLINE Vec passed(Vec g, Vec y, const int activation)
{
    if (activation == 0)
        return g;
#if MICRO_ISA == AVX512
    __mmask16 mask = _mm512_cmp_ps_mask((__m512)y, _mm512_setzero_ps(), _CMP_GT_OQ);
    if (activation == ACTIVATION_RELU6)
        mask = _mm512_mask_cmp_ps_mask(mask, (__m512)y, _mm512_set1_ps(6), _CMP_LT_OQ);
    return (Vec)_mm512_maskz_mov_ps(mask, (__m512)g);
#else
    VecI mask = y > 0;
    if (activation == ACTIVATION_RELU6)
        mask &= y < 6;
    return (Vec)((VecI)g & mask);
#endif
}

INLINE float activated_one(float x, int activation)
{
    return activated(splat(x), activation)[0];
}

INLINE float passed_one(float g, float y, int activation)
{
    return passed(splat(g), splat(y), activation)[0];
}

#endif
