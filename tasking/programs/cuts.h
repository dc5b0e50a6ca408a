/* Better homes and order for short tasks, chosen by trying families of cuts in a simulated run.
 *
 * When tasks take tens of nanoseconds, the time per task is decided by how often, and how urgently, one core waits
 * for another. Which cut of a graph is best for that depends on its pattern: a stencil wants a cut that wanders, so
 * that for some steps only one side waits; a butterfly wants even and odd points apart. So a few families of cuts,
 * each with two ways to order the tasks, are tried: workers go through their programs in order, each task takes a
 * time, and a result is seen on another core after a delay. The family with the shortest iteration is taken.
 *
 * The simulation sees at most CUTS_SAMPLE tasks from the beginning of a graph; the family found serves for all of it.
 */
#ifndef FORKTASK_CUTS_H
#define FORKTASK_CUTS_H

#include <stdlib.h>
#include <string.h>

#include "simulated_order.h"
#include "tasking/recorded_graph.h"

/* Nanoseconds of the simulation. Measured on a Zen 4 server: a flag travels from core to core in 40 to 50 ns, and
 * there are two such trips, for the counter and for the data, besides the store that waits for the line. */
#define CUTS_DELAY_NS  180.0
#define CUTS_REMOTE_NS 40.0 /* reading a line that another core wrote, some overlapping */
#define CUTS_TASK_NS   8.0  /* on top of the expected cost */
/* Longer tasks hide the delay anyhow: their data stay where they are, and the search is left out. */
#define CUTS_SHORT_NS           1000.0
#define CUTS_SAMPLE             1024
#define CUTS_MAX_EDGES_PER_TASK 48
#define CUTS_PASSES             4 /* simulated iterations; the first is not counted */
/* A family must be better by this than the cut by cost, in which the same block of each loop has the same home. */
#define CUTS_GAIN 0.97

/* The first tasks of a graph without its joins. Edges are 2 * task + token. */
typedef struct CutGraph {
    int32_t num_tasks, num_workers;
    int32_t *successor_offsets, *successors;
    int32_t *predecessor_offsets, *predecessors;
    const double *cost;
} CutGraph;

/* A family of cuts. Block b of n belongs to worker floor((b + shift) / n * num_workers), where shift swings between
 * -swing * n and +swing * n by `slope` blocks per loop; or, chunk > 0, to worker b / chunk modulo num_workers. */
typedef struct CutFamily {
    double swing;
    int32_t slope, chunk;
    int32_t depth_first; /* newest ready task first; 0: the one with the longest way to the end */
} CutFamily;

#define CUT_FAMILIES (2 * (1 + 3 + 4 * 3))

typedef struct CutHeap {
    int32_t *tasks;
    int32_t size;
} CutHeap;

/* Memory of simulated runs of one graph. */
typedef struct CutRun {
    double *finish, *former, *ready, *rank, *key; /* of each task; `former`: finish in the iteration before */
    double *clock;                                /* of each worker */
    int32_t *pending;
    int32_t *reader;      /* of each task: the last worker that fetched its result */
    CutHeap *now, *later; /* of each worker: ready tasks, best first; tasks with inputs on the way, soonest first */
    double sequence;      /* counts pushes, for the depth-first order */
} CutRun;

static void cut_graph_close(CutGraph *g)
{
    free(g->successor_offsets);
    free(g->successors);
    free(g->predecessor_offsets);
    free(g->predecessors);
    memset(g, 0, sizeof(*g));
}

/* Visit the predecessors of a node, through joins, among the first `limit_task` tasks; write them to `out` unless it
 * is NULL. Returns their number, added to `count`, or -1: more than `limit`. */
static int64_t cut_graph_collect(const int32_t *offsets, const int32_t *predecessors, int32_t num_tasks,
                                 int32_t limit_task, int32_t node, int32_t token, int32_t *out, int64_t count,
                                 int64_t limit)
{
    for (int32_t i = offsets[node]; i < offsets[node + 1] && count >= 0; i++) {
        int32_t before = predecessors[i] >> 1, sum = token + (predecessors[i] & 1);
        if (sum > 1)
            continue; /* what finished two iterations back is not worth simulating */
        if (before >= num_tasks) {
            count = cut_graph_collect(offsets, predecessors, num_tasks, limit_task, before, sum, out, count, limit);
        } else if (before < limit_task) {
            if (count == limit)
                return -1;
            if (out != NULL)
                out[count] = 2 * before + sum;
            count++;
        }
    }
    return count;
}

