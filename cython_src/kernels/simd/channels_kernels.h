/* Inner loops over maps with the channels in the vector lanes (NHWC): normalisation, elementwise work, pooling,
 * depthwise convolution, optimisers. Compiled once per instruction set from kernels/simd/channels_kernels.c.
 *
 * The number of channels of a task is a multiple of 16 unless said otherwise; what lies past the last real channel is
 * zero and stays zero. Sums run in an order that depends on the task's shape alone. */
#ifndef FORKTASK_CHANNEL_KERNELS_H
#define FORKTASK_CHANNEL_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#define MAX_PLANES  5
#define MAX_VECTORS 6

/* Rows of pixels in up to five maps of equal pitch, and what belongs to each channel. Strides are in floats; p points
 * at the first channel of the first pixel. */
typedef struct ChannelPlane {
    float *p;
    ptrdiff_t image, row;
} ChannelPlane;

typedef struct ChannelsTask {
    ChannelPlane plane[MAX_PLANES];
    const float *vector[MAX_VECTORS];
    ptrdiff_t pitch;
    int images, rows, pixels, channels;
    int activation; /* 0 none, 1 relu, 2 relu6 */
    int mask;       /* backward: where the activation's mask comes from, MASK_... */
    int residual;   /* norm_apply: RESIDUAL_...; backward: the branch, BRANCH_... */
    int accumulate; /* add to the output */
    int streamed; /* the result is a buffer in a cache, more inputs follow from memory: ask for them, however small the task */
} ChannelsTask;

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

/* Lines of a map to ask for while a depthwise convolution computes others, so that they come meanwhile: with pixel (y, x),
 * from p + step (y row + x pitch) on. */
typedef struct Ahead {
    const float *p;
    ptrdiff_t image, row;
    int step, write;
} Ahead;

#define MAX_AHEAD 3

/* Pooling or depthwise convolution of some images, rows [y0, y1) of `out`, all columns. Planes stand at the first
 * channel of interior pixel (0, 0) of the first image. `small` is the side that windows are counted on, `large` the
 * side they lie in: window (y, x) begins at (stride y - padding, stride x - padding). Forward, in is large; backward
 * passes gather, so in is small. Rows and columns up to large_halo outside may be read: they are zero. */
typedef struct WindowTask {
    ChannelPlane in, out;
    const float *weight, *bias; /* depthwise: (channels / 16, kernel^2, 16); bias may be NULL */
    const float *scale, *shift; /* depthwise, forward: reads activation(scale in + shift); or NULL */
    float *staged;              /* with scale: ring of rows of that, see STRIP_FLOATS */
    uint8_t *index;             /* maximum: of the small side, without halo */
    float *statistics;          /* depthwise, forward: as of statistics(); or NULL */
    Ahead ahead[MAX_AHEAD];
    ptrdiff_t pitch, statistics_stride;
    int num_ahead, images, y0, y1, channels, large_height, large_width, large_halo, small_height, small_width;
    int kernel, stride, padding, accumulate, activation, in_activation;
} WindowTask;

/* A depthwise convolution between norms goes over its maps in strips of outputs. What it needs of a map that it computes for
 * itself lies in a ring of rows, two strips' worth; one strip's takes no more floats than this, unless four rows do. */
#define STRIP_FLOATS 16384

/* The backward pass of norm, depthwise convolution, norm in one pass over their maps, strip by strip: the gradient of the
 * second norm's input is computed from that of its result, serves both gradients of the convolution, and is not kept; the
 * convolution's input is normalised anew; the gradient of that is written, and summed for the first norm. */
typedef struct DepthwiseBackwardTask {
    WindowTask window;   /* in: the convolution's input, normalised with `scale` if that is not NULL; out: not used */
    ChannelsTask norm;   /* as of norm_backward_apply without branch; plane 2 is not used */
    ChannelPlane output; /* gradient of the convolution's (normalised) input */
    const float *weight; /* packed; taps in reverse order with stride 1 */
    const float *mean, *inv_std; /* of the first norm, with `scale` */
    float *staged;               /* ring of rows of the second norm's gradient */
    float *sums;                 /* of the weights' gradient, as of depthwise_backward_weights */
    float *partials;             /* of the first norm, as of norm_backward_statistics, with `scale` */
    ptrdiff_t partials_stride;
} DepthwiseBackwardTask;

