/* A discrete-event simulation of the executors' policies on any number of workers. */
#ifndef FORKTASK_EVENT_LOOP_H
#define FORKTASK_EVENT_LOOP_H

#include <stdint.h>

enum { SIMULATE_LOOPS = 0, SIMULATE_EAGER = 1, SIMULATE_STEALING = 2, SIMULATE_PROGRAMS = 3 };
enum { SCHEDULE_STATIC = 0, SCHEDULE_DYNAMIC = 1, SCHEDULE_GUIDED = 2 };
enum { SIMULATE_DONE = 0, SIMULATE_NO_MEMORY = -1, SIMULATE_STUCK = -2 };

/* A closed graph as `dependences.TaskGraph` has it, and its loops. */
typedef struct SimulatedGraph {
    int32_t num_tasks, num_nodes, num_loops;
    const int32_t *offsets, *split, *successors; /* edges from split[v] on lead to the next iteration */
    const int32_t *num_intra, *num_cross;
    const int32_t *loop_end;             /* shape (num_loops,): tasks up to the end of each loop */
    const uint8_t *wait_after;           /* eager: the creator waits for all tasks after this loop */
    const double *seconds;               /* of each task alone on the machine */
    const double *share;                 /* the part of it that waits for memory */
    const double *extra;                 /* of each task, seconds of the runtime while it runs it */
    const double *creation;              /* eager: seconds to create each task */
    const int32_t *lock_offsets, *locks; /* those that a task holds while it runs; all tasks' are in `lock_offsets` */
    int32_t num_locks;
} SimulatedGraph;

/* The cells that tasks access, as `model.AccessTable` has them; num_cells 0: moving data costs nothing. */
typedef struct SimulatedData {
    int32_t num_cells;
    const int32_t *task_offsets, *access_list, *list_offsets, *list_cells;
    const uint8_t *access_kind;
    const double *cell_bytes; /* of each cell of an access */
    double seconds_per_byte;  /* of what another core holds, beyond those of a byte in the own core's cache */
    double cache_bytes;       /* of the last level */
} SimulatedData;

/* Where workers are, and tasks' memory; with one node the arrays are not read. */
typedef struct SimulatedNodes {
    int32_t num_nodes;          /* CLOCK_NODES at most */
    const int32_t *worker_node; /* shape (num_workers,) */
    const int32_t *home;        /* of each task: node that has most of its memory; num_nodes: all alike */
    const double *remote;       /* shape (num_tasks, num_nodes): how many times as long as near memory a task's memory
                                   takes on a worker of each node */
} SimulatedNodes;

typedef struct SimulatedPolicy {
    int32_t kind, schedule, chunk_size, window;
    const int32_t *roots, *root_workers; /* stealing: tasks ready at the start, in the order in which they are pushed */
    int32_t num_roots;
    const int32_t *program, *program_first; /* programs: tasks by worker, shape (P + 1,) offsets */
    int32_t claims;                         /* programs: idle workers claim tasks of others */
} SimulatedPolicy;

/* Seconds. */
typedef struct SimulatedCosts {
    double chunk;    /* loops: to take a chunk from the common counter */
    double barrier;  /* loops: from the last block's end until all workers know */
    double line;     /* a cache line from one core to another */
    double wake;     /* to wake a worker that sleeps */
    double spin;     /* a worker without work looks for some so long before it sleeps */
    double patience; /* programs: a worker that waits looks for others' tasks after this time */
} SimulatedCosts;

typedef struct SimulatedRun {
    double *iteration_end;                   /* OUT, shape (num_iterations,) */
    double *start, *finish;                  /* OUT, shape (num_iterations * num_tasks,), or NULL */
    int32_t *worker;                         /* OUT, likewise */
    double useful_s, inflation_s, runtime_s; /* OUT: sums over workers */
} SimulatedRun;

/* bandwidth, slowdown: shape (num_workers + 1,), see shared_clock.h. Returns a SIMULATE_ code. */
int simulate_run(const SimulatedGraph *graph, const SimulatedData *data, const SimulatedNodes *nodes,
                 const SimulatedPolicy *policy, const SimulatedCosts *costs, const double *bandwidth,
                 const double *slowdown, int32_t num_workers, int32_t num_iterations, uint64_t seed, SimulatedRun *run);

#endif
