/* StarPU's start and end, and pauses between runs, for the libraries that run plans by it: each has its own, and a
 * process uses one of them at a time. */
#ifndef FORKTASK_STARPU_SESSIONS_H
#define FORKTASK_STARPU_SESSIONS_H

#include "outside.h"

#include <pthread.h>
#include <starpu.h>
#include <string.h>

#define TEXT(number)   #number
#define TEXT_OF(macro) TEXT(macro)
#define RELEASE TEXT_OF(STARPU_MAJOR_VERSION) "." TEXT_OF(STARPU_MINOR_VERSION) "." TEXT_OF(STARPU_RELEASE_VERSION)

/* Blocks of a loop have one history of durations: void handles have no sizes that would tell loops apart.
 * Arguments of tasks begin with the number of the loop. */
static uint32_t footprint_of_loop(struct starpu_task *task)
{
    return *(const int32_t *)task->cl_arg;
}

static void enter_worker(void *argument)
{
    forktask_enter_worker(argument, starpu_worker_get_id());
}

/* StarPU starts once in a process: sessions share it, and its workers are paused while none runs. */
static pthread_mutex_t shared = PTHREAD_MUTEX_INITIALIZER;
static int num_sessions, num_runs;
/* For the schedulers that ask how long tasks take. StarPU reads it once more when it ends, after most sessions. */
static struct starpu_perfmodel durations;

static int start_library(OutsideRun *run)
{
    if (num_sessions > 0)
        return 0;
    durations =
        (struct starpu_perfmodel){.type = STARPU_HISTORY_BASED, .symbol = "forktask", .footprint = footprint_of_loop};
    struct starpu_conf conf;
    starpu_conf_init(&conf);
    conf.ncpus = run->num_threads;
    conf.ncuda = conf.nopencl = 0;
    conf.sched_policy_name = forktask_option(run, "scheduler");
    /* Policies that ask for durations measure all tasks from the start: StarPU 1.3 begins to where a loop has no
     * history yet, and aborts if a task of another loop ends at that moment. */
    conf.calibrate = strncmp(conf.sched_policy_name, "dm", 2) == 0;
    conf.catch_signals = 0;
    int error = -starpu_init(&conf);
    if (error)
        return error;
    starpu_execute_on_each_worker(enter_worker, run, STARPU_CPU);
    starpu_pause();
    error = forktask_pinning_error(run);
    if (error) {
        starpu_resume();
        starpu_shutdown();
    }
    return error;
}

static int begin_session(OutsideRun *run)
{
    pthread_mutex_lock(&shared);
    const int error = start_library(run);
    num_sessions += error == 0;
    run->team_size = error ? 0 : run->num_threads;
    pthread_mutex_unlock(&shared);
    return error;
}

static void end_session(void)
{
    pthread_mutex_lock(&shared);
    if (--num_sessions == 0) {
        starpu_resume();
        starpu_shutdown();
    }
    pthread_mutex_unlock(&shared);
}

static void begin_run(void)
{
    pthread_mutex_lock(&shared);
    if (num_runs++ == 0)
        starpu_resume();
    pthread_mutex_unlock(&shared);
}

static void end_run(void)
{
    pthread_mutex_lock(&shared);
    if (--num_runs == 0)
        starpu_pause();
    pthread_mutex_unlock(&shared);
}

static void describe_blocks(struct starpu_codelet *codelet, void (*run)(void **, void *), int num_buffers)
{
    starpu_codelet_init(codelet);
    codelet->cpu_funcs[0] = run;
    codelet->nbuffers = num_buffers;
    codelet->name = "block";
    codelet->model = &durations;
}

#endif