/* List the edges by source, from predecessors to successors. */
static void cut_graph_list_successors(CutGraph *g)
{
    const int32_t n = g->num_tasks, count = g->predecessor_offsets[n];
    for (int32_t i = 0; i < count; i++)
        g->successor_offsets[(g->predecessors[i] >> 1) + 2]++;
    for (int32_t t = 0; t < n; t++)
        g->successor_offsets[t + 2] += g->successor_offsets[t + 1];
    for (int32_t t = 0; t < n; t++)
        for (int32_t i = g->predecessor_offsets[t]; i < g->predecessor_offsets[t + 1]; i++)
            g->successors[g->successor_offsets[(g->predecessors[i] >> 1) + 1]++] = 2 * t + (g->predecessors[i] & 1);
}

/* Take the first `limit_task` tasks of a graph; offsets, predecessors: by node, 2 * node + token. Returns 0, -1 (out of
 * memory), 1 (too many edges without joins: no search). After 1 and -1 nothing is left to close. */
static int cut_graph_open(CutGraph *g, int32_t num_workers, int32_t num_tasks, int32_t limit_task,
                          const int32_t *offsets, const int32_t *predecessors, const double *cost)
{
    int64_t limit = (int64_t)CUTS_MAX_EDGES_PER_TASK * limit_task, count = 0;
    int status = -1;
    memset(g, 0, sizeof(*g));
    if (limit > INT32_MAX / 2)
        return 1;
    g->num_tasks = limit_task;
    g->num_workers = num_workers;
    g->cost = cost;
    g->predecessor_offsets = malloc(((size_t)limit_task + 1) * sizeof(int32_t));
    g->successor_offsets = calloc((size_t)limit_task + 2, sizeof(int32_t));
    if (g->predecessor_offsets != NULL && g->successor_offsets != NULL) {
        for (int32_t t = 0; t < limit_task && count >= 0; t++) {
            g->predecessor_offsets[t] = (int32_t)count;
            count = cut_graph_collect(offsets, predecessors, num_tasks, limit_task, t, 0, NULL, count, limit);
        }
        status = count < 0 ? 1 : -1;
    }
    if (count >= 0 && g->predecessor_offsets != NULL && g->successor_offsets != NULL) {
        g->predecessor_offsets[limit_task] = (int32_t)count;
        g->predecessors = malloc(((size_t)count + 1) * sizeof(int32_t));
        g->successors = malloc(((size_t)count + 1) * sizeof(int32_t));
        if (g->predecessors != NULL && g->successors != NULL) {
            for (int32_t t = 0; t < limit_task; t++)
                cut_graph_collect(offsets, predecessors, num_tasks, limit_task, t, 0, g->predecessors,
                                  g->predecessor_offsets[t], limit);
            cut_graph_list_successors(g);
            status = 0;
        }
    }
    if (status != 0)
        cut_graph_close(g);
    return status;
}

static void cut_run_close(CutRun *r)
{
    free(r->finish);
    free(r->pending);
    free(r->now);
    memset(r, 0, sizeof(*r));
}

/* Returns 0, or -1 (out of memory). */
static int cut_run_open(CutRun *r, int32_t num_tasks, int32_t num_workers)
{
    size_t n = (size_t)num_tasks, P = (size_t)num_workers;
    memset(r, 0, sizeof(*r));
    r->finish = malloc((5 * n + P) * sizeof(double));
    r->pending = malloc((2 * P + 2) * n * sizeof(int32_t) + 4);
    r->now = calloc(2 * P, sizeof(CutHeap));
    if (r->finish == NULL || r->pending == NULL || r->now == NULL) {
        cut_run_close(r);
        return -1;
    }
    r->former = r->finish + n;
    r->ready = r->former + n;
    r->rank = r->ready + n;
    r->key = r->rank + n;
    r->clock = r->key + n;
    r->reader = r->pending + n;
    r->later = r->now + P;
    /* Room for all tasks in each heap: pages that are never touched cost nothing. */
    for (size_t x = 0; x < 2 * P; x++)
        r->now[x].tasks = r->pending + (x + 2) * n;
    return 0;
}

