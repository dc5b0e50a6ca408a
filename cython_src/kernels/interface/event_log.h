/* Event log of one worker: the blocks that it runs and, if asked for, what it does in between.
 *
 * Blocks are logged by run_block(). Spells are logged by the runtimes where a worker waits, sleeps, takes a lock or
 * creates a task, and here where its thread lost its CPU: then its CPU time falls behind the clock. All times are
 * CLOCK_MONOTONIC. Events past the capacity are counted, not kept. Only the worker itself writes its log.
 */
#ifndef FORKTASK_EVENT_LOG_H
#define FORKTASK_EVENT_LOG_H

#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <time.h>

#ifndef RUSAGE_THREAD
#define RUSAGE_THREAD 1 /* Linux's number; the headers have the name under _GNU_SOURCE only */
#endif

/* Time since the last look at the thread's CPU time after which a worker looks again: long against what a look costs,
 * 0.1 to 0.5 us, short against a time slice of the system. */
#define FORKTASK_LOOK_NS 200000
/* Loss of CPU time that is no noise of the two clocks. */
#define FORKTASK_LOSS_NS 5000

typedef struct BlockEvent {
    int64_t start_ns, stop_ns; /* monotonic clock */
    int64_t iteration;
    int32_t task;
    int32_t worker;
} BlockEvent;

enum { SPELL_WAITING = 0, SPELL_CREATING = 1, SPELL_LOCK = 2, SPELL_ASLEEP = 3, SPELL_PREEMPTED = 4 };

typedef struct Spell {
    int64_t start_ns, stop_ns;
    int64_t replay; /* of the task that is created */
    int32_t task;   /* created, -1: none */
    int32_t kind;
} Spell;

typedef struct EventLog {
    BlockEvent *events; /* NULL: no event log */
    int64_t event_capacity;
    int64_t num_events;
    Spell *spells; /* NULL: blocks alone */
    int64_t spell_capacity;
    int64_t num_spells;
    int64_t logged_ns; /* end of the last block or spell */
    int64_t looked_ns; /* last look at the thread's CPU time, 0: none yet */
    int64_t cpu_ns;    /* CPU time at that look */
    int64_t switches;  /* involuntary context switches then, where a loss was found; -1: unknown */
} EventLog;

static inline int64_t forktask_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static inline void forktask_log_spell(EventLog *log, int32_t kind, int64_t start_ns, int64_t stop_ns, int32_t task,
                                      int64_t replay)
{
    int64_t n = log->num_spells++;
    log->logged_ns = stop_ns;
    if (n < log->spell_capacity) {
        Spell *spell = &log->spells[n];
        spell->start_ns = start_ns;
        spell->stop_ns = stop_ns;
        spell->replay = replay;
        spell->task = task;
        spell->kind = kind;
    }
}

/* Return the thread's involuntary context switches so far; *voluntary: the others. */
static inline int64_t forktask_switches(int64_t *voluntary)
{
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    *voluntary = usage.ru_nvcsw;
    return usage.ru_nivcsw;
}

/* Compare the thread's CPU time with the clock. What is missing since the last look is laid to the end of the interval
 * [start_ns, stop_ns], the longest one since: as "preempted", or as "asleep" if the thread was not switched off against
 * its will. Without an interval (stop_ns = 0) the thread is known to have slept: it only notes both clocks. */
static inline void forktask_look_at_cpu(EventLog *log, int64_t start_ns, int64_t stop_ns)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    int64_t cpu_ns = (int64_t)t.tv_sec * 1000000000 + t.tv_nsec, now = forktask_now_ns();
    int64_t lost = log->looked_ns ? now - log->looked_ns - (cpu_ns - log->cpu_ns) : 0;
    if (log->looked_ns == 0 || (stop_ns > 0 && lost > FORKTASK_LOSS_NS)) {
        int64_t voluntary, switches = forktask_switches(&voluntary);
        if (log->looked_ns != 0) {
            int64_t from = stop_ns - lost > start_ns ? stop_ns - lost : start_ns;
            int64_t logged = log->logged_ns;
            forktask_log_spell(log, switches > log->switches ? SPELL_PREEMPTED : SPELL_ASLEEP, from, stop_ns, -1, -1);
            log->logged_ns = logged > stop_ns ? logged : stop_ns;
        }
        log->switches = switches;
    }
    log->cpu_ns = cpu_ns;
    log->looked_ns = now;
}

/* The worker begins to wait. Returns the time, 0 without a log of spells. */
static inline int64_t forktask_begin_wait(EventLog *log)
{
    return __builtin_expect(log->spells != NULL, 0) ? forktask_now_ns() : 0;
}

/* The worker has waited since start_ns, as forktask_begin_wait() returned it. */
static inline void forktask_end_wait(EventLog *log, int64_t start_ns)
{
    if (__builtin_expect(start_ns != 0, 0)) {
        int64_t now = forktask_now_ns();
        if (now - log->looked_ns > FORKTASK_LOOK_NS)
            forktask_look_at_cpu(log, start_ns, now);
        forktask_log_spell(log, SPELL_WAITING, start_ns, now, -1, -1);
    }
}

/* The worker has slept on a futex since start_ns. */
static inline void forktask_end_sleep(EventLog *log, int64_t start_ns)
{
    if (__builtin_expect(start_ns != 0, 0)) {
        forktask_log_spell(log, SPELL_ASLEEP, start_ns, forktask_now_ns(), -1, -1);
        forktask_look_at_cpu(log, 0, 0);
    }
}

/* The worker has created a task; whatever it did since its last event was part of that. */
static inline void forktask_log_creation(EventLog *log, int32_t task, int64_t replay)
{
    if (__builtin_expect(log->spells != NULL, 0)) {
        int64_t now = forktask_now_ns();
        forktask_log_spell(log, SPELL_CREATING, log->logged_ns ? log->logged_ns : now, now, task, replay);
    }
}

/* A block begins: returns its start. */
static inline int64_t forktask_begin_block(EventLog *log)
{
    int64_t now = forktask_now_ns();
    if (log->spells != NULL && now - log->looked_ns > FORKTASK_LOOK_NS) {
        forktask_look_at_cpu(log, log->logged_ns ? log->logged_ns : now, now);
        now = forktask_now_ns();
    }
    return now;
}

/* A block has ended. */
static inline void forktask_end_block(EventLog *log, int64_t start_ns, int64_t iteration, int32_t task, int32_t worker)
{
    int64_t n = log->num_events++, now = forktask_now_ns();
    if (n < log->event_capacity) {
        BlockEvent *e = &log->events[n];
        e->start_ns = start_ns;
        e->stop_ns = now;
        e->iteration = iteration;
        e->task = task;
        e->worker = worker;
    }
    log->logged_ns = now;
    if (log->spells != NULL && now - start_ns > FORKTASK_LOOK_NS)
        forktask_look_at_cpu(log, start_ns, now);
}

#endif
