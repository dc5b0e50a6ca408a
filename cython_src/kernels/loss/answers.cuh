/* Labels that have no loss (kernels/loss/loss.pyx). */
#ifndef FORKTASK_LOSS_ANSWERS_CUH
#define FORKTASK_LOSS_ANSWERS_CUH

#include "cython_src/kernels/interface/block_kernel.cuh"

#define IGNORED (-100)

/* Number of labels that are not IGNORED, at least 1, for all threads of the CUDA block, which must come; in shared
 * memory. */
__device__ inline int count_answers(const int *labels, int length)
{
    int count = 0;
    for (int i = threadIdx.x; i < length; i += THREADS)
        count += labels[i] != IGNORED;
    /* Whole numbers below 2^24, of which a float's sum is exact. */
    return max(1, (int)sum_for_all(shared, (float)count));
}

#endif
