/* Replay of a recorded graph compiled into one program per worker (placement "partitioned").
 *
 * Every task has a home: the worker in whose program it stands. The programs are cuts of one topological order, so the
 * first task of that order that has not run can always run: there is no deadlock. A worker runs its program in
 * order, once an iteration, and publishes how far it is in one counter, `progress`. A dependence within a program needs
 * nothing; one between programs is "worker x has come to position q", and most of those are implied by what was waited
 * for before (vector clocks find out) or answered by the last value seen.
 *
 * A worker that would wait may claim a ready task of any program, its own included:
 *
 *     UNCLAIMED --compare-and-swap of `claimed` to iteration + 1 (home or helper)--> RUNNING --> done
 *
 * The home passes a task that was claimed from it once `done` says so. Claims cost a compare-and-swap a task, so each
 * home offers iterations to claims ("open") only while its tasks are long enough: the one that it begins and some more, so
 * that a home that is preempted, or busy with a long task, does not hold up what does not depend on it.
 *
 * Who writes: `progress`, `open_until`, `wait_*`: the worker itself. `claimed`: whoever wins the swap. `done`: a helper
 * that has run the task. A home that runs its own task needs no `done`: its progress says it.
 */
#ifndef FORKTASK_PARTITION_H
#define FORKTASK_PARTITION_H

#if !defined(FORKTASK_RELACY)
#include "placement.h"
#endif
#include "scheduler.h"

#ifndef ORDER_PARTITION_PUBLISH
#define ORDER_PARTITION_PUBLISH release
#endif
#ifndef ORDER_PARTITION_SEE
#define ORDER_PARTITION_SEE acquire
#endif
#ifndef ORDER_PARTITION_DONE
#define ORDER_PARTITION_DONE release
#endif
#ifndef ORDER_PARTITION_CLAIM
#define ORDER_PARTITION_CLAIM relaxed
#endif
#ifndef ORDER_PARTITION_OPEN
#define ORDER_PARTITION_OPEN release
#endif
#ifndef ORDER_PARTITION_SEE_OPEN
#define ORDER_PARTITION_SEE_OPEN acquire
#endif

/* Entries of a program that a helper looks at, from the first unclaimed one on. Looking further costs more than it finds: with
 * 1024 a stencil of 13 us tasks, one of two cores shared with another process, took 5 % longer. */
#define PARTITION_WINDOW 256
/* Entries beyond its iteration that a home opens: enough to keep others busy for a time slice of the system. */
#ifndef PARTITION_AHEAD
#define PARTITION_AHEAD 16384
#endif
/* Tasks shorter than this are not worth a claim. */
#ifndef PARTITION_CLAIM_NS
#define PARTITION_CLAIM_NS 150
#endif
/* From this length on a task is worth a system call: each one that finishes wakes a sleeper to look for tasks to claim. */
#define PARTITION_WAKE_NS 10000
/* Entries between two looks at the clock. */
#ifndef PARTITION_LOOK
#define PARTITION_LOOK 2048
#endif
/* 0: sleep until woken. For tests: a worker that is not woken then sleeps for ever. */
#ifndef PARTITION_NAPS
#define PARTITION_NAPS 1
#endif
/* Looks of a waiting worker without a pause in between, some 100 ns: an answer that is on its way arrives within these, and a pause
 * takes as long as a line needs from core to core. Then rounds with pauses before helping. */
#ifndef PARTITION_LOOKS
#define PARTITION_LOOKS 64
#endif
#ifndef PARTITION_PATIENCE
#define PARTITION_PATIENCE 24
#endif
/* Rounds from one search for something to claim to the next. */
#ifndef PARTITION_ROUNDS
#define PARTITION_ROUNDS 8
#endif

typedef struct ProgramEntry {
    int32_t task;
    int32_t loop;
    int32_t is_awaited; /* another program waits for it, or it is the last: its end is published at once */
    int32_t wait_begin; /* waits up to the next entry's wait_begin */
} ProgramEntry;

/* Worker `worker` must have come to iteration * its length + relative. */
typedef struct ProgramWait {
    int32_t worker;
    int32_t relative; /* 0 or less: a position of the former iteration */
} ProgramWait;

typedef struct ClaimWord {
    atomic_i32 claimed; /* iterations for which the entry has been claimed */
    atomic_i32 done;    /* last iteration + 1 that a helper has finished */
} ClaimWord;

