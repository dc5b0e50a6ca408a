/* Homes of tasks: the worker in whose program each task stands.
 *
 * The blocks of a loop go to the workers in contiguous shares of equal cost, in the order of their places: a block's place
 * is the mean place of the blocks whose results it uses. So neighbours share data, however a loop numbers its blocks (by
 * rows in one loop, by channels and rows in the next), and a worker keeps its data from loop to loop. Short tasks have
 * other cuts besides (CutFamily), since for them waiting decides and data do not.
 */
#ifndef FORKTASK_HOMES_H
#define FORKTASK_HOMES_H

#include <stdlib.h>
#include <string.h>

#include "tasking/recorded_graph.h"

enum { COMPILE_DONE = 0, COMPILE_NO_MEMORY = -1, COMPILE_CYCLE = -2 };

/* What the compiler may know of tasks besides their graph. */
typedef struct TaskHints {
    const double *cost; /* expected duration, positive, ns */
    int newest_first;   /* no other order is tried */
} TaskHints;

/* A recorded graph for `num_workers` programs; predecessors by node: 2 * node + token. */
typedef struct PlacedGraph {
    const RecordedGraph *graph;
    const TaskHints *hints;
    const int32_t *predecessor_offsets, *predecessors;
    int32_t num_workers;
} PlacedGraph;

/* Places that differ by less than this part of a loop do not tell its blocks apart. */
#define PLACES_DIFFER 1e-3

typedef struct PlacedBlock {
    double place; /* between 0 and 1 */
    int32_t task;
} PlacedBlock;

/* Sum of places, and how many: of one task, or of the tasks before a join. */
typedef struct PlaceSum {
    double sum;
    int32_t count; /* -1: a join that has not been summed */
} PlaceSum;

static int placed_before(const void *a, const void *b)
{
    const PlacedBlock *x = a, *y = b;
    return x->place != y->place ? (x->place > y->place) - (x->place < y->place)
                                : (x->task > y->task) - (x->task < y->task);
}

/* Sum the places of a node's predecessors in the same iteration. */
static PlaceSum sum_places(const PlacedGraph *g, PlaceSum *places, int32_t node)
{
    PlaceSum total = {0, 0};
    for (int32_t i = g->predecessor_offsets[node]; i < g->predecessor_offsets[node + 1]; i++) {
        int32_t before = g->predecessors[i] >> 1;
        if (g->predecessors[i] & 1)
            continue;
        if (places[before].count < 0)
            places[before] = sum_places(g, places, before);
        total.sum += places[before].sum;
        total.count += places[before].count;
    }
    return total;
}

/* Find the places of a loop's blocks and sort the blocks by them. */
static void place_loop(const PlacedGraph *g, const LoopRecord *loop, PlaceSum *places, PlacedBlock *blocks)
{
    double least = 2, most = -1;
    int32_t n = loop->num_blocks;
    for (int32_t b = 0; b < n; b++) {
        PlaceSum before = sum_places(g, places, loop->first_task + b);
        /* Rounded: the order of a sum must not tell blocks apart. */
        double place = before.count > 0 ? (double)(float)(before.sum / before.count) : -1;
        least = place < least ? place : least;
        most = place > most ? place : most;
        blocks[b] = (PlacedBlock){place, loop->first_task + b};
    }
    if (least < 0 ||
        most - least < PLACES_DIFFER) /* a block without predecessors, or all alike: as they are numbered */
        for (int32_t b = 0; b < n; b++)
            blocks[b].place = b;
    qsort(blocks, (size_t)n, sizeof(PlacedBlock), placed_before);
    for (int32_t from = 0, to; from < n; from = to) { /* equal ones share the mean of their places */
        for (to = from + 1; to < n && blocks[to].place == blocks[from].place; to++)
            ;
        for (int32_t b = from; b < to; b++)
            places[blocks[b].task] = (PlaceSum){(from + to) / (2.0 * n), 1};
    }
}

