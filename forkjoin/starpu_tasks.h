/* The plan as StarPU tasks over data handles, one for each cell: an outside reference. */
#ifndef FORKTASK_STARPU_TASKS_H
#define FORKTASK_STARPU_TASKS_H

#include "thread_state.h"

/* How a task accesses a cell; shape (num_tasks + 1,) and the cells themselves. */
typedef struct CellLists {
    const int32_t *offsets, *cells;
} CellLists;

/* Lists of a task, in the order of openmp_task_run.depend_lists(). */
enum { STARPU_READS, STARPU_WRITES, STARPU_UPDATES, STARPU_CONCURRENT, STARPU_COMMUTATIVE, STARPU_NUM_LISTS };

typedef struct StarpuRun {
    const LoopRecord *loops;
    int num_loops, num_threads;
    int32_t num_tasks, num_cells;
    const uint8_t *wait_after; /* shape (num_loops,): wait for all tasks after the loop */
    CellLists lists[STARPU_NUM_LISTS];
    const char *scheduler;
    int64_t first_replay, num_replays;
    WorkerState *workers;
    ThreadState *threads;
    const int *cpus; /* or NULL: do not pin */
    SignalPoll poll; /* of the thread that calls forktask_starpu_run(), which submits tasks and runs none */
    int stop;
} StarpuRun;

/* Start StarPU and register handles. Returns NULL and sets *error to an errno. `run` must outlive what is returned. */
void *forktask_starpu_prepare(StarpuRun *run, int *error);
/* Returns 0, or the errno of a thread that could not be pinned, or of a task that was not taken. */
int forktask_starpu_run(void *session);
void forktask_starpu_close(void *session);

#endif