/* The shift of a family's cuts in loop `l` of n blocks: a triangle, 0, up, 0, down, 0 in one period; whole blocks. */
static double cut_shift(const CutFamily *family, int32_t l, int32_t n)
{
    double swing = family->swing * n;
    if (swing < 1)
        return 0;
    double at = 0.5 + (double)l * family->slope / (4 * swing);
    at -= (double)(int64_t)at;
    double shift = swing * (at < 0.5 ? 4 * at - 1 : 3 - 4 * at);
    return shift < 0 ? -(double)(int64_t)(0.5 - shift) : (double)(int64_t)(0.5 + shift);
}

/* Homes of the first `num_tasks` tasks under a family; loops with few blocks keep the homes by cost. */
static void cut_homes(const CutFamily *family, const RecordedGraph *graph, int32_t num_tasks, int32_t num_workers,
                      const int32_t *by_cost, int32_t *home)
{
    for (int32_t l = 0; l < graph->num_loops && graph->loops[l].first_task < num_tasks; l++) {
        int32_t n = graph->loops[l].num_blocks, first = graph->loops[l].first_task;
        double shift = cut_shift(family, l, n);
        for (int32_t b = 0; b < n; b++) {
            int32_t w;
            if (n < 2 * num_workers) {
                w = by_cost[first + b];
            } else if (family->chunk > 0) {
                w = b / family->chunk % num_workers;
            } else {
                double part = (b + 0.5 + shift) / n * num_workers;
                w = part < 0 ? 0 : (int32_t)part;
                w = w < num_workers ? w : num_workers - 1;
            }
            home[first + b] = w;
        }
    }
}

/* Longest way from the start of each task to the end of the next iteration. */
static void cut_rank(const CutGraph *g, const int32_t *home, double *rank)
{
    for (int pass = 0; pass < 2; pass++)
        for (int32_t t = g->num_tasks - 1; t >= 0; t--) {
            double longest = 0;
            for (int32_t i = g->successor_offsets[t]; i < g->successor_offsets[t + 1]; i++) {
                int32_t s = g->successors[i] >> 1;
                if (g->successors[i] & 1 && pass == 0)
                    continue;
                double way = rank[s] + (home[s] != home[t] ? CUTS_DELAY_NS : 0);
                longest = way > longest ? way : longest;
            }
            rank[t] = g->cost[t] + CUTS_TASK_NS + longest;
        }
}

/* When the inputs of a task have arrived at its home, given when its predecessors finish. */
static double cut_inputs_ready(const CutGraph *g, const CutRun *r, const int32_t *home, int32_t task)
{
    double ready = 0;
    for (int32_t i = g->predecessor_offsets[task]; i < g->predecessor_offsets[task + 1]; i++) {
        int32_t before = g->predecessors[i] >> 1;
        double at = g->predecessors[i] & 1 ? r->former[before] : r->finish[before];
        at += home[before] != home[task] ? CUTS_DELAY_NS : 0;
        ready = at > ready ? at : ready;
    }
    return ready;
}

/* Run a task, not before `start`: the first reader on a core fetches the line that another core wrote. */
static void cut_run_task(const CutGraph *g, CutRun *r, const int32_t *home, int32_t task, double start)
{
    double time = g->cost[task] + CUTS_TASK_NS;
    for (int32_t i = g->predecessor_offsets[task]; i < g->predecessor_offsets[task + 1]; i++) {
        int32_t before = g->predecessors[i] >> 1;
        if (home[before] != home[task] && r->reader[before] != home[task]) {
            r->reader[before] = home[task];
            time += CUTS_REMOTE_NS;
        }
    }
    r->reader[task] = -1;
    r->clock[home[task]] = r->finish[task] = start + time;
}

/* Queue a task whose predecessors have all finished. Heaps have their largest on top. */
static void cut_queue(const CutGraph *g, CutRun *r, const int32_t *home, int depth_first, int32_t task)
{
    r->ready[task] = -cut_inputs_ready(g, r, home, task);
    r->key[task] = depth_first ? r->sequence++ : r->rank[task];
    CutHeap *later = &r->later[home[task]];
    heap_push(later->tasks, later->size++, r->ready, task);
}

