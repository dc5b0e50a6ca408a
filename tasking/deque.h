/* Work-stealing deque of node numbers, with a fixed capacity.
 *
 * D. Chase, Y. Lev, "Dynamic Circular Work-Stealing Deque" (SPAA 2005), with the C11 orderings studied by N. M. Le,
 * A. Pop, A. Cohen, F. Zappa Nardelli (PPoPP 2013). Two deviations: a recorded graph bounds the number of entries, so
 * the array neither grows nor is reclaimed; and there are sequentially consistent operations where the paper has
 * fences, because ThreadSanitizer does not model standalone fences.
 *
 *           top                      bottom
 *            v                         v
 *     ... [ oldest | ... | ... | newest ] ...
 *     thieves take here           the owner pushes and takes here
 *
 * Who writes: `bottom` and the slots: the owner. `top`: whoever takes an entry from that end, by compare-and-swap.
 * `top` only grows; both count entries since the reset, so there is no ABA.
 */
#ifndef FORKTASK_DEQUE_H
#define FORKTASK_DEQUE_H

#include "atomics.h"

#ifndef ORDER_DEQUE_PUSH_BOTTOM
#define ORDER_DEQUE_PUSH_BOTTOM release
#endif
#ifndef ORDER_DEQUE_TAKE_BOTTOM
#define ORDER_DEQUE_TAKE_BOTTOM seq_cst
#endif
#ifndef ORDER_DEQUE_TAKE_TOP
#define ORDER_DEQUE_TAKE_TOP seq_cst
#endif
#ifndef ORDER_DEQUE_TAKE_CAS
#define ORDER_DEQUE_TAKE_CAS seq_cst
#endif
#ifndef ORDER_DEQUE_STEAL_TOP
#define ORDER_DEQUE_STEAL_TOP acquire
#endif
#ifndef ORDER_DEQUE_STEAL_BOTTOM
#define ORDER_DEQUE_STEAL_BOTTOM seq_cst
#endif
#ifndef ORDER_DEQUE_STEAL_CAS
#define ORDER_DEQUE_STEAL_CAS seq_cst
#endif

enum { DEQUE_EMPTY = -1, DEQUE_LOST_RACE = -2 };

typedef struct Deque {
    atomic_i64 top;
    char padding[FT_PAIR_OF_LINES - sizeof(atomic_i64)]; /* thieves' counter apart from the owner's */
    atomic_i64 bottom;
    atomic_i32 *slots;
    int64_t mask; /* capacity - 1; the capacity is a power of two */
} Deque;

/* Owner thread only, or while no other thread looks. */
static inline void deque_reset(Deque *d)
{
    ft_store(&d->top, 0, relaxed);
    ft_store(&d->bottom, 0, relaxed);
}

/* Owner thread only. The caller guarantees that fewer than `capacity` entries are inside. */
static inline void deque_push(Deque *d, int32_t node)
{
    int64_t b = ft_load(&d->bottom, relaxed); /* own counter */
    ft_store(&d->slots[b & d->mask], node, relaxed);
    /* release: pairs with the load of bottom in deque_steal(); the thief sees the slot and whatever made the node
     * ready */
    ft_store(&d->bottom, b + 1, ORDER_DEQUE_PUSH_BOTTOM);
}

/* Owner thread only: take the newest entry, or DEQUE_EMPTY. */
static inline int32_t deque_take(Deque *d)
{
    int64_t b = ft_load(&d->bottom, relaxed) - 1; /* own counter */
    /* A look before the expensive store: top only grows, so a stale value that already says "empty" is right. */
    if (ft_load(&d->top, relaxed) > b)
        return DEQUE_EMPTY;
    /* seq_cst store, then seq_cst load: either this load sees a thief's compare-and-swap, or the thief's load of
     * bottom sees this store. Pairs with deque_steal(). */
    ft_store(&d->bottom, b, ORDER_DEQUE_TAKE_BOTTOM);
    int64_t t = ft_load(&d->top, ORDER_DEQUE_TAKE_TOP);
    int32_t node = DEQUE_EMPTY;
    if (t <= b) {
        node = ft_load(&d->slots[b & d->mask], relaxed); /* own store */
        if (t < b)
            return node;
        /* The last entry: the owner competes with thieves for it. */
        if (!ft_cas(&d->top, &t, t + 1, ORDER_DEQUE_TAKE_CAS))
            node = DEQUE_EMPTY;
    }
    ft_store(&d->bottom, b + 1, release);
    return node;
}

/* Any thread: take the oldest entry, DEQUE_EMPTY, or DEQUE_LOST_RACE when another took it: then there may be more. */
static inline int32_t deque_steal(Deque *d)
{
    /* acquire: pairs with the compare-and-swap of another thief; bottom must be read after top */
    int64_t t = ft_load(&d->top, ORDER_DEQUE_STEAL_TOP);
    int64_t b = ft_load(&d->bottom, ORDER_DEQUE_STEAL_BOTTOM); /* pairs with deque_push() and deque_take() */
    if (t >= b)
        return DEQUE_EMPTY;
    int32_t node = ft_load(&d->slots[t & d->mask], relaxed); /* valid only if the next line succeeds */
    if (!ft_cas(&d->top, &t, t + 1, ORDER_DEQUE_STEAL_CAS))
        return DEQUE_LOST_RACE;
    return node;
}

/* Any thread. Hint only: may be stale; a worker looks again between its announcement and its sleep. */
static inline int64_t deque_size_hint(Deque *d)
{
    return ft_load(&d->bottom, relaxed) - ft_load(&d->top, relaxed);
}

#endif
