/* Waits between programs: which dependences a worker must wait for, and which others imply.
 *
 * Positions count the entries of a program that have finished, relative to the iteration of the entry that waits: a
 * predecessor of the former iteration is a program length further back. Each entry has a vector clock: for each
 * program, the position that is known to be reached when the entry has finished. A dependence that the clock of the
 * entry before it in the same program shows, or the clock of an entry that is waited for anyhow, needs no wait. The
 * clocks do not reach across iterations: at most one wait for each pair of workers and iteration could be saved.
 */
#ifndef FORKTASK_PROGRAM_WAITS_H
#define FORKTASK_PROGRAM_WAITS_H

#include "programs.h"
#include "tasking/recorded_graph.h"

#define POSITION_UNKNOWN (INT32_MIN / 2)

typedef struct WaitBuilder {
    const Programs *programs;
    int32_t num_workers;
    const int32_t *predecessor_offsets, *predecessors; /* by node: 2 * node + token */
    const int32_t *home, *entry_of;                    /* of each task; joins: entry_of is the node itself */
    int32_t *clocks;    /* shape (num_nodes, num_workers): of each entry, then of each join */
    int32_t *need;      /* shape (num_workers,): positions that the entry in hand needs */
    ProgramWait *waits; /* in the order in which they were found, */
    int32_t *waiting;   /* and the entry that each is for */
    int64_t num_waits, capacity;
} WaitBuilder;

static inline int32_t *wait_clock(const WaitBuilder *b, int32_t entry)
{
    return b->clocks + (size_t)entry * (size_t)b->num_workers;
}

/* Raise a vector of positions to what a node needs of its predecessors. */
static void collect_needs(const WaitBuilder *b, int32_t node, int32_t *positions)
{
    const Programs *p = b->programs;
    for (int32_t x = 0; x < b->num_workers; x++)
        positions[x] = POSITION_UNKNOWN;
    for (int32_t i = b->predecessor_offsets[node]; i < b->predecessor_offsets[node + 1]; i++) {
        int32_t before = b->predecessors[i] >> 1, token = b->predecessors[i] & 1;
        if (before >= p->num_tasks) {
            const int32_t *finished = wait_clock(b, before);
            for (int32_t x = 0; x < b->num_workers; x++) {
                int32_t position = finished[x] - token * (int32_t)program_length(p, x);
                positions[x] = positions[x] > position ? positions[x] : position;
            }
        } else {
            int32_t x = b->home[before];
            int32_t position = b->entry_of[before] - p->first[x] + 1 - token * (int32_t)program_length(p, x);
            positions[x] = positions[x] > position ? positions[x] : position;
        }
    }
}

/* The clock of the entry of program `x` that has finished at a position of the same iteration. */
static inline const int32_t *clock_at(const WaitBuilder *b, int32_t x, int32_t position)
{
    return wait_clock(b, b->programs->first[x] + position - 1);
}

/* Return 1 if another need of the entry in hand implies that program `x` has come to its position. */
static int need_is_implied(const WaitBuilder *b, int32_t own, int32_t x)
{
    for (int32_t y = 0; y < b->num_workers; y++)
        if (y != x && y != own && b->need[y] > 0 && clock_at(b, y, b->need[y])[x] >= b->need[x])
            return 1;
    return 0;
}

/* Returns 0, or -1 (out of memory). */
static int append_wait(WaitBuilder *b, int32_t entry, int32_t worker, int32_t relative)
{
    if (b->num_waits == b->capacity) {
        int64_t capacity = 2 * b->capacity + 1024;
        ProgramWait *waits = realloc(b->waits, (size_t)capacity * sizeof(ProgramWait));
        if (waits != NULL)
            b->waits = waits;
        int32_t *waiting = realloc(b->waiting, (size_t)capacity * sizeof(int32_t));
        if (waiting != NULL)
            b->waiting = waiting;
        if (waits == NULL || waiting == NULL)
            return -1;
        b->capacity = capacity;
    }
    b->waiting[b->num_waits] = entry;
    b->waits[b->num_waits].worker = worker;
    b->waits[b->num_waits++].relative = relative;
    return 0;
}

