/* Inner loops of ReLU, see kernels/elementwise/relu_loops.h. Compiled once per instruction set. */
#include "relu_loops.h"
#include "cython_src/kernels/simd/vectors.h"

static void relu(const float *in, float *out, ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < n; i++)
        out[i] = in[i] <= 0 ? 0 : in[i];
}

static void relu_backward(const float *dy, const float *y, float *dx, ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < n; i++)
        dx[i] = y[i] > 0 ? dy[i] : 0;
}

const ReluLoops ISA_SYMBOL(forktask_relu) = {
    .forward = relu,
    .backward = relu_backward,
};
