/* The interface of a runtime: the three functions by which a library runs a plan's blocks.
 *
 * Include it as "forkjoin/outside.h" from the folder that `forktask.get_include()` names; it needs no Python and nothing
 * to link with. A shared library that ends with
 *
 *     FORKTASK_RUNTIME = {FORKTASK_OUTSIDE_VERSION, FORKTASK_GRAPH, prepare, run, close};
 *
 * is a model: `--models serial,lib:./libmine.so`. The outside references of this package are made alike.
 *
 * A plan is an ordered list of loops over blocks; a task is a block's place in an iteration, and a replay is one pass
 * through the plan. prepare() gets a record that stays where it is until close(), with all that it points to, so that
 * pointers into it may be kept. run() runs replays first_replay ... first_replay + num_replays - 1, each block of each
 * replay once, and returns when all of them have ended. It is called as often as wished, with any numbers, also with
 * num_replays == 0; a program may have several sessions at a time, of which each is called by one thread at a time.
 *
 * Threads. Workers are numbered 0 ... num_threads - 1, and two threads never are the same worker at once. A worker's
 * thread calls forktask_enter_worker() before its first block: it pins the thread and sets its floating-point mode. The
 * thread that calls run() may be a worker (`caller_executes`); it then enters at the beginning of each run, and calls
 * forktask_leave_worker() at its end. prepare(), or the first run(), sets `team_size` to the number of workers that
 * started: where it is not num_threads, the run is refused.
 *
 * Failure and signals. A block is run by forktask_run_task() or forktask_run_outside() alone. When one fails, or a
 * signal arrives, `stop` is set, and every call from then on returns without a run; the library ends the run by leaving
 * early or by letting all tasks pass. Signals are looked for by the thread that called run(): `polls` where it runs
 * blocks, forktask_poll_waiting() some 50 times a second where it waits. No other thread may look. */
#ifndef FORKTASK_OUTSIDE_H
#define FORKTASK_OUTSIDE_H

#include "thread_state.h"

/* Raised with every change of this file and of the records in block_kernel.h, event_log.h and thread_state.h. A library
 * of another version is refused. */
#define FORKTASK_OUTSIDE_VERSION 1

/* What a library takes, besides the loops, which all of them get:
 * FORKTASK_LOOPS: nothing. Loops run one after the other, the blocks of each in any order, with a wait after each loop.
 * FORKTASK_TASKS: cells by which it finds dependences itself. Tasks are created in plan order, in each iteration anew or
 *     once in a run; where wait_after says so, all tasks so far end before the next is created.
 * FORKTASK_GRAPH: the dependences of an iteration. Between iterations it waits for all tasks.
 * FORKTASK_CLOSED_GRAPH: these, and the dependences of the next iteration on this one. Nothing waits: a task of replay
 *     r may start when its num_predecessors of replay r and, after the first replay of the run, its
 *     num_former_predecessors of replay r - 1 have ended. Every edge lies on a cycle with one edge to the next replay, so
 *     that a predecessor is never two replays ahead: one counter for each node suffices. */
enum { FORKTASK_LOOPS, FORKTASK_TASKS, FORKTASK_GRAPH, FORKTASK_CLOSED_GRAPH };

/* Cells that tasks access in one way: offsets of shape (num_tasks + 1,) into cells. A task that reads and writes a cell
 * updates it. Concurrent accesses to a cell run in any order, also at once. Commutative ones run in any order, one at a
 * time: run_block() holds locks for them, so that they may start at once like concurrent ones. */
typedef struct CellLists {
    const int32_t *offsets, *cells;
} CellLists;

enum { LIST_READS, LIST_WRITES, LIST_UPDATES, LIST_CONCURRENT, LIST_COMMUTATIVE, NUM_LISTS };

