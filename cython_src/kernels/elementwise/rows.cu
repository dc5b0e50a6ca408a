/* Element-wise layers of tokens: ReLU and GELU, their backward passes, and the sum of two tensors (kernels/elementwise/elementwise.pyx).
 * Bounds: rows. */

#include "cython_src/kernels/elementwise/activations.cuh"
#include "cython_src/kernels/interface/block_kernel.cuh"

/* Call body(i) for each element of a block's rows; all threads of the grid row divide them. */
template <typename Body, typename Args>
__device__ inline void for_elements(const Args &a, Body body)
{
    const auto &b = block_bounds(a);
    const long long stop = (long long)b.r1 * a.features;
    for (long long i = (long long)b.r0 * a.features + thread_of_row(); i < stop; i += threads_of_row())
        body(i);
}

KERNEL(gelu_forward)
{
    for_elements(a, [&](long long i) { a.output[i] = gelu(a.input[i]); });
}

KERNEL(gelu_backward)
{
    for_elements(a, [&](long long i) { a.output[i] = a.gradient[i] * gelu_derivative(a.before[i]); });
}

KERNEL(rows_relu_forward)
{
    for_elements(a, [&](long long i) { a.output[i] = activate(a.input[i], ACTIVATION_RELU); });
}

KERNEL(rows_relu_backward)
{
    for_elements(a, [&](long long i) {
        const bool passed = a.activations[i] > 0;
        a.output[i] = passed ? a.gradient[i] : 0;
    });
}

KERNEL(rows_add)
{
    for_elements(a, [&](long long i) { a.output[i] = a.first[i] + a.second[i]; });
}
