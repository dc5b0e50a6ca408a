/* Replay of a recorded graph with deques and atomic predecessor counters (placement "stealing").
 *
 * Every node of the graph is stored once and runs once per iteration. States of a node:
 *
 *     WAITING (pending > 0) --last predecessor--> READY (in a deque, or next) --> RUNNING --> WAITING ...
 *
 * `pending` starts at the number of predecessors in the same iteration (nothing comes before the first). The worker
 * that brings it to zero sets it to rearm = same-iteration + former-iteration predecessors before the node can run,
 * so there is no reset pass. That is safe because every edge p -> v lies on a cycle with exactly one token: p cannot
 * finish its next instance before v has finished this one, so no thread counts down between "zero" and the re-arming.
 *
 * A graph that was not closed is closed here through one more node, a barrier: all nodes without successors ->
 * barrier -> (next iteration) all nodes without predecessors.
 *
 * Who writes: `pending`: predecessors count down; the last one re-arms. `iteration`: the worker that runs the node;
 * the next one to run it comes after that through the chain of counters. Everything else is constant during a run.
 */
#ifndef FORKTASK_REPLAY_H
#define FORKTASK_REPLAY_H

#include "recorded_graph.h"
#include "reduce.h"
#include "scheduler.h"

#ifndef ORDER_REPLAY_COUNT_DOWN
#define ORDER_REPLAY_COUNT_DOWN acq_rel
#endif
#ifndef ORDER_REPLAY_LAST
#define ORDER_REPLAY_LAST acquire
#endif

/* In graphs that exceed a core's L2, a worker prefetches the node this far behind the one it begins: nodes stand in
 * the order of the loops, so it comes to that node soon and would wait for memory. 64 and 96 are no better, 16 is
 * worse. In smaller graphs this would only fetch lines from the other worker's cache. */
#define REPLAY_AHEAD      32
#define REPLAY_AHEAD_FROM 16384 /* nodes: half of an L2 of 1 MiB */

typedef struct ReplayNode {
    atomic_i32 pending;
    int32_t rearm;
    int32_t iteration; /* iterations of this run that the node has finished */
    int32_t loop;      /* -1: a join or the barrier, runs inline */
    int32_t block;
    int32_t successor_begin; /* same iteration: [begin, split) */
    int32_t successor_split; /* next iteration: [split, end) */
    int32_t successor_end;
} ReplayNode;

typedef struct Replay {
    Scheduler scheduler;
    ReplayNode *nodes;
    int32_t *successors;
    int32_t *num_intra; /* shape (num_nodes,): predecessors in the same iteration that are counted */
    int32_t num_tasks;
    int32_t num_nodes;
    int32_t num_edges;     /* that are counted */
    int32_t *roots;        /* tasks that are ready at the start, in the order in which they are pushed */
    int32_t *root_workers; /* and the worker onto whose deque each goes */
    int32_t num_roots;
    int32_t num_ends;       /* nodes without a successor in the same iteration */
    int32_t num_iterations; /* of this run */
    int64_t first_replay;
    char padding[FT_PAIR_OF_LINES];
    atomic_i32 open_ends; /* ends that still have to finish the last iteration */
} Replay;

/* Owner thread only, after the node has run: count down its successors; keep the latest ready one in *next and push
 * the one kept before. */
static void replay_release(Replay *r, SchedulerWorker *me, int32_t number, int32_t *next)
{
    ReplayNode *node = &r->nodes[number];
    int last = ++node->iteration == r->num_iterations;
    int32_t end = last ? node->successor_split : node->successor_end;
    if (ft_unlikely(last && node->successor_begin == node->successor_split)) {
        /* acq_rel: the worker that ends the run has seen the work of all others */
        if (ft_sub(&r->open_ends, 1, acq_rel) == 1)
            scheduler_end(&r->scheduler, RUN_DONE);
        return;
    }
    for (int32_t i = node->successor_begin; i < end; i++) {
        int32_t s = r->successors[i];
        ReplayNode *successor = &r->nodes[s];
        /* The only or the last predecessor: no other thread can touch the counter, so no read-modify-write is needed.
         * acquire: pairs with the release of the predecessors that counted down before. */
        if (ft_load(&successor->pending, ORDER_REPLAY_LAST) != 1
            /* release: what this node wrote; acquire: what the other predecessors wrote */
            && ft_sub(&successor->pending, 1, ORDER_REPLAY_COUNT_DOWN) != 1)
            continue;
        /* Reaches the next predecessors through the release of the node itself. */
        ft_store(&successor->pending, successor->rearm, relaxed);
        if (successor->loop < 0) {
            replay_release(r, me, s, next); /* joins lead to tasks only: one level, two at the barrier */
        } else {
            if (*next >= 0) {
                deque_push(&me->deque, *next);
                idle_notify_one(&r->scheduler.idle);
            }
            *next = s;
        }
    }
}

