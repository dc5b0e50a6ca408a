/* Where tasks run and in which order, for short tasks: chosen by trying.
 *
 * When tasks take tens of nanoseconds, the time per task is decided by how often, and how urgently, one core waits for
 * another. Which cut of a graph is best for that depends on its pattern: a stencil wants a cut that wanders, so that for
 * some steps only one side waits; a butterfly wants even and odd points apart. So a few families of cuts, each with two
 * ways to order the tasks, are tried in a model of the run: workers that go through their programs in order, a time for each
 * task, a delay until a result is seen on another core. The family with the shortest iteration is taken.
 *
 * The model sees at most PLACEMENT_SAMPLE tasks from the beginning of a graph; the family found serves for the whole of it.
 * No randomness, no clock: the same graph gets the same programs everywhere.
 */
#ifndef FORKTASK_PLACEMENT_H
#define FORKTASK_PLACEMENT_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "cython_src/binding/block_kernel.h"

/* Nanoseconds of the model. Measured on a Zen 4 server: a flag travels from core to core in 40 to 50 ns, and there are two
 * such trips, for the counter and for the data, besides the store that waits for the line. */
#define PLACEMENT_DELAY_NS 180.0
#define PLACEMENT_REMOTE_NS 40.0   /* reading a line that another core wrote, some overlapping */
#define PLACEMENT_TASK_NS 8.0      /* on top of the expected cost */
/* Longer tasks hide the delay anyhow: then data stay where they are, and the search is left out. */
#define PLACEMENT_SHORT_NS 1000.0
#define PLACEMENT_SAMPLE 1024
#define PLACEMENT_MAX_EDGES_PER_TASK 48
#define PLACEMENT_PASSES 4         /* iterations of the model; the first is not counted */
/* A family must be better by this than the plain cut, in which the same block of each loop is at home on the same worker. */
#define PLACEMENT_GAIN 0.97

typedef struct PlacementGraph {
    int32_t num_tasks, num_workers;
    int32_t *successor_offsets, *successors;     /* 2 * task + token; joins are dissolved */
    int32_t *predecessor_offsets, *predecessors;
    const double *cost;
} PlacementGraph;

/* A family of cuts. Block b of n belongs to worker floor((b + shift) / n * num_workers), where shift swings between -swing * n and
 * +swing * n by `slope` blocks a loop; or, chunk > 0, to worker b / chunk modulo num_workers. */
typedef struct PlacementFamily {
    double swing;
    int32_t slope, chunk;
    int32_t depth_first; /* newest ready task first, instead of the one with the longest way to the end */
} PlacementFamily;

typedef struct PlacementHeap {
    int32_t *tasks;
    int32_t size;
} PlacementHeap;

/* Scratch arrays of one graph. */
typedef struct PlacementWork {
    double *finish, *former, *ready, *rank, *key, *clock;
    int32_t *pending, *memory;
    int32_t *reader; /* of each task: the last worker that fetched what it wrote */
    PlacementHeap *now, *later; /* per worker: ready tasks, best first; tasks whose inputs are on the way, soonest first */
} PlacementWork;

static void placement_graph_close(PlacementGraph *g)
{
    free(g->successor_offsets);
    free(g->successors);
    free(g->predecessor_offsets);
    free(g->predecessors);
    memset(g, 0, sizeof(*g));
}

/* Visit predecessors of a node through joins: adds them to `out` if it is given. Returns how many, or -1: more than `limit`. */
static int64_t placement_collect(const int32_t *offsets, const int32_t *predecessors, int32_t num_tasks, int32_t limit_task,
                                 int32_t node, int32_t token, int32_t *out, int64_t found, int64_t limit)
{
    for (int32_t i = offsets[node]; i < offsets[node + 1] && found >= 0; i++) {
        int32_t before = predecessors[i] >> 1, sum = token + (predecessors[i] & 1);
        if (sum > 1)
            continue; /* two iterations back is no constraint worth a model */
        if (before >= num_tasks) {
            found = placement_collect(offsets, predecessors, num_tasks, limit_task, before, sum, out, found, limit);
        } else if (before < limit_task) {
            if (found == limit)
                return -1;
            if (out != NULL)
                out[found] = 2 * before + sum;
            found++;
        }
    }
    return found;
}

