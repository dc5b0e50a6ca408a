/* Optimisers over flat parameters and clipping by the global norm: kernels/optimizer/optimizer.pyx. */

#include "cython_src/kernels/interface/block_kernel.cuh"

/* Element e of the gradient: the sum of the partials in order, kept; or what was summed before. */
__device__ inline float gradient_at(const GpuArgs &a, int e)
{
    float *gradient = (float *)a.operand[1];
    if (!a.operand[0])
        return gradient[e];
    const float *partial = (const float *)a.operand[0] + (long long)(e / a.integers[2]) * a.integers[3] +
                           a.integers[4] + e % a.integers[2];
    float sum = partial[0];
    for (int p = 1; p < a.integers[0]; p++)
        sum += partial[(long long)p * a.integers[1]];
    return gradient[e] = sum;
}

/* A thread for each element. Bounds of these: elements. */
KERNEL(optimizer_sgd)
{
    const int *b = block_bounds(a);
    float *parameter = (float *)a.operand[2], *velocity = (float *)a.operand[3];
    const float rate = ((const float *)a.operand[4])[iteration_of(a) % a.integers[5]];
    const float scale = a.operand[5] ? *(const float *)a.operand[5] : 1;
    const float momentum = (float)a.reals[0], decay = (float)a.reals[1];
    for (int e = b[0] + thread_of_row(); e < b[1]; e += threads_of_row()) {
        float g = scale * gradient_at(a, e) + decay * parameter[e];
        if (velocity)
            velocity[e] = g = momentum * velocity[e] + g;
        parameter[e] -= rate * g;
    }
}

/* SGD of a layer's weights and biases: row o of a gradient is that of W[o], then of b[o]. Bounds: rows. */
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
        *w -= rate * (*v = momentum * *v + (sum + decay * *w));
    }
}

KERNEL(optimizer_adam)
{
    const int *b = block_bounds(a);
    float *parameter = (float *)a.operand[2], *first = (float *)a.operand[3], *second = (float *)a.operand[4];
    const double rate = ((const float *)a.operand[5])[iteration_of(a) % a.integers[5]],
                 t = (double)(iteration_of(a) + 1);
    const float scale = a.operand[6] ? *(const float *)a.operand[6] : 1;
    const float beta1 = (float)a.reals[0], beta2 = (float)a.reals[1], eps = (float)a.reals[2];
    const float decay = a.integers[6] ? 0 : (float)a.reals[3],
                shrink = a.integers[6] ? (float)(1 - rate * a.reals[3]) : 1;
    const float step = (float)(rate / (1 - pow(a.reals[0], t))), correction = (float)(1 / sqrt(1 - pow(a.reals[1], t)));
    for (int e = b[0] + thread_of_row(); e < b[1]; e += threads_of_row()) {
        const float g = scale * gradient_at(a, e) + decay * parameter[e];
        first[e] = beta1 * first[e] + (1 - beta1) * g;
        second[e] = beta2 * second[e] + (1 - beta2) * (g * g);
        parameter[e] = shrink * parameter[e] - step * first[e] / (sqrtf(second[e]) * correction + eps);
    }
}

/* One CUDA block for a block of the plan: threads take every THREADS-th element, a tree adds them. Bounds: elements, place
 * in the squares. */
KERNEL(gradient_sum)
{
    float *sums = shared; /* [THREADS] */
    const int *b = block_bounds(a);
    float sum = 0;
    for (int e = b[0] + threadIdx.x; e < b[1]; e += THREADS) {
        const float g = gradient_at(a, e);
        sum += g * g;
    }
    sum = sum_threads(sums, sum);
    if (threadIdx.x == 0)
        ((float *)a.operand[2])[b[2]] = sum;
}

/* One thread: there are a few squares for each parameter. */
KERNEL(gradient_scale)
{
    if (thread_of_row() != 0)
        return;
    double total = 0;
    for (int i = 0; i < a.integers[0]; i++)
        total += ((const float *)a.operand[0])[i];
    total = sqrt(total);
    const double factor = a.reals[0] / (total + 1e-6);
    *(float *)a.operand[1] = factor < 1 ? (float)factor : 1;
    if (a.operand[2])
        ((float *)a.operand[2])[iteration_of(a) % a.integers[1]] = (float)total;
}
