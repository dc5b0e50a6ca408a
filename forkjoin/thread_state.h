/* What a thread changes about itself while it runs blocks, and how it puts it back: affinity and FP control word.
 * Also the bounded-cost look for signals that every loop-by-loop executor uses.
 */
#ifndef FORKTASK_THREAD_STATE_H
#define FORKTASK_THREAD_STATE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <sched.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include "cython_src/kernels/interface/block_kernel.h"

#define FORKTASK_MAX_CPUS 8192

typedef struct ThreadState {
    unsigned long former_cpus[FORKTASK_MAX_CPUS / (8 * sizeof(unsigned long))];
    unsigned former_control;
    int pinned;
    int error; /* errno of a failed pinning, 0 when all is well */
} ThreadState;

/* Pin the calling thread to `cpu` (-1: leave it) and flush denormals. */
static inline void forktask_enter_thread(ThreadState *state, int cpu)
{
    state->pinned = 0;
    state->error = 0;
    state->former_control = forktask_flush_denormals();
    if (cpu >= 0) {
        unsigned long only[FORKTASK_MAX_CPUS / (8 * sizeof(unsigned long))];
        const size_t word = 8 * sizeof(unsigned long);
        memset(state->former_cpus, 0, sizeof state->former_cpus);
        memset(only, 0, sizeof only);
        only[(size_t)cpu / word] = 1UL << ((size_t)cpu % word);
        if (sched_getaffinity(0, sizeof only, (cpu_set_t *)state->former_cpus) < 0 ||
            sched_setaffinity(0, sizeof only, (const cpu_set_t *)only) != 0)
            state->error = errno;
        else
            state->pinned = 1;
    }
}

/* Undo forktask_enter_thread() on the same thread. */
static inline void forktask_leave_thread(ThreadState *state)
{
    forktask_restore_denormals(state->former_control);
    if (state->pinned)
        sched_setaffinity(0, sizeof state->former_cpus, (const cpu_set_t *)state->former_cpus);
    state->pinned = 0;
}

/* Signals are looked for on the thread that called run(), at most every 20 ms of time. The clock itself is read at
 * every loop when loops are long, at every eighth when they are short; the coarse clock costs some 5 ns. */
#define FORKTASK_POLL_NS      20000000
#define FORKTASK_LONG_LOOP_NS 2000000
#define FORKTASK_POLL_LOOPS   8

typedef struct SignalPoll {
    int (*check)(void *context); /* non-zero: stop; NULL: the caller is not the main thread, nothing to look for */
    void *context;
    int64_t last_look_ns, last_check_ns;
    int countdown;
} SignalPoll;

static inline int64_t forktask_coarse_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static inline void forktask_start_poll(SignalPoll *poll, int (*check)(void *), void *context, int enabled)
{
    poll->check = enabled ? check : NULL;
    poll->context = context;
    poll->last_look_ns = poll->last_check_ns = forktask_coarse_now_ns();
    poll->countdown = 1;
}

/* Non-zero when the run must stop. Calling thread only, without the GIL. */
static inline int forktask_must_stop(SignalPoll *poll)
{
    int64_t now;
    if (poll->check == NULL || --poll->countdown > 0)
        return 0;
    now = forktask_coarse_now_ns();
    poll->countdown = now - poll->last_look_ns > FORKTASK_LONG_LOOP_NS ? 1 : FORKTASK_POLL_LOOPS;
    poll->last_look_ns = now;
    if (now - poll->last_check_ns < FORKTASK_POLL_NS)
        return 0;
    poll->last_check_ns = now;
    return poll->check(poll->context);
}

#endif
