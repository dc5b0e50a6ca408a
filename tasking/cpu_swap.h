/* Workers that exchange CPUs (option preemption=swap): a worker that waits gives its CPU to one that has lost its
 * own.
 *
 * Where another process wants a core, the system takes it from the worker there for a time slice of milliseconds, in
 * the middle of a task. Others can claim what does not depend on that task; then all workers wait for it, with CPUs
 * to spare. A waiting worker finds the preempted one by its CPU time, which stands still though it does not sleep,
 * and swaps CPUs with it: the task goes on here, and the waiting worker, which holds no task, queues for the lost CPU
 * in its stead.
 *
 * Runs with preemption=stay have no CpuSwap and execute no code of this file.
 *
 * Who writes: `cpu`: whoever holds `busy`; after a run the caller, while the workers rest. `looked_ns`, `used_ns`:
 * each worker its own. `num_swaps`: whoever holds `busy`.
 */
#ifndef FORKTASK_CPU_SWAP_H
#define FORKTASK_CPU_SWAP_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "atomics.h"
#include "cython_src/kernels/interface/block_kernel.h"
#include "idle.h"

/* A running worker must have used its CPU within this time: long against a look, short against a time slice. */
#define CPU_SWAP_LOOK_NS 20000
/* Workers that one look takes in: it costs a system call for each. */
#define CPU_SWAP_LOOK_AT 8

typedef struct PinnedThread {
    pthread_t thread;
    clockid_t clock;   /* CPU time of the thread */
    int32_t own_cpu;   /* logical CPU that the caller asked for */
    atomic_i32 cpu;    /* the one the thread is pinned to, or will be soon */
    int64_t looked_ns; /* time of its last look at others */
    int64_t *used_ns;  /* shape (num_threads,): CPU times read then, -1: none */
    char padding[FT_PAIR_OF_LINES];
} PinnedThread;

typedef struct CpuSwap {
    PinnedThread *threads;
    int32_t num_threads;
    int64_t num_swaps;
    atomic_i32 busy;
} CpuSwap;

static inline int cpu_swap_pin(const PinnedThread *thread, int32_t cpu)
{
    size_t size = CPU_ALLOC_SIZE(cpu + 1);
    cpu_set_t *set = CPU_ALLOC(cpu + 1);
    if (set == NULL)
        return -1;
    CPU_ZERO_S(size, set);
    CPU_SET_S(cpu, size, set);
    int error = pthread_setaffinity_np(thread->thread, size, set);
    CPU_FREE(set);
    return error;
}

static inline int64_t cpu_swap_used_ns(const PinnedThread *thread)
{
    struct timespec t;
    return clock_gettime(thread->clock, &t) == 0 ? (int64_t)t.tv_sec * 1000000000 + t.tv_nsec : -1;
}

/* Worker `me`, which waits: has worker `other` neither slept nor used its CPU since the last look? */
static inline int cpu_swap_is_preempted(CpuSwap *c, Idle *idle, PinnedThread *mine, int32_t other)
{
    if (ft_load(&idle->workers[other].word, relaxed) != WORKER_AWAKE) {
        mine->used_ns[other] = -1;
        return 0;
    }
    int64_t before = mine->used_ns[other], used = cpu_swap_used_ns(&c->threads[other]);
    mine->used_ns[other] = used;
    return used >= 0 && used == before;
}

/* Worker `me`, which waits: swap CPUs with a preempted worker, from `first` on. Returns 1 after a swap; the thread
 * has waited for the other CPU then, and `now` is stale. */
static int cpu_swap_try(CpuSwap *c, Idle *idle, int32_t me, int32_t first, int64_t now)
{
    PinnedThread *mine = &c->threads[me];
    if (now - mine->looked_ns < CPU_SWAP_LOOK_NS)
        return 0;
    mine->looked_ns = now;
    int32_t count = c->num_threads < CPU_SWAP_LOOK_AT ? c->num_threads : CPU_SWAP_LOOK_AT;
    for (int32_t i = 0; i < count; i++) {
        int32_t other = (first + i) % c->num_threads, expected = 0;
        if (other == me || !cpu_swap_is_preempted(c, idle, mine, other) ||
            !ft_cas(&c->busy, &expected, 1, acquire)) /* pairs with the release below */
            continue;
        int32_t here = ft_load(&mine->cpu, relaxed), there = ft_load(&c->threads[other].cpu, relaxed);
        ft_store(&mine->cpu, there, relaxed);
        ft_store(&c->threads[other].cpu, here, relaxed);
        cpu_swap_pin(&c->threads[other], here);
        c->num_swaps++;
        ft_store(&c->busy, 0, release);
        mine->used_ns[other] = -1;
        /* Pinning returns when this thread has got a slice there. Another may have swapped with it before. */
        do {
            there = ft_load(&mine->cpu, relaxed);
            cpu_swap_pin(mine, there);
        } while (ft_load(&mine->cpu, relaxed) != there);
        return 1;
    }
    return 0;
}

/* Caller, after a run: move every worker back to its own CPU. */
static inline void cpu_swap_restore(CpuSwap *c)
{
    for (int32_t w = 0; w < c->num_threads; w++) {
        PinnedThread *thread = &c->threads[w];
        thread->looked_ns = 0;
        memset(thread->used_ns, 0xFF, (size_t)c->num_threads * sizeof(int64_t));
        if (ft_load(&thread->cpu, relaxed) == thread->own_cpu)
            continue;
        ft_store(&thread->cpu, thread->own_cpu, relaxed);
        cpu_swap_pin(thread, thread->own_cpu);
    }
}

static inline void cpu_swap_close(CpuSwap *c)
{
    if (c->threads != NULL)
        free(c->threads[0].used_ns);
    free(c->threads);
    c->threads = NULL;
    c->num_threads = 0;
}

/* Set up swaps between running threads, each pinned to a CPU of its own. Returns 0 or an errno. */
static inline int cpu_swap_open(CpuSwap *c, int32_t num_threads, const pthread_t *threads, const int32_t *cpus)
{
    memset(c, 0, sizeof(*c));
    c->threads = calloc((size_t)num_threads, sizeof(PinnedThread));
    int64_t *used_ns = malloc((size_t)num_threads * (size_t)num_threads * sizeof(int64_t));
    if (c->threads == NULL || used_ns == NULL) {
        free(used_ns);
        cpu_swap_close(c);
        return ENOMEM;
    }
    c->num_threads = num_threads;
    for (int32_t w = 0; w < num_threads; w++) {
        PinnedThread *thread = &c->threads[w];
        thread->thread = threads[w];
        thread->own_cpu = cpus[w];
        ft_store(&thread->cpu, cpus[w], relaxed);
        thread->used_ns = used_ns + (size_t)w * (size_t)num_threads;
    }
    for (int32_t w = 0; w < num_threads; w++) {
        int error = pthread_getcpuclockid(threads[w], &c->threads[w].clock);
        if (error != 0) {
            cpu_swap_close(c);
            return error;
        }
    }
    cpu_swap_restore(c);
    return 0;
}

#endif
