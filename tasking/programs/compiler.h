/* The compiler of programs: from a recorded graph to what programs.h runs.
 *
 *     predecessors --> homes and order --> entries --> predecessors of entries --> waits
 *
 * Homes (homes.h) and order are those of the candidate with the shortest simulated iteration (simulation.h). Any homes
 * and any topological order are right: they decide speed alone. No randomness and no clock: the same graph gets the
 * same programs everywhere.
 */
#ifndef FORKTASK_PROGRAM_COMPILER_H
#define FORKTASK_PROGRAM_COMPILER_H

#include "homes.h"
#include "programs.h"
#include "simulation.h"
#include "waits.h"

typedef struct Compilation {
    PlacedGraph placed;
    int32_t *predecessor_offsets, *predecessors; /* by node: 2 * node + token */
    int32_t *home;                               /* of each task: the worker in whose program it stands */
    int32_t *order;                              /* tasks in the topological order that the programs are cut from */
    int32_t *entry_of;                           /* of each node: its entry; joins keep their numbers */
    int32_t *by_cost;                            /* of each task: its home before the simulated run */
    double *load;                                /* of each worker */
} Compilation;

static void compilation_close(Compilation *c)
{
    free(c->predecessor_offsets);
    free(c->predecessors);
    free(c->home);
    free(c->order);
    free(c->entry_of);
    free(c->by_cost);
    free(c->load);
}

