/* Tasks created anew each iteration by worker 0, with dependences found at run time.
 *
 * The creator walks through the plan and keeps, for each cell, the last writer, or the last group of writers in any
 * order, and the readers since. Tasks are numbered by a serial that only grows; task `serial` lives in slot serial %
 * window, so a cell's entry is stale as soon as the slot holds another serial or the task has retired, and needs no
 * clean-up. Tasks retire in order of creation. When the window is full the creator helps to execute.
 *
 *     slot:  FREE --creator--> CREATED --last predecessor--> READY --> RUNNING --> CLOSED --creator--> FREE
 *
 * `successors` of a task is a stack of edges: the creator pushes, the worker that finished the task exchanges it for
 * CLOSED and walks the edges it got; an edge that meets CLOSED is not needed. `pending` starts at GUARD, so that no
 * task becomes ready while its edges are still being made; the creator then takes GUARD minus the number of edges
 * off.
 *
 * Edges lie in a ring. An edge belongs to its successor: when that runs, all its predecessors have walked past the
 * edge, so it is freed when the successor retires.
 *
 * Who writes: cells, readers, rings, `serial`, `mark` and all records: the creator. `successors`: the creator and
 * once the finisher. `pending`: the creator and the predecessors.
 */
#ifndef FORKTASK_EAGER_H
#define FORKTASK_EAGER_H

#include "scheduler.h"

#ifndef ORDER_EAGER_CLOSE
#define ORDER_EAGER_CLOSE acq_rel
#endif
#ifndef ORDER_EAGER_PUSH_EDGE
#define ORDER_EAGER_PUSH_EDGE release
#endif
#ifndef ORDER_EAGER_COUNT_DOWN
#define ORDER_EAGER_COUNT_DOWN acq_rel
#endif
#ifndef ORDER_EAGER_FOUND_CLOSED
#define ORDER_EAGER_FOUND_CLOSED acquire
#endif
#ifndef ORDER_EAGER_RETIRE
#define ORDER_EAGER_RETIRE acquire
#endif

enum { EAGER_NO_EDGE = -1, EAGER_CLOSED = -2, EAGER_GUARD = 1 << 30 };
enum { EAGER_READ = 0, EAGER_ANY_ORDER = 3 }; /* this and above: in any order with others of the same kind */

typedef struct EagerTask {
    atomic_i32 successors; /* newest edge, EAGER_NO_EDGE or EAGER_CLOSED */
    atomic_i32 pending;
    int32_t loop;
    int32_t block;
    int64_t replay;
    int64_t serial;
    int64_t mark;     /* serial of the latest successor: an edge is made once */
    int64_t edge_end; /* edges up to here may be freed when this task retires */
    char padding[16];
} EagerTask;

typedef struct EagerEdge {
    int32_t next;
    int32_t slot;
} EagerEdge;

/* A list of serials, oldest first. */
typedef struct EagerList {
    int32_t head; /* -1: empty */
    int32_t tail;
} EagerList;

typedef struct EagerCell {
    int64_t writer;     /* serial, -1: none */
    EagerList readers;  /* since the last write */
    int16_t is_written; /* some task writes it: readers need to be noted */
    int16_t kind;       /* EAGER_ANY_ORDER and above: the last writers are a group of that kind */
} EagerCell;

/* Part of a cell in plans with concurrent or commutative accesses. */
typedef struct EagerGroup {
    EagerList members; /* the last writers */
    EagerList before;  /* the tasks that all members wait for */
} EagerGroup;

typedef struct EagerReader { /* entry of a list */
    int64_t serial;
    int32_t next;
} EagerReader;

typedef struct EagerTable {
    int32_t num_tasks, num_cells;
    const int32_t *task_offsets;
    const uint8_t *access_kind;
    const int32_t *access_list;
    const int32_t *list_offsets;
    const int32_t *list_cells;
} EagerTable;

