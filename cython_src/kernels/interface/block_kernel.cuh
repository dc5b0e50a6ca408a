/* What all CUDA kernels share: their one argument, their share of the threads, iteration, failure.
 *
 * A kernel has the name, operands, attributes and bounds of its CPU form and computes a range of a loop's blocks: grid
 * row y is block first_block + y, and the CUDA blocks of a row divide that block among them. Sums run in an order that
 * depends on the plan and on the constants here only, never on the device: every GPU model gives the same bits.
 *
 * The same sources are compiled for the CPU by the tests (FORKTASK_EMULATED), where each CUDA thread is a coroutine.
 */
#ifndef FORKTASK_BLOCK_KERNEL_CUH
#define FORKTASK_BLOCK_KERNEL_CUH

#include "cython_src/kernels/interface/grid_sizes.cuh" /* THREADS and others, written from SIZES of grids.py */

#define STRIPS (THREADS / STRIP_CHANNELS)

#ifndef FORKTASK_EMULATED
/* Let the next kernel of the stream be set up meanwhile, and wait for the one before: both do something only where a launch
 * asks for it (gpu/device.py). All kernels do so before all else, so that a kernel that ends has waited for the
 * one before it, which had waited for its own: one that starts early still comes after all before it, and what is
 * launched without asking, an event or a copy, after it. */
__device__ inline void follow_kernel()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

#define ENTRY(name, spec, body)                                                                       \
    extern "C" __global__ void __launch_bounds__(THREADS) name(const __grid_constant__ spec##_args a) \
    {                                                                                                 \
        follow_kernel();                                                                              \
        body;                                                                                         \
    }

extern __shared__ __align__(16) float shared[]; /* of the CUDA block; undefined on entry */

__device__ inline long long now_ns()
{
    long long time;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(time));
    return time;
}
#endif

/* A kernel with arguments of its own, or with those of another; one that also runs several loops, as <name>_many. */
#define KERNEL(name) KERNEL_OF(name, name)
#define KERNEL_OF(name, spec)                                                 \
    static __device__ __forceinline__ void name##_body(const spec##_args &a); \
    ENTRY(name, spec, name##_body(a))                                         \
    static __device__ __forceinline__ void name##_body(const spec##_args &a)
#define KERNEL_MANY(name)                                                     \
    static __device__ __forceinline__ void name##_body(const name##_args &a); \
    ENTRY(name##_many, loops, name##_body(one_of_loops<name##_args>(a)))      \
    KERNEL(name)

/* What kernels get: GpuArgs, all alike, behind which a kernel finds operands, reals and integers by their names in its
 * spec: in_map for in_channels, in_height, ... */
#include "cython_src/kernels/interface/arguments.cuh" /* written by gpu/launches.py from GPU_ARGS and the specs */

__device__ inline int divide_up(int a, int b)
{
    return (a + b - 1) / b;
}

/* In a launch of several loops the arguments of this CUDA block's. Bounds: of each CUDA block where these arguments begin,
 * block of the loop, tile, tiles. All threads must come. */
typedef GpuArgs loops_args;
template <typename Args>
__device__ inline const Args &one_of_loops(const loops_args &all)
{
    __shared__ Args a;
    const int *own = all.bounds + blockIdx.x * all.bounds_width;
    for (int i = threadIdx.x; i < (int)(sizeof(Args) / sizeof(int)); i += THREADS)
        ((int *)&a)[i] = all.bounds[own[0] + i];
    __syncthreads();
    if (threadIdx.x == 0) {
        a.replay = all.replay;
        a.counter = all.counter;
        a.first_block = own[1];
        a.tile = own[2];
        a.tiles = own[3];
    }
    __syncthreads();
    return a;
}

/* Number of the thread within its grid row, and threads of a grid row; these and of CUDA blocks by the arguments where a
 * launch may have several loops. */
__device__ inline int thread_of_row()
{
    return blockIdx.x * THREADS + threadIdx.x;
}

__device__ inline int threads_of_row()
{
    return gridDim.x * THREADS;
}

__device__ inline int tile_of_row(const GpuArgs &a)
{
    return a.tiles ? a.tile : (int)blockIdx.x;
}

__device__ inline int tiles_of_row(const GpuArgs &a)
{
    return a.tiles ? a.tiles : (int)gridDim.x;
}

__device__ inline int thread_of_row(const GpuArgs &a)
{
    return tile_of_row(a) * THREADS + threadIdx.x;
}

__device__ inline int threads_of_row(const GpuArgs &a)
{
    return tiles_of_row(a) * THREADS;
}

/* The bounds of a kernel's block, by their names in its spec. */
template <typename Args>
__device__ inline const typename Args::Bounds &block_bounds(const Args &a)
{
    return *(const typename Args::Bounds *)(a.bounds + (long long)(a.first_block + (int)blockIdx.y) * a.bounds_width);
}

__device__ inline long long iteration_of(const GpuArgs &a)
{
    return (a.replay + (a.counter ? *a.counter : 0)) * a.iteration_stride + a.iteration_offset;
}

/* Write a number, or add it to what is there. */
__device__ inline void put(float *p, float value, bool accumulate)
{
    *p = accumulate ? *p + value : value;
}

/* Call body(i, value(i)) for i = first, first + step, ... below `end`, in order. The loads of AHEAD values come before
 * what is done with them, so that memory is waited for once. */
template <int AHEAD = 16, typename Value, typename Body>
__device__ inline void each_ahead(int first, int end, int step, Value value, Body body)
{
    for (int start = first; start < end; start += AHEAD * step) {
        decltype(value(0)) values[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
            if (start + k * step < end)
                values[k] = value(start + k * step);
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
            if (start + k * step < end)
                body(start + k * step, values[k]);
    }
}

/* Add up what the threads of each of CHANNELS columns have, by a tree; the sum is there for all of them. `sums`, of THREADS
 * numbers, may be used again after a barrier. Barriers: all threads of the CUDA block must come. */
template <int CHANNELS = STRIP_CHANNELS, typename Number>
__device__ inline Number sum_strips(Number *sums, Number value)
{
    const int column = threadIdx.x % CHANNELS, strip = threadIdx.x / CHANNELS;
    __syncthreads();
    sums[threadIdx.x] = value;
    for (int half = THREADS / CHANNELS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (strip < half)
            sums[threadIdx.x] += sums[threadIdx.x + half * CHANNELS];
    }
    __syncthreads();
    return sums[column];
}

/* The sum of all threads of the CUDA block. */
template <typename Number>
__device__ inline Number sum_threads(Number *sums, Number value)
{
    return sum_strips<1>(sums, value);
}

/* The same; `sums` may be used again at once. */
__device__ inline float sum_for_all(float *sums, float value)
{
    const float sum = sum_threads(sums, value);
    __syncthreads();
    return sum;
}

/* Bring together what a.parts CUDA blocks have added up for a tile, COUNT numbers a thread: the last to come, for which
 * alone this is true, adds the sums in order, so that it does not matter when they come. Scratch memory of a tile: a counter,
 * zero before and after, and the sums; `come`: one number of shared memory. Barriers: all threads must come. */
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

/* Note that this block failed. The earliest failure in plan order wins: iteration, task, status. */
__device__ inline void fail(const GpuArgs &a, int status)
{
    const unsigned long long task = a.first_task + a.first_block + blockIdx.y;
    atomicMin(a.failure, (unsigned long long)iteration_of(a) << 40 | task << 8 | (unsigned)status);
}

#endif
