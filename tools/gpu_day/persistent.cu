/* Parts of a persistent kernel: a join of all its CUDA blocks, and tasks that wait for others. All CUDA blocks must be
 * resident, as they wait for each other. After MOST_LOOKS one gives up, and so do all. */

#define MOST_LOOKS (1 << 22) /* seconds */

struct Args {
    unsigned *flags, *failed; /* zero at first */
    long long count;          /* of rounds, or of tasks */
};

__device__ static bool reached(const Args &a, const unsigned *flag, unsigned value)
{
    for (int looks = 0; looks < MOST_LOOKS; looks++) {
        unsigned seen;
        /* acquire: pairs with the releases in join() and program() */
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
        if (seen >= value)
            return true;
    }
    *a.failed = 1;
    return false;
}

/* All CUDA blocks wait until all are there. */
extern "C" __global__ void join(const Args a)
{
    for (unsigned round = 1; round <= a.count; round++) {
        if (threadIdx.x == 0)
            asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(a.flags) : "memory");
        if (!__syncthreads_and(threadIdx.x || reached(a, a.flags, round * gridDim.x)))
            return;
    }
}

/* A chain of empty tasks, which the CUDA blocks take in turn: task t waits for flag t and sets the next. With a `count` of 0
 * it is an empty kernel. */
extern "C" __global__ void program(const Args a)
{
    for (long long task = blockIdx.x; task < a.count; task += gridDim.x) {
        if (!__syncthreads_and(threadIdx.x || task == 0 || reached(a, a.flags + task, 1)))
            return;
        if (threadIdx.x == 0)
            asm volatile("st.release.gpu.global.u32 [%0], 1;" ::"l"(a.flags + task + 1) : "memory");
    }
}