typedef struct Eager {
    Scheduler scheduler;
    EagerTable table;
    EagerTask *tasks;
    EagerEdge *edges;
    EagerCell *cells;
    EagerGroup *groups; /* NULL: no access is in any order */
    EagerReader *readers;
    const uint8_t *wait_after;     /* shape (num_loops,): a taskwait follows the loop */
    int64_t window, edge_capacity; /* powers of two */
    int32_t free_reader, reader_capacity;
    int32_t num_loops;
    int32_t num_iterations;
    int64_t first_replay;
    int64_t next_serial, oldest;  /* tasks [oldest, next_serial) have not retired */
    int64_t edge_head, edge_tail; /* edges [tail, head) are in use */
    int32_t out_of_memory;
    int32_t enough_ready; /* ready tasks in the creator's deque above which it executes instead of creating */
    char padding[FT_PAIR_OF_LINES];
    atomic_i32 creator_waits; /* the creator sleeps, or is about to */
} Eager;

static inline EagerTask *eager_task(Eager *e, int64_t serial)
{
    return &e->tasks[serial & (e->window - 1)];
}

/* Owner thread only, after the task has run: close it and count down its successors; keep the latest ready one in *next
 * and push the one kept before. */
static void eager_finish(Eager *e, SchedulerWorker *me, int32_t slot, int32_t *next)
{
    Scheduler *s = &e->scheduler;
    /* release: pairs with the acquire in eager_retire() and, through the counters, with the successors' start;
     * acquire: pairs with the release in eager_depend(), the edges are visible. From here on the slot may be reused. */
    int32_t edge = ft_exchange(&e->tasks[slot].successors, EAGER_CLOSED, ORDER_EAGER_CLOSE);
    while (edge != EAGER_NO_EDGE) {
        int32_t successor = e->edges[edge].slot;
        edge = e->edges[edge].next; /* before the count: the edge belongs to the successor */
        if (ft_sub(&e->tasks[successor].pending, 1, ORDER_EAGER_COUNT_DOWN) != 1)
            continue;
        if (*next >= 0) {
            deque_push(&me->deque, *next);
            idle_notify_one(&s->idle);
        }
        *next = successor;
    }
    /* idle_anyone()'s fence, then the flag: pairs with idle_announce() in eager_help(). */
    if (idle_anyone(&s->idle) && ft_load(&e->creator_waits, relaxed))
        idle_notify_worker(&s->idle, 0);
}

/* Owner thread only: run a ready task and the tasks it makes ready for this worker. Returns 0 if the run must end. */
static int eager_execute(Eager *e, SchedulerWorker *me, int32_t slot)
{
    Scheduler *s = &e->scheduler;
    while (slot >= 0) {
        EagerTask *task = &e->tasks[slot];
        int32_t next = -1;
        if (ft_unlikely(ft_load(&s->ending, relaxed) == RUN_STOPPED))
            return 0;
        int32_t first = scheduler_run_first(s, me, &s->loops[task->loop], task->block, slot);
        if (ft_unlikely(first != slot)) {
            slot = first;
            continue;
        }
        if (scheduler_run_block(s, me, &s->loops[task->loop], task->block, task->replay,
                                s->loops[task->loop].first_task + task->block) != 0)
            return 0;
        eager_finish(e, me, slot, &next);
        slot = next;
    }
    return 1;
}

/* Creator only: free the slots of finished tasks, in order of creation. Returns 1 if any was freed. */
static int eager_retire(Eager *e)
{
    int64_t before = e->oldest;
    while (e->oldest < e->next_serial) {
        EagerTask *task = eager_task(e, e->oldest);
        /* acquire: pairs with the release in eager_finish(); the slot and its edges are no longer read */
        if (ft_load(&task->successors, ORDER_EAGER_RETIRE) != EAGER_CLOSED)
            break;
        e->edge_tail = task->edge_end;
        e->oldest++;
    }
    return e->oldest != before;
}

/* Creator only: take the oldest task of its own deque, like a thief. In order of creation, tasks retire soonest and
 * find their data in the cache as in a serial run. */
static inline int32_t eager_oldest_ready(SchedulerWorker *me)
{
    int32_t slot;
    do
        slot = deque_steal(&me->deque);
    while (slot == DEQUE_LOST_RACE);
    return slot;
}

