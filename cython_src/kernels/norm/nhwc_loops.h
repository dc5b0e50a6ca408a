/* Inner loops of batch normalisation, with the channels in the vector lanes. */
#ifndef FORKTASK_NHWC_NORM_LOOPS_H
#define FORKTASK_NHWC_NORM_LOOPS_H

#include "cython_src/kernels/maps/nhwc_planes.h"

typedef struct NhwcNormLoops {
    /* out[0]: mean, out[stride]: sum of squared deviations, out[2 stride]: number of the pixels of plane 0. */
    void (*statistics)(const NhwcTask *task, float *out, ptrdiff_t stride);
    /* Merge `partials` statistics `stride` floats apart (three rows `pitch` apart): mean and sum of squared
     * deviations of all. */
    void (*merge_statistics)(const float *partial, int partials, ptrdiff_t pitch, int channels, float count,
                             float *mean, float *squares);
    /* out[0] = sum over `partials` of partial, in order, `stride` floats apart; any number of channels. */
    void (*sum_partials)(const float *partial, int partials, ptrdiff_t stride, int channels, float *out);
    /* plane 1 = activation(v0 * plane 0 + v1 [+ plane 2] [+ v2 * plane 2 + v3]) */
    void (*apply)(const NhwcTask *task);
    /* g = plane 0 where the mask passes (plane 2, or v2 * plane 1 + v3), x = plane 1;
     * out[0] = sum g, out[stride] = sum g (x - v0) v1 */
    void (*backward_statistics)(const NhwcTask *task, float *out, ptrdiff_t stride);
    /* g as above but with mask plane 3 and v4, v5; plane 2 = v0 g + (v1 (plane 1 - v3) + v2); branch: plane 4 */
    void (*backward_apply)(const NhwcTask *task);
} NhwcNormLoops;

#endif
