/* Exponential and activations of vectors, in polynomials: results do not depend on a library's version. */
#ifndef FORKTASK_ELEMENTWISE_FUNCTIONS_H
#define FORKTASK_ELEMENTWISE_FUNCTIONS_H

#include "cython_src/kernels/simd/activations.h"

#define ROUND           12582912.0f /* 1.5 * 2^23: the last bits of a sum with it are the nearest integer */
#define EXPONENTIAL_MIN -87.3f      /* below, the result would be denormal: it is zero */
#define EXPONENTIAL_MAX 88.0f

/* e^x for x <= EXPONENTIAL_MAX, relative error below 2e-7; a NaN stays one. x = n ln 2 + r, |r| <= ln 2 / 2, and a
 * polynomial of r fitted to the smallest relative error. */
INLINE Vec exponential_down(Vec x)
{
    Vec shifted = x * 1.44269504088896f + splat(ROUND);
    Vec n = shifted - ROUND;
    Vec r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    Vec p = r * 0.0013814540579915047f + 0.00836874544620514f;
    p = p * r + 0.04166838899254799f;
    p = p * r + 0.1666652113199234f;
    p = p * r + 0.4999999403953552f;
    p = p * (r * r) + r;
    Vec scale = (Vec)(((VecI)shifted - (0x4B400000 - 127)) << 23);
    return (Vec)((VecI)(p * scale + scale) & ~(VecI)(x < splat(EXPONENTIAL_MIN)));
}

/* e^x, and e^88 above 88. */
INLINE Vec exponential(Vec x)
{
    return exponential_down(minimum(splat(EXPONENTIAL_MAX), x));
}

/* 1 / (1 + e^-x). */
INLINE Vec sigmoid(Vec x)
{
    return splat(1.0f) / (exponential(-x) + 1.0f);
}

#define GELU_SCALE 0.7978845608028654f /* sqrt(2 / pi) */
#define GELU_CUBIC 0.044715f

/* e^(-2u), u = sqrt(2 / pi) (x + 0.044715 x^3): (1 + tanh(u)) / 2 is 1 / (1 + e^(-2u)). As a power of two, 2^n 2^r with |r| <= 1/2:
 * r is exact, and n is added to the exponent of a polynomial of r (relative error below 1.1e-7). */
INLINE Vec gelu_power(Vec x)
{
    const float scale = -2.0f * GELU_SCALE * 1.44269504088896f; /* times log2(e) */
    Vec y = x * (x * x * (scale * GELU_CUBIC) + scale);
    y = minimum(splat(126.0f), maximum(splat(-125.0f), y));
    Vec shifted = y + splat(ROUND);
    Vec r = y - (shifted - ROUND);
    Vec p = r * 0.001326472731307149f + 0.009671512991189957f;
    p = p * r + 0.05550733581185341f;
    p = p * r + 0.24022242426872253f;
    p = p * r + 0.6931470036506653f;
    p = p * r + 1.0f;
    return (Vec)((VecI)p + ((VecI)shifted << 23));
}

/* GELU in its tanh form: x (1 + tanh(u)) / 2. */
INLINE Vec gelu(Vec x)
{
    return x / (gelu_power(x) + 1.0f);
}

/* Derivative of GELU in its tanh form. With s = (1 + tanh(u)) / 2 it is s + x s (1 - s) 2 u', and 1 - s is e^(-2u) s:
 * a difference would lose digits. */
INLINE Vec gelu_derivative(Vec x)
{
    Vec power = gelu_power(x);
    Vec share = splat(1.0f) / (power + 1.0f);
    Vec twice_du = x * x * (6.0f * GELU_SCALE * GELU_CUBIC) + 2.0f * GELU_SCALE;
    return share + x * twice_du * (share * (power * share));
}

/* Activation by its code. */
INLINE Vec activation_of(Vec x, const int activation)
{
    if (activation == ACTIVATION_GELU)
        return gelu(x);
    if (activation == ACTIVATION_SIGMOID)
        return sigmoid(x);
    return activated(x, activation);
}

/* g before an activation, by the argument of GELU, by the result of others. */
INLINE Vec activation_gradient(Vec g, Vec value, const int activation)
{
    if (activation == ACTIVATION_GELU)
        return g * gelu_derivative(value);
    if (activation == ACTIVATION_SIGMOID)
        return g * (value * (1.0f - value));
    return passed(g, value, activation);
}

#endif
