/* Fully connected layer: y = W x + b (alone, or with ReLU), data gradient (alone, or with the backward pass of the ReLU,
 * or pooling and ReLU, before it) and weight gradient. Formulas: kernels/dense/dense.pyx. */

#include "cython_src/kernels/elementwise/activations.cuh"
#include "cython_src/kernels/maps/lanes.cuh"

/* A CUDA block for each group and output; its threads are lanes times strips of features, which a tree adds up. */
template <bool RELU>
__device__ void fully_connected(const GpuArgs &a)
{
    float *sums = shared; /* [THREADS] */
    const int features = a.integers[0], outputs = a.integers[1], lanes = a.integers[2], strips = THREADS / lanes;
    const int *b = block_bounds(a);
    const int g = b[0] + (int)blockIdx.x / outputs, o = (int)blockIdx.x % outputs;
    const int lane = threadIdx.x % lanes, strip = threadIdx.x / lanes;
    if (g >= b[1])
        return;
    const float *x = (const float *)a.operand[0] + (long long)g * features * lanes + lane;
    const float *w = (const float *)a.operand[1] + (long long)o * features;
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
        const float y = sums[lane] + ((const float *)a.operand[2])[o];
        ((float *)a.operand[3])[((long long)g * outputs + o) * lanes + lane] = RELU ? activate(y, ACTIVATION_RELU) : y;
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

__device__ inline float fc_data_gradient(const GpuArgs &a, int g, int f, int lane)
{
    const int features = a.integers[0], outputs = a.integers[1], lanes = a.integers[2];
    const float *dy = (const float *)a.operand[0] + (long long)g * outputs * lanes + lane;
    const float *w = (const float *)a.operand[1] + f;
    float sum = 0;
    for (int o = 0; o < outputs; o++)
        sum += w[(long long)o * features] * dy[(long long)o * lanes];
    return sum;
}

KERNEL(fc_backward_data)
{
    const int features = a.integers[0], lanes = a.integers[2];
    const int *b = block_bounds(a);
    const long long items = (long long)(b[1] - b[0]) * features * lanes;
    for (long long i = thread_of_row(); i < items; i += threads_of_row())
        ((float *)a.operand[2])[(long long)b[0] * features * lanes + i] =
            fc_data_gradient(a, b[0] + (int)(i / lanes / features), (int)(i / lanes % features), (int)(i % lanes));
}

KERNEL(fc_backward_data_relu)
{
    const int features = a.integers[0], lanes = a.integers[2];
    const int *b = block_bounds(a);
    const long long first = (long long)b[0] * features * lanes, items = (long long)(b[1] - b[0]) * features * lanes;
    for (long long i = thread_of_row(); i < items; i += threads_of_row()) {
        const float value =
            fc_data_gradient(a, b[0] + (int)(i / lanes / features), (int)(i / lanes % features), (int)(i % lanes));
        ((float *)a.operand[2])[first + i] = ((const float *)a.operand[3])[first + i] > 0 ? value : 0;
    }
}

KERNEL(fc_backward_data_halo)
{
    const int features = a.integers[0], lanes = a.integers[2];
    const Map target = map_at(a.integers + 3);
    const int *b = block_bounds(a);
    const float *activation = (const float *)a.operand[3];
    float *out = (float *)a.operand[2];
    clear_halo(target, out, b[0], b[1], 0, target.channels, 0, target.height);
    const long long items = (long long)(b[1] - b[0]) * features * lanes;
    for (long long i = thread_of_row(); i < items; i += threads_of_row()) {
        const int lane = (int)(i % lanes), f = (int)(i / lanes % features), g = b[0] + (int)(i / lanes / features);
        const int x = f % target.width, y = f / target.width % target.height, c = f / target.width / target.height;
        const bool passes = !activation || activation[((long long)g * features + f) * lanes + lane] > 0;
        out[pixel(target, g, c, y, x) + lane] = passes ? fc_data_gradient(a, g, f, lane) : 0;
    }
}

KERNEL(fc_backward_data_unpool)
{
    const int features = a.integers[0], lanes = a.integers[2];
    const Map target = map_at(a.integers + 3);
    const int *b = block_bounds(a), height = target.height / 2, width = target.width / 2;
    const unsigned char *index = (const unsigned char *)a.operand[2];
    float *out = (float *)a.operand[3];
    clear_halo(target, out, b[0], b[1], 0, target.channels, 0, target.height);
    const long long items = (long long)(b[1] - b[0]) * features * lanes;
    for (long long i = thread_of_row(); i < items; i += threads_of_row()) {
        const int lane = (int)(i % lanes), f = (int)(i / lanes % features), g = b[0] + (int)(i / lanes / features);
        const int x = f % width, y = f / width % height, c = f / width / height;
        const float value = fc_data_gradient(a, g, f, lane);
        const int which = index[((long long)g * features + f) * lanes + lane];
        for (int k = 0; k < 4; k++)
            out[pixel(target, g, c, 2 * y + k / 2, 2 * x + k % 2) + lane] = which == k ? value : 0;
    }
}

/* A thread for each number of dW, and of db in the last column; images are added in order. */
KERNEL(fc_backward_weights)
{
    const int features = a.integers[0], outputs = a.integers[1], lanes = a.integers[2];
    const int *b = block_bounds(a);
    const float *gradient = (const float *)a.operand[0], *input = (const float *)a.operand[1];
    float *out = (float *)a.operand[2] + (long long)b[0] * outputs * (features + 1);
    const int items = outputs * (features + 1);
    for (int i = thread_of_row(); i < items; i += threads_of_row()) {
        const int o = i / (features + 1), f = i % (features + 1);
        float sum = 0;
        for (int g = b[1]; g < b[2]; g++) {
            const float *dy = gradient + ((long long)g * outputs + o) * lanes;
            const float *x = input + ((long long)g * features + f) * lanes;
            for (int lane = 0; lane < lanes; lane++)
                sum += f < features ? dy[lane] * x[lane] : dy[lane];
        }
        out[i] = a.integers[3] ? out[i] + sum : sum;
    }
}

/* What cuBLAS leaves of a fully connected layer: y + b, and ReLU; a thread for each number. */
template <bool RELU>
__device__ inline void add_bias(const GpuArgs &a)
{
    const int outputs = a.integers[1], lanes = a.integers[2];
    const int *b = block_bounds(a);
    float *out = (float *)a.operand[3] + (long long)b[0] * outputs * lanes;
    const long long items = (long long)(b[1] - b[0]) * outputs * lanes;
    for (long long i = thread_of_row(); i < items; i += threads_of_row()) {
        const float y = out[i] + ((const float *)a.operand[2])[i / lanes % outputs];
        out[i] = RELU ? activate(y, ACTIVATION_RELU) : y;
    }
}

KERNEL(fc_bias)
{
    add_bias<false>(a);
}
KERNEL(fc_bias_relu)
{
    add_bias<true>(a);
}

/* And of its weight gradient: the last column, with one lane; a thread for each output. */
KERNEL(fc_bias_gradient)
{
    const int features = a.integers[0], outputs = a.integers[1];
    const int *b = block_bounds(a);
    const float *gradient = (const float *)a.operand[0];
    for (int o = thread_of_row(); o < outputs; o += threads_of_row()) {
        float *p = (float *)a.operand[2] + ((long long)b[0] * outputs + o + 1) * (features + 1) - 1;
        float sum = 0;
        for (int g = b[1]; g < b[2]; g++)
            sum += gradient[(long long)g * outputs + o];
        *p = a.integers[3] ? *p + sum : sum;
    }
}
