/* The outside reference: the same plan as OpenMP tasks with depend clauses, left to the OpenMP runtime.
 *
 * Thread 0 creates a task for each block, in plan order; its depend clauses list the cells it reads, writes and
 * updates, those that it updates in any order as inoutset (concurrent) and mutexinoutset (commutative). How many
 * tasks may wait is the runtime's own decision (libgomp: 64 for each thread, then the creator runs them itself).
 */
#ifndef FORKTASK_OPENMP_TASKS_H
#define FORKTASK_OPENMP_TASKS_H

#include "thread_state.h"

typedef struct OpenMPTaskRun {
    const LoopRecord *loops;
    int num_loops;
    int num_threads;
    const uint8_t *wait_after; /* shape (num_loops,): taskwait after this loop */
    /* Offsets of shape (num_tasks + 1,) into cells, by the clause they go into. */
    const int32_t *read_offsets, *write_offsets, *update_offsets, *concurrent_offsets, *commutative_offsets;
    const int32_t *read_cells, *write_cells, *update_cells, *concurrent_cells, *commutative_cells;
    char *cells; /* shape (num_cells,): only their addresses matter */
    int64_t first_replay;
    int64_t num_replays;
    WorkerState *workers;
    ThreadState *threads;
    const int *cpus; /* or NULL: do not pin */
    SignalPoll poll; /* thread 0 only */
    int team_size;   /* OUT */
    int stop;        /* set once by a thread that fails or is interrupted; tasks that start later do nothing */
} OpenMPTaskRun;

void forktask_run_openmp_tasks(OpenMPTaskRun *run);

#endif
