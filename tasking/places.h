/* Which CPU each worker is pinned to, and how a worker that waits gives its CPU to one that lost its own.
 *
 * Where another process wants a core, the system takes it from the worker there for a time slice of milliseconds, in the
 * middle of a task. What does not depend on that task can be claimed by others; then everybody waits for it, with CPUs to spare.
 * A waiting worker finds such a one by its CPU time, which stands still though it does not sleep, and swaps places with it:
 * the task goes on here, and the waiting worker, which holds nothing, queues for the lost CPU in its stead.
 *
 * Who writes: `cpu`: whoever holds `busy`; after a run the caller, while the workers rest. `looked_ns`, `used_ns`: each worker
 * its own.
 */
#ifndef FORKTASK_PLACES_H
#define FORKTASK_PLACES_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "atomics.h"
#include "cython_src/binding/block_kernel.h"
#include "idle.h"

/* Time in which a worker that runs must have used its CPU: long against a look, short against a time slice. */
#define PLACES_LOOK_NS 20000
/* Workers that one look takes in: a look costs a system call for each. */
#define PLACES_LOOK_AT 8

typedef struct Place {
    pthread_t thread;
    clockid_t clock;        /* CPU time of the thread */
    int32_t home;           /* logical CPU that the caller asked for */
    atomic_i32 cpu;         /* where it is, or will soon be, pinned */
    int64_t looked_ns;      /* of its last look at others */
    int64_t *used_ns;       /* shape (num_places,): what it read then, -1: nothing */
    char padding[FT_PAIR_OF_LINES];
} Place;

typedef struct Places {
    Place *places;
    int32_t num_places; /* 0: workers are not pinned, or share CPUs: none swaps */
    int64_t num_swaps;
    atomic_i32 busy;
} Places;

static inline int places_pin(const Place *place, int32_t cpu)
{
    size_t size = CPU_ALLOC_SIZE(cpu + 1);
    cpu_set_t *set = CPU_ALLOC(cpu + 1);
    if (set == NULL)
        return -1;
    CPU_ZERO_S(size, set);
    CPU_SET_S(cpu, size, set);
    int error = pthread_setaffinity_np(place->thread, size, set);
    CPU_FREE(set);
    return error;
}

static inline int64_t places_used_ns(const Place *place)
{
    struct timespec t;
    return clock_gettime(place->clock, &t) == 0 ? (int64_t)t.tv_sec * 1000000000 + t.tv_nsec : -1;
}

/* Worker `me` waits, in a run. Swap places with a worker, from `first` on, that does not sleep and has lost its CPU. Returns 1 after
 * a swap: then this thread has waited for the other CPU. */
static int places_swap(Places *p, Idle *idle, int32_t me, int32_t first, int64_t now)
{
    Place *mine = &p->places[me];
    if (now - mine->looked_ns < PLACES_LOOK_NS)
        return 0;
    mine->looked_ns = now;
    int32_t count = p->num_places < PLACES_LOOK_AT ? p->num_places : PLACES_LOOK_AT;
    for (int32_t i = 0; i < count; i++) {
        int32_t other = (first + i) % p->num_places, expected = 0;
        if (other == me)
            continue;
        if (ft_load(&idle->workers[other].word, relaxed) != WORKER_AWAKE) {
            mine->used_ns[other] = -1;
            continue;
        }
        int64_t before = mine->used_ns[other], used = places_used_ns(&p->places[other]);
        mine->used_ns[other] = used;
        if (used < 0 || used != before || !ft_cas(&p->busy, &expected, 1, acquire)) /* pairs with the release below */
            continue;
        int32_t here = ft_load(&mine->cpu, relaxed), there = ft_load(&p->places[other].cpu, relaxed);
        ft_store(&mine->cpu, there, relaxed);
        ft_store(&p->places[other].cpu, here, relaxed);
        places_pin(&p->places[other], here);
        p->num_swaps++;
        ft_store(&p->busy, 0, release);
        mine->used_ns[other] = -1;
        /* Returns when this thread has got a slice there. Another may have swapped places with it before it got so far. */
        do {
            there = ft_load(&mine->cpu, relaxed);
            places_pin(mine, there);
        } while (ft_load(&mine->cpu, relaxed) != there);
        return 1;
    }
    return 0;
}

/* Caller, after a run: everybody where he was asked for. */
static inline void places_restore(Places *p)
{
    for (int32_t w = 0; w < p->num_places; w++) {
        p->places[w].looked_ns = 0;
        memset(p->places[w].used_ns, 0xFF, (size_t)p->num_places * sizeof(int64_t));
        if (ft_load(&p->places[w].cpu, relaxed) == p->places[w].home)
            continue;
        ft_store(&p->places[w].cpu, p->places[w].home, relaxed);
        places_pin(&p->places[w], p->places[w].home);
    }
}

static inline void places_close(Places *p)
{
    if (p->places != NULL)
        free(p->places[0].used_ns);
    free(p->places);
    p->places = NULL;
    p->num_places = 0;
}

/* The threads run. cpus: of each; two on one CPU: none swaps. Returns 0 or -1 (out of memory). */
static inline int places_open(Places *p, int32_t num_threads, const pthread_t *threads, const int32_t *cpus)
{
    memset(p, 0, sizeof(*p));
    if (cpus == NULL || num_threads < 2)
        return 0;
    for (int32_t w = 0; w < num_threads; w++)
        for (int32_t x = 0; x < w; x++)
            if (cpus[w] == cpus[x])
                return 0;
    p->places = calloc((size_t)num_threads, sizeof(Place));
    if (p->places == NULL)
        return -1;
    p->places[0].used_ns = malloc((size_t)num_threads * (size_t)num_threads * sizeof(int64_t));
    if (p->places[0].used_ns == NULL) {
        places_close(p);
        return -1;
    }
    p->num_places = num_threads;
    for (int32_t w = 0; w < num_threads; w++) {
        Place *place = &p->places[w];
        place->thread = threads[w];
        place->home = cpus[w];
        ft_store(&place->cpu, cpus[w], relaxed);
        place->used_ns = p->places[0].used_ns + (size_t)w * (size_t)num_threads;
        if (pthread_getcpuclockid(threads[w], &place->clock) != 0)
            p->num_places = 0;
    }
    places_restore(p);
    return 0;
}

#endif
