/* The compiler of programs: from a recorded graph to what programs.h runs.
 *
 *     predecessors --> homes and order --> entries --> predecessors of entries --> waits
 *
 * Homes and order come from a simulated run (simulated_order.h); where tasks are short, cuts.h looks for better ones.
 * Any homes and any topological order are right: they decide speed alone. No randomness and no clock: the same graph
 * gets the same programs everywhere.
 */
#ifndef FORKTASK_PROGRAM_COMPILER_H
#define FORKTASK_PROGRAM_COMPILER_H

#include "cuts.h"
#include "programs.h"
#include "simulated_order.h"
#include "waits.h"

typedef struct Compilation {
    const RecordedGraph *graph;
    const TaskHints *hints;
    int32_t num_workers;
    int32_t *predecessor_offsets, *predecessors; /* by node: 2 * node + token */
    int32_t *home;                               /* of each task: the worker in whose program it stands */
    int32_t *order;                              /* tasks in the topological order that the programs are cut from */
    int32_t *entry_of;                           /* of each node: its entry; joins keep their numbers */
    double *load;                                /* of each worker */
} Compilation;

static void compilation_close(Compilation *c)
{
    free(c->predecessor_offsets);
    free(c->predecessors);
    free(c->home);
    free(c->order);
    free(c->entry_of);
    free(c->load);
}

/* Returns 0, or -1 (out of memory); compilation_close() frees what there is. */
static int compilation_open(Compilation *c, const RecordedGraph *g, const TaskHints *hints, int32_t num_workers)
{
    const size_t nodes = (size_t)g->num_nodes * sizeof(int32_t) + 4;
    memset(c, 0, sizeof(*c));
    c->graph = g;
    c->hints = hints;
    c->num_workers = num_workers;
    c->predecessor_offsets = calloc((size_t)g->num_nodes + 2, sizeof(int32_t));
    c->predecessors = malloc((size_t)graph_num_edges(g) * sizeof(int32_t) + 4);
    c->home = malloc(nodes);
    c->order = malloc(nodes);
    c->entry_of = malloc(nodes);
    c->load = calloc((size_t)num_workers, sizeof(double));
    return c->predecessor_offsets != NULL && c->predecessors != NULL && c->home != NULL && c->order != NULL &&
                   c->entry_of != NULL && c->load != NULL
               ? 0
               : -1;
}

/* Allocate everything but the waits. Returns 0, or -1 (out of memory); programs_close() frees what there is. */
static int programs_allocate(Programs *p, const RecordedGraph *g, int32_t num_workers)
{
    const size_t P = (size_t)num_workers, tasks = (size_t)g->num_tasks;
    p->num_tasks = g->num_tasks;
    p->num_nodes = g->num_nodes;
    p->workers = forktask_aligned_zeros(P * sizeof(ProgramWorker));
    p->entries = forktask_aligned_zeros((tasks + 1) * sizeof(ProgramEntry));
    p->claims = forktask_aligned_zeros(tasks * sizeof(ClaimWord));
    p->first = calloc(P + 1, sizeof(int32_t));
    p->seen = forktask_aligned_zeros(P * P * sizeof(int64_t));
    p->all_claimed = forktask_aligned_zeros(P * P * sizeof(int64_t));
    p->predecessor_offsets = calloc((size_t)g->num_nodes + 1, sizeof(int32_t));
    p->predecessors = malloc((size_t)graph_num_edges(g) * sizeof(int32_t) + 4);
    if (p->workers == NULL || p->entries == NULL || p->claims == NULL || p->first == NULL || p->seen == NULL ||
        p->all_claimed == NULL || p->predecessor_offsets == NULL || p->predecessors == NULL)
        return -1;
    for (size_t w = 0; w < P; w++) {
        p->workers[w].seen = p->seen + w * P;
        p->workers[w].all_claimed = p->all_claimed + w * P;
        p->workers[w].is_open = 1;
        p->workers[w].wakes_helpers = 1;
    }
    return 0;
}

