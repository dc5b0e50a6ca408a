/* The plan as StarPU tasks that are made once and submit themselves anew: an outside reference.
 *
 * A node waits for its tag. StarPU notifies a tag when its node has ended, which starts the successors in the same
 * replay. Those in the next replay wait for a second tag of the node, which the node itself notifies unless its replay
 * is the run's last; at the beginning of a run all second tags are notified. So replays overlap as far as dependences
 * let them, and between runs every node waits. */
#include "outside_wait.h"
#include "starpu_sessions.h"

#include <sched.h>
#include <stdlib.h>

typedef struct Session Session;

typedef struct Node {
    int32_t loop_index, id;
    int64_t replays; /* ended ones of this run; one thread at a time writes it, another may read it */
    Session *session;
    struct starpu_task *task;
} Node;

struct Session {
    OutsideRun *run;
    Node *nodes;            /* shape (num_nodes,) */
    starpu_tag_t first_tag; /* two for each node, which no other session has */
    int64_t end;            /* replays of this run: fewer once it has been stopped */
    int hold;               /* no node may end meanwhile */
    int32_t running;        /* nodes whose last replay has not ended */
    sem_t ended;
    struct starpu_codelet codelet;
};

static starpu_tag_t own_tag(const Session *s, int32_t node)
{
    return s->first_tag + 2 * (starpu_tag_t)node;
}

static starpu_tag_t next_tag(const Session *s, int32_t node)
{
    return own_tag(s, node) + 1;
}

static void run_node(void *buffers[], void *argument)
{
    Node *node = argument;
    Session *s = node->session;
    OutsideRun *run = s->run;
    (void)buffers;
    if (node->id < run->num_tasks)
        forktask_run_task(run, node->id, run->first_replay + node->replays, starpu_worker_get_id(), 0);
    while (__atomic_load_n(&s->hold, __ATOMIC_SEQ_CST))
        sched_yield();
    if (__atomic_add_fetch(&node->replays, 1, __ATOMIC_SEQ_CST) < __atomic_load_n(&s->end, __ATOMIC_SEQ_CST))
        starpu_tag_notify_restart_from_apps(next_tag(s, node->id));
    else if (__atomic_sub_fetch(&s->running, 1, __ATOMIC_ACQ_REL) == 0)
        sem_post(&s->ended);
}

/* Declare what each node waits for: its predecessors, or itself in the replay before where it has none there.
 * `waits`: room for the tags of one node. */
static void declare_dependences(const Session *s, int32_t *offsets, int32_t *next, starpu_tag_t *waits)
{
    const OutsideRun *run = s->run;
    for (int32_t v = 0; v < run->num_nodes; v++) {
        const int32_t alone = run->num_former_predecessors[v] == 0;
        next[v] = offsets[v];
        if (alone)
            waits[next[v]++] = next_tag(s, v);
        offsets[v + 1] = offsets[v] + run->num_predecessors[v] + run->num_former_predecessors[v] + alone;
    }
    for (int32_t v = 0; v < run->num_nodes; v++)
        for (int32_t i = run->successor_offsets[v]; i < run->successor_offsets[v + 1]; i++)
            waits[next[run->successors[i]]++] = i < run->successor_split[v] ? own_tag(s, v) : next_tag(s, v);
    for (int32_t v = 0; v < run->num_nodes; v++)
        starpu_tag_declare_deps_array(own_tag(s, v), offsets[v + 1] - offsets[v], &waits[offsets[v]]);
}

static int submit_all(Session *s)
{
    const OutsideRun *run = s->run;
    for (int32_t v = 0; v < run->num_nodes; v++) {
        Node *node = &s->nodes[v];
        struct starpu_task *task = node->task = starpu_task_create();
        *node = (Node){v < run->num_tasks ? run->task_loop[v] : run->num_loops, v, 0, s, task};
        task->cl = &s->codelet;
        task->cl_arg = node;
        task->use_tag = 1;
        task->tag_id = own_tag(s, v);
        task->destroy = 0;
        task->regenerate = 1;
        const int error = -starpu_task_submit(task);
        if (error) {
            starpu_task_destroy(task);
            return error;
        }
    }
    return 0;
}

