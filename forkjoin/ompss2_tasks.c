/* The plan as OmpSs-2 tasks, by NODES on nOS-V: recorded once by `taskiter`, or created anew. Its C interface is called
 * as OmpSs-2's compiler would call it. https://github.com/bsc-pm/nodes
 *
 * The library can start once in a process: a thread of ours starts it, sleeps as its main task, and ends it when the
 * process exits. Its workers, one on each CPU that this thread may use, wait between runs. */
#include "outside_wait.h"

#include <fcntl.h>
#include <nodes.h>
#include <nosv.h>
#include <nosv/hwinfo.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* Created tasks that have not ended: creation would take all of nOS-V's memory otherwise. */
#define WINDOW 4096
/* Tasks executed by one taskiter, which has no early end: after a stop its tasks still run empty, for under a second. */
#define TASKS_PER_ITER (1 << 20)

typedef struct Session {
    OutsideRun *run;
    int64_t first;    /* replay of the iteration that a taskiter records */
    int64_t finished; /* blocks that have run */
    sem_t done;
    char cells[]; /* shape (num_cells,): only their addresses matter */
} Session;

typedef struct BlockArguments {
    Session *session;
    const LoopRecord *loop;
    int64_t replay;
    int32_t block;
} BlockArguments;

static int *worker_of_cpu; /* by nOS-V's number of a CPU */

static void run_block_task(void *argument, void *device, nanos6_address_translation_entry_t *table)
{
    BlockArguments *a = argument;
    (void)device, (void)table;
    forktask_run_outside(a->session->run, a->loop, a->block, a->replay, worker_of_cpu[nosv_get_current_logical_cpu()],
                         0);
    a->replay++; /* taskiter runs the same task again */
    __atomic_fetch_add(&a->session->finished, 1, __ATOMIC_RELAXED);
}

/* Commutative accesses are registered as concurrent ones: in a taskiter the library's own never end, and run_block()
 * holds the plan's locks in either case. */
static void register_accesses(void *argument, void *bounds, void *handler)
{
    static void (*const REGISTER[NUM_LISTS])(void *, void *, size_t, int) = {
        [LIST_READS] = nanos6_register_read_depinfo,
        [LIST_WRITES] = nanos6_register_write_depinfo,
        [LIST_UPDATES] = nanos6_register_readwrite_depinfo,
        [LIST_CONCURRENT] = nanos6_register_concurrent_depinfo,
        [LIST_COMMUTATIVE] = nanos6_register_concurrent_depinfo,
    };
    const BlockArguments *a = argument;
    Session *s = a->session;
    const int32_t task = a->loop->first_task + a->block;
    (void)bounds;
    for (int l = 0; l < NUM_LISTS; l++)
        for (int32_t i = s->run->lists[l].offsets[task]; i < s->run->lists[l].offsets[task + 1]; i++)
            REGISTER[l](handler, &s->cells[s->run->lists[l].cells[i]], 1, 0);
}

static void record_iteration(void *argument, void *bounds, nanos6_address_translation_entry_t *table);

static nanos6_task_invocation_info_t invocation = {"forktask"};
static nanos6_task_implementation_info_t run_block_info = {
    .device_type_id = nanos6_host_device,
    .run = run_block_task,
    .task_type_label = "block",
    .declaration_source = "block",
};
static nanos6_task_info_t block_info = {
    .num_symbols = 1,
    .register_depinfo = register_accesses,
    .implementation_count = 1,
    .implementations = &run_block_info,
    .coro_handle_idx = -1,
};
static nanos6_task_implementation_info_t record_info = {
    .device_type_id = nanos6_host_device,
    .run = record_iteration,
    .task_type_label = "taskiter",
    .declaration_source = "taskiter",
};
static nanos6_task_info_t iter_info = {
    .implementation_count = 1,
    .implementations = &record_info,
    .coro_handle_idx = -1,
};

static void create_block(Session *s, int loop, int32_t block, int64_t replay)
{
    const int32_t id = s->run->loops[loop].first_task + block;
    BlockArguments *arguments = NULL;
    void *task = NULL;
    size_t accesses = 0;
    for (int l = 0; l < NUM_LISTS; l++)
        accesses += s->run->lists[l].offsets[id + 1] - s->run->lists[l].offsets[id];
    nanos6_create_task(&block_info, &invocation, NULL, sizeof *arguments, (void **)&arguments, &task, 0, accesses);
    *arguments = (BlockArguments){s, &s->run->loops[loop], replay, block};
    nanos6_submit_task(task);
}

static void create_iteration(Session *s, int64_t replay)
{
    for (int l = 0; l < s->run->num_loops; l++)
        for (int32_t block = 0; block < s->run->loops[l].num_blocks; block++)
            create_block(s, l, block, replay);
}

static void record_iteration(void *argument, void *bounds, nanos6_address_translation_entry_t *table)
{
    Session *s = *(Session **)argument;
    (void)bounds, (void)table;
    create_iteration(s, s->first);
}

