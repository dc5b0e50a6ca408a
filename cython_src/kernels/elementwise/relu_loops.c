/* Inner loops of ReLU, see kernels/elementwise/relu_loops.h. Compiled once per instruction set. */
#include "relu_loops.h"
#include "cython_src/kernels/simd/activations.h"

#include "functions.h"

static void relu(const float *in, float *out, ptrdiff_t n)
{
    FOR_VECTORS(i, m, n, store_some(out + i, activated(load_some(in + i, m), ACTIVATION_RELU), m));
}

static void relu_backward(const float *dy, const float *y, float *dx, ptrdiff_t n)
{
    FOR_VECTORS(i, m, n, store_some(dx + i, passed(load_some(dy + i, m), load_some(y + i, m), ACTIVATION_RELU), m));
}

const ReluLoops ISA_SYMBOL(forktask_relu) = {
    .forward = relu,
    .backward = relu_backward,
};
