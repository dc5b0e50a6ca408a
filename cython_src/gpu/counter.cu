/* Launches that are no loop of a plan: the counter that a captured graph reads its iteration from, and waiting. */

#include "cython_src/kernels/interface/block_kernel.cuh"

typedef GpuArgs advance_counter_args;
typedef GpuArgs spin_args;

/* counter += replay; one thread. The last node of a captured graph. */
KERNEL(advance_counter)
{
    if (thread_of_row() == 0)
        *(long long *)a.counter += a.replay;
}

/* Keep a stream busy for `replay` ns; one thread. */
KERNEL(spin)
{
    const long long start = now_ns();
    while (thread_of_row() == 0 && now_ns() - start < a.replay) {
    }
}
