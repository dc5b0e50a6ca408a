/* Homes of tasks, and the order in which they stand in the programs: shares by cost, then a simulated run.
 *
 * The blocks of a loop go in contiguous shares of equal cost to the workers, so that loops cut alike keep their data
 * in place. Then one iteration is simulated: each worker runs its newest ready task (depth first: data stay in its
 * cache); a worker without any takes the oldest one of the worker that has the most, and becomes its home. With
 * priorities both take the task with the highest. The order in which tasks start is the topological order that the
 * programs are cut from.
 */
#ifndef FORKTASK_SIMULATED_ORDER_H
#define FORKTASK_SIMULATED_ORDER_H

#include <stdlib.h>
#include <string.h>

#include "tasking/recorded_graph.h"

enum { COMPILE_DONE = 0, COMPILE_NO_MEMORY = -1, COMPILE_CYCLE = -2 };

/* What the compiler may know of tasks besides their graph. */
typedef struct TaskHints {
    const double *cost;      /* expected duration, positive, ns */
    const double *priority;  /* the ready task with the highest goes first; NULL: the newest */
    const int32_t *affinity; /* worker that a task asks for as its home, -1: any; NULL: no task asks */
} TaskHints;

/* Ready tasks of a simulated worker: a stack, newest on top; with priorities a heap, highest first. */
typedef struct ReadyTasks {
    int32_t *tasks;
    int64_t bottom, top, capacity;
} ReadyTasks;

typedef struct SimulatedWorker {
    ReadyTasks ready;
    double finish;   /* of the running task */
    int32_t running; /* -1: idle */
} SimulatedWorker;

typedef struct Simulation {
    const RecordedGraph *graph;
    const TaskHints *hints;
    SimulatedWorker *workers;
    int32_t num_workers;
    int32_t *pending; /* of each node: predecessors in the same iteration that have not finished */
    int32_t *home;    /* of each task */
    int out_of_memory;
} Simulation;

/* Give a task of a loop with fewer blocks than workers to the home of a predecessor, if the load allows, else to the
 * worker with the least load. */
static int32_t home_near_data(const TaskHints *hints, int32_t num_workers, const int32_t *predecessor_offsets,
                              const int32_t *predecessors, const int32_t *home, const double *load, int32_t task)
{
    int32_t least = 0, near = -1;
    for (int32_t w = 1; w < num_workers; w++)
        if (load[w] < load[least])
            least = w;
    for (int32_t i = predecessor_offsets[task]; i < predecessor_offsets[task + 1] && near < 0; i++)
        if (predecessors[i] >> 1 < task && (predecessors[i] & 1) == 0)
            near = home[predecessors[i] >> 1];
    return near >= 0 && load[near] - load[least] < hints->cost[task] ? near : least;
}

/* Give each task a home: the one it asks for, or by its loop's shares. load: shape (num_workers,), zero on entry. */
static void homes_by_cost(const RecordedGraph *g, const TaskHints *hints, int32_t num_workers,
                          const int32_t *predecessor_offsets, const int32_t *predecessors, int32_t *home, double *load)
{
    for (int32_t l = 0; l < g->num_loops; l++) {
        double total = 0, before = 0;
        int32_t first = g->loops[l].first_task, n = g->loops[l].num_blocks;
        for (int32_t task = first; task < first + n; task++)
            total += hints->cost[task];
        for (int32_t task = first; task < first + n; task++) {
            int32_t w;
            if (hints->affinity != NULL && hints->affinity[task] >= 0) {
                w = hints->affinity[task] % num_workers;
            } else if (n >= num_workers) {
                w = (int32_t)((before + hints->cost[task] / 2) / total * num_workers);
                w = w < num_workers ? w : num_workers - 1;
            } else {
                w = home_near_data(hints, num_workers, predecessor_offsets, predecessors, home, load, task);
            }
            before += hints->cost[task];
            home[task] = w;
            load[w] += hints->cost[task];
        }
    }
}

/* Add a task to a heap of `size` tasks, the one with the highest key on top. */
static void heap_push(int32_t *tasks, int64_t size, const double *key, int32_t task)
{
    int64_t at = size;
    for (; at > 0 && key[tasks[(at - 1) / 2]] < key[task]; at = (at - 1) / 2)
        tasks[at] = tasks[(at - 1) / 2];
    tasks[at] = task;
}

/* Take the top of a heap that keeps `size` tasks. */
static int32_t heap_pop(int32_t *tasks, int64_t size, const double *key)
{
    int32_t top = tasks[0], last = tasks[size];
    int64_t at = 0, below;
    while ((below = 2 * at + 1) < size) {
        below += below + 1 < size && key[tasks[below + 1]] > key[tasks[below]];
        if (key[tasks[below]] <= key[last])
            break;
        tasks[at] = tasks[below];
        at = below;
    }
    tasks[at] = last;
    return top;
}

static void simulation_push(Simulation *m, int32_t task)
{
    ReadyTasks *r = &m->workers[m->home[task]].ready;
    const double *priority = m->hints->priority;
    if (r->top == r->capacity) {
        int64_t capacity = 2 * r->capacity + 64;
        int32_t *grown = realloc(r->tasks, (size_t)capacity * sizeof(int32_t));
        if (grown == NULL) {
            m->out_of_memory = 1;
            return;
        }
        r->tasks = grown;
        r->capacity = capacity;
    }
    if (priority != NULL)
        heap_push(r->tasks, r->top, priority, task);
    else
        r->tasks[r->top] = task;
    r->top++;
}

