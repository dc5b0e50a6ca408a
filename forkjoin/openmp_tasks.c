/* The outside reference: the same plan as OpenMP tasks with depend clauses, left to the OpenMP runtime.
 *
 * Thread 0 creates a task for each block, in plan order; its depend clauses list the cells it reads, writes and
 * updates, those that it updates in any order as inoutset (concurrent) and mutexinoutset (commutative). How many
 * tasks may wait is the runtime's own decision (libgomp: 64 for each thread, then the creator runs them itself).
 */
#include "outside.h"

#include <stdlib.h>

#include "openmp_team.h"

typedef struct Session {
    OutsideRun *run;
    char cells[]; /* shape (num_cells,): only their addresses matter */
} Session;

static void run_task(OutsideRun *run, const LoopRecord *loop, int block, int64_t replay)
{
    const int thread = omp_get_thread_num();
    forktask_run_outside(run, loop, block, replay, thread, thread == 0);
}

/* Concurrent accesses. GCC knows the clause from 13 on, Clang from 16; before that they are ordered like updates. */
#if (defined(__clang__) && __clang_major__ >= 16) || (!defined(__clang__) && __GNUC__ >= 13)
#define CONCURRENT_DEPEND inoutset
#else
#define CONCURRENT_DEPEND inout
#endif

static void create_task(OutsideRun *run, char *cells, const LoopRecord *loop, int block, int64_t replay)
{
    const int32_t task = loop->first_task + block;
    const int32_t *of[NUM_LISTS];
    int num[NUM_LISTS];
    for (int l = 0; l < NUM_LISTS; l++) {
        of[l] = run->lists[l].cells + run->lists[l].offsets[task];
        num[l] = run->lists[l].offsets[task + 1] - run->lists[l].offsets[task];
    }
#pragma omp task default(none) firstprivate(run, loop, block, replay) shared(cells, of, num)              \
    depend(iterator(int k = 0 : num[LIST_READS]), in : cells[of[LIST_READS][k]])                          \
    depend(iterator(int k = 0 : num[LIST_WRITES]), out : cells[of[LIST_WRITES][k]])                       \
    depend(iterator(int k = 0 : num[LIST_UPDATES]), inout : cells[of[LIST_UPDATES][k]])                   \
    depend(iterator(int k = 0 : num[LIST_CONCURRENT]), CONCURRENT_DEPEND : cells[of[LIST_CONCURRENT][k]]) \
    depend(iterator(int k = 0 : num[LIST_COMMUTATIVE]), mutexinoutset : cells[of[LIST_COMMUTATIVE][k]])
    run_task(run, loop, block, replay);
}

static void create_tasks(OutsideRun *run, char *cells)
{
    for (int64_t replay = run->first_replay; replay < run->first_replay + run->num_replays; replay++) {
        for (int l = 0; l < run->num_loops; l++) {
            for (int block = 0; block < run->loops[l].num_blocks; block++)
                create_task(run, cells, &run->loops[l], block, replay);
            if (run->wait_after[l]) {
#pragma omp taskwait
            }
            if (forktask_stopped(run) || forktask_must_stop(&run->poll)) {
                forktask_stop(run);
                return;
            }
        }
    }
}

static void *prepare(OutsideRun *run, int *error)
{
    Session *s = malloc(sizeof *s + run->num_cells);
    *error = ENOMEM;
    if (s != NULL)
        s->run = run;
    return s;
}

static int run_all(void *session)
{
    Session *s = session;
    OutsideRun *run = s->run;
    int failed = 0;
    run->team_size = 0;
#pragma omp parallel num_threads(run->num_threads)
    {
        const int thread = forktask_enter_team(run->threads, run->cpus, run->num_threads, &run->team_size, &failed);
        /* Thread 0 is the caller of run() and looks for signals; the others take tasks at the barrier. */
        if (thread == 0 && !__atomic_load_n(&failed, __ATOMIC_RELAXED))
            create_tasks(run, s->cells);
#pragma omp barrier
        forktask_leave_thread(&run->threads[thread]);
    }
    return 0;
}

FORKTASK_RUNTIME = {FORKTASK_OUTSIDE_VERSION, FORKTASK_TASKS, prepare, run_all, free, .caller_executes = 1};
