/* Tokens of a step, and the tokens that follow them or their labels, from a text of tokens: kernels/load/load.pyx. */

#include "cython_src/kernels/interface/block_kernel.cuh"

#define BAD_INDEX 2

/* A thread for each token. Bounds: samples. */
KERNEL(tokens_load)
{
    const int sequence = a.integers[0], batch = a.integers[1], num_batches = a.integers[2], num_samples = a.integers[3];
    const int *b = block_bounds(a), *text = (const int *)a.operand[0];
    const int *order = (const int *)a.operand[1] + iteration_of(a) % num_batches * batch;
    for (int i = b[0] * sequence + thread_of_row(); i < b[1] * sequence; i += threads_of_row()) {
        const int sample = order[i / sequence];
        if (sample < 0 || sample >= num_samples) {
            fail(a, BAD_INDEX);
            continue;
        }
        const int *at = text + (long long)sample * sequence + i % sequence;
        ((int *)a.operand[2])[i] = at[0];
        ((int *)a.operand[3])[i] = at[1];
    }
}

/* A thread for each token and each label. Bounds: samples. */
KERNEL(labelled_tokens_load)
{
    const int batch = a.integers[2], num_batches = a.integers[3], num_samples = a.integers[4], *b = block_bounds(a);
    const int *order = (const int *)a.operand[2] + iteration_of(a) % num_batches * batch;
    for (int labels = 0; labels < 2; labels++) {
        const int length = a.integers[labels], *source = (const int *)a.operand[labels];
        for (int i = b[0] * length + thread_of_row(); i < b[1] * length; i += threads_of_row()) {
            const int sample = order[i / length];
            if (sample < 0 || sample >= num_samples)
                fail(a, BAD_INDEX);
            else
                ((int *)a.operand[3 + labels])[i] = source[(long long)sample * length + i % length];
        }
    }
}
