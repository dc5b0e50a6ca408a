/* Inner loops of depthwise convolution, with the channels in the vector lanes. */
#ifndef FORKTASK_NHWC_DEPTHWISE_LOOPS_H
#define FORKTASK_NHWC_DEPTHWISE_LOOPS_H

#include "cython_src/kernels/maps/nhwc_windows.h"

/* The backward pass of norm, depthwise convolution, norm in one pass over their maps, strip by strip: the gradient of the
 * second norm's input is computed from that of its result, serves both gradients of the convolution, and is not kept; the
 * convolution's input is normalised anew; the gradient of that is written, and summed for the first norm. */
typedef struct DepthwiseBackwardTask {
    WindowTask window;   /* in: the convolution's input, normalised with `scale` if that is not NULL; out: not used */
    NhwcTask norm;       /* as of NhwcNormLoops.backward_apply without branch; plane 2 is not used */
    ChannelPlane output; /* gradient of the convolution's (normalised) input */
    const float *weight; /* packed; taps in reverse order with stride 1 */
    const float *mean, *inv_std; /* of the first norm, with `scale` */
    float *staged;               /* ring of rows of the second norm's gradient */
    float *sums;                 /* of the weights' gradient, as of backward_weights */
    float *partials;             /* of the first norm, as of NhwcNormLoops.backward_statistics, with `scale` */
    ptrdiff_t partials_stride;
} DepthwiseBackwardTask;

typedef struct NhwcDepthwiseLoops {
    /* out[c / 16][tap][c % 16] = weight[c][tap], taps in reverse order with `flip`, zero for channels past `channels` */
    void (*pack)(const float *weight, int channels, int padded, int taps, int flip, float *out);
    void (*forward)(const WindowTask *task);
    void (*backward_data)(const WindowTask *task);
    /* sums[c / 16][tap][c % 16] = sum over the pixels of `out`, here the output's gradient, of it and the tap's input */
    void (*backward_weights)(const WindowTask *task, float *sums);
    void (*backward)(const DepthwiseBackwardTask *task);
} NhwcDepthwiseLoops;

#endif
