/* Fork-join in its strongest form: one parallel region for the whole run, one barrier after each loop. */
#ifndef FORKTASK_PERSISTENT_REGION_H
#define FORKTASK_PERSISTENT_REGION_H

#include "thread_state.h"

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

/* Run all loops num_replays times. Leaves at once, with team_size set, if another number of threads came than asked
 * for or a thread could not be pinned (threads[i].error). */
void forktask_run_persistent(PersistentRun *run);

#endif
