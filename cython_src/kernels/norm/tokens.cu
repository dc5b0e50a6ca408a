/* Layer normalisation of tokens, NoNorm, and their gradients: formulas and operands as in kernels/norm/norm.pyx. */

#include "cython_src/kernels/interface/block_kernel.cuh"

/* A CUDA block for each row. Bounds: rows. */
KERNEL(layernorm_forward)
{
    const int features = a.integers[0], *b = block_bounds(a);
    const float *weight = (const float *)a.operand[3], *bias = (const float *)a.operand[4];
    for (int row = b[0] + (int)blockIdx.x; row < b[1]; row += gridDim.x) {
        const long long start = (long long)row * features;
        const float *x = (const float *)a.operand[0] + start, *residual = (const float *)a.operand[1];
        float *out = (float *)a.operand[5] + start, *statistics = (float *)a.operand[6] + 2 * (long long)row;
        float sum = 0, squares = 0;
        if (residual) { /* each thread reads below what it wrote itself */
            float *both = a.operand[2] ? (float *)a.operand[2] + start : out;
            for (int f = threadIdx.x; f < features; f += THREADS)
                both[f] = x[f] + residual[start + f];
            x = both;
        }
        for (int f = threadIdx.x; f < features; f += THREADS)
            sum += x[f];
        const float mean = sum_for_all(shared, sum) / features;
        for (int f = threadIdx.x; f < features; f += THREADS)
            squares += (x[f] - mean) * (x[f] - mean);
        const float inv_std = 1 / sqrtf(sum_for_all(shared, squares) / features + (float)a.reals[0]);
        for (int f = threadIdx.x; f < features; f += THREADS)
            out[f] = (x[f] - mean) * inv_std * weight[f] + bias[f];
        if (threadIdx.x == 0) {
            statistics[0] = mean;
            statistics[1] = inv_std;
        }
    }
}

/* The gradient of the input, a CUDA block for each row. Bounds: rows, partial. */
KERNEL(layernorm_backward)
{
    const int features = a.integers[0], *b = block_bounds(a);
    const float *weight = (const float *)a.operand[2], *residual = (const float *)a.operand[4];
    for (int row = b[0] + (int)blockIdx.x; row < b[1]; row += gridDim.x) {
        const long long start = (long long)row * features;
        const float *dy = (const float *)a.operand[0] + start, *x = (const float *)a.operand[1] + start;
        const float *statistics = (const float *)a.operand[3] + 2 * (long long)row;
        const float mean = statistics[0], inv_std = statistics[1];
        float sum = 0, product = 0;
        for (int f = threadIdx.x; f < features; f += THREADS) {
            const float g = dy[f] * weight[f];
            sum += g;
            product += g * ((x[f] - mean) * inv_std);
        }
        const float mean_g = sum_for_all(shared, sum) / features,
                    mean_product = sum_for_all(shared, product) / features;
        for (int f = threadIdx.x; f < features; f += THREADS) {
            float dx = inv_std * (dy[f] * weight[f] - mean_g - (x[f] - mean) * inv_std * mean_product);
            if (residual)
                dx += residual[start + f];
            ((float *)a.operand[5])[start + f] = dx;
        }
    }
}

/* Sums of `product` and of the gradient over a block's rows into its partials, the operands `partials` and the next: a
 * CUDA block for each STRIP_CHANNELS features, whose threads take strips of the rows. product(row, gradient, input). */
template <typename Product>
__device__ inline void sum_rows(const GpuArgs &a, int partials, Product product)
{
    const int features = a.integers[0], *b = block_bounds(a), first = (int)blockIdx.x * STRIP_CHANNELS;
    if (first >= features)
        return;
    const int f = first + (int)threadIdx.x % STRIP_CHANNELS;
    float weight = 0, bias = 0;
    if (f < features)
        for (int row = b[0] + (int)threadIdx.x / STRIP_CHANNELS; row < b[1]; row += STRIPS) {
            const long long at = (long long)row * features + f;
            const float dy = ((const float *)a.operand[0])[at];
            weight += product(row, dy, ((const float *)a.operand[1])[at]);
            bias += dy;
        }
    weight = sum_strips(shared, weight);
    bias = sum_strips(shared, bias);
    if (threadIdx.x < STRIP_CHANNELS && f < features) {
        ((float *)a.operand[partials])[(long long)b[2] * features + f] = weight;
        ((float *)a.operand[partials + 1])[(long long)b[2] * features + f] = bias;
    }
}

/* The second launch: the gradients of weight and bias. */
KERNEL(layernorm_weight_gradient)
{
    const float *statistics = (const float *)a.operand[3];
    sum_rows(a, 6, [&](int row, float dy, float x) {
        return dy * ((x - statistics[2 * (long long)row]) * statistics[2 * (long long)row + 1]);
    });
}

/* A thread for each number. Bounds: rows. */
KERNEL(no_norm_forward)
{
    const int features = a.integers[0], *b = block_bounds(a);
    const float *residual = (const float *)a.operand[1];
    const long long start = (long long)b[0] * features;
    for (int at = thread_of_row(); at < (b[1] - b[0]) * features; at += threads_of_row()) {
        const long long i = start + at;
        const int f = at % features;
        float x = ((const float *)a.operand[0])[i];
        if (residual)
            x += residual[i];
        if (residual && a.operand[2])
            ((float *)a.operand[2])[i] = x;
        ((float *)a.operand[5])[i] = x * ((const float *)a.operand[3])[f] + ((const float *)a.operand[4])[f];
    }
}

/* The gradient of the input, a thread for each number. Bounds: rows, partial. */
KERNEL(no_norm_backward)
{
    const int features = a.integers[0], *b = block_bounds(a);
    const float *residual = (const float *)a.operand[3];
    const long long start = (long long)b[0] * features;
    for (int at = thread_of_row(); at < (b[1] - b[0]) * features; at += threads_of_row()) {
        const long long i = start + at;
        const float dx = ((const float *)a.operand[0])[i] * ((const float *)a.operand[2])[at % features];
        ((float *)a.operand[4])[i] = residual ? dx + residual[i] : dx;
    }
}

/* Its second launch. */
KERNEL(no_norm_weight_gradient)
{
    sum_rows(a, 5, [&](int row, float dy, float x) { return dy * x; });
}
