/* State of a simulation, and what all policies share: workers, deques, and counting down the graph. */
#ifndef FORKTASK_SIMULATION_H
#define FORKTASK_SIMULATION_H

#include "event_loop.h"
#include "shared_clock.h"

enum { BUSY, WAITING, IDLE, CREATING, LOCKED };
enum { ONLY_READ = 0 }; /* as in plan/model.py */

typedef struct Worker {
    int32_t state, stamp;
    int32_t task;   /* running or being created */
    int32_t newest; /* of its deque: links `older` and `newer` lead through it */
    int32_t oldest;
    int32_t queued;
    int32_t idle_slot;  /* place among the idle workers, -1: busy */
    int32_t has_helped; /* programs: looks for tasks to claim without patience */
    int32_t is_patient; /* programs: waits for its own entry alone, until a timer ends */
    int64_t position;   /* programs: entry of its program, counted over all iterations */
    int64_t *ready;     /* programs: heap of positions that are ready */
    int64_t num_ready, ready_capacity;
    int32_t next, stop; /* loops: blocks of its chunk */
    int32_t chunk;      /* loops: of a static schedule with chunks */
    double since;       /* when it became idle or its task started */
    double extra;       /* of the task that waits for its locks */
    double share, pull; /* of the running task: see clock_start() */
    int64_t turn;       /* among those that wait for locks */
} Worker;

typedef struct Simulation {
    const SimulatedGraph *g;
    const SimulatedData *data;
    const SimulatedNodes *nodes;
    const SimulatedPolicy *policy;
    const SimulatedCosts *costs;
    SimulatedRun *run;
    SharedClock clock;
    Worker *workers;
    int32_t num_workers, num_iterations;
    int32_t *pending;       /* of each node: predecessors that its next instance waits for */
    int32_t *released;      /* of each node: instances that became ready */
    int32_t *done;          /* of each task: finished instances */
    int32_t *claimed;       /* programs: instances that were begun; eager: instances that were created */
    int32_t *older, *newer; /* of each task in a deque */
    int32_t *home, *entry;  /* programs: of each task */
    int32_t *idle;          /* idle workers */
    int32_t num_idle;
    int64_t num_queued; /* in all deques; programs: ready entries that nobody has claimed */
    uint64_t random;
    int32_t loop, iteration, first_task, arrived, next_block; /* loops */
    int64_t created, retired;                                 /* eager: serial numbers, iteration * tasks + task */
    int32_t creator_waits, creation_loop;
    uint8_t *taken;     /* of each lock */
    int32_t num_locked; /* workers that wait for locks */
    int64_t turns;
    uint64_t *holders;  /* of each cell: workers whose caches hold it, modulo 64 */
    double *touched_at; /* of each cell: bytes that all had touched by its last access */
    double touched;
} Simulation;

static inline Worker *worker_of(Simulation *s, int32_t w)
{
    return &s->workers[w];
}

static inline int32_t random_below(Simulation *s, int32_t n)
{
    uint64_t x = s->random; /* xorshift64 */
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    s->random = x;
    return (int32_t)((x >> 33) % (uint64_t)n);
}

/* --- workers --- */

static void begin_idle(Simulation *s, int32_t w)
{
    Worker *me = worker_of(s, w);
    me->state = IDLE;
    me->since = s->clock.now;
    me->idle_slot = s->num_idle;
    s->idle[s->num_idle++] = w;
}

static void end_idle(Simulation *s, int32_t w)
{
    int32_t slot = s->workers[w].idle_slot, last = s->idle[--s->num_idle];
    s->idle[slot] = last;
    s->workers[last].idle_slot = slot;
    s->workers[w].idle_slot = -1;
    s->workers[w].is_patient = 0;
}

static void set_timer(Simulation *s, int32_t w, double delay)
{
    Worker *me = worker_of(s, w);
    me->state = WAITING;
    clock_set_timer(&s->clock, delay, w, ++me->stamp);
}

/* Let an idle worker look again, once the news has reached it. */
static void wake(Simulation *s, int32_t w, double delay)
{
    Worker *me = worker_of(s, w);
    int asleep = s->clock.now - me->since > s->costs->spin;
    end_idle(s, w);
    set_timer(s, w, asleep ? s->costs->wake : delay);
}

/* A task can be taken: one of the idle workers sees it first. */
static void notify_one(Simulation *s)
{
    if (s->num_idle == 0)
        return;
    int32_t w = s->idle[s->num_idle == 1 ? 0 : random_below(s, s->num_idle)];
    if (!s->workers[w].is_patient) /* else it looks by itself when its patience ends */
        wake(s, w, 2 * s->costs->line);
}