typedef struct PartitionWorker {
    atomic_i64 progress;       /* entries finished in this run: iteration * length + position */
    atomic_i32 open_until;     /* helpers may claim in iterations before this one; never falls in a run */
    char padding[FT_PAIR_OF_LINES - sizeof(atomic_i64) - sizeof(atomic_i32)]; /* polled by others, apart from the rest */
    atomic_i64 wait_value;     /* what the worker sleeps for, valid while it is announced: see partition_satisfied() */
    atomic_i32 wait_on;
    int32_t is_open;           /* owner only, like all that follows; kept between runs: tasks are worth a claim, */
    int32_t wakes_helpers;     /* and a wake-up */
    int32_t passes;
    int64_t look_ns;
    int64_t *seen;             /* newest progress seen of each worker */
    int64_t *all_claimed;      /* of each program: helping, I saw everything claimed between its progress and here */
    char padding2[FT_PAIR_OF_LINES - sizeof(atomic_i64) - sizeof(atomic_i32) - 3 * sizeof(int32_t) - sizeof(int64_t)
                  - 2 * sizeof(void *)];
} PartitionWorker;

typedef struct Partition {
    Scheduler scheduler; /* its deques stay empty */
    PartitionWorker *workers;
    ProgramEntry *entries;   /* all programs one after the other, and a sentinel */
    int32_t *first;          /* shape (num_workers + 1,): where each program begins */
    ProgramWait *waits;
    ClaimWord *claims;       /* one an entry */
    int32_t *predecessor_offsets; /* of entries, then of joins */
    int32_t *predecessors;   /* 2 * (entry, or num_tasks + join) + token */
    int64_t *seen, *all_claimed;
    int32_t num_tasks, num_nodes;
    int32_t num_iterations;
    int64_t first_replay;
} Partition;

static inline int64_t partition_length(const Partition *p, int32_t worker)
{
    return p->first[worker + 1] - p->first[worker];
}

/* Owner thread only: is what it waits for true? on >= 0: worker `on` has come to `value`; else: a helper has finished entry ~on
 * in iteration value - 1. */
static inline int partition_satisfied(Partition *p, int32_t worker, int32_t on, int64_t value)
{
    if (on < 0)
        return ft_load(&p->claims[~on].done, ORDER_PARTITION_SEE) >= value; /* pairs with the release in partition_help() */
    /* acquire: pairs with the release in partition_work() */
    int64_t progress = ft_load(&p->workers[on].progress, ORDER_PARTITION_SEE);
    p->workers[worker].seen[on] = progress;
    return progress >= value;
}

/* Any thread, after it published `value` on `on`: wake who sleeps for that. */
static inline void partition_wake(Partition *p, int32_t on, int64_t value)
{
    Idle *idle = &p->scheduler.idle;
    if (!idle_anyone(idle))
        return;
    for (int32_t w = 0; w < idle->num_workers; w++)
        /* acquire: pairs with the release in idle_announce(): what it waits for is the latest */
        if (ft_load(&idle->workers[w].word, acquire) == WORKER_ANNOUNCED
            && ft_load(&p->workers[w].wait_on, relaxed) == on
            && ft_load(&p->workers[w].wait_value, relaxed) <= value)
            idle_notify_worker(idle, w);
}

/* Any thread: has an entry finished in `iteration`? Once true it stays true, and what it wrote is visible. */
static inline int partition_has_finished(Partition *p, int32_t number, int64_t iteration)
{
    int32_t home = 0;
    while (p->first[home + 1] <= number)
        home++;
    /* acquire: pairs with the release in partition_work() */
    return ft_load(&p->workers[home].progress, ORDER_PARTITION_SEE)
               > iteration * partition_length(p, home) + number - p->first[home]
           /* acquire: pairs with the release in partition_help() */
           || ft_load(&p->claims[number].done, ORDER_PARTITION_SEE) > iteration;
}

/* Any thread: have all predecessors of a node finished, for its instance in `iteration`? Once true it stays true. */
static int partition_is_ready(Partition *p, int32_t node, int64_t iteration)
{
    for (int32_t i = p->predecessor_offsets[node]; i < p->predecessor_offsets[node + 1]; i++) {
        int32_t before = p->predecessors[i] >> 1;
        int64_t instance = iteration - (p->predecessors[i] & 1);
        if (instance < 0)
            continue;
        if (before >= p->num_tasks ? !partition_is_ready(p, before, instance)
                                   : !partition_has_finished(p, before, instance))
            return 0;
    }
    return 1;
}

