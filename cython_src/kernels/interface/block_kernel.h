/* The contract between plans and executors, in C: what a kernel gets, what a worker owns, how one block is run.
 *
 * A kernel executes one block of one loop:  int kernel(const void *args, Py_ssize_t block, const TaskContext *context)
 * It returns 0, or a non-zero status that stops the run. It must touch nothing but the regions its block declares,
 * its scratch memory and its own stack. Every executor, whatever its model, calls blocks through run_block() alone.
 */
#ifndef FORKTASK_BLOCK_KERNEL_H
#define FORKTASK_BLOCK_KERNEL_H

#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "event_log.h"

#define FORKTASK_ABI_VERSION  1
#define FORKTASK_MAX_OPERANDS 24

typedef struct TaskContext {
    int64_t iteration;   /* number of the training step the block belongs to */
    void *scratch;       /* 64-byte aligned, BoundPlan.scratch_bytes long, undefined on entry */
    int32_t worker;      /* which worker runs the block: 0 ... num_threads - 1 */
    int32_t abi_version; /* FORKTASK_ABI_VERSION */
} TaskContext;

typedef int (*BlockKernel)(const void *args, ptrdiff_t block, const TaskContext *context);

/* Argument record of all built-in kernels. The order of operands and attributes is the one in the kernel's
 * KernelSpec (kernel_spec.py). `bounds` holds bounds_width numbers for each block: the index ranges it works on. */
typedef struct MicroKernels MicroKernels; /* instruction-set dependent inner loops: micro_kernels.h */
typedef struct KernelArgs {
    void *operand[FORKTASK_MAX_OPERANDS];
    const int64_t *integers; /* integer attributes */
    const double *reals;     /* real attributes */
    const int32_t *bounds;   /* shape (num_blocks, bounds_width), C-contiguous */
    int32_t bounds_width;
    int32_t num_blocks;
    const MicroKernels *micro;
} KernelArgs;

/* One block loop of a bound plan. Task ids are dense: block b of a loop is task first_task + b. */
typedef struct LoopRecord {
    BlockKernel kernel;
    const void *args;
    int32_t first_task;
    int32_t num_blocks;
    int32_t iteration_stride;    /* the iteration seen by the block is replay * iteration_stride + iteration_offset; */
    int32_t iteration_offset;    /* 1 and 0 unless the plan is unrolled */
    const int32_t *lock_offsets; /* NULL: no block has commutative accesses. Block b holds, while it runs, the locks */
    const int32_t *lock_ids;     /* locks[lock_ids[i]], lock_offsets[b] <= i < lock_offsets[b + 1], ascending */
    int32_t *locks;
} LoopRecord;

/* What one worker owns. Padded to two cache lines: the adjacent-line prefetcher pairs them. */
typedef struct WorkerState {
    TaskContext context;
    EventLog log;
    int64_t failed_iteration;
    int32_t failed_task; /* first failing task of this worker, -1 when none */
    int32_t status;      /* its kernel's status */
    char padding[128 - sizeof(TaskContext) - sizeof(EventLog) - sizeof(int64_t) - 2 * sizeof(int32_t)];
} WorkerState;

/* Locks of commutative accesses. They are taken in ascending order, so that two blocks never wait for each other. */
static inline void forktask_lock(int32_t *lock)
{
    int spins = 0;
    while (__atomic_exchange_n(lock, 1, __ATOMIC_ACQUIRE)) /* acquire: pairs with the release in forktask_unlock() */
        while (__atomic_load_n(lock, __ATOMIC_RELAXED))    /* hint only; the exchange above decides */
            if (++spins > 1000)
                sched_yield();
}

static inline void forktask_unlock(int32_t *lock)
{
    __atomic_store_n(lock, 0, __ATOMIC_RELEASE); /* release: pairs with the acquire in forktask_lock() */
}

/* Would the block wait for a lock? A hint: whoever holds it may let go. */
static inline int forktask_locks_held(const LoopRecord *loop, ptrdiff_t block)
{
    if (__builtin_expect(loop->lock_offsets != NULL, 0))
        for (int32_t i = loop->lock_offsets[block]; i < loop->lock_offsets[block + 1]; i++)
            if (__atomic_load_n(&loop->locks[loop->lock_ids[i]], __ATOMIC_RELAXED))
                return 1;
    return 0;
}

/* Take the locks of a block's commutative accesses, and log how long that took if one was held. */
static inline void forktask_take_locks(const LoopRecord *loop, ptrdiff_t block, EventLog *log)
{
    int64_t start = log->spells != NULL && forktask_locks_held(loop, block) ? forktask_now_ns() : 0;
    for (int32_t i = loop->lock_offsets[block]; i < loop->lock_offsets[block + 1]; i++)
        forktask_lock(&loop->locks[loop->lock_ids[i]]);
    if (start != 0)
        forktask_log_spell(log, SPELL_LOCK, start, forktask_now_ns(), -1, -1);
}

/* Run block `block` of `loop` on the calling worker for replay number `replay`. Returns the kernel's status. */
static inline int run_block(const LoopRecord *loop, ptrdiff_t block, int64_t replay, WorkerState *worker)
{
    int status;
    worker->context.iteration = replay * loop->iteration_stride + loop->iteration_offset;
    if (__builtin_expect(loop->lock_offsets != NULL, 0))
        forktask_take_locks(loop, block, &worker->log);
    if (__builtin_expect(worker->log.events == NULL, 1)) {
        status = loop->kernel(loop->args, block, &worker->context);
    } else {
        int64_t start = forktask_begin_block(&worker->log);
        status = loop->kernel(loop->args, block, &worker->context);
        forktask_end_block(&worker->log, start, worker->context.iteration, loop->first_task + (int32_t)block,
                           worker->context.worker);
    }
    if (__builtin_expect(loop->lock_offsets != NULL, 0))
        for (int32_t i = loop->lock_offsets[block]; i < loop->lock_offsets[block + 1]; i++)
            forktask_unlock(&loop->locks[loop->lock_ids[i]]);
    if (__builtin_expect(status != 0, 0) && worker->failed_task < 0) {
        worker->failed_task = loop->first_task + (int32_t)block;
        worker->failed_iteration = worker->context.iteration;
        worker->status = status;
    }
    return status;
}

/* Denormal numbers slow kernels by orders of magnitude on some data: every thread that runs blocks, in every model,
 * flushes them. Returns the former control word for forktask_restore_denormals(). */
static inline unsigned forktask_flush_denormals(void)
{
#if defined(__x86_64__)
    unsigned former = _mm_getcsr();
    _mm_setcsr(former | 0x8040u); /* FTZ | DAZ */
    return former;
#elif defined(__aarch64__)
    uint64_t former;
    __asm__ volatile("mrs %0, fpcr" : "=r"(former));
    __asm__ volatile("msr fpcr, %0" : : "r"(former | (1u << 24)));
    return (unsigned)former;
#else
    return 0;
#endif
}

static inline void forktask_restore_denormals(unsigned former)
{
#if defined(__x86_64__)
    _mm_setcsr(former);
#elif defined(__aarch64__)
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)former));
#endif
}

#endif
