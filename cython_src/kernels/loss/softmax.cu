/* Softmax alone and with cross-entropy and its gradient, and the sums kept for each step (kernels/loss/loss.pyx). */

#include "cython_src/kernels/loss/answers.cuh"

#define BAD_LABEL  3
#define NOT_FINITE 4

__device__ inline int largest_logit(const float *z, int classes, int lanes, float &largest)
{
    int best = 0;
    largest = z[0];
    each_ahead(
        1, classes, 1, [&](int o) { return z[o * lanes]; },
        [&](int o, float logit) {
            best = logit > largest ? o : best;
            largest = logit > largest ? logit : largest;
        });
    return best;
}

KERNEL(softmax)
{
    const int classes = a.classes, lanes = a.lanes;
    const auto b = block_bounds(a);
    for (int i = thread_of_row(); i < (b.g1 - b.g0) * lanes; i += threads_of_row()) {
        const int g = b.g0 + i / lanes, lane = i % lanes;
        const long long image = (long long)g * lanes + lane;
        if (image >= a.batch)
            continue;
        const float *z = a.logits + (long long)g * classes * lanes + lane;
        float *p = a.probabilities + image * classes;
        float largest, total = 0;
        const int best = largest_logit(z, classes, lanes, largest);
        for (int o = 0; o < classes; o++)
            total += p[o] = expf(z[o * lanes] - largest);
        for (int o = 0; o < classes; o++)
            p[o] /= total;
        a.predictions[image] = best;
    }
}

/* A thread for each image; the first thread of each group adds its lanes in order. A CUDA block holds whole groups. */
KERNEL(softmax_loss)
{
    float *loss = shared, *hit = shared + THREADS; /* [THREADS] each */
    const int classes = a.classes, lanes = a.lanes;
    const auto b = block_bounds(a);
    const int g = b.g0 + (int)blockIdx.x * (THREADS / lanes) + (int)threadIdx.x / lanes, lane = threadIdx.x % lanes;
    const float scale = (float)(1.0 / a.batch), smoothing = (float)a.label_smoothing,
                share = (float)(a.label_smoothing / classes);
    loss[threadIdx.x] = hit[threadIdx.x] = 0;
    if (g < b.g1) {
        const float *z = a.logits + (long long)g * classes * lanes + lane;
        float *dz = a.gradient + (long long)g * classes * lanes + lane;
        const int label = a.labels[(long long)g * lanes + lane];
        const bool image = (long long)g * lanes + lane < a.batch;
        if (image && (label < 0 || label >= classes)) {
            fail(a, BAD_LABEL);
        } else if (image) {
            float largest, total = 0, shifted = 0;
            const int best = largest_logit(z, classes, lanes, largest);
            const auto logit = [&](int o) { return z[o * lanes]; };
            each_ahead(0, classes, 1, logit, [&](int o, float at) {
                total += expf(at - largest);
                shifted += at - largest;
            });
            loss[threadIdx.x] = logf(total) - (1 - smoothing) * (z[label * lanes] - largest);
            if (smoothing != 0)
                loss[threadIdx.x] -= share * shifted;
            hit[threadIdx.x] = best == label;
            total = scale / total;
            each_ahead(0, classes, 1, logit, [&](int o, float at) {
                const float gradient = expf(at - largest) * total - share * scale;
                dz[o * lanes] = o == label ? gradient - (1 - smoothing) * scale : gradient;
            });
        } else {
            for (int o = 0; o < classes; o++)
                dz[o * lanes] = 0;
        }
    }
    __syncthreads();
    if (g < b.g1 && lane == 0) {
        float sum = 0, hits = 0;
        for (int i = 0; i < lanes; i++) {
            sum += loss[threadIdx.x + i];
            hits += hit[threadIdx.x + i];
        }
        a.losses[g] = sum;
        a.correct[g] = (int)hits;
    }
}

/* One CUDA block: each thread adds every THREADS-th group, a tree the threads. */
KERNEL(loss_sum)
{
    const long long at = iteration_of(a) % a.length;
    float sum = 0;
    int hit = 0;
    each_ahead(
        threadIdx.x, a.groups, THREADS, [&](int g) { return a.losses[g]; }, [&](int, float loss) { sum += loss; });
    each_ahead(
        threadIdx.x, a.groups, THREADS, [&](int g) { return a.correct[g]; }, [&](int, int hits) { hit += hits; });
    const float total = sum_threads(shared, sum);
    const int total_hits = sum_threads((int *)shared, hit);
    const int answers = a.labels ? count_answers(a.labels, a.batch) : a.batch;
    if (threadIdx.x == 0) {
        a.loss_log[at] = total / answers;
        a.correct_log[at] = total_hits;
        if (a.check_finite && !(total - total == 0)) /* NaN or infinite */
            fail(a, NOT_FINITE);
    }
}
