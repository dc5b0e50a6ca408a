/* How workers fall asleep and are woken without losing a wake-up, at no cost to a waker when nobody sleeps.
 *
 *                 idle_announce             idle_sleep
 *     AWAKE ------------------> ANNOUNCED ------------> (futex, still ANNOUNCED)
 *       ^                          |  |                        |
 *       |   idle_cancel (sleeper)  |  | idle_notify (waker)    | idle_notify (waker)
 *       +--------------------------+--+------------------------+
 *
 * Sleeper: announce; full fence; look again for work; sleep only if there is none. Waker: publish work; full fence;
 * look for an announced worker. One of the two fences comes first, so either the sleeper sees the work or the waker
 * sees the sleeper. The waker's fence sits on the hot path: where the kernel has membarrier() the sleeper issues a
 * barrier on all threads of the process instead, and the waker keeps a compiler fence only.
 *
 * Who writes: `word`: AWAKE -> ANNOUNCED its worker; ANNOUNCED -> AWAKE the winner of the compare-and-swap or exchange,
 * which also takes the worker out of `num_announced`.
 */
#ifndef FORKTASK_IDLE_H
#define FORKTASK_IDLE_H

#include "atomics.h"

#if !defined(FORKTASK_RELACY)
#include <errno.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Sleep while *word == value, at most timeout_ns (negative: for ever). May return early. */
static inline void ft_futex_wait(atomic_u32 *word, uint32_t value, int64_t timeout_ns)
{
    struct timespec t = {timeout_ns / 1000000000, timeout_ns % 1000000000};
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, timeout_ns < 0 ? NULL : &t, NULL, 0);
}

static inline void ft_futex_wake(atomic_u32 *word, int count)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

/* Returns 1 where membarrier can stand in for the waker's fence. */
static inline int ft_register_membarrier(void)
{
    return syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0;
}

static inline int ft_process_barrier(void)
{
    return syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0;
}
#endif

#ifndef ORDER_IDLE_SLEEPER_FENCE
#define ORDER_IDLE_SLEEPER_FENCE seq_cst
#endif
#ifndef ORDER_IDLE_WAKER_FENCE
#define ORDER_IDLE_WAKER_FENCE seq_cst
#endif
#ifndef ORDER_IDLE_ANNOUNCE
#define ORDER_IDLE_ANNOUNCE release
#endif
#ifndef ORDER_IDLE_WAKE
#define ORDER_IDLE_WAKE acq_rel
#endif
#ifndef ORDER_IDLE_WOKEN
#define ORDER_IDLE_WOKEN acquire
#endif

enum { WORKER_AWAKE = 0, WORKER_ANNOUNCED = 1 };

typedef struct IdleWorker {
    atomic_u32 word; /* also the futex */
    char padding[FT_PAIR_OF_LINES - sizeof(atomic_u32)];
} IdleWorker;

typedef struct Idle {
    atomic_i32 num_announced;
    int32_t num_workers;
    int32_t has_membarrier;
    IdleWorker *workers;
    char padding[FT_PAIR_OF_LINES - sizeof(atomic_i32) - 2 * sizeof(int32_t) - sizeof(void *)];
} Idle;

/* The worker itself: announce that it will sleep. It then looks for work once more, and calls idle_cancel() or
 * idle_sleep(). */
static inline void idle_announce(Idle *idle, int32_t worker)
{
    /* The count first: a waker may take the worker out again as soon as its word says ANNOUNCED, and a count that
     * falls too low hides the other sleepers. A count that is too high costs a look at the words. */
    ft_add(&idle->num_announced, 1, relaxed);
    /* release: a waker that changes this word subtracts from a count that has this worker in it */
    ft_store(&idle->workers[worker].word, WORKER_ANNOUNCED, ORDER_IDLE_ANNOUNCE);
    /* Pairs with the fence in idle_anyone(). */
    ft_fence(ORDER_IDLE_SLEEPER_FENCE);
#if !defined(FORKTASK_RELACY)
    if (idle->has_membarrier)
        ft_process_barrier();
#endif
}

/* The worker itself, when it found work or gave up waiting: take the announcement back. */
static inline void idle_cancel(Idle *idle, int32_t worker)
{
    /* acquire: pairs with the release in idle_notify_worker() */
    if (ft_exchange(&idle->workers[worker].word, WORKER_AWAKE, ORDER_IDLE_WOKEN) == WORKER_ANNOUNCED)
        ft_sub(&idle->num_announced, 1, relaxed);
}

/* The worker itself: sleep until notified, or for timeout_ns if that is not negative. */
static inline void idle_sleep(Idle *idle, int32_t worker, int64_t timeout_ns)
{
    atomic_u32 *word = &idle->workers[worker].word;
    /* acquire: pairs with the release in idle_notify_worker() */
    while (ft_load(word, ORDER_IDLE_WOKEN) == WORKER_ANNOUNCED) {
        ft_futex_wait(word, WORKER_ANNOUNCED, timeout_ns);
        if (timeout_ns >= 0) {
            idle_cancel(idle, worker);
            return;
        }
    }
}

/* Any thread, after it published work. Return 1 if a worker may be asleep. */
static inline int idle_anyone(Idle *idle)
{
    /* Pairs with the fence, or the barrier on all threads, in idle_announce(). */
#if !defined(FORKTASK_RELACY)
    if (ft_likely(idle->has_membarrier))
        ft_compiler_fence();
    else
#endif
        ft_fence(ORDER_IDLE_WAKER_FENCE);
    return ft_unlikely(ft_load(&idle->num_announced, relaxed) > 0);
}

/* Any thread: wake a worker. Returns 1 if this call woke it. */
static inline int idle_notify_worker(Idle *idle, int32_t worker)
{
    atomic_u32 *word = &idle->workers[worker].word;
    uint32_t expected = WORKER_ANNOUNCED;
    if (ft_load(word, relaxed) != WORKER_ANNOUNCED) /* stale is safe: the fences order it after the announcement */
        return 0;
    /* release: pairs with the acquires of the sleeper; acquire: pairs with the release in idle_announce() */
    if (!ft_cas(word, &expected, WORKER_AWAKE, ORDER_IDLE_WAKE))
        return 0;
    ft_sub(&idle->num_announced, 1, relaxed);
    ft_futex_wake(word, 1);
    return 1;
}

/* Any thread, after it published work for one worker: wake one if any sleeps. */
static inline void idle_notify_one(Idle *idle)
{
    if (idle_anyone(idle))
        for (int32_t w = 0; w < idle->num_workers; w++)
            if (idle_notify_worker(idle, w))
                return;
}

/* Any thread, after it published the end or an error: wake all workers. */
static inline void idle_notify_all(Idle *idle)
{
    if (idle_anyone(idle))
        for (int32_t w = 0; w < idle->num_workers; w++)
            idle_notify_worker(idle, w);
}

#endif
