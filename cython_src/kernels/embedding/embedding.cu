/* Embedding of tokens and positions, and its gradients, without atomics and in the order of rows; positions and types
 * added to any features; trigrams; first tokens:
 * kernels/embedding/embedding.pyx. */

#include "cython_src/kernels/interface/block_kernel.cuh"

#define BAD_TOKEN 3

template <typename Args>
__device__ inline bool is_token(const Args &a, int token)
{
    if (token >= 0 && token < a.vocabulary)
        return true;
    fail(a, BAD_TOKEN);
    return false;
}

/* A thread for each number. Bounds: rows. */
KERNEL(embedding_forward)
{
    const int features = a.features;
    const auto &b = block_bounds(a);
    for (int i = thread_of_row(); i < (b.r1 - b.r0) * features; i += threads_of_row()) {
        const int row = b.r0 + i / features, f = i % features;
        if (!is_token(a, a.tokens[row]))
            continue;
        float value = a.token_weight[(long long)a.tokens[row] * features + f];
        if (a.position_weight)
            value += a.position_weight[(long long)(row % a.sequence) * features + f];
        a.output[(long long)row * features + f] = value;
    }
}

/* The first launch of a token gradient that adds to nothing: zeros, a thread for each number. Bounds: features. */
KERNEL_OF(embedding_token_clear, embedding_token_gradient)
{
    const auto &b = block_bounds(a);
    const int width = b.c1 - b.c0;
    if (a.accumulate)
        return;
    for (long long i = thread_of_row(); i < (long long)a.vocabulary * width; i += threads_of_row())
        a.output[i / width * a.features + b.c0 + i % width] = 0;
}

/* The second one: a CUDA block takes the rows whose token no row before has, and adds up all rows with that token, in
 * order; a thread for each feature. All threads together look for these rows, each in 32 of them. */
KERNEL(embedding_token_gradient)
{
    int *repeated = (int *)shared;
    unsigned *found = (unsigned *)shared + 1; /* [THREADS], a bit for each row */
    const auto &b = block_bounds(a);
    const int *tokens = a.tokens;
    for (int first = blockIdx.x; first < a.rows; first += gridDim.x) {
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
        for (int start = first; start < a.rows; start += 32 * THREADS) {
            const int own = start + 32 * (int)threadIdx.x, words = min(THREADS, divide_up(a.rows - start, 32));
            unsigned rows = 0;
            for (int bit = 0; bit < 32 && own + bit < a.rows; bit++)
                rows |= (unsigned)(tokens[own + bit] == token) << bit;
            __syncthreads();
            found[threadIdx.x] = rows;
            __syncthreads();
            for (int f = b.c0 + threadIdx.x; f < b.c1; f += THREADS) {
                float *out = a.output + (long long)token * a.features + f;
                float sum = *out;
                for (int word = 0; word < words; word++)
                    for (unsigned left = found[word]; left; left &= left - 1)
                        sum += a.gradient[(long long)(start + 32 * word + __ffs(left) - 1) * a.features + f];
                *out = sum;
            }
        }
    }
}

/* A thread for each number; samples are added in order. Bounds: positions. */
KERNEL(embedding_position_gradient)
{
    const int features = a.features;
    const auto &b = block_bounds(a);
    for (int i = b.t0 * features + thread_of_row(); i < b.t1 * features; i += threads_of_row()) {
        float sum = 0;
        if (i / features < a.sequence) {
            sum = a.gradient[i];
            for (int n = 1; n < a.batch; n++)
                sum += a.gradient[(long long)n * a.sequence * features + i];
        }
        a.output[i] = sum;
    }
}

/* Call body(row, feature) for rows [start, stop), `width` features each; all threads of the grid row divide them. */
template <typename Body>
__device__ inline void for_features(int start, int stop, int width, Body body)
{
    for (int i = thread_of_row(); i < (stop - start) * width; i += threads_of_row())
        body(start + i / width, i % width);
}

/* Bounds: rows. */
KERNEL(positions_forward)
{
    const int features = a.features;
    const auto &b = block_bounds(a);
    for_features(b.r0, b.r1, features, [&](int row, int f) {
        const long long at = (long long)row * features + f;
        const float value = a.input[at] + a.position_weight[(long long)(row % a.sequence) * features + f];
        a.output[at] = a.type_weight ? value + a.type_weight[f] : value;
    });
}

/* A thread for each feature; positions are added in order. Bounds: features. */
KERNEL(type_gradient)
{
    const auto &b = block_bounds(a);
    for (int f = b.c0 + thread_of_row(); f < b.c1; f += threads_of_row()) {
        float sum = a.position_gradient[f];
        for (int position = 1; position < a.sequence; position++)
            sum += a.position_gradient[(long long)position * a.features + f];
        a.output[f] = sum;
        for (int type = 1; type < a.types; type++)
            a.output[(long long)type * a.features + f] = 0;
    }
}

/* The next token, the token and the one before it, side by side. Bounds: rows. */
KERNEL(trigram_forward)
{
    const int features = a.features;
    const auto &b = block_bounds(a);
    for_features(b.r0, b.r1, 3 * features, [&](int row, int f) {
        const int move = 1 - f / features, place = row % a.sequence + move;
        a.output[3 * (long long)row * features + f] =
            place >= 0 && place < a.sequence ? a.input[(long long)(row + move) * features + f % features] : 0;
    });
}

KERNEL(trigram_backward)
{
    const int sequence = a.sequence, features = a.features;
    const auto &b = block_bounds(a);
    for_features(b.r0, b.r1, features, [&](int row, int f) {
        const float *gradient = a.gradient + 3 * (long long)row * features + f;
        float sum = gradient[features];
        if (row % sequence > 0) /* the next token of the row before */
            sum += gradient[-3 * features];
        if (row % sequence + 1 < sequence) /* the token before the next row */
            sum += gradient[5 * features];
        a.output[(long long)row * features + f] = sum;
    });
}

/* Bounds of both: samples. */
KERNEL(first_token_forward)
{
    const int features = a.features;
    const auto &b = block_bounds(a);
    for_features(b.n0, b.n1, features, [&](int n, int f) {
        a.output[(long long)n * features + f] = a.input[(long long)n * a.sequence * features + f];
    });
}

KERNEL(first_token_backward)
{
    const int features = a.features;
    const auto &b = block_bounds(a);
    for_features(b.n0, b.n1, a.sequence * features, [&](int n, int f) {
        a.output[(long long)n * a.sequence * features + f] = f < features ? a.gradient[(long long)n * features + f] : 0;
    });
}
