/* C interface of libraries that run a task graph again and again, with a wait between iterations: oneTBB, Taskflow. */
#ifndef FORKTASK_FLOW_H
#define FORKTASK_FLOW_H

#include <stdint.h>

#include "thread_state.h"

typedef struct FlowRun {
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
    SignalPoll poll; /* the thread that called run() only */
    int stop;
    int team_size; /* OUT of prepare(): num_threads, or 0 when too few threads came */
} FlowRun;

typedef struct FlowLibrary {
    /* Start threads and make the graph; NULL when memory is short. `run` must outlive what is returned. */
    void *(*prepare)(FlowRun *run);
    /* Returns 0, or the errno of a thread that could not be pinned. */
    int (*run)(void *graph);
    void (*close)(void *graph);
} FlowLibrary;

#endif