/* Note the cells that a task accesses on a worker. Returns the seconds in which come those that it reads and another core
 * holds, and in which other cores give up those that it writes. What was touched longer ago than the last-level cache
 * holds comes from memory, here and in a serial run. */
static double move_data(Simulation *s, int32_t w, int32_t task)
{
    const SimulatedData *d = s->data;
    const uint64_t me = (uint64_t)1 << (w % 64);
    double moved = 0;
    for (int32_t a = d->task_offsets[task]; a < d->task_offsets[task + 1]; a++) {
        const int32_t list = d->access_list[a];
        const int writes = d->access_kind[a] != ONLY_READ;
        for (int32_t i = d->list_offsets[list]; i < d->list_offsets[list + 1]; i++) {
            const int32_t cell = d->list_cells[i];
            const uint64_t held = s->holders[cell], others = held & ~me;
            if (others != 0 && (writes || held == others) && s->touched - s->touched_at[cell] < d->cache_bytes)
                moved += d->cell_bytes[a];
            s->holders[cell] = writes ? me : held | me;
            s->touched_at[cell] = s->touched;
            s->touched += d->cell_bytes[a];
        }
    }
    return moved * d->seconds_per_byte;
}

static inline int32_t home_of(const Simulation *s, int32_t task)
{
    return s->nodes->num_nodes > 1 ? s->nodes->home[task] : 0;
}

static void run_task(Simulation *s, int32_t w, int32_t task, double extra)
{
    const SimulatedNodes *nodes = s->nodes;
    Worker *me = worker_of(s, w);
    double seconds = s->g->seconds[task];
    me->share = s->g->share[task];
    me->pull = 1;
    extra += s->g->extra[task];
    me->state = BUSY;
    me->task = task;
    me->since = s->clock.now;
    s->run->runtime_s += extra;
    if (s->run->start != NULL) {
        int64_t at = (int64_t)s->done[task] * s->g->num_tasks + task;
        s->run->start[at] = s->clock.now;
        s->run->worker[at] = w;
    }
    s->run->inflation_s -= extra + seconds;
    if (nodes->num_nodes > 1 && me->share > 0) {
        double near = seconds * me->share;
        double slower = nodes->remote[(int64_t)task * nodes->num_nodes + nodes->worker_node[w]];
        seconds += near * slower - near;
        me->share = near * slower / seconds;
        me->pull = 1 / slower;
    }
    if (s->data->num_cells > 0)
        seconds += move_data(s, w, task);
    clock_start(&s->clock, seconds + extra, me->share, me->pull, home_of(s, task), w, ++me->stamp);
}

/* --- locks of commutative accesses --- */

static inline int locks_are_held(const Simulation *s, int32_t task)
{
    for (int32_t i = s->g->lock_offsets[task]; i < s->g->lock_offsets[task + 1]; i++)
        if (s->taken[s->g->locks[i]])
            return 1;
    return 0;
}

static inline void set_locks(Simulation *s, int32_t task, uint8_t taken)
{
    for (int32_t i = s->g->lock_offsets[task]; i < s->g->lock_offsets[task + 1]; i++)
        s->taken[s->g->locks[i]] = taken;
}

/* Give the locks of a finished task to the workers that wait for them, in the order in which they came. */
static void release_locks(Simulation *s, int32_t task)
{
    set_locks(s, task, 0);
    if (s->g->lock_offsets[task] == s->g->lock_offsets[task + 1])
        return;
    for (int64_t last = -1; s->num_locked > 0;) {
        int32_t next = -1;
        for (int32_t w = 0; w < s->num_workers; w++)
            if (s->workers[w].state == LOCKED && s->workers[w].turn > last &&
                (next < 0 || s->workers[w].turn < s->workers[next].turn))
                next = w;
        if (next < 0)
            return;
        Worker *waiting = worker_of(s, next);
        last = waiting->turn;
        if (locks_are_held(s, waiting->task))
            continue;
        s->num_locked--;
        set_locks(s, waiting->task, 1);
        run_task(s, next, waiting->task, waiting->extra + s->costs->line);
    }
}

static int32_t run_first(Simulation *s, int32_t w, int32_t task);

/* Run a task on a worker, once its locks are free. */
static void start_task(Simulation *s, int32_t w, int32_t task, double extra)
{
    Worker *me = worker_of(s, w);
    if (locks_are_held(s, task))
        task = run_first(s, w, task);
    if (locks_are_held(s, task)) {
        me->state = LOCKED;
        me->task = task;
        me->extra = extra;
        me->turn = s->turns++;
        s->num_locked++;
        return;
    }
    set_locks(s, task, 1);
    run_task(s, w, task, extra);
}

