/* Tokens of a step, and the tokens that follow them or their labels, from a text of tokens: kernels/load/load.pyx. */

#include "cython_src/kernels/interface/block_kernel.cuh"

#define BAD_INDEX 2

/* A thread for each token and each answer. Bounds: samples. */
KERNEL(tokens_load)
{
    const auto &b = block_bounds(a);
    const int *order = a.batch_order + iteration_of(a) % a.num_batches * a.batch;
    const auto copy = [&](int length, const int *source, int *target) {
        for (int i = b.n0 * length + thread_of_row(); i < b.n1 * length; i += threads_of_row()) {
            const int sample = order[i / length];
            if (sample < 0 || sample >= a.num_images)
                fail(a, BAD_INDEX);
            else
                target[i] = source[(long long)sample * length + i % length];
        }
    };
    copy(a.sequence, a.dataset_tokens, a.tokens);
    if (a.dataset_labels)
        copy(a.answers, a.dataset_labels, a.targets);
    else
        copy(a.sequence, a.dataset_tokens + 1, a.targets);
}
