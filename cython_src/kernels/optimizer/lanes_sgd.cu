/* SGD on the sum of partial gradients: kernels/optimizer/lanes_sgd.pyx. */

#include "cython_src/kernels/interface/block_kernel.cuh"

/* g = sum of the partial gradients in order; v = momentum v + (g + weight_decay w); w = w - rate v. */
KERNEL(sgd)
{
    const int partials = a.integers[0], outputs = a.integers[1], inputs = a.integers[2];
    const int *b = block_bounds(a);
    const float *partial = (const float *)a.operand[0];
    float *gradient = (float *)a.operand[1];
    const float rate = ((const float *)a.operand[6])[iteration_of(a) % a.integers[3]];
    const float momentum = (float)a.reals[0], decay = (float)a.reals[1];
    const long long size = (long long)outputs * (inputs + 1), items = (long long)(b[1] - b[0]) * (inputs + 1);
    for (long long i = thread_of_row(); i < items; i += threads_of_row()) {
        const int o = b[0] + (int)(i / (inputs + 1)), k = (int)(i % (inputs + 1));
        const long long at = (long long)o * (inputs + 1) + k;
        float *w = k < inputs ? (float *)a.operand[2] + (long long)o * inputs + k : (float *)a.operand[3] + o;
        float *v = k < inputs ? (float *)a.operand[4] + (long long)o * inputs + k : (float *)a.operand[5] + o;
        float sum = partial[at];
        for (int p = 1; p < partials; p++)
            sum += partial[p * size + at];
        gradient[at] = sum;
        *v = momentum * *v + (sum + decay * *w);
        *w -= rate * *v;
    }
}