/* Owner thread only: claim one ready task somewhere and run it. 1: ran one; 0: found none; -1: the run must end. */
static int partition_help(Partition *p, int32_t worker)
{
    Scheduler *s = &p->scheduler;
    for (int32_t i = 0; i < s->num_workers; i++) {
        int32_t victim = worker + i < s->num_workers ? worker + i : worker + i - s->num_workers;
        int64_t length = partition_length(p, victim), *begin = &p->workers[worker].all_claimed[victim];
        /* acquire: the progress seen next is at least that of the opening, and from there to `open_until` the victim claims
         * its own tasks by compare-and-swap */
        int64_t end = ft_load(&p->workers[victim].open_until, ORDER_PARTITION_SEE_OPEN) * length;
        int64_t passed = ft_load(&p->workers[victim].progress, relaxed); /* an old value makes the search start too early */
        *begin = *begin > passed ? *begin : passed;
        end = *begin + PARTITION_WINDOW < end ? *begin + PARTITION_WINDOW : end;
        for (int64_t position = *begin; position < end; position++) {
            int64_t iteration = position / length;
            int32_t number = p->first[victim] + (int32_t)(position - iteration * length);
            ClaimWord *claim = &p->claims[number];
            int32_t claimed = ft_load(&claim->claimed, relaxed); /* the swap decides */
            if (claimed > iteration) {
                *begin += position == *begin;
                continue;
            }
            /* Instances of a task are claimed in order: `claimed` and `done` only grow, and skip none. The first test is
             * a short cut: ahead of the victim's iteration, an unclaimed instance has not finished. */
            if ((claimed < iteration && position - passed >= length)
                || (iteration > 0 && !partition_has_finished(p, number, iteration - 1))
                || !partition_is_ready(p, number, iteration))
                continue;
            const ProgramEntry *entry = &p->entries[number];
            const LoopRecord *loop = &s->loops[entry->loop];
            if (forktask_locks_held(loop, entry->task - loop->first_task)
                || !ft_cas(&claim->claimed, &claimed, (int32_t)iteration + 1, ORDER_PARTITION_CLAIM))
                continue;
            if (scheduler_run_block(s, &s->workers[worker], loop, entry->task - loop->first_task,
                                    p->first_replay + iteration, entry->task) != 0)
                return -1;
            /* release: pairs with the acquires in partition_satisfied() and partition_is_ready() */
            ft_store(&claim->done, (int32_t)iteration + 1, ORDER_PARTITION_DONE);
            partition_wake(p, ~number, iteration + 1);
            return 1;
        }
    }
    return 0;
}

/* Owner thread only: wait until satisfied; help, spin, sleep meanwhile. Returns 0 if the run must end. */
static int partition_wait(Partition *p, int32_t worker, int32_t on, int64_t value)
{
    Scheduler *s = &p->scheduler;
    PartitionWorker *me = &p->workers[worker];
    int64_t start = 0, nap_ns = 2 * s->spin_ns;
    for (int look = 0; look < PARTITION_LOOKS; look++)
        if (partition_satisfied(p, worker, on, value))
            return 1;
    ft_store(&s->workers[worker].current, -1, relaxed);
    for (int round = 1;; round++) {
        if (partition_satisfied(p, worker, on, value))
            return 1;
        if (ft_load(&s->ending, relaxed) != RUN_GOES_ON)
            return 0;
        ft_pause();
        if (round < PARTITION_PATIENCE || round % PARTITION_ROUNDS != 0)
            continue;
        int helped = partition_help(p, worker);
        if (helped < 0)
            return 0;
        if (helped > 0) {
            start = 0;
            nap_ns = 2 * s->spin_ns;
            continue;
        }
        int64_t now = forktask_now_ns();
        /* Not if nobody may claim from its program: then all would wait for this worker instead. */
        if (me->is_open && scheduler_swap_places(s, worker, on >= 0 ? on : worker + 1, now))
            continue;
        if (start == 0) {
            start = now;
        } else if (now - start > s->spin_ns) {
            ft_store(&me->wait_on, on, relaxed); /* published by the release in idle_announce() */
            ft_store(&me->wait_value, value, relaxed);
            idle_announce(&s->idle, worker);
            if (partition_satisfied(p, worker, on, value) || scheduler_ended(s)) {
                idle_cancel(&s->idle, worker);
                continue;
            }
            /* Whoever publishes what is waited for wakes this worker. Tasks to claim wake nobody: look for them from time to
             * time, ever more seldom. */
            idle_sleep(&s->idle, worker, PARTITION_NAPS ? nap_ns : -1);
            nap_ns = nap_ns < 5000000 ? 2 * nap_ns : nap_ns;
            start = now - s->spin_ns - 1; /* after a nap, one look before the next */
        }
    }
}