/* The worker that can start its next task first, and when; -1: no task is queued. */
static int32_t cut_next_worker(const CutRun *r, int32_t num_workers, double *soonest)
{
    int32_t worker = -1;
    for (int32_t x = 0; x < num_workers; x++) {
        if (r->now[x].size + r->later[x].size == 0)
            continue;
        double start = r->clock[x];
        if (r->now[x].size == 0 && -r->ready[r->later[x].tasks[0]] > start)
            start = -r->ready[r->later[x].tasks[0]];
        if (worker < 0 || start < *soonest) {
            worker = x;
            *soonest = start;
        }
    }
    return worker;
}

/* Simulate one iteration of workers that choose freely among their ready tasks. order: OUT, tasks as they start.
 * Returns 0, or -1: a cycle within an iteration. */
static int cut_order_iteration(const CutGraph *g, CutRun *r, const int32_t *home, int depth_first, int32_t *order)
{
    r->sequence = 0;
    for (int32_t t = g->num_tasks - 1; t >= 0; t--) {
        r->pending[t] = 0;
        for (int32_t i = g->predecessor_offsets[t]; i < g->predecessor_offsets[t + 1]; i++)
            r->pending[t] += !(g->predecessors[i] & 1);
        if (r->pending[t] == 0)
            cut_queue(g, r, home, depth_first, t);
    }
    for (int32_t started = 0; started < g->num_tasks; started++) {
        double soonest = 0;
        int32_t worker = cut_next_worker(r, g->num_workers, &soonest);
        if (worker < 0)
            return -1;
        CutHeap *now = &r->now[worker], *later = &r->later[worker];
        while (later->size > 0 && -r->ready[later->tasks[0]] <= soonest)
            heap_push(now->tasks, now->size++, r->key, heap_pop(later->tasks, --later->size, r->ready));
        int32_t task = order[started] = heap_pop(now->tasks, --now->size, r->key);
        cut_run_task(g, r, home, task, soonest);
        /* In reverse: depth first, the first successor comes on top. */
        for (int32_t i = g->successor_offsets[task + 1] - 1; i >= g->successor_offsets[task]; i--)
            if (!(g->successors[i] & 1) && --r->pending[g->successors[i] >> 1] == 0)
                cut_queue(g, r, home, depth_first, g->successors[i] >> 1);
    }
    return 0;
}

/* Order the tasks for fixed homes: as they start in the second iteration of a run. Returns 0, or -1: a cycle. */
static int cut_order(const CutGraph *g, CutRun *r, const int32_t *home, int depth_first, int32_t *order)
{
    const size_t n = (size_t)g->num_tasks;
    cut_rank(g, home, r->rank);
    memset(r->former, 0, n * sizeof(double));
    memset(r->clock, 0, (size_t)g->num_workers * sizeof(double));
    memset(r->reader, -1, n * sizeof(int32_t));
    for (int pass = 0; pass < 2; pass++) {
        if (cut_order_iteration(g, r, home, depth_first, order) != 0)
            return -1;
        memcpy(r->former, r->finish, n * sizeof(double));
    }
    return 0;
}

/* Simulated time of an iteration, for workers that run their shares of `order` in this order. */
static double cut_time(const CutGraph *g, CutRun *r, const int32_t *home, const int32_t *order)
{
    double first = 0, last = 0;
    memset(r->finish, 0, (size_t)g->num_tasks * sizeof(double));
    memset(r->clock, 0, (size_t)g->num_workers * sizeof(double));
    memset(r->reader, -1, (size_t)g->num_tasks * sizeof(int32_t));
    for (int pass = 0; pass < CUTS_PASSES; pass++) {
        memcpy(r->former, r->finish, (size_t)g->num_tasks * sizeof(double));
        for (int32_t k = 0; k < g->num_tasks; k++) {
            int32_t task = order[k];
            double start = cut_inputs_ready(g, r, home, task), clock = r->clock[home[task]];
            cut_run_task(g, r, home, task, start > clock ? start : clock);
        }
        for (int32_t x = 0; x < g->num_workers; x++)
            last = r->clock[x] > last ? r->clock[x] : last;
        if (pass == 0)
            first = last;
    }
    return (last - first) / (CUTS_PASSES - 1);
}

