/* What this machine can do at most: arithmetic, memory, clock and threads; measured without OpenMP. */
#ifndef FORKTASK_MACHINE_PEAKS_H
#define FORKTASK_MACHINE_PEAKS_H

#include <stddef.h>
#include <stdint.h>

/* Order of width; also the index into the table of loops. */
enum { PEAKS_GENERIC = 0, PEAKS_AVX2 = 1, PEAKS_AVX512 = 2, PEAKS_NUM_ISAS = 3 };

/* What each thread of a team repeats. */
enum {
    PEAKS_FMA,    /* independent multiply-add chains in registers; unit: flop */
    PEAKS_TRIAD,  /* a[i] = b[i] + s * c[i]; unit: byte, three arrays counted once each */
    PEAKS_UPDATE, /* a[i] = a[i] * s; unit: byte, the array counts twice */
    PEAKS_CHAIN,  /* one dependent chain of one-cycle integer additions; unit: addition, that is, clock cycle */
    PEAKS_ADDS    /* eight independent chains of them; unit: addition */
};

/* Run `num_threads` threads together for `num_windows` windows of `window_s` seconds each.
 * isa: one this CPU runs. cpus: a logical CPU for each thread, -1 for no pinning. bytes_per_thread:
 * working set of PEAKS_TRIAD and PEAKS_UPDATE. rates: shape (num_windows,), OUT: units per second of all threads together.
 * Returns 0, or an errno value (ENOMEM, EINVAL for a CPU that may not be used, EAGAIN for no thread). */
int peaks_run_team(int kind, int isa, int num_threads, const int *cpus, size_t bytes_per_thread, int num_windows,
                   double window_s, double *rates);

/* Cost of one reading of the monotonic clock and its smallest step seen, ns. */
void peaks_clock(double *cost_ns, double *step_ns);

#endif