/* Append the waits of one task and set the clock of its entry. Returns 0, or -1 (out of memory). */
static int find_waits_of(WaitBuilder *b, int32_t task)
{
    const Programs *p = b->programs;
    int32_t own = b->home[task], entry = b->entry_of[task], *known = wait_clock(b, entry);
    if (entry == p->first[own])
        for (int32_t x = 0; x < b->num_workers; x++)
            known[x] = POSITION_UNKNOWN;
    else
        memcpy(known, wait_clock(b, entry - 1), (size_t)b->num_workers * sizeof(int32_t));
    collect_needs(b, task, b->need);
    for (int32_t x = 0; x < b->num_workers; x++)
        if (x != own && b->need[x] > known[x] && !need_is_implied(b, own, x) &&
            append_wait(b, entry, x, b->need[x]) != 0)
            return -1;
    raise_clock(known, b->need, b->num_workers);
    for (int32_t x = 0; x < b->num_workers; x++)
        if (x != own && b->need[x] > 0)
            raise_clock(known, clock_at(b, x, b->need[x]), b->num_workers);
    known[own] = entry - p->first[own] + 1;
    return 0;
}

/* Store the waits by entry, and mark the entries whose end must be published. Returns 0, or -1 (out of memory). */
static int store_waits(const WaitBuilder *b, Programs *p)
{
    int32_t *count = calloc((size_t)p->num_tasks + 2, sizeof(int32_t));
    p->waits = malloc(((size_t)b->num_waits + 1) * sizeof(ProgramWait));
    if (count == NULL || p->waits == NULL) {
        free(count);
        return -1;
    }
    for (int64_t i = 0; i < b->num_waits; i++)
        count[b->waiting[i] + 1]++;
    for (int32_t e = 0; e < p->num_tasks; e++)
        count[e + 1] += count[e];
    for (int32_t e = 0; e <= p->num_tasks; e++)
        p->entries[e].wait_begin = count[e];
    for (int64_t i = 0; i < b->num_waits; i++) {
        ProgramWait wait = b->waits[i];
        int32_t length = (int32_t)program_length(p, wait.worker);
        p->entries[p->first[wait.worker] + (wait.relative - 1 + 2 * length) % length].is_awaited = 1;
        p->waits[count[b->waiting[i]]++] = wait;
    }
    for (int32_t w = 0; w < b->num_workers; w++)
        if (program_length(p, w) > 0)
            p->entries[p->first[w + 1] - 1].is_awaited = 1;
    free(count);
    return 0;
}

/* Find and store all waits of programs whose entries are in place. order: tasks in the topological order that the
 * programs were cut from. Returns 0, or -1 (out of memory). */
static int compile_waits(Programs *p, int32_t num_workers, const int32_t *predecessor_offsets,
                         const int32_t *predecessors, const int32_t *home, const int32_t *entry_of,
                         const int32_t *order)
{
    WaitBuilder b = {p, num_workers, predecessor_offsets, predecessors, home, entry_of, NULL, NULL, NULL, NULL, 0, 0};
    b.clocks = malloc((size_t)p->num_nodes * (size_t)num_workers * sizeof(int32_t) + 4);
    b.need = malloc((size_t)num_workers * sizeof(int32_t));
    int status = b.clocks != NULL && b.need != NULL ? 0 : -1;
    if (status == 0)
        for (int32_t join = p->num_tasks; join < p->num_nodes; join++)
            collect_needs(&b, join, wait_clock(&b, join));
    for (int32_t k = 0; k < p->num_tasks && status == 0; k++)
        status = find_waits_of(&b, order[k]);
    if (status == 0)
        status = store_waits(&b, p);
    free(b.clocks);
    free(b.need);
    free(b.waits);
    free(b.waiting);
    return status;
}

#endif
