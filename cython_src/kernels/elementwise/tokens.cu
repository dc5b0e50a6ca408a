/* Element-wise layers of tokens: ReLU and GELU, their backward passes, and the sum of two tensors (kernels/elementwise/elementwise.pyx).
 * Bounds: rows. */

#include "cython_src/kernels/elementwise/activations.cuh"
#include "cython_src/kernels/interface/block_kernel.cuh"

/* Call body(i) for each element of a block's rows; all threads of the grid row divide them. */
template <typename Body>
__device__ inline void for_elements(const GpuArgs &a, Body body)
{
    const int *b = block_bounds(a);
    const long long stop = (long long)b[1] * a.integers[0];
    for (long long i = (long long)b[0] * a.integers[0] + thread_of_row(); i < stop; i += threads_of_row())
        body(i);
}

KERNEL(gelu_forward)
{
    for_elements(a, [&](long long i) { ((float *)a.operand[1])[i] = gelu(((const float *)a.operand[0])[i]); });
}

KERNEL(gelu_backward)
{
    for_elements(a, [&](long long i) {
        ((float *)a.operand[2])[i] =
            ((const float *)a.operand[0])[i] * gelu_derivative(((const float *)a.operand[1])[i]);
    });
}

KERNEL(tokens_relu_forward)
{
    for_elements(a, [&](long long i) {
        ((float *)a.operand[1])[i] = activate(((const float *)a.operand[0])[i], ACTIVATION_RELU);
    });
}

KERNEL(tokens_relu_backward)
{
    for_elements(a, [&](long long i) {
        const bool passed = ((const float *)a.operand[1])[i] > 0;
        ((float *)a.operand[2])[i] = passed ? ((const float *)a.operand[0])[i] : 0;
    });
}

KERNEL(tokens_add)
{
    for_elements(a, [&](long long i) {
        ((float *)a.operand[2])[i] = ((const float *)a.operand[0])[i] + ((const float *)a.operand[1])[i];
    });
}
