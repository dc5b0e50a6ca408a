/* Replay of a recorded graph that was compiled into one program per worker (placement "partitioned").
 *
 * A program is the list of tasks that one worker runs in each iteration, in this order; the worker is the home of
 * these tasks. The programs are cuts of one topological order, so the first task of that order that has not run can
 * always run: there is no deadlock. A worker publishes how far it has come in one counter, `progress`. A dependence
 * within a program needs no code; one between programs is a wait: "worker x has come to position q". compiler.h makes
 * the programs and leaves out waits that others imply.
 *
 * A worker that would wait may claim a ready task of any program, its own included:
 *
 *     UNCLAIMED --compare-and-swap of `claimed` to iteration + 1 (home or helper)--> RUNNING --> done
 *
 * The home passes a claimed task once `done` shows that it has finished. Claims cost a compare-and-swap a task, so a
 * home opens iterations to claims only while its tasks are long enough: the iteration that it begins and some more,
 * so that a home that is preempted, or busy with a long task, does not hold up tasks that do not depend on it.
 *
 * Who writes: `progress`, `open_until`, `wait_*`: the worker itself. `claimed`: the winner of the compare-and-swap.
 * `done`: the helper that has run the task. A home that runs its own task needs no `done`: `progress` shows it.
 */
#ifndef FORKTASK_PROGRAMS_H
#define FORKTASK_PROGRAMS_H

#include "tasking/scheduler.h"

#ifndef ORDER_PROGRAM_PUBLISH
#define ORDER_PROGRAM_PUBLISH release
#endif
#ifndef ORDER_PROGRAM_SEE
#define ORDER_PROGRAM_SEE acquire
#endif
#ifndef ORDER_PROGRAM_DONE
#define ORDER_PROGRAM_DONE release
#endif
#ifndef ORDER_PROGRAM_CLAIM
#define ORDER_PROGRAM_CLAIM relaxed
#endif
#ifndef ORDER_PROGRAM_OPEN
#define ORDER_PROGRAM_OPEN release
#endif
#ifndef ORDER_PROGRAM_SEE_OPEN
#define ORDER_PROGRAM_SEE_OPEN acquire
#endif

/* Entries of a program that a helper looks at, from the first unclaimed one on. Looking further costs more than it
 * finds: with 1024 a stencil of 13 us tasks, one of two cores shared with another process, took 5 % longer. */
#define PROGRAM_WINDOW 256
/* Entries beyond the begun iteration that a home opens: enough to keep others busy for a time slice of the system. */
#ifndef PROGRAM_AHEAD
#define PROGRAM_AHEAD 16384
#endif
/* Tasks shorter than this are not worth a claim. */
#ifndef PROGRAM_CLAIM_NS
#define PROGRAM_CLAIM_NS 150
#endif
/* Tasks longer than this are worth a system call: each one that finishes wakes a sleeper, which looks for tasks to
 * claim. */
#define PROGRAM_WAKE_NS 10000
/* Entries between two looks at the clock. */
#ifndef PROGRAM_LOOK
#define PROGRAM_LOOK 2048
#endif
/* 0: sleep until woken. For tests: a worker that is not woken then sleeps for ever. */
#ifndef PROGRAM_NAPS
#define PROGRAM_NAPS 1
#endif
/* Looks of a waiting worker without a pause in between, some 100 ns: an answer that is on its way arrives meanwhile,
 * and a pause takes as long as a cache line needs from core to core. */
#ifndef PROGRAM_LOOKS
#define PROGRAM_LOOKS 64
#endif
/* Rounds with pauses after that, before the worker looks for a task to claim. */
#ifndef PROGRAM_PATIENCE
#define PROGRAM_PATIENCE 24
#endif
/* Rounds from one search for a task to claim to the next, in which a worker that waits looks at its own program and
 * another: what it waits for may have happened meanwhile, and 15 others take as long as a task. */
#ifndef PROGRAM_ROUNDS
#define PROGRAM_ROUNDS 8
#endif