/* Creator only, while it can create no task: look for a ready one, spin and sleep until there is one or some task has
 * finished. Returns its slot, -1: none, one has finished, or -2: the run must end. */
static int32_t eager_look_for_task(Eager *e)
{
    Scheduler *s = &e->scheduler;
    SchedulerWorker *me = &s->workers[0];
    int64_t start = 0;
    for (int round = 1;; round++) {
        int32_t slot = eager_oldest_ready(me);
        if (slot < 0)
            slot = scheduler_steal(s, 0);
        if (slot >= 0)
            return slot;
        if (scheduler_ended(s))
            return -2;
        if (ft_load(&eager_task(e, e->oldest)->successors, relaxed) == EAGER_CLOSED)
            return -1; /* a hint: eager_retire() looks again with acquire */
        ft_pause();
        if (round % 64 != 0)
            continue;
        int64_t now = forktask_now_ns();
        if (start == 0) {
            start = now;
        } else if (now - start > s->spin_ns) {
            ft_store(&e->creator_waits, 1, relaxed);
            idle_announce(&s->idle, 0); /* orders the flag, too, before the looks that follow */
            do
                slot = scheduler_steal(s, 0);
            while (slot == DEQUE_LOST_RACE);
            if (slot >= 0 || scheduler_ended(s) ||
                ft_load(&eager_task(e, e->oldest)->successors, relaxed) == EAGER_CLOSED)
                idle_cancel(&s->idle, 0);
            else
                scheduler_sleep(s, 0, -1);
            ft_store(&e->creator_waits, 0, relaxed);
            if (slot >= 0)
                return slot;
            start = 0;
        }
    }
}

/* Creator only, while it can create no task: execute one, or spin and sleep until one has finished. Returns 0 if the
 * run must end. */
static int eager_help(Eager *e)
{
    SchedulerWorker *me = &e->scheduler.workers[0];
    int64_t start = forktask_begin_wait(&me->state->log);
    int32_t slot = eager_look_for_task(e);
    forktask_end_wait(&me->state->log, start);
    return slot >= 0 ? eager_execute(e, me, slot) : slot == -1;
}

/* Creator only: wait for all tasks. Returns 0 if the run must end. */
static int eager_taskwait(Eager *e)
{
    for (;;) {
        eager_retire(e);
        if (e->oldest == e->next_serial)
            return 1;
        if (!eager_help(e))
            return 0;
    }
}

/* Creator only: take a slot for the next task, guarded. Returns 0 if the run must end. */
static int eager_new_task(Eager *e, int32_t loop, int32_t block, int64_t replay)
{
    while (e->next_serial - e->oldest >= e->window) {
        if (!eager_retire(e) && !eager_help(e))
            return 0;
    }
    EagerTask *task = eager_task(e, e->next_serial);
    task->serial = e->next_serial;
    task->loop = loop;
    task->block = block;
    task->replay = replay;
    task->mark = -1;
    ft_store(&task->pending, EAGER_GUARD, relaxed);
    ft_store(&task->successors, EAGER_NO_EDGE, relaxed);
    e->next_serial++;
    return 1;
}

/* Creator only: make the newest task depend on task `before`; *num_edges counts. Returns 0 if the run must end. */
static inline int eager_depend(Eager *e, int64_t before, int32_t *num_edges)
{
    int64_t me = e->next_serial - 1;
    if (before < e->oldest || before == me)
        return 1;
    EagerTask *task = eager_task(e, before);
    if (task->mark == me)
        return 1;
    task->mark = me;
    /* acquire: pairs with the release in eager_finish(); a task found CLOSED has written its data */
    int32_t newest = ft_load(&task->successors, ORDER_EAGER_FOUND_CLOSED);
    if (newest == EAGER_CLOSED)
        return 1;
    while (e->edge_head - e->edge_tail >= e->edge_capacity) {
        if (!eager_retire(e) && !eager_help(e))
            return 0;
    }
    int32_t number = (int32_t)(e->edge_head & (e->edge_capacity - 1));
    e->edges[number].slot = (int32_t)(me & (e->window - 1));
    for (;;) {
        e->edges[number].next = newest;
        /* release: pairs with the acquire in eager_finish(); the edge is visible */
        if (ft_cas(&task->successors, &newest, number, ORDER_EAGER_PUSH_EDGE))
            break;
        newest = ft_load(&task->successors, ORDER_EAGER_FOUND_CLOSED); /* as above */
        if (newest == EAGER_CLOSED)
            return 1;
    }
    e->edge_head++;
    ++*num_edges;
    return 1;
}

