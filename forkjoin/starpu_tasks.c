/* The plan as StarPU tasks over data handles, one for each cell: an outside reference. */
#include "starpu_sessions.h"

#include <stdlib.h>

/* Iterations whose tasks may wait for their turn: creation runs ahead without end otherwise. */
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
    int32_t loop_index, block;
    OutsideRun *run;
    const LoopRecord *loop;
    int64_t replay;
} TaskArgument;

static void run_task(void *buffers[], void *argument)
{
    const TaskArgument *a = argument;
    (void)buffers;
    forktask_run_outside(a->run, a->loop, a->block, a->replay, starpu_worker_get_id(), 0);
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
    join_lists(s);
    describe_blocks(&s->codelet, run_task, STARPU_VARIABLE_NBUFFERS);
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
    *argument = (TaskArgument){loop_index, block, s->run, loop, replay};
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

FORKTASK_RUNTIME = {FORKTASK_OUTSIDE_VERSION, FORKTASK_TASKS, prepare, run_all, close_session, .release = RELEASE};
