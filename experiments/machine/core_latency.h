/* Time of a hand-over from one thread to another. */
#ifndef FORKTASK_CORE_LATENCY_H
#define FORKTASK_CORE_LATENCY_H

#include <stddef.h>

/* Hand over 2 * rounds times between threads on two CPUs; sleeps: each waits on a futex. The thread whose
 * turn it is reads the lines of so many bytes that the other one wrote, and writes them anew; on one CPU, one thread takes
 * all turns. *seconds: OUT, of one
 * hand-over, the threads' start included. Returns 0 or an errno. */
int measure_handover(int first_cpu, int second_cpu, int sleeps, int rounds, size_t bytes, double *seconds);

#endif
