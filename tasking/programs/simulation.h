/* A simulated run of programs: in which order workers take ready tasks, and how long an iteration takes.
 *
 * Workers go through their tasks; a task takes its expected duration, and a result is seen on another core after a delay.
 * A worker runs its iterations one after the other, and a task also waits for those of the iteration before that it
 * depends on. The simulation has no clock and no randomness: the same graph gets the same order everywhere.
 */
#ifndef FORKTASK_SIMULATION_H
#define FORKTASK_SIMULATION_H

#include "homes.h"

/* Nanoseconds of the simulation. Measured on a Zen 4 server: a flag travels from core to core in 40 to 50 ns, and
 * there are two such trips, for the counter and for the data, besides the store that waits for the line. */
#define SIMULATED_DELAY_NS  180.0
#define SIMULATED_REMOTE_NS 40.0 /* reading a line that another core wrote, some overlapping */
#define SIMULATED_TASK_NS   8.0  /* on top of the expected cost */
#define SIMULATED_PASSES    4    /* iterations of simulated_time(); the first is not counted */

/* The tasks that are ready at the beginning of an iteration, but for those of the first loop, are small below this part of
 * it. Measured on 13 networks: 0.0002 to 0.004 where they gain by going first, 0.01 to 0.07 where they lose. */
#define SMALL_ROOTS 0.005

/* Which ready task a worker takes: the newest, or the one with the longest way to the end of the iteration. */
typedef enum ReadyOrder { READY_NEWEST, READY_LONGEST_WAY } ReadyOrder;

/* When a node's results are complete: at `latest` on the core of the task that ends last, and for this core the other
 * cores' parts at `other`. Of a task there is one part. */
typedef struct Arrival {
    double latest, other;
    int32_t worker;
} Arrival;

typedef struct ReadyHeap {
    int32_t *tasks;
    int32_t size;
} ReadyHeap;

/* Memory of simulated runs of the first `num_tasks` tasks of a graph. */
typedef struct Simulation {
    const PlacedGraph *placed;
    int32_t num_tasks;
    Arrival *arrival, *former; /* of each node: in this iteration and in the one before */
    double *rank;              /* of each node: the longest way to the end of the iteration */
    double *soonest, *key;     /* of each task: minus the time at which it can start; what it is taken by */
    double *clock;             /* of each worker */
    int32_t *pending;          /* of each node: predecessors in the same iteration that have not finished */
    int32_t *reader;           /* of each node: the last worker that fetched its results */
    ReadyHeap *now, *later; /* of each worker: ready tasks, best first; tasks with inputs on the way, soonest first */
    double sequence;        /* counts ready tasks: the key for READY_NEWEST */
} Simulation;

static void simulation_close(Simulation *m)
{
    free(m->arrival);
    free(m->rank);
    free(m->pending);
    free(m->now);
    memset(m, 0, sizeof(*m));
}

/* Returns 0, or -1 (out of memory). */
static int simulation_open(Simulation *m, const PlacedGraph *placed, int32_t num_tasks)
{
    size_t n = (size_t)num_tasks, nodes = (size_t)placed->graph->num_nodes, P = (size_t)placed->num_workers;
    memset(m, 0, sizeof(*m));
    m->placed = placed;
    m->num_tasks = num_tasks;
    m->arrival = calloc(2 * nodes + 1, sizeof(Arrival));
    m->rank = calloc(nodes + 2 * n + P, sizeof(double));
    m->pending = malloc((2 * nodes + 2 * P * n) * sizeof(int32_t) + 4);
    m->now = calloc(2 * P, sizeof(ReadyHeap));
    if (m->arrival == NULL || m->rank == NULL || m->pending == NULL || m->now == NULL) {
        simulation_close(m);
        return -1;
    }
    m->former = m->arrival + nodes;
    m->soonest = m->rank + nodes;
    m->key = m->soonest + n;
    m->clock = m->key + n;
    m->reader = m->pending + nodes;
    m->later = m->now + P;
    /* Room for all tasks in each heap: pages that are never touched cost nothing. */
    for (size_t x = 0; x < 2 * P; x++)
        m->now[x].tasks = m->reader + nodes + x * n;
    return 0;
}

/* Return 1 for a join, or a task that is simulated. */
static inline int is_simulated(const Simulation *m, int32_t node)
{
    return node < m->num_tasks || node >= m->placed->graph->num_tasks;
}

/* Add a task to a heap, the one with the largest key on top. */
static void heap_push(ReadyHeap *heap, const double *key, int32_t task)
{
    int32_t at = heap->size++;
    for (; at > 0 && key[heap->tasks[(at - 1) / 2]] < key[task]; at = (at - 1) / 2)
        heap->tasks[at] = heap->tasks[(at - 1) / 2];
    heap->tasks[at] = task;
}

