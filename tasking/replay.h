/* Replay of a recorded graph with deques and atomic predecessor counters (placement "stealing").
 *
 * Every node of the graph is stored once and runs once an iteration. Node states:
 *
 *     WAITING (pending > 0) --last predecessor--> READY (in a deque or inbox, or next on this worker) --> RUNNING --> WAITING ...
 *
 * `pending` starts at the number of predecessors in the same iteration (nothing comes before the first). The worker that
 * brings it to zero sets it to rearm = same-iteration + former-iteration predecessors before the node can run, so
 * there is no reset pass. That is safe because every edge p -> v lies on a cycle with exactly one token: p cannot
 * finish its next instance before v has finished this one, so nobody counts down between "zero" and the re-arming.
 *
 * A graph that was not closed is closed here through one more node, a barrier: all nodes without successors -> barrier
 * -> (next iteration) all nodes without predecessors.
 *
 * Who writes: `pending`: predecessors count down; the last one re-arms. `iteration`: the worker that runs the node; the
 * next one to run it comes after that through the chain of counters. All else: nobody during a run.
 */
#ifndef FORKTASK_REPLAY_H
#define FORKTASK_REPLAY_H

#include "reduce.h"
#include "scheduler.h"

#ifndef ORDER_REPLAY_COUNT_DOWN
#define ORDER_REPLAY_COUNT_DOWN acq_rel
#endif
#ifndef ORDER_REPLAY_LAST
#define ORDER_REPLAY_LAST acquire
#endif

/* In graphs past a core's L2, a worker asks for the node that stands so many places behind the one it begins: nodes stand in the order
 * of the loops, so it comes to it soon, and else would wait for memory. 64 and 96 places are no better, 16 are worse. In smaller
 * graphs this would only fetch lines from the other worker's cache. */
#define REPLAY_AHEAD 32
#define REPLAY_AHEAD_FROM 16384 /* nodes: half of an L2 of 1 MiB */

typedef struct ReplayNode {
    atomic_i32 pending;
    int32_t rearm;
    int32_t iteration;       /* iterations of this run that the node has finished */
    int32_t loop;            /* -1: a join or the barrier, runs inline */
    int32_t block;
    int32_t successor_begin; /* same iteration: [begin, split) */
    int32_t successor_split; /* next iteration: [split, end) */
    int32_t successor_end;
} ReplayNode;

typedef struct Replay {
    Scheduler scheduler;
    ReplayNode *nodes;
    int32_t *successors;
    int32_t *num_intra;       /* shape (num_nodes,): predecessors in the same iteration that are counted */
    int32_t *homes;           /* shape (num_nodes,): the worker a task asks for, -1: any; NULL: none asks */
    int32_t num_tasks;
    int32_t num_nodes;
    int32_t num_edges;        /* that are counted */
    int32_t *roots;           /* tasks that are ready at the start, in the order in which they are pushed */
    int32_t *root_homes;      /* and onto whose deque */
    int32_t num_roots;
    int32_t num_ends;         /* nodes without a successor in the same iteration */
    int32_t num_iterations;   /* of this run */
    int64_t first_replay;
    char padding[FT_PAIR_OF_LINES];
    atomic_i32 open_ends;     /* ends that still have to finish the last iteration */
} Replay;

/* Owner thread only. The node has run: count down its successors, keep one that became ready in *next and push the
 * former one kept. */
