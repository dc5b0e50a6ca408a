/* Inner loops of the optimisers: parameters, their state and partial gradients as flat runs of floats. */
#ifndef FORKTASK_OPTIMIZER_LOOPS_H
#define FORKTASK_OPTIMIZER_LOOPS_H

#include <stddef.h>

/* Flat parameters and their gradient: element e stands at e / row_length * row_stride + e % row_length of a partial,
 * counted from its first element 0; partials are partial_stride apart. */
typedef struct OptimizerTask {
    const float *partial; /* NULL: the gradient was summed before */
    float *gradient, *parameter, *first, *second;
    ptrdiff_t partial_stride, row_length, row_stride, start, stop;
    int partials;
    /* decay: of the weights, added to g; shrink: factor of the weights (decoupled decay); correction, step: Adam's
     * bias corrections, 1 / sqrt(1 - beta2^t) and rate / (1 - beta1^t) */
    float scale, rate, momentum, decay, shrink, beta1, beta2, eps, correction, step;
} OptimizerTask;

typedef struct OptimizerLoops {
    void (*sgd)(const OptimizerTask *task);
    void (*adam)(const OptimizerTask *task);
    /* gradient = sum of partials; returns the sum of its squares */
    float (*gradient_sum)(const OptimizerTask *task);
} OptimizerLoops;

#endif
