/* Activations by their code, 0 none, 1 ReLU, 2 ReLU6, and where they pass a gradient. */
#ifndef FORKTASK_ACTIVATIONS_CUH
#define FORKTASK_ACTIVATIONS_CUH

__device__ inline float activate(float x, int activation)
{
    if (activation)
        x = x <= 0 ? 0 : x; /* a NaN stays one */
    return activation == 2 && x >= 6 ? 6 : x;
}

/* Whether an activation passes the gradient, from its result or its argument. */
__device__ inline bool passes(float y, int activation)
{
    return activation == 0 || (y > 0 && (activation != 2 || y < 6));
}

#endif