static void replay_release(Replay *r, SchedulerWorker *me, int32_t number, int32_t *next)
{
    ReplayNode *node = &r->nodes[number];
    int last = ++node->iteration == r->num_iterations;
    int32_t end = last ? node->successor_split : node->successor_end;
    if (ft_unlikely(last && node->successor_begin == node->successor_split)) {
        /* acq_rel: the one who ends the run has seen all others' work */
        if (ft_sub(&r->open_ends, 1, acq_rel) == 1)
            scheduler_end(&r->scheduler, RUN_DONE);
        return;
    }
    for (int32_t i = node->successor_begin; i < end; i++) {
        int32_t s = r->successors[i];
        ReplayNode *successor = &r->nodes[s];
        /* Alone, or the last: nobody else can touch the counter, so no read-modify-write is needed.
         * acquire: pairs with the release of the predecessors that counted down before. */
        if (ft_load(&successor->pending, ORDER_REPLAY_LAST) != 1
            /* release: what this node wrote; acquire: what the other predecessors wrote */
            && ft_sub(&successor->pending, 1, ORDER_REPLAY_COUNT_DOWN) != 1)
            continue;
        /* Reaches the next predecessors through the release of the node itself. */
        ft_store(&successor->pending, successor->rearm, relaxed);
        if (successor->loop < 0) {
            replay_release(r, me, s, next); /* joins lead to tasks only: one level, two at the barrier */
        } else if (ft_unlikely(r->homes != NULL) && r->homes[s] >= 0 && &r->scheduler.workers[r->homes[s]] != me) {
            scheduler_send(&r->scheduler, r->homes[s], s);
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
        int32_t number = scheduler_receive(s, me, worker);
        if (number < 0)
            number = deque_take(&me->deque);
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

/* While the workers rest: counters to their start. */
static void replay_reset_counters(Replay *r)
{
    scheduler_reset(&r->scheduler);
    ft_store(&r->open_ends, r->num_ends, relaxed);
    for (int32_t v = 0; v < r->num_nodes; v++) {
        ft_store(&r->nodes[v].pending, r->num_intra[v], relaxed);
        r->nodes[v].iteration = 0;
    }
    /* Joins of nothing but former tasks have nothing to wait for in the first iteration. */
    for (int32_t v = r->num_tasks; v < r->num_nodes; v++) {
        ReplayNode *join = &r->nodes[v];
        if (r->num_intra[v] > 0)
            continue;
        ft_store(&join->pending, join->rearm, relaxed);
        join->iteration = 1;
        for (int32_t i = join->successor_begin; i < join->successor_split; i++)
            ft_sub(&r->nodes[r->successors[i]].pending, 1, relaxed);
    }
}

/* Before a run, while the workers rest: counters to their start, ready tasks onto the deques. */
static void replay_reset(Replay *r, int64_t first_replay, int32_t num_iterations)
{
    r->first_replay = first_replay;
    r->num_iterations = num_iterations;
    replay_reset_counters(r);
    for (int32_t i = 0; i < r->num_roots; i++) {
        ReplayNode *root = &r->nodes[r->roots[i]];
        ft_store(&root->pending, root->rearm, relaxed);
        deque_push(&r->scheduler.workers[r->root_homes[i]].deque, r->roots[i]);
    }
}

/* Once, while the workers rest: homes[v] is the worker that task v asks for, -1: any. Returns 0 or -1 (out of memory). */
static int replay_set_homes(Replay *r, const int32_t *homes)
{
    r->homes = malloc((size_t)r->num_nodes * sizeof(int32_t));
    r->scheduler.links = malloc((size_t)r->num_nodes * sizeof(atomic_i32));
    if (r->homes == NULL || r->scheduler.links == NULL)
        return -1;
    for (int32_t v = 0; v < r->num_nodes; v++)
        r->homes[v] = v < r->num_tasks ? homes[v] : -1;
    for (int32_t i = 0; i < r->num_roots; i++)
        if (r->homes[r->roots[i]] >= 0)
            r->root_homes[i] = r->homes[r->roots[i]];
    return 0;
}

/* Once: neighbouring roots to one worker; the owner takes the lowest first, thieves take from the far end. */
static void replay_find_roots(Replay *r)
{
    replay_reset_counters(r);
    r->num_roots = 0;
    for (int32_t v = r->num_tasks - 1; v >= 0; v--)
        if (ft_load(&r->nodes[v].pending, relaxed) == 0)
            r->roots[r->num_roots++] = v;
    for (int32_t i = 0; i < r->num_roots; i++)
        r->root_homes[i] = (int32_t)((int64_t)(r->num_roots - 1 - i) * r->scheduler.num_workers / r->num_roots);
}

static void replay_close(Replay *r)
{
    scheduler_close(&r->scheduler);
    free(r->nodes);
    free(r->successors);
    free(r->num_intra);
    free(r->roots);
    free(r->root_homes);
    free(r->homes);
    free(r->scheduler.links);
    r->nodes = NULL;
    r->successors = r->num_intra = r->roots = r->root_homes = r->homes = NULL;
    r->scheduler.links = NULL;
}

/* Build the nodes from a TaskGraph's arrays, without edges that others imply; loop and block of each task from `task_loop` and the
 * loop records. Returns 0 or -1 (out of memory). */
static int replay_open(Replay *r, int32_t num_workers, const LoopRecord *loops, WorkerState *states, int64_t spin_ns,
                       int32_t num_tasks, int32_t num_nodes, const int32_t *successor_offsets,
                       const int32_t *successor_split, const int32_t *successors, const int32_t *num_intra,
                       const int32_t *num_cross, const int32_t *task_loop)
{
    int32_t num_edges = successor_offsets[num_nodes], kept = 0;
    int32_t *offsets = calloc((size_t)num_nodes + 2, sizeof(int32_t));   /* edges by target: for offsets[v + 1] ... */
    int32_t *predecessors = malloc(((size_t)num_edges + 1) * sizeof(int32_t));
    int32_t *number = malloc(((size_t)num_edges + 1) * sizeof(int32_t)); /* edge by source -> edge by target */
    uint8_t *implied = calloc((size_t)num_edges + 1, 1);
    memset(r, 0, sizeof(*r));
    r->num_tasks = num_tasks;
    r->num_nodes = num_nodes;
    r->nodes = forktask_aligned_zeros(((size_t)num_nodes + REPLAY_AHEAD) * sizeof(ReplayNode));
    r->successors = malloc(((size_t)num_edges + 1) * sizeof(int32_t));
    r->num_intra = malloc(((size_t)num_nodes + 1) * sizeof(int32_t));
    /* As many as could be; pages that are never used cost nothing. */
    r->roots = malloc(((size_t)num_tasks + 1) * sizeof(int32_t));
    r->root_homes = malloc(((size_t)num_tasks + 1) * sizeof(int32_t));
    int good = offsets != NULL && predecessors != NULL && number != NULL && implied != NULL && r->nodes != NULL
               && r->successors != NULL && r->num_intra != NULL && r->roots != NULL
               && r->root_homes != NULL && scheduler_open(&r->scheduler, num_workers, loops, states, num_nodes, spin_ns) == 0;
    if (good) {
        for (int32_t v = 0; v < num_nodes; v++)
            offsets[v + 2] = offsets[v + 1] + num_intra[v] + num_cross[v];
        for (int32_t v = 0; v < num_nodes; v++)
            for (int32_t i = successor_offsets[v]; i < successor_offsets[v + 1]; i++) {
                number[i] = offsets[successors[i] + 1]++;
                predecessors[number[i]] = 2 * v + (i >= successor_split[v]);
            }
        good = reduce_edges(num_tasks, offsets, predecessors, implied) >= 0;
    }
    if (good) {
        memcpy(r->num_intra, num_intra, (size_t)num_nodes * sizeof(int32_t));
        for (int32_t v = 0; v < num_nodes; v++)
            r->nodes[v].rearm = num_intra[v] + num_cross[v];
        for (int32_t v = 0; v < num_nodes; v++) {
            ReplayNode *node = &r->nodes[v];
            node->loop = v < num_tasks ? task_loop[v] : -1;
            node->block = v < num_tasks ? v - loops[task_loop[v]].first_task : 0;
            node->successor_begin = node->successor_split = kept;
            for (int32_t i = successor_offsets[v]; i < successor_offsets[v + 1]; i++) {
                if (implied[number[i]]) {
                    r->nodes[successors[i]].rearm--;
                    r->num_intra[successors[i]] -= i < successor_split[v];
                    continue;
                }
                r->successors[kept++] = successors[i];
                node->successor_split += i < successor_split[v];
            }
            node->successor_end = kept;
            r->num_ends += node->successor_begin == node->successor_split;
        }
        r->num_edges = kept;
        replay_find_roots(r);
    }
    free(offsets);
    free(predecessors);
    free(number);
    free(implied);
    if (!good)
        replay_close(r);
    return good ? 0 : -1;
}

#endif
