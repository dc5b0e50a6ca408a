/* Fork-join in its strongest form: one parallel region for the whole run, one barrier after each loop. */
#ifndef FORKTASK_PERSISTENT_REGION_H
#define FORKTASK_PERSISTENT_REGION_H

#include "openmp_team.h"

enum { FORKTASK_STATIC, FORKTASK_STATIC_CHUNK, FORKTASK_DYNAMIC, FORKTASK_GUIDED };

typedef struct PersistentRun {
    const LoopRecord *loops;
    int num_loops;
    int num_threads;
    int schedule;
    int chunk_size;
    int64_t first_replay;
    int64_t num_replays;
    WorkerState *workers; /* shape (num_threads,) */
    ThreadState *threads; /* shape (num_threads,) */
    const int *cpus;      /* shape (num_threads,), or NULL: do not pin */
    SignalPoll poll;      /* thread 0 only */
    int team_size;        /* OUT: threads that really came */
    /* Number of loops after which all stop, counted over the run. Written during loop g, by any thread, as g + 1 and
     * read after the barrier of loop g. A thread that reads late may see the value of the next loop, which is larger
     * than its own count: all leave after the same loop. Relaxed order is enough, the barrier orders the rest. */
    _Alignas(128) int64_t stop_after;
    char padding[120];
} PersistentRun;

static inline void stop_after(PersistentRun *run, int64_t loops)
{
    __atomic_store_n(&run->stop_after, loops, __ATOMIC_RELAXED);
}

/* Has a block of this loop failed? Those that have not begun are left out: nobody waits for them after Ctrl-C. */
static inline int stopping(const PersistentRun *run)
{
    return __builtin_expect(__atomic_load_n(&run->stop_after, __ATOMIC_RELAXED) != INT64_MAX, 0);
}

/* One function for each schedule: schedule(runtime) would look the schedule up at each loop.
 * The barrier at the end of `omp for` is the only one. */
#define DEFINE_RUN(name, directive)                                                                                    \
    static void name(PersistentRun *run, int thread)                                                                   \
    {                                                                                                                  \
        const LoopRecord *loops = run->loops;                                                                          \
        const int num_loops = run->num_loops;                                                                          \
        const int chunk_size = run->chunk_size;                                                                        \
        const int64_t end = run->first_replay + run->num_replays;                                                      \
        WorkerState *worker = &run->workers[thread];                                                                   \
        int64_t done = 0;                                                                                              \
        (void)chunk_size;                                                                                              \
        for (int64_t replay = run->first_replay; replay < end; replay++) {                                             \
            for (int l = 0; l < num_loops; l++) {                                                                      \
                const LoopRecord *loop = &loops[l];                                                                    \
                const int num_blocks = loop->num_blocks;                                                               \
                if (thread == 0 && forktask_must_stop(&run->poll))                                                     \
                    stop_after(run, done + 1);                                                                         \
                _Pragma(directive) for (int block = 0; block < num_blocks;                                             \
                                        block++) if (!stopping(run) &&                                                 \
                                                     __builtin_expect(run_block(loop, block, replay, worker) != 0, 0)) \
                    stop_after(run, done + 1);                                                                         \
                done++;                                                                                                \
                if (__atomic_load_n(&run->stop_after, __ATOMIC_RELAXED) <= done)                                       \
                    return;                                                                                            \
            }                                                                                                          \
        }                                                                                                              \
    }

DEFINE_RUN(run_static, "omp for schedule(static)")
DEFINE_RUN(run_static_chunk, "omp for schedule(static, chunk_size)")
DEFINE_RUN(run_dynamic, "omp for schedule(dynamic, chunk_size)")
DEFINE_RUN(run_guided, "omp for schedule(guided, chunk_size)")

/* Run all loops num_replays times. Leaves at once, with team_size set, if another number of threads came than asked
 * for or a thread could not be pinned (threads[i].error). */
static void forktask_run_persistent(PersistentRun *run)
{
    int failed = 0;
    run->stop_after = INT64_MAX;
    run->team_size = 0;
#pragma omp parallel num_threads(run->num_threads)
    {
        const int thread = forktask_enter_team(run->threads, run->cpus, run->num_threads, &run->team_size, &failed);
        if (!__atomic_load_n(&failed, __ATOMIC_RELAXED)) {
            switch (run->schedule) {
            case FORKTASK_STATIC:
                run_static(run, thread);
                break;
            case FORKTASK_STATIC_CHUNK:
                run_static_chunk(run, thread);
                break;
            case FORKTASK_DYNAMIC:
                run_dynamic(run, thread);
                break;
            case FORKTASK_GUIDED:
                run_guided(run, thread);
                break;
            }
        }
        forktask_leave_thread(&run->threads[thread]);
    }
}

#endif
