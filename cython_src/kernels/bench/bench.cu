/* Kernels without numerical meaning: hash_chain (kernels/bench/bench.pyx), Task Bench tasks (kernels/bench/task_bench.h) and replicas. */

#include "cython_src/kernels/interface/block_kernel.cuh"

__device__ inline unsigned long long mix(unsigned long long value)
{
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ull;
    value = (value ^ (value >> 27)) * 0x94D049BB133111EBull;
    return value ^ (value >> 31);
}

KERNEL(hash_chain)
{
    const int *b = block_bounds(a);
    unsigned long long *out = (unsigned long long *)a.operand[0];
    const unsigned long long *in = (const unsigned long long *)a.operand[1];
    if (thread_of_row() != 0)
        return;
    if (iteration_of(a) == a.integers[1] && b[0] == a.integers[2]) {
        fail(a, 7);
        return;
    }
    unsigned long long value = mix(out[b[0]] + (unsigned long long)iteration_of(a));
    for (int k = b[1]; k < b[2]; k++)
        value = mix(value + in[k]);
    for (int k = 0; k < a.integers[0]; k++)
        value = mix(value + 1);
    out[b[0]] = value;
}

#define WORK_COMPUTE        1
#define WORK_LOAD_IMBALANCE 3
#define WORK_BUSY_WAIT      4
#define WORK_LANES          16
#define CELL                8 /* numbers in a cell */

/* The work of a task: 16 threads do what 16 vector lanes do on the CPU, so that a unit is the same 32 operations. */
__device__ inline void bench_work(int kernel, int units, int imbalance_percent, unsigned long long seed)
{
    if (kernel == WORK_LOAD_IMBALANCE)
        units -= (int)((double)units * 0.01 * imbalance_percent * (double)(mix(seed + 1) >> 11) * 0x1p-53);
    if ((kernel == WORK_COMPUTE || kernel == WORK_LOAD_IMBALANCE) && threadIdx.x < WORK_LANES) {
        double value = 1.0 + threadIdx.x;
        for (int k = 0; k < units; k++)
            value = value * 0.75 + 0.5;
        if (value < 0) /* never; but the compiler cannot know, so the work is done */
            __trap();
    } else if (kernel == WORK_BUSY_WAIT && threadIdx.x == 0) {
        const long long end = now_ns() + units;
        while (now_ns() < end)
            ;
    }
}

/* Integers: kernel, work, step, steps, width, imbalance_percent, check. Bounds: point, ranges of predecessor points. */
KERNEL(task_bench)
{
    const int *b = block_bounds(a);
    const int step = a.integers[2], steps = a.integers[3], width = a.integers[4];
    const int task = step * width + b[0];
    const long long iteration = iteration_of(a);
    long long *cells = (long long *)a.operand[0], *own = cells + (long long)task * CELL;
    if (a.integers[6] && threadIdx.x == 0) {
        const long long *from = cells + (long long)(step ? step - 1 : steps - 1) * width * CELL;
        const long long runs = own[0] + (step != 0);
        long long wrong = 0;
        for (int k = 1; k < a.bounds_width; k += 2)
            for (int q = b[k]; q < b[k + 1]; q++) {
                wrong |= from[q * CELL] ^ runs;
                wrong |= step ? from[q * CELL + 1] ^ iteration : 0;
            }
        if (wrong) {
            fail(a, 1);
        } else {
            own[0]++;
            own[1] = iteration;
        }
    }
    bench_work(a.integers[0], a.integers[1], a.integers[5], (unsigned long long)(iteration * width * steps + task));
}

KERNEL(replica)
{
    bench_work(a.integers[0], block_bounds(a)[0], 0, 0);
}
