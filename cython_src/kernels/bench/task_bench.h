/* The kernel of the Task Bench workloads: check the inputs, work, mark the output.
 *
 * A cell is one cache line for each task of an iteration: { runs, iteration, ... }, `runs` counting how often its task
 * has run. A task about to run for the r-th time must find r and its own iteration number in the cells of predecessors
 * in the same iteration, and r - 1 in those of the iteration before. Anything missed, doubled or too early differs.
 *
 * Workloads after Slaughter et al., "Task Bench: A Parameterized Benchmark for Evaluating Parallel Runtime
 * Performance" (SC 2020). We deviate: graphs are closed over iterations, step 0 reads the last step of the iteration
 * before, and outputs stay in place.
 */
#ifndef FORKTASK_TASK_BENCH_H
#define FORKTASK_TASK_BENCH_H

#include <string.h>

#include "cython_src/kernels/interface/block_kernel.h"

enum { TASK_BENCH_EMPTY, TASK_BENCH_COMPUTE, TASK_BENCH_MEMORY, TASK_BENCH_LOAD_IMBALANCE, TASK_BENCH_BUSY_WAIT };
/* Order of the integer attributes. */
enum { TB_KERNEL, TB_WORK, TB_STEP, TB_STEPS, TB_WIDTH, TB_CHECK };

#define TASK_BENCH_CELL       8 /* int64 numbers in a cell */
#define TASK_BENCH_LANES      16
#define TASK_BENCH_FLOPS      32        /* of one unit of compute work */
#define TASK_BENCH_COPY_BYTES 1024      /* of one unit of memory work */
#define TASK_BENCH_SCRATCH    (8 << 20) /* past a core's L2 */

/* Bytes of scratch memory that a task of this kind of work takes. */
static inline size_t task_bench_scratch(int64_t kernel)
{
    return kernel == TASK_BENCH_MEMORY ? TASK_BENCH_SCRATCH : 0;
}

static inline uint64_t task_bench_mix(uint64_t value)
{
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
    value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
    return value ^ (value >> 31);
}

static void task_bench_compute(int64_t units)
{
    double a[TASK_BENCH_LANES];
    for (int i = 0; i < TASK_BENCH_LANES; i++)
        a[i] = 1.0 + i;
    for (int64_t k = 0; k < units; k++)
        for (int i = 0; i < TASK_BENCH_LANES; i++)
            a[i] = a[i] * 0.75 + 0.5;
    for (int i = 0; i < TASK_BENCH_LANES; i++)
        __asm__ volatile("" : : "m"(a[i])); /* the values are used, as far as the compiler knows */
}

static void task_bench_work(int64_t kernel, int64_t units, uint64_t seed, char *scratch)
{
    switch (kernel) {
    case TASK_BENCH_LOAD_IMBALANCE:
        units -= (int64_t)((double)units * (double)(task_bench_mix(seed + 1) >> 11) * 0x1p-53);
        /* fall through */
    case TASK_BENCH_COMPUTE:
        task_bench_compute(units);
        break;
    case TASK_BENCH_MEMORY:
        for (int64_t k = 0; k < units; k++) {
            const uint64_t places = TASK_BENCH_SCRATCH / 2 / TASK_BENCH_COPY_BYTES;
            const uint64_t place = task_bench_mix(seed + (uint64_t)k) % places;
            memcpy(scratch + TASK_BENCH_SCRATCH / 2 + place * TASK_BENCH_COPY_BYTES,
                   scratch + (places - 1 - place) * TASK_BENCH_COPY_BYTES, TASK_BENCH_COPY_BYTES);
            __asm__ volatile("" : : : "memory");
        }
        break;
    case TASK_BENCH_BUSY_WAIT: {
        const int64_t end = forktask_now_ns() + units;
        while (forktask_now_ns() < end)
            ;
        break;
    }
    default:
        break;
    }
}

/* Bounds of a block: point, then pairs (start, stop) of predecessor points in the step before; empty pairs pad. */
static int task_bench_block(const void *record, ptrdiff_t block, const TaskContext *context)
{
    const KernelArgs *args = (const KernelArgs *)record;
    int64_t *cells = (int64_t *)args->operand[0];
    const int32_t *bounds = args->bounds + block * args->bounds_width;
    const int64_t *with = args->integers;
    const int64_t width = with[TB_WIDTH], steps = with[TB_STEPS], step = with[TB_STEP];
    const int64_t task = step * width + bounds[0];
    int64_t *own = cells + task * TASK_BENCH_CELL;
    if (with[TB_CHECK]) {
        const int64_t *from = cells + (step ? step - 1 : steps - 1) * width * TASK_BENCH_CELL;
        const int64_t runs = own[0] + (step != 0); /* that a predecessor must have behind it */
        const int64_t iteration = context->iteration;
        int64_t wrong = 0;
        for (int32_t k = 1; k < args->bounds_width; k += 2) {
            for (int32_t q = bounds[k]; q < bounds[k + 1]; q++) {
                wrong |= from[q * TASK_BENCH_CELL] ^ runs;
                wrong |= step ? from[q * TASK_BENCH_CELL + 1] ^ iteration : 0;
            }
        }
        if (__builtin_expect(wrong != 0, 0))
            return 1;
        own[0]++;
        own[1] = iteration;
    }
    task_bench_work(with[TB_KERNEL], with[TB_WORK], (uint64_t)(context->iteration * width * steps + task),
                    (char *)context->scratch);
    return 0;
}

#endif
