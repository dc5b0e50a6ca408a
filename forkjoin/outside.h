/* Plans run by other libraries: what each of them gets, and what it offers to outside_runs.pyx. A library is a module with
 * one name, LIBRARY, the address of its OutsideLibrary; it is built where the library was found. */
#ifndef FORKTASK_OUTSIDE_H
#define FORKTASK_OUTSIDE_H

#include <Python.h>
#include <stdint.h>

#include "thread_state.h"

/* Cells that tasks access in one way: offsets of shape (num_tasks + 1,) into cells. */
typedef struct CellLists {
    const int32_t *offsets, *cells;
} CellLists;

enum { LIST_READS, LIST_WRITES, LIST_UPDATES, LIST_CONCURRENT, LIST_COMMUTATIVE, NUM_LISTS };

typedef struct OutsideRun {
    const LoopRecord *loops;
    const int32_t *task_loop; /* shape (num_tasks,) */
    int num_loops, num_threads;
    int32_t num_tasks, num_cells;
    int64_t first_replay, num_replays;
    WorkerState *workers;
    ThreadState *threads;
    const int *cpus; /* or NULL: do not pin */
    SignalPoll poll; /* of the thread that calls run() */
    int stop;        /* set once by a thread that fails or is interrupted; tasks that start later do nothing */
    int team_size;   /* OUT of prepare(), or of run(): threads that came, 0 when too few did */
    /* Where tasks are created anew in each iteration: */
    const uint8_t *wait_after; /* shape (num_loops,): wait for all tasks after the loop */
    CellLists lists[NUM_LISTS];
    const char *scheduler;
    int records; /* the tasks of one iteration are created, and the library repeats them */
    /* Where a graph is run, with a wait between iterations; nodes past num_tasks are joins, which run nothing: */
    int32_t num_nodes;
    const int32_t *successor_offsets; /* shape (num_nodes + 1,): edges within an iteration only */
    const int32_t *successors;
    const int32_t *num_predecessors; /* shape (num_nodes,) */
    int phase;                       /* threads without work stay in a run */
} OutsideRun;

typedef struct OutsideLibrary {
    /* Start threads and make what runs need; returns NULL and sets *error to an errno where that fails. `run` must
     * outlive what is returned. */
    void *(*prepare)(OutsideRun *run, int *error);
    /* Returns 0, or the errno of a thread that could not be pinned, or of a task that was not taken. */
    int (*run)(void *session);
    void (*close)(void *session);
} OutsideLibrary;

static inline int forktask_stopped(OutsideRun *run)
{
    return __atomic_load_n(&run->stop, __ATOMIC_RELAXED);
}

static inline void forktask_stop(OutsideRun *run)
{
    __atomic_store_n(&run->stop, 1, __ATOMIC_RELAXED);
}

/* Run a block unless the run has been stopped; `polls`: the thread is the one that looks for signals. */
static inline void forktask_run_outside(OutsideRun *run, const LoopRecord *loop, ptrdiff_t block, int64_t replay,
                                        int worker, int polls)
{
    if (forktask_stopped(run))
        return;
    if ((polls && forktask_must_stop(&run->poll)) || run_block(loop, block, replay, &run->workers[worker]) != 0)
        forktask_stop(run);
}

/* Enter the thread of a worker, pinned if CPUs are given. */
static inline void forktask_enter_worker(OutsideRun *run, int worker)
{
    forktask_enter_thread(&run->threads[worker], run->cpus ? run->cpus[worker] : -1);
}

/* Returns the errno of a thread that could not be pinned, or 0. */
static inline int forktask_pinning_error(const OutsideRun *run)
{
    for (int thread = 0; thread < run->num_threads; thread++)
        if (run->threads[thread].error)
            return run->threads[thread].error;
    return 0;
}

#define OUTSIDE_MODULE(NAME, PREPARE, RUN, CLOSE)                                                                  \
    PyMODINIT_FUNC PyInit_##NAME(void)                                                                             \
    {                                                                                                              \
        static const OutsideLibrary library = {PREPARE, RUN, CLOSE};                                               \
        static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, #NAME, NULL, -1, NULL, NULL, NULL, NULL, NULL}; \
        PyObject *made = PyModule_Create(&module);                                                                 \
        if (made != NULL && PyModule_AddObject(made, "LIBRARY", PyLong_FromVoidPtr((void *)&library)) != 0)        \
            Py_CLEAR(made);                                                                                        \
        return made;                                                                                               \
    }

#endif
