/* Element-wise loops over tokens; see kernels/elementwise/rows_loops.h. */
#include "rows_loops.h"

#include "cython_src/kernels/simd/vectors.h"

#include "functions.h"

static void gelu_forward(const float *in, float *out, ptrdiff_t length)
{
    FOR_VECTORS(i, n, length, store_some(out + i, gelu(load_some(in + i, n)), n));
}

static void gelu_backward(const float *gradient, const float *before, float *out, ptrdiff_t length)
{
    FOR_VECTORS(i, n, length,
                store_some(out + i, load_some(gradient + i, n) * gelu_derivative(load_some(before + i, n)), n));
}

static void add(const float *first, const float *second, float *out, ptrdiff_t length)
{
    FOR_VECTORS(i, n, length, store_some(out + i, load_some(first + i, n) + load_some(second + i, n), n));
}

const TokenElementLoops ISA_SYMBOL(forktask_token_elements) = {
    .gelu = gelu_forward,
    .gelu_backward = gelu_backward,
    .add = add,
};
