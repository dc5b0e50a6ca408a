/* The deque by itself: one program, one claim a function; prints "ok NAME" or fails with a message. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tasking/deque.h"

#define CHECK(condition)                                                              \
    do {                                                                              \
        if (!(condition)) {                                                           \
            fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
            exit(1);                                                                  \
        }                                                                             \
    } while (0)

static int32_t num_items = 200000;

static void deque_make(Deque *d, int64_t capacity)
{
    memset(d, 0, sizeof(*d));
    d->mask = capacity - 1;
    d->slots = calloc((size_t)capacity, sizeof(atomic_i32));
    CHECK(d->slots != NULL);
    deque_reset(d);
}

static void smoke(void)
{
    Deque d;
    deque_make(&d, 8);
    CHECK(deque_take(&d) == DEQUE_EMPTY);
    CHECK(deque_steal(&d) == DEQUE_EMPTY);
    deque_push(&d, 5);
    CHECK(deque_size_hint(&d) == 1);
    CHECK(deque_take(&d) == 5);
    deque_push(&d, 6);
    CHECK(deque_steal(&d) == 6);
    CHECK(deque_take(&d) == DEQUE_EMPTY);
    free(d.slots);
}

static void owner_lifo_thief_fifo(void)
{
    Deque d;
    deque_make(&d, 8);
    for (int32_t i = 0; i < 8; i++)
        deque_push(&d, i);
    for (int32_t i = 0; i < 4; i++) {
        CHECK(deque_take(&d) == 7 - i);
        CHECK(deque_steal(&d) == i);
    }
    CHECK(deque_take(&d) == DEQUE_EMPTY);
    CHECK(deque_steal(&d) == DEQUE_EMPTY);
    free(d.slots);
}

static void wraparound(void)
{
    Deque d;
    deque_make(&d, 4);
    int32_t oldest = 0, next = 0;
    for (int round = 0; round < 1000; round++) {
        while (next - oldest < 4)
            deque_push(&d, next++);
        CHECK(deque_steal(&d) == oldest++);
        CHECK(deque_take(&d) == --next);
        CHECK(deque_steal(&d) == oldest++);
    }
    free(d.slots);
}

/* ------------------------------------------------------------------------------------------- with thieves */

typedef struct Contest {
    Deque deque;
    atomic_i32 go, over;
    atomic_i32 *taken; /* how often each item was taken */
    int64_t lost_races;
} Contest;

static void *thief(void *argument)
{
    Contest *c = argument;
    ft_add(&c->go, 1, acq_rel);
    for (;;) {
        int over = ft_load(&c->over, acquire); /* before the look: nothing is pushed after it */
        int32_t item = deque_steal(&c->deque);
        if (item >= 0)
            ft_add(&c->taken[item], 1, relaxed);
        else if (item == DEQUE_EMPTY && over)
            return NULL;
    }
}

/* Thieves against an owner that pushes `batch` items and takes back `take_back` of them, again and again. */
static void contest(int num_thieves, int batch, int take_back, int64_t capacity)
{
    Contest c;
    pthread_t threads[16];
    memset(&c, 0, sizeof(c));
    deque_make(&c.deque, capacity);
    c.taken = calloc((size_t)num_items, sizeof(atomic_i32));
    CHECK(c.taken != NULL);
    for (int i = 0; i < num_thieves; i++)
        CHECK(pthread_create(&threads[i], NULL, thief, &c) == 0);
    while (ft_load(&c.go, acquire) < num_thieves)
        ft_pause();
    for (int32_t next = 0; next < num_items;) {
        for (int i = 0; i < batch && next < num_items; i++) {
            while (deque_size_hint(&c.deque) >= capacity) { /* the owner's own view of bottom; top only grows */
                int32_t item = deque_take(&c.deque);
                if (item >= 0)
                    ft_add(&c.taken[item], 1, relaxed);
            }
            deque_push(&c.deque, next++);
        }
        for (int i = 0; i < take_back; i++) {
            int32_t item = deque_take(&c.deque);
            if (item >= 0)
                ft_add(&c.taken[item], 1, relaxed);
        }
    }
    for (int32_t item; (item = deque_take(&c.deque)) >= 0;)
        ft_add(&c.taken[item], 1, relaxed);
    ft_store(&c.over, 1, release);
    for (int i = 0; i < num_thieves; i++)
        pthread_join(threads[i], NULL);
    for (int32_t i = 0; i < num_items; i++)
        CHECK(ft_load(&c.taken[i], relaxed) == 1);
    free(c.deque.slots);
    free(c.taken);
}

static void stampede(void)
{
    contest(8, num_items, 0, 1 << 18); /* all pushed at once, all thieves on it */
}

static void no_task_lost_or_duplicated(void)
{
    contest(1, 1, 1, 4); /* the last entry, over and over */
    contest(3, 2, 2, 4);
    contest(3, 7, 3, 16);
}

static void no_starvation(void)
{
    contest(4, 64, 1, 128); /* ends only if thieves get on with an owner that is mostly pushing */
}

int main(int argc, char **argv)
{
    if (argc > 1)
        num_items = atoi(argv[1]);
#define RUN(name)          \
    do {                   \
        name();            \
        puts("ok " #name); \
        fflush(stdout);    \
    } while (0)
    RUN(smoke);
    RUN(owner_lifo_thief_fifo);
    RUN(wraparound);
    RUN(stampede);
    RUN(no_task_lost_or_duplicated);
    RUN(no_starvation);
    return 0;
}
