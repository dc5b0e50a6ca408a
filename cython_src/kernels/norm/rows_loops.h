/* Layer normalisation, and NoNorm, which only scales and shifts; compiled once per instruction set from kernels/norm/rows_loops.c. Rows are dense. */
#ifndef FORKTASK_NORM_ROWS_LOOPS_H
#define FORKTASK_NORM_ROWS_LOOPS_H

#include <stddef.h>

typedef struct LayerNormTask {
    const float *in, *residual; /* forward: residual or NULL */
    float *sum;                 /* with a residual: gets in + residual, or NULL */
    const float *weight, *bias;
    float *out, *statistics; /* statistics: mean and 1 / std of each row; not of NoNorm */
    ptrdiff_t features;
    int rows;
    float eps;
} LayerNormTask;

typedef struct LayerNormGradientTask {
    const float *gradient, *in, *weight, *statistics, *residual; /* residual: added to out, or NULL */
    float *out, *weight_gradient, *bias_gradient;                /* gradients of weight and bias: stored */
    ptrdiff_t features;
    int rows;
} LayerNormGradientTask;

typedef struct LayerNormLoops {
    void (*forward)(const LayerNormTask *task);
    void (*backward)(const LayerNormGradientTask *task);
    void (*no_norm_forward)(const LayerNormTask *task);
    void (*no_norm_backward)(const LayerNormGradientTask *task);
} LayerNormLoops;

#endif