/* Start StarPU, and make all tasks. */
static void *prepare(OutsideRun *run, int *error)
{
    static starpu_tag_t num_tags; /* of all sessions so far */
    const size_t n = run->num_nodes, num_edges = run->successor_offsets[n];
    Session *s = calloc(1, sizeof *s);
    int32_t *offsets = calloc(n + 1, sizeof *offsets), *next = calloc(n + 1, sizeof *next);
    starpu_tag_t *waits = calloc(num_edges + n + 1, sizeof *waits);
    *error = ENOMEM;
    if (s != NULL)
        s->nodes = calloc(n + 1, sizeof *s->nodes);
    if (s != NULL && s->nodes != NULL && offsets != NULL && next != NULL && waits != NULL)
        *error = begin_session(run);
    if (*error == 0) {
        s->run = run;
        s->first_tag = __atomic_fetch_add(&num_tags, 2 * n, __ATOMIC_RELAXED);
        sem_init(&s->ended, 0, 0);
        describe_blocks(&s->codelet, run_node, 0);
        begin_run();
        declare_dependences(s, offsets, next, waits);
        *error = submit_all(s);
        end_run();
        if (*error)
            end_session();
    }
    free(offsets);
    free(next);
    free(waits);
    if (*error == 0)
        return s;
    if (s != NULL)
        free(s->nodes);
    free(s);
    return NULL;
}

/* Lower the number of replays to one that all nodes agree on. While nodes are held each may end once more, the one that
 * had looked before: so none is further than one replay past what is read here. */
static void end_early(Session *s)
{
    int64_t most = 0;
    __atomic_store_n(&s->hold, 1, __ATOMIC_SEQ_CST);
    for (int32_t v = 0; v < s->run->num_nodes; v++) {
        const int64_t replays = __atomic_load_n(&s->nodes[v].replays, __ATOMIC_SEQ_CST);
        most = replays > most ? replays : most;
    }
    if (most + 3 < s->end)
        __atomic_store_n(&s->end, most + 3, __ATOMIC_SEQ_CST);
    __atomic_store_n(&s->hold, 0, __ATOMIC_SEQ_CST);
}

static void start_nodes(Session *s)
{
    s->end = s->run->num_replays;
    s->running = s->run->num_nodes;
    for (int32_t v = 0; v < s->run->num_nodes; v++)
        s->nodes[v].replays = 0;
    for (int32_t v = 0; v < s->run->num_nodes; v++)
        starpu_tag_notify_restart_from_apps(next_tag(s, v));
}

static int run_all(void *session)
{
    Session *s = session;
    if (s->run->num_replays == 0 || s->run->num_nodes == 0)
        return 0;
    begin_run();
    start_nodes(s);
    while (!was_posted(s->run, &s->ended))
        if (forktask_stopped(s->run))
            end_early(s);
    end_run();
    return 0;
}

/* A task that waits can only be ended by a run, in which it is not submitted anew. */
static void close_session(void *session)
{
    Session *s = session;
    OutsideRun *run = s->run;
    begin_run();
    for (int32_t v = 0; v < run->num_nodes; v++) {
        while (*(volatile enum starpu_task_status *)&s->nodes[v].task->status != STARPU_TASK_BLOCKED_ON_TAG)
            sched_yield(); /* its last run has ended, but StarPU may not have submitted it yet */
        s->nodes[v].task->regenerate = 0;
        s->nodes[v].task->detach = 0;
    }
    run->num_replays = 1;
    forktask_stop(run);
    start_nodes(s);
    for (int32_t v = 0; v < run->num_nodes; v++) {
        (void)!starpu_task_wait(s->nodes[v].task);
        starpu_task_destroy(s->nodes[v].task);
    }
    for (int32_t v = 0; v < run->num_nodes; v++) {
        starpu_tag_remove(own_tag(s, v));
        starpu_tag_remove(next_tag(s, v));
    }
    end_run();
    end_session();
    sem_destroy(&s->ended);
    free(s->nodes);
    free(s);
}

FORKTASK_RUNTIME = {FORKTASK_OUTSIDE_VERSION, FORKTASK_CLOSED_GRAPH, prepare, run_all, close_session,
                    .release = RELEASE};
