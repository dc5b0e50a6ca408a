/* Optimisers over flat parameters and clipping by the global norm: kernels/optimizer/optimizer.pyx. */

#include "cython_src/kernels/interface/block_kernel.cuh"

/* The sum of the partials in order, of the element at a place in each. */
template <typename Args>
__device__ inline float partial_sum(const Args &a, long long at)
{
    float sum = a.partials[at];
    each_ahead<4>(
        1, a.elements.num_partials, 1, [&](int p) { return a.partials[at + (long long)p * a.elements.partial_stride]; },
        [&](int, float partial) { sum += partial; });
    return sum;
}

/* Element e of the gradient: the sum of the partials, kept; or what was summed before. */
template <typename Args>
__device__ inline float gradient_at(const Args &a, int e)
{
    if (!a.partials)
        return a.gradient[e];
    return a.gradient[e] = partial_sum(a, (long long)(e / a.elements.row_length) * a.elements.row_stride +
                                              a.elements.row_offset + e % a.elements.row_length);
}

/* A thread for each element. Bounds of these: elements. */
KERNEL_MANY(optimizer_sgd)
{
    const auto &b = block_bounds(a);
    float *velocity = a.velocity;
    const float rate = a.learning_rates[iteration_of(a) % a.num_rates];
    const float scale = a.scale ? *a.scale : 1;
    const float momentum = (float)a.momentum, decay = (float)a.weight_decay;
    for (int e = b.e0 + thread_of_row(a); e < b.e1; e += threads_of_row(a)) {
        float g = scale * gradient_at(a, e) + decay * a.parameter[e];
        if (velocity)
            velocity[e] = g = momentum * velocity[e] + g;
        a.parameter[e] -= rate * g;
    }
    if (!a.bias)
        return;
    const int row = a.elements.row_length, stride = a.elements.row_stride;
    for (int o = b.e0 / row + thread_of_row(a); o < b.e1 / row; o += threads_of_row(a)) {
        float g = a.bias_gradient[o] = partial_sum(a, (long long)(o + 1) * stride - 1);
        g += decay * a.bias[o];
        if (a.bias_velocity)
            a.bias_velocity[o] = g = momentum * a.bias_velocity[o] + g;
        a.bias[o] -= rate * g;
    }
}

KERNEL_MANY(optimizer_adam)
{
    const auto &b = block_bounds(a);
    float *parameter = a.parameter, *first = a.first_moment, *second = a.second_moment;
    const double rate = a.learning_rates[iteration_of(a) % a.num_rates], t = (double)(iteration_of(a) + 1);
    const float scale = a.scale ? *a.scale : 1;
    const float beta1 = (float)a.beta1, beta2 = (float)a.beta2, eps = (float)a.eps;
    const float decay = a.decoupled ? 0 : (float)a.weight_decay,
                shrink = a.decoupled ? (float)(1 - rate * a.weight_decay) : 1;
    const float step = (float)(rate / (1 - pow(a.beta1, t))), correction = (float)(1 / sqrt(1 - pow(a.beta2, t)));
    for (int e = b.e0 + thread_of_row(a); e < b.e1; e += threads_of_row(a)) {
        const float g = scale * gradient_at(a, e) + decay * parameter[e];
        first[e] = beta1 * first[e] + (1 - beta1) * g;
        second[e] = beta2 * second[e] + (1 - beta2) * (g * g);
        parameter[e] = shrink * parameter[e] - step * first[e] / (sqrtf(second[e]) * correction + eps);
    }
}

/* One CUDA block for a block of the plan: threads take every THREADS-th element, a tree adds them. Bounds: elements, place
 * in the squares. */
KERNEL_MANY(gradient_sum)
{
    float *sums = shared; /* [THREADS] */
    const auto &b = block_bounds(a);
    float sum = 0;
    for (int e = b.e0 + threadIdx.x; e < b.e1; e += THREADS) {
        const float g = gradient_at(a, e);
        sum += g * g;
    }
    sum = sum_threads(sums, sum);
    if (threadIdx.x == 0)
        a.squares[b.partial] = sum;
}

/* One CUDA block, whose threads take every THREADS-th square; a tree adds them. */
KERNEL(gradient_scale)
{
    double total = 0;
    for (int i = threadIdx.x; i < a.num_squares; i += THREADS)
        total += a.squares[i];
    total = sqrt(sum_threads((double *)shared, total));
    if (threadIdx.x != 0)
        return;
    const double factor = a.max_norm / (total + 1e-6);
    *a.scale = factor < 1 ? (float)factor : 1;
    if (a.norm_log)
        a.norm_log[iteration_of(a) % a.length] = (float)total;
}
