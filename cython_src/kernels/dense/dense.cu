/* Fully connected layer: y = W x + b (alone, or with ReLU), data gradient (alone, or with the backward pass of the ReLU,
 * or pooling and ReLU, before it) and weight gradient. Formulas: kernels/dense/dense.pyx. */

#include "cython_src/kernels/dense/grid_sizes.cuh" /* written from SIZES of grids.py */
#include "cython_src/kernels/elementwise/activations.cuh"
#include "cython_src/kernels/maps/nchw.cuh"

/* A CUDA block for each group and output; its threads are lanes times strips of features, which a tree adds up. */
KERNEL(fc_forward)
{
    float *sums = shared; /* [THREADS] */
    const int features = a.features, outputs = a.outputs, lanes = a.lanes, strips = THREADS / lanes;
    const auto b = block_bounds(a);
    const int g = b.g0 + (int)blockIdx.x / outputs, o = (int)blockIdx.x % outputs;
    const int lane = threadIdx.x % lanes, strip = threadIdx.x / lanes;
    if (g >= b.g1)
        return;
    const float *x = a.input + (long long)g * features * lanes + lane;
    const float *w = a.weight + (long long)o * features;
    const float bias = a.bias[o];
    float sum = 0;
    each_ahead(
        strip, features, strips, [&](int f) { return float2{w[f], x[(long long)f * lanes]}; },
        [&](int, float2 v) { sum += v.x * v.y; });
    sums[threadIdx.x] = sum;
    for (int half = strips / 2; half > 0; half /= 2) {
        __syncthreads();
        if (strip < half)
            sums[threadIdx.x] += sums[threadIdx.x + half * lanes];
    }
    if (strip == 0)
        a.output[((long long)g * outputs + o) * lanes + lane] = activate(sums[lane] + bias, a.activation);
}

/* A thread for each feature. */
KERNEL(fc_backward_data)
{
    const int features = a.features, outputs = a.outputs, lanes = a.lanes, scale = a.index ? 2 : 1;
    const Map target = a.out_map;
    const auto b = block_bounds(a);
    const int height = target.height / scale, width = target.width / scale;
    const bool is_map = a.index || target.halo;
    if (is_map)
        clear_halo(target, a.output, b.g0, b.g1, 0, target.channels, 0, target.height);
    const long long first = (long long)b.g0 * features * lanes, items = (long long)(b.g1 - b.g0) * features * lanes;
    for (long long i = thread_of_row(); i < items; i += threads_of_row()) {
        const int lane = (int)(i % lanes), f = (int)(i / lanes % features), g = b.g0 + (int)(i / lanes / features);
        const float *dy = a.gradient + (long long)g * outputs * lanes + lane, *w = a.weight + f;
        const float activation = a.activation ? a.activation[first + i] : 1;
        const int which = a.index ? a.index[first + i] : -1;
        float sum = 0;
        each_ahead(
            0, outputs, 1, [&](int o) { return float2{w[(long long)o * features], dy[(long long)o * lanes]}; },
            [&](int, float2 v) { sum += v.x * v.y; });
        const float value = activation > 0 ? sum : 0;
        if (!is_map) {
            a.output[first + i] = value;
            continue;
        }
        const int x = f % width, y = f / width % height, c = f / width / height;
        for (int k = 0; k < scale * scale; k++)
            a.output[pixel(target, g, c, scale * y + k / 2, scale * x + k % 2) + lane] =
                which < 0 || which == k ? value : 0;
    }
}

/* A CUDA block for WEIGHTS_AT_ONCE numbers of dW, and of db in its last column; its threads are these times strips of 16 images,
 * which a tree adds up. */
KERNEL(fc_backward_weights)
{
    const int features = a.features, outputs = a.outputs, lanes = a.lanes, shift = __ffs(lanes) - 1;
    const auto b = block_bounds(a);
    const int i = (int)blockIdx.x * WEIGHTS_AT_ONCE + (int)threadIdx.x % WEIGHTS_AT_ONCE,
              strip = (int)threadIdx.x / WEIGHTS_AT_ONCE * 16;
    const int o = i / (features + 1), f = i % (features + 1), images = o < outputs ? b.g1 * lanes : 0;
    const float *dy = a.gradient + (long long)o * lanes, *x = a.input + (long long)min(f, features - 1) * lanes;
    float sum = 0;
    for (int first = b.g0 * lanes + strip; first < images; first += 16 * THREADS / WEIGHTS_AT_ONCE)
        each_ahead(
            first, min(first + 16, images), 1,
            [&](int n) {
                const long long g = (n >> shift) * (long long)lanes, lane = n & (lanes - 1);
                return float2{dy[g * outputs + lane], f < features ? x[g * features + lane] : 1};
            },
            [&](int, float2 v) { sum += v.x * v.y; });
    sum = sum_strips<WEIGHTS_AT_ONCE>(shared, sum);
    if (strip == 0 && o < outputs)
        put(a.output + (long long)b.partial * outputs * (features + 1) + i, sum, a.accumulate);
}

/* What cuBLAS leaves of a fully connected layer: y + b, and ReLU; a thread for each number. */
KERNEL_OF(fc_bias, fc_forward)
{
    const int outputs = a.outputs, lanes = a.lanes;
    const auto b = block_bounds(a);
    float *out = a.output + (long long)b.g0 * outputs * lanes;
    const long long items = (long long)(b.g1 - b.g0) * outputs * lanes;
    for (long long i = thread_of_row(); i < items; i += threads_of_row())
        out[i] = activate(out[i] + a.bias[i / lanes % outputs], a.activation);
}

/* And of its weight gradient: the last column, with one lane; a thread for each output. */
KERNEL_OF(fc_bias_gradient, fc_backward_weights)
{
    const int outputs = a.outputs;
    const auto b = block_bounds(a);
    for (int o = thread_of_row(); o < outputs; o += threads_of_row()) {
        float sum = 0;
        each_ahead(
            b.g0, b.g1, 1, [&](int g) { return a.gradient[(long long)g * outputs + o]; },
            [&](int, float dy) { sum += dy; });
        put(a.output + ((long long)b.partial * outputs + o + 1) * (a.features + 1) - 1, sum, a.accumulate);
    }
}
