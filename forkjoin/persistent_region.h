/* Fork-join in its strongest form: one parallel region for the whole run, one barrier after each loop, or fewer. */
#ifndef FORKTASK_PERSISTENT_REGION_H
#define FORKTASK_PERSISTENT_REGION_H

#include <sched.h>
#include <string.h>

#include "cython_src/kernels/interface/pause.h"
#include "openmp_team.h"

enum { FORKTASK_STATIC, FORKTASK_STATIC_CHUNK, FORKTASK_DYNAMIC, FORKTASK_GUIDED };

/* A thread's place in a tree barrier. Both count loops of the run, and only grow. */
typedef struct TreePlace {
    _Alignas(128) int64_t arrived;  /* written by the thread: it and all threads below it have ended this loop */
    _Alignas(128) int64_t released; /* written by the thread above: all threads have ended this loop */
} TreePlace;

typedef struct PersistentRun {
    const LoopRecord *loops;
    int num_loops;
    int num_threads;
    int schedule;
    int chunk_size; /* 0: one share of a loop for each thread */
    int64_t first_replay;
    int64_t num_replays;
    WorkerState *workers;         /* shape (num_threads,) */
    ThreadState *threads;         /* shape (num_threads,) */
    const int *cpus;              /* shape (num_threads,), or NULL: do not pin */
    const int32_t *order;         /* tasks of each loop as the schedule counts them; NULL: as the plan does */
    const uint8_t *barrier_after; /* whether a barrier stands after each loop, or NULL: after all */
    TreePlace *tree;              /* shape (num_threads,), or NULL: the barrier is the OpenMP runtime's */
    SignalPoll poll;              /* thread 0 only */
    int team_size;                /* OUT: threads that really came */
    /* Number of barriers after which all stop, counted over the run. Written before barrier g, by any thread, as g + 1
     * and read after it. A thread that reads late may see the value of the next barrier, which is larger than its own
     * count: all leave after the same one. Relaxed order is enough, the barrier orders the rest. */
    _Alignas(128) int64_t stop_after;
    char padding[120];
} PersistentRun;

static inline void stop_after(PersistentRun *run, int64_t barriers)
{
    __atomic_store_n(&run->stop_after, barriers, __ATOMIC_RELAXED);
}

/* Has a block of this loop failed? Those that have not begun are left out: nobody waits for them after Ctrl-C. */
static inline int stopping(const PersistentRun *run)
{
    return __builtin_expect(__atomic_load_n(&run->stop_after, __ATOMIC_RELAXED) != INT64_MAX, 0);
}

/* Wait until a count has reached `loops`. Gives up the CPU now and then, since there may be more threads than CPUs. */
static inline void await_loops(const int64_t *count, int64_t loops)
{
    /* acquire: pairs with the releases in tree_barrier() */
    for (int looks = 1; __atomic_load_n(count, __ATOMIC_ACQUIRE) < loops; looks++) {
        ft_pause();
        if (looks % 1024 == 0)
            sched_yield();
    }
}

/* Wait for all threads at the end of a loop, the `loops`-th of the run. Four neighbours meet, then four such groups, and
 * so on: with threads placed close, most lines stay within a cache. As MCS's tree barrier (J. Mellor-Crummey, M. Scott,
 * "Algorithms for Scalable Synchronization on Shared-Memory Multiprocessors", TOCS 1991), each count has one writer and
 * one reader. */
static void tree_barrier(TreePlace *tree, int num_threads, int thread, int64_t loops)
{
    enum { FANOUT = 4 };
    int64_t width = 1; /* of the groups that have met */
    for (; width < num_threads && thread / width % FANOUT == 0; width *= FANOUT)
        for (int64_t below = thread + width; below < num_threads && below < thread + FANOUT * width; below += width)
            await_loops(&tree[below].arrived, loops);
    if (thread != 0) {
        __atomic_store_n(&tree[thread].arrived, loops, __ATOMIC_RELEASE);
        await_loops(&tree[thread].released, loops);
    }
    while ((width /= FANOUT) > 0) /* the furthest first */
        for (int64_t below = thread + width; below < num_threads && below < thread + FANOUT * width; below += width)
            __atomic_store_n(&tree[below].released, loops, __ATOMIC_RELEASE);
}

