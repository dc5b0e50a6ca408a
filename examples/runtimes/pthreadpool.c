/* Fork-join by XNNPACK's pthreadpool: each loop of the plan is a parallel loop of the pool, which waits at its end. */
#include "forkjoin/outside.h"

#include <pthread.h>
#include <pthreadpool.h>
#include <stdlib.h>

static __thread int worker; /* of a thread of a pool; the caller of run() is worker 0 */

typedef struct Session {
    OutsideRun *run;
    pthreadpool_t pool;
    pthread_t caller; /* of prepare() */
    int here;         /* threads that have entered */
    const LoopRecord *loop;
    int64_t replay;
} Session;

/* Each thread gets one item, and keeps it until all are there, so that none gets two. */
static void enter(void *session, size_t item)
{
    Session *s = session;
    (void)item;
    if (!pthread_equal(pthread_self(), s->caller)) {
        worker = __atomic_fetch_add(&s->here, 1, __ATOMIC_ACQ_REL);
        forktask_enter_worker(s->run, worker);
    }
    while (__atomic_load_n(&s->here, __ATOMIC_ACQUIRE) < s->run->num_threads)
        sched_yield();
}

static void run_block_of_loop(void *session, size_t block)
{
    Session *s = session;
    forktask_run_outside(s->run, s->loop, (ptrdiff_t)block, s->replay, worker, worker == 0);
}

static void *prepare(OutsideRun *run, int *error)
{
    Session *s = calloc(1, sizeof *s);
    *error = ENOMEM;
    if (s == NULL || (s->pool = pthreadpool_create(run->num_threads)) == NULL) {
        free(s);
        return NULL;
    }
    s->run = run;
    run->team_size = (int)pthreadpool_get_threads_count(s->pool);
    s->caller = pthread_self();
    s->here = 1;
    if (run->team_size == run->num_threads)
        pthreadpool_parallelize_1d(s->pool, enter, s, run->num_threads, 0);
    return s;
}

static int run_all(void *session)
{
    Session *s = session;
    OutsideRun *run = s->run;
    worker = 0;
    forktask_enter_worker(run, 0);
    for (s->replay = run->first_replay; s->replay < run->first_replay + run->num_replays; s->replay++)
        for (int l = 0; l < run->num_loops && !forktask_stopped(run); l++) {
            s->loop = &run->loops[l];
            pthreadpool_parallelize_1d(s->pool, run_block_of_loop, s, s->loop->num_blocks, 0);
            if (forktask_must_stop(&run->poll))
                forktask_stop(run);
        }
    forktask_leave_worker(run, 0);
    return 0;
}

static void finish(void *session)
{
    Session *s = session;
    pthreadpool_destroy(s->pool);
    free(s);
}

FORKTASK_RUNTIME = {FORKTASK_OUTSIDE_VERSION, FORKTASK_LOOPS, prepare, run_all, finish, .caller_executes = 1};
