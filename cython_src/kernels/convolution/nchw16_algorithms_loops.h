/* Convolutions with 5 x 5 taps of sixteen images in the vector lanes, by the algorithms that the direct one (ConvTask in
 * nchw_loops.h) is compared with; compiled once per instruction set from kernels/convolution/nchw16_algorithms_loops.c.
 *
 * Sums run in the direct algorithm's order, bias first, then input channels, kernel rows, kernel columns; so forward pass
 * and data gradient have its bits. Strides are in floats, a pixel is LANES floats. */
#ifndef FORKTASK_NCHW16_ALGORITHMS_LOOPS_H
#define FORKTASK_NCHW16_ALGORITHMS_LOOPS_H

#include <stddef.h>

#include "nchw_loops.h"

/* The inputs (y, x), counted from the one under tap (0, 0) of the first output, that exist. */
typedef struct Extent {
    int top, bottom, left, right; /* top <= y < bottom, left <= x < right */
} Extent;

/* Tasks have pixels of LANES floats, weight gradients one group, no sum of dY. */
typedef struct Nchw16AlgorithmsLoops {
    /* One output pixel at a time; bounds are tested at every tap unless `exist` is NULL. */
    void (*plain)(const ConvTask *task, const Extent *exist);
    /* A tile of outputs in registers; bounds are tested at every tap and pixel. */
    void (*tested)(const ConvTask *task, const Extent *exist);
    void (*gradient_plain)(const WeightGradientTask *task, const Extent *exist);  /* one tap at a time */
    void (*gradient_tested)(const WeightGradientTask *task, const Extent *exist); /* a tile of taps in registers */
} Nchw16AlgorithmsLoops;

#endif
