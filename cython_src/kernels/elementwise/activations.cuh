/* Activations by their code, and where they pass a gradient. GELU is that of kernels/elementwise/functions.h. */
#ifndef FORKTASK_ACTIVATIONS_CUH
#define FORKTASK_ACTIVATIONS_CUH

#include "cython_src/kernels/interface/activation_codes.cuh"

#define GELU_SCALE 0.7978845608028654f /* sqrt(2 / pi) */
#define GELU_CUBIC 0.044715f
#define GELU_MOST  88.0f /* of the exponent: no infinity, whose product with zero were none */

/* e^(-2u), u = sqrt(2 / pi) (x + 0.044715 x^3): (1 + tanh(u)) / 2 is 1 / (1 + e^(-2u)). */
__device__ inline float gelu_power(float x)
{
    return expf(min(GELU_MOST, x * (x * x * (-2 * GELU_SCALE * GELU_CUBIC) - 2 * GELU_SCALE)));
}

__device__ inline float gelu(float x)
{
    return x / (gelu_power(x) + 1);
}

__device__ inline float gelu_derivative(float x)
{
    const float power = gelu_power(x), share = 1 / (power + 1);
    const float twice_du = x * x * (6 * GELU_SCALE * GELU_CUBIC) + 2 * GELU_SCALE;
    return share + x * twice_du * (share * (power * share));
}

__device__ inline float activate(float x, int activation)
{
    if (activation == ACTIVATION_GELU)
        return gelu(x);
    if (activation == ACTIVATION_SIGMOID)
        return 1 / (1 + expf(-x));
    if (activation)
        x = x <= 0 ? 0 : x; /* a NaN stays one */
    return activation == ACTIVATION_RELU6 && x >= 6 ? 6 : x;
}

/* Whether ReLU or ReLU6 passes the gradient, from its result or its argument. */
__device__ inline bool passes(float y, int activation)
{
    return activation == 0 || (y > 0 && (activation != ACTIVATION_RELU6 || y < 6));
}

/* g before an activation, by the argument of GELU, by the result of others. */
__device__ inline float activation_gradient(float g, float value, int activation)
{
    if (activation == ACTIVATION_GELU)
        return g * gelu_derivative(value);
    if (activation == ACTIVATION_SIGMOID)
        return g * (value * (1 - value));
    return passes(value, activation) ? g : 0;
}

#endif
