/* Element-wise loops over tokens, compiled once per instruction set from kernels/elementwise/rows_loops.c. */
#ifndef FORKTASK_ELEMENTWISE_ROWS_LOOPS_H
#define FORKTASK_ELEMENTWISE_ROWS_LOOPS_H

#include <stddef.h>

typedef struct TokenElementLoops {
    void (*activate)(const float *in, float *out, ptrdiff_t length, int activation);
    /* out = gradient times the derivative, by the argument of GELU, by the result of others */
    void (*activate_backward)(const float *gradient, const float *values, float *out, ptrdiff_t length, int activation);
    void (*add)(const float *first, const float *second, float *out, ptrdiff_t length);
} TokenElementLoops;

#endif
