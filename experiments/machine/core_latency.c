/* Two threads hand a number back and forth: through a cache line both watch, and through a futex on which each sleeps. */
#define _GNU_SOURCE
#include "core_latency.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

typedef struct Exchange {
    int32_t word; /* counts hand-overs: even, the first thread's turn */
    char padding[124];
    int32_t rounds;
    int cpus[2], sleeps, error;
    uint64_t *data; /* handed over */
    size_t words;
} Exchange;

static int pin(int cpu)
{
    size_t size = CPU_ALLOC_SIZE(cpu + 1);
    cpu_set_t *set = CPU_ALLOC(cpu + 1); /* a machine may have more CPUs than a cpu_set_t */
    if (set == NULL)
        return ENOMEM;
    CPU_ZERO_S(size, set);
    CPU_SET_S(cpu, size, set);
    int error = sched_setaffinity(0, size, set) == 0 ? 0 : errno;
    CPU_FREE(set);
    return error;
}

/* Read a word of each cache line of the data and write it anew: lines come as fast as the caches bring them. */
static void update(Exchange *e, int32_t turn)
{
    uint64_t *data = e->data;
    for (size_t i = 0; i < e->words; i += 8)
        data[i] += (uint64_t)turn;
}

/* Take every second turn. */
static void take_turns(Exchange *e, int32_t parity)
{
    for (int32_t turn = parity; turn < 2 * e->rounds; turn += 2) {
        int32_t seen;
        /* acquire: pairs with the release below, in the other thread */
        while ((seen = __atomic_load_n(&e->word, __ATOMIC_ACQUIRE)) != turn)
            if (e->sleeps)
                syscall(SYS_futex, &e->word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
        update(e, turn);
        __atomic_store_n(&e->word, turn + 1, __ATOMIC_RELEASE); /* release: pairs with the acquire above */
        if (e->sleeps)
            syscall(SYS_futex, &e->word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    }
}

static void *second_thread(void *argument)
{
    Exchange *e = argument;
    e->error = pin(e->cpus[1]);
    take_turns(e, 1);
    return NULL;
}

static void *first_thread(void *argument)
{
    Exchange *e = argument;
    int error = pin(e->cpus[0]);
    if (e->cpus[0] != e->cpus[1])
        take_turns(e, 0);
    else
        for (int32_t turn = 0; turn < 2 * e->rounds; turn++)
            update(e, turn);
    e->error = e->error != 0 ? e->error : error;
    return NULL;
}

int measure_handover(int first_cpu, int second_cpu, int sleeps, int rounds, size_t bytes, double *seconds)
{
    Exchange e = {.rounds = rounds, .cpus = {first_cpu, second_cpu}, .sleeps = sleeps};
    pthread_t threads[2];
    struct timespec begin, end;
    e.words = bytes / sizeof(uint64_t);
    e.data = aligned_alloc(64, (bytes + 64) / 64 * 64);
    if (e.data == NULL)
        return ENOMEM;
    memset(e.data, 0, bytes);
    clock_gettime(CLOCK_MONOTONIC, &begin);
    int error = pthread_create(&threads[0], NULL, first_thread, &e);
    if (error != 0) {
        free(e.data);
        return error;
    }
    if (first_cpu != second_cpu) {
        error = pthread_create(&threads[1], NULL, second_thread, &e);
        if (error != 0) /* the first thread takes both sides' turns: it must end */
            take_turns(&e, 1);
        else
            pthread_join(threads[1], NULL);
    }
    pthread_join(threads[0], NULL);
    clock_gettime(CLOCK_MONOTONIC, &end);
    free(e.data);
    *seconds = ((double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec)) / (2.0 * rounds);
    return error != 0 ? error : e.error;
}