/* Take the task at place `at` of a heap; 0: the one with the largest key. */
static int32_t heap_take(ReadyHeap *heap, const double *key, int32_t at)
{
    int32_t *tasks = heap->tasks, taken = tasks[at], size = --heap->size, last = tasks[size], below;
    while (at > 0 && key[tasks[(at - 1) / 2]] < key[last]) {
        tasks[at] = tasks[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    while ((below = 2 * at + 1) < size) {
        below += below + 1 < size && key[tasks[below + 1]] > key[tasks[below]];
        if (key[tasks[below]] <= key[last])
            break;
        tasks[at] = tasks[below];
        at = below;
    }
    tasks[at] = last;
    return taken;
}

/* Longest way after a node: of the ways of its successors in the same iteration. */
static double way_after(Simulation *m, const int32_t *home, int32_t node)
{
    const RecordedGraph *g = m->placed->graph;
    double longest = 0;
    for (int32_t i = g->successor_offsets[node]; i < g->successor_split[node]; i++) {
        int32_t s = g->successors[i];
        if (!is_simulated(m, s))
            continue;
        if (m->rank[s] < 0)
            m->rank[s] = way_after(m, home, s); /* a join: its successors have been ranked */
        double way = m->rank[s];
        if (node < g->num_tasks && s < g->num_tasks && home[s] != home[node])
            way += SIMULATED_DELAY_NS;
        longest = way > longest ? way : longest;
    }
    return longest;
}

/* Rank all tasks by the longest way from their start to the end of the iteration. */
static void rank_tasks(Simulation *m, const int32_t *home)
{
    const RecordedGraph *g = m->placed->graph;
    for (int32_t v = g->num_tasks; v < g->num_nodes; v++)
        m->rank[v] = -1;
    for (int32_t t = m->num_tasks - 1; t >= 0; t--)
        m->rank[t] = m->placed->hints->cost[t] + SIMULATED_TASK_NS + way_after(m, home, t);
}

/* When a node's results are complete on a worker. */
static inline double arrives_at(const Arrival *a, int32_t worker)
{
    double latest = a->worker == worker ? a->latest : a->latest + SIMULATED_DELAY_NS;
    return a->worker == worker && a->other + SIMULATED_DELAY_NS > latest ? a->other + SIMULATED_DELAY_NS : latest;
}

/* Let a join's arrival include that of one node before it. */
static void include_arrival(Arrival *join, const Arrival *before)
{
    if (before->worker == join->worker) {
        join->latest = before->latest > join->latest ? before->latest : join->latest;
        join->other = before->other > join->other ? before->other : join->other;
    } else if (before->latest > join->latest) {
        double other = join->latest > before->other ? join->latest : before->other;
        *join = (Arrival){before->latest, other, before->worker};
    } else {
        join->other = before->latest > join->other ? before->latest : join->other;
    }
}

static const Arrival *arrival_before(const Simulation *m, int32_t predecessor)
{
    return (predecessor & 1 ? m->former : m->arrival) + (predecessor >> 1);
}

/* When the inputs of a task have arrived at its home, as its predecessors finish. */
static double inputs_arrive(const Simulation *m, int32_t worker, int32_t task)
{
    const PlacedGraph *p = m->placed;
    double ready = 0;
    for (int32_t i = p->predecessor_offsets[task]; i < p->predecessor_offsets[task + 1]; i++)
        if (is_simulated(m, p->predecessors[i] >> 1)) {
            double at = arrives_at(arrival_before(m, p->predecessors[i]), worker);
            ready = at > ready ? at : ready;
        }
    return ready;
}

/* Run a task, not before `start`: the first reader on a core fetches the lines that another core wrote. */
static void simulate_task(Simulation *m, int32_t worker, int32_t task, double start)
{
    const PlacedGraph *p = m->placed;
    double time = p->hints->cost[task] + SIMULATED_TASK_NS;
    for (int32_t i = p->predecessor_offsets[task]; i < p->predecessor_offsets[task + 1]; i++) {
        int32_t before = p->predecessors[i] >> 1;
        if (is_simulated(m, before) && arrival_before(m, p->predecessors[i])->worker != worker &&
            m->reader[before] != worker) {
            m->reader[before] = worker;
            time += SIMULATED_REMOTE_NS;
        }
    }
    m->reader[task] = -1;
    m->clock[worker] = start + time;
    m->arrival[task] = (Arrival){start + time, -SIMULATED_DELAY_NS, worker};
}

/* Complete a join whose predecessors in the same iteration have finished. */
static void complete_join(Simulation *m, int32_t join)
{
    const PlacedGraph *p = m->placed;
    m->arrival[join] = (Arrival){-SIMULATED_DELAY_NS, -SIMULATED_DELAY_NS, -1};
    m->reader[join] = -1;
    for (int32_t i = p->predecessor_offsets[join]; i < p->predecessor_offsets[join + 1]; i++)
        if (is_simulated(m, p->predecessors[i] >> 1))
            include_arrival(&m->arrival[join], arrival_before(m, p->predecessors[i]));
}

/* Queue a task whose predecessors have all finished, at its home; home NULL: the order is fixed, nothing is queued. */
static void queue_task(Simulation *m, const int32_t *home, ReadyOrder by, int32_t task)
{
    if (home == NULL)
        return;
    m->soonest[task] = -inputs_arrive(m, home[task], task);
    m->key[task] = by == READY_NEWEST ? m->sequence++ : m->rank[task];
    heap_push(&m->later[home[task]], m->soonest, task);
}

/* Count down a finished node's successors in the same iteration, in reverse, so that the first one is the newest. */
static void release_successors(Simulation *m, const int32_t *home, ReadyOrder by, int32_t node)
{
    const RecordedGraph *g = m->placed->graph;
    for (int32_t i = g->successor_split[node] - 1; i >= g->successor_offsets[node]; i--) {
        int32_t s = g->successors[i];
        if (!is_simulated(m, s) || --m->pending[s] > 0)
            continue;
        if (s >= g->num_tasks) {
            complete_join(m, s);
            release_successors(m, home, by, s);
        } else {
            queue_task(m, home, by, s);
        }
    }
}

/* Queue the tasks that are ready at the beginning of an iteration, in reverse, so that the first one in the plan is the
 * newest. Where those behind the first loop's are small, they go first: each part of the first loop's data can go from
 * loop to loop then, and is in the cache there. Larger ones fill the cache themselves, and run right before their use. */
static void queue_roots(Simulation *m, const int32_t *home, ReadyOrder by)
{
    const int32_t *loop = m->placed->graph->task_loop;
    double total = 0, behind = 0;
    int32_t first = -1;
    for (int32_t t = 0; t < m->num_tasks; t++) {
        double cost = m->placed->hints->cost[t];
        total += cost;
        if (m->pending[t] != 0)
            continue;
        first = first < 0 ? loop[t] : first;
        behind += loop[t] != first ? cost : 0;
    }
    const int first_is_newest = behind > SMALL_ROOTS * total;
    for (int newest = 0; newest < 2; newest++) /* what is queued last is the newest */
        for (int32_t t = m->num_tasks - 1; t >= 0; t--)
            if (m->pending[t] == 0 && ((loop[t] == first) == first_is_newest) == newest)
                queue_task(m, home, by, t);
}

/* Begin an iteration: count predecessors, queue the tasks that have none. */
static void begin_iteration(Simulation *m, const int32_t *home, ReadyOrder by)
{
    const PlacedGraph *p = m->placed;
    const RecordedGraph *g = p->graph;
    memcpy(m->former, m->arrival, (size_t)g->num_nodes * sizeof(Arrival));
    m->sequence = 0;
    for (int32_t v = 0; v < g->num_nodes; v++) {
        m->pending[v] = 0;
        for (int32_t i = p->predecessor_offsets[v]; is_simulated(m, v) && i < p->predecessor_offsets[v + 1]; i++)
            m->pending[v] += !(p->predecessors[i] & 1) && is_simulated(m, p->predecessors[i] >> 1);
        m->pending[v] -= v >= g->num_tasks && m->pending[v] == 0; /* -1: behind tasks of the iteration before alone */
    }
    for (int32_t v = g->num_nodes - 1; v >= g->num_tasks; v--)
        if (m->pending[v] < 0) {
            complete_join(m, v);
            release_successors(m, NULL, by, v);
        }
    if (home != NULL)
        queue_roots(m, home, by);
}

/* Move tasks whose inputs have arrived by `time` from a worker's `later` to its `now`. */
static void receive_inputs(Simulation *m, int32_t worker, double time)
{
    ReadyHeap *later = &m->later[worker];
    while (later->size > 0 && -m->soonest[later->tasks[0]] <= time)
        heap_push(&m->now[worker], m->key, heap_take(later, m->soonest, 0));
}

/* The worker that can start a task of its own first, and when; -1: no task is queued. */
static int32_t next_worker(const Simulation *m, double *start)
{
    int32_t worker = -1;
    for (int32_t w = 0; w < m->placed->num_workers; w++) {
        double at = m->clock[w];
        if (m->now[w].size == 0 && m->later[w].size == 0)
            continue;
        if (m->now[w].size == 0 && -m->soonest[m->later[w].tasks[0]] > at)
            at = -m->soonest[m->later[w].tasks[0]];
        if (worker < 0 || at < *start) {
            worker = w;
            *start = at;
        }
    }
    return worker;
}

/* Find a worker without ready tasks whose clock stands before `until`, and one that has two or more: the former becomes
 * the home of one of the latter's, the oldest (READY_NEWEST) or the one with the highest key. Returns the task, or -1, and
 * the worker and start. since: when the last task started. */
static int32_t move_task(Simulation *m, int32_t *home, ReadyOrder by, double since, double until, int32_t *worker,
                         double *start)
{
    int32_t idle = -1, most = -1, at = 0;
    for (int32_t w = 0; w < m->placed->num_workers; w++) {
        receive_inputs(m, w, until);
        if (m->now[w].size == 0 && m->clock[w] < until && (idle < 0 || m->clock[w] < m->clock[idle]))
            idle = w;
        if (m->now[w].size > 1 && (most < 0 || m->now[w].size > m->now[most].size))
            most = w;
    }
    if (idle < 0 || most < 0)
        return -1;
    const int32_t *ready = m->now[most].tasks;
    if (by == READY_NEWEST)
        for (int32_t i = 1; i < m->now[most].size; i++)
            at = m->key[ready[i]] < m->key[ready[at]] ? i : at;
    double begin = inputs_arrive(m, idle, ready[at]);
    begin = begin > m->clock[idle] ? begin : m->clock[idle];
    begin = begin > since ? begin : since;
    if (begin >= until)
        return -1;
    int32_t task = heap_take(&m->now[most], m->key, at);
    home[task] = *worker = idle;
    *start = begin;
    return task;
}

/* Simulate workers that take their ready tasks in this order. Long tasks: an iteration that all workers begin together, so
 * that no task of the next one goes before a task of this; a worker without a task takes another's and becomes its home.
 * Short ones: the second of two iterations that overlap. home: in and out; order: OUT, tasks as they start. Returns 0, or
 * -1: a cycle within an iteration. */
static int simulate_order(Simulation *m, ReadyOrder by, int is_short, int32_t *home, int32_t *order)
{
    const int32_t num_workers = m->placed->num_workers;
    if (by == READY_LONGEST_WAY)
        rank_tasks(m, home);
    memset(m->clock, 0, (size_t)num_workers * sizeof(double));
    memset(m->reader, -1, (size_t)m->placed->graph->num_nodes * sizeof(int32_t));
    memset(m->arrival, 0, (size_t)m->placed->graph->num_nodes * sizeof(Arrival));
    for (int pass = 0; pass < (is_short ? 2 : 1); pass++) {
        double since = 0;
        begin_iteration(m, home, by);
        for (int32_t started = 0; started < m->num_tasks; started++) {
            double start = 0;
            int32_t worker = next_worker(m, &start), task = -1;
            if (worker < 0)
                return -1;
            if (!is_short)
                task = move_task(m, home, by, since, start, &worker, &start);
            if (task < 0) {
                receive_inputs(m, worker, start);
                task = heap_take(&m->now[worker], m->key, 0);
            }
            order[started] = task;
            since = start;
            simulate_task(m, worker, task, start);
            release_successors(m, home, by, task);
        }
    }
    return 0;
}

/* Simulated time of an iteration, for workers that run their shares of `order` in this order. */
static double simulated_time(Simulation *m, const int32_t *home, const int32_t *order)
{
    const RecordedGraph *g = m->placed->graph;
    double first = 0, last = 0;
    memset(m->clock, 0, (size_t)m->placed->num_workers * sizeof(double));
    memset(m->reader, -1, (size_t)g->num_nodes * sizeof(int32_t));
    memset(m->arrival, 0, (size_t)g->num_nodes * sizeof(Arrival));
    for (int pass = 0; pass < SIMULATED_PASSES; pass++) {
        begin_iteration(m, NULL, READY_NEWEST);
        for (int32_t k = 0; k < m->num_tasks; k++) {
            int32_t task = order[k], worker = home[task];
            double start = inputs_arrive(m, worker, task);
            simulate_task(m, worker, task, start > m->clock[worker] ? start : m->clock[worker]);
            release_successors(m, NULL, READY_NEWEST, task); /* for the joins */
        }
        for (int32_t w = 0; w < m->placed->num_workers; w++)
            last = m->clock[w] > last ? m->clock[w] : last;
        if (pass == 0)
            first = last;
    }
    return (last - first) / (SIMULATED_PASSES - 1);
}

#endif
