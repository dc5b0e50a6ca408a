/* Inner loops of pooling, with the channels in the vector lanes. */
#ifndef FORKTASK_NHWC_POOLING_LOOPS_H
#define FORKTASK_NHWC_POOLING_LOOPS_H

#include "cython_src/kernels/maps/nhwc_windows.h"

typedef struct NhwcPoolingLoops {
    void (*max_pool)(const WindowTask *task);
    void (*max_pool_backward)(const WindowTask *task);
    void (*average_pool)(const WindowTask *task);
    void (*average_pool_backward)(const WindowTask *task);
    /* v0 = mean over the pixels of each image, `stride` apart: sums row by row; any number of channels */
    void (*global_mean)(const NhwcTask *task, float *out, ptrdiff_t stride);
    /* plane 0 [+]= scale * value of the image, `stride` apart; any number of channels */
    void (*spread)(const NhwcTask *task, const float *values, ptrdiff_t stride, float scale);
} NhwcPoolingLoops;

#endif
