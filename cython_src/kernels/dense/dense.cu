/* Fully connected layer: y = W x + b (alone, or with ReLU), data gradient (alone, or with the backward pass of the ReLU,
 * or pooling and ReLU, before it) and weight gradient. Formulas: kernels/dense/dense.pyx. */

#include "cython_src/kernels/elementwise/activations.cuh"
#include "cython_src/kernels/maps/nchw.cuh"

/* A CUDA block for each group and output; its threads are lanes times strips of features, which a tree adds up. */
template <bool RELU, typename Args>
__device__ void fully_connected(const Args &a)
{
    float *sums = shared; /* [THREADS] */
    const int features = a.features, outputs = a.outputs, lanes = a.lanes, strips = THREADS / lanes;
    const auto &b = block_bounds(a);
    const int g = b.g0 + (int)blockIdx.x / outputs, o = (int)blockIdx.x % outputs;
    const int lane = threadIdx.x % lanes, strip = threadIdx.x / lanes;
    if (g >= b.g1)
        return;
    const float *x = a.input + (long long)g * features * lanes + lane;
    const float *w = a.weight + (long long)o * features;
    float sum = 0;
    for (int f = strip; f < features; f += strips)
        sum += w[f] * x[(long long)f * lanes];
    sums[threadIdx.x] = sum;
    for (int half = strips / 2; half > 0; half /= 2) {
        __syncthreads();
        if (strip < half)
            sums[threadIdx.x] += sums[threadIdx.x + half * lanes];
    }
    if (strip == 0) {
        const float y = sums[lane] + a.bias[o];
        a.output[((long long)g * outputs + o) * lanes + lane] = RELU ? activate(y, ACTIVATION_RELU) : y;
    }
}

KERNEL(fc_forward)
{
    fully_connected<false>(a);
}
KERNEL(fc_relu_forward)
{
    fully_connected<true>(a);
}

template <typename Args>
__device__ inline float fc_data_gradient(const Args &a, int g, int f, int lane)
{
    const float *dy = a.gradient + (long long)g * a.outputs * a.lanes + lane;
    const float *w = a.weight + f;
    float sum = 0;
    for (int o = 0; o < a.outputs; o++)
        sum += w[(long long)o * a.features] * dy[(long long)o * a.lanes];
    return sum;
}

KERNEL(fc_backward_data)
{
    const int features = a.features, lanes = a.lanes;
    const auto &b = block_bounds(a);
    const long long items = (long long)(b.g1 - b.g0) * features * lanes;
    for (long long i = thread_of_row(); i < items; i += threads_of_row())
        a.output[(long long)b.g0 * features * lanes + i] =
            fc_data_gradient(a, b.g0 + (int)(i / lanes / features), (int)(i / lanes % features), (int)(i % lanes));
}

KERNEL(fc_backward_data_relu)
{
    const int features = a.features, lanes = a.lanes;
    const auto &b = block_bounds(a);
    const long long first = (long long)b.g0 * features * lanes, items = (long long)(b.g1 - b.g0) * features * lanes;
    for (long long i = thread_of_row(); i < items; i += threads_of_row()) {
        const float value =
            fc_data_gradient(a, b.g0 + (int)(i / lanes / features), (int)(i / lanes % features), (int)(i % lanes));
        a.output[first + i] = a.activation[first + i] > 0 ? value : 0;
    }
}

KERNEL(fc_backward_data_halo)
{
    const int features = a.features, lanes = a.lanes;
    const Map target = a.out_map;
    const auto &b = block_bounds(a);
    clear_halo(target, a.output, b.g0, b.g1, 0, target.channels, 0, target.height);
    const long long items = (long long)(b.g1 - b.g0) * features * lanes;
    for (long long i = thread_of_row(); i < items; i += threads_of_row()) {
        const int lane = (int)(i % lanes), f = (int)(i / lanes % features), g = b.g0 + (int)(i / lanes / features);
        const int x = f % target.width, y = f / target.width % target.height, c = f / target.width / target.height;
        const bool passes = !a.activation || a.activation[((long long)g * features + f) * lanes + lane] > 0;
        a.output[pixel(target, g, c, y, x) + lane] = passes ? fc_data_gradient(a, g, f, lane) : 0;
    }
}

KERNEL(fc_backward_data_unpool)
{
    const int features = a.features, lanes = a.lanes;
    const Map target = a.out_map;
    const auto &b = block_bounds(a);
    const int height = target.height / 2, width = target.width / 2;
    clear_halo(target, a.output, b.g0, b.g1, 0, target.channels, 0, target.height);
    const long long items = (long long)(b.g1 - b.g0) * features * lanes;
    for (long long i = thread_of_row(); i < items; i += threads_of_row()) {
        const int lane = (int)(i % lanes), f = (int)(i / lanes % features), g = b.g0 + (int)(i / lanes / features);
        const int x = f % width, y = f / width % height, c = f / width / height;
        const float value = fc_data_gradient(a, g, f, lane);
        const int which = a.index[((long long)g * features + f) * lanes + lane];
        for (int k = 0; k < 4; k++)
            a.output[pixel(target, g, c, 2 * y + k / 2, 2 * x + k % 2) + lane] = which == k ? value : 0;
    }
}

/* A thread for each number of dW, and of db in the last column; images are added in order. */
KERNEL(fc_backward_weights)
{
    const int features = a.features, outputs = a.outputs, lanes = a.lanes;
    const auto &b = block_bounds(a);
    float *out = a.output + (long long)b.partial * outputs * (features + 1);
    const int items = outputs * (features + 1);
    for (int i = thread_of_row(); i < items; i += threads_of_row()) {
        const int o = i / (features + 1), f = i % (features + 1);
        float sum = 0;
        for (int g = b.g0; g < b.g1; g++) {
            const float *dy = a.gradient + ((long long)g * outputs + o) * lanes;
            const float *x = a.input + ((long long)g * features + f) * lanes;
            for (int lane = 0; lane < lanes; lane++)
                sum += f < features ? dy[lane] * x[lane] : dy[lane];
        }
        out[i] = a.accumulate ? out[i] + sum : sum;
    }
}

/* What cuBLAS leaves of a fully connected layer: y + b, and ReLU; a thread for each number. */
template <bool RELU, typename Args>
__device__ inline void add_bias(const Args &a)
{
    const int outputs = a.outputs, lanes = a.lanes;
    const auto &b = block_bounds(a);
    float *out = a.output + (long long)b.g0 * outputs * lanes;
    const long long items = (long long)(b.g1 - b.g0) * outputs * lanes;
    for (long long i = thread_of_row(); i < items; i += threads_of_row()) {
        const float y = out[i] + a.bias[i / lanes % outputs];
        out[i] = RELU ? activate(y, ACTIVATION_RELU) : y;
    }
}

KERNEL_OF(fc_bias, fc_forward)
{
    add_bias<false>(a);
}
KERNEL_OF(fc_bias_relu, fc_relu_forward)
{
    add_bias<true>(a);
}

/* And of its weight gradient: the last column, with one lane; a thread for each output. */
KERNEL_OF(fc_bias_gradient, fc_backward_weights)
{
    const int outputs = a.outputs;
    const auto &b = block_bounds(a);
    for (int o = thread_of_row(); o < outputs; o += threads_of_row()) {
        float *p = a.output + ((long long)b.partial * outputs + o + 1) * (a.features + 1) - 1;
        float sum = 0;
        for (int g = b.g0; g < b.g1; g++)
            sum += a.gradient[(long long)g * outputs + o];
        *p = a.accumulate ? *p + sum : sum;
    }
}
