/* Tasks of inner loops over maps with the channels in the vector lanes (NHWC).
 *
 * The number of channels of a task is a multiple of 16 unless said otherwise; what lies past the last real channel is
 * zero and stays zero. Sums run in an order that depends on the task's shape alone. */
#ifndef FORKTASK_NHWC_PLANES_H
#define FORKTASK_NHWC_PLANES_H

#include <stddef.h>

#define MAX_PLANES  5
#define MAX_VECTORS 6

/* Rows of pixels in up to five maps of equal pitch, and what belongs to each channel. Strides are in floats; p points
 * at the first channel of the first pixel. */
typedef struct ChannelPlane {
    float *p;
    ptrdiff_t image, row;
} ChannelPlane;

typedef struct NhwcTask {
    ChannelPlane plane[MAX_PLANES];
    const float *vector[MAX_VECTORS];
    ptrdiff_t pitch;
    int images, rows, pixels, channels;
    int activation; /* its code, ACTIVATION_... */
    int mask;       /* backward: where the activation's mask comes from, MASK_... */
    int residual;   /* norm_apply: RESIDUAL_...; backward: the branch, BRANCH_... */
    int accumulate; /* add to the output */
    int streamed;   /* the result is a buffer in a cache, more inputs follow from memory: prefetch them at any size */
} NhwcTask;

enum { MASK_NONE, MASK_RESULT, MASK_ARGUMENT };
enum { RESIDUAL_NONE, RESIDUAL_PLAIN, RESIDUAL_SCALED };
enum { BRANCH_NONE, BRANCH_WRITE, BRANCH_ADD };

#endif