/* Job of each worker. */
static void replay_work(void *argument, int32_t worker)
{
    Replay *r = argument;
    Scheduler *s = &r->scheduler;
    SchedulerWorker *me = &s->workers[worker];
    const ptrdiff_t ahead = r->num_nodes < REPLAY_AHEAD_FROM ? 0 : REPLAY_AHEAD;
    for (;;) {
        int32_t number = deque_take(&me->deque);
        if (number < 0) {
            number = scheduler_find_work(s, worker);
            if (number < 0)
                return;
        }
        while (number >= 0) {
            ReplayNode *node = &r->nodes[number];
            int32_t next = -1;
            __builtin_prefetch(node + ahead, 1);
            if (ft_unlikely(ft_load(&s->ending, relaxed) == RUN_STOPPED))
                return;
            int32_t first = scheduler_run_first(s, me, &s->loops[node->loop], node->block, number);
            if (ft_unlikely(first != number)) {
                number = first;
                continue;
            }
            if (scheduler_run_block(s, me, &s->loops[node->loop], node->block, r->first_replay + node->iteration,
                                    number) != 0)
                return;
            replay_release(r, me, number, &next);
            number = next;
        }
    }
}

/* Set all counters to their start, while the workers rest. */
static void replay_reset_counters(Replay *r)
{
    scheduler_reset(&r->scheduler);
    ft_store(&r->open_ends, r->num_ends, relaxed);
    for (int32_t v = 0; v < r->num_nodes; v++) {
        ft_store(&r->nodes[v].pending, r->num_intra[v], relaxed);
        r->nodes[v].iteration = 0;
    }
    /* Joins of nothing but former tasks have nothing to wait for in the first iteration, and are not counted in it: all
     * that follows them is of their own iteration, the last one too. */
    for (int32_t v = r->num_tasks; v < r->num_nodes; v++) {
        ReplayNode *join = &r->nodes[v];
        if (r->num_intra[v] > 0)
            continue;
        ft_store(&join->pending, join->rearm, relaxed);
        for (int32_t i = join->successor_begin; i < join->successor_split; i++)
            ft_sub(&r->nodes[r->successors[i]].pending, 1, relaxed);
    }
}

/* Prepare a run, while the workers rest: set counters to their start, push ready tasks. */
static void replay_reset(Replay *r, int64_t first_replay, int32_t num_iterations)
{
    r->first_replay = first_replay;
    r->num_iterations = num_iterations;
    replay_reset_counters(r);
    for (int32_t i = 0; i < r->num_roots; i++) {
        ReplayNode *root = &r->nodes[r->roots[i]];
        ft_store(&root->pending, root->rearm, relaxed);
        deque_push(&r->scheduler.workers[r->root_workers[i]].deque, r->roots[i]);
    }
}

/* Once: find the roots and give neighbouring ones to one worker; it takes the lowest first, thieves take from the far
 * end. */
static void replay_find_roots(Replay *r)
{
    replay_reset_counters(r);
    r->num_roots = 0;
    for (int32_t v = r->num_tasks - 1; v >= 0; v--)
        if (ft_load(&r->nodes[v].pending, relaxed) == 0)
            r->roots[r->num_roots++] = v;
    for (int32_t i = 0; i < r->num_roots; i++)
        r->root_workers[i] = (int32_t)((int64_t)(r->num_roots - 1 - i) * r->scheduler.num_workers / r->num_roots);
}

