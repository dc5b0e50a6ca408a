/* The atomics that the scheduler uses, behind macros: the same sources compile in the extension (C11), under
 * ThreadSanitizer (C11) and under the memory-model checker Relacy (C++, which defines FORKTASK_RELACY and gives its own
 * forms of everything below in tests/tasking/native/relacy_atomics.h).
 *
 * Every ordering that matters has a name, defined beside the code it belongs to as
 *     #ifndef ORDER_X
 *     #define ORDER_X release
 *     #endif
 * so that the model checker can weaken one at a time (-DORDER_X=relaxed) and must then report a fault.
 */
#ifndef FORKTASK_ATOMICS_H
#define FORKTASK_ATOMICS_H

#if defined(FORKTASK_RELACY)
#include "relacy_atomics.h"
#else

#include <stdatomic.h>
#include <stdint.h>

#include "cython_src/kernels/interface/pause.h"

typedef _Atomic int32_t atomic_i32;
typedef _Atomic uint32_t atomic_u32;
typedef _Atomic int64_t atomic_i64;

/* Two levels, so that ORDER_X expands before it is pasted. */
#define FT_ORDER_(order) memory_order_##order
#define FT_ORDER(order)  FT_ORDER_(order)

#define ft_load(p, order)        atomic_load_explicit((p), FT_ORDER(order))
#define ft_store(p, v, order)    atomic_store_explicit((p), (v), FT_ORDER(order))
#define ft_exchange(p, v, order) atomic_exchange_explicit((p), (v), FT_ORDER(order))
#define ft_add(p, v, order)      atomic_fetch_add_explicit((p), (v), FT_ORDER(order))
#define ft_sub(p, v, order)      atomic_fetch_sub_explicit((p), (v), FT_ORDER(order))
/* Strong compare-and-swap; on failure nothing is ordered and *expected holds what was found. */
#define ft_cas(p, expected, v, order) \
    atomic_compare_exchange_strong_explicit((p), (expected), (v), FT_ORDER(order), memory_order_relaxed)
#define ft_fence(order)     atomic_thread_fence(FT_ORDER(order))
#define ft_compiler_fence() atomic_signal_fence(memory_order_seq_cst)

#endif

#define ft_likely(x)   __builtin_expect(!!(x), 1)
#define ft_unlikely(x) __builtin_expect(!!(x), 0)

/* Two cache lines: the adjacent-line prefetcher pairs them. */
#ifndef FT_PAIR_OF_LINES
#define FT_PAIR_OF_LINES 128
#endif

#endif
