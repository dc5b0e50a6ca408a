/* The counter that a captured graph reads its iteration from. */

#include "cython_src/kernels/interface/block_kernel.cuh"

typedef GpuArgs advance_counter_args;

/* counter += replay; one thread. The last node of a captured graph. */
KERNEL(advance_counter)
{
    if (thread_of_row() == 0)
        *(long long *)a.counter += a.replay;
}
