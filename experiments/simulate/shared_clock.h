/* The clock of a simulated machine: what runs at once shares bandwidth and frequency.
 *
 * A running task has a share f of its time that waits for memory. While `active` tasks run, whose shares sum to R, and
 * the machine moves bandwidth[active] times what one thread moves, the memory part takes max(1, R / bandwidth) times
 * as long and the rest slowdown[active] times. Rates change whenever a task starts or ends. Tasks whose shares agree,
 * rounded to one of CLOCK_SHARES values, have the same rate, so each such class keeps a virtual time of its own and a
 * heap of its tasks: an event costs O(CLOCK_SHARES + log P), however many tasks run.
 *
 * Where the machine has several NUMA nodes, `bandwidth` is that of each, and a task's memory lies on one of them, its
 * home, or on all alike (home `num_nodes`): R and the number of tasks are then those of a node, of which a task whose
 * memory lies on all adds its part to each. There is a class for each share and home.
 */
#ifndef FORKTASK_SHARED_CLOCK_H
#define FORKTASK_SHARED_CLOCK_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define CLOCK_SHARES  17                                     /* memory shares 0, 1/16, ..., 1 */
#define CLOCK_NODES   16                                     /* at most */
#define CLOCK_CLASSES (CLOCK_SHARES * (CLOCK_NODES + 1) + 1) /* class 0: timers, which nothing slows down */

typedef struct ClockEvent {
    double at;        /* virtual time of its class */
    int64_t sequence; /* events of one moment come in the order in which they were made */
    int32_t worker;
    int32_t stamp; /* an event whose worker has another stamp by then is void */
} ClockEvent;

typedef struct ClockHeap {
    ClockEvent *events;
    int32_t size, capacity;
} ClockHeap;

typedef struct SharedClock {
    double now;
    double virtual_now[CLOCK_CLASSES], rate[CLOCK_CLASSES];
    ClockHeap heaps[CLOCK_CLASSES];
    const double *bandwidth;          /* of a node by active tasks, in those of one thread; NULL: nothing is shared */
    const double *slowdown;           /* by active tasks */
    double shares[CLOCK_NODES + 1];   /* by home: sum of the running tasks' memory shares */
    int32_t running[CLOCK_NODES + 1]; /* by home: running tasks */
    int32_t num_nodes, num_classes;
    int32_t active;
    int64_t sequence;
    int out_of_memory;
} SharedClock;

static inline int clock_before(const ClockEvent *a, const ClockEvent *b)
{
    return a->at < b->at || (a->at == b->at && a->sequence < b->sequence);
}

static void clock_push(SharedClock *c, int class, ClockEvent event)
{
    ClockHeap *h = &c->heaps[class];
    if (h->size == h->capacity) {
        int32_t capacity = 2 * h->capacity + 16;
        ClockEvent *grown = realloc(h->events, (size_t)capacity * sizeof(ClockEvent));
        if (grown == NULL) {
            c->out_of_memory = 1;
            return;
        }
        h->events = grown;
        h->capacity = capacity;
    }
    int32_t at = h->size++;
    for (int32_t above; at > 0; at = above) {
        above = (at - 1) / 2;
        if (!clock_before(&event, &h->events[above]))
            break;
        h->events[at] = h->events[above];
    }
    h->events[at] = event;
}

static ClockEvent clock_pop(ClockHeap *h)
{
    ClockEvent first = h->events[0], last = h->events[--h->size];
    int32_t at = 0, below;
    while ((below = 2 * at + 1) < h->size) {
        below += below + 1 < h->size && clock_before(&h->events[below + 1], &h->events[below]);
        if (!clock_before(&h->events[below], &last))
            break;
        h->events[at] = h->events[below];
        at = below;
    }
    h->events[at] = last;
    return first;
}