/* Choose home and order of all tasks. Returns a COMPILE_ code. */
static int choose_homes_and_order(Compilation *c)
{
    homes_by_cost(c->graph, c->hints, c->num_workers, c->predecessor_offsets, c->predecessors, c->home, c->load);
    int status = simulate_order(c->graph, c->hints, c->num_workers, c->home, c->order);
    /* Plans with priorities or affinities keep what they ask for. */
    if (status == COMPILE_DONE && c->hints->priority == NULL && c->hints->affinity == NULL)
        status = search_cuts(c->graph, c->hints->cost, c->num_workers, c->predecessor_offsets, c->predecessors, c->home,
                             c->order);
    return status;
}

/* Find home and order of all tasks alone, without programs. home, order: OUT, shape (num_tasks,). Returns a COMPILE_
 * code. */
static inline int programs_order(const RecordedGraph *g, const TaskHints *hints, int32_t num_workers, int32_t *home,
                                 int32_t *order)
{
    Compilation c;
    int status = COMPILE_NO_MEMORY;
    if (compilation_open(&c, g, hints, num_workers) == 0) {
        graph_list_predecessors(g, c.predecessor_offsets, c.predecessors, NULL);
        status = choose_homes_and_order(&c);
        memcpy(home, c.home, (size_t)g->num_tasks * sizeof(int32_t));
        memcpy(order, c.order, (size_t)g->num_tasks * sizeof(int32_t));
    }
    compilation_close(&c);
    return status;
}

/* Put each task into the program of its home, in the order found. */
static void place_entries(Compilation *c, Programs *p)
{
    const RecordedGraph *g = c->graph;
    for (int32_t t = 0; t < g->num_tasks; t++)
        p->first[c->home[t] + 1]++;
    for (int32_t w = 0; w < c->num_workers; w++)
        p->first[w + 1] += p->first[w];
    for (int32_t k = 0; k < g->num_tasks; k++) {
        int32_t task = c->order[k], entry = p->first[c->home[task]]++;
        c->entry_of[task] = entry;
        p->entries[entry].task = task;
        p->entries[entry].loop = g->task_loop[task];
    }
    for (int32_t w = c->num_workers; w > 0; w--) /* each beginning has moved to the program's end */
        p->first[w] = p->first[w - 1];
    p->first[0] = 0;
    for (int32_t join = g->num_tasks; join < g->num_nodes; join++)
        c->entry_of[join] = join;
}

/* List the predecessors by entry, for helpers. */
static void list_predecessors_of_entries(const Compilation *c, Programs *p)
{
    const int32_t *offsets = c->predecessor_offsets, *entry_of = c->entry_of;
    for (int32_t v = 0; v < p->num_nodes; v++)
        p->predecessor_offsets[entry_of[v] + 1] = offsets[v + 1] - offsets[v];
    for (int32_t v = 0; v < p->num_nodes; v++)
        p->predecessor_offsets[v + 1] += p->predecessor_offsets[v];
    for (int32_t v = 0; v < p->num_nodes; v++)
        for (int32_t i = offsets[v], k = p->predecessor_offsets[entry_of[v]]; i < offsets[v + 1]; i++, k++)
            p->predecessors[k] = 2 * entry_of[c->predecessors[i] >> 1] + (c->predecessors[i] & 1);
}

static int compile_into(Compilation *c, Programs *p)
{
    graph_list_predecessors(c->graph, c->predecessor_offsets, c->predecessors, NULL);
    int status = choose_homes_and_order(c);
    if (status != COMPILE_DONE)
        return status;
    place_entries(c, p);
    list_predecessors_of_entries(c, p);
    return compile_waits(p, c->num_workers, c->predecessor_offsets, c->predecessors, c->home, c->entry_of, c->order);
}

/* Compile a closed graph. Returns a COMPILE_ code. */
static int programs_open(Programs *p, const RecordedGraph *g, const TaskHints *hints, int32_t num_workers,
                         WorkerState *states, int64_t spin_ns)
{
    Compilation c;
    int status = COMPILE_NO_MEMORY;
    memset(p, 0, sizeof(*p));
    if (compilation_open(&c, g, hints, num_workers) == 0 && programs_allocate(p, g, num_workers) == 0 &&
        scheduler_open(&p->scheduler, num_workers, g->loops, states, 4, spin_ns) == 0)
        status = compile_into(&c, p);
    compilation_close(&c);
    if (status != COMPILE_DONE)
        programs_close(p);
    return status;
}

#endif
