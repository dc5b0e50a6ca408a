/* Embedding of tokens and positions, and its gradients, without atomics and in the order of rows; positions and types
 * added to any features; trigrams; first tokens:
 * kernels/embedding/embedding.pyx. */

#include "cython_src/kernels/embedding/grid_sizes.cuh" /* ROWS_OF_THREAD, written from SIZES of grids.py */
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

/* Call body(row, feature) for rows [start, stop), `width` features each; all threads of the grid row divide them. */
template <typename Body>
__device__ inline void for_features(int start, int stop, int width, Body body)
{
    for (int i = thread_of_row(); i < (stop - start) * width; i += threads_of_row())
        body(start + i / width, i % width);
}

/* A thread for each number. Bounds: rows. */
KERNEL(embedding_forward)
{
    const int features = a.features;
    const auto &b = block_bounds(a);
    for_features(b.r0, b.r1, features, [&](int row, int f) {
        if (!is_token(a, a.tokens[row]))
            return;
        float value = a.token_weight[(long long)a.tokens[row] * features + f];
        if (a.position_weight)
            value += a.position_weight[(long long)(row % a.sequence) * features + f];
        a.output[(long long)row * features + f] = value;
    });
}

#define ROWS_AT_ONCE    (ROWS_OF_THREAD * THREADS)
#define GRADIENTS_AHEAD 8 /* whose loads are under way together */

/* A CUDA block takes each gridDim-th token. It lists which of the next ROWS_AT_ONCE rows have such a token, sorts them by
 * token, and adds them in this order: a token's rows one after the other, a thread for each feature. Bounds: features. */
KERNEL(embedding_token_gradient)
{
    int *counts = (int *)shared; /* [THREADS], of rows that a thread has found */
    unsigned short *found = (unsigned short *)(counts + THREADS), *sorted = found + ROWS_AT_ONCE; /* [ROWS_AT_ONCE] */
    const auto &b = block_bounds(a);
    for (int token = blockIdx.x; token < a.vocabulary && !a.accumulate; token += gridDim.x)
        for (int f = b.c0 + threadIdx.x; f < b.c1; f += THREADS)
            a.output[(long long)token * a.features + f] = 0;
    for (int start = 0; start < a.rows; start += ROWS_AT_ONCE) {
        const int *tokens = a.tokens + start;
        const int first = (int)threadIdx.x * ROWS_OF_THREAD, rows = min(ROWS_OF_THREAD, a.rows - start - first);
        int own[ROWS_OF_THREAD], count = 0, before = 0, total = 0;
        unsigned wanted = 0; /* a bit for each row */
#pragma unroll
        for (int i = 0; i < ROWS_OF_THREAD; i++)
            own[i] = i < rows ? tokens[first + i] : 0;
#pragma unroll
        for (int i = 0; i < ROWS_OF_THREAD; i++)
            if (i < rows && (unsigned)own[i] % gridDim.x == blockIdx.x && is_token(a, own[i])) {
                wanted |= 1u << i;
                count++;
            }
        __syncthreads();
        counts[threadIdx.x] = count;
        __syncthreads();
        for (int i = 0; i < THREADS; i++) {
            before += i < (int)threadIdx.x ? counts[i] : 0;
            total += counts[i];
        }
        for (; wanted; wanted &= wanted - 1)
            found[before++] = first + __ffs(wanted) - 1;
        __syncthreads();
        for (int i = threadIdx.x; i < total; i += THREADS) {
            const int token = tokens[found[i]];
            int place = 0;
            for (int j = 0; j < total; j++) {
                const int other = tokens[found[j]];
                place += other < token || (other == token && j < i);
            }
            sorted[place] = found[i];
        }
        __syncthreads();
        for (int f = b.c0 + threadIdx.x; f < b.c1; f += THREADS) {
            float sum = 0;
            for (int from = 0; from < total; from += GRADIENTS_AHEAD) {
                float g[GRADIENTS_AHEAD], former[GRADIENTS_AHEAD], *out[GRADIENTS_AHEAD];
                bool begins[GRADIENTS_AHEAD]; /* the sum of a token */
#pragma unroll
                for (int i = 0; i < GRADIENTS_AHEAD; i++) {
                    const int at = min(from + i, total - 1), token = tokens[sorted[at]];
                    out[i] = a.output + (long long)token * a.features + f;
                    g[i] = a.gradient[(long long)(start + sorted[at]) * a.features + f];
                    begins[i] = at == 0 || tokens[sorted[at - 1]] != token;
                    former[i] = begins[i] ? *out[i] : 0;
                }
#pragma unroll
                for (int i = 0; i < GRADIENTS_AHEAD; i++)
                    if (from + i < total)
                        *out[i] = sum = (begins[i] ? former[i] : sum) + g[i];
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
#pragma unroll 8 /* loads under way together */
            for (int n = 1; n < a.batch; n++)
                sum += a.gradient[(long long)n * a.sequence * features + i];
        }
        a.output[i] = sum;
    }
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

/* A CUDA block for STRIP_CHANNELS features, whose threads are strips of positions, added by a tree. Bounds: features. */
KERNEL(type_gradient)
{
    const auto &b = block_bounds(a);
    const int f = b.c0 + (int)blockIdx.x * STRIP_CHANNELS + (int)threadIdx.x % STRIP_CHANNELS;
    const int first = (int)threadIdx.x / STRIP_CHANNELS, positions = f < b.c1 ? a.sequence : 0;
    float sum = 0;
#pragma unroll 8 /* loads under way together */
    for (int position = first; position < positions; position += STRIPS)
        sum += a.position_gradient[(long long)position * a.features + f];
    sum = sum_strips(shared, sum);
    if (first > 0 || f >= b.c1)
        return;
    a.output[f] = sum;
    for (int type = 1; type < a.types; type++)
        a.output[(long long)type * a.features + f] = 0;
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
