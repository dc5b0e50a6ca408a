/* C interface of tbb_flow.cpp: the plan's task graph as a oneTBB flow graph, with a wait between iterations. */
#ifndef FORKTASK_TBB_FLOW_H
#define FORKTASK_TBB_FLOW_H

#include <stdint.h>

#include "thread_state.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct TBBRun {
    const LoopRecord *loops;
    const int32_t *task_loop;         /* shape (num_tasks,) */
    int32_t num_tasks, num_nodes;     /* nodes past num_tasks are joins: they run nothing */
    const int32_t *successor_offsets; /* shape (num_nodes + 1,): edges within an iteration only */
    const int32_t *successors;
    const int32_t *num_predecessors; /* shape (num_nodes,) */
    int num_threads;
    int64_t first_replay, num_replays;
    WorkerState *workers;
    ThreadState *threads;
    const int *cpus; /* or NULL: do not pin */
    SignalPoll poll; /* the thread that called forktask_tbb_run() only */
    int stop;
    int team_size; /* OUT of forktask_tbb_prepare(): num_threads, or 0 when too few threads came */
} TBBRun;

/* Make arena and graph; NULL when memory is short. `run` must outlive what is returned. */
void *forktask_tbb_prepare(TBBRun *run);
/* Returns 0, or the errno of a thread that could not be pinned. */
int forktask_tbb_run(void *graph);
void forktask_tbb_close(void *graph);

#ifdef __cplusplus
}
#endif
#endif
