/* The plan as StarPU tasks over data handles, one for each cell: an outside reference. */
#include "outside.h"

#include <pthread.h>
#include <starpu.h>
#include <stdlib.h>

/* Tasks of so many iterations may wait for their turn: creation runs ahead without end otherwise. */
#define ITERATIONS_AHEAD 2

typedef struct Session {
    OutsideRun *run;
    starpu_data_handle_t *handles; /* shape (num_cells,) */
    int32_t *offsets;              /* shape (num_tasks + 1,): accesses of each task, those of all lists together */
    int32_t *cells;
    enum starpu_data_access_mode *modes;
    struct starpu_codelet codelet;
} Session;

typedef struct TaskArgument {
    OutsideRun *run;
    const LoopRecord *loop;
    int64_t replay;
    int32_t block, loop_index;
} TaskArgument;

static void run_task(void *buffers[], void *argument)
{
    const TaskArgument *a = argument;
    (void)buffers;
    forktask_run_outside(a->run, a->loop, a->block, a->replay, starpu_worker_get_id(), 0);
}

/* Blocks of a loop have one history of durations: void handles have no sizes that would tell loops apart. */
static uint32_t footprint_of_loop(struct starpu_task *task)
{
    return ((const TaskArgument *)task->cl_arg)->loop_index;
}

static void enter_worker(void *argument)
{
    forktask_enter_worker(argument, starpu_worker_get_id());
}

/* Put the accesses of each task side by side, as StarPU takes them. */
static void join_lists(Session *s)
{
    static const enum starpu_data_access_mode MODES[NUM_LISTS] = {
        [LIST_READS] = STARPU_R,
        [LIST_WRITES] = STARPU_W,
        [LIST_UPDATES] = STARPU_RW,
        [LIST_CONCURRENT] = STARPU_RW | STARPU_COMMUTE,
        [LIST_COMMUTATIVE] = STARPU_RW | STARPU_COMMUTE,
    };
    const OutsideRun *run = s->run;
    int32_t n = 0;
    for (int32_t task = 0; task < run->num_tasks; task++) {
        s->offsets[task] = n;
        for (int l = 0; l < NUM_LISTS; l++)
            for (int32_t i = run->lists[l].offsets[task]; i < run->lists[l].offsets[task + 1]; i++, n++) {
                s->cells[n] = run->lists[l].cells[i];
                s->modes[n] = MODES[l];
            }
    }
    s->offsets[run->num_tasks] = n;
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

static void free_session(Session *s)
{
    free(s->handles);
    free(s->offsets);
    free(s->cells);
    free(s->modes);
    free(s);
}

/* Start StarPU and register handles. */
static void *prepare(OutsideRun *run, int *error)
{
    Session *s = calloc(1, sizeof *s);
    size_t accesses = 1;
    *error = ENOMEM;
    if (s == NULL)
        return NULL;
    for (int l = 0; l < NUM_LISTS; l++)
        accesses += run->lists[l].offsets[run->num_tasks];
    s->run = run;
    s->handles = calloc(run->num_cells + 1, sizeof *s->handles);
    s->offsets = calloc(run->num_tasks + 1, sizeof *s->offsets);
    s->cells = calloc(accesses, sizeof *s->cells);
    s->modes = calloc(accesses, sizeof *s->modes);
    if (s->handles == NULL || s->offsets == NULL || s->cells == NULL || s->modes == NULL ||
        (*error = begin_session(run)) != 0) {
        free_session(s);
        return NULL;
    }
    run->team_size = run->num_threads;
    join_lists(s);
    starpu_codelet_init(&s->codelet);
    s->codelet.cpu_funcs[0] = run_task;
    s->codelet.nbuffers = STARPU_VARIABLE_NBUFFERS;
    s->codelet.name = "block";
    s->codelet.model = &durations;
    for (int32_t c = 0; c < run->num_cells; c++)
        starpu_void_data_register(&s->handles[c]);
    return s;
}

/* Submit one task. Its arrays are StarPU's from then on: it frees them with the task. */
static int submit(Session *s, int loop_index, int32_t block, int64_t replay)
{
    const LoopRecord *loop = &s->run->loops[loop_index];
    const int32_t id = loop->first_task + block, first = s->offsets[id], n = s->offsets[id + 1] - first;
    struct starpu_task *task = starpu_task_create();
    TaskArgument *argument = malloc(sizeof *argument);
    int error;
    *argument = (TaskArgument){s->run, loop, replay, block, loop_index};
    task->cl = &s->codelet;
    task->cl_arg = argument;
    task->cl_arg_size = sizeof *argument;
    task->cl_arg_free = 1;
    task->nbuffers = n;
    if (n > STARPU_NMAXBUFS) {
        task->dyn_handles = malloc(n * sizeof *task->dyn_handles);
        task->dyn_modes = malloc(n * sizeof *task->dyn_modes);
    }
    for (int32_t i = 0; i < n; i++) {
        STARPU_TASK_SET_HANDLE(task, s->handles[s->cells[first + i]], i);
        STARPU_TASK_SET_MODE(task, s->modes[first + i], i);
    }
    error = -starpu_task_submit(task);
    if (error) {
        task->destroy = 0;
        starpu_task_destroy(task);
    }
    return error;
}

static int submit_all(Session *s)
{
    OutsideRun *run = s->run;
    int error = 0;
    for (int64_t replay = run->first_replay; replay < run->first_replay + run->num_replays; replay++) {
        for (int l = 0; l < run->num_loops; l++) {
            for (int32_t block = 0; block < run->loops[l].num_blocks && !error; block++)
                error = submit(s, l, block, replay);
            if (run->wait_after[l])
                starpu_task_wait_for_all();
            if (error || forktask_stopped(run) || forktask_must_stop(&run->poll)) {
                forktask_stop(run);
                return error;
            }
        }
        starpu_task_wait_for_n_submitted((ITERATIONS_AHEAD - 1) * run->num_tasks);
    }
    return error;
}

static int run_all(void *session)
{
    Session *s = session;
    int error;
    begin_run();
    error = submit_all(s);
    starpu_task_wait_for_all();
    end_run();
    return error;
}

static void close_session(void *session)
{
    Session *s = session;
    begin_run(); /* handles are given back while workers take part */
    for (int32_t c = 0; c < s->run->num_cells; c++)
        starpu_data_unregister(s->handles[c]);
    end_run();
    end_session();
    free_session(s);
}

#define TEXT(number)   #number
#define TEXT_OF(macro) TEXT(macro)
#define RELEASE TEXT_OF(STARPU_MAJOR_VERSION) "." TEXT_OF(STARPU_MINOR_VERSION) "." TEXT_OF(STARPU_RELEASE_VERSION)

FORKTASK_RUNTIME = {FORKTASK_OUTSIDE_VERSION, FORKTASK_TASKS, prepare, run_all, close_session, .release = RELEASE};
