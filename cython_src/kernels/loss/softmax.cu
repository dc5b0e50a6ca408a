/* Softmax alone and with cross-entropy and its gradient, and the sums kept for each step (kernels/loss/loss.pyx). */

#include "cython_src/kernels/loss/answers.cuh"

#define BAD_LABEL  3
#define NOT_FINITE 4

__device__ inline int largest_logit(const float *z, int classes, int lanes)
{
    int best = 0;
    for (int o = 1; o < classes; o++)
        if (z[o * lanes] > z[best * lanes])
            best = o;
    return best;
}

KERNEL(softmax)
{
    const int classes = a.integers[0], lanes = a.integers[1], batch = a.integers[2];
    const int *b = block_bounds(a);
    for (int i = thread_of_row(); i < (b[1] - b[0]) * lanes; i += threads_of_row()) {
        const int g = b[0] + i / lanes, lane = i % lanes;
        const long long image = (long long)g * lanes + lane;
        if (image >= batch)
            continue;
        const float *z = (const float *)a.operand[0] + (long long)g * classes * lanes + lane;
        float *p = (float *)a.operand[1] + image * classes;
        const int best = largest_logit(z, classes, lanes);
        const float largest = z[best * lanes];
        float total = 0;
        for (int o = 0; o < classes; o++)
            total += p[o] = expf(z[o * lanes] - largest);
        for (int o = 0; o < classes; o++)
            p[o] /= total;
        ((int *)a.operand[2])[image] = best;
    }
}

/* A thread for each image; the first thread of each group adds its lanes in order. A CUDA block holds whole groups. */
KERNEL(softmax_loss)
{
    float *loss = shared, *hit = shared + THREADS; /* [THREADS] each */
    const int classes = a.integers[0], lanes = a.integers[1], batch = a.integers[2];
    const int *b = block_bounds(a);
    const int g = b[0] + (int)blockIdx.x * (THREADS / lanes) + (int)threadIdx.x / lanes, lane = threadIdx.x % lanes;
    const float scale = (float)(1.0 / batch), smoothing = (float)a.reals[0], share = (float)(a.reals[0] / classes);
    loss[threadIdx.x] = hit[threadIdx.x] = 0;
    if (g < b[1]) {
        const float *z = (const float *)a.operand[0] + (long long)g * classes * lanes + lane;
        float *dz = (float *)a.operand[2] + (long long)g * classes * lanes + lane;
        const int label = ((const int *)a.operand[1])[(long long)g * lanes + lane];
        const bool image = (long long)g * lanes + lane < batch;
        if (image && (label < 0 || label >= classes)) {
            fail(a, BAD_LABEL);
        } else if (image) {
            const int best = largest_logit(z, classes, lanes);
            const float largest = z[best * lanes];
            float total = 0, shifted = 0;
            for (int o = 0; o < classes; o++) {
                total += dz[o * lanes] = expf(z[o * lanes] - largest);
                shifted += z[o * lanes] - largest;
            }
            loss[threadIdx.x] = logf(total) - (1 - smoothing) * (z[label * lanes] - largest);
            if (smoothing != 0)
                loss[threadIdx.x] -= share * shifted;
            hit[threadIdx.x] = best == label;
            total = scale / total;
            for (int o = 0; o < classes; o++)
                dz[o * lanes] = dz[o * lanes] * total - share * scale;
            dz[label * lanes] -= (1 - smoothing) * scale;
        } else {
            for (int o = 0; o < classes; o++)
                dz[o * lanes] = 0;
        }
    }
    __syncthreads();
    if (g < b[1] && lane == 0) {
        float sum = 0, hits = 0;
        for (int i = 0; i < lanes; i++) {
            sum += loss[threadIdx.x + i];
            hits += hit[threadIdx.x + i];
        }
        ((float *)a.operand[3])[g] = sum;
        ((int *)a.operand[4])[g] = (int)hits;
    }
}

/* One CUDA block: each thread adds every THREADS-th group, a tree the threads. */
KERNEL(loss_sum)
{
    float *sums = shared;
    int *hits = (int *)(shared + THREADS);
    const int groups = a.integers[0];
    const long long at = iteration_of(a) % a.integers[2];
    float sum = 0;
    int hit = 0;
    for (int g = threadIdx.x; g < groups; g += THREADS) {
        sum += ((const float *)a.operand[0])[g];
        hit += ((const int *)a.operand[1])[g];
    }
    sums[threadIdx.x] = sum;
    hits[threadIdx.x] = hit;
    for (int half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) {
            sums[threadIdx.x] += sums[threadIdx.x + half];
            hits[threadIdx.x] += hits[threadIdx.x + half];
        }
    }
    const float total = sums[0];
    const int total_hits = hits[0];
    __syncthreads();
    const int answers = a.operand[4] ? count_answers((const int *)a.operand[4], a.integers[1]) : a.integers[1];
    if (threadIdx.x == 0) {
        ((float *)a.operand[2])[at] = total / answers;
        ((int *)a.operand[3])[at] = total_hits;
        if (a.integers[3] && !(total - total == 0)) /* NaN or infinite */
            fail(a, NOT_FINITE);
    }
}