#define FT_OMP(...) _Pragma(#__VA_ARGS__)

/* One function for each schedule: schedule(runtime) would look the schedule up at each loop.
 * The barrier at the end of `omp for`, or the tree in its place, is the only one. */
#define DEFINE_RUN(name, barrier, ...)                                                                      \
    static void name(PersistentRun *run, int thread)                                                        \
    {                                                                                                       \
        const LoopRecord *loops = run->loops;                                                               \
        const int num_loops = run->num_loops;                                                               \
        const int32_t *order = run->order;                                                                  \
        const uint8_t *barrier_after = run->barrier_after;                                                  \
        const int64_t end = run->first_replay + run->num_replays;                                           \
        WorkerState *worker = &run->workers[thread];                                                        \
        int64_t done = 0;                                                                                   \
        for (int64_t replay = run->first_replay; replay < end; replay++) {                                  \
            for (int l = 0; l < num_loops; l++) {                                                           \
                const LoopRecord *loop = &loops[l];                                                         \
                const int num_blocks = loop->num_blocks, share = (num_blocks - 1) / run->num_threads + 1;   \
                const int chunk_size = run->chunk_size ? run->chunk_size : share;                           \
                (void)chunk_size;                                                                           \
                if (thread == 0 && forktask_must_stop(&run->poll))                                          \
                    stop_after(run, done + 1);                                                              \
                FT_OMP(omp for __VA_ARGS__)                                                                 \
                for (int k = 0; k < num_blocks; k++) {                                                      \
                    const int block = order == NULL ? k : order[loop->first_task + k] - loop->first_task;   \
                    if (!stopping(run) && __builtin_expect(run_block(loop, block, replay, worker) != 0, 0)) \
                        stop_after(run, done + 1);                                                          \
                }                                                                                           \
                if (barrier_after != NULL && !barrier_after[l])                                             \
                    continue;                                                                               \
                done++;                                                                                     \
                barrier;                                                                                    \
                if (__atomic_load_n(&run->stop_after, __ATOMIC_RELAXED) <= done)                            \
                    return;                                                                                 \
            }                                                                                               \
        }                                                                                                   \
    }

#define DEFINE_RUNS(name, ...)                       \
    DEFINE_RUN(name, (void)0, schedule(__VA_ARGS__)) \
    DEFINE_RUN(name##_tree, tree_barrier(run->tree, run->num_threads, thread, done), schedule(__VA_ARGS__) nowait)

DEFINE_RUNS(run_static, static)
DEFINE_RUNS(run_static_chunk, static, chunk_size)
DEFINE_RUNS(run_dynamic, dynamic, chunk_size)
DEFINE_RUNS(run_guided, guided, chunk_size)
DEFINE_RUN(run_needed, FT_OMP(omp barrier), schedule(static, chunk_size) nowait)

/* Run all loops num_replays times. Leaves at once, with team_size set, if another number of threads came than asked
 * for or a thread could not be pinned (threads[i].error). */
static void forktask_run_persistent(PersistentRun *run)
{
    static void (*const forms[][2])(PersistentRun *,
                                    int) = {[FORKTASK_STATIC] = {run_static, run_static_tree},
                                            [FORKTASK_STATIC_CHUNK] = {run_static_chunk, run_static_chunk_tree},
                                            [FORKTASK_DYNAMIC] = {run_dynamic, run_dynamic_tree},
                                            [FORKTASK_GUIDED] = {run_guided, run_guided_tree}};
    int failed = 0;
    run->stop_after = INT64_MAX;
    run->team_size = 0;
    if (run->tree)
        memset(run->tree, 0, (size_t)run->num_threads * sizeof(TreePlace));
#pragma omp parallel num_threads(run->num_threads)
    {
        const int thread = forktask_enter_team(run->threads, run->cpus, run->num_threads, &run->team_size, &failed);
        if (!__atomic_load_n(&failed, __ATOMIC_RELAXED))
            (run->barrier_after && !run->tree ? run_needed : forms[run->schedule][run->tree != NULL])(run, thread);
        forktask_leave_thread(&run->threads[thread]);
    }
}

#endif
