/* The outside reference: the same plan as OpenMP tasks with depend clauses, left to the OpenMP runtime.
 *
 * Thread 0 creates a task for each block, in plan order; its depend clauses list the cells it reads, writes and
 * updates, those that it updates in any order as inoutset (concurrent) and mutexinoutset (commutative). How many
 * tasks may wait is the runtime's own decision (libgomp: 64 for each thread, then the creator runs them itself).
 */
#ifndef FORKTASK_OPENMP_TASKS_H
#define FORKTASK_OPENMP_TASKS_H

#include "openmp_team.h"

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

static void run_task(OpenMPTaskRun *run, const LoopRecord *loop, int block, int64_t replay)
{
    const int thread = omp_get_thread_num();
    if (__atomic_load_n(&run->stop, __ATOMIC_RELAXED))
        return;
    if ((thread == 0 && forktask_must_stop(&run->poll)) || run_block(loop, block, replay, &run->workers[thread]) != 0)
        __atomic_store_n(&run->stop, 1, __ATOMIC_RELAXED);
}

/* Concurrent accesses. GCC knows the clause from 13 on, Clang from 16; before that they are ordered like updates. */
#if (defined(__clang__) && __clang_major__ >= 16) || (!defined(__clang__) && __GNUC__ >= 13)
#define CONCURRENT_DEPEND inoutset
#else
#define CONCURRENT_DEPEND inout
#endif

static void create_tasks(OpenMPTaskRun *run)
{
    char *cells = run->cells;
    for (int64_t replay = run->first_replay; replay < run->first_replay + run->num_replays; replay++) {
        for (int l = 0; l < run->num_loops; l++) {
            const LoopRecord *loop = &run->loops[l];
            for (int block = 0; block < loop->num_blocks; block++) {
                const int32_t task = loop->first_task + block;
                const int32_t *reads = run->read_cells + run->read_offsets[task];
                const int32_t *writes = run->write_cells + run->write_offsets[task];
                const int32_t *updates = run->update_cells + run->update_offsets[task];
                const int num_reads = run->read_offsets[task + 1] - run->read_offsets[task];
                const int num_writes = run->write_offsets[task + 1] - run->write_offsets[task];
                const int num_updates = run->update_offsets[task + 1] - run->update_offsets[task];
                const int32_t *concurrents = run->concurrent_cells + run->concurrent_offsets[task];
                const int32_t *commutatives = run->commutative_cells + run->commutative_offsets[task];
                const int num_concurrents = run->concurrent_offsets[task + 1] - run->concurrent_offsets[task];
                const int num_commutatives = run->commutative_offsets[task + 1] - run->commutative_offsets[task];
#pragma omp task default(none) firstprivate(run, loop, block, replay)                        \
    shared(cells, reads, writes, updates, concurrents, commutatives)                         \
    shared(num_reads, num_writes, num_updates, num_concurrents, num_commutatives)            \
    depend(iterator(int k = 0 : num_reads), in : cells[reads[k]])                            \
    depend(iterator(int k = 0 : num_writes), out : cells[writes[k]])                         \
    depend(iterator(int k = 0 : num_updates), inout : cells[updates[k]])                     \
    depend(iterator(int k = 0 : num_concurrents), CONCURRENT_DEPEND : cells[concurrents[k]]) \
    depend(iterator(int k = 0 : num_commutatives), mutexinoutset : cells[commutatives[k]])
                run_task(run, loop, block, replay);
            }
            if (run->wait_after[l]) {
#pragma omp taskwait
            }
            if (__atomic_load_n(&run->stop, __ATOMIC_RELAXED) || forktask_must_stop(&run->poll)) {
                __atomic_store_n(&run->stop, 1, __ATOMIC_RELAXED);
                return;
            }
        }
    }
}

static void forktask_run_openmp_tasks(OpenMPTaskRun *run)
{
    int failed = 0;
    run->team_size = 0;
    run->stop = 0;
#pragma omp parallel num_threads(run->num_threads)
    {
        const int thread = forktask_enter_team(run->threads, run->cpus, run->num_threads, &run->team_size, &failed);
        /* Thread 0 is the caller of run() and looks for signals; the others take tasks at the barrier. */
        if (thread == 0 && !__atomic_load_n(&failed, __ATOMIC_RELAXED))
            create_tasks(run);
#pragma omp barrier
        forktask_leave_thread(&run->threads[thread]);
    }
}

#endif