/* Creator only, when the newest task has all its edges: let it become ready. */
static void eager_release(Eager *e, int32_t num_edges)
{
    SchedulerWorker *me = &e->scheduler.workers[0];
    int32_t slot = (int32_t)((e->next_serial - 1) & (e->window - 1));
    EagerTask *task = &e->tasks[slot];
    task->edge_end = e->edge_head;
    if (num_edges > 0 &&
        ft_sub(&task->pending, EAGER_GUARD - num_edges, ORDER_EAGER_COUNT_DOWN) != EAGER_GUARD - num_edges)
        return;
    deque_push(&me->deque, slot);
    idle_notify_one(&e->scheduler.idle);
}

/* Creator only: empty a list. */
static void eager_clear(Eager *e, EagerList *list)
{
    if (list->head >= 0) {
        e->readers[list->tail].next = e->free_reader;
        e->free_reader = list->head;
        list->head = list->tail = -1;
    }
}

/* Creator only: append a serial, once. Returns 0 when out of memory. */
static int eager_append(Eager *e, EagerList *list, int64_t serial)
{
    /* Drop serials that have retired: at most a window of them stays. */
    while (list->head >= 0 && e->readers[list->head].serial < e->oldest) {
        int32_t gone = list->head;
        list->head = e->readers[gone].next;
        e->readers[gone].next = e->free_reader;
        e->free_reader = gone;
        if (list->head < 0)
            list->tail = -1;
    }
    if (list->head >= 0 && e->readers[list->tail].serial == serial)
        return 1;
    if (e->free_reader < 0) {
        int32_t capacity = e->reader_capacity * 2;
        EagerReader *grown = realloc(e->readers, (size_t)capacity * sizeof(EagerReader));
        if (grown == NULL) {
            e->out_of_memory = 1;
            return 0;
        }
        e->readers = grown;
        for (int32_t i = e->reader_capacity; i < capacity; i++) {
            grown[i].next = e->free_reader;
            e->free_reader = i;
        }
        e->reader_capacity = capacity;
    }
    int32_t reader = e->free_reader;
    e->free_reader = e->readers[reader].next;
    e->readers[reader].serial = serial;
    e->readers[reader].next = -1;
    if (list->head < 0)
        list->head = reader;
    else
        e->readers[list->tail].next = reader;
    list->tail = reader;
    return 1;
}

/* Creator only: make the newest task depend on all in a list; *others is set if the list holds another task. */
static int eager_depend_all(Eager *e, const EagerList *list, int32_t *num_edges, int *others)
{
    for (int32_t r = list->head; r >= 0; r = e->readers[r].next) {
        *others |= e->readers[r].serial != e->next_serial - 1;
        if (!eager_depend(e, e->readers[r].serial, num_edges))
            return 0;
    }
    return 1;
}

/* Creator only: make the newest task depend on the cell's last writers. */
static inline int eager_depend_writers(Eager *e, int32_t number, int32_t *num_edges)
{
    int others;
    if (ft_unlikely(e->cells[number].kind >= EAGER_ANY_ORDER))
        return eager_depend_all(e, &e->groups[number].members, num_edges, &others);
    return e->cells[number].writer < 0 || eager_depend(e, e->cells[number].writer, num_edges);
}

/* Creator only, if the newest task writes the cell in any order with others of its kind: it joins the last writers if
 * they are of its kind and no task has read since, like in the recorder (dependences.pyx). */
