/* How the caller waits in libraries whose own threads run the blocks. */
#ifndef FORKTASK_OUTSIDE_WAIT_H
#define FORKTASK_OUTSIDE_WAIT_H

#include "outside.h"

#include <semaphore.h>
#include <time.h>

#define LOOKS_FOR_SIGNALS_NS 20000000

/* Wait for a semaphore until it is time to look for signals, which may stop the run. Non-zero: it was posted. */
static int was_posted(OutsideRun *run, sem_t *semaphore)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += LOOKS_FOR_SIGNALS_NS;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    if (sem_timedwait(semaphore, &until) == 0)
        return 1;
    forktask_poll_waiting(run);
    return 0;
}

#endif
