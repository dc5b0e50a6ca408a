/* Linear layers of tokens: forward pass, data gradient, weight gradient, each a matrix product in tiles with its epilogue,
 * and the epilogues alone for products that cuBLAS computes: kernels/linear/linear.pyx. */

#include "cython_src/kernels/elementwise/activations.cuh"
#include "cython_src/kernels/linear/tiles.cuh"

template <typename Args>
__device__ inline float *output_at(const Args &a, int row, int column)
{
    return a.output + (long long)row * a.output_pitch + a.output_offset + column;
}

/* Bias, value before the activation, activation and residual of a number of the output. */
template <typename Args>
__device__ inline void finish_output(const Args &a, int row, int column, float y)
{
    const long long at = (long long)row * a.outputs + column;
    if (a.bias)
        y += a.bias[column];
    if (a.before)
        a.before[at] = y;
    y = activate(y, a.activation);
    if (a.residual)
        y += a.residual[at];
    *output_at(a, row, column) = y;
}

/* A number of a data gradient goes on through the activation before it, and to its place. */
template <typename Args>
__device__ inline void finish_gradient(const Args &a, int row, int column, float dx, bool accumulate)
{
    const int pitch = a.output_pitch ? a.output_pitch : a.inputs;
    float *out = a.output + (long long)row * pitch + a.output_offset + column;
    if (accumulate)
        dx = *out + dx;
    if (a.before) {
        const float before = a.before[(long long)row * a.inputs + column];
        dx = a.relu ? (before > 0 ? dx : 0) : dx * gelu_derivative(before);
    }
    *out = dx;
}

/* The tile of a CUDA block in a matrix of rows x columns; false past the last, for the whole CUDA block. */
template <int TM, int TN>
__device__ inline bool find_tile(const GpuArgs &a, int rows, int columns, int *row, int *column)
{
    const int wide = divide_up(max(columns, 1), THREAD_COLUMNS * TN), tile = (int)blockIdx.x / a.parts;
    *row = tile / wide * THREAD_ROWS * TM;
    *column = tile % wide * THREAD_COLUMNS * TN;
    return *row < rows;
}

/* y = x W^T, with a further weight + the rest of x V^T. Bounds: rows, output features. */
template <int TM, int TN, typename Args>
__device__ void linear_forward(const Args &a)
{
    const int inputs = a.inputs, further = a.further_weight ? a.further_inputs : 0;
    const auto &b = block_bounds(a);
    int row, column;
    if (!find_tile<TM, TN>(a, b.r1 - b.r0, b.c1 - b.c0, &row, &column))
        return;
    const Factor input = {a.input, inputs + further, b.r1, inputs};
    const Factor weight = {a.weight, inputs, b.c1, inputs};
    row += b.r0;
    column += b.c0;
    Tile<TM, TN, true, true> y;
    y.add(shared, input, row, weight, column, Terms(a, inputs));
    if (further) {
        const Factor rest = {input.at + inputs, inputs + further, b.r1, further};
        const Factor second = {a.further_weight, further, b.c1, further};
        y.add(shared, rest, row, second, column, Terms(a, further));
    }
    if (!join_parts(a, (int *)shared, y.sum))
        return;
    y.each([&](int r, int c, float sum) {
        if (row + r < b.r1 && column + c < b.c1)
            finish_output(a, row + r, column + c, sum);
    });
}

/* dx = dy W. Bounds: rows, input features. */
template <int TM, int TN, typename Args>
__device__ void linear_backward_data(const Args &a)
{
    const int outputs = a.outputs;
    const auto &b = block_bounds(a);
    int row, column;
    if (!find_tile<TM, TN>(a, b.r1 - b.r0, b.c1 - b.c0, &row, &column))
        return;
    const Factor gradient = {a.gradient + a.gradient_offset, a.gradient_pitch, b.r1, outputs};
    const Factor weight = {a.weight, a.inputs, outputs, b.c1};
    row += b.r0;
    column += b.c0;
    Tile<TM, TN, true, false> dx;
    dx.add(shared, gradient, row, weight, column, Terms(a, outputs));
    if (!join_parts(a, (int *)shared, dx.sum))
        return;
    dx.each([&](int r, int c, float sum) {
        if (row + r < b.r1 && column + c < b.c1)
            finish_gradient(a, row + r, column + c, sum, a.accumulate);
    });
}

