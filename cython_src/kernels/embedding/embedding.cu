/* Embedding of tokens and positions, and its gradients, without atomics and in the order of rows; positions and types
 * added to any features; trigrams; first tokens:
 * kernels/embedding/embedding.pyx. */

#include "cython_src/kernels/interface/block_kernel.cuh"

#define BAD_TOKEN 3

__device__ inline bool is_token(const GpuArgs &a, int token)
{
    if (token >= 0 && token < a.integers[2])
        return true;
    fail(a, BAD_TOKEN);
    return false;
}

/* A thread for each number. Bounds: rows. */
KERNEL(embedding_forward)
{
    const int sequence = a.integers[0], features = a.integers[1];
    const int *b = block_bounds(a), *tokens = (const int *)a.operand[0];
    const float *weight = (const float *)a.operand[1], *positions = (const float *)a.operand[2];
    for (int i = thread_of_row(); i < (b[1] - b[0]) * features; i += threads_of_row()) {
        const int row = b[0] + i / features, f = i % features;
        if (!is_token(a, tokens[row]))
            continue;
        float value = weight[(long long)tokens[row] * features + f];
        if (positions)
            value += positions[(long long)(row % sequence) * features + f];
        ((float *)a.operand[3])[(long long)row * features + f] = value;
    }
}

/* The first launch of a token gradient that adds to nothing: zeros, a thread for each number. Bounds: features. */
KERNEL(embedding_token_clear)
{
    const int features = a.integers[1], vocabulary = a.integers[2];
    const int *b = block_bounds(a), width = b[1] - b[0];
    if (a.integers[3])
        return;
    for (long long i = thread_of_row(); i < (long long)vocabulary * width; i += threads_of_row())
        ((float *)a.operand[2])[i / width * features + b[0] + i % width] = 0;
}

/* The second one: a CUDA block takes the rows whose token no row before has, and adds up all rows with that token, in
 * order; a thread for each feature. */
KERNEL(embedding_token_gradient)
{
    int *repeated = (int *)shared;
    const int rows = a.integers[0], features = a.integers[1];
    const int *b = block_bounds(a), *tokens = (const int *)a.operand[0];
    const float *gradient = (const float *)a.operand[1];
    for (int first = blockIdx.x; first < rows; first += gridDim.x) {
        const int token = tokens[first];
        if (!is_token(a, token))
            continue;
        __syncthreads();
        if (threadIdx.x == 0)
            *repeated = 0;
        __syncthreads();
        for (int row = threadIdx.x; row < first; row += THREADS)
            if (tokens[row] == token)
                *repeated = 1;
        __syncthreads();
        if (*repeated)
            continue;
        for (int f = b[0] + threadIdx.x; f < b[1]; f += THREADS) {
            float *out = (float *)a.operand[2] + (long long)token * features + f;
            float sum = *out;
            for (int row = first; row < rows; row++)
                if (tokens[row] == token)
                    sum += gradient[(long long)row * features + f];
            *out = sum;
        }
    }
}

/* A thread for each number; samples are added in order. Bounds: positions. */
KERNEL(embedding_position_gradient)
{
    const int sequence = a.integers[0], batch = a.integers[1], features = a.integers[2];
    const int *b = block_bounds(a);
    for (int i = b[0] * features + thread_of_row(); i < b[1] * features; i += threads_of_row()) {
        float sum = 0;
        if (i / features < sequence) {
            sum = ((const float *)a.operand[0])[i];
            for (int n = 1; n < batch; n++)
                sum += ((const float *)a.operand[0])[(long long)n * sequence * features + i];
        }
        ((float *)a.operand[1])[i] = sum;
    }
}

/* Call body(row, feature) for each number of some rows, `width` features each; all threads of the grid row divide them. */
template <typename Body>
__device__ inline void for_features(const GpuArgs &a, int width, Body body)
{
    const int *b = block_bounds(a);
    for (int i = thread_of_row(); i < (b[1] - b[0]) * width; i += threads_of_row())
        body(b[0] + i / width, i % width);
}

/* Bounds: rows. */
KERNEL(positions_forward)
{
    const int sequence = a.integers[0], features = a.integers[1];
    const float *types = (const float *)a.operand[2];
    for_features(a, features, [&](int row, int f) {
        const long long at = (long long)row * features + f;
        const float value = ((const float *)a.operand[0])[at] +
                            ((const float *)a.operand[1])[(long long)(row % sequence) * features + f];
        ((float *)a.operand[3])[at] = types ? value + types[f] : value;
    });
}

/* A thread for each feature; positions are added in order. Bounds: features. */
KERNEL(type_gradient)
{
    const int sequence = a.integers[0], features = a.integers[1], *b = block_bounds(a);
    const float *gradient = (const float *)a.operand[0];
    float *out = (float *)a.operand[1];
    for (int f = b[0] + thread_of_row(); f < b[1]; f += threads_of_row()) {
        float sum = gradient[f];
        for (int position = 1; position < sequence; position++)
            sum += gradient[(long long)position * features + f];
        out[f] = sum;
        for (int type = 1; type < a.integers[2]; type++)
            out[(long long)type * features + f] = 0;
    }
}

/* The next token, the token and the one before it, side by side. Bounds: rows. */
KERNEL(trigram_forward)
{
    const int sequence = a.integers[0], features = a.integers[1];
    for_features(a, 3 * features, [&](int row, int f) {
        const int move = 1 - f / features, place = row % sequence + move;
        ((float *)a.operand[1])[3 * (long long)row * features + f] =
            place >= 0 && place < sequence
                ? ((const float *)a.operand[0])[(long long)(row + move) * features + f % features]
                : 0;
    });
}

KERNEL(trigram_backward)
{
    const int sequence = a.integers[0], features = a.integers[1];
    for_features(a, features, [&](int row, int f) {
        const float *gradient = (const float *)a.operand[0] + 3 * (long long)row * features + f;
        float sum = gradient[features];
        if (row % sequence > 0) /* the next token of the row before */
            sum += gradient[-3 * features];
        if (row % sequence + 1 < sequence) /* the token before the next row */
            sum += gradient[5 * features];
        ((float *)a.operand[1])[(long long)row * features + f] = sum;
    });
}

/* Bounds of both: samples. */
KERNEL(first_token_forward)
{
    const int sequence = a.integers[0], features = a.integers[1];
    for_features(a, features, [&](int n, int f) {
        ((float *)a.operand[1])[(long long)n * features + f] =
            ((const float *)a.operand[0])[(long long)n * sequence * features + f];
    });
}

KERNEL(first_token_backward)
{
    const int sequence = a.integers[0], features = a.integers[1];
    for_features(a, sequence * features, [&](int n, int f) {
        ((float *)a.operand[1])[(long long)n * sequence * features + f] =
            f < features ? ((const float *)a.operand[0])[(long long)n * features + f] : 0;
    });
}
