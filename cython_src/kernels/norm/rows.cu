/* Layer normalisation of tokens, NoNorm, and their gradients: formulas and operands as in kernels/norm/norm.pyx. */

#include "cython_src/kernels/interface/block_kernel.cuh"

/* A CUDA block for each row. Bounds: rows. */
KERNEL(layernorm_forward)
{
    const int features = a.features;
    const auto &b = block_bounds(a);
    for (int row = b.r0 + (int)blockIdx.x; row < b.r1; row += gridDim.x) {
        const long long start = (long long)row * features;
        const float *x = a.input + start, *residual = a.residual;
        float *out = a.output + start, *statistics = a.statistics + 2 * (long long)row;
        float sum = 0, squares = 0;
        if (residual) { /* each thread reads below what it wrote itself */
            float *both = a.sum ? a.sum + start : out;
            for (int f = threadIdx.x; f < features; f += THREADS)
                both[f] = x[f] + residual[start + f];
            x = both;
        }
        for (int f = threadIdx.x; f < features; f += THREADS)
            sum += x[f];
        const float mean = sum_for_all(shared, sum) / features;
        for (int f = threadIdx.x; f < features; f += THREADS)
            squares += (x[f] - mean) * (x[f] - mean);
        const float inv_std = 1 / sqrtf(sum_for_all(shared, squares) / features + (float)a.eps);
        for (int f = threadIdx.x; f < features; f += THREADS)
            out[f] = (x[f] - mean) * inv_std * a.weight[f] + a.bias[f];
        if (threadIdx.x == 0) {
            statistics[0] = mean;
            statistics[1] = inv_std;
        }
    }
}

/* The gradient of the input, a CUDA block for each row. Bounds: rows, partial. */
KERNEL(layernorm_backward)
{
    const int features = a.features;
    const auto &b = block_bounds(a);
    for (int row = b.r0 + (int)blockIdx.x; row < b.r1; row += gridDim.x) {
        const long long start = (long long)row * features;
        const float *dy = a.gradient + start, *x = a.input + start;
        const float *statistics = a.statistics + 2 * (long long)row;
        const float mean = statistics[0], inv_std = statistics[1];
        float sum = 0, product = 0;
        for (int f = threadIdx.x; f < features; f += THREADS) {
            const float g = dy[f] * a.weight[f];
            sum += g;
            product += g * ((x[f] - mean) * inv_std);
        }
        const float mean_g = sum_for_all(shared, sum) / features,
                    mean_product = sum_for_all(shared, product) / features;
        for (int f = threadIdx.x; f < features; f += THREADS) {
            float dx = inv_std * (dy[f] * a.weight[f] - mean_g - (x[f] - mean) * inv_std * mean_product);
            if (a.residual)
                dx += a.residual[start + f];
            a.output[start + f] = dx;
        }
    }
}

/* Sums of `product` and of the gradient over a block's rows into its partials: a
 * CUDA block for each STRIP_CHANNELS features, whose threads take strips of the rows. product(row, gradient, input). */
template <typename Product, typename Args>
__device__ inline void sum_rows(const Args &a, Product product)
{
    const auto &b = block_bounds(a);
    const int features = a.features, first = (int)blockIdx.x * STRIP_CHANNELS;
    if (first >= features)
        return;
    const int f = first + (int)threadIdx.x % STRIP_CHANNELS;
    float weight = 0, bias = 0;
    if (f < features)
        for (int row = b.r0 + (int)threadIdx.x / STRIP_CHANNELS; row < b.r1; row += STRIPS) {
            const long long at = (long long)row * features + f;
            const float dy = a.gradient[at];
            weight += product(row, dy, a.input[at]);
            bias += dy;
        }
    weight = sum_strips(shared, weight);
    bias = sum_strips(shared, bias);
    if (threadIdx.x < STRIP_CHANNELS && f < features) {
        a.weight_partials[(long long)b.partial * features + f] = weight;
        a.bias_partials[(long long)b.partial * features + f] = bias;
    }
}

/* The second launch: the gradients of weight and bias. */
KERNEL_OF(layernorm_weight_gradient, layernorm_backward)
{
    sum_rows(a, [&](int row, float dy, float x) {
        return dy * ((x - a.statistics[2 * (long long)row]) * a.statistics[2 * (long long)row + 1]);
    });
}

/* A thread for each number. Bounds: rows. */
KERNEL(no_norm_forward)
{
    const int features = a.features;
    const auto &b = block_bounds(a);
    const float *residual = a.residual;
    const long long start = (long long)b.r0 * features;
    for (int at = thread_of_row(); at < (b.r1 - b.r0) * features; at += threads_of_row()) {
        const long long i = start + at;
        const int f = at % features;
        float x = a.input[i];
        if (residual)
            x += residual[i];
        if (residual && a.sum)
            a.sum[i] = x;
        a.output[i] = x * a.weight[f] + a.bias[f];
    }
}

/* The gradient of the input, a thread for each number. Bounds: rows, partial. */
KERNEL(no_norm_backward)
{
    const int features = a.features;
    const auto &b = block_bounds(a);
    const long long start = (long long)b.r0 * features;
    for (int at = thread_of_row(); at < (b.r1 - b.r0) * features; at += threads_of_row()) {
        const long long i = start + at;
        const float dx = a.gradient[i] * a.weight[at % features];
        a.output[i] = a.residual ? dx + a.residual[i] : dx;
    }
}

/* Its second launch. */
KERNEL_OF(no_norm_weight_gradient, no_norm_backward)
{
    sum_rows(a, [&](int row, float dy, float x) { return dy * x; });
}