static void end_task(Simulation *s, Worker *me)
{
    int32_t task = me->task, k = s->done[task]++;
    clock_end(&s->clock, me->share, me->pull, home_of(s, task));
    s->run->useful_s += s->g->seconds[task];
    s->run->inflation_s += s->clock.now - me->since;
    s->run->iteration_end[k] = s->clock.now;
    if (s->run->finish != NULL)
        s->run->finish[(int64_t)k * s->g->num_tasks + task] = s->clock.now;
    release_locks(s, task);
}

/* --- deques --- */

static void push(Simulation *s, int32_t w, int32_t task)
{
    Worker *me = worker_of(s, w);
    s->older[task] = me->newest;
    s->newer[task] = -1;
    if (me->newest >= 0)
        s->newer[me->newest] = task;
    else
        me->oldest = task;
    me->newest = task;
    me->queued++;
    s->num_queued++;
}

/* Take one of its tasks out of a worker's deque; -1: it has none. */
static int32_t take(Simulation *s, Worker *me, int32_t task)
{
    if (task < 0)
        return -1;
    const int32_t older = s->older[task], newer = s->newer[task];
    if (older >= 0)
        s->newer[older] = newer;
    else
        me->oldest = newer;
    if (newer >= 0)
        s->older[newer] = older;
    else
        me->newest = older;
    me->queued--;
    s->num_queued--;
    return task;
}

static int32_t take_newest(Simulation *s, int32_t w)
{
    return take(s, worker_of(s, w), worker_of(s, w)->newest);
}

static int32_t take_oldest(Simulation *s, int32_t w)
{
    return take(s, worker_of(s, w), worker_of(s, w)->oldest);
}

/* Take the oldest task of another worker, from a random one on. */
static int32_t steal(Simulation *s, int32_t w)
{
    int32_t n = s->num_workers;
    if (n == 1 || s->num_queued == worker_of(s, w)->queued)
        return -1;
    int32_t first = n == 2 ? 0 : random_below(s, n);
    for (int32_t i = 0; i < n; i++) {
        int32_t victim = first + i < n ? first + i : first + i - n;
        if (victim == w || s->workers[victim].queued == 0)
            continue;
        int32_t task = take_oldest(s, victim);
        if (s->workers[victim].queued > 0)
            notify_one(s);
        return task;
    }
    return -1;
}

/* A task of a deque whose locks are held is put back, and another ready one, if there is one, runs first. */
static int32_t run_first(Simulation *s, int32_t w, int32_t task)
{
    if (s->policy->kind != SIMULATE_STEALING && s->policy->kind != SIMULATE_EAGER)
        return task;
    int32_t other = take_oldest(s, w);
    if (other < 0)
        other = steal(s, w);
    if (other < 0)
        return task;
    push(s, w, task); /* wakes nobody: a free worker would wait for the lock too */
    return other;
}

/* --- the graph --- */

static void task_is_ready(Simulation *s, int32_t task, int32_t w, int32_t *next);

/* A node's next instance has no predecessor left to wait for. */
static void node_is_ready(Simulation *s, int32_t node, int32_t w, int32_t *next)
{
    const SimulatedGraph *g = s->g;
    int32_t instance = s->released[node]++;
    s->pending[node] = g->num_intra[node] + g->num_cross[node];
    if (node < g->num_tasks) {
        task_is_ready(s, node, w, next);
        return;
    }
    int32_t end = instance + 1 == s->num_iterations ? g->split[node] : g->offsets[node + 1];
    for (int32_t i = g->offsets[node]; i < end; i++)
        if (--s->pending[g->successors[i]] == 0)
            node_is_ready(s, g->successors[i], w, next);
}

/* Count down the successors of a finished task; the latest ready one is kept in *next, the one kept before queued. */
static void release(Simulation *s, int32_t task, int32_t w, int32_t *next)
{
    const SimulatedGraph *g = s->g;
    int32_t end = s->done[task] == s->num_iterations ? g->split[task] : g->offsets[task + 1];
    for (int32_t i = g->offsets[task]; i < end; i++)
        if (--s->pending[g->successors[i]] == 0)
            node_is_ready(s, g->successors[i], w, next);
}

/* Count predecessors. Joins of nothing but former tasks have nothing to wait for in the first iteration. */
static void count_predecessors(Simulation *s)
{
    const SimulatedGraph *g = s->g;
    memcpy(s->pending, g->num_intra, (size_t)g->num_nodes * sizeof(int32_t));
    for (int32_t v = g->num_tasks; v < g->num_nodes; v++) {
        if (g->num_intra[v] > 0)
            continue;
        s->pending[v] = g->num_cross[v];
        s->released[v] = 1;
        for (int32_t i = g->offsets[v]; i < g->split[v]; i++)
            s->pending[g->successors[i]]--;
    }
}

#endif
