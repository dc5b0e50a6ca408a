/* Base of replayed and eager tasks: workers with a deque each, the search for work, and how a run ends. */
#ifndef FORKTASK_SCHEDULER_H
#define FORKTASK_SCHEDULER_H

#include <stdlib.h>
#include <string.h>

#include "cython_src/kernels/interface/block_kernel.h"
#include "deque.h"
#include "idle.h"
#if !defined(FORKTASK_RELACY)
#endif

/* Looks from one look at the clock to the next. */
#ifndef SCHEDULER_ROUNDS
#define SCHEDULER_ROUNDS 64
#endif

/* What two CPUs may have in common, from the widest on: socket, NUMA node, last-level cache, core; and distances. */
enum { PLACE_LEVELS = 4, DISTANCES = PLACE_LEVELS + 1 };

enum { RUN_GOES_ON = 0, RUN_DONE = 1, RUN_STOPPED = 2 };

typedef struct SchedulerWorker {
    Deque deque;
    WorkerState *state;
    uint64_t random;
    int64_t num_executed_own; /* copy of num_executed, owner only */
    char padding[FT_PAIR_OF_LINES];
    /* Written by the worker, read by the watchdog. */
    atomic_i64 num_executed; /* blocks finished in this run */
    atomic_i32 current;      /* node whose kernel runs, -1: none */
    char padding2[FT_PAIR_OF_LINES - sizeof(atomic_i64) - sizeof(atomic_i32)];
} SchedulerWorker;

typedef struct Scheduler {
    Idle idle;
    atomic_i32 ending; /* RUN_GOES_ON, then RUN_DONE or RUN_STOPPED once */
    char padding[FT_PAIR_OF_LINES - sizeof(atomic_i32)];
    SchedulerWorker *workers;
    int32_t *victims; /* shape (num_workers, num_workers - 1): of each worker all others, the nearest first */
    int32_t *ends;    /* shape (num_workers, DISTANCES): where the victims of each distance end */
    const LoopRecord *loops;
    int32_t num_workers;
    int64_t spin_ns; /* how long a worker looks for work before it sleeps */
#if !defined(FORKTASK_RELACY)
#endif
} Scheduler;

/* Any thread. The first reason to end stays. */
static inline void scheduler_end(Scheduler *s, int32_t reason)
{
    int32_t expected = RUN_GOES_ON;
    /* release: pairs with the acquire in scheduler_ended() */
    ft_cas(&s->ending, &expected, reason, acq_rel);
    idle_notify_all(&s->idle);
}

/* Any thread. */
static inline int scheduler_ended(Scheduler *s)
{
    return ft_load(&s->ending, acquire) != RUN_GOES_ON; /* pairs with the release in scheduler_end() */
}

/* Owner thread only: run one block. Returns the kernel's status; on failure the run is told to stop. */
static inline int scheduler_run_block(Scheduler *s, SchedulerWorker *me, const LoopRecord *loop, int32_t block,
                                      int64_t replay, int32_t node)
{
    ft_store(&me->current, node, relaxed);
    int status = run_block(loop, block, replay, me->state);
    ft_store(&me->current, -1, relaxed);
    ft_store(&me->num_executed, ++me->num_executed_own, relaxed);
    if (ft_unlikely(status != 0))
        scheduler_end(s, RUN_STOPPED);
    return status;
}

static inline uint64_t scheduler_random(SchedulerWorker *me)
{
    uint64_t x = me->random; /* xorshift64 */
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return me->random = x;
}

/* Owner thread only: one attempt on every other deque, the nearest first, and among those of one distance from a random
 * one on. DEQUE_EMPTY only if all were empty. */
