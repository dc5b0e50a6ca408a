/* Marks of the part of a program that counts, in place of the time of its process: `forktask compare --program`.
 * Marks may come several times: their times are added. One thread makes them; without forktask they do nothing. */
#ifndef FORKTASK_REGION_H
#define FORKTASK_REGION_H

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static inline void forktask_region_mark(const char *name)
{
    const char *descriptor = getenv("FORKTASK_REGION");
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (descriptor)
        dprintf(atoi(descriptor), "%s %lld.%09ld\n", name, (long long)now.tv_sec, now.tv_nsec);
}

static inline void forktask_region_begin(void)
{
    forktask_region_mark("begin");
}
static inline void forktask_region_end(void)
{
    forktask_region_mark("end");
}

#endif
