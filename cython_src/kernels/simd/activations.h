/* ReLU and ReLU6 of vectors and of single numbers, by their code; see kernels/simd/vectors.h. On every instruction set a NaN
 * stays one, and no result is a negative zero. */
#ifndef FORKTASK_ACTIVATIONS_H
#define FORKTASK_ACTIVATIONS_H

#include "kernel_arguments.h" /* written by the build from interface/arguments.py */
#include "vectors.h"

INLINE Vec clip_below(Vec x)
{
    return keep_lanes(greater_or_nan(x, (Vec){0}), x);
}

INLINE Vec activated(Vec x, const int activation)
{
    if (activation)
        x = clip_below(x);
    return activation == ACTIVATION_RELU6 ? minimum(splat(6), x) : x; /* of a NaN the second */
}

/* g where the activation passes it, whose result or argument is y; zero elsewhere. */
INLINE Vec passed(Vec g, Vec y, const int activation)
{
    if (activation == 0)
        return g;
    LaneMask mask = greater(y, (Vec){0});
    if (activation == ACTIVATION_RELU6)
        mask &= less(y, splat(6));
    return keep_lanes(mask, g);
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
