/* Cross-entropy of the next token over a vocabulary, and its gradient in place of the logits, a CUDA block for each row:
 * kernels/loss/loss.pyx. */

#include "cython_src/kernels/loss/answers.cuh"

#define BAD_LABEL 3

/* A row of logits and its target. Bounds: rows. */
struct VocabularyRow {
    float *z;
    int row, target, vocabulary, pitch;
};

/* Call body(row) for each of a CUDA block's rows whose target is in the vocabulary, leave_out(row) for those without a
 * loss; the others fail. */
template <typename Body, typename LeaveOut, typename Args>
__device__ inline void for_rows(const Args &a, Body body, LeaveOut leave_out)
{
    const auto &b = block_bounds(a);
    for (int row = b.r0 + (int)blockIdx.x; row < b.r1; row += gridDim.x) {
        VocabularyRow r;
        r.row = row;
        r.target = a.targets[row];
        r.vocabulary = a.vocabulary;
        r.pitch = a.pitch;
        r.z = a.logits + (long long)row * r.pitch;
        if (a.ignored && r.target == IGNORED)
            leave_out(r);
        else if (r.target < 0 || r.target >= r.vocabulary)
            fail(a, BAD_LABEL);
        else
            body(r);
    }
}

/* One over the number of rows that have a loss. */
template <typename Args>
__device__ inline float share_of_row(const Args &a)
{
    return (float)(1.0 / (a.ignored ? count_answers(a.targets, a.rows) : a.rows));
}

__device__ inline void clear_row(const VocabularyRow &r)
{
    for (int i = threadIdx.x; i < r.pitch; i += THREADS)
        r.z[i] = 0;
}

/* The largest logit of a row, and whether the target's is the first as large. */
__device__ inline float largest_of(const VocabularyRow &r, bool *hit)
{
    float most = r.z[0];
    for (int i = threadIdx.x; i < r.vocabulary; i += THREADS)
        most = r.z[i] > most ? r.z[i] : most;
    shared[threadIdx.x] = most;
    for (int half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half && shared[threadIdx.x + half] > shared[threadIdx.x])
            shared[threadIdx.x] = shared[threadIdx.x + half];
    }
    __syncthreads();
    most = shared[0];
    __syncthreads();
    int earlier = 0; /* logits before the target's that are as large */
    for (int i = threadIdx.x; i < r.target; i += THREADS)
        earlier += r.z[i] == most;
    *hit = sum_for_all(shared, (float)earlier) == 0 && r.z[r.target] == most;
    return most;
}

template <typename Args>
__device__ inline void write_loss(const Args &a, const VocabularyRow &r, float loss, bool hit)
{
    if (threadIdx.x == 0) {
        a.losses[r.row] = loss;
        a.correct[r.row] = hit;
    }
}

KERNEL(vocabulary_loss)
{
    const float scale = share_of_row(a);
    const auto learn = [&](const VocabularyRow &r) {
        bool hit;
        const float largest = largest_of(r, &hit), shifted = r.z[r.target] - largest;
        float total = 0;
        __syncthreads(); /* all threads have read the target's logit */
        for (int i = threadIdx.x; i < r.vocabulary; i += THREADS)
            total += r.z[i] = expf(r.z[i] - largest);
        total = sum_for_all(shared, total);
        write_loss(a, r, logf(total) - shifted, hit);
        for (int i = threadIdx.x; i < r.pitch; i += THREADS)
            r.z[i] = i >= r.vocabulary ? 0 : r.z[i] * (scale / total) - (i == r.target ? scale : 0);
    };
    for_rows(a, learn, [&](const VocabularyRow &r) {
        clear_row(r);
        write_loss(a, r, 0, false);
    });
}

/* Losses and hits; with `logsumexp` the logarithms of the sums too. */
KERNEL(vocabulary_evaluate)
{
    const auto look = [&](const VocabularyRow &r) {
        bool hit;
        const float largest = largest_of(r, &hit);
        float total = 0;
        for (int i = threadIdx.x; i < r.vocabulary; i += THREADS)
            total += expf(r.z[i] - largest);
        total = logf(sum_for_all(shared, total));
        write_loss(a, r, total - (r.z[r.target] - largest), hit);
        if (a.logsumexp && threadIdx.x == 0)
            a.logsumexp[r.row] = total + largest;
    };
    for_rows(a, look, [&](const VocabularyRow &r) {
        write_loss(a, r, 0, false);
        if (a.logsumexp && threadIdx.x == 0)
            a.logsumexp[r.row] = 0;
    });
}

KERNEL(vocabulary_gradient)
{
    const float scale = share_of_row(a);
    const auto learn = [&](const VocabularyRow &r) {
        const float logsumexp = a.logsumexp[r.row];
        for (int i = threadIdx.x; i < r.pitch; i += THREADS)
            r.z[i] = i >= r.vocabulary ? 0 : expf(r.z[i] - logsumexp) * scale - (i == r.target ? scale : 0);
    };
    for_rows(a, learn, [&](const VocabularyRow &r) { clear_row(r); });
}
