/* Inner loops of ReLU over runs of floats, for any layout. */
#ifndef FORKTASK_RELU_LOOPS_H
#define FORKTASK_RELU_LOOPS_H

#include <stddef.h>

typedef struct ReluLoops {
    void (*forward)(const float *in, float *out, ptrdiff_t n);                 /* out = max(in, 0) */
    void (*backward)(const float *dy, const float *y, float *dx, ptrdiff_t n); /* dx = y > 0 ? dy : 0 */
} ReluLoops;

#endif
