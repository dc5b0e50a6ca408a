/* Replicas without work (graphs/task_bench.py), which show what launches cost; on a GPU there are no others. */

#include "cython_src/kernels/interface/block_kernel.cuh"

KERNEL(replica)
{
    (void)a;
}