static int eager_write_in_any_order(Eager *e, int32_t number, int16_t kind, int32_t *num_edges)
{
    EagerCell *cell = &e->cells[number];
    EagerGroup *group = &e->groups[number];
    int others;
    if (cell->kind != kind || cell->readers.head >= 0) {
        EagerList none = {-1, -1};
        eager_clear(e, &group->before);
        if (cell->readers.head >= 0) {
            group->before = cell->readers; /* they stand for the writers before them */
            eager_clear(e, &group->members);
        } else {
            group->before = group->members;
        }
        cell->readers = group->members = none;
        if (cell->kind < EAGER_ANY_ORDER && group->before.head < 0 && cell->writer >= 0 &&
            !eager_append(e, &group->before, cell->writer))
            return 0;
        cell->kind = kind;
    }
    return eager_depend_all(e, &group->before, num_edges, &others) &&
           eager_append(e, &group->members, e->next_serial - 1);
}

/* Creator only: create one task and find its dependences. Returns 0 if the run must end. */
static int eager_create(Eager *e, int32_t task, int32_t loop, int32_t block, int64_t replay)
{
    const EagerTable *t = &e->table;
    int32_t num_edges = 0;
    if (!eager_new_task(e, loop, block, replay))
        return 0;
    int64_t serial = e->next_serial - 1;
    for (int32_t a = t->task_offsets[task]; a < t->task_offsets[task + 1]; a++) {
        int16_t kind = t->access_kind[a];
        int32_t list = t->access_list[a];
        for (int32_t c = t->list_offsets[list]; c < t->list_offsets[list + 1]; c++) {
            int32_t number = t->list_cells[c];
            EagerCell *cell = &e->cells[number];
            if (kind == EAGER_READ) {
                if (!eager_depend_writers(e, number, &num_edges) ||
                    (cell->is_written && !eager_append(e, &cell->readers, serial)))
                    return 0;
                continue;
            }
            if (ft_unlikely(kind >= EAGER_ANY_ORDER)) {
                if (!eager_write_in_any_order(e, number, kind, &num_edges))
                    return 0;
                continue;
            }
            /* Readers stand for the writers before them too; this task itself may be one of them. */
            int others = 0;
            if (!eager_depend_all(e, &cell->readers, &num_edges, &others) ||
                (!others && !eager_depend_writers(e, number, &num_edges)))
                return 0;
            cell->writer = serial;
            eager_clear(e, &cell->readers);
            if (ft_unlikely(cell->kind >= EAGER_ANY_ORDER)) {
                eager_clear(e, &e->groups[number].members);
                eager_clear(e, &e->groups[number].before);
                cell->kind = 0;
            }
        }
    }
    eager_release(e, num_edges);
    forktask_log_creation(&e->scheduler.workers[0].state->log, task, replay);
    /* All workers have enough: run one. Tasks alive cost edges and cache, and the creator is a worker too. */
    if (deque_size_hint(&e->scheduler.workers[0].deque) > e->enough_ready) {
        int32_t slot = eager_oldest_ready(&e->scheduler.workers[0]);
        if (slot >= 0 && !eager_execute(e, &e->scheduler.workers[0], slot))
            return 0;
        eager_retire(e);
    }
    return 1;
}

static void eager_create_all(Eager *e)
{
    Scheduler *s = &e->scheduler;
    for (int32_t k = 0; k < e->num_iterations; k++)
        for (int32_t l = 0; l < e->num_loops; l++) {
            const LoopRecord *loop = &s->loops[l];
            for (int32_t b = 0; b < loop->num_blocks; b++)
                if (!eager_create(e, loop->first_task + b, l, b, e->first_replay + k))
                    return;
            if (e->wait_after[l] && !eager_taskwait(e))
                return;
            if (ft_load(&s->ending, relaxed) == RUN_STOPPED)
                return;
        }
    eager_taskwait(e);
}