/* The first `limit_task` tasks of a graph without its joins; by_task: 2 * node + token. Returns 0, -1 (out of memory),
 * 1 (too many edges without joins: no search). */
static int placement_graph_open(PlacementGraph *g, int32_t num_workers, int32_t num_tasks, int32_t limit_task,
                                const int32_t *by_task_offsets, const int32_t *by_task, const double *cost)
{
    int64_t limit = (int64_t)PLACEMENT_MAX_EDGES_PER_TASK * limit_task, count = 0;
    memset(g, 0, sizeof(*g));
    if (limit > INT32_MAX / 2)
        return 1;
    g->num_tasks = limit_task;
    g->num_workers = num_workers;
    g->cost = cost;
    g->predecessor_offsets = malloc(((size_t)limit_task + 1) * sizeof(int32_t));
    g->successor_offsets = calloc((size_t)limit_task + 2, sizeof(int32_t));
    if (g->predecessor_offsets == NULL || g->successor_offsets == NULL) {
        placement_graph_close(g);
        return -1;
    }
    for (int32_t t = 0; t < limit_task; t++) {
        g->predecessor_offsets[t] = (int32_t)count;
        count = placement_collect(by_task_offsets, by_task, num_tasks, limit_task, t, 0, NULL, count, limit);
        if (count < 0) {
            placement_graph_close(g);
            return 1;
        }
    }
    g->predecessor_offsets[limit_task] = (int32_t)count;
    g->predecessors = malloc(((size_t)count + 1) * sizeof(int32_t));
    g->successors = malloc(((size_t)count + 1) * sizeof(int32_t));
    if (g->predecessors == NULL || g->successors == NULL) {
        placement_graph_close(g);
        return -1;
    }
    for (int32_t t = 0; t < limit_task; t++)
        placement_collect(by_task_offsets, by_task, num_tasks, limit_task, t, 0, g->predecessors, g->predecessor_offsets[t],
                          limit);
    for (int64_t i = 0; i < count; i++)
        g->successor_offsets[(g->predecessors[i] >> 1) + 2]++;
    for (int32_t t = 0; t < limit_task; t++)
        g->successor_offsets[t + 2] += g->successor_offsets[t + 1];
    for (int32_t t = 0; t < limit_task; t++)
        for (int32_t i = g->predecessor_offsets[t]; i < g->predecessor_offsets[t + 1]; i++)
            g->successors[g->successor_offsets[(g->predecessors[i] >> 1) + 1]++] = 2 * t + (g->predecessors[i] & 1);
    return 0;
}

static void placement_work_close(PlacementWork *w)
{
    free(w->finish);
    free(w->memory);
    free(w->now);
    memset(w, 0, sizeof(*w));
}

static int placement_work_open(PlacementWork *w, int32_t num_tasks, int32_t num_workers)
{
    size_t n = (size_t)num_tasks, P = (size_t)num_workers;
    memset(w, 0, sizeof(*w));
    w->finish = malloc((5 * n + P) * sizeof(double));
    w->memory = malloc((2 * P + 2) * n * sizeof(int32_t) + 4);
    w->now = calloc(2 * P, sizeof(PlacementHeap));
    if (w->finish == NULL || w->memory == NULL || w->now == NULL) {
        placement_work_close(w);
        return -1;
    }
    w->former = w->finish + n;
    w->ready = w->former + n;
    w->rank = w->ready + n;
    w->key = w->rank + n;
    w->clock = w->key + n;
    w->pending = w->memory;
    w->reader = w->memory + n;
    w->later = w->now + P;
    /* Never touched beyond what a heap holds: pages that are not used cost nothing. */
    for (size_t x = 0; x < 2 * P; x++)
        w->now[x].tasks = w->memory + (x + 2) * n;
    return 0;
}

