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
    const auto &b = block_bounds(a);
    unsigned long long *out = (unsigned long long *)a.out;
    const unsigned long long *in = (const unsigned long long *)a.in_;
    if (thread_of_row() != 0)
        return;
    if (iteration_of(a) == a.fail_iteration && b.i == a.fail_index) {
        fail(a, 7);
        return;
    }
    unsigned long long value = mix(out[b.i] + (unsigned long long)iteration_of(a));
    for (int k = b.start; k < b.stop; k++)
        value = mix(value + in[k]);
    for (int k = 0; k < a.work; k++)
        value = mix(value + 1);
    out[b.i] = value;
}

#define WORK_COMPUTE        1
#define WORK_LOAD_IMBALANCE 3
#define WORK_BUSY_WAIT      4
#define WORK_LANES          16
#define CELL                8 /* numbers in a cell */

/* The work of a task: 16 threads do what 16 vector lanes do on the CPU, so that a unit is the same 32 operations. */
__device__ inline void bench_work(int kernel, int units, unsigned long long seed)
{
    if (kernel == WORK_LOAD_IMBALANCE)
        units -= (int)((double)units * (double)(mix(seed + 1) >> 11) * 0x1p-53);
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

/* Of any number of ranges of predecessor points. */
KERNEL_OF(task_bench, task_bench_1)
{
    const auto &b = block_bounds(a);
    const int *ranges = &b.start0;
    const int step = a.step, width = a.width, task = step * width + b.point;
    const long long iteration = iteration_of(a);
    long long *cells = (long long *)a.cells, *own = cells + (long long)task * CELL;
    if (a.check && threadIdx.x == 0) {
        const long long *from = cells + (long long)(step ? step - 1 : a.steps - 1) * width * CELL;
        const long long runs = own[0] + (step != 0);
        long long wrong = 0;
        for (int k = 0; k + 1 < a.bounds_width; k += 2)
            for (int q = ranges[k]; q < ranges[k + 1]; q++) {
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
    bench_work(a.kernel, a.work, (unsigned long long)(iteration * width * a.steps + task));
}

KERNEL(replica)
{
    bench_work(a.kernel, block_bounds(a).work, 0);
}
