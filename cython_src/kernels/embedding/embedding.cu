/* Embedding of tokens and positions, and its gradients, without atomics and in the order of rows:
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
    const long long items = (long long)(b[1] - b[0]) * features;
    for (long long i = thread_of_row(); i < items; i += threads_of_row()) {
        const int row = b[0] + (int)(i / features), f = (int)(i % features);
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
