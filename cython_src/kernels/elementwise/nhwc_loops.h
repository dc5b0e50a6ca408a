/* Inner loops of activations, sums and dropout, with the channels in the vector lanes; any number of channels. */
#ifndef FORKTASK_NHWC_ELEMENTWISE_LOOPS_H
#define FORKTASK_NHWC_ELEMENTWISE_LOOPS_H

#include <stdint.h>

#include "cython_src/kernels/maps/nhwc_planes.h"

typedef struct NhwcElementwiseLoops {
    /* plane 1 = activation(plane 0 [+ plane 2 when `residual`]) */
    void (*activate)(const NhwcTask *task);
    /* plane 2 [+]= plane 0 where the activation whose result is plane 1 lets it pass */
    void (*activate_backward)(const NhwcTask *task);
    /* plane 1 = plane 0 * scale where the generator's word is at least `threshold`, else 0; row: n height + y of the
     * block's first row; channels: all of the pitch */
    void (*dropout)(const NhwcTask *task, int height, int first_row, uint64_t seed, uint32_t layer, uint32_t iteration,
                    uint32_t threshold, float scale);
} NhwcElementwiseLoops;

#endif