typedef struct OutsideRun {
    const LoopRecord *loops;  /* in plan order; block b of a loop is task first_task + b */
    const int32_t *task_loop; /* shape (num_tasks,): number of each task's loop */
    int num_loops, num_threads;
    int32_t num_tasks, num_cells;
    int64_t first_replay, num_replays; /* set before each run */
    WorkerState *workers;
    ThreadState *threads;
    const int *cpus; /* or NULL: do not pin */
    SignalPoll poll;
    int stop;      /* 0 when a run begins */
    int team_size; /* OUT */
    /* FORKTASK_TASKS: */
    const uint8_t *wait_after; /* shape (num_loops,) */
    CellLists lists[NUM_LISTS];
    /* FORKTASK_GRAPH and FORKTASK_CLOSED_GRAPH. Nodes past num_tasks are joins, which run nothing: they stand for many
     * edges. Successors of node v in its own replay are successors[i] with successor_offsets[v] <= i < successor_split[v];
     * those in the next replay follow, up to successor_offsets[v + 1]. */
    int32_t num_nodes;
    const int32_t *successor_offsets; /* shape (num_nodes + 1,) */
    const int32_t *successor_split;   /* shape (num_nodes,) */
    const int32_t *successors;
    const int32_t *num_predecessors;        /* shape (num_nodes,) */
    const int32_t *num_former_predecessors; /* shape (num_nodes,); all 0 for FORKTASK_GRAPH */
    /* Values of options: name, value, name, value, ..., NULL. */
    const char **options;
} OutsideRun;

/* An option of a library: it stands in the name of the model, as in `lib:./libmine.so:queue=deque`. */
typedef struct OutsideOption {
    const char *name, *value; /* a lower-case word; its default */
    const char *choices;      /* as in "mutex|deque", or NULL: any text */
    const char *text;         /* a clause for help pages, or NULL */
} OutsideOption;

typedef struct OutsideLibrary {
    int version; /* FORKTASK_OUTSIDE_VERSION */
    int takes;   /* FORKTASK_LOOPS, ... */
    /* Start threads and make what runs need. Returns what run() and close() get; or NULL, with an errno in *error. */
    void *(*prepare)(OutsideRun *run, int *error);
    /* Returns 0 or an errno. */
    int (*run)(void *session);
    /* End all threads and free all memory. */
    void (*close)(void *session);
    int caller_executes;          /* the thread that calls run() is one of num_threads; else it only waits */
    const char *release;          /* version of the library, which stands in rows, or NULL */
    const OutsideOption *options; /* the last has no name; or NULL */
} OutsideLibrary;

#ifdef __cplusplus
#define FORKTASK_RUNTIME extern "C" __attribute__((visibility("default"))) const OutsideLibrary forktask_runtime
#else
#define FORKTASK_RUNTIME __attribute__((visibility("default"))) const OutsideLibrary forktask_runtime
#endif

/* Return the value of an option. */
static inline const char *forktask_option(const OutsideRun *run, const char *name)
{
    for (const char **option = run->options; *option != NULL; option += 2)
        if (strcmp(option[0], name) == 0)
            return option[1];
    return NULL;
}

static inline int forktask_stopped(OutsideRun *run)
{
    return __atomic_load_n(&run->stop, __ATOMIC_RELAXED);
}

static inline void forktask_stop(OutsideRun *run)
{
    __atomic_store_n(&run->stop, 1, __ATOMIC_RELAXED);
}

/* Look for signals from the thread that called run(), where it waits. Non-zero: the run has been stopped. */
static inline int forktask_poll_waiting(OutsideRun *run)
{
    run->poll.countdown = 1; /* it is time to look */
    if (forktask_must_stop(&run->poll))
        forktask_stop(run);
    return forktask_stopped(run);
}

/* Run a block unless the run has been stopped; `polls`: the thread is the one that called run(). */
static inline void forktask_run_outside(OutsideRun *run, const LoopRecord *loop, ptrdiff_t block, int64_t replay,
                                        int worker, int polls)
{
    if (forktask_stopped(run))
        return;
    if ((polls && forktask_must_stop(&run->poll)) || run_block(loop, block, replay, &run->workers[worker]) != 0)
        forktask_stop(run);
}

/* The same for a task. */
static inline void forktask_run_task(OutsideRun *run, int32_t task, int64_t replay, int worker, int polls)
{
    const LoopRecord *loop = &run->loops[run->task_loop[task]];
    forktask_run_outside(run, loop, task - loop->first_task, replay, worker, polls);
}

/* Enter the thread of a worker, pinned if CPUs are given. */
static inline void forktask_enter_worker(OutsideRun *run, int worker)
{
    forktask_enter_thread(&run->threads[worker], run->cpus ? run->cpus[worker] : -1);
}

/* Undo it on the same thread. */
static inline void forktask_leave_worker(OutsideRun *run, int worker)
{
    forktask_leave_thread(&run->threads[worker]);
}

/* Returns the errno of a thread that could not be pinned, or 0; after each run it is looked at anyway. */
static inline int forktask_pinning_error(const OutsideRun *run)
{
    for (int thread = 0; thread < run->num_threads; thread++)
        if (run->threads[thread].error)
            return run->threads[thread].error;
    return 0;
}

#endif
