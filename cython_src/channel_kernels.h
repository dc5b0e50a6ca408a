/* Inner loops over maps with the channels in the vector lanes (NHWC): normalisation, elementwise work, pooling,
 * depthwise convolution, optimisers. Compiled once per instruction set from channel_kernels.c.
 *
 * The number of channels of a task is a multiple of 16 unless said otherwise; what lies past the last real channel is
 * zero and stays zero. Sums run in an order that depends on the task's shape alone. */
#ifndef FORKTASK_CHANNEL_KERNELS_H
#define FORKTASK_CHANNEL_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#define MAX_PLANES 5
#define MAX_VECTORS 6

/* Rows of pixels in up to five maps of equal pitch, and what belongs to each channel. Strides are in floats; p points
 * at the first channel of the first pixel. */
typedef struct ChannelPlane {
    float *p;
    ptrdiff_t image, row;
} ChannelPlane;

typedef struct ChannelTask {
    ChannelPlane plane[MAX_PLANES];
    const float *vector[MAX_VECTORS];
    ptrdiff_t pitch;
    int images, rows, pixels, channels;
    int activation; /* 0 none, 1 relu, 2 relu6 */
    int mask;       /* backward: where the activation's mask comes from, MASK_... */
    int residual;   /* norm_apply: RESIDUAL_...; backward: the branch, BRANCH_... */
    int accumulate; /* add to the output */
} ChannelTask;

enum { MASK_NONE, MASK_RESULT, MASK_ARGUMENT };
enum { RESIDUAL_NONE, RESIDUAL_PLAIN, RESIDUAL_SCALED };
enum { BRANCH_NONE, BRANCH_WRITE, BRANCH_ADD };

typedef struct ChannelKernels {
    /* out[0]: mean, out[stride]: sum of squared deviations, out[2 stride]: number of the pixels of plane 0. */
    void (*statistics)(const ChannelTask *task, float *out, ptrdiff_t stride);
    /* Merge `partials` statistics `stride` floats apart (three rows `pitch` apart): mean and sum of squared
     * deviations of all. */
    void (*merge_statistics)(const float *partial, int partials, ptrdiff_t pitch, int channels, float count,
                             float *mean, float *squares);
    /* out[0] = sum over `partials` of partial, in order, `stride` floats apart; any number of channels. */
    void (*sum_partials)(const float *partial, int partials, ptrdiff_t stride, int channels, float *out);
    /* plane 1 = activation(v0 * plane 0 + v1 [+ plane 2] [+ v2 * plane 2 + v3]) */
    void (*norm_apply)(const ChannelTask *task);
    /* g = plane 0 where the mask passes (plane 2, or v2 * plane 1 + v3), x = plane 1;
     * out[0] = sum g, out[stride] = sum g (x - v0) v1 */
    void (*norm_backward_statistics)(const ChannelTask *task, float *out, ptrdiff_t stride);
    /* g as above but with mask plane 3 and v4, v5; plane 2 = v0 g + (v1 (plane 1 - v3) + v2); branch: plane 4 */
    void (*norm_backward_apply)(const ChannelTask *task);
    /* plane 1 = activation(plane 0 [+ plane 2 when `residual`]); any number of channels */
    void (*activate)(const ChannelTask *task);
    /* g = plane 0 where plane 1 passes (MASK_RESULT), or all of it; plane 2 [+]= g, branch: plane 3; any number of
     * channels */
    void (*activate_backward)(const ChannelTask *task);
} ChannelKernels;

#endif