/* Job of each worker. */
static void partition_work(void *argument, int32_t worker)
{
    Partition *p = argument;
    Scheduler *s = &p->scheduler;
    SchedulerWorker *runner = &s->workers[worker];
    PartitionWorker *me = &p->workers[worker];
    const ProgramEntry *program = p->entries + p->first[worker];
    ClaimWord *claims = p->claims + p->first[worker];
    int64_t length = partition_length(p, worker), num_iterations = p->num_iterations, open_until = 0;
    int32_t passes_per_look = length > 0 ? (int32_t)(PARTITION_LOOK / length) + 1 : 1;
    me->look_ns = forktask_now_ns();
    me->passes = 0;
    for (int64_t iteration = 0; iteration < num_iterations && length > 0; iteration++) {
        if (me->is_open) {
            open_until = iteration + 1 + PARTITION_AHEAD / length;
            open_until = open_until < num_iterations ? open_until : num_iterations;
            ft_store(&me->open_until, (int32_t)open_until, ORDER_PARTITION_OPEN); /* pairs with the acquire in partition_help() */
        }
        int is_open = iteration < open_until; /* what was opened stays open */
        for (int64_t position = 0; position < length; position++) {
            const ProgramEntry *entry = &program[position];
            for (int32_t i = entry->wait_begin; i < entry[1].wait_begin; i++) {
                int32_t other = p->waits[i].worker;
                int64_t value = iteration * partition_length(p, other) + p->waits[i].relative;
                if (me->seen[other] < value && !partition_wait(p, worker, other, value))
                    return;
            }
            if (ft_unlikely(ft_load(&s->ending, relaxed) != RUN_GOES_ON))
                return;
            int mine = 1;
            if (is_open) {
                /* A commutative task would wait for its lock here: others first, while there are some. */
                const LoopRecord *held = &s->loops[entry->loop];
                while (forktask_locks_held(held, entry->task - held->first_task)) {
                    int helped = partition_help(p, worker);
                    if (helped < 0)
                        return;
                    if (helped == 0)
                        break;
                }
                int32_t claimed = ft_load(&claims[position].claimed, relaxed); /* the swap decides */
                mine = claimed <= iteration
                       && ft_cas(&claims[position].claimed, &claimed, (int32_t)iteration + 1, ORDER_PARTITION_CLAIM);
            }
            if (ft_likely(mine)) {
                const LoopRecord *loop = &s->loops[entry->loop];
                ft_store(&runner->current, entry->task, relaxed);
                runner->num_executed_own++; /* what the watchdog reads is stored once an iteration */
                if (ft_unlikely(run_block(loop, entry->task - loop->first_task, p->first_replay + iteration,
                                          runner->state) != 0)) {
                    scheduler_end(s, RUN_STOPPED);
                    return;
                }
            } else if (!partition_satisfied(p, worker, ~(p->first[worker] + (int32_t)position), iteration + 1)
                       && !partition_wait(p, worker, ~(p->first[worker] + (int32_t)position), iteration + 1)) {
                return;
            }
            if (!(is_open | entry->is_awaited))
                continue;
            /* release: pairs with the acquires in partition_satisfied() and partition_is_ready() */
            ft_store(&me->progress, iteration * length + position + 1, ORDER_PARTITION_PUBLISH);
            partition_wake(p, worker, iteration * length + position + 1);
            if (me->wakes_helpers)
                idle_notify_one(&s->idle);
        }
        ft_store(&runner->num_executed, runner->num_executed_own, relaxed);
        if (++me->passes == passes_per_look) { /* for the next iterations, or the next run */
            int64_t now = forktask_now_ns();
            me->is_open = now - me->look_ns > PARTITION_CLAIM_NS * length * me->passes;
            me->wakes_helpers = now - me->look_ns > PARTITION_WAKE_NS * length * me->passes;
            me->look_ns = now;
            me->passes = 0;
        }
    }
    ft_store(&runner->current, -1, relaxed);
    /* Help the others until all is done. */
    for (int32_t other = 0; other < s->num_workers; other++) {
        int64_t value = num_iterations * partition_length(p, other);
        if (me->seen[other] < value && other != worker && !partition_wait(p, worker, other, value))
            return;
    }
}

/* Before a run, while the workers rest. */
static void partition_reset(Partition *p, int64_t first_replay, int32_t num_iterations)
{
    scheduler_reset(&p->scheduler);
    p->first_replay = first_replay;
    p->num_iterations = num_iterations;
    int was_open = 0;
    for (int32_t w = 0; w < p->scheduler.num_workers; w++) {
        was_open |= ft_load(&p->workers[w].open_until, relaxed) > 0;
        ft_store(&p->workers[w].progress, 0, relaxed);
        ft_store(&p->workers[w].open_until, 0, relaxed);
    }
    memset(p->seen, 0, (size_t)p->scheduler.num_workers * (size_t)p->scheduler.num_workers * sizeof(int64_t));
    memset(p->all_claimed, 0, (size_t)p->scheduler.num_workers * (size_t)p->scheduler.num_workers * sizeof(int64_t));
    if (was_open)
        memset((void *)p->claims, 0, (size_t)p->num_tasks * sizeof(ClaimWord));
}

static void partition_close(Partition *p)
{
    scheduler_close(&p->scheduler);
    free(p->workers);
    free(p->entries);
    free(p->first);
    free(p->waits);
    free(p->claims);
    free(p->predecessor_offsets);
    free(p->predecessors);
    free(p->seen);
    free(p->all_claimed);
    memset(p, 0, sizeof(*p));
}

