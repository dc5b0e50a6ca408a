/* How a thread joins an OpenMP team that runs blocks. */
#ifndef FORKTASK_OPENMP_TEAM_H
#define FORKTASK_OPENMP_TEAM_H

#include <omp.h>

#include "thread_state.h"

/* Prepare the calling thread of a parallel region and return its number. Every thread of the team calls this, since it
 * ends with a barrier: from then on `failed` is set if one could not be pinned or the team is smaller than asked for. */
static inline int forktask_enter_team(ThreadState *threads, const int *cpus, int num_threads, int *team_size,
                                      int *failed)
{
    const int thread = omp_get_thread_num();
    if (thread == 0)
        *team_size = omp_get_num_threads();
    forktask_enter_thread(&threads[thread], cpus ? cpus[thread] : -1);
    if (threads[thread].error || omp_get_num_threads() != num_threads)
        __atomic_store_n(failed, 1, __ATOMIC_RELAXED);
#pragma omp barrier
    return thread;
}

#endif