/* Set the rates anew, after a task has started or ended. */
static inline void clock_share(SharedClock *c)
{
    const int32_t n = c->num_nodes;
    double rest = c->slowdown[c->active], sum = 0;
    for (int32_t home = 0; 1 + home * CLOCK_SHARES < c->num_classes; home++) {
        double memory = sum / n; /* on all nodes */
        if (home < n) {
            double shares = c->shares[home] + c->shares[n] / n;
            double most = c->bandwidth[c->running[home] + (c->running[n] + n - 1) / n];
            memory = shares > most ? shares / most : 1.0;
            sum += memory;
        }
        for (int k = 0; k < CLOCK_SHARES; k++) {
            double f = (double)k / (CLOCK_SHARES - 1);
            c->rate[1 + home * CLOCK_SHARES + k] = 1 / ((1 - f) * rest + f * memory);
        }
    }
}

/* Wake a worker after `delay`, whatever else runs. */
static inline void clock_set_timer(SharedClock *c, double delay, int32_t worker, int32_t stamp)
{
    clock_push(c, 0, (ClockEvent){c->virtual_now[0] + delay, c->sequence++, worker, stamp});
}

static inline int clock_step(double share)
{
    return (int)(share * (CLOCK_SHARES - 1) + 0.5);
}

static inline int clock_class(const SharedClock *c, double share, int32_t home)
{
    return c->bandwidth == NULL ? 0 : 1 + home * CLOCK_SHARES + clock_step(share);
}

/* Start a task of a worker: `seconds` alone on the machine, of which `share` wait for the memory of its home; it moves
 * `pull` times what it would move from near memory in that time. */
static inline void clock_start(SharedClock *c, double seconds, double share, double pull, int32_t home, int32_t worker,
                               int32_t stamp)
{
    int class = clock_class(c, share, home);
    clock_push(c, class, (ClockEvent){c->virtual_now[class] + seconds, c->sequence++, worker, stamp});
    c->active++;
    c->running[home]++;
    if (class > 0) {
        c->shares[home] += pull * clock_step(share) / (CLOCK_SHARES - 1);
        clock_share(c);
    }
}

/* Take the running task with this share, pull and home off the machine. */
static inline void clock_end(SharedClock *c, double share, double pull, int32_t home)
{
    c->active--;
    c->running[home]--;
    if (c->bandwidth != NULL) {
        c->shares[home] = c->running[home] > 0 ? c->shares[home] - pull * clock_step(share) / (CLOCK_SHARES - 1) : 0.0;
        clock_share(c);
    }
}

/* Go on to the next event. Returns 0 if there is none. */
static int clock_next(SharedClock *c, ClockEvent *event)
{
    int first = -1;
    double least = 0;
    for (int k = 0; k < c->num_classes; k++) {
        if (c->heaps[k].size == 0)
            continue;
        const ClockEvent *top = c->heaps[k].events;
        double wait = (top->at - c->virtual_now[k]) / c->rate[k];
        if (first < 0 || wait < least || (wait == least && top->sequence < c->heaps[first].events[0].sequence)) {
            first = k;
            least = wait;
        }
    }
    if (first < 0)
        return 0;
    *event = clock_pop(&c->heaps[first]);
    for (int k = 0; k < c->num_classes; k++)
        c->virtual_now[k] += least * c->rate[k];
    c->virtual_now[first] = event->at;
    c->now = c->bandwidth == NULL ? event->at : c->now + least;
    return 1;
}

static void clock_open(SharedClock *c, const double *bandwidth, const double *slowdown, int32_t num_nodes)
{
    memset(c, 0, sizeof(*c));
    c->num_nodes = num_nodes;
    c->num_classes = bandwidth == NULL ? 1 : 1 + CLOCK_SHARES * (num_nodes + (num_nodes > 1));
    c->bandwidth = bandwidth;
    c->slowdown = slowdown;
    for (int k = 0; k < CLOCK_CLASSES; k++)
        c->rate[k] = 1;
}

static void clock_close(SharedClock *c)
{
    for (int k = 0; k < CLOCK_CLASSES; k++)
        free(c->heaps[k].events);
}

#endif
