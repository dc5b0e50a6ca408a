/* Element-wise layers of tokens: activations, their backward passes, and the sum of two tensors (kernels/elementwise/elementwise.pyx).
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

KERNEL(rows_activation)
{
    for_elements(a, [&](long long i) { a.output[i] = activate(a.input[i], a.activation); });
}

KERNEL(rows_activation_backward)
{
    for_elements(a, [&](long long i) { a.output[i] = activation_gradient(a.gradient[i], a.values[i], a.activation); });
}

KERNEL(rows_add)
{
    for_elements(a, [&](long long i) { a.output[i] = a.first[i] + a.second[i]; });
}
