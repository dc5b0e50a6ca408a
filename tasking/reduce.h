/* Transitive reduction of a closed graph: edges that other edges imply need no count.
 *
 * The tasks are laid in chains, each one an edge after the one before; a task knows for each chain how far it must
 * have come before the task can start: in the same iteration (`own`), and in the former one (`former`). An edge u ->
 * v is implied if another predecessor of v knows u. What is left has the same paths, so everything that holds for the
 * paths of a graph (one token on a cycle through each edge, the tasks that end an iteration) holds for it too.
 *
 * The reduction is of tasks' edges only, finds at most REDUCE_CHAINS chains and forgets what a task knew
 * REDUCE_WINDOW tasks later: then edges stay that could go, never the other way round. Time and memory are
 * proportional to the number of edges.
 */
#ifndef FORKTASK_REDUCE_H
#define FORKTASK_REDUCE_H

#include <stdlib.h>

#include "recorded_graph.h"

#define REDUCE_CHAINS 64
#define REDUCE_WINDOW 1024 /* a power of two */

typedef struct ReduceClock {
    int32_t own[REDUCE_CHAINS];    /* for each chain: entries finished, itself included */
    int32_t former[REDUCE_CHAINS]; /* the same of the former iteration */
} ReduceClock;

typedef struct Reduce {
    int32_t num_tasks, num_chains;
    const int32_t *offsets, *predecessors; /* 2 * node + token */
    int32_t *chain, *position;             /* of each task in its chain; chain -1: in none */
    ReduceClock *clocks;                   /* of instances, by number modulo the window */
    int64_t *instance;                     /* whose clock that is: iteration * num_tasks + task */
} Reduce;

static inline const ReduceClock *reduce_clock(const Reduce *r, int64_t instance)
{
    int64_t at = instance & (REDUCE_WINDOW - 1);
    return r->instance[at] == instance ? &r->clocks[at] : NULL;
}

/* Return 1 if predecessor `by` (2 * task + token) of an instance in `iteration` knows predecessor `edge` of the same
 * instance. */
static inline int reduce_implies(const Reduce *r, int64_t iteration, int32_t by, int32_t edge)
{
    int32_t u = edge >> 1, w = by >> 1;
    if (by == edge || w >= r->num_tasks || r->chain[u] < 0 || ((by & 1) > (edge & 1)))
        return 0;
    const ReduceClock *clock = reduce_clock(r, (iteration - (by & 1)) * r->num_tasks + w);
    if (clock == NULL)
        return 0;
    return ((by & 1) == (edge & 1) ? clock->own : clock->former)[r->chain[u]] > r->position[u];
}

/* Set the clock of a task's instance from those of its predecessors. */
static void reduce_learn(Reduce *r, int64_t iteration, int32_t task)
{
    int64_t number = iteration * r->num_tasks + task, at = number & (REDUCE_WINDOW - 1);
    ReduceClock *clock = &r->clocks[at];
    r->instance[at] = -1; /* the instance that was here is no predecessor of one a window later */
    memset(clock, 0, sizeof(*clock));
    for (int32_t i = r->offsets[task]; i < r->offsets[task + 1]; i++) {
        int32_t w = r->predecessors[i] >> 1, token = r->predecessors[i] & 1;
        if (w >= r->num_tasks)
            continue;
        const ReduceClock *before = reduce_clock(r, (iteration - token) * r->num_tasks + w);
        if (before != NULL) {
            raise_clock(token ? clock->former : clock->own, before->own, r->num_chains);
            if (!token)
                raise_clock(clock->former, before->former, r->num_chains);
        } else if (r->chain[w] >= 0) {
            int32_t *known = &(token ? clock->former : clock->own)[r->chain[w]];
            *known = *known > r->position[w] ? *known : r->position[w] + 1;
        }
    }
    if (r->chain[task] >= 0)
        clock->own[r->chain[task]] = r->position[task] + 1;
    r->instance[at] = number;
}

/* Lay the tasks in chains: each one after a predecessor that is the end of its chain, in the same column if there is
 * one. */
static void reduce_chains(Reduce *r)
{
    int32_t ends[REDUCE_CHAINS], step = 0;
    for (int32_t t = 0; t < r->num_tasks; t++) {
        int32_t after = -1;
        for (int32_t i = r->offsets[t]; i < r->offsets[t + 1]; i++) {
            int32_t u = r->predecessors[i] >> 1;
            if (r->predecessors[i] & 1 || u >= r->num_tasks || r->chain[u] < 0 || ends[r->chain[u]] != u)
                continue;
            after = after < 0 || t - u == step ? u : after;
        }
        r->chain[t] = -1;
        if (after >= 0) {
            step = t - after;
            r->chain[t] = r->chain[after];
            r->position[t] = r->position[after] + 1;
        } else if (r->num_chains < REDUCE_CHAINS) {
            r->chain[t] = r->num_chains++;
            r->position[t] = 0;
        }
        if (r->chain[t] >= 0)
            ends[r->chain[t]] = t;
    }
}

/* Mark implied edges. Edges by target: offsets, predecessors (2 * node + token), tasks in an order in which edges
 * without token go upwards. implied[i] becomes 1 for each implied edge. Returns how many, or -1 (out of memory). */
static int64_t reduce_edges(int32_t num_tasks, const int32_t *offsets, const int32_t *predecessors, uint8_t *implied)
{
    Reduce r = {num_tasks, 0, offsets, predecessors, NULL, NULL, NULL, NULL};
    int64_t count = -1;
    r.chain = malloc((size_t)num_tasks * sizeof(int32_t) + 4);
    r.position = malloc((size_t)num_tasks * sizeof(int32_t) + 4);
    r.clocks = malloc(REDUCE_WINDOW * sizeof(ReduceClock));
    r.instance = malloc(REDUCE_WINDOW * sizeof(int64_t));
    if (r.chain != NULL && r.position != NULL && r.clocks != NULL && r.instance != NULL) {
        count = 0;
        reduce_chains(&r);
        memset(r.instance, -1, REDUCE_WINDOW * sizeof(int64_t));
        for (int64_t iteration = 1; iteration < 3; iteration++)
            for (int32_t t = 0; t < num_tasks; t++) {
                for (int32_t i = offsets[t]; i < offsets[t + 1] && iteration == 2; i++) {
                    if (predecessors[i] >> 1 >= num_tasks)
                        continue;
                    for (int32_t k = offsets[t]; k < offsets[t + 1] && !implied[i]; k++)
                        implied[i] = (uint8_t)reduce_implies(&r, iteration, predecessors[k], predecessors[i]);
                    count += implied[i];
                }
                reduce_learn(&r, iteration, t);
            }
    }
    free(r.chain);
    free(r.position);
    free(r.clocks);
    free(r.instance);
    return count;
}

#endif