#if !defined(FORKTASK_RELACY) /* the model checker compiles C++ and brings its own programs */
/* ------------------------------------------------------------------------------------------------ compilation */

/* A worker of the simulated run that gives tasks their order: a stack of ready tasks, newest on top; with priorities a
 * heap, highest first. */
typedef struct SimulatedWorker {
    int32_t *stack;
    int64_t bottom, top, capacity;
    double finish; /* of the running task */
    int32_t running; /* -1: idle */
} SimulatedWorker;

typedef struct Simulation {
    SimulatedWorker *workers;
    int32_t num_workers, num_tasks;
    const int32_t *offsets, *split, *successors;
    int32_t *pending, *home;
    const double *priority;  /* NULL: newest first */
    const int32_t *affinity; /* of each task: worker, -1: any; or NULL */
    int failed;
} Simulation;

static void simulation_push(Simulation *m, int32_t task)
{
    SimulatedWorker *w = &m->workers[m->home[task]];
    if (w->top == w->capacity) {
        int64_t capacity = 2 * w->capacity + 64;
        int32_t *grown = realloc(w->stack, (size_t)capacity * sizeof(int32_t));
        if (grown == NULL) {
            m->failed = 1;
            return;
        }
        w->stack = grown;
        w->capacity = capacity;
    }
    int64_t place = w->top++;
    for (int64_t above; m->priority != NULL && place > 0; place = above) {
        above = (place - 1) / 2;
        if (m->priority[w->stack[above]] >= m->priority[task])
            break;
        w->stack[place] = w->stack[above];
    }
    w->stack[place] = task;
}

/* The newest or the oldest ready task of a worker; with priorities the one with the highest. */
static int32_t simulation_take(Simulation *m, SimulatedWorker *w, int oldest)
{
    if (m->priority == NULL)
        return oldest ? w->stack[w->bottom++] : w->stack[--w->top];
    int32_t best = w->stack[0], last = w->stack[--w->top];
    int64_t place = 0, below;
    while ((below = 2 * place + 1) < w->top) {
        below += below + 1 < w->top && m->priority[w->stack[below + 1]] > m->priority[w->stack[below]];
        if (m->priority[last] >= m->priority[w->stack[below]])
            break;
        w->stack[place] = w->stack[below];
        place = below;
    }
    w->stack[place] = last;
    return best;
}

/* May another worker than its home take the task that simulation_take() would give it? */
static inline int simulation_may_move(const Simulation *m, const SimulatedWorker *from)
{
    return m->affinity == NULL || m->affinity[from->stack[from->bottom]] < 0; /* a heap's bottom stays 0 */
}

/* Successors in reverse, so that the first comes on top. */
static void simulation_release(Simulation *m, int32_t node)
{
    for (int32_t i = m->split[node] - 1; i >= m->offsets[node]; i--) {
        int32_t s = m->successors[i];
        if (--m->pending[s] > 0)
            continue;
        if (s >= m->num_tasks)
            simulation_release(m, s);
        else
            simulation_push(m, s);
    }
}

/* Give each task a home, the one it asks for if it does: the blocks of a loop go in contiguous parts of equal cost to the workers, so that loops cut
 * alike keep their data in place; loops with fewer blocks than workers follow their data where the load allows. */
static void partition_homes(const LoopRecord *loops, int32_t num_loops, int32_t num_workers, const double *cost,
                            const int32_t *predecessor_offsets, const int32_t *predecessors, const int32_t *affinity,
                            int32_t *home, double *load)
{
    for (int32_t l = 0; l < num_loops; l++) {
        double total = 0, before = 0;
        int32_t first = loops[l].first_task, n = loops[l].num_blocks;
        for (int32_t b = 0; b < n; b++)
            total += cost[first + b];
        for (int32_t b = 0; b < n; b++) {
            int32_t task = first + b, w;
            if (affinity != NULL && affinity[task] >= 0) {
                w = affinity[task] % num_workers;
            } else if (n >= num_workers) {
                w = (int32_t)((before + cost[task] / 2) / total * num_workers);
                w = w < num_workers ? w : num_workers - 1;
            } else {
                int32_t least = 0, near = -1;
                for (w = 1; w < num_workers; w++)
                    if (load[w] < load[least])
                        least = w;
                for (int32_t i = predecessor_offsets[task]; i < predecessor_offsets[task + 1] && near < 0; i++)
                    if (predecessors[i] >> 1 < task && (predecessors[i] & 1) == 0)
                        near = home[predecessors[i] >> 1];
                w = near >= 0 && load[near] - load[least] < cost[task] ? near : least;
            }
            before += cost[task];
            home[task] = w;
            load[w] += cost[task];
        }
    }
}

/* Simulate one iteration: each worker runs its newest ready task (depth first: data stay in its cache), one that has none takes
 * the oldest of the worker with the most ready, and becomes its home. With priorities both take the highest. order[0 ... num_tasks - 1]: tasks as they start.
 * Returns 0, or -1 out of memory. */
