/* Linear layers of tokens: forward pass, data gradient, weight gradient, each a matrix product in tiles with its epilogue,
 * and the epilogues alone for products that cuBLAS computes: kernels/linear/linear.pyx. */

#include "cython_src/kernels/elementwise/activations.cuh"
#include "cython_src/kernels/linear/tiles.cuh"

__device__ inline float *output_at(const GpuArgs &a, int row, int column)
{
    return (float *)a.operand[5] + (long long)row * a.integers[2] + a.integers[4] + column;
}

/* Bias, value before the activation, activation and residual of a number of the output. */
__device__ inline void finish_output(const GpuArgs &a, int row, int column, float y)
{
    const long long at = (long long)row * a.integers[1] + column;
    if (a.operand[2])
        y += ((const float *)a.operand[2])[column];
    if (a.operand[4])
        ((float *)a.operand[4])[at] = y;
    y = activate(y, a.integers[3]);
    if (a.operand[3])
        y += ((const float *)a.operand[3])[at];
    *output_at(a, row, column) = y;
}

/* A number of a data gradient goes on through the activation before it, and to its place. */
__device__ inline void finish_gradient(const GpuArgs &a, int row, int column, float dx, bool accumulate)
{
    const int inputs = a.integers[0], pitch = a.integers[5] ? a.integers[5] : inputs;
    float *out = (float *)a.operand[3] + (long long)row * pitch + a.integers[6] + column;
    if (accumulate)
        dx = *out + dx;
    if (a.operand[2]) {
        const float before = ((const float *)a.operand[2])[(long long)row * inputs + column];
        dx = a.integers[7] ? (before > 0 ? dx : 0) : dx * gelu_derivative(before);
    }
    *out = dx;
}

/* The tile of a CUDA block in a matrix of rows x columns; false past the last, for the whole CUDA block. */
template <int TM, int TN>
__device__ inline bool find_tile(int rows, int columns, int *row, int *column)
{
    const int wide = divide_up(max(columns, 1), COLUMNS_8 * TN);
    *row = (int)blockIdx.x / wide * ROWS_16 * TM;
    *column = (int)blockIdx.x % wide * COLUMNS_8 * TN;
    return *row < rows;
}

/* y = x W^T, with a further weight + the rest of x V^T. Bounds: rows, output features. */
template <int TM, int TN>
__device__ void linear_forward(const GpuArgs &a)
{
    const int inputs = a.integers[0], further = a.operand[6] ? a.integers[5] : 0, *b = block_bounds(a);
    int row, column;
    if (!find_tile<TM, TN>(b[1] - b[0], b[3] - b[2], &row, &column))
        return;
    const Factor input = {(const float *)a.operand[0], inputs + further, b[0], b[1], inputs};
    const Factor weight = {(const float *)a.operand[1], inputs, b[2], b[3], inputs};
    row += b[0];
    column += b[2];
    float sum[TM][TN];
    clear(sum);
    add_product<true, true>(input, row, weight, column, inputs, shared, sum);
    if (further) {
        const Factor rest = {input.at + inputs, inputs + further, b[0], b[1], further};
        const Factor second = {(const float *)a.operand[6], further, b[2], b[3], further};
        add_product<true, true>(rest, row, second, column, further, shared, sum);
    }
    for_numbers(sum, [&](int r, int c, float y) {
        if (row + r < b[1] && column + c < b[3])
            finish_output(a, row + r, column + c, y);
    });
}

/* dx = dy W. Bounds: rows, input features. */
template <int TM, int TN>
__device__ void linear_backward_data(const GpuArgs &a)
{
    const int inputs = a.integers[0], outputs = a.integers[1], *b = block_bounds(a);
    int row, column;
    if (!find_tile<TM, TN>(b[1] - b[0], b[3] - b[2], &row, &column))
        return;
    const Factor gradient = {(const float *)a.operand[0] + a.integers[4], a.integers[2], b[0], b[1], outputs};
    const Factor weight = {(const float *)a.operand[1], inputs, 0, outputs, b[3]};
    row += b[0];
    column += b[2];
    float sum[TM][TN];
    clear(sum);
    add_product<true, false>(gradient, row, weight, column, outputs, shared, sum);
    for_numbers(sum, [&](int r, int c, float dx) {
        if (row + r < b[1] && column + c < b[3])
            finish_gradient(a, row + r, column + c, dx, a.integers[3]);
    });
}

