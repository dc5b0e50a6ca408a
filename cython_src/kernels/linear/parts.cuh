/* Sums of which several CUDA blocks have parts. */
#ifndef FORKTASK_LINEAR_PARTS_CUH
#define FORKTASK_LINEAR_PARTS_CUH

#include "cython_src/kernels/interface/block_kernel.cuh"
#include "cython_src/kernels/linear/tile_sizes.cuh" /* written by gpu/grids.py: FOR_TILES, STEP, STAGES, GAP, COUNTER */

/* Bring together what a.parts CUDA blocks have added up for a tile, COUNT numbers a thread: the last one to come, for which
 * alone this is true, adds their sums in order, so that it does not matter when they come. The scratch memory of a tile is
 * a counter, zero before and after, and the sums. Barriers: all threads of the CUDA block must come; `come`, in shared
 * memory, may be written. */
template <int COUNT>
__device__ inline bool join_parts(const GpuArgs &a, int *come, float (&sum)[COUNT])
{
    if (a.parts == 1)
        return true;
    const long long tile = (a.first_block + blockIdx.y) * (gridDim.x / a.parts) + blockIdx.x / a.parts;
    float *const sums = a.scratch + tile * (COUNTER + a.parts * COUNT * THREADS) + COUNTER + threadIdx.x;
    int *const count = (int *)(sums - COUNTER - threadIdx.x);
#pragma unroll
    for (int n = 0; n < COUNT; n++)
        sums[((int)blockIdx.x % a.parts * COUNT + n) * THREADS] = sum[n];
    __threadfence(); /* who sees the count sees the sum */
    __syncthreads();
    if (threadIdx.x == 0)
        *come = atomicAdd(count, 1) + 1;
    __syncthreads();
    if (*come < a.parts)
        return false;
    __threadfence();
    for (int part = 0; part < a.parts; part++)
#pragma unroll
        for (int n = 0; n < COUNT; n++)
            sum[n] = (part ? sum[n] : 0) + __ldcg(sums + (part * COUNT + n) * THREADS);
    if (threadIdx.x == 0)
        *count = 0;
    return true;
}

#endif