static void replay_close(Replay *r)
{
    scheduler_close(&r->scheduler);
    free(r->nodes);
    free(r->successors);
    free(r->num_intra);
    free(r->roots);
    free(r->root_workers);
    memset(r, 0, sizeof(*r));
}

/* Copy the nodes and the edges that no other edge implies. implied: by edge index, see graph_list_predecessors(). */
static void replay_copy_graph(Replay *r, const RecordedGraph *g, const int32_t *index_of_edge, const uint8_t *implied)
{
    memcpy(r->num_intra, g->num_intra, (size_t)g->num_nodes * sizeof(int32_t));
    for (int32_t v = 0; v < g->num_nodes; v++)
        r->nodes[v].rearm = g->num_intra[v] + g->num_cross[v];
    for (int32_t v = 0; v < g->num_nodes; v++) {
        ReplayNode *node = &r->nodes[v];
        node->loop = v < g->num_tasks ? g->task_loop[v] : -1;
        node->block = v < g->num_tasks ? v - g->loops[g->task_loop[v]].first_task : 0;
        node->successor_begin = node->successor_split = r->num_edges;
        for (int32_t i = g->successor_offsets[v]; i < g->successor_offsets[v + 1]; i++) {
            int32_t s = g->successors[i], is_intra = i < g->successor_split[v];
            if (implied[index_of_edge[i]]) {
                r->nodes[s].rearm--;
                r->num_intra[s] -= is_intra;
            } else {
                r->successors[r->num_edges++] = s;
                node->successor_split += is_intra;
            }
        }
        node->successor_end = r->num_edges;
        r->num_ends += node->successor_begin == node->successor_split;
    }
}

/* Returns 0 or -1 (out of memory). */
static int replay_allocate(Replay *r, const RecordedGraph *g)
{
    const size_t nodes = (size_t)g->num_nodes, tasks = (size_t)g->num_tasks;
    r->num_tasks = g->num_tasks;
    r->num_nodes = g->num_nodes;
    r->nodes = forktask_aligned_zeros((nodes + REPLAY_AHEAD) * sizeof(ReplayNode));
    r->successors = malloc(((size_t)graph_num_edges(g) + 1) * sizeof(int32_t));
    r->num_intra = malloc((nodes + 1) * sizeof(int32_t));
    /* Room for all tasks: pages that are never touched cost nothing. */
    r->roots = malloc((tasks + 1) * sizeof(int32_t));
    r->root_workers = malloc((tasks + 1) * sizeof(int32_t));
    return r->nodes != NULL && r->successors != NULL && r->num_intra != NULL && r->roots != NULL &&
                   r->root_workers != NULL
               ? 0
               : -1;
}

/* Build the nodes of a recorded graph, without edges that others imply. places: see scheduler_order_victims(). Returns 0
 * or -1 (out of memory). */
static int replay_open(Replay *r, const RecordedGraph *g, int32_t num_workers, const int32_t *places,
                       WorkerState *states, int64_t spin_ns)
{
    const size_t edges = (size_t)graph_num_edges(g) + 1;
    int32_t *offsets = calloc((size_t)g->num_nodes + 2, sizeof(int32_t));
    int32_t *predecessors = malloc(edges * sizeof(int32_t));
    int32_t *index_of_edge = malloc(edges * sizeof(int32_t));
    uint8_t *implied = calloc(edges, 1);
    memset(r, 0, sizeof(*r));
    int good = offsets != NULL && predecessors != NULL && index_of_edge != NULL && implied != NULL &&
               replay_allocate(r, g) == 0 &&
               scheduler_open(&r->scheduler, num_workers, g->loops, states, g->num_nodes, spin_ns) == 0 &&
               scheduler_order_victims(&r->scheduler, places) == 0;
    if (good) {
        graph_list_predecessors(g, offsets, predecessors, index_of_edge);
        good = reduce_edges(g->num_tasks, offsets, predecessors, implied) >= 0;
    }
    if (good) {
        replay_copy_graph(r, g, index_of_edge, implied);
        replay_find_roots(r);
    }
    free(offsets);
    free(predecessors);
    free(index_of_edge);
    free(implied);
    if (!good)
        replay_close(r);
    return good ? 0 : -1;
}

#endif
