/* Layer normalisation of tokens, NoNorm, and their gradients: formulas and operands as in kernels/norm/norm.pyx. */

#include "cython_src/kernels/interface/block_kernel.cuh"

/* A CUDA block for each row; without statistics NoNorm. Bounds: rows. */
KERNEL(layernorm_forward)
{
    const int features = a.features;
    const auto &b = block_bounds(a);
    for (int row = b.r0 + (int)blockIdx.x; row < b.r1; row += gridDim.x) {
        const long long start = (long long)row * features;
        const float *x = a.input + start;
        float *out = a.output + start, mean = 0, inv_std = 1, sum = 0, squares = 0;
        if (a.residual) { /* each thread reads below what it wrote itself */
            float *both = a.sum ? a.sum + start : out;
            for (int f = threadIdx.x; f < features; f += THREADS)
                both[f] = x[f] + a.residual[start + f];
            x = both;
        }
        if (a.statistics) {
            for (int f = threadIdx.x; f < features; f += THREADS)
                sum += x[f];
            mean = sum_for_all(shared, sum) / features;
            for (int f = threadIdx.x; f < features; f += THREADS)
                squares += (x[f] - mean) * (x[f] - mean);
            inv_std = 1 / sqrtf(sum_for_all(shared, squares) / features + (float)a.eps);
        }
        for (int f = threadIdx.x; f < features; f += THREADS)
            out[f] = (x[f] - mean) * inv_std * a.weight[f] + a.bias[f];
        if (a.statistics && threadIdx.x == 0) {
            a.statistics[2 * (long long)row] = mean;
            a.statistics[2 * (long long)row + 1] = inv_std;
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
        float mean = 0, inv_std = 1, mean_g = 0, mean_product = 0, sum = 0, product = 0;
        if (a.statistics) {
            mean = a.statistics[2 * (long long)row];
            inv_std = a.statistics[2 * (long long)row + 1];
            for (int f = threadIdx.x; f < features; f += THREADS) {
                const float g = dy[f] * a.weight[f];
                sum += g;
                product += g * ((x[f] - mean) * inv_std);
            }
            mean_g = sum_for_all(shared, sum) / features;
            mean_product = sum_for_all(shared, product) / features;
        }
        for (int f = threadIdx.x; f < features; f += THREADS) {
            const float dx = inv_std * (dy[f] * a.weight[f] - mean_g - (x[f] - mean) * inv_std * mean_product);
            a.output[start + f] = a.residual ? dx + a.residual[start + f] : dx;
        }
    }
}

/* The second launch: the gradients of weight and bias, sums over a block's rows into its partials: a CUDA block for each
 * STRIP_CHANNELS features, whose threads take strips of the rows. */
KERNEL_OF(layernorm_weight_gradient, layernorm_backward)
{
    const auto &b = block_bounds(a);
    const int features = a.features, first = (int)blockIdx.x * STRIP_CHANNELS;
    if (first >= features)
        return;
    const int f = first + (int)threadIdx.x % STRIP_CHANNELS;
    float weight = 0, bias = 0;
    if (f < features)
#pragma unroll 8 /* loads under way together */
        for (int row = b.r0 + (int)threadIdx.x / STRIP_CHANNELS; row < b.r1; row += STRIPS) {
            const long long at = (long long)row * features + f;
            const float dy = a.gradient[at], x = a.input[at];
            const long long of_row = 2 * (long long)row;
            weight += dy * (a.statistics ? (x - a.statistics[of_row]) * a.statistics[of_row + 1] : x);
            bias += dy;
        }
    weight = sum_strips(shared, weight);
    bias = sum_strips(shared, bias);
    if (threadIdx.x < STRIP_CHANNELS && f < features) {
        a.weight_partials[(long long)b.partial * features + f] = weight;
        a.bias_partials[(long long)b.partial * features + f] = bias;
    }
}
