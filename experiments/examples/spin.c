/* The block of the parallel calls: work of some length, as a plain function and as a kernel of a graph. */
#include "cython_src/kernels/interface/block_kernel.h"

/* About a microsecond per unit: a chain of 256 dependent multiply-adds of some four cycles each. */
void forktask_spin(int64_t units)
{
    double value = 1.0;
    for (int64_t i = 0; i < 256 * units; i++) {
        value = value * 0.75 + 0.5;
        __asm__ volatile("" : "+m"(value)); /* is kept, and through memory */
    }
}

int forktask_spin_block(const void *record, ptrdiff_t block, const TaskContext *context)
{
    (void)block, (void)context;
    forktask_spin(((const KernelArgs *)record)->integers[0]);
    return 0;
}