/* Take the newest or the oldest ready task; with priorities the one with the highest. */
static int32_t ready_take(const double *priority, ReadyTasks *r, int oldest)
{
    if (priority != NULL)
        return heap_pop(r->tasks, --r->top, priority);
    return oldest ? r->tasks[r->bottom++] : r->tasks[--r->top];
}

/* Return 1 if the task that ready_take() would give to another worker does not ask for its home. */
static inline int ready_may_move(const int32_t *affinity, const ReadyTasks *r)
{
    return affinity == NULL || affinity[r->tasks[r->bottom]] < 0; /* a heap's bottom stays 0 */
}

/* Count down a finished node's successors, in reverse, so that the first one comes on top. */
static void simulation_release(Simulation *m, int32_t node)
{
    const RecordedGraph *g = m->graph;
    for (int32_t i = g->successor_split[node] - 1; i >= g->successor_offsets[node]; i--) {
        int32_t s = g->successors[i];
        if (--m->pending[s] > 0)
            continue;
        if (s >= g->num_tasks)
            simulation_release(m, s);
        else
            simulation_push(m, s);
    }
}

/* Count predecessors, and push tasks that have none in the same iteration. */
static void simulation_begin(Simulation *m)
{
    const RecordedGraph *g = m->graph;
    for (int32_t w = 0; w < m->num_workers; w++)
        m->workers[w].running = -1;
    memcpy(m->pending, g->num_intra, (size_t)g->num_nodes * sizeof(int32_t));
    for (int32_t v = g->num_tasks; v < g->num_nodes; v++)
        if (g->num_intra[v] == 0)
            for (int32_t i = g->successor_offsets[v]; i < g->successor_split[v]; i++)
                m->pending[g->successors[i]]--;
    for (int32_t v = g->num_tasks - 1; v >= 0; v--)
        if (m->pending[v] == 0)
            simulation_push(m, v);
}

/* The tasks that an idle worker takes its next one from: its own, or if it has none those of the worker that has the
 * most, two at least. Returns NULL if there are none. */
static ReadyTasks *simulation_source(Simulation *m, SimulatedWorker *idle)
{
    ReadyTasks *from = &idle->ready;
    if (from->top == from->bottom)
        for (int32_t v = 0; v < m->num_workers; v++) {
            ReadyTasks *other = &m->workers[v].ready;
            if (other->top - other->bottom > from->top - from->bottom + 1 && ready_may_move(m->hints->affinity, other))
                from = other;
        }
    return from->top > from->bottom ? from : NULL;
}

/* Simulate one iteration. home: in and out; order: OUT, tasks as they start. Returns a COMPILE_ code. */
static int simulation_run(Simulation *m, int32_t *order)
{
    double now = 0;
    int32_t started = 0;
    simulation_begin(m);
    while (started < m->graph->num_tasks && !m->out_of_memory) {
        SimulatedWorker *next = NULL;
        int nothing_to_move = 0; /* as the last worker without tasks of its own saw, and no task was taken since */
        for (int32_t w = 0; w < m->num_workers; w++) {
            SimulatedWorker *worker = &m->workers[w];
            if (worker->running >= 0 || (nothing_to_move && worker->ready.top == worker->ready.bottom))
                continue;
            ReadyTasks *from = simulation_source(m, worker);
            nothing_to_move = from == NULL;
            if (from == NULL)
                continue;
            int32_t task = ready_take(m->hints->priority, from, from != &worker->ready);
            m->home[task] = w;
            worker->running = task;
            worker->finish = now + m->hints->cost[task];
            order[started++] = task;
        }
        for (int32_t w = 0; w < m->num_workers; w++)
            if (m->workers[w].running >= 0 && (next == NULL || m->workers[w].finish < next->finish))
                next = &m->workers[w];
        if (next == NULL)
            return COMPILE_CYCLE; /* a cycle without token: no plan gives one */
        now = next->finish;
        int32_t finished = next->running;
        next->running = -1;
        simulation_release(m, finished);
    }
    return m->out_of_memory ? COMPILE_NO_MEMORY : COMPILE_DONE;
}

/* Order the tasks for their homes, which may change. Returns a COMPILE_ code. */
static int simulate_order(const RecordedGraph *g, const TaskHints *hints, int32_t num_workers, int32_t *home,
                          int32_t *order)
{
    Simulation m = {g, hints, NULL, num_workers, NULL, home, 0};
    int status = COMPILE_NO_MEMORY;
    m.workers = calloc((size_t)num_workers, sizeof(SimulatedWorker));
    m.pending = malloc((size_t)g->num_nodes * sizeof(int32_t) + 4);
    if (m.workers != NULL && m.pending != NULL)
        status = simulation_run(&m, order);
    for (int32_t w = 0; w < num_workers && m.workers != NULL; w++)
        free(m.workers[w].ready.tasks);
    free(m.workers);
    free(m.pending);
    return status;
}

#endif