/* Family `number` in [0, CUT_FAMILIES): contiguous; chunks of 1, 2 and 4 blocks; three swings at each of four slopes;
 * each with both orders. */
static CutFamily cut_family(int32_t number, int32_t num_workers)
{
    CutFamily family = {0, 0, 0, number % 2};
    int32_t which = number / 2;
    if (which >= 4) {
        family.slope = 1 + (which - 4) / 3;
        family.swing = 0.125 * (1 + (which - 4) % 3) * 2 / num_workers;
    } else if (which >= 1) {
        family.chunk = 1 << (which - 1);
    }
    return family;
}

/* Find the family with the shortest iteration; order: tasks of the sample in the order by cost, then scratch memory.
 * Returns 1 and the family, or 0: none is better than the cut by cost. */
static int choose_family(const CutGraph *g, CutRun *r, const RecordedGraph *graph, const int32_t *by_cost,
                         int32_t *home, int32_t *order, CutFamily *chosen)
{
    int better = 0;
    double best = CUTS_GAIN * cut_time(g, r, by_cost, order);
    for (int32_t number = 0; number < CUT_FAMILIES; number++) {
        CutFamily family = cut_family(number, g->num_workers);
        cut_homes(&family, graph, g->num_tasks, g->num_workers, by_cost, home);
        if (cut_order(g, r, home, family.depth_first, order) != 0)
            return 0;
        double time = cut_time(g, r, home, order);
        if (time < best) {
            best = time;
            *chosen = family;
            better = 1;
        }
    }
    return better;
}

/* Tasks beyond this number are not simulated in the search: whole loops that begin within CUTS_SAMPLE tasks. */
static int32_t cut_sample(const RecordedGraph *g)
{
    int32_t sample = g->num_tasks;
    if (g->num_tasks > CUTS_SAMPLE)
        for (int32_t l = 0; l < g->num_loops && g->loops[l].first_task < CUTS_SAMPLE; l++)
            sample = g->loops[l].first_task + g->loops[l].num_blocks;
    return sample;
}

/* Replace homes and order of short tasks, if a family of cuts is better. home, order: in and out. Returns 0, or -1
 * (out of memory). */
static int search_cuts(const RecordedGraph *graph, const double *cost, int32_t num_workers, const int32_t *offsets,
                       const int32_t *predecessors, int32_t *home, int32_t *order)
{
    const int32_t num_tasks = graph->num_tasks, sample = cut_sample(graph);
    const size_t size = (size_t)num_tasks * sizeof(int32_t);
    double total = 0;
    CutGraph g;
    CutRun run = {0};
    CutFamily chosen = {0};
    for (int32_t t = 0; t < num_tasks; t++)
        total += cost[t];
    if (num_workers < 2 || num_tasks < 2 * num_workers || total > CUTS_SHORT_NS * num_tasks)
        return 0;
    int32_t *tried_home = malloc(size), *tried = malloc(size);
    int status = cut_graph_open(&g, num_workers, num_tasks, sample, offsets, predecessors, cost);
    if (status == 0 && (tried_home == NULL || tried == NULL || cut_run_open(&run, sample, num_workers) != 0))
        status = -1;
    int better = 0;
    if (status == 0) {
        for (int32_t i = 0, k = 0; i < num_tasks; i++)
            if (order[i] < sample)
                tried[k++] = order[i];
        better = choose_family(&g, &run, graph, home, tried_home, tried, &chosen);
    }
    if (better && sample < num_tasks) { /* the family for the whole graph */
        cut_graph_close(&g);
        cut_run_close(&run);
        status = cut_graph_open(&g, num_workers, num_tasks, num_tasks, offsets, predecessors, cost);
        if (status == 0)
            status = cut_run_open(&run, num_tasks, num_workers);
    }
    if (better && status == 0) {
        cut_homes(&chosen, graph, num_tasks, num_workers, home, tried_home);
        if (cut_order(&g, &run, tried_home, chosen.depth_first, tried) == 0) {
            memcpy(home, tried_home, size);
            memcpy(order, tried, size);
        }
    }
    cut_graph_close(&g);
    cut_run_close(&run);
    free(tried_home);
    free(tried);
    return status < 0 ? -1 : 0;
}

#endif