static void run_iters(Session *s)
{
    const int32_t num_tasks = s->run->num_tasks ? s->run->num_tasks : 1;
    const int64_t most = num_tasks < TASKS_PER_ITER ? TASKS_PER_ITER / num_tasks : 1;
    const int64_t last = s->run->first_replay + s->run->num_replays;
    int64_t end;
    for (s->first = s->run->first_replay; s->first < last && !forktask_stopped(s->run); s->first = end) {
        Session **argument = NULL;
        void *task = NULL;
        end = s->first + most < last ? s->first + most : last;
        if (end - s->first == 1) { /* NODES 1.3 frees the tasks of a taskiter of one iteration before it closes it */
            create_iteration(s, s->first);
        } else {
            nanos6_create_iter(&iter_info, &invocation, NULL, sizeof *argument, (void **)&argument, &task,
                               nanos6_taskiter_task, 0, 0, end - s->first, 1);
            *argument = s;
            nanos6_submit_task(task);
        }
        nanos6_taskwait("taskiter");
    }
}

static void create_tasks(Session *s)
{
    const OutsideRun *run = s->run;
    int64_t created = 0;
    for (int64_t replay = run->first_replay; replay < run->first_replay + run->num_replays; replay++)
        for (int l = 0; l < run->num_loops; l++) {
            for (int32_t block = 0; block < run->loops[l].num_blocks; block++, created++) {
                while (created - __atomic_load_n(&s->finished, __ATOMIC_RELAXED) >= WINDOW)
                    nanos6_yield();
                create_block(s, l, block, replay);
            }
            if (run->wait_after[l])
                nanos6_taskwait("loop");
            if (forktask_stopped(s->run))
                return;
        }
}

static void run_session(void *session)
{
    Session *s = session;
    s->finished = 0;
    if (strcmp(forktask_option(s->run, "construct"), "taskiter") == 0)
        run_iters(s);
    else
        create_tasks(s);
}

static void session_done(void *session)
{
    sem_post(&((Session *)session)->done);
}

static int run_all(void *session)
{
    Session *s = session;
    nanos6_spawn_function(run_session, s, session_done, s, "run");
    while (!was_posted(s->run, &s->done))
        ;
    return 0;
}

static pthread_t starter;
static sem_t started;
static void *main_task;
static int start_error, team_size;
static pid_t process;
static char file[64];

/* Start the library, sleep as its main task, and end it when the process exits. */
static void *start_library(void *argument)
{
    OutsideRun *run = argument;
    unsigned long cpus[FORKTASK_MAX_CPUS / (8 * sizeof(unsigned long))] = {0};
    for (int i = 0; i < run->num_threads; i++)
        CPU_SET_S(run->cpus[i], sizeof cpus, (cpu_set_t *)cpus);
    if (sched_setaffinity(0, sizeof cpus, (cpu_set_t *)cpus) != 0) {
        start_error = errno;
        sem_post(&started);
        return NULL;
    }
    nanos6_init();
    /* Nobody else opens its memory: without a name nothing of it stays, however the process ends. */
    snprintf(file, sizeof file, "/nosv-u%u-p%d", geteuid(), process = getpid());
    shm_unlink(file);
    nanos6_register_task_info(&block_info);
    nanos6_register_task_info(&iter_info);
    team_size = nosv_get_num_cpus();
    int *available = nosv_get_available_cpus();
    worker_of_cpu = calloc(team_size, sizeof *worker_of_cpu);
    for (int logical = 0; logical < team_size; logical++)
        for (int worker = 0; worker < run->num_threads; worker++)
            if (run->cpus[worker] == available[logical])
                worker_of_cpu[logical] = worker;
    free(available);
    main_task = nanos6_get_current_blocking_context();
    sem_post(&started);
    nanos6_block_current_task(main_task);
    nanos6_shutdown();
    return NULL;
}

static void end_library(void)
{
    if (process != getpid()) /* forked, without its threads */
        return;
    close(shm_open(file, O_CREAT | O_RDWR, 0600)); /* it complains where it finds no file to remove */
    nanos6_unblock_task(main_task);
    pthread_join(starter, NULL);
}

/* Returns 0 or an errno. */
static int ensure_started(OutsideRun *run)
{
    if (team_size == 0) {
        sem_init(&started, 0, 0);
        start_error = 0;
        const int error = pthread_create(&starter, NULL, start_library, run);
        if (error)
            return error;
        sem_wait(&started);
        if (start_error) {
            pthread_join(starter, NULL);
            return start_error;
        }
        atexit(end_library);
    }
    run->team_size = team_size;
    return 0;
}

static void *prepare(OutsideRun *run, int *error)
{
    Session *s = calloc(1, sizeof *s + run->num_cells + 1);
    *error = s == NULL ? ENOMEM : ensure_started(run);
    if (*error) {
        free(s);
        return NULL;
    }
    s->run = run;
    sem_init(&s->done, 0, 0);
    return s;
}

static void close_session(void *session)
{
    sem_destroy(&((Session *)session)->done);
    free(session);
}

FORKTASK_RUNTIME = {FORKTASK_OUTSIDE_VERSION, FORKTASK_TASKS, prepare, run_all, close_session};