static inline int32_t scheduler_steal(Scheduler *s, int32_t worker)
{
    const int32_t *victims = s->victims + (int64_t)worker * (s->num_workers - 1), *ends = s->ends + worker * DISTANCES;
    int32_t result = DEQUE_EMPTY;
    for (int32_t distance = 0, begin = 0; begin < s->num_workers - 1; begin = ends[distance++]) {
        int32_t n = ends[distance] - begin, first = 0;
        if (n > 1)
            first = (int32_t)((uint32_t)(scheduler_random(&s->workers[worker]) >> 33) % (uint32_t)n);
        for (int32_t i = 0; i < n; i++) {
            Deque *deque = &s->workers[victims[begin + (first + i < n ? first + i : first + i - n)]].deque;
            int32_t node = deque_steal(deque);
            if (node >= 0) {
                /* There is more: pass the wake-up on, for this worker may be the one that was woken for that entry. */
                if (deque_size_hint(deque) > 0)
                    idle_notify_one(&s->idle);
                return node;
            }
            if (node == DEQUE_LOST_RACE)
                result = DEQUE_LOST_RACE;
        }
    }
    return result;
}

/* Owner thread only: if `node` would wait for the lock of a commutative access, push it and take another ready node,
 * the worker's own oldest or another worker's, to run first. Returns that one, or `node` if there is none. */
static inline int32_t scheduler_run_first(Scheduler *s, SchedulerWorker *me, const LoopRecord *loop, int32_t block,
                                          int32_t node)
{
    if (ft_likely(!forktask_locks_held(loop, block)))
        return node;
    /* Now and then from another deque first: the own one may hold nothing but tasks of the same lock. */
    int32_t other = scheduler_random(me) % 4 != 0 ? deque_steal(&me->deque) : DEQUE_EMPTY;
    if (other < 0)
        other = scheduler_steal(s, (int32_t)(me - s->workers));
    if (other < 0)
        return node;
    deque_push(&me->deque, node); /* wakes nobody: a free worker would wait for the lock too */
    return other;
}

/* Owner thread only, after idle_announce(): sleep, and log it. */
static inline void scheduler_sleep(Scheduler *s, int32_t worker, int64_t timeout_ns)
{
    EventLog *log = &s->workers[worker].state->log;
    int64_t start = forktask_begin_wait(log);
    idle_sleep(&s->idle, worker, timeout_ns);
    forktask_end_sleep(log, start);
}

/* Owner thread only: scheduler_find_work() without the event log. */
static int32_t scheduler_look_for_work(Scheduler *s, int32_t worker)
{
    int64_t start = 0;
    for (int round = 1;; round++) {
        if (scheduler_ended(s))
            return DEQUE_EMPTY;
        int32_t node = scheduler_steal(s, worker);
        if (node >= 0)
            return node;
        ft_pause();
        if (round % SCHEDULER_ROUNDS != 0)
            continue;
        int64_t now = forktask_now_ns();
        if (start == 0) {
            start = now;
        } else if (now - start > s->spin_ns) {
            idle_announce(&s->idle, worker);
            do
                node = scheduler_steal(s, worker); /* a lost race is no proof of emptiness: look again */
            while (node == DEQUE_LOST_RACE);
            if (node >= 0 || scheduler_ended(s)) {
                idle_cancel(&s->idle, worker);
                return node >= 0 ? node : DEQUE_EMPTY;
            }
            scheduler_sleep(s, worker, -1);
            start = 0;
        }
    }
}

/* Owner thread only, with an empty deque: steal, spin, sleep. Returns a node, or DEQUE_EMPTY when the run has ended. */
static int32_t scheduler_find_work(Scheduler *s, int32_t worker)
{
    EventLog *log = &s->workers[worker].state->log;
    int64_t start = forktask_begin_wait(log);
    int32_t node = scheduler_look_for_work(s, worker);
    forktask_end_wait(log, start);
    return node;
}

/* Prepare a run, while the workers rest. */
static void scheduler_reset(Scheduler *s)
{
    ft_store(&s->ending, RUN_GOES_ON, relaxed);
    for (int32_t w = 0; w < s->num_workers; w++) {
        SchedulerWorker *worker = &s->workers[w];
        deque_reset(&worker->deque);
        worker->num_executed_own = 0;
        ft_store(&worker->num_executed, 0, relaxed);
        ft_store(&worker->current, -1, relaxed);
        ft_store(&s->idle.workers[w].word, WORKER_AWAKE, relaxed);
    }
    ft_store(&s->idle.num_announced, 0, relaxed);
}