/* dW = dy^T x. Bounds: rows, output features, partial. */
template <int TM, int TN>
__device__ void linear_backward_weights(const GpuArgs &a)
{
    const int inputs = a.integers[0], outputs = a.integers[1], pitch = a.integers[2], *b = block_bounds(a);
    int row, column;
    if (!find_tile<TM, TN>(b[3] - b[2], inputs, &row, &column))
        return;
    const int input_pitch = a.integers[5] ? a.integers[5] : inputs;
    const float *dy = (const float *)a.operand[0] + (long long)b[0] * pitch + a.integers[4];
    const float *x = (const float *)a.operand[1] + (long long)b[0] * input_pitch + a.integers[6];
    const Factor gradient = {dy, pitch, 0, b[1] - b[0], b[3]};
    const Factor input = {x, input_pitch, 0, b[1] - b[0], inputs};
    row += b[2];
    float sum[TM][TN];
    clear(sum);
    add_product<false, false>(gradient, row, input, column, b[1] - b[0], shared, sum);
    for_numbers(sum, [&](int r, int c, float dw) {
        if (row + r < b[3] && column + c < inputs) {
            float *out = (float *)a.operand[2] + ((long long)b[4] * outputs + row + r) * inputs + column + c;
            *out = a.integers[3] ? *out + dw : dw;
        }
    });
}

#define LINEAR_TILES(tm, tn)                    \
    KERNEL(linear_forward_##tm##x##tn)          \
    {                                           \
        linear_forward<tm, tn>(a);              \
    }                                           \
    KERNEL(linear_backward_data_##tm##x##tn)    \
    {                                           \
        linear_backward_data<tm, tn>(a);        \
    }                                           \
    KERNEL(linear_backward_weights_##tm##x##tn) \
    {                                           \
        linear_backward_weights<tm, tn>(a);     \
    }
LINEAR_TILES(8, 8)
LINEAR_TILES(4, 4)
LINEAR_TILES(4, 2)

/* db[o] = sum of dy over the block's rows: a CUDA block for each STRIP_CHANNELS outputs, whose threads take strips of the
 * rows. Bounds of the weight gradient. */
KERNEL(linear_bias_gradient)
{
    const int outputs = a.integers[1], pitch = a.integers[2], *b = block_bounds(a);
    const int first = b[2] + (int)blockIdx.x * STRIP_CHANNELS, o = first + (int)threadIdx.x % STRIP_CHANNELS;
    if (first >= b[3])
        return;
    float sum = 0;
    if (o < b[3])
        for (int row = b[0] + (int)threadIdx.x / STRIP_CHANNELS; row < b[1]; row += STRIPS)
            sum += ((const float *)a.operand[0])[(long long)row * pitch + a.integers[4] + o];
    sum = sum_strips(shared, sum);
    if (threadIdx.x < STRIP_CHANNELS && o < b[3]) {
        float *out = (float *)a.operand[3] + (long long)b[4] * outputs + o;
        *out = a.integers[3] ? *out + sum : sum;
    }
}

/* After cuBLAS's product, a thread for each number: what follows y, and what follows dx. */
KERNEL(linear_output)
{
    const int *b = block_bounds(a), columns = b[3] - b[2];
    for (int i = thread_of_row(); i < (b[1] - b[0]) * columns; i += threads_of_row()) {
        const int row = b[0] + i / columns, column = b[2] + i % columns;
        finish_output(a, row, column, *output_at(a, row, column));
    }
}

KERNEL(linear_data_gradient)
{
    const int *b = block_bounds(a), columns = b[3] - b[2];
    const long long items = (long long)(b[1] - b[0]) * columns;
    for (long long i = thread_of_row(); i < items; i += threads_of_row()) {
        finish_gradient(a, b[0] + (int)(i / columns), b[2] + (int)(i % columns), 0, true);
    }
}
