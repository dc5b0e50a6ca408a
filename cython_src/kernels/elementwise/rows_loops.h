/* Element-wise loops over tokens, compiled once per instruction set from kernels/elementwise/rows_loops.c. */
#ifndef FORKTASK_ELEMENTWISE_ROWS_LOOPS_H
#define FORKTASK_ELEMENTWISE_ROWS_LOOPS_H

#include <stddef.h>

typedef struct TokenElementLoops {
    void (*gelu)(const float *in, float *out, ptrdiff_t length);
    /* out = gradient * GELU's derivative at `before` */
    void (*gelu_backward)(const float *gradient, const float *before, float *out, ptrdiff_t length);
    void (*add)(const float *first, const float *second, float *out, ptrdiff_t length);
} TokenElementLoops;

#endif
