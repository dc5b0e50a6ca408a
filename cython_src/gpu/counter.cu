/* The counter that a captured graph reads its iteration from. */

#include "cython_src/kernels/interface/block_kernel.cuh"

/* counter += integers[0]; one thread. The last node of a captured graph. */
KERNEL(advance_counter)
{
    if (thread_of_row() == 0)
        *(long long *)a.operand[0] += a.integers[0];
}