static int partition_order(Simulation *m, const double *cost, const int32_t *num_intra, int32_t num_nodes,
                           int32_t *order)
{
    double now = 0;
    int32_t started = 0;
    memcpy(m->pending, num_intra, (size_t)num_nodes * sizeof(int32_t));
    for (int32_t v = m->num_tasks; v < num_nodes; v++)
        if (num_intra[v] == 0)
            for (int32_t i = m->offsets[v]; i < m->split[v]; i++)
                m->pending[m->successors[i]]--;
    for (int32_t v = m->num_tasks - 1; v >= 0; v--)
        if (m->pending[v] == 0)
            simulation_push(m, v);
    while (started < m->num_tasks && !m->failed) {
        for (int32_t w = 0; w < m->num_workers; w++) {
            SimulatedWorker *worker = &m->workers[w], *from = worker;
            if (worker->running >= 0)
                continue;
            if (worker->top == worker->bottom)
                for (int32_t v = 0; v < m->num_workers; v++)
                    if (m->workers[v].top - m->workers[v].bottom > from->top - from->bottom + 1
                        && simulation_may_move(m, &m->workers[v]))
                        from = &m->workers[v];
            if (from->top == from->bottom)
                continue;
            int32_t task = simulation_take(m, from, from != worker);
            m->home[task] = w;
            worker->running = task;
            worker->finish = now + cost[task];
            order[started++] = task;
        }
        SimulatedWorker *next = NULL;
        for (int32_t w = 0; w < m->num_workers; w++)
            if (m->workers[w].running >= 0 && (next == NULL || m->workers[w].finish < next->finish))
                next = &m->workers[w];
        if (next == NULL)
            return -2; /* a cycle without token: no plan gives one */
        now = next->finish;
        int32_t finished = next->running;
        next->running = -1;
        simulation_release(m, finished);
    }
    return m->failed ? -1 : 0;
}

/* Compile a closed graph. cost: of each task, any unit, positive. priority: which ready task first; NULL: the newest.
 * affinity: worker that a task should have as home, -1: any; NULL: none. Returns 0, -1 (out of memory), -2 (no topological order). */