/* dW = dy^T x. Bounds: rows, output features, partial. */
template <int TM, int TN, typename Args>
__device__ void linear_backward_weights(const Args &a)
{
    const int inputs = a.inputs;
    const auto &b = block_bounds(a);
    int row, column;
    if (!find_tile<TM, TN>(a, b.o1 - b.o0, inputs, &row, &column))
        return;
    const int input_pitch = a.input_pitch ? a.input_pitch : inputs;
    const float *dy = a.gradient + (long long)b.r0 * a.gradient_pitch + a.gradient_offset;
    const float *x = a.input + (long long)b.r0 * input_pitch + a.input_offset;
    const Factor gradient = {dy, a.gradient_pitch, b.r1 - b.r0, b.o1};
    const Factor input = {x, input_pitch, b.r1 - b.r0, inputs};
    row += b.o0;
    Tile<TM, TN, false, false> dw;
    dw.add(shared, gradient, row, input, column, Terms(a, b.r1 - b.r0));
    if (!join_parts(a, (int *)shared, dw.sum))
        return;
    dw.each([&](int r, int c, float sum) {
        if (row + r < b.o1 && column + c < inputs)
            put(a.weights + ((long long)b.partial * a.outputs + row + r) * inputs + column + c, sum, a.accumulate);
    });
}

#define LINEAR_TILES(tm, tn)                                                \
    KERNEL_OF(linear_forward_##tm##x##tn, linear_forward)                   \
    {                                                                       \
        linear_forward<tm, tn>(a);                                          \
    }                                                                       \
    KERNEL_OF(linear_backward_data_##tm##x##tn, linear_backward_data)       \
    {                                                                       \
        linear_backward_data<tm, tn>(a);                                    \
    }                                                                       \
    KERNEL_OF(linear_backward_weights_##tm##x##tn, linear_backward_weights) \
    {                                                                       \
        linear_backward_weights<tm, tn>(a);                                 \
    }
FOR_TILES(LINEAR_TILES)

/* db[o] = sum of dy over the block's rows: a CUDA block for each STRIP_CHANNELS outputs, whose threads take strips of the
 * rows. Bounds of the weight gradient. */
KERNEL_OF(linear_bias_gradient, linear_backward_weights)
{
    const auto &b = block_bounds(a);
    const int first = b.o0 + (int)blockIdx.x * STRIP_CHANNELS, o = first + (int)threadIdx.x % STRIP_CHANNELS;
    if (first >= b.o1)
        return;
    float sum = 0;
    if (o < b.o1)
#pragma unroll 16 /* loads under way together */
        for (int row = b.r0 + (int)threadIdx.x / STRIP_CHANNELS; row < b.r1; row += STRIPS)
            sum += a.gradient[(long long)row * a.gradient_pitch + a.gradient_offset + o];
    sum = sum_strips(shared, sum);
    if (threadIdx.x < STRIP_CHANNELS && o < b.o1)
        put(a.bias + (long long)b.partial * a.outputs + o, sum, a.accumulate);
}

/* After cuBLAS's product, a thread for each number: what follows y, and what follows dx. */
KERNEL_OF(linear_output, linear_forward)
{
    const auto &b = block_bounds(a);
    const int columns = b.c1 - b.c0;
    for (int i = thread_of_row(); i < (b.r1 - b.r0) * columns; i += threads_of_row()) {
        const int row = b.r0 + i / columns, column = b.c0 + i % columns;
        finish_output(a, row, column, *output_at(a, row, column));
    }
}

KERNEL_OF(linear_data_gradient, linear_backward_data)
{
    const auto &b = block_bounds(a);
    const int columns = b.c1 - b.c0;
    const long long items = (long long)(b.r1 - b.r0) * columns;
    for (long long i = thread_of_row(); i < items; i += threads_of_row()) {
        finish_gradient(a, b.r0 + (int)(i / columns), b.c0 + (int)(i % columns), 0, true);
    }
}