/* List the blocks of each loop by place. sorted: OUT, shape (num_tasks,). Returns 0, or -1 (out of memory). */
static int sort_by_place(const PlacedGraph *g, int32_t *sorted)
{
    const RecordedGraph *graph = g->graph;
    PlaceSum *places = malloc(((size_t)graph->num_nodes + 1) * sizeof(PlaceSum));
    PlacedBlock *blocks = malloc(((size_t)graph->num_tasks + 1) * sizeof(PlacedBlock));
    int status = places != NULL && blocks != NULL ? 0 : -1;
    for (int32_t v = 0; v < graph->num_nodes && status == 0; v++)
        places[v] =
            (PlaceSum){0, v < graph->num_tasks ? 0 : -1}; /* a task of this loop or a later one counts for none */
    for (int32_t l = 0; l < graph->num_loops && status == 0; l++) {
        const LoopRecord *loop = &graph->loops[l];
        place_loop(g, loop, places, blocks);
        for (int32_t b = 0; b < loop->num_blocks; b++)
            sorted[loop->first_task + b] = blocks[b].task;
    }
    free(places);
    free(blocks);
    return status;
}

/* Give a task of a loop with fewer blocks than workers to the home of a predecessor, if the load allows, else to the
 * worker with the least load. */
static int32_t home_near_data(const PlacedGraph *g, const int32_t *home, const double *load, int32_t task)
{
    int32_t least = 0, near = -1;
    for (int32_t w = 1; w < g->num_workers; w++)
        if (load[w] < load[least])
            least = w;
    for (int32_t i = g->predecessor_offsets[task]; i < g->predecessor_offsets[task + 1] && near < 0; i++)
        if (g->predecessors[i] >> 1 < task && (g->predecessors[i] & 1) == 0)
            near = home[g->predecessors[i] >> 1];
    return near >= 0 && load[near] - load[least] < g->hints->cost[task] ? near : least;
}

/* Give each task a home by its loop's shares. sorted: the blocks of each loop in the order in which they are shared out;
 * NULL: as they are numbered. load: shape (num_workers,), zero on entry. */
static void homes_by_cost(const PlacedGraph *g, const int32_t *sorted, int32_t *home, double *load)
{
    const double *cost = g->hints->cost;
    for (int32_t l = 0; l < g->graph->num_loops; l++) {
        double total = 0, before = 0;
        int32_t first = g->graph->loops[l].first_task, n = g->graph->loops[l].num_blocks;
        for (int32_t task = first; task < first + n; task++)
            total += cost[task];
        for (int32_t k = first; k < first + n; k++) {
            int32_t w, task = sorted != NULL ? sorted[k] : k;
            if (n >= g->num_workers) {
                w = (int32_t)((before + cost[task] / 2) / total * g->num_workers);
                w = w < g->num_workers ? w : g->num_workers - 1;
            } else {
                w = home_near_data(g, home, load, task);
            }
            before += cost[task];
            home[task] = w;
            load[w] += cost[task];
        }
    }
}

/* A family of cuts. Block b of n belongs to worker floor((b + shift) / n * num_workers), where shift swings between
 * -swing * n and +swing * n by `slope` blocks per loop; or, chunk > 0, to worker b / chunk modulo num_workers. */
typedef struct CutFamily {
    double swing;
    int32_t slope, chunk;
} CutFamily;

#define CUT_FAMILIES (1 + 3 + 4 * 3)

/* Family `number` in [0, CUT_FAMILIES): contiguous; chunks of 1, 2 and 4 blocks; three swings at each of four slopes. */
static CutFamily cut_family(int32_t number, int32_t num_workers)
{
    CutFamily family = {0, 0, 0};
    if (number >= 4) {
        family.slope = 1 + (number - 4) / 3;
        family.swing = 0.125 * (1 + (number - 4) % 3) * 2 / num_workers;
    } else if (number >= 1) {
        family.chunk = 1 << (number - 1);
    }
    return family;
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
static void homes_by_family(const PlacedGraph *g, const CutFamily *family, int32_t num_tasks, const int32_t *by_cost,
                            int32_t *home)
{
    const RecordedGraph *graph = g->graph;
    for (int32_t l = 0; l < graph->num_loops && graph->loops[l].first_task < num_tasks; l++) {
        int32_t n = graph->loops[l].num_blocks, first = graph->loops[l].first_task;
        double shift = cut_shift(family, l, n);
        for (int32_t b = 0; b < n; b++) {
            int32_t w;
            if (n < 2 * g->num_workers) {
                w = by_cost[first + b];
            } else if (family->chunk > 0) {
                w = b / family->chunk % g->num_workers;
            } else {
                double part = (b + 0.5 + shift) / n * g->num_workers;
                w = part < 0 ? 0 : (int32_t)part;
                w = w < g->num_workers ? w : g->num_workers - 1;
            }
            home[first + b] = w;
        }
    }
}

#endif