static int partition_open(Partition *p, int32_t num_workers, const LoopRecord *loops, int32_t num_loops,
                          WorkerState *states, int64_t spin_ns, int32_t num_tasks, int32_t num_nodes,
                          const int32_t *successor_offsets, const int32_t *successor_split, const int32_t *successors,
                          const int32_t *num_intra, const int32_t *task_loop, const double *cost,
                          const double *priority, const int32_t *affinity)
{
    int32_t num_edges = successor_offsets[num_nodes], num_joins = num_nodes - num_tasks;
    int64_t num_waits = 0, wait_capacity = 1024;
    int result = -1;
    Simulation m = {0};
    const size_t P = (size_t)num_workers;
    int32_t *home = malloc((size_t)num_nodes * sizeof(int32_t) + 4);
    int32_t *place = malloc((size_t)num_nodes * sizeof(int32_t) + 4); /* task -> entry */
    int32_t *order = malloc((size_t)num_nodes * sizeof(int32_t) + 4);
    int32_t *fill = malloc(((size_t)num_nodes + P + 1) * sizeof(int32_t));
    int32_t *by_task_offsets = calloc((size_t)num_nodes + 2, sizeof(int32_t));
    int32_t *by_task = malloc((size_t)num_edges * sizeof(int32_t) + 4);
    /* What is known to be finished after each entry and after each join's predecessors, for each worker. */
    int32_t *clock = malloc((size_t)num_nodes * P * sizeof(int32_t) + 4);
    int32_t *need = malloc(P * sizeof(int32_t));
    double *load = calloc(P, sizeof(double));
    memset(p, 0, sizeof(*p));
    p->num_tasks = num_tasks;
    p->num_nodes = num_nodes;
    p->workers = forktask_aligned_zeros(P * sizeof(PartitionWorker));
    p->entries = forktask_aligned_zeros(((size_t)num_tasks + 1) * sizeof(ProgramEntry));
    p->claims = forktask_aligned_zeros((size_t)num_tasks * sizeof(ClaimWord));
    p->first = calloc(P + 1, sizeof(int32_t));
    p->seen = forktask_aligned_zeros(P * P * sizeof(int64_t));
    p->all_claimed = forktask_aligned_zeros(P * P * sizeof(int64_t));
    p->waits = malloc((size_t)wait_capacity * sizeof(ProgramWait));
    p->predecessor_offsets = calloc((size_t)num_nodes + 1, sizeof(int32_t));
    p->predecessors = malloc((size_t)num_edges * sizeof(int32_t) + 4);
    m.pending = malloc((size_t)num_nodes * sizeof(int32_t) + 4);
    m.workers = calloc(P, sizeof(SimulatedWorker));
    if (home == NULL || place == NULL || order == NULL || fill == NULL || by_task_offsets == NULL || by_task == NULL
        || clock == NULL || need == NULL || load == NULL || p->workers == NULL || p->entries == NULL || p->claims == NULL
        || p->first == NULL || p->seen == NULL || p->all_claimed == NULL || p->waits == NULL || p->predecessor_offsets == NULL
        || p->predecessors == NULL || m.pending == NULL || m.workers == NULL
        || scheduler_open(&p->scheduler, num_workers, loops, states, 4, spin_ns) != 0)
        goto end;

    /* Predecessors by node: 2 * node + token. */
    for (int32_t i = 0; i < num_edges; i++)
        by_task_offsets[successors[i] + 1]++;
    for (int32_t v = 0; v < num_nodes; v++)
        by_task_offsets[v + 1] += by_task_offsets[v];
    memcpy(fill, by_task_offsets, (size_t)num_nodes * sizeof(int32_t));
    for (int32_t v = 0; v < num_nodes; v++)
        for (int32_t i = successor_offsets[v]; i < successor_offsets[v + 1]; i++)
            by_task[fill[successors[i]]++] = 2 * v + (i >= successor_split[v]);

    partition_homes(loops, num_loops, num_workers, cost, by_task_offsets, by_task, affinity, home, load);
    m.num_workers = num_workers;
    m.num_tasks = num_tasks;
    m.offsets = successor_offsets;
    m.split = successor_split;
    m.successors = successors;
    m.home = home;
    m.priority = priority;
    m.affinity = affinity;
    for (int32_t w = 0; w < num_workers; w++)
        m.workers[w].running = -1;
    result = partition_order(&m, cost, num_intra, num_nodes, order);
    if (result != 0)
        goto end;
    /* Who asks for priorities or places gets them. */
    if (priority == NULL && affinity == NULL
        && placement_search(num_workers, loops, num_loops, num_tasks, by_task_offsets, by_task, cost, home, order) != 0) {
        result = -1;
        goto end;
    }
    result = -1;

    for (int32_t t = 0; t < num_tasks; t++)
        p->first[home[t] + 1]++;
    for (int32_t w = 0; w < num_workers; w++)
        p->first[w + 1] += p->first[w];
    memcpy(fill, p->first, P * sizeof(int32_t));
    for (int32_t k = 0; k < num_tasks; k++)
        place[order[k]] = fill[home[order[k]]]++;
    for (int32_t j = num_tasks; j < num_nodes; j++)
        place[j] = j;
    for (int32_t t = 0; t < num_tasks; t++) {
        ProgramEntry *entry = &p->entries[place[t]];
        entry->task = t;
        entry->loop = task_loop[t];
    }

    /* Predecessors by entry, for helpers. */
    for (int32_t v = 0; v < num_nodes; v++)
        p->predecessor_offsets[place[v] + 1] = by_task_offsets[v + 1] - by_task_offsets[v];
    for (int32_t v = 0; v < num_nodes; v++)
        p->predecessor_offsets[v + 1] += p->predecessor_offsets[v];
    for (int32_t v = 0; v < num_nodes; v++)
        for (int32_t i = by_task_offsets[v], k = p->predecessor_offsets[place[v]]; i < by_task_offsets[v + 1]; i++, k++)
            p->predecessors[k] = 2 * place[by_task[i] >> 1] + (by_task[i] & 1);

    /* Waits. Positions are relative to the consumer's iteration: position + 1, less a program length for each token. */
    for (int32_t j = 0; j < num_joins; j++) {
        int32_t *finished = clock + (size_t)(num_tasks + j) * P;
        for (size_t x = 0; x < P; x++)
            finished[x] = INT32_MIN / 2;
        for (int32_t i = by_task_offsets[num_tasks + j]; i < by_task_offsets[num_tasks + j + 1]; i++) {
            int32_t before = place[by_task[i] >> 1], x = home[by_task[i] >> 1];
            int32_t relative = before - p->first[x] + 1 - (by_task[i] & 1) * (int32_t)partition_length(p, x);
            finished[x] = relative > finished[x] ? relative : finished[x];
        }
    }
    memset(fill, 0, P * sizeof(int32_t)); /* fill[w]: entries of w passed so far */
    for (int32_t k = 0; k < num_tasks; k++)
        p->entries[place[order[k]]].wait_begin = 0;
    /* In the order of the simulation every predecessor of the same iteration has its clock already; waits are counted first
     * and stored by program afterwards, so they are kept as (entry, worker, relative) until then. */
    int32_t *wait_entry = malloc((size_t)wait_capacity * sizeof(int32_t));
    if (wait_entry == NULL)
        goto end;
    for (int32_t k = 0; k < num_tasks; k++) {
        int32_t task = order[k], w = home[task];
        int32_t *known = clock + (size_t)place[task] * P;
        if (place[task] == p->first[w])
            for (size_t x = 0; x < P; x++)
                known[x] = INT32_MIN / 2;
        else
            memcpy(known, known - P, P * sizeof(int32_t));
        for (size_t x = 0; x < P; x++)
            need[x] = INT32_MIN / 2;
        for (int32_t i = by_task_offsets[task]; i < by_task_offsets[task + 1]; i++) {
            int32_t before = by_task[i] >> 1, token = by_task[i] & 1;
            if (before >= num_tasks) {
                const int32_t *finished = clock + (size_t)before * P;
                for (int32_t x = 0; x < num_workers; x++) {
                    int32_t relative = finished[x] - token * (int32_t)partition_length(p, x);
                    need[x] = relative > need[x] ? relative : need[x];
                }
            } else {
                int32_t x = home[before];
                int32_t relative = place[before] - p->first[x] + 1 - token * (int32_t)partition_length(p, x);
                need[x] = relative > need[x] ? relative : need[x];
            }
        }
        for (int32_t x = 0; x < num_workers; x++) {
            if (x == w || need[x] <= known[x])
                continue;
            /* Another need may imply this one: what was known when that entry finished. */
            int implied = 0;
            for (int32_t y = 0; y < num_workers && !implied; y++)
                if (y != x && y != w && need[y] > 0)
                    implied = clock[((size_t)p->first[y] + (size_t)need[y] - 1) * P + (size_t)x] >= need[x];
            if (implied)
                continue;
            if (num_waits == wait_capacity) {
                wait_capacity *= 2;
                ProgramWait *grown = realloc(p->waits, (size_t)wait_capacity * sizeof(ProgramWait));
                if (grown != NULL)
                    p->waits = grown;
                int32_t *grown_entry = realloc(wait_entry, (size_t)wait_capacity * sizeof(int32_t));
                if (grown_entry != NULL)
                    wait_entry = grown_entry;
                if (grown == NULL || grown_entry == NULL) {
                    free(wait_entry);
                    goto end;
                }
            }
            wait_entry[num_waits] = place[task];
            p->waits[num_waits].worker = x;
            p->waits[num_waits++].relative = need[x];
        }
        for (int32_t x = 0; x < num_workers; x++) {
            if (need[x] > known[x])
                known[x] = need[x];
            if (x != w && need[x] > 0) {
                const int32_t *theirs = clock + ((size_t)p->first[x] + (size_t)need[x] - 1) * P;
                for (size_t y = 0; y < P; y++)
                    if (theirs[y] > known[y])
                        known[y] = theirs[y];
            }
        }
        known[w] = place[task] - p->first[w] + 1;
    }
    {
        /* Sort the waits by entry. */
        ProgramWait *sorted = malloc(((size_t)num_waits + 1) * sizeof(ProgramWait));
        int32_t *count = calloc((size_t)num_tasks + 2, sizeof(int32_t));
        if (sorted != NULL && count != NULL) {
            for (int64_t i = 0; i < num_waits; i++)
                count[wait_entry[i] + 1]++;
            for (int32_t e = 0; e < num_tasks; e++)
                count[e + 1] += count[e];
            for (int32_t e = 0; e <= num_tasks; e++)
                p->entries[e].wait_begin = count[e];
            for (int64_t i = 0; i < num_waits; i++) {
                int32_t x = p->waits[i].worker, length = (int32_t)partition_length(p, x);
                p->entries[p->first[x] + (p->waits[i].relative - 1 + 2 * length) % length].is_awaited = 1;
                sorted[count[wait_entry[i]]++] = p->waits[i];
            }
            for (int32_t w = 0; w < num_workers; w++)
                if (partition_length(p, w) > 0)
                    p->entries[p->first[w + 1] - 1].is_awaited = 1;
            free(p->waits);
            p->waits = sorted;
            sorted = NULL;
            result = 0;
        }
        free(sorted);
        free(count);
    }
    free(wait_entry);
    for (int32_t w = 0; w < num_workers; w++) {
        p->workers[w].seen = p->seen + (size_t)w * P;
        p->workers[w].all_claimed = p->all_claimed + (size_t)w * P;
        p->workers[w].is_open = 1;
        p->workers[w].wakes_helpers = 1;
    }
end:
    for (int32_t w = 0; w < num_workers && m.workers != NULL; w++)
        free(m.workers[w].stack);
    free(m.workers);
    free(m.pending);
    free(home);
    free(place);
    free(order);
    free(fill);
    free(by_task_offsets);
    free(by_task);
    free(clock);
    free(need);
    free(load);
    if (result != 0)
        partition_close(p);
    return result;
}

#endif
#endif