/* Job of each worker. */
static void eager_work(void *argument, int32_t worker)
{
    Eager *e = argument;
    Scheduler *s = &e->scheduler;
    SchedulerWorker *me = &s->workers[worker];
    if (worker == 0) {
        eager_create_all(e);
        scheduler_end(s, e->out_of_memory ? RUN_STOPPED : RUN_DONE);
        return;
    }
    for (;;) {
        int32_t slot = deque_take(&me->deque);
        if (slot < 0) {
            slot = scheduler_find_work(s, worker);
            if (slot < 0)
                return;
        }
        if (!eager_execute(e, me, slot))
            return;
    }
}

/* Prepare a run, while the workers rest. */
static void eager_reset(Eager *e, int64_t first_replay, int32_t num_iterations)
{
    scheduler_reset(&e->scheduler);
    e->first_replay = first_replay;
    e->num_iterations = num_iterations;
    e->next_serial = e->oldest = 0;
    e->edge_head = e->edge_tail = 0;
    e->out_of_memory = 0;
    ft_store(&e->creator_waits, 0, relaxed);
    e->free_reader = -1;
    for (int32_t i = e->reader_capacity - 1; i >= 0; i--) {
        e->readers[i].next = e->free_reader;
        e->free_reader = i;
    }
    for (int32_t c = 0; c < e->table.num_cells; c++) {
        e->cells[c].writer = -1;
        e->cells[c].readers.head = e->cells[c].readers.tail = -1;
        e->cells[c].kind = 0;
    }
    if (e->groups != NULL) /* -1 is all ones: empty lists */
        memset(e->groups, 0xFF, (size_t)e->table.num_cells * sizeof(EagerGroup));
}

static void eager_close(Eager *e)
{
    scheduler_close(&e->scheduler);
    free(e->tasks);
    free(e->edges);
    free(e->cells);
    free(e->groups);
    free(e->readers);
    memset(e, 0, sizeof(*e));
}

/* Make the memory of eager tasks. The table's arrays and wait_after must outlive it. window: tasks alive at once,
 * rounded up to a power of two. places: see scheduler_order_victims(). Returns 0 or -1 (out of memory). */
static int eager_open(Eager *e, int32_t num_workers, const int32_t *places, const LoopRecord *loops, int32_t num_loops,
                      WorkerState *states, int64_t spin_ns, const EagerTable *table, const uint8_t *wait_after,
                      int64_t window)
{
    int any_order = 0;
    memset(e, 0, sizeof(*e));
    e->table = *table;
    for (int32_t a = 0; a < table->task_offsets[table->num_tasks]; a++)
        any_order |= table->access_kind[a] >= EAGER_ANY_ORDER;
    e->num_loops = num_loops;
    e->wait_after = wait_after;
    e->window = 4;
    while (e->window < window)
        e->window *= 2;
    /* A task has at most window - 1 predecessors, so it can always get its edges once the others have retired. */
    e->edge_capacity = 4 * e->window;
    e->reader_capacity = 1024;
    e->enough_ready = 4 * num_workers;
    e->tasks = forktask_aligned_zeros((size_t)e->window * sizeof(EagerTask));
    e->edges = forktask_aligned_zeros((size_t)e->edge_capacity * sizeof(EagerEdge));
    e->cells = forktask_aligned_zeros((size_t)table->num_cells * sizeof(EagerCell));
    e->readers = malloc((size_t)e->reader_capacity * sizeof(EagerReader));
    if (any_order)
        e->groups = forktask_aligned_zeros((size_t)table->num_cells * sizeof(EagerGroup));
    if ((any_order && e->groups == NULL) || e->tasks == NULL || e->edges == NULL || e->cells == NULL ||
        e->readers == NULL || scheduler_open(&e->scheduler, num_workers, loops, states, e->window, spin_ns) != 0 ||
        scheduler_order_victims(&e->scheduler, places) != 0) {
        eager_close(e);
        return -1;
    }
    for (int32_t a = 0; a < table->task_offsets[table->num_tasks]; a++)
        if (table->access_kind[a] != EAGER_READ)
            for (int32_t c = table->list_offsets[table->access_list[a]];
                 c < table->list_offsets[table->access_list[a] + 1]; c++)
                e->cells[table->list_cells[c]].is_written = 1;
    return 0;
}

#endif