typedef struct ProgramEntry {
    int32_t task;
    int32_t loop;
    int32_t is_awaited; /* another program waits for it, or it is the last: its end is published at once */
    int32_t wait_begin; /* its waits end at the next entry's wait_begin */
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

typedef struct ProgramWorker {
    atomic_i64 progress;   /* entries finished in this run: iteration * length + position */
    atomic_i32 open_until; /* helpers may claim in iterations before this one; never falls in a run */
    char padding[FT_PAIR_OF_LINES - sizeof(atomic_i64) - sizeof(atomic_i32)]; /* separates what others poll */
    atomic_i64 wait_value; /* the awaited condition of a sleeper, valid while it is announced: program_wait_is_over() */
    atomic_i32 wait_on;
    /* Owner thread only, like all that follows. The first two are kept between runs. */
    int32_t is_open;       /* tasks are long enough to be claimed */
    int32_t wakes_helpers; /* and to wake a sleeper for each */
    int32_t passes;        /* iterations since the last look at the clock, which was at look_ns */
    int64_t look_ns;
    int64_t last_victim;  /* that had no task to claim */
    int64_t *seen;        /* newest progress seen of each worker */
    int64_t *all_claimed; /* of each program: all entries from its progress up to here were seen claimed */
    char padding2[FT_PAIR_OF_LINES - sizeof(atomic_i64) - sizeof(atomic_i32) - 3 * sizeof(int32_t) -
                  2 * sizeof(int64_t) - 2 * sizeof(void *)];
} ProgramWorker;

typedef struct Programs {
    Scheduler scheduler; /* its deques stay empty */
    ProgramWorker *workers;
    ProgramEntry *entries; /* all programs one after the other, and a sentinel */
    int32_t *first;        /* shape (num_workers + 1,): where each program begins */
    ProgramWait *waits;
    ClaimWord *claims;            /* shape (num_tasks,): of each entry */
    int32_t *predecessor_offsets; /* shape (num_nodes + 1,): of entries, then of joins */
    int32_t *predecessors;        /* 2 * (entry, or num_tasks + join) + token */
    int64_t *seen, *all_claimed;  /* memory of the workers' arrays */
    int32_t num_tasks, num_nodes;
    int32_t num_iterations;
    int64_t first_replay;
} Programs;

static inline int64_t program_length(const Programs *p, int32_t worker)
{
    return p->first[worker + 1] - p->first[worker];
}

/* Owner thread only. Return 1 if the awaited condition has been met. on >= 0: worker `on` has come to `value`; on <
 * 0: a helper has finished entry ~on in iteration value - 1. */
static inline int program_wait_is_over(Programs *p, int32_t worker, int32_t on, int64_t value)
{
    if (on < 0)
        return ft_load(&p->claims[~on].done, ORDER_PROGRAM_SEE) >= value; /* pairs with the release in program_help() */
    /* acquire: pairs with the release in program_publish() */
    int64_t progress = ft_load(&p->workers[on].progress, ORDER_PROGRAM_SEE);
    p->workers[worker].seen[on] = progress;
    return progress >= value;
}

/* Any thread, after it published `value` on `on`: wake the sleepers that wait for that. */
static inline void program_wake(Programs *p, int32_t on, int64_t value)
{
    Idle *idle = &p->scheduler.idle;
    if (!idle_anyone(idle))
        return;
    for (int32_t w = 0; w < idle->num_workers; w++)
        /* acquire: pairs with the release in idle_announce(); the condition read next is the latest */
        if (ft_load(&idle->workers[w].word, acquire) == WORKER_ANNOUNCED &&
            ft_load(&p->workers[w].wait_on, relaxed) == on && ft_load(&p->workers[w].wait_value, relaxed) <= value)
            idle_notify_worker(idle, w);
}

/* Any thread. Return 1 if an entry has finished in `iteration`; its results are visible then. Once 1, always 1. */
static inline int program_has_finished(Programs *p, int32_t number, int64_t iteration)
{
    int32_t home = 0;
    for (int32_t end = p->scheduler.num_workers; end - home > 1;) {
        int32_t middle = home + (end - home) / 2;
        if (p->first[middle] <= number)
            home = middle;
        else
            end = middle;
    }
    /* acquire: pairs with the release in program_publish() */
    return ft_load(&p->workers[home].progress, ORDER_PROGRAM_SEE) >
               iteration * program_length(p, home) + number - p->first[home]
           /* acquire: pairs with the release in program_help() */
           || ft_load(&p->claims[number].done, ORDER_PROGRAM_SEE) > iteration;
}

/* Any thread. Return 1 if all predecessors of a node's instance in `iteration` have finished. Once 1, always 1. */
static int program_is_ready(Programs *p, int32_t node, int64_t iteration)
{
    for (int32_t i = p->predecessor_offsets[node]; i < p->predecessor_offsets[node + 1]; i++) {
        int32_t before = p->predecessors[i] >> 1;
        int64_t instance = iteration - (p->predecessors[i] & 1);
        if (instance < 0)
            continue;
        if (before >= p->num_tasks ? !program_is_ready(p, before, instance)
                                   : !program_has_finished(p, before, instance))
            return 0;
    }
    return 1;
}

/* Owner thread only, as a helper: claim an entry's instance in `iteration` if it is ready. claimed: the value of the
 * claim word in which the instance was seen unclaimed; is_ahead: the home has not come to this iteration yet. Returns
 * 1 if this worker has claimed it. */
static inline int program_claim(Programs *p, int32_t number, int64_t iteration, int32_t claimed, int is_ahead)
{
    /* Instances of a task are claimed in order: `claimed` and `done` only grow, and skip none. The first test is a
     * short cut: ahead of the home's iteration, an instance that follows an unclaimed one cannot be claimed. */
    if ((claimed < iteration && is_ahead) || (iteration > 0 && !program_has_finished(p, number, iteration - 1)) ||
        !program_is_ready(p, number, iteration))
        return 0;
    const ProgramEntry *entry = &p->entries[number];
    const LoopRecord *loop = &p->scheduler.loops[entry->loop];
    return !forktask_locks_held(loop, entry->task - loop->first_task) &&
           ft_cas(&p->claims[number].claimed, &claimed, (int32_t)iteration + 1, ORDER_PROGRAM_CLAIM);
}

/* Owner thread only: claim one ready task of its own program or of the next `others` in turn, and run it. Returns 1: ran
 * one; 0: found none; -1: the run must end. */
static int program_help(Programs *p, int32_t worker, int32_t others)
{
    Scheduler *s = &p->scheduler;
    for (int32_t i = 0; i <= others; i++) {
        int32_t victim = worker;
        if (i > 0) {
            victim = (int32_t)p->workers[worker].last_victim;
            do
                victim = victim + 1 < s->num_workers ? victim + 1 : 0;
            while (victim == worker);
        }
        int64_t length = program_length(p, victim), *begin = &p->workers[worker].all_claimed[victim];
        /* acquire: the progress seen next is at least that of the opening, and from there to `open_until` the victim
         * claims its own tasks by compare-and-swap */
        int64_t end = ft_load(&p->workers[victim].open_until, ORDER_PROGRAM_SEE_OPEN) * length;
        int64_t passed = ft_load(&p->workers[victim].progress, relaxed); /* a stale value starts the search too early */
        *begin = *begin > passed ? *begin : passed;
        end = *begin + PROGRAM_WINDOW < end ? *begin + PROGRAM_WINDOW : end;
        for (int64_t position = *begin; position < end; position++) {
            int64_t iteration = position / length;
            int32_t number = p->first[victim] + (int32_t)(position - iteration * length);
            int32_t claimed = ft_load(&p->claims[number].claimed, relaxed); /* the compare-and-swap decides */
            if (claimed > iteration) {
                *begin += position == *begin;
                continue;
            }
            if (!program_claim(p, number, iteration, claimed, position - passed >= length))
                continue;
            const ProgramEntry *entry = &p->entries[number];
            const LoopRecord *loop = &s->loops[entry->loop];
            if (scheduler_run_block(s, &s->workers[worker], loop, entry->task - loop->first_task,
                                    p->first_replay + iteration, entry->task) != 0)
                return -1;
            /* release: pairs with the acquires in program_wait_is_over() and program_has_finished() */
            ft_store(&p->claims[number].done, (int32_t)iteration + 1, ORDER_PROGRAM_DONE);
            program_wake(p, ~number, iteration + 1);
            return 1; /* and look there again */
        }
        if (victim != worker)
            p->workers[worker].last_victim = victim;
    }
    return 0;
}

/* Owner thread only: sleep until the awaited condition is published, or for nap_ns. Returns 0 where there was no need
 * to. */
static int program_sleep(Programs *p, int32_t worker, int32_t on, int64_t value, int64_t nap_ns)
{
    Scheduler *s = &p->scheduler;
    ft_store(&p->workers[worker].wait_on, on, relaxed); /* published by the release in idle_announce() */
    ft_store(&p->workers[worker].wait_value, value, relaxed);
    idle_announce(&s->idle, worker);
    if (program_wait_is_over(p, worker, on, value) || scheduler_ended(s)) {
        idle_cancel(&s->idle, worker);
        return 0;
    }
    scheduler_sleep(s, worker, PROGRAM_NAPS ? nap_ns : -1);
    return 1;
}

/* Owner thread only: program_wait() without the event log. */
static int program_wait_helping(Programs *p, int32_t worker, int32_t on, int64_t value)
{
    Scheduler *s = &p->scheduler;
    int64_t start = 0, nap_ns = 2 * s->spin_ns;
    for (int look = 0; look < PROGRAM_LOOKS; look++)
        if (program_wait_is_over(p, worker, on, value))
            return 1;
    ft_store(&s->workers[worker].current, -1, relaxed);
    for (int round = 1;; round++) {
        if (program_wait_is_over(p, worker, on, value))
            return 1;
        if (ft_load(&s->ending, relaxed) != RUN_GOES_ON)
            return 0;
        ft_pause();
        if (round < PROGRAM_PATIENCE || round % PROGRAM_ROUNDS != 0)
            continue;
        int helped = program_help(p, worker, s->num_workers > 1);
        if (helped < 0)
            return 0;
        if (helped > 0) {
            start = 0;
            nap_ns = 2 * s->spin_ns;
            continue;
        }
        int64_t now = forktask_now_ns();
        if (start == 0) {
            start = now;
        } else if (now - start > s->spin_ns && program_sleep(p, worker, on, value, nap_ns)) {
            /* The worker that publishes the condition wakes this one. Tasks to claim wake nobody: look for them after
             * naps that grow. */
            nap_ns = nap_ns < 5000000 ? 2 * nap_ns : nap_ns;
            start = now - s->spin_ns - 1; /* one look, then the next nap */
        }
    }
}

/* Owner thread only: wait for a condition (program_wait_is_over); help, spin, sleep meanwhile. Returns 0 if the run
 * must end. */
static int program_wait(Programs *p, int32_t worker, int32_t on, int64_t value)
{
    EventLog *log = &p->scheduler.workers[worker].state->log;
    int64_t start = forktask_begin_wait(log);
    int goes_on = program_wait_helping(p, worker, on, value);
    forktask_end_wait(log, start);
    return goes_on;
}

/* Owner thread only: open the iteration that begins, and some more, to claims. Returns the end of what is open. */
static inline int64_t program_open_ahead(Programs *p, ProgramWorker *me, int64_t iteration, int64_t length)
{
    int64_t until = iteration + 1 + PROGRAM_AHEAD / length;
    until = until < p->num_iterations ? until : p->num_iterations;
    ft_store(&me->open_until, (int32_t)until, ORDER_PROGRAM_OPEN); /* pairs with the acquire in program_help() */
    return until;
}

/* Owner thread only: compete with helpers for an own entry. Returns 1: claimed; 0: a helper has it; -1: the run must
 * end. */
static inline int program_claim_own(Programs *p, int32_t worker, const ProgramEntry *entry, ClaimWord *claim,
                                    int64_t iteration)
{
    /* A commutative task would wait for its lock here: run other tasks first, while there are some. */
    const LoopRecord *loop = &p->scheduler.loops[entry->loop];
    while (forktask_locks_held(loop, entry->task - loop->first_task)) {
        int helped = program_help(p, worker, p->scheduler.num_workers - 1);
        if (helped < 0)
            return -1;
        if (helped == 0)
            break;
    }
    int32_t claimed = ft_load(&claim->claimed, relaxed); /* the compare-and-swap decides */
    return claimed <= iteration && ft_cas(&claim->claimed, &claimed, (int32_t)iteration + 1, ORDER_PROGRAM_CLAIM);
}

/* Owner thread only: publish that `progress` entries have finished. */
static inline void program_publish(Programs *p, int32_t worker, int64_t progress)
{
    /* release: pairs with the acquires in program_wait_is_over() and program_has_finished() */
    ft_store(&p->workers[worker].progress, progress, ORDER_PROGRAM_PUBLISH);
    program_wake(p, worker, progress);
    if (p->workers[worker].wakes_helpers)
        idle_notify_one(&p->scheduler.idle);
}

/* Owner thread only, after an iteration: decide by the mean time of an entry whether claims and wake-ups are worth
 * it, for the iterations and runs to come. */
static inline void program_look_at_clock(ProgramWorker *me, int64_t length, int32_t passes_per_look)
{
    if (++me->passes < passes_per_look)
        return;
    int64_t now = forktask_now_ns();
    me->is_open = now - me->look_ns > PROGRAM_CLAIM_NS * length * me->passes;
    me->wakes_helpers = now - me->look_ns > PROGRAM_WAKE_NS * length * me->passes;
    me->look_ns = now;
    me->passes = 0;
}

/* Owner thread only: run the worker's program once. Returns 0 if the run must end. */
static inline int program_run_iteration(Programs *p, int32_t worker, int64_t iteration, int is_open)
{
    Scheduler *s = &p->scheduler;
    SchedulerWorker *runner = &s->workers[worker];
    const int64_t *seen = p->workers[worker].seen;
    const int32_t first = p->first[worker];
    const ProgramEntry *program = p->entries + first;
    const int64_t length = program_length(p, worker);
    for (int64_t position = 0; position < length; position++) {
        const ProgramEntry *entry = &program[position];
        for (int32_t i = entry->wait_begin; i < entry[1].wait_begin; i++) {
            int32_t other = p->waits[i].worker;
            int64_t value = iteration * program_length(p, other) + p->waits[i].relative;
            if (seen[other] < value && !program_wait(p, worker, other, value))
                return 0;
        }
        if (ft_unlikely(ft_load(&s->ending, relaxed) != RUN_GOES_ON))
            return 0;
        int mine = is_open ? program_claim_own(p, worker, entry, &p->claims[first + position], iteration) : 1;
        if (ft_likely(mine > 0)) {
            const LoopRecord *loop = &s->loops[entry->loop];
            ft_store(&runner->current, entry->task, relaxed);
            runner->num_executed_own++; /* the watchdog's copy is stored once per iteration */
            if (ft_unlikely(
                    run_block(loop, entry->task - loop->first_task, p->first_replay + iteration, runner->state) != 0)) {
                scheduler_end(s, RUN_STOPPED);
                return 0;
            }
        } else if (mine < 0 || (!program_wait_is_over(p, worker, ~(first + (int32_t)position), iteration + 1) &&
                                !program_wait(p, worker, ~(first + (int32_t)position), iteration + 1))) {
            return 0;
        }
        if (is_open | entry->is_awaited)
            program_publish(p, worker, iteration * length + position + 1);
    }
    return 1;
}

/* Job of each worker. */
static void programs_work(void *argument, int32_t worker)
{
    Programs *p = argument;
    Scheduler *s = &p->scheduler;
    SchedulerWorker *runner = &s->workers[worker];
    ProgramWorker *me = &p->workers[worker];
    int64_t length = program_length(p, worker), num_iterations = p->num_iterations, open_until = 0;
    int32_t passes_per_look = length > 0 ? (int32_t)(PROGRAM_LOOK / length) + 1 : 1;
    memset(me->seen, 0, (size_t)s->num_workers * sizeof(int64_t));
    memset(me->all_claimed, 0, (size_t)s->num_workers * sizeof(int64_t));
    me->look_ns = forktask_now_ns();
    me->passes = 0;
    for (int64_t iteration = 0; iteration < num_iterations && length > 0; iteration++) {
        if (me->is_open)
            open_until = program_open_ahead(p, me, iteration, length);
        /* An opened iteration stays open. */
        if (!program_run_iteration(p, worker, iteration, iteration < open_until))
            return;
        ft_store(&runner->num_executed, runner->num_executed_own, relaxed);
        program_look_at_clock(me, length, passes_per_look);
    }
    ft_store(&runner->current, -1, relaxed);
    /* Help the others until all programs have finished. */
    for (int32_t other = 0; other < s->num_workers; other++) {
        int64_t value = num_iterations * program_length(p, other);
        if (me->seen[other] < value && other != worker && !program_wait(p, worker, other, value))
            return;
    }
}

/* Prepare a run, while the workers rest. */
static void programs_reset(Programs *p, int64_t first_replay, int32_t num_iterations)
{
    const size_t num_workers = (size_t)p->scheduler.num_workers;
    scheduler_reset(&p->scheduler);
    p->first_replay = first_replay;
    p->num_iterations = num_iterations;
    int was_open = 0;
    for (size_t w = 0; w < num_workers; w++) {
        was_open |= ft_load(&p->workers[w].open_until, relaxed) > 0;
        ft_store(&p->workers[w].progress, 0, relaxed);
        ft_store(&p->workers[w].open_until, 0, relaxed);
        p->workers[w].last_victim = (int64_t)w;
    }
    if (was_open)
        memset((void *)p->claims, 0, (size_t)p->num_tasks * sizeof(ClaimWord));
}

static void programs_close(Programs *p)
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

#endif