enum { MASK_NONE, MASK_RESULT, MASK_ARGUMENT };
enum { RESIDUAL_NONE, RESIDUAL_PLAIN, RESIDUAL_SCALED };
enum { BRANCH_NONE, BRANCH_WRITE, BRANCH_ADD };

typedef struct ChannelsKernels {
    /* out[0]: mean, out[stride]: sum of squared deviations, out[2 stride]: number of the pixels of plane 0. */
    void (*statistics)(const ChannelsTask *task, float *out, ptrdiff_t stride);
    /* Merge `partials` statistics `stride` floats apart (three rows `pitch` apart): mean and sum of squared
     * deviations of all. */
    void (*merge_statistics)(const float *partial, int partials, ptrdiff_t pitch, int channels, float count,
                             float *mean, float *squares);
    /* out[0] = sum over `partials` of partial, in order, `stride` floats apart; any number of channels. */
    void (*sum_partials)(const float *partial, int partials, ptrdiff_t stride, int channels, float *out);
    /* plane 1 = activation(v0 * plane 0 + v1 [+ plane 2] [+ v2 * plane 2 + v3]) */
    void (*norm_apply)(const ChannelsTask *task);
    /* g = plane 0 where the mask passes (plane 2, or v2 * plane 1 + v3), x = plane 1;
     * out[0] = sum g, out[stride] = sum g (x - v0) v1 */
    void (*norm_backward_statistics)(const ChannelsTask *task, float *out, ptrdiff_t stride);
    /* g as above but with mask plane 3 and v4, v5; plane 2 = v0 g + (v1 (plane 1 - v3) + v2); branch: plane 4 */
    void (*norm_backward_apply)(const ChannelsTask *task);
    /* plane 1 = activation(plane 0 [+ plane 2 when `residual`]); any number of channels */
    void (*activate)(const ChannelsTask *task);
    /* g = plane 0 where plane 1 passes (MASK_RESULT), or all of it; plane 2 [+]= g, branch: plane 3; any number of
     * channels */
    void (*activate_backward)(const ChannelsTask *task);
    /* plane 1 = plane 0 * scale where the generator's word is at least `threshold`, else 0; row: n height + y of the
     * block's first row; any number of channels, all of the pitch */
    void (*dropout)(const ChannelsTask *task, int height, int first_row, uint64_t seed, uint32_t layer,
                    uint32_t iteration, uint32_t threshold, float scale);
    /* v0 = mean over the pixels of each image, `stride` apart: sums row by row; any number of channels */
    void (*global_mean)(const ChannelsTask *task, float *out, ptrdiff_t stride);
    /* plane 0 [+]= scale * value of the image, `stride` apart; any number of channels */
    void (*spread)(const ChannelsTask *task, const float *values, ptrdiff_t stride, float scale);
    void (*sgd)(const OptimizerTask *task);
    void (*adam)(const OptimizerTask *task);
    /* gradient = sum of partials; returns the sum of its squares */
    float (*gradient_sum)(const OptimizerTask *task);
    void (*max_pool)(const WindowTask *task);
    void (*max_pool_backward)(const WindowTask *task);
    void (*average_pool)(const WindowTask *task);
    void (*average_pool_backward)(const WindowTask *task);
    /* out[c / 16][tap][c % 16] = weight[c][tap], taps in reverse order with `flip`, zero for channels past `channels` */
    void (*depthwise_pack)(const float *weight, int channels, int padded, int taps, int flip, float *out);
    void (*depthwise)(const WindowTask *task);
    void (*depthwise_backward_data)(const WindowTask *task);
    /* sums[c / 16][tap][c % 16] = sum over the pixels of `out`, here the output's gradient, of it and the tap's input */
    void (*depthwise_backward_weights)(const WindowTask *task, float *sums);
    void (*depthwise_backward)(const DepthwiseBackwardTask *task);
} ChannelsKernels;

#endif
