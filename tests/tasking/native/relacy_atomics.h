/* The atomics layer of tasking/atomics.h over the model checker Relacy. Relacy chooses interleavings and, for each load, one of
 * the values that the C11 memory model allows. */
#ifndef FORKTASK_RELACY_ATOMICS_H
#define FORKTASK_RELACY_ATOMICS_H

#include <relacy/relacy.hpp>

/* Relacy's own allocator is not wanted: the models allocate nothing while they run. */
#undef malloc
#undef calloc
#undef realloc
#undef free

/* Written by test_model_check.py: each ordering of the runtime is a variable here, so that one program can weaken any of
 * them. For every ORDER_X it holds `#define ORDER_X ORDER_X`, which keeps the runtime's own definition away, and
 * `rl::mo_ORDER_X`, which has the runtime's value until main() changes it. */
#include "model_check_orders.h"

typedef rl::atomic<int32_t> atomic_i32;
typedef rl::atomic<uint32_t> atomic_u32;
typedef rl::atomic<int64_t> atomic_i64;

#define FT_PAIR_OF_LINES 4096 /* Relacy's atomics hold a history */

#define FT_ORDER_(order)         rl::mo_##order
#define FT_ORDER(order)          FT_ORDER_(order)
#define ft_load(p, order)        (p)->load(FT_ORDER(order), $)
#define ft_store(p, v, order)    (p)->store((v), FT_ORDER(order), $)
#define ft_exchange(p, v, order) (p)->exchange((v), FT_ORDER(order), $)
#define ft_add(p, v, order)      (p)->fetch_add((v), FT_ORDER(order), $)
#define ft_sub(p, v, order)      (p)->fetch_sub((v), FT_ORDER(order), $)
#define ft_cas(p, expected, v, order) \
    (p)->compare_exchange_strong(*(expected), (v), FT_ORDER(order), $, rl::mo_relaxed, $)
#define ft_fence(order)     rl::atomic_thread_fence(FT_ORDER(order), $)
#define ft_compiler_fence() ((void)0)
#define ft_pause()          rl::yield(1, $)

/* A futex wait may return early, so a yield is one: the loop around it is what is checked. Who is never woken yields for ever,
 * which Relacy reports. */
#define ft_futex_wait(word, value, timeout_ns) rl::yield(1, $)
#define ft_futex_wake(word, count)             ((void)0)
#define ft_register_membarrier()               0

#endif