static void scheduler_close(Scheduler *s)
{
    if (s->workers != NULL)
        for (int32_t w = 0; w < s->num_workers; w++)
            free(s->workers[w].deque.slots);
    free(s->workers);
    free(s->idle.workers);
    free(s->victims);
    free(s->ends);
    memset(s, 0, sizeof(*s));
}

static void *forktask_aligned_zeros(size_t size)
{
    void *memory = NULL;
    size = (size + FT_PAIR_OF_LINES - 1) / FT_PAIR_OF_LINES * FT_PAIR_OF_LINES;
    if (posix_memalign(&memory, FT_PAIR_OF_LINES, size > 0 ? size : FT_PAIR_OF_LINES) != 0)
        return NULL;
    memset(memory, 0, size);
    return memory;
}

/* Fill the table of victims. places: shape (num_workers, PLACE_LEVELS), the socket, node, cache and core of each worker,
 * or NULL: all are equally far. */
static void scheduler_list_victims(Scheduler *s, const int32_t *places)
{
    const int32_t n = s->num_workers;
    int32_t *victim = s->victims, *end = s->ends;
    for (int32_t w = 0; w < n; w++) {
        int32_t *first = victim;
        for (int32_t in_common = PLACE_LEVELS; in_common >= 0; in_common--) {
            for (int32_t v = 0; v < n; v++) {
                int32_t level = 0;
                while (level < PLACE_LEVELS &&
                       (places == NULL || places[v * PLACE_LEVELS + level] == places[w * PLACE_LEVELS + level]))
                    level++;
                if (v != w && level == in_common)
                    *victim++ = v;
            }
            *end++ = (int32_t)(victim - first);
        }
    }
}

/* Order the victims of all workers by distance, places as above. Returns 0 or -1 (out of memory). */
static int scheduler_order_victims(Scheduler *s, const int32_t *places)
{
    const size_t n = (size_t)s->num_workers;
    s->victims = malloc((n * n + 1) * sizeof(int32_t));
    s->ends = malloc(n * DISTANCES * sizeof(int32_t));
    if (s->victims == NULL || s->ends == NULL)
        return -1;
    scheduler_list_victims(s, places);
    return 0;
}

/* deque_capacity: entries that may be queued at once. Returns 0 or -1 (out of memory). */
static int scheduler_open(Scheduler *s, int32_t num_workers, const LoopRecord *loops, WorkerState *states,
                          int64_t deque_capacity, int64_t spin_ns)
{
    int64_t capacity = 4;
    memset(s, 0, sizeof(*s));
    while (capacity < deque_capacity)
        capacity *= 2;
    s->num_workers = num_workers;
    s->loops = loops;
    s->spin_ns = spin_ns;
    s->workers = forktask_aligned_zeros((size_t)num_workers * sizeof(SchedulerWorker));
    s->idle.workers = forktask_aligned_zeros((size_t)num_workers * sizeof(IdleWorker));
    s->idle.num_workers = num_workers;
    s->idle.has_membarrier = ft_register_membarrier();
    if (s->workers == NULL || s->idle.workers == NULL) {
        scheduler_close(s);
        return -1;
    }
    for (int32_t w = 0; w < num_workers; w++) {
        SchedulerWorker *worker = &s->workers[w];
        worker->deque.mask = capacity - 1;
        /* Not touched here: pages that are never used cost nothing, and the worker touches the others first. */
        worker->deque.slots = malloc((size_t)capacity * sizeof(atomic_i32));
        worker->state = &states[w];
        worker->random = 0x9E3779B97F4A7C15ull * (uint64_t)(w + 1);
        if (worker->deque.slots == NULL) {
            scheduler_close(s);
            return -1;
        }
    }
    return 0;
}

#endif