/* Returns 0, or -1 (out of memory); compilation_close() frees what there is. */
static int compilation_open(Compilation *c, const RecordedGraph *g, const TaskHints *hints, int32_t num_workers)
{
    const size_t nodes = (size_t)g->num_nodes * sizeof(int32_t) + 4;
    memset(c, 0, sizeof(*c));
    c->predecessor_offsets = calloc((size_t)g->num_nodes + 2, sizeof(int32_t));
    c->predecessors = malloc((size_t)graph_num_edges(g) * sizeof(int32_t) + 4);
    c->home = malloc(nodes);
    c->order = malloc(nodes);
    c->entry_of = malloc(nodes);
    c->by_cost = malloc(nodes);
    c->load = calloc((size_t)num_workers, sizeof(double));
    if (c->predecessor_offsets == NULL || c->predecessors == NULL || c->home == NULL || c->order == NULL ||
        c->entry_of == NULL || c->by_cost == NULL || c->load == NULL)
        return -1;
    graph_list_predecessors(g, c->predecessor_offsets, c->predecessors, NULL);
    c->placed = (PlacedGraph){g, hints, c->predecessor_offsets, c->predecessors, num_workers};
    return 0;
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

/* Tasks below this are short: what decides is how often one core waits for another, and many cuts are tried. Longer ones
 * hide the delay: their data stay where they are, and idle workers take tasks of others. */
#define SHORT_NS 1000.0
/* Short tasks that are simulated while cuts are tried: whole loops that begin within this number. The cut found serves
 * for all. */
#define CHOICE_SAMPLE 1024
/* A candidate must shorten the simulated iteration to this part of the default's, for short tasks and for long ones. */
#define CHOICE_GAIN_SHORT 0.97
#define CHOICE_GAIN_LONG  0.99

/* Homes and the order in which ready tasks are taken. */
typedef struct Candidate {
    CutFamily family; /* of short tasks */
    ReadyOrder by;
} Candidate;

/* Find homes and order under a candidate. by_cost: homes to begin with; home, order: OUT. Returns 0, or -1: a cycle within
 * an iteration. */
static int place_candidate(Simulation *m, const Candidate *c, int is_short, const int32_t *by_cost, int32_t *home,
                           int32_t *order)
{
    memcpy(home, by_cost, (size_t)m->num_tasks * sizeof(int32_t));
    if (is_short)
        homes_by_family(m->placed, &c->family, m->num_tasks, by_cost, home);
    return simulate_order(m, c->by, is_short, home, order);
}

/* Replace the default candidate by the one with the shortest simulated iteration, if that is clearly shorter. home, order:
 * scratch memory. Returns a COMPILE_ code. */
static int choose_candidate(Simulation *m, int is_short, const int32_t *by_cost, Candidate *chosen, int32_t *home,
                            int32_t *order)
{
    const ReadyOrder last = m->placed->hints->newest_first ? READY_NEWEST : READY_LONGEST_WAY;
    double best = 0;
    for (int32_t number = 0; number < (is_short ? CUT_FAMILIES : 1); number++)
        for (ReadyOrder by = READY_NEWEST; by <= last; by++) {
            Candidate candidate = {cut_family(number, m->placed->num_workers), by};
            if (place_candidate(m, &candidate, is_short, by_cost, home, order) != 0)
                return COMPILE_CYCLE;
            double time = simulated_time(m, home, order);
            if (best == 0) { /* the default comes first */
                best = (is_short ? CHOICE_GAIN_SHORT : CHOICE_GAIN_LONG) * time;
            } else if (time < best) {
                best = time;
                *chosen = candidate;
            }
        }
    return COMPILE_DONE;
}

/* Number of tasks that are simulated to choose a candidate. */
static int32_t order_sample(const RecordedGraph *g, int is_short)
{
    int32_t sample = g->num_tasks;
    if (is_short && g->num_tasks > CHOICE_SAMPLE)
        for (int32_t l = 0; l < g->num_loops && g->loops[l].first_task < CHOICE_SAMPLE; l++)
            sample = g->loops[l].first_task + g->loops[l].num_blocks;
    return sample;
}

/* Choose home and order of all tasks. Returns a COMPILE_ code. */
static int choose_homes_and_order(Compilation *c)
{
    const RecordedGraph *g = c->placed.graph;
    const TaskHints *hints = c->placed.hints;
    const int32_t num_workers = c->placed.num_workers;
    Candidate chosen = {cut_family(0, num_workers), READY_NEWEST};
    Simulation m;
    double total = 0;
    for (int32_t t = 0; t < g->num_tasks; t++)
        total += hints->cost[t];
    const int is_short = total <= SHORT_NS * g->num_tasks;
    if (!is_short && sort_by_place(&c->placed, c->order) != 0)
        return COMPILE_NO_MEMORY;
    homes_by_cost(&c->placed, is_short ? NULL : c->order, c->by_cost, c->load);
    int status = COMPILE_DONE;
    if (num_workers > 1 && g->num_tasks >= 2 * num_workers) {
        status = simulation_open(&m, &c->placed, order_sample(g, is_short)) == 0 ? COMPILE_DONE : COMPILE_NO_MEMORY;
        if (status == COMPILE_DONE)
            status = choose_candidate(&m, is_short, c->by_cost, &chosen, c->home, c->order);
        simulation_close(&m);
    }
    if (status == COMPILE_DONE)
        status = simulation_open(&m, &c->placed, g->num_tasks) == 0 ? COMPILE_DONE : COMPILE_NO_MEMORY;
    if (status == COMPILE_DONE)
        status =
            place_candidate(&m, &chosen, is_short, c->by_cost, c->home, c->order) == 0 ? COMPILE_DONE : COMPILE_CYCLE;
    simulation_close(&m);
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
    const RecordedGraph *g = c->placed.graph;
    for (int32_t t = 0; t < g->num_tasks; t++)
        p->first[c->home[t] + 1]++;
    for (int32_t w = 0; w < c->placed.num_workers; w++)
        p->first[w + 1] += p->first[w];
    for (int32_t k = 0; k < g->num_tasks; k++) {
        int32_t task = c->order[k], entry = p->first[c->home[task]]++;
        c->entry_of[task] = entry;
        p->entries[entry].task = task;
        p->entries[entry].loop = g->task_loop[task];
    }
    for (int32_t w = c->placed.num_workers; w > 0; w--) /* each beginning has moved to the program's end */
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
    int status = choose_homes_and_order(c);
    if (status != COMPILE_DONE)
        return status;
    place_entries(c, p);
    list_predecessors_of_entries(c, p);
    return compile_waits(p, c->placed.num_workers, c->predecessor_offsets, c->predecessors, c->home, c->entry_of,
                         c->order);
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
