#include "persistent_region.h"

#include "openmp_team.h"

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

void forktask_run_persistent(PersistentRun *run)
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