static void placement_homes(const PlacementFamily *family, const LoopRecord *loops, int32_t num_loops, int32_t num_tasks,
                            int32_t num_workers, const int32_t *plain, int32_t *home)
{
    for (int32_t l = 0; l < num_loops && loops[l].first_task < num_tasks; l++) {
        int32_t n = loops[l].num_blocks, first = loops[l].first_task;
        double swing = family->swing * n, shift = 0;
        if (swing >= 1) {
            double at = 0.5 + (double)l * family->slope / (4 * swing); /* a triangle: 0, up, 0, down, 0 in one period */
            at -= (double)(int64_t)at;
            shift = swing * (at < 0.5 ? 4 * at - 1 : 3 - 4 * at);
            shift = shift < 0 ? -(double)(int64_t)(0.5 - shift) : (double)(int64_t)(0.5 + shift);
        }
        for (int32_t b = 0; b < n; b++) {
            int32_t w;
            if (n < 2 * num_workers) {
                w = plain[first + b];
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
static void placement_rank(const PlacementGraph *g, const int32_t *home, double *rank)
{
    for (int pass = 0; pass < 2; pass++)
        for (int32_t t = g->num_tasks - 1; t >= 0; t--) {
            double longest = 0;
            for (int32_t i = g->successor_offsets[t]; i < g->successor_offsets[t + 1]; i++) {
                int32_t s = g->successors[i] >> 1;
                if (g->successors[i] & 1 && pass == 0)
                    continue;
                double way = rank[s] + (home[s] != home[t] ? PLACEMENT_DELAY_NS : 0);
                longest = way > longest ? way : longest;
            }
            rank[t] = g->cost[t] + PLACEMENT_TASK_NS + longest;
        }
}

static void placement_push(PlacementHeap *h, const double *key, int32_t task)
{
    int32_t at = h->size++;
    while (at > 0 && key[h->tasks[(at - 1) / 2]] < key[task]) {
        h->tasks[at] = h->tasks[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    h->tasks[at] = task;
}

static int32_t placement_pop(PlacementHeap *h, const double *key)
{
    int32_t top = h->tasks[0], last = h->tasks[--h->size], at = 0;
    for (;;) {
        int32_t child = 2 * at + 1;
        if (child >= h->size)
            break;
        if (child + 1 < h->size && key[h->tasks[child + 1]] > key[h->tasks[child]])
            child++;
        if (key[h->tasks[child]] <= key[last])
            break;
        h->tasks[at] = h->tasks[child];
        at = child;
    }
    h->tasks[at] = last;
    return top;
}

/* When the inputs of a task are there, given when its predecessors finish. */
static double placement_ready(const PlacementGraph *g, const PlacementWork *w, const int32_t *home, int32_t task)
{
    double ready = 0;
    for (int32_t i = g->predecessor_offsets[task]; i < g->predecessor_offsets[task + 1]; i++) {
        int32_t before = g->predecessors[i] >> 1;
        double at = g->predecessors[i] & 1 ? w->former[before] : w->finish[before];
        at += home[before] != home[task] ? PLACEMENT_DELAY_NS : 0;
        ready = at > ready ? at : ready;
    }
    return ready;
}

/* Run a task in the model, not before `start`: a line that another core wrote is fetched by the first reader on this one. */
static void placement_run(const PlacementGraph *g, PlacementWork *w, const int32_t *home, int32_t task, double start)
{
    double time = g->cost[task] + PLACEMENT_TASK_NS;
    for (int32_t i = g->predecessor_offsets[task]; i < g->predecessor_offsets[task + 1]; i++) {
        int32_t before = g->predecessors[i] >> 1;
        if (home[before] != home[task] && w->reader[before] != home[task]) {
            w->reader[before] = home[task];
            time += PLACEMENT_REMOTE_NS;
        }
    }
    w->reader[task] = -1;
    w->clock[home[task]] = w->finish[task] = start + time;
}

/* Tasks in the order in which workers that choose freely among what is ready start them, in the second iteration of a
 * run. Returns 0, or -1: a cycle within an iteration. */
static int placement_order(const PlacementGraph *g, PlacementWork *w, const int32_t *home, int depth_first, int32_t *order)
{
    const int32_t n = g->num_tasks, P = g->num_workers;
    placement_rank(g, home, w->rank);
    memset(w->former, 0, (size_t)n * sizeof(double));
    memset(w->clock, 0, (size_t)P * sizeof(double));
    memset(w->reader, -1, (size_t)n * sizeof(int32_t));
    for (int pass = 0; pass < 2; pass++) {
        int32_t started = 0;
        double sequence = 0;
        for (int32_t t = n - 1; t >= 0; t--) {
            w->pending[t] = 0;
            for (int32_t i = g->predecessor_offsets[t]; i < g->predecessor_offsets[t + 1]; i++)
                w->pending[t] += !(g->predecessors[i] & 1);
            if (w->pending[t] == 0) {
                w->ready[t] = -placement_ready(g, w, home, t); /* heaps have their largest on top */
                w->key[t] = depth_first ? sequence++ : w->rank[t];
                placement_push(&w->later[home[t]], w->ready, t);
            }
        }
        while (started < n) {
            int32_t worker = -1;
            double soonest = 0;
            for (int32_t x = 0; x < P; x++) {
                if (w->now[x].size + w->later[x].size == 0)
                    continue;
                double start = w->clock[x];
                if (w->now[x].size == 0 && -w->ready[w->later[x].tasks[0]] > start)
                    start = -w->ready[w->later[x].tasks[0]];
                if (worker < 0 || start < soonest) {
                    worker = x;
                    soonest = start;
                }
            }
            if (worker < 0)
                return -1;
            while (w->later[worker].size > 0 && -w->ready[w->later[worker].tasks[0]] <= soonest)
                placement_push(&w->now[worker], w->key, placement_pop(&w->later[worker], w->ready));
            int32_t task = placement_pop(&w->now[worker], w->key);
            order[started++] = task;
            placement_run(g, w, home, task, soonest);
            /* In reverse: depth first, the first successor comes on top. */
            for (int32_t i = g->successor_offsets[task + 1] - 1; i >= g->successor_offsets[task]; i--) {
                int32_t s = g->successors[i] >> 1;
                if (g->successors[i] & 1 || --w->pending[s] > 0)
                    continue;
                w->ready[s] = -placement_ready(g, w, home, s);
                w->key[s] = depth_first ? sequence++ : w->rank[s];
                placement_push(&w->later[home[s]], w->ready, s);
            }
        }
        memcpy(w->former, w->finish, (size_t)n * sizeof(double));
    }
    return 0;
}

/* Time of an iteration in the model, for workers that run their parts of `order` in this order. */
static double placement_time(const PlacementGraph *g, PlacementWork *w, const int32_t *home, const int32_t *order)
{
    double first = 0, last = 0;
    memset(w->finish, 0, (size_t)g->num_tasks * sizeof(double));
    memset(w->clock, 0, (size_t)g->num_workers * sizeof(double));
    memset(w->reader, -1, (size_t)g->num_tasks * sizeof(int32_t));
    for (int pass = 0; pass < PLACEMENT_PASSES; pass++) {
        memcpy(w->former, w->finish, (size_t)g->num_tasks * sizeof(double));
        for (int32_t k = 0; k < g->num_tasks; k++) {
            int32_t task = order[k];
            double start = placement_ready(g, w, home, task), clock = w->clock[home[task]];
            placement_run(g, w, home, task, start > clock ? start : clock);
        }
        for (int32_t x = 0; x < g->num_workers; x++)
            last = w->clock[x] > last ? w->clock[x] : last;
        if (pass == 0)
            first = last;
    }
    return (last - first) / (PLACEMENT_PASSES - 1);
}

/* Better homes and order than the plain ones, if a family of cuts gives them. In and out: `home`, `order` (the plain ones come
 * in). Returns 0, or -1 (out of memory). */
static int placement_search(int32_t num_workers, const LoopRecord *loops, int32_t num_loops, int32_t num_tasks,
                            const int32_t *by_task_offsets, const int32_t *by_task, const double *cost, int32_t *home,
                            int32_t *order)
{
    double total = 0, best = 0;
    int32_t sample = num_tasks, failed = 0;
    PlacementFamily chosen = {0, 0, 0, -1};
    PlacementGraph g;
    PlacementWork work = {0};
    for (int32_t t = 0; t < num_tasks; t++)
        total += cost[t];
    if (num_workers < 2 || num_tasks < 2 * num_workers || total > PLACEMENT_SHORT_NS * num_tasks)
        return 0;
    if (num_tasks > PLACEMENT_SAMPLE)
        for (int32_t l = 0; l < num_loops && loops[l].first_task < PLACEMENT_SAMPLE; l++)
            sample = loops[l].first_task + loops[l].num_blocks;
    int32_t *tried_home = malloc((size_t)num_tasks * sizeof(int32_t)), *tried = malloc((size_t)num_tasks * sizeof(int32_t));
    int status = placement_graph_open(&g, num_workers, num_tasks, sample, by_task_offsets, by_task, cost);
    if (status != 0)
        goto end;
    if (tried_home == NULL || tried == NULL || placement_work_open(&work, sample, num_workers) != 0) {
        status = -1;
        goto end;
    }
    /* The plain order within the sample. */
    int32_t k = 0;
    for (int32_t i = 0; i < num_tasks; i++)
        if (order[i] < sample)
            tried[k++] = order[i];
    best = PLACEMENT_GAIN * placement_time(&g, &work, home, tried);
    for (int32_t number = 0; number < 2 * (1 + 3 + 4 * 3) && !failed; number++) {
        int32_t which = number / 2;
        PlacementFamily family = {0, 0, 0, number % 2};
        if (which >= 4) {
            family.slope = 1 + (which - 4) / 3;
            family.swing = 0.125 * (1 + (which - 4) % 3) * 2 / num_workers;
        } else if (which >= 1) {
            family.chunk = 1 << (which - 1);
        }
        placement_homes(&family, loops, num_loops, sample, num_workers, home, tried_home);
        failed = placement_order(&g, &work, tried_home, family.depth_first, tried);
        double time = failed ? 0 : placement_time(&g, &work, tried_home, tried);
        if (!failed && time < best) {
            best = time;
            chosen = family;
        }
    }
    if (chosen.depth_first >= 0 && !failed) {
        if (sample < num_tasks) {
            placement_graph_close(&g);
            placement_work_close(&work);
            status = placement_graph_open(&g, num_workers, num_tasks, num_tasks, by_task_offsets, by_task, cost);
            if (status != 0)
                goto end;
            status = placement_work_open(&work, num_tasks, num_workers);
            if (status != 0)
                goto end;
        }
        placement_homes(&chosen, loops, num_loops, num_tasks, num_workers, home, tried_home);
        if (placement_order(&g, &work, tried_home, chosen.depth_first, tried) == 0) {
            memcpy(home, tried_home, (size_t)num_tasks * sizeof(int32_t));
            memcpy(order, tried, (size_t)num_tasks * sizeof(int32_t));
        }
    }
end:
    placement_graph_close(&g);
    placement_work_close(&work);
    free(tried_home);
    free(tried);
    return status < 0 ? -1 : 0;
}

#endif
