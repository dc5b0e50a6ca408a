/* GELU in its tanh form and its derivative, as kernels/elementwise/functions.h. */
#ifndef FORKTASK_GELU_CUH
#define FORKTASK_GELU_CUH

#define GELU       3                   /* code of the activation, kernels/linear/linear_loops.h */
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

#endif
